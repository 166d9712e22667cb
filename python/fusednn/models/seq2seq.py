"""The Transformer of "Attention is all you need": one sequence of tokens into another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import nn
from .._tensor.device import beside, host, is_array
from .._tensor.mode import no_grad
from .._tensor.tape import Array, raw
from ..nn.transformer import Activation
from .generate import Sampler, beam_search, collect, sample


class Seq2SeqTransformer(nn.Module):
    """Source ids (N, S) and target ids (N, T) -> logits (N, T, tgt_vocab) of each next token.

    Embeddings times sqrt(d_model) plus positions ("sinusoidal" as in the paper, or "learned", up to
    max_len), an `nn.Transformer`, a linear layer `generator`; tied: it shares the target
    embedding's weight. pad: the id that fills up shorter rows, in source and target; it is hidden
    from all attention. Post-norm with 6 layers each, as in the paper, unless norm_first. Vaswani et
    al., NeurIPS 2017.

    >>> from fusednn.models import Seq2SeqTransformer
    >>> net = Seq2SeqTransformer(9, 7, d_model=8, nhead=2, num_layers=1, dim_feedforward=16)
    >>> net(np.array([[3, 4, 5, 0]]), np.array([[1, 4]])).shape
    (1, 2, 7)
    """

    def __init__(
        self,
        src_vocab: int,
        tgt_vocab: int,
        d_model: int = 512,
        nhead: int = 8,
        num_layers: int | tuple[int, int] = 6,
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: Activation = "relu",
        *,
        norm_first: bool = False,
        positions: str = "sinusoidal",
        max_len: int = 512,
        tied: bool = False,
        pad: int = 0,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if positions not in ("sinusoidal", "learned"):
            raise ValueError(
                f"Seq2SeqTransformer: positions={positions!r}, expected 'sinusoidal' or 'learned'"
            )
        encoder, decoder = (num_layers, num_layers) if isinstance(num_layers, int) else num_layers
        self.pad, self.max_len = pad, max_len
        self._scale = math.sqrt(d_model)
        self.src_embed = nn.Embedding(src_vocab, d_model, dtype=dtype)
        self.tgt_embed = nn.Embedding(tgt_vocab, d_model, dtype=dtype)
        self.src_positions = _positions(positions, max_len, d_model, dtype)
        self.tgt_positions = _positions(positions, max_len, d_model, dtype)
        self.dropout = nn.Dropout(dropout)
        self.transformer = nn.Transformer(
            d_model, nhead, encoder, decoder, dim_feedforward, dropout, activation,
            batch_first=True, norm_first=norm_first, dtype=dtype,
        )  # fmt: skip
        self.generator = nn.Linear(d_model, tgt_vocab, bias=not tied, dtype=dtype)
        for table in (self.src_embed, self.tgt_embed):
            nn.init.normal_(table.weight, 0.0, 1 / self._scale)
        if tied:
            self.generator.weight = self.tgt_embed.weight

    def _embed(self, table: nn.Module, positions: nn.Module, ids: Any, offset: int = 0) -> Any:
        x = table(ids) * self._scale
        if isinstance(positions, nn.Embedding):
            length = x.shape[1]
            if offset + length > self.max_len:
                raise ValueError(
                    f"Seq2SeqTransformer: positions {offset} to {offset + length - 1} go beyond "
                    f"max_len={self.max_len}"
                )
            x = x + positions(beside(np.arange(offset, offset + length), raw(x)))
        else:
            x = positions(x, offset)
        return self.dropout(x)

    def _padding(self, ids: Any) -> Array | None:
        """True for places that are padding; None if none is."""
        array = raw(ids)
        blocked: Array = (array if is_array(array) else np.asarray(array)) == self.pad
        return blocked if bool(blocked.any()) else None

    def encode(self, src: Any) -> tuple[Any, Array | None]:
        """The memory (N, S, d_model) of source ids, and which of its places are padding."""
        blocked = self._padding(src)
        x = self._embed(self.src_embed, self.src_positions, src)
        return self.transformer.encoder(x, src_key_padding_mask=blocked), blocked

    def forward(self, src: Any, tgt: Any) -> Any:
        """Logits behind every target token, which sees those before it; ignore those of padding."""
        memory, blocked = self.encode(src)
        x = self._embed(self.tgt_embed, self.tgt_positions, tgt)
        out = self.transformer.decoder(
            x, memory, tgt_is_causal=True, tgt_key_padding_mask=self._padding(tgt),
            memory_key_padding_mask=blocked,
        )  # fmt: skip
        return self.generator(out)

    def generate(
        self,
        src: Any,
        max_new_tokens: int,
        bos: int,
        eos: int,
        *,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        beams: int | None = None,
        length_penalty: float = 0.0,
        cache_dtype: str | None = None,
    ) -> list[Array]:
        """The target of each source row, without bos, up to eos (included): int64 arrays.

        src: ids (N, S), or rows of different lengths. Greedy unless temperature, or beams, is
        given: see `GPT.generate`, also for cache_dtype. pad is never chosen. Call in evaluation
        mode.
        """
        ids = self._rows(src)
        rows = len(ids)
        many = 1 if beams is None else beams
        decoding = _Decoding(self, np.repeat(ids, many, 0), bos, cache_dtype)
        if beams is not None:
            return beam_search(decoding, rows, beams, max_new_tokens, eos, length_penalty)
        sampler = Sampler(temperature, top_k, top_p)
        return collect(sample(decoding, rows, max_new_tokens, sampler, eos), rows)

    def _rows(self, src: Any) -> Array:
        if is_array(raw(src)):
            return np.asarray(host(raw(src)))
        rows: Sequence[Any] = [np.asarray(host(raw(row))) for row in src]
        ids = np.full((len(rows), max((len(row) for row in rows), default=0)), self.pad, np.int64)
        for row, to in zip(rows, ids, strict=True):
            to[: len(row)] = row
        return ids


def _positions(kind: str, max_len: int, width: int, dtype: Any) -> nn.Module:
    if kind == "learned":
        layer = nn.Embedding(max_len, width, dtype=dtype)
        nn.init.normal_(layer.weight, 0.0, 0.02)
        return layer
    return nn.SinusoidalPositionalEncoding(width, max_len)


class _Decoding:
    """Targets under way: the memory, and what the decoder keeps of the tokens so far."""

    def __init__(
        self, model: Seq2SeqTransformer, src: Array, bos: int, cache_dtype: str | None
    ) -> None:
        self.model = model
        self.weight = raw(model.generator.weight)
        with no_grad():
            self.memory, self.blocked = model.encode(beside(src, self.weight))
        self.first = np.full(len(src), bos, np.int64)
        decoder: Any = model.transformer.decoder
        self.cache = decoder.new_cache(cache_dtype)
        self.length = 0

    def __call__(self, tokens: Array | None, parents: Array | None) -> Array:
        if parents is not None:
            # Texts change places with others of the same source: memories stay.
            for own, _ in self.cache:
                own.reorder(parents)
        ids = (self.first if tokens is None else tokens)[:, None]
        model = self.model
        with no_grad():
            x = model._embed(
                model.tgt_embed, model.tgt_positions, beside(ids, self.weight), self.length
            )
            out = model.transformer.decoder(
                x, self.memory, tgt_is_causal=True, memory_key_padding_mask=self.blocked,
                cache=self.cache,
            )  # fmt: skip
            logits = raw(model.generator(out))
        self.length += 1
        last: Array = host(logits[:, -1])
        last[:, model.pad] = -np.inf  # no token: it would be hidden from those behind it
        return last
