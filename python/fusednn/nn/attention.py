"""Multi-head attention."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import functional as F
from .._tensor.device import beside, device_of, is_array, namespace
from .._tensor.shape import cat
from .._tensor.tape import Array, needs, raw
from ..functional.heads import split_rows
from . import init
from .cache import KVCache
from .dense import Linear, check_sizes, new_parameter
from .module import Module
from .parameter import Parameter


class MultiheadAttention(Module):
    """Attention of num_heads heads between projections; True in a boolean mask means BLOCKED.

    (The other way round than in `functional.scaled_dot_product_attention`: layers keep PyTorch's
    meaning, the function has "may attend".) query (T, N, embed_dim), key (S, N, kdim), value (S, N,
    vdim), or with batch_first N in front, or without N. attn_mask (T, S) or (N * num_heads, T, S),
    key_padding_mask (N, S): booleans, or floats that are added to the scores. A query that may see
    no key gives out_proj.bias, and weights of 0.

    Parameters are PyTorch's: in_proj_weight (3 * embed_dim, embed_dim), or q_, k_, v_proj_weight
    where kdim or vdim differ; in_proj_bias, out_proj. Beyond PyTorch: num_kv_heads shares each key
    head among several query heads; kdim_head and vdim_head are free widths of a head, with out_proj
    (embed_dim, num_heads * vdim_head); rotary_dim turns so many numbers of each head by position.
    Vaswani et al., "Attention is all you need", NeurIPS 2017, section 3.2.2.

    >>> from fusednn import nn
    >>> layer, x = nn.MultiheadAttention(8, 2, batch_first=True), np.zeros((1, 5, 8), np.float32)
    >>> out, weights = layer(x, x, x)
    >>> out.shape, weights.shape
    ((1, 5, 8), (1, 5, 5))
    """

    in_proj_weight: Parameter | None
    q_proj_weight: Parameter | None
    k_proj_weight: Parameter | None
    v_proj_weight: Parameter | None
    in_proj_bias: Parameter | None
    bias_k: Parameter | None
    bias_v: Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        *,
        num_kv_heads: int | None = None,
        kdim_head: int | None = None,
        vdim_head: int | None = None,
        rotary_dim: int = 0,
        rotary_base: float = 10000.0,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        given = {
            "embed_dim": embed_dim, "num_heads": num_heads, "num_kv_heads": kv_heads, "kdim": kdim,
            "vdim": vdim, "kdim_head": kdim_head, "vdim_head": vdim_head,
        }  # fmt: skip
        check_sizes("MultiheadAttention", 1, **{k: n for k, n in given.items() if n is not None})
        check_sizes("MultiheadAttention", 0, rotary_dim=rotary_dim)
        if not 0 <= dropout <= 1:
            raise ValueError(
                f"MultiheadAttention: dropout={dropout}, expected a probability in [0, 1]"
            )
        if num_heads % kv_heads:
            raise ValueError(
                f"MultiheadAttention: num_heads={num_heads} must be divisible by "
                f"num_kv_heads={kv_heads}"
            )
        if (kdim_head is None or vdim_head is None) and embed_dim % num_heads:
            raise ValueError(
                f"MultiheadAttention: embed_dim={embed_dim} must be divisible by "
                f"num_heads={num_heads}, unless kdim_head and vdim_head are given"
            )
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, kv_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.kdim_head = embed_dim // num_heads if kdim_head is None else kdim_head
        self.vdim_head = embed_dim // num_heads if vdim_head is None else vdim_head
        if rotary_dim % 2 or rotary_dim > self.kdim_head:
            raise ValueError(
                f"MultiheadAttention: rotary_dim={rotary_dim}, expected an even number up to the "
                f"width of a head, {self.kdim_head}"
            )
        self.dropout, self.batch_first, self.add_zero_attn = dropout, batch_first, add_zero_attn
        self.rotary_dim, self.rotary_base = rotary_dim, rotary_base
        self._angles: tuple[Array, Array] | None = None
        sizes = [heads * width for heads, width in self._parts()]
        together = self.kdim == self.vdim == embed_dim
        widths = (embed_dim, self.kdim, self.vdim)
        for name, size, width in zip("qkv", sizes, widths, strict=True):
            weight = None if together else new_parameter(size, width, dtype=dtype)
            self.register_parameter(f"{name}_proj_weight", weight)
        joint = new_parameter(sum(sizes), embed_dim, dtype=dtype) if together else None
        self.register_parameter("in_proj_weight", joint)
        self.register_parameter(
            "in_proj_bias", new_parameter(sum(sizes), dtype=dtype) if bias else None
        )
        self.out_proj = Linear(num_heads * self.vdim_head, embed_dim, bias, dtype=dtype)
        for name, size in (("bias_k", sizes[1]), ("bias_v", sizes[2])):
            extra = new_parameter(1, 1, size, dtype=dtype) if add_bias_kv else None
            self.register_parameter(name, extra)
        self.reset_parameters()

    def _parts(self) -> list[tuple[int, int]]:
        return [
            (self.num_heads, self.kdim_head),
            (self.num_kv_heads, self.kdim_head),
            (self.num_kv_heads, self.vdim_head),
        ]

    def reset_parameters(self) -> None:
        """Draws the parameters anew."""
        for name in ("in_proj_weight", "q_proj_weight", "k_proj_weight", "v_proj_weight"):
            weight = getattr(self, name)
            if weight is not None:
                init.xavier_uniform_(weight)
        self.out_proj.reset_parameters()
        for bias in (self.in_proj_bias, self.out_proj.bias):
            if bias is not None:
                init.zeros_(bias)
        for bias in (self.bias_k, self.bias_v):
            if bias is not None:
                init.xavier_normal_(bias)

    def forward(
        self,
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        attn_mask: Any = None,
        average_attn_weights: bool = True,
        is_causal: bool | str = False,
        *,
        cache: KVCache | None = None,
    ) -> tuple[Any, Any]:
        """(output like query, weights (N, T, S) or None), also without N.

        need_weights=False spares the T x S weights; average_attn_weights=False gives those of each
        head, (N, num_heads, T, S). They are those before dropout, and a gradient flows through
        them.
        is_causal needs no attn_mask; with a cache (evaluation only), whose positions come before
        those given, it lines up the ends.
        """
        single = query.ndim == 2
        if single:
            axis = 0 if self.batch_first else 1
            query, key, value = _unsqueezed(axis, query, key, value)
            if key_padding_mask is not None:
                key_padding_mask = key_padding_mask[None]
        self._check(query, key, value)
        q, k, v = self._project(query, key, value, cache)
        q, k = self._turned(q, k, cache)
        if cache is not None:
            k, v = self._remembered(cache, k, v)
            if is_causal and not cache.static:
                is_causal = "lower_right"
        mask = self._mask(q, k, attn_mask, key_padding_mask)
        if self.bias_k is not None or self.add_zero_attn:
            if cache is not None and cache.dtype is not None:
                raise ValueError(
                    f"MultiheadAttention: a cache with dtype={cache.dtype!r} does not go with "
                    "add_bias_kv or add_zero_attn"
                )
            k, v, mask, is_causal = self._with_extra_keys(q, k, v, mask, is_causal)
        shared = self.num_kv_heads != self.num_heads
        out = F.scaled_dot_product_attention(
            q, k, v, mask, self.dropout, is_causal, enable_gqa=shared, training=self.training
        )
        order = (0, 2, 1, 3) if self.batch_first else (2, 0, 1, 3)
        out = out.permute(order).reshape(*query.shape[:2], self.num_heads * self.vdim_head)
        out = self.out_proj(out)
        if single:
            out = out.squeeze(0 if self.batch_first else 1)
        if not need_weights:
            return out, None
        weights = F.attention_weights(q, k, mask, is_causal, enable_gqa=shared)
        if average_attn_weights:
            weights = weights.mean(1)
        return out, weights[0] if single else weights

    def _check(self, query: Any, key: Any, value: Any) -> None:
        batch = 0 if self.batch_first else 1
        expected = (self.embed_dim, self.kdim, self.vdim)
        for name, one, width in zip(
            ("query", "key", "value"), (query, key, value), expected, strict=True
        ):
            if one.ndim != 3 or one.shape[2] != width or one.shape[batch] != query.shape[batch]:
                axes = ("N", "T") if self.batch_first else ("T", "N")
                raise ValueError(
                    f"MultiheadAttention: {name} has shape {one.shape}, expected "
                    f"({axes[0]}, {axes[1]}, {width}) with N = {query.shape[batch]}"
                )
        if key.shape[:2] != value.shape[:2]:
            raise ValueError(
                f"MultiheadAttention: key has shape {key.shape}, value {value.shape}: they differ "
                "in length"
            )

    def _project(self, query: Any, key: Any, value: Any, cache: KVCache | None) -> Any:
        parts, late = self._parts(), not self.batch_first
        known = cache is not None and cache.static and cache.length > 0
        if self.in_proj_weight is not None and _same(query, key) and _same(key, value):
            joint = F.linear(query, self.in_proj_weight, self.in_proj_bias)
            return F.split_heads(joint, parts, late)
        sizes = [heads * width for heads, width in parts]
        inputs, groups = [query, key, value], [parts[:1], parts[1:2], parts[2:]]
        if self.in_proj_weight is not None and _same(key, value):
            # A memory: keys and values in one product.
            inputs, groups, sizes = [query, key], [parts[:1], parts[1:]], [sizes[0], sum(sizes[1:])]
        if self.in_proj_weight is None:
            weights: Any = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        else:
            weights = split_rows(self.in_proj_weight, sizes)
        nothing = (None,) * len(sizes)
        bias = self.in_proj_bias
        biases: Any = nothing if bias is None else split_rows(bias, sizes)
        results: list[Any] = []
        for one, weight, shift, group in zip(inputs, weights, biases, groups, strict=True):
            if results and known:
                return (*results, None, None)
            results += F.split_heads(F.linear(one, weight, shift), group, late)
        return tuple(results)

    def _turned(self, q: Any, k: Any, cache: KVCache | None) -> tuple[Any, Any]:
        """Queries and keys with their positions, if they are rotary."""
        if not self.rotary_dim or (cache is not None and cache.static):
            return q, k
        start = 0 if cache is None else cache.length
        end = start + max(q.shape[2], k.shape[2])
        dtype = q.dtype
        angles = self._angles
        known = angles is not None and angles[0].shape[0] >= end and angles[0].dtype == dtype
        if angles is None or not known or device_of(angles[0]) != device_of(raw(q)):
            # Twice as many as needed, so that generation does not compute them at every step.
            cos, sin = F.rotary_angles(2 * end, self.rotary_dim, self.rotary_base, dtype=dtype)
            self._angles = angles = (beside(cos, raw(q)), beside(sin, raw(q)))
        cos, sin = (table[start:] for table in angles)
        dim = 0 if self.rotary_dim == self.kdim_head else self.rotary_dim
        return (
            F.rotary_embedding(q, cos, sin, rotary_dim=dim),
            F.rotary_embedding(k, cos, sin, rotary_dim=dim),
        )

    def _remembered(self, cache: KVCache, k: Any, v: Any) -> tuple[Any, Any]:
        if needs(k) or needs(v):
            raise ValueError(
                "MultiheadAttention: a cache holds no gradients; call with it inside no_grad()"
            )
        if cache.static and cache.length:
            return cache.contents()
        return cache.append(raw(k), raw(v))

    def _mask(self, q: Any, k: Any, attn_mask: Any, padding: Any) -> Any:
        """One mask for the function, (N or 1, heads or 1, T or 1, S): True = may attend."""
        batch, heads, length, keys = q.shape[0], self.num_heads, q.shape[2], k.shape[2]
        found: Any = None
        if attn_mask is not None:
            shape = tuple(attn_mask.shape)
            if shape not in ((length, keys), (batch * heads, length, keys)):
                raise ValueError(
                    f"MultiheadAttention: attn_mask has shape {shape}, expected ({length}, {keys}) "
                    f"or ({batch * heads}, {length}, {keys})"
                )
            found = _allowed("attn_mask", attn_mask)
            if len(shape) == 3:
                found = found.reshape(batch, heads, length, keys)
        if padding is not None:
            if tuple(padding.shape) != (batch, keys):
                raise ValueError(
                    f"MultiheadAttention: key_padding_mask has shape {tuple(padding.shape)}, "
                    f"expected ({batch}, {keys})"
                )
            other = _allowed("key_padding_mask", padding).reshape(batch, 1, 1, keys)
            found = other if found is None else _both(found, other, q.dtype)
        return found

    def _with_extra_keys(
        self, q: Any, k: Any, v: Any, mask: Any, is_causal: bool | str
    ) -> tuple[Any, Any, Any, bool]:
        """bias_k, bias_v and zeros as further keys that every query may see."""
        length, keys = q.shape[2], k.shape[2]
        if is_causal:
            offset = keys - length if is_causal == "lower_right" else 0
            seen = beside(np.tri(length, keys, offset, dtype=bool), raw(q))
            mask = seen if mask is None else _both(mask, seen, q.dtype)
        extra = 0
        batch = q.shape[0]
        if self.bias_k is not None and self.bias_v is not None:
            _, (heads, width), (_, value_width) = self._parts()
            more_k = self.bias_k.reshape(1, heads, 1, width).expand(batch, heads, 1, width)
            more_v = self.bias_v.reshape(1, heads, 1, value_width)
            k = cat([k, more_k], 2)
            v = cat([v, more_v.expand(batch, heads, 1, value_width)], 2)
            extra += 1
        if self.add_zero_attn:
            zeros = namespace(raw(k)).zeros
            k = cat([k, zeros((*k.shape[:2], 1, k.shape[3]), k.dtype)], 2)
            v = cat([v, zeros((*v.shape[:2], 1, v.shape[3]), v.dtype)], 2)
            extra += 1
        if mask is not None:
            dtype = mask.dtype
            full = namespace(raw(mask)).full
            always = full((*mask.shape[:-1], extra), dtype.kind == "b", dtype)
            mask = cat([mask, always], mask.ndim - 1)
        return k, v, mask, False

    def extra_repr(self) -> str:
        text = f"embed_dim={self.embed_dim}, num_heads={self.num_heads}"
        if self.num_kv_heads != self.num_heads:
            text += f", num_kv_heads={self.num_kv_heads}"
        return text


def _unsqueezed(axis: int, *inputs: Any) -> list[Any]:
    """The inputs with an axis more; what was one stays one."""
    made: dict[int, Any] = {}
    for one in inputs:
        made.setdefault(id(raw(one)), one.unsqueeze(axis))
    return [made[id(raw(one))] for one in inputs]


def _same(a: Any, b: Any) -> bool:
    # Arrays given twice become two Tensors around one array.
    return a is b or (not needs(a) and not needs(b) and raw(a) is raw(b))


def _allowed(name: str, mask: Any) -> Any:
    """PyTorch's mask (True = blocked) as the function's; floats as they are."""
    data = raw(mask)
    if not is_array(data) or (data.dtype != bool and data.dtype.kind != "f"):
        kind = data.dtype if is_array(data) else type(data).__name__
        raise TypeError(
            f"MultiheadAttention: {name} has dtype {kind}, expected bool (True = blocked) or floats"
        )
    return ~data if data.dtype == bool else mask


def _both(a: Any, b: Any, dtype: Any) -> Any:
    if a.dtype == bool and b.dtype == bool:
        return raw(a) & raw(b)
    first, second = (
        np.where(raw(one), 0, -np.inf).astype(dtype) if one.dtype == bool else one for one in (a, b)
    )
    return second + first if is_array(first) else first + second
