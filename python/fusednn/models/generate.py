"""Choosing the next token, and the loops of steps around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np

from .. import random
from .._tensor.device import host
from .._tensor.tape import Array, raw


class Decoding(Protocol):
    """A model in the middle of some texts."""

    def __call__(self, tokens: Array | None, parents: Array | None) -> Array:
        """Logits (rows, V) of what comes next, once `tokens` (rows,) are added.

        parents (rows,): row i goes on from what was row parents[i]. Both None at the first step.
        """


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
        with np.errstate(over="ignore"):
            # 0 for the largest, so that no temperature is too low.
            wide = (wide - wide.max(1, keepdims=True)) / self.temperature
        e = np.exp(wide)
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
    rows = [np.asarray(host(raw(one))) for one in prompts]
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


def sample(
    decoding: Decoding, rows: int, steps: int, sampler: Sampler, eos: int | None
) -> Iterator[Array]:
    """Yields (rows,) tokens per step; -1 for rows that have ended."""
    _check_steps(steps)
    return _steps(decoding, rows, steps, sampler, eos)


def _check_steps(steps: int) -> None:
    if steps < 0:
        raise ValueError(f"generate: max_new_tokens={steps}, expected at least 0")


def _steps(
    decoding: Decoding, rows: int, steps: int, sampler: Sampler, eos: int | None
) -> Iterator[Array]:
    ended = np.zeros(rows, bool)
    tokens: Array | None = None
    for _ in range(steps if rows else 0):
        tokens = sampler(decoding(tokens, None))
        yield np.where(ended, -1, tokens)
        if eos is not None:
            ended = ended | (tokens == eos)
            if ended.all():
                return


def collect(steps: Iterator[Array], rows: int) -> list[Array]:
    """What `sample` yields, row by row: int64 arrays up to where each ended."""
    found: list[list[int]] = [[] for _ in range(rows)]
    for tokens in steps:
        for row, token in zip(found, tokens.tolist(), strict=True):
            if token >= 0:
                row.append(token)
    return [np.array(row, np.int64) for row in found]


def beam_search(
    decoding: Decoding, rows: int, beams: int, steps: int, eos: int | None, length_penalty: float
) -> list[Array]:
    """The likeliest text of each row that keeping `beams` of them at every step finds.

    decoding has rows * beams texts, those of a row side by side and alike at first. Texts are
    compared by log-probability / length**length_penalty.
    """
    if beams < 1:
        raise ValueError(f"generate: beams={beams}, expected at least 1")
    _check_steps(steps)
    scores = np.full((rows, beams), -np.inf)
    scores[:, 0] = 0  # the others are copies
    texts = np.zeros((rows, beams, 0), np.int64)
    lengths = np.zeros((rows, beams), np.int64)
    ended = np.zeros((rows, beams), bool)
    tokens: Array | None = None
    parents: Array | None = None
    base = np.arange(rows)[:, None] * beams
    for _ in range(steps if rows else 0):
        logits = decoding(tokens, parents).astype(np.float64).reshape(rows, beams, -1)
        top = logits.max(2, keepdims=True)
        log_p = logits - top - np.log(np.exp(logits - top).sum(2, keepdims=True))
        # A text that has ended goes on in one way only, for nothing.
        log_p[ended] = -np.inf
        log_p[ended, 0] = 0
        total = scores[:, :, None] + log_p
        size = np.where(ended, lengths, lengths + 1)[:, :, None]
        rank = (total / size**length_penalty).reshape(rows, -1)
        best = np.argsort(-rank, axis=1, kind="stable")[:, :beams]
        own, chosen = best // log_p.shape[2], best % log_p.shape[2]
        scores = np.take_along_axis(total.reshape(rows, -1), best, 1)
        ended, lengths = (np.take_along_axis(one, own, 1) for one in (ended, lengths))
        lengths = np.where(ended, lengths, lengths + 1)
        texts = np.take_along_axis(texts, own[:, :, None], 1)
        texts = np.concatenate([texts, chosen[:, :, None]], 2)
        if eos is not None:
            ended = ended | (chosen == eos)
            if ended.all():
                break
        tokens, parents = chosen.reshape(-1), (base + own).reshape(-1)
    final = scores / np.maximum(lengths, 1) ** length_penalty
    winners = final.argmax(1)
    return [texts[row, w, : lengths[row, w]].copy() for row, w in enumerate(winners)]
