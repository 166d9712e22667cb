"""What all cases say of themselves; see `cases`."""

from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

# step: forward, backward and the update of the weights.
Direction = Literal["fwd", "fwdbwd", "step"]
Shape = tuple[int, ...]
Arrays = dict[str, NDArray[Any]]


class Case(Protocol):
    """What the benchmark asks of every case."""

    @property
    def op(self) -> str: ...
    @property
    def name(self) -> str: ...
    def flops(self, direction: Direction) -> int: ...
    def bytes(self, direction: Direction, itemsize: int = 4) -> int: ...
    def arrays(self, dtype: DTypeLike = np.float32, seed: int = 0) -> Arrays: ...
