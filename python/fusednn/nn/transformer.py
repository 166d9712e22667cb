"""The encoder-decoder of "Attention is all you need" (Vaswani et al., NeurIPS 2017) in layers.

Names, parameters and masks (True in a boolean mask means BLOCKED) are PyTorch's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import functional as F
from .._tensor.device import beside, device_of, is_half, on_gpu
from .._tensor.tape import Array, raw
from . import init
from .activation import Dropout
from .attention import MultiheadAttention
from .cache import KVCache
from .container import ModuleList
from .dense import Linear, check_sizes
from .module import Module
from .norm import LayerNorm, RMSNorm

Activation = str | Callable[[Any], Any]
_ACTIVATIONS: dict[str, Callable[[Any], Any]] = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}


def _activation(owner: str, given: Activation) -> Callable[[Any], Any]:
    if callable(given):
        return given
    if given not in _ACTIVATIONS:
        raise ValueError(
            f"{owner}: activation={given!r}, expected 'relu', 'gelu', 'silu' or a function"
        )
    return _ACTIVATIONS[given]


class SinusoidalPositionalEncoding(Module):
    """x + positions for x (..., T, d_model): fixed waves, none of them learnt or saved.

    Number 2 i of position p is sin(p / base**(2 i / d_model)), number 2 i + 1 the cosine of the
    same; d_model may be odd. offset: the position of x's first element. ValueError beyond max_len.

    >>> from fusednn import nn
    >>> nn.SinusoidalPositionalEncoding(4)(np.zeros((2, 4)))[1]
    tensor([0.8415, 0.5403, 0.0100, 1.0000], dtype=float64)
    """

    def __init__(self, d_model: int, max_len: int = 5000, *, base: float = 10000.0) -> None:
        super().__init__()
        check_sizes("SinusoidalPositionalEncoding", 1, d_model=d_model, max_len=max_len)
        self.d_model, self.max_len, self.base = d_model, max_len, base
        self._tables: dict[str, Array] = {}

    def table(self, dtype: Any = np.float64) -> Array:
        """The encodings (max_len, d_model), rounded once from float64."""
        key = np.dtype(dtype).char
        if key not in self._tables:
            even = np.arange(0, self.d_model, 2)
            angle = np.outer(np.arange(self.max_len), self.base ** (-even / self.d_model))
            waves = np.stack([np.sin(angle), np.cos(angle)], 2).reshape(self.max_len, -1)
            self._tables[key] = waves[:, : self.d_model].astype(dtype)
        return self._tables[key]

    def forward(self, x: Any, offset: int = 0) -> Any:
        """(..., T, d_model), the same shape."""
        shape, dtype = raw(x).shape, raw(x).dtype
        if dtype.char not in "fd" and not (is_half(dtype) and on_gpu(raw(x))):
            raise TypeError(
                f"SinusoidalPositionalEncoding: x has dtype {dtype}, expected float32 or float64"
            )
        if len(shape) < 2 or shape[-1] != self.d_model:
            raise ValueError(
                f"SinusoidalPositionalEncoding: x has shape {shape}, expected "
                f"(..., T, {self.d_model})"
            )
        end = offset + shape[-2]
        if offset < 0 or end > self.max_len:
            raise ValueError(
                f"SinusoidalPositionalEncoding: positions {offset} to {end - 1} go beyond "
                f"max_len={self.max_len}"
            )
        place = device_of(raw(x))
        key = f"{dtype.char} {place}"  # a copy on each GPU
        if place != "cpu" and key not in self._tables:
            self._tables[key] = beside(self.table(dtype), raw(x))
        table = self.table(dtype) if place == "cpu" else self._tables[key]
        return x + table[offset:end]

    def extra_repr(self) -> str:
        return f"{self.d_model}, max_len={self.max_len}"


def _add_norm(norm: Module, input: Any, residual: Any) -> tuple[Any, Any]:
    """norm(input + residual) and the sum: in one pass where the norm can."""
    if type(norm) in (LayerNorm, RMSNorm) and norm._hooks is None:
        return norm(input, residual=residual)  # type: ignore[no-any-return]
    total = residual + input
    return norm(total), total


class _FeedForward(Module):
    """What encoder and decoder layers share: two linear layers, and where norms stand."""

    linear1: Linear
    linear2: Linear
    dropout: Dropout

    def _add_feed_forward(
        self, d_model: int, width: int, dropout: float, activation: Activation, bias: bool,
        dtype: Any,
    ) -> None:  # fmt: skip
        self.linear1 = Linear(d_model, width, bias, dtype=dtype)
        self.dropout = Dropout(dropout)
        self.linear2 = Linear(width, d_model, bias, dtype=dtype)
        self.activation = _activation(type(self).__name__, activation)

    def _feed_forward(self, x: Any) -> Any:
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class TransformerEncoderLayer(_FeedForward):
    """Self-attention and a feed-forward net, each with a residual and a LayerNorm.

    norm_first: normalise what goes into each part (pre-norm), not the sum behind it (post-norm, as
    in the paper). activation: "relu", "gelu", "silu" or a function.

    >>> from fusednn import nn
    >>> layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    >>> layer(np.zeros((3, 5, 8), np.float32)).shape
    (3, 5, 8)
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout, bias, batch_first=batch_first, dtype=dtype
        )
        self._add_feed_forward(d_model, dim_feedforward, dropout, activation, bias, dtype)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)

    def forward(
        self,
        src: Any,
        src_mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool = False,
    ) -> Any:
        """src as `MultiheadAttention` takes it, the same shape; is_causal needs no src_mask."""

        def attend(x: Any) -> Any:
            out, _ = self.self_attn(
                x, x, x, key_padding_mask=src_key_padding_mask, need_weights=False,
                attn_mask=src_mask, is_causal=is_causal,
            )  # fmt: skip
            return self.dropout1(out)

        if self.norm_first:
            normed, x = _add_norm(self.norm2, attend(self.norm1(src)), src)
            return x + self.dropout2(self._feed_forward(normed))
        x, _ = _add_norm(self.norm1, attend(src), src)
        return _add_norm(self.norm2, self.dropout2(self._feed_forward(x)), x)[0]


