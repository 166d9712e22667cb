"""Parameters: leaf tensors that a module owns and an optimiser changes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray

from .._tensor.device import as_cupy, is_array, is_half, on_gpu
from .._tensor.display import represent
from .._tensor.tape import PRIVATE, Array, raw
from .._tensor.tensor import Tensor


class Parameter(Tensor):
    """A Tensor that requires grad and registers itself when set on a `Module`.

    Copies `data` (an array or Tensor of float32 or float64, on a GPU of 16 bits as well), so an
    optimiser never writes into an array of the caller. `name` is the qualified name it had when
    `Module.parameters` or `named_parameters` last gave it out, e.g. "encoder.weight"; None before.

    >>> import numpy as np
    >>> from fusednn import nn
    >>> nn.Parameter(np.ones(2, np.float32))
    Parameter containing:
    tensor([1., 1.], requires_grad=True)
    """

    __slots__ = ("name",)

    name: str | None

    def __init__(self, data: Any, requires_grad: bool = True) -> None:
        array = raw(data)
        if not is_array(array):
            raise TypeError(
                f"Parameter: data must be a Tensor or an array, got {type(data).__name__}"
            )
        if array.dtype.char not in "fd" and not (is_half(array.dtype) and on_gpu(array)):
            raise TypeError(f"Parameter: data has dtype {array.dtype}, expected float32 or float64")
        if type(array) is not ndarray and on_gpu(array):
            self._data = as_cupy(array).copy()
        else:
            self._data = np.array(array, array.dtype.newbyteorder("="), order="C", subok=False)
        self._requires_grad = bool(requires_grad)
        self._node = self._grad = self._hooks = None
        self._memory = [0, PRIVATE]
        self.name = None

    def __repr__(self) -> str:
        note = ", requires_grad=True" if self._requires_grad else ""
        return f"Parameter containing:\n{represent(self.detach())[:-1]}{note})"

    @classmethod
    def _rebuild(cls, data: Array, requires_grad: bool) -> Parameter:
        return cls(data, requires_grad)
