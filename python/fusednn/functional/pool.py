"""Pooling. Padding is never a value: only real elements can win."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .. import _core
from .._tensor.mode import grad_enabled
from .._tensor.tape import Gradients, Node, TensorBase, raw, record, wrap
from .activation import floats
from .conv import _frozen

Ints = int | Sequence[int]
# A size of None is the input's own.
Sizes = int | None | Sequence[int | None]


def _max_pool(
    spatial: int,
    input: Any,
    kernel_size: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
    ceil_mode: bool,
    return_indices: bool,
) -> Any:
    if not isinstance(input, TensorBase):
        out, argmax = _core.max_pool_forward(
            spatial, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices
        )
        if argmax is None:
            return out
        return out, _core.max_pool_indices(
            spatial, argmax, input.shape, kernel_size, stride, padding, dilation, ceil_mode
        )
    x = raw(input)
    track = input._requires_grad and grad_enabled()
    out, argmax = _core.max_pool_forward(
        spatial, x, kernel_size, stride, padding, dilation, ceil_mode, track or return_indices
    )
    window = (_frozen(kernel_size), _frozen(stride), _frozen(padding), _frozen(dilation), ceil_mode)
    result = record(out, _max_pool_backward, (input,), (), (spatial, argmax, x.shape, window))
    if not return_indices:
        return result
    assert argmax is not None
    return result, wrap(_core.max_pool_indices(spatial, argmax, x.shape, *window))


def _max_pool_backward(node: Node, grad: Any) -> Gradients:
    spatial, argmax, shape, window = node.saved
    return (_core.max_pool_backward(spatial, grad, argmax, shape, *window),)


def max_pool1d(
    input: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window along one axis.

    input (N, C, L) or (C, L) -> (N, C, L_out); stride None means kernel_size. The first of equals
    wins and gets the gradient; NaN wins over all. return_indices adds the winners' positions in
    the input plane (int64). ValueError for windows without a real element.

    >>> import numpy as np, fusednn.functional as F
    >>> F.max_pool1d(np.array([[[1.0, 3.0, 2.0, 0.0]]]), 2)
    array([[[3., 2.]]])
    """
    return _max_pool(1, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool2d(
    input: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window along two axes.

    input (N, C, H, W) or (C, H, W) -> (N, C, H_out, W_out). Otherwise as `max_pool1d`.

    >>> import numpy as np, fusednn.functional as F
    >>> F.max_pool2d(np.arange(4.0).reshape(1, 1, 2, 2), 2)
    array([[[[3.]]]])
    """
    return _max_pool(2, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


def max_pool3d(
    input: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    return_indices: bool = False,
) -> Any:
    """The largest element of each window along three axes.

    input (N, C, D, H, W) or (C, D, H, W) -> (N, C, D_out, H_out, W_out). Otherwise as `max_pool1d`.

    >>> import numpy as np, fusednn.functional as F
    >>> F.max_pool3d(np.arange(8.0).reshape(1, 1, 2, 2, 2), 2)
    array([[[[[7.]]]]])
    """
    return _max_pool(3, input, kernel_size, stride, padding, dilation, ceil_mode, return_indices)


# ---- adaptive ------------------------------------------------------------------------------------


def _adaptive_max_pool(spatial: int, input: Any, output_size: Any, return_indices: bool) -> Any:
    op = f"adaptive_max_pool{spatial}d"
    shape = floats(op, input).shape
    given = output_size if isinstance(output_size, Sequence) else (output_size,) * spatial
    own = shape[len(shape) - spatial :]
    if len(given) != spatial or len(own) != spatial:
        raise ValueError(
            f"{op}: output_size={output_size} does not fit {spatial} axes of input of shape {shape}"
        )
    size = tuple(n if one is None else one for one, n in zip(given, own, strict=True))
    if 0 not in (*own, *size) and not any(n % one for one, n in zip(size, own, strict=True)):
        # Windows of one size side by side, which the plain pool is made for.
        kernel = tuple(n // one for one, n in zip(size, own, strict=True))
        return _max_pool(spatial, input, kernel, None, 0, 1, False, return_indices)
    out, indices = _core.adaptive_max_forward(op, spatial, raw(input), size)
    if not isinstance(input, TensorBase):
        return (out, indices) if return_indices else out
    result = record(out, _adaptive_max_pool_backward, (input,), (), (op, spatial, indices, shape))
    return (result, wrap(indices.copy())) if return_indices else result


def _adaptive_max_pool_backward(node: Node, grad: Any) -> Gradients:
    op, spatial, indices, shape = node.saved
    return (_core.scatter_planes(op, spatial, grad, indices, shape, True),)


def adaptive_max_pool1d(input: Any, output_size: Sizes, return_indices: bool = False) -> Any:
    """The largest of output_size windows that share the axis out: (N, C, L) -> (N, C, output_size).

    Window i covers floor(i L / n) to ceil((i + 1) L / n). None keeps the input's size. Ties, NaN
    and return_indices as `max_pool1d`.

    >>> import numpy as np, fusednn.functional as F
    >>> F.adaptive_max_pool1d(np.array([[[1.0, 3.0, 2.0]]]), 2)
    array([[[3., 3.]]])
    """
    return _adaptive_max_pool(1, input, output_size, return_indices)


def adaptive_max_pool2d(input: Any, output_size: Sizes, return_indices: bool = False) -> Any:
    """As `adaptive_max_pool1d` along two axes: (N, C, H, W) -> (N, C, *output_size).

    >>> import numpy as np, fusednn.functional as F
    >>> F.adaptive_max_pool2d(np.arange(4.0).reshape(1, 1, 2, 2), 1)
    array([[[[3.]]]])
    """
    return _adaptive_max_pool(2, input, output_size, return_indices)


def adaptive_max_pool3d(input: Any, output_size: Sizes, return_indices: bool = False) -> Any:
    """As `adaptive_max_pool1d` along three axes.

    >>> import numpy as np, fusednn.functional as F
    >>> F.adaptive_max_pool3d(np.arange(8.0).reshape(1, 1, 2, 2, 2), 1)
    array([[[[[7.]]]]])
    """
    return _adaptive_max_pool(3, input, output_size, return_indices)


# ---- unpooling -----------------------------------------------------------------------------------


def _per_axis(op: str, name: str, value: Any, spatial: int) -> tuple[int, ...]:
    values = (value,) * spatial if hasattr(value, "__index__") else tuple(value)
    if len(values) != spatial:
        raise ValueError(f"{op}: {name}={value} has {len(values)} values, expected {spatial}")
    return values


def _max_unpool(
    spatial: int, input: Any, indices: Any, kernel: Any, stride: Any, padding: Any, size: Any
) -> Any:
    op = f"max_unpool{spatial}d"
    shape = floats(op, input).shape
    if len(shape) < spatial + 1:
        raise ValueError(f"{op}: input has shape {shape}, expected {spatial + 1} axes or more")
    k, p = (_per_axis(op, *one, spatial) for one in (("kernel_size", kernel), ("padding", padding)))
    s = k if stride is None else _per_axis(op, "stride", stride, spatial)
    own = shape[len(shape) - spatial :]
    usual = tuple((n - 1) * s[i] - 2 * p[i] + k[i] for i, n in enumerate(own))
    wanted = usual if size is None else tuple(size)[-spatial:]
    if len(wanted) != spatial or any(
        not abs(wanted[i] - usual[i]) < max(s[i], 1) for i in range(spatial)
    ):
        raise ValueError(
            f"{op}: output_size={size} is not within a stride of {usual}, which input of shape "
            f"{shape} comes from"
        )
    output = (*shape[: len(shape) - spatial], *wanted)
    out = _core.scatter_planes(op, spatial, raw(input), raw(indices), output, False)
    if not isinstance(input, TensorBase):
        return out
    return record(out, _max_unpool_backward, (input,), (indices,), (op, spatial))


def _max_unpool_backward(node: Node, grad: Any) -> Gradients:
    indices, op, spatial = node.saved
    return (_core.gather_planes(op, spatial, grad, indices),)


def max_unpool1d(
    input: Any,
    indices: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    output_size: Sequence[int] | None = None,
) -> Any:
    """Puts maxima back where they came from, zeros elsewhere: the inverse of `max_pool1d`.

    indices: what `return_indices` gave. output_size: the pooled input's shape (or its spatial
    part), where the window does not tell; by default (L - 1) * stride - 2 * padding + kernel.
    ValueError for positions outside of it.

    >>> import numpy as np, fusednn.functional as F
    >>> y, where = F.max_pool1d(np.array([[[1.0, 3.0, 2.0, 0.0]]]), 2, return_indices=True)
    >>> F.max_unpool1d(y, where, 2)
    array([[[0., 3., 2., 0.]]])
    """
    return _max_unpool(1, input, indices, kernel_size, stride, padding, output_size)


def max_unpool2d(
    input: Any,
    indices: Any,
    kernel_size: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    output_size: Sequence[int] | None = None,
) -> Any:
    """As `max_unpool1d` along two axes.

    >>> import numpy as np, fusednn.functional as F
    >>> F.max_unpool2d(np.ones((1, 1, 1, 1)), np.array([[[[3]]]]), 2)
    array([[[[0., 0.],
             [0., 1.]]]])
    """
    return _max_unpool(2, input, indices, kernel_size, stride, padding, output_size)


__all__ = [
    "adaptive_max_pool1d",
    "adaptive_max_pool2d",
    "adaptive_max_pool3d",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_unpool1d",
    "max_unpool2d",
]