class TransformerEncoder(Module):
    """num_layers copies of encoder_layer, then norm.

    Rows of padding get numbers too, in evaluation as in training; only rows of real positions mean
    anything.
    """

    def __init__(self, encoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(encoder_layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = norm

    def forward(
        self,
        src: Any,
        mask: Any = None,
        src_key_padding_mask: Any = None,
        is_causal: bool = False,
    ) -> Any:
        """src as `MultiheadAttention` takes it, the same shape."""
        out = src
        for layer in self.layers:
            out = layer(
                out, src_mask=mask, src_key_padding_mask=src_key_padding_mask, is_causal=is_causal
            )
        return out if self.norm is None else self.norm(out)


# Of one decoder layer: what it has seen of the target, and of the memory.
LayerCache = tuple[KVCache, KVCache]


class TransformerDecoderLayer(_FeedForward):
    """Self-attention, attention to a memory and a feed-forward net, as `TransformerEncoderLayer`.

    >>> from fusednn import nn
    >>> layer, x = nn.TransformerDecoderLayer(8, 2, 16), np.zeros((5, 3, 8), np.float32)
    >>> layer(x, x, tgt_is_causal=True).shape
    (5, 3, 8)
    """

    def __init__(
        self,
        d_model: int,
        nhead: int,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.self_attn = MultiheadAttention(
            d_model, nhead, dropout, bias, batch_first=batch_first, dtype=dtype
        )
        self.multihead_attn = MultiheadAttention(
            d_model, nhead, dropout, bias, batch_first=batch_first, dtype=dtype
        )
        self._add_feed_forward(d_model, dim_feedforward, dropout, activation, bias, dtype)
        self.norm_first = norm_first
        self.norm1 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.norm2 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.norm3 = LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)
        self.dropout1 = Dropout(dropout)
        self.dropout2 = Dropout(dropout)
        self.dropout3 = Dropout(dropout)

    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        *,
        cache: LayerCache | None = None,
    ) -> Any:
        """tgt as `MultiheadAttention` takes it, the same shape; cache: see `TransformerDecoder`."""
        own, fixed = (None, None) if cache is None else cache

        def attend(x: Any) -> Any:
            out, _ = self.self_attn(
                x, x, x, key_padding_mask=tgt_key_padding_mask, need_weights=False,
                attn_mask=tgt_mask, is_causal=tgt_is_causal, cache=own,
            )  # fmt: skip
            return self.dropout1(out)

        def look(x: Any) -> Any:
            out, _ = self.multihead_attn(
                x, memory, memory, key_padding_mask=memory_key_padding_mask, need_weights=False,
                attn_mask=memory_mask, is_causal=memory_is_causal, cache=fixed,
            )  # fmt: skip
            return self.dropout2(out)

        if self.norm_first:
            normed, x = _add_norm(self.norm2, attend(self.norm1(tgt)), tgt)
            normed, x = _add_norm(self.norm3, look(normed), x)
            return x + self.dropout3(self._feed_forward(normed))
        x, _ = _add_norm(self.norm1, attend(tgt), tgt)
        x, _ = _add_norm(self.norm2, look(x), x)
        return _add_norm(self.norm3, self.dropout3(self._feed_forward(x)), x)[0]


class TransformerDecoder(Module):
    """num_layers copies of decoder_layer, then norm.

    With a cache from `new_cache`, inside no_grad(), a call takes only the positions that are new,
    and projects the memory once; tgt_is_causal=True then lines up the ends.
    """

    def __init__(self, decoder_layer: Module, num_layers: int, norm: Module | None = None) -> None:
        super().__init__()
        self.layers = ModuleList([copy.deepcopy(decoder_layer) for _ in range(num_layers)])
        self.num_layers = num_layers
        self.norm = norm

    def new_cache(self, dtype: str | None = None) -> list[LayerCache]:
        """An empty cache, for one batch of memories; dtype as `KVCache` takes it."""
        return [(KVCache(dtype=dtype), KVCache(True, dtype)) for _ in self.layers]

    def forward(
        self,
        tgt: Any,
        memory: Any,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
        *,
        cache: list[LayerCache] | None = None,
    ) -> Any:
        """tgt as `MultiheadAttention` takes it, the same shape."""
        out = tgt
        for i, layer in enumerate(self.layers):
            out = layer(
                out, memory, tgt_mask=tgt_mask, memory_mask=memory_mask,
                tgt_key_padding_mask=tgt_key_padding_mask,
                memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=tgt_is_causal,
                memory_is_causal=memory_is_causal, cache=None if cache is None else cache[i],
            )  # fmt: skip
        return out if self.norm is None else self.norm(out)


class Transformer(Module):
    """Encoder and decoder, by default of the paper's base size; embeddings are left to the user.

    >>> from fusednn import nn
    >>> net = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    >>> net(np.zeros((3, 7, 8), np.float32), np.zeros((3, 5, 8), np.float32)).shape
    (3, 5, 8)
    """

    def __init__(
        self,
        d_model: int = 512,
        nhead: int = 8,
        num_encoder_layers: int = 6,
        num_decoder_layers: int = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        custom_encoder: Module | None = None,
        custom_decoder: Module | None = None,
        layer_norm_eps: float = 1e-5,
        batch_first: bool = False,
        norm_first: bool = False,
        bias: bool = True,
        *,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.d_model, self.nhead, self.batch_first = d_model, nhead, batch_first
        options = (
            d_model, nhead, dim_feedforward, dropout, activation, layer_norm_eps, batch_first,
            norm_first, bias,
        )  # fmt: skip

        def norm() -> LayerNorm:
            return LayerNorm(d_model, layer_norm_eps, bias=bias, dtype=dtype)

        self.encoder: Module = custom_encoder or TransformerEncoder(
            TransformerEncoderLayer(*options, dtype=dtype), num_encoder_layers, norm()
        )
        self.decoder: Module = custom_decoder or TransformerDecoder(
            TransformerDecoderLayer(*options, dtype=dtype), num_decoder_layers, norm()
        )
        for parameter in self.parameters():
            if parameter.ndim > 1:
                init.xavier_uniform_(parameter)

    def forward(
        self,
        src: Any,
        tgt: Any,
        src_mask: Any = None,
        tgt_mask: Any = None,
        memory_mask: Any = None,
        src_key_padding_mask: Any = None,
        tgt_key_padding_mask: Any = None,
        memory_key_padding_mask: Any = None,
        src_is_causal: bool = False,
        tgt_is_causal: bool = False,
        memory_is_causal: bool = False,
    ) -> Any:
        """src (S, N, d_model) and tgt (T, N, d_model), or N first -> like tgt."""
        memory = self.encoder(
            src, mask=src_mask, src_key_padding_mask=src_key_padding_mask, is_causal=src_is_causal
        )
        return self.decoder(
            tgt, memory, tgt_mask=tgt_mask, memory_mask=memory_mask,
            tgt_key_padding_mask=tgt_key_padding_mask,
            memory_key_padding_mask=memory_key_padding_mask, tgt_is_causal=tgt_is_causal,
            memory_is_causal=memory_is_causal,
        )  # fmt: skip

    @staticmethod
    def generate_square_subsequent_mask(size: int, *, dtype: Any = np.float32) -> Array:
        """(size, size) for attn_mask: -inf above the diagonal, 0 elsewhere.

        >>> from fusednn import nn
        >>> nn.Transformer.generate_square_subsequent_mask(2).tolist()
        [[0.0, -inf], [0.0, 0.0]]
        """
        return np.where(np.tri(size, dtype=bool), 0, -np.inf).astype(dtype)
