"""A decoder-only Transformer that predicts the next token."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from .. import functional as F
from .. import nn
from .._tensor.device import beside, host, is_array
from .._tensor.mode import no_grad
from .._tensor.tape import Array, raw
from .generate import Sampler, beam_search, collect, padded_prompts, sample

_STD = 0.02


class CausalSelfAttention(nn.Module):
    """Attention to positions so far, between two linear layers; x (N, T, width).

    >>> from fusednn.models import CausalSelfAttention
    >>> CausalSelfAttention(8, 2)(np.zeros((1, 3, 8), np.float32)).shape
    (1, 3, 8)
    """

    def __init__(
        self, width: int, heads: int, dropout: float = 0.0, bias: bool = True, *, dtype: Any = None
    ) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"CausalSelfAttention: width={width} must be divisible by {heads=}")
        self.heads, self.dropout = heads, dropout
        self.c_attn = nn.Linear(width, 3 * width, bias, dtype=dtype)
        self.c_proj = nn.Linear(width, width, bias, dtype=dtype)
        self.resid_dropout = nn.Dropout(dropout)

    def forward(self, x: Any, mask: Any = None, cache: nn.KVCache | None = None) -> Any:
        """Same shape; mask (N, 1, 1, keys), True = may attend; cache: positions before x's."""
        width = x.shape[2]
        part = (self.heads, width // self.heads)
        q, k, v = F.split_heads(self.c_attn(x), [part] * 3)
        if cache is not None:
            k, v = cache.append(raw(k), raw(v))
        out = F.scaled_dot_product_attention(
            q, k, v, mask, self.dropout, True if cache is None else "lower_right",
            training=self.training,
        )  # fmt: skip
        return self.resid_dropout(self.c_proj(out.transpose(1, 2).reshape(x.shape)))


class GPTBlock(nn.Module):
    """Attention and a feed-forward net of four times the width, each behind a norm (pre-norm).

    >>> from fusednn.models import GPTBlock
    >>> GPTBlock(8, 2)(np.zeros((1, 3, 8), np.float32)).shape
    (1, 3, 8)
    """

    def __init__(
        self, width: int, heads: int, dropout: float = 0.0, bias: bool = True, *, dtype: Any = None
    ) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, bias=bias, dtype=dtype)
        self.attn = CausalSelfAttention(width, heads, dropout, bias, dtype=dtype)
        self.ln_2 = nn.LayerNorm(width, bias=bias, dtype=dtype)
        self.mlp = nn.ModuleDict(
            {
                "c_fc": nn.Linear(width, 4 * width, bias, dtype=dtype),
                "c_proj": nn.Linear(4 * width, width, bias, dtype=dtype),
                "dropout": nn.Dropout(dropout),
            }
        )

    def forward(self, x: Any, mask: Any = None, cache: nn.KVCache | None = None) -> Any:
        """(N, T, width), the same shape."""
        attended = self.attn(self.ln_1(x), mask, cache)
        normed, x = self.ln_2(attended, residual=x)
        mlp = self.mlp
        return x + mlp["dropout"](mlp["c_proj"](F.gelu(mlp["c_fc"](normed))))


