"""How a tensor prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .device import host, is_half

if TYPE_CHECKING:
    from .tensor import Tensor

_PLAIN = {"float32", "int64", "bool"}  # dtypes that the text need not name


def represent(tensor: Tensor, head: str = "tensor") -> str:
    """`tensor([1., 2.], requires_grad=True)`: values to four digits, then what is not usual."""
    data = host(tensor._data)
    name = data.dtype.name
    if is_half(data.dtype):
        data = data.astype(np.float32)  # NumPy does not print all of them
    finite = data[np.isfinite(data)] if data.dtype.kind == "f" else data
    whole = data.dtype.kind != "f" or bool((finite == np.trunc(finite)).all())
    large = data.dtype.kind == "f" and finite.size > 0 and bool((abs(finite) >= 1e8).any())
    prefix = head + "("
    values = np.array2string(
        data,
        precision=4,
        separator=", ",
        prefix=prefix,
        floatmode="maxprec" if whole and not large else "fixed",
    )
    notes = []
    if data.size == 0 and data.shape != (0,):
        notes.append(f"size={data.shape}")
    if name not in _PLAIN:
        notes.append(f"dtype={name}")
    if tensor._node is not None:
        notes.append(f"grad_fn={tensor._node!r}")
    elif tensor._requires_grad and head == "tensor":
        notes.append("requires_grad=True")
    if tensor.is_cuda:
        notes.append(f"device={tensor.device!r}")
    return f"{', '.join([prefix + values, *notes])})"
