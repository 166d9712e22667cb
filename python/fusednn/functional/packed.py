"""Weights in the form that the kernels read, kept by layers from call to call."""

from __future__ import annotations

from typing import Any

from .. import _core
from .._tensor.mode import grad_enabled
from .._tensor.tape import SHARED


class PackedWeight:
    """Of one weight at a time; made anew when it changed, and let go of while it is trained.

    A change is seen by the version of the weight's memory. NumPy writes are not, so nothing is kept
    of memory that NumPy may write to.
    """

    __slots__ = ("_memory", "_packed", "_version")

    def __init__(self) -> None:
        self._memory: list[int] | None = None
        self._version = 0
        self._packed: _core.PackedWeight | None = None

    def of(self, weight: Any) -> _core.PackedWeight | None:
        """What `_core.conv_forward` may keep the packed weight (a Tensor) in; None if nothing."""
        memory: list[int] = weight._memory
        if memory[1] == SHARED or (weight._requires_grad and grad_enabled()):
            self._memory = self._packed = None
            return None
        if self._memory is not memory or self._version != memory[0]:
            self._memory, self._version = memory, memory[0]
            self._packed = _core.PackedWeight()
        return self._packed

    @property
    def nbytes(self) -> int:
        """The bytes that are kept."""
        return 0 if self._packed is None else self._packed.nbytes

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedWeight:
        return PackedWeight()

    def __reduce__(self) -> tuple[type[PackedWeight], tuple[()]]:
        return PackedWeight, ()
