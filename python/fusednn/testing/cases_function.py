"""Functions that are timed as they are called, with arrays as their only arguments; see `cases`."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .case_types import Arrays, Direction, Shape


@dataclass(frozen=True)
class FunctionCase:
    """A function of `functional`, or the product of matrices.

    shapes: of its arguments; the first is the input, of the others a gradient is taken too. ids:
    class numbers below this, of the input's shape (embedding) or one to a row (cross_entropy).
    """

    function: str
    shapes: tuple[Shape, ...]
    output: Shape
    ids: int = 0

    op = "function"

    @property
    def name(self) -> str:
        return f"{self.function} {'  '.join('x'.join(map(str, s)) for s in self.shapes)}"

    def flops(self, direction: Direction) -> int:
        """Products only; what is done to each element counts as one."""
        if self.function in ("linear", "matmul"):
            forward = 2 * math.prod(self.output) * self.shapes[0][-1]
        else:
            forward = max(math.prod(self.shapes[0]), math.prod(self.output))
        return forward if direction == "fwd" else 3 * forward

    def bytes(self, direction: Direction, itemsize: int = 4) -> int:
        """Every argument read and every result written, once per pass; of a table its rows."""
        inputs = sum(map(math.prod, self.shapes))
        if self.function == "embedding":
            inputs = math.prod(self.output)
        both = inputs + math.prod(self.output)
        return itemsize * (both if direction == "fwd" else 3 * both)

    def arrays(self, dtype: DTypeLike = np.float32, seed: int = 0) -> Arrays:
        """Arguments "0", "1", ... and grad (of the output), standard normal; ids."""
        rng = np.random.default_rng(seed)
        found: dict[str, NDArray[Any]] = {
            str(i): rng.standard_normal(shape).astype(dtype) for i, shape in enumerate(self.shapes)
        }
        found["grad"] = rng.standard_normal(self.output).astype(dtype)
        if self.ids:
            rows = self.output[:-1] if self.function == "embedding" else self.shapes[0][:1]
            found["ids"] = rng.integers(0, self.ids, rows)
        return found


def _same(function: str, shape: Shape, *others: Shape) -> FunctionCase:
    return FunctionCase(function, (shape, *others), shape)


FUNCTION_BENCH = [
    FunctionCase("linear", ((512, 1024), (1024, 1024), (1024,)), (512, 1024)),
    FunctionCase("matmul", ((64, 128, 64), (64, 64, 128)), (64, 128, 128)),
    _same("gelu", (16, 128, 768)),
    _same("softmax", (2048, 1000)),
    FunctionCase("cross_entropy", ((2048, 1000),), (), ids=1000),
    _same("layer_norm", (2048, 768), (768,), (768,)),
    _same("rms_norm", (2048, 768), (768,)),
    _same("group_norm", (16, 64, 28, 28), (64,), (64,)),
    _same("batch_norm", (16, 64, 28, 28), (64,), (64,)),
    FunctionCase("avg_pool2d", ((16, 64, 56, 56),), (16, 64, 28, 28)),
    FunctionCase("embedding", ((8192, 256),), (16, 128, 256), ids=8192),
]
FUNCTION_TEST = [
    FunctionCase("linear", ((3, 5), (7, 5), (7,)), (3, 7)),
    FunctionCase("matmul", ((3, 5, 4), (3, 4, 2)), (3, 5, 2)),
    _same("gelu", (3, 5)),
    _same("softmax", (3, 5)),
    FunctionCase("cross_entropy", ((4, 3),), (), ids=3),
    _same("layer_norm", (3, 5), (5,), (5,)),
    _same("rms_norm", (3, 5), (5,)),
    _same("group_norm", (2, 32, 3, 3), (32,), (32,)),
    _same("batch_norm", (2, 3, 3, 3), (3,), (3,)),
    FunctionCase("avg_pool2d", ((1, 2, 6, 4),), (1, 2, 3, 2)),
    FunctionCase("embedding", ((5, 3),), (2, 4, 3), ids=5),
]
