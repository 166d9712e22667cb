"""Choosing the next token, and the loop of steps around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import random
from .._tensor.tape import Array, raw

if TYPE_CHECKING:
    from .gpt import GPT


class Sampler:
    """Draws one token per row of logits (N, V).

    >>> Sampler(0.0)(np.array([[0.0, 2.0, 1.0]])).tolist()
    [1]
    """

    def __init__(
        self, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
    ) -> None:
        if not temperature >= 0:
            raise ValueError(f"generate: temperature={temperature}, expected at least 0")
        if top_k is not None and top_k < 1:
            raise ValueError(f"generate: top_k={top_k}, expected at least 1")
        if top_p is not None and not 0 < top_p <= 1:
            raise ValueError(f"generate: top_p={top_p}, expected a number in (0, 1]")
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p

    def probabilities(self, logits: Array) -> Array:
        """What is drawn from, (N, V) in float64, likeliest first among equals the lower id."""
        wide = logits.astype(np.float64)
        if self.temperature == 0:
            best = np.zeros_like(wide)
            best[np.arange(len(wide)), wide.argmax(1)] = 1
            return best
        wide = wide / self.temperature
        e = np.exp(wide - wide.max(1, keepdims=True))
        p: Array = e / e.sum(1, keepdims=True)
        if self.top_k is None and self.top_p is None:
            return p
        order = np.argsort(-p, axis=1, kind="stable")
        ranked = np.take_along_axis(p, order, 1)
        keep = np.ones_like(ranked, bool)
        if self.top_k is not None:
            keep[:, self.top_k :] = False
        if self.top_p is not None:
            ahead = np.cumsum(ranked, 1) - ranked  # what likelier tokens have together
            keep &= ahead < self.top_p
        kept = np.zeros_like(p)
        np.put_along_axis(kept, order, np.where(keep, ranked, 0), 1)
        total: Array = kept / kept.sum(1, keepdims=True)
        return total

    def __call__(self, logits: Array) -> Array:
        p = self.probabilities(logits)
        if self.temperature == 0:
            best: Array = p.argmax(1)
            return best
        draw = random.next_generator().random((len(p), 1))
        steps = np.cumsum(p, 1)
        # The last step may fall short of 1 by rounding: never past the last possible token.
        last = p.shape[1] - 1 - (p[:, ::-1] > 0).argmax(1)
        tokens: Array = np.minimum((steps <= draw).sum(1), last)
        return tokens


def padded_prompts(prompts: Sequence[Any], vocabulary: int) -> tuple[Array, Array]:
    """Prompts as one array (N, longest), zeros in front of shorter ones, and their lengths."""
    rows = [np.asarray(raw(one)) for one in prompts]
    for i, row in enumerate(rows):
        if row.ndim != 1 or not row.size or row.dtype.kind not in "iu":
            raise ValueError(
                f"generate: prompt {i} has shape {row.shape} and dtype {row.dtype}, expected one "
                "or more integers"
            )
        if row.min() < 0 or row.max() >= vocabulary:
            raise ValueError(
                f"generate: prompt {i} has tokens from {row.min()} to {row.max()}, expected 0 to "
                f"{vocabulary - 1}"
            )
    lengths = np.array([row.size for row in rows], np.int64)
    ids = np.zeros((len(rows), int(lengths.max(initial=0))), np.int64)
    for row, to in zip(rows, ids, strict=True):
        to[to.size - row.size :] = row
    return ids, lengths


def stream(
    model: GPT,
    ids: Array,
    lengths: Array,
    steps: int,
    sampler: Sampler,
    eos: int | None,
    use_cache: bool,
) -> Iterator[Array]:
    """Yields (N,) tokens per step; -1 for rows that have ended."""
    ended = np.zeros(len(ids), bool)
    # Keys of padding (in front) are hidden. Without padding there is no mask.
    ragged = bool((lengths != ids.shape[1]).any())
    cache: list[Any] | None = None
    for step in range(steps if len(ids) else 0):
        total = ids.shape[1]
        if total > model.block_size:
            # Positions are learned for block_size tokens: later ones see a window that moves, and
            # with it every position, so that nothing can be kept.
            use_cache, cache = False, None
        first = max(0, total - model.block_size)
        new = total - 1 if cache is not None else first
        if cache is None and use_cache:
            cache = model.new_cache()
        place = np.arange(total)
        start = np.maximum(total - lengths - step, first)[:, None]
        mask = (place[first:] >= start) if ragged else None
        positions = np.maximum(place[new:] - start, 0)
        logits = model.next_logits(ids[:, new:], mask, positions, cache)
        tokens = sampler(logits)
        yield np.where(ended, -1, tokens)
        if eos is not None:
            ended = ended | (tokens == eos)
            if ended.all():
                return
        ids = np.concatenate([ids, tokens[:, None]], 1)
