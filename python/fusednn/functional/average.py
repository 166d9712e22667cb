"""Averages over windows, adaptive windows and whole planes. Padding counts as zeros, or not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _core
from .._tensor.tape import Gradients, Node, TensorBase, raw, record
from .activation import floats
from .conv import _frozen
from .pool import max_pool1d

Ints = int | Sequence[int]
# A size of None is the input's own.
Sizes = int | None | Sequence[int | None]


def _avg_pool(spatial: int, input: Any, *window: Any) -> Any:
    op = f"avg_pool{spatial}d"
    x = raw(input)
    out = _core.avg_pool_forward(op, spatial, x, *window)
    if not isinstance(input, TensorBase):
        return out
    frozen = tuple(_frozen(one) for one in window)
    return record(out, _avg_pool_backward, (input,), (), (op, spatial, x.shape, frozen))


def _avg_pool_backward(node: Node, grad: Any) -> Gradients:
    op, spatial, shape, window = node.saved
    return (_core.avg_pool_backward(op, spatial, grad, shape, *window),)


def avg_pool1d(
    input: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
) -> Any:
    """The mean of each window along one axis: (N, C, L) or (C, L) -> (N, C, L_out).

    stride None means kernel_size. Padded zeros count in the denominator if count_include_pad; what
    a last window of ceil_mode has beyond the padding never does. ValueError for padding of more
    than half the kernel.

    >>> import numpy as np, fusednn.functional as F
    >>> F.avg_pool1d(np.array([[[1.0, 3.0, 2.0, 0.0]]]), 2)
    array([[[2., 1.]]])
    """
    return _avg_pool(1, input, kernel_size, stride, padding, ceil_mode, count_include_pad, None)


def avg_pool2d(
    input: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """The mean of each window along two axes: (N, C, H, W) or (C, H, W) -> (N, C, H_out, W_out).

    divisor_override: what sums are divided by instead. Otherwise as `avg_pool1d`.

    >>> import numpy as np, fusednn.functional as F
    >>> F.avg_pool2d(np.arange(4.0).reshape(1, 1, 2, 2), 2)
    array([[[[1.5]]]])
    """
    return _avg_pool(
        2, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


def avg_pool3d(
    input: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Any:
    """The mean of each window along three axes; otherwise as `avg_pool2d`.

    >>> import numpy as np, fusednn.functional as F
    >>> F.avg_pool3d(np.arange(8.0).reshape(1, 1, 2, 2, 2), 2)
    array([[[[[3.5]]]]])
    """
    return _avg_pool(
        3, input, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    )


# ---- adaptive and global -------------------------------------------------------------------------


def adaptive_size(op: str, spatial: int, input: Any, output_size: Sizes) -> tuple[int, ...]:
    """output_size with one int per axis; None is the input's size."""
    shape = floats(op, input).shape
    if output_size is None or hasattr(output_size, "__index__"):
        sizes: tuple[Any, ...] = (output_size,) * spatial
    else:
        sizes = tuple(output_size)
    if len(sizes) != spatial:
        raise ValueError(
            f"{op}: output_size={output_size} has {len(sizes)} values, expected {spatial}"
        )
    if len(shape) < spatial:
        return tuple(1 if one is None else one for one in sizes)  # refused by what follows
    own = shape[len(shape) - spatial :]
    return tuple(n if one is None else one for one, n in zip(sizes, own, strict=True))


def _adaptive_avg_pool(spatial: int, input: Any, output_size: Sizes) -> Any:
    op = f"adaptive_avg_pool{spatial}d"
    size = adaptive_size(op, spatial, input, output_size)
    x = raw(input)
    out = _core.adaptive_avg_forward(op, spatial, x, size)
    if not isinstance(input, TensorBase):
        return out
    return record(out, _adaptive_avg_pool_backward, (input,), (), (op, spatial, x.shape, size))


def _adaptive_avg_pool_backward(node: Node, grad: Any) -> Gradients:
    op, spatial, shape, size = node.saved
    return (_core.adaptive_avg_backward(op, spatial, grad, shape, size),)


def adaptive_avg_pool1d(input: Any, output_size: Sizes) -> Any:
    """The mean of output_size windows that share the axis out: (N, C, L) -> (N, C, output_size).

    Window i covers floor(i L / n) to ceil((i + 1) L / n). None keeps the input's size.

    >>> import numpy as np, fusednn.functional as F
    >>> F.adaptive_avg_pool1d(np.array([[[1.0, 3.0, 2.0]]]), 2)
    array([[[2. , 2.5]]])
    """
    return _adaptive_avg_pool(1, input, output_size)


def adaptive_avg_pool2d(input: Any, output_size: Sizes) -> Any:
    """As `adaptive_avg_pool1d` along two axes: (N, C, H, W) -> (N, C, *output_size).

    >>> import numpy as np, fusednn.functional as F
    >>> F.adaptive_avg_pool2d(np.arange(4.0).reshape(1, 1, 2, 2), 1)
    array([[[[1.5]]]])
    """
    return _adaptive_avg_pool(2, input, output_size)


def adaptive_avg_pool3d(input: Any, output_size: Sizes) -> Any:
    """As `adaptive_avg_pool1d` along three axes.

    >>> import numpy as np, fusednn.functional as F
    >>> F.adaptive_avg_pool3d(np.arange(8.0).reshape(1, 1, 2, 2, 2), 1)
    array([[[[[3.5]]]]])
    """
    return _adaptive_avg_pool(3, input, output_size)


def global_pool(input: Any, reduce: str = "mean") -> Any:
    """One number per channel, its "mean", "max" or "sum" over all positions: (N, C, ...) -> (N, C).

    >>> import numpy as np, fusednn.functional as F
    >>> F.global_pool(np.array([[[1.0, 3.0, 2.0]]]), "sum")
    array([[6.]])
    """
    if reduce not in ("mean", "max", "sum"):
        raise ValueError(f"global_pool: reduce={reduce!r}, expected 'mean', 'max' or 'sum'")
    x = floats("global_pool", input)
    if reduce == "max":
        if x.ndim < 3 or 0 in x.shape[2:]:
            raise ValueError(
                f"global_pool: input has shape {x.shape}, expected (N, C, ...) with at least one "
                "position"
            )
        positions = x[0, 0].size if x.shape[0] and x.shape[1] else 1
        lines = input.reshape(*x.shape[:2], positions)
        return max_pool1d(lines, positions).reshape(x.shape[:2])
    out = _core.global_pool_forward(x, reduce == "sum")
    if not isinstance(input, TensorBase):
        return out
    return record(out, _global_pool_backward, (input,), (), (x.shape, reduce == "sum"))


def _global_pool_backward(node: Node, grad: Any) -> Gradients:
    shape, total = node.saved
    return (_core.global_pool_backward(grad, shape, total),)


__all__ = [
    "adaptive_avg_pool1d",
    "adaptive_avg_pool2d",
    "adaptive_avg_pool3d",
    "avg_pool1d",
    "avg_pool2d",
    "avg_pool3d",
    "global_pool",
]
