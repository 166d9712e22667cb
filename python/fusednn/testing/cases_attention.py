"""The attention cases of `cases.py`."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .case_types import Direction, Shape


@dataclass(frozen=True)
class AttentionCase:
    """softmax(Q K^T / sqrt(D)) V for (B, H, T, D) arrays, causal or not."""

    query: Shape
    keys: int
    causal: bool
    kv_heads: int
    value_dim: int

    op = "attention"

    @property
    def name(self) -> str:
        b, h, tq, d = self.query
        name = f"sdpa B{b} H{h} Tq{tq} T{self.keys} d{d} causal{int(self.causal)}"
        name += f" kv{self.kv_heads}" if self.kv_heads != h else ""
        return name + (f" dv{self.value_dim}" if self.value_dim != d else "")

    @property
    def key(self) -> Shape:
        return (self.query[0], self.kv_heads, self.keys, self.query[3])

    @property
    def value(self) -> Shape:
        return (*self.key[:3], self.value_dim)

    @property
    def output(self) -> Shape:
        return (*self.query[:3], self.value_dim)

    def flops(self, direction: Direction) -> int:
        """Two products, of which causal needs half; backward has five."""
        d, dv = self.query[3], self.value_dim
        pairs = math.prod(self.query[:3]) * self.keys // (2 if self.causal else 1)
        forward = 2 * pairs * (d + dv)
        return forward if direction == "fwd" else forward + 2 * pairs * (3 * d + 2 * dv)

    def bytes(self, direction: Direction, itemsize: int = 4) -> int:
        """Every input read and every result written, once per pass."""
        q, k, v = (math.prod(shape) for shape in (self.query, self.key, self.value))
        out = math.prod(self.output)
        forward = q + k + v + out
        return itemsize * (forward if direction == "fwd" else forward + 2 * (q + k + v + out))

    def arrays(self, dtype: DTypeLike = np.float32, seed: int = 0) -> dict[str, NDArray[Any]]:
        """query, key, value, and grad (of the output), standard normal."""
        rng = np.random.default_rng(seed)
        shapes = {"query": self.query, "key": self.key, "value": self.value, "grad": self.output}
        return {name: rng.standard_normal(size).astype(dtype) for name, size in shapes.items()}


def attention(
    query: Shape,
    keys: int | None = None,
    causal: bool = False,
    kv_heads: int | None = None,
    value_dim: int | None = None,
) -> AttentionCase:
    """An AttentionCase; as many keys as queries, and heads and features as these, unless given.

    >>> attention((1, 2, 3, 4), causal=True).name
    'sdpa B1 H2 Tq3 T3 d4 causal1'
    """
    return AttentionCase(
        query,
        query[2] if keys is None else keys,
        causal,
        query[1] if kv_heads is None else kv_heads,
        query[3] if value_dim is None else value_dim,
    )


ATTENTION_BENCH = [
    # A transformer's layer, short and long.
    attention((1, 12, 128, 64)),
    attention((1, 12, 128, 64), causal=True),
    attention((1, 12, 1024, 64)),
    attention((1, 12, 1024, 64), causal=True),
    # A training batch; one long sequence.
    attention((8, 8, 512, 64), causal=True),
    attention((1, 8, 4096, 64), causal=True),
    # Small enough that the call itself counts; a step of generation; a small training batch.
    attention((1, 4, 64, 32), causal=True),
    attention((1, 12, 1, 64), 1024),
    attention((12, 4, 64, 32), causal=True),
]

ATTENTION_TEST = [
    attention((0, 2, 3, 4)),
    attention((1, 1, 1, 1)),
    attention((2, 3, 5, 7), 11, causal=True),
    attention((1, 6, 13, 8), 300, kv_heads=2, value_dim=9),
    attention((1, 2, 2, 16), 131, causal=True),
    attention((1, 1, 129, 33), 257, causal=True),
]