class GPT(nn.Module):
    """Token ids (N, T) -> logits (N, T, vocabulary) of each next token.

    Learned positions up to block_size, pre-norm blocks, GELU; parameters are named as nanoGPT's.
    tied: lm_head shares the embedding's weight. Radford et al., "Language models are unsupervised
    multitask learners", 2019.

    >>> from fusednn.models import GPT
    >>> net = GPT(vocab_size=10, block_size=8, n_layer=2, n_head=2, n_embd=16)
    >>> net(np.array([[1, 2, 3]])).shape
    (1, 3, 10)
    >>> net.eval().generate([[1, 2], [3]], 2, temperature=0)[1].shape
    (3,)
    """

    def __init__(
        self,
        vocab_size: int,
        block_size: int = 1024,
        n_layer: int = 12,
        n_head: int = 12,
        n_embd: int = 768,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        tied: bool = True,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.vocab_size, self.block_size = vocab_size, block_size
        blocks = [GPTBlock(n_embd, n_head, dropout, bias, dtype=dtype) for _ in range(n_layer)]
        self.transformer = nn.ModuleDict(
            {
                "wte": nn.Embedding(vocab_size, n_embd, dtype=dtype),
                "wpe": nn.Embedding(block_size, n_embd, dtype=dtype),
                "drop": nn.Dropout(dropout),
                "h": nn.ModuleList(blocks),
                "ln_f": nn.LayerNorm(n_embd, bias=bias, dtype=dtype),
            }
        )
        self.lm_head = nn.Linear(n_embd, vocab_size, bias=False, dtype=dtype)
        self._initialize(n_layer)
        if tied:
            self.lm_head.weight = self.transformer.get_parameter("wte.weight")

    def _initialize(self, layers: int) -> None:
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                # Each block adds two parts to the residual stream; its variance must not grow.
                last = name.endswith("c_proj.weight")
                nn.init.normal_(parameter, 0.0, _STD / math.sqrt(2 * layers) if last else _STD)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    def forward(
        self,
        ids: Any,
        *,
        positions: Array | None = None,
        mask: Array | None = None,
        cache: list[nn.KVCache] | None = None,
    ) -> Any:
        """Integers (N, T) -> logits (N, T, vocab_size).

        positions (N, T): where the tokens stand, by default one after the other, behind the
        cache's. mask (N, keys): False for keys that are padding. cache: from `new_cache`, inside
        no_grad(); keys and values of the tokens so far, to which these are added.
        """
        shape = ids.shape if is_array(raw(ids)) else np.shape(ids)
        past = cache[0].length if cache else 0
        if len(shape) != 2 or (positions is None and past + shape[1] > self.block_size):
            raise ValueError(
                f"GPT: ids have shape {shape}, expected (N, T) with at most {self.block_size} "
                f"tokens ({past} of them in the cache)"
            )
        if positions is None:
            positions = beside(np.arange(past, past + shape[1]), raw(ids))
        parts = self.transformer
        x = parts["drop"](parts["wte"](ids) + parts["wpe"](positions))
        allowed = None if mask is None else mask[:, None, None, :]
        for i, block in enumerate(parts["h"]):  # type: ignore[arg-type, var-annotated]
            x = block(x, allowed, None if cache is None else cache[i])
        return self.lm_head(parts["ln_f"](x))

    def new_cache(self, dtype: str | None = None) -> list[nn.KVCache]:
        """An empty cache for one batch; dtype as `nn.KVCache` takes it."""
        return [nn.KVCache(dtype=dtype) for _ in self.transformer["h"]]  # type: ignore[attr-defined]

    def stream(
        self,
        prompts: Sequence[Any],
        max_new_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        eos: int | None = None,
        use_cache: bool = True,
        cache_dtype: str | None = None,
    ) -> Iterator[Array]:
        """Yields the next token of every prompt, (N,) at a time; -1 once a prompt's text has ended.

        Arguments as `generate`.
        """
        sampler = Sampler(temperature, top_k, top_p)
        ids, lengths = padded_prompts(prompts, self.vocab_size)
        decoding = _Decoding(self, ids, lengths, use_cache, cache_dtype)
        return sample(decoding, len(ids), max_new_tokens, sampler, eos)

    def generate(
        self,
        prompts: Sequence[Any],
        max_new_tokens: int,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        eos: int | None = None,
        use_cache: bool = True,
        beams: int | None = None,
        length_penalty: float = 0.0,
        cache_dtype: str | None = None,
    ) -> list[Array]:
        """Each prompt with what the model makes of it: int64 arrays, up to `eos` (included).

        prompts: token ids, of any lengths from 1 on. temperature 0 takes the likeliest token,
        otherwise logits / temperature are drawn from: of the top_k likeliest, and of the fewest
        that together have a probability of top_p. Numbers are `manual_seed`'s. beams: nothing is
        drawn, but the likeliest text sought among so many at a time, compared by log-probability /
        length**length_penalty. Texts longer than block_size see their last block_size tokens. Keys
        and values are kept from step to step, unless use_cache is False; with cache_dtype
        "bfloat16" in half the bytes, rounded as `nn.KVCache` says. Call in evaluation mode.
        """
        rows = [np.asarray(host(raw(one)), np.int64) for one in prompts]
        if beams is None:
            steps = self.stream(
                prompts, max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p,
                eos=eos, use_cache=use_cache, cache_dtype=cache_dtype,
            )  # fmt: skip
            found = collect(steps, len(rows))
        else:
            ids, lengths = padded_prompts(prompts, self.vocab_size)
            ids, lengths = np.repeat(ids, beams, 0), np.repeat(lengths, beams, 0)
            decoding = _Decoding(self, ids, lengths, use_cache, cache_dtype)
            found = beam_search(decoding, len(rows), beams, max_new_tokens, eos, length_penalty)
        return [np.concatenate(pair) for pair in zip(rows, found, strict=True)]


class _Decoding:
    """Texts under way: ids (N, T) with padding in front of the shorter ones, and what is known."""

    def __init__(
        self, model: GPT, ids: Array, lengths: Array, use_cache: bool, cache_dtype: str | None
    ) -> None:
        self.model, self.ids, self.lengths = model, ids, lengths
        self.use_cache, self.cache_dtype = use_cache, cache_dtype
        self.cache: list[nn.KVCache] | None = None

    def __call__(self, tokens: Array | None, parents: Array | None) -> Array:
        if parents is not None:
            self.ids = self.ids[parents]
            for one in self.cache or ():
                one.reorder(parents)
        if tokens is not None:
            self.ids = np.concatenate([self.ids, tokens[:, None]], 1)
            self.lengths = self.lengths + 1
        total, block = self.ids.shape[1], self.model.block_size
        if total > block:
            # Positions are learned for block_size tokens: later ones see a window that moves, and
            # with it every position, so that nothing can be kept.
            self.use_cache, self.cache = False, None
        first = max(0, total - block)
        new = total - 1 if self.cache is not None else first
        if self.cache is None and self.use_cache:
            self.cache = self.model.new_cache(self.cache_dtype)
        place = np.arange(total)
        start = np.maximum(total - self.lengths, first)[:, None]
        # Keys of padding are hidden. Without padding there is no mask.
        mask = (place[first:] >= start) if (self.lengths != total).any() else None
        positions = np.maximum(place[new:] - start, 0)
        weight = raw(self.model.lm_head.weight)
        ids, positions, mask = (
            None if one is None else beside(one, weight)
            for one in (self.ids[:, new:], positions, mask)
        )
        with no_grad():
            logits = raw(self.model(ids, positions=positions, mask=mask, cache=self.cache))
        last: Array = host(logits[:, -1])
        return last
