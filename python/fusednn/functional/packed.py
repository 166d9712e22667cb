"""Weights in the form that the kernels read, kept by layers from call to call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, TypeVar

from .. import _core
from .._tensor.mode import grad_enabled
from .._tensor.tape import SHARED

Keeper = TypeVar("Keeper", _core.PackedWeight, _core.KeptWeights)


class _Packed(Generic[Keeper]):
    """Of the same weights as long as nothing changes them; let go of while they are trained.

    A change is seen by the version of a weight's memory. NumPy writes are not, so nothing is kept
    of memory that NumPy may write to.
    """

    __slots__ = ("_keeper", "_memories", "_versions")

    _new: type[Keeper]

    def __init__(self) -> None:
        self._memories: list[list[int]] = []
        self._versions: list[int] = []
        self._keeper: Keeper | None = None

    def of(self, weights: Sequence[Any]) -> Keeper | None:
        """What the kernels may keep the packed weights (Tensors) in; None if nothing."""
        tracked = grad_enabled()
        memories: list[list[int]] = []
        for weight in weights:
            memory = weight._memory
            if memory[1] == SHARED or (tracked and weight._requires_grad):
                self._memories, self._keeper = [], None
                return None
            memories.append(memory)
        versions = [memory[0] for memory in memories]
        if self._versions != versions or not _same(self._memories, memories):
            self._memories, self._versions = memories, versions
            self._keeper = self._new()
        return self._keeper

    @property
    def nbytes(self) -> int:
        """The bytes that are kept."""
        return 0 if self._keeper is None else self._keeper.nbytes

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return type(self)()

    def __reduce__(self) -> tuple[Any, tuple[()]]:
        return type(self), ()


def _same(a: list[list[int]], b: list[list[int]]) -> bool:
    return len(a) == len(b) and all(x is y for x, y in zip(a, b, strict=True))


class PackedWeight(_Packed[_core.PackedWeight]):
    """A convolution's weight."""

    __slots__ = ()
    _new = _core.PackedWeight


class PackedWeights(_Packed[_core.KeptWeights]):
    """A recurrent layer's weights."""

    __slots__ = ()
    _new = _core.KeptWeights


class LayerWeights(list[Any]):
    """The weights of a recurrent layer, and where they may be kept."""

    __slots__ = ("packed",)

    packed: PackedWeights
