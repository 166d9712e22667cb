"""What layers with flips and turns must compute, in plain NumPy and float64: see `reference`."""

from __future__ import annotations

from typing import Any

import numpy as np

from .reference import Array, Ints, conv_forward


def mirrored_kernels(weight: Array, axes: tuple[int, ...]) -> list[Array]:
    """The kernel, and flipped along each set of `axes` (negative).

    >>> [k.tolist() for k in mirrored_kernels(np.array([[[1, 2]]]), (-1,))]
    [[[[1, 2]]], [[[2, 1]]]]
    """
    kernels = [weight]
    for axis in axes:
        kernels += [np.flip(kernel, axis) for kernel in kernels]
    return kernels


def whole_kernel(half: Array, size: tuple[int, ...], axes: tuple[int, ...]) -> Array:
    """The symmetric kernel, `size` being that of its last axes, of which `half` is stored.

    >>> whole_kernel(np.array([[[1, 2]]]), (3,), (-1,)).tolist()
    [[[1, 2, 1]]]
    """
    for axis in axes:
        at = np.arange(size[axis])
        half = half.take(np.minimum(at, at[::-1]), axis)
    return half


def mirror_conv(
    input: Array,
    weight: Array,
    bias: Array | None,
    kernel_size: tuple[int, ...],
    axes: tuple[int, ...],
    combine: str,
    *,
    stride: Ints = 1,
    sides: Any = 0,
    dilation: Ints = 1,
    groups: int = 1,
    mode: str = "constant",
) -> Array:
    """Each kernel's own convolution of the padded input, then combined, then the bias.

    sides: (front, back) of each axis; mode: as `numpy.pad` calls it.

    >>> x, w = np.array([[[0, 1, 0, 0]]]), np.array([[[1, 2]]])
    >>> mirror_conv(x, w, None, (2,), (-1,), "max", sides=[(0, 0)]).astype(float).tolist()
    [[[2.0, 2.0, 0.0]]]
    """
    padded = np.pad(input.astype(np.float64), [(0, 0), (0, 0), *sides], mode)  # type: ignore[call-overload]
    kernels = mirrored_kernels(weight, axes)
    if combine == "symmetric":
        kernels = [whole_kernel(weight, kernel_size, axes)]
    maps = np.stack(
        [
            conv_forward(padded, kernel, None, stride=stride, dilation=dilation, groups=groups)
            for kernel in kernels
        ]
    )
    y: Array = {"mean": maps.mean(0), "max": maps.max(0)}.get(combine, maps.sum(0))
    return y if bias is None else y + bias.reshape(-1, *(1,) * (y.ndim - 2))


def moved(x: Array, turns: int, flip: int) -> Array:
    """Images turned counter-clockwise, then flipped left to right."""
    x = np.rot90(x, turns, (-2, -1))
    return np.flip(x, -1) if flip else x


def moved_maps(x: Array, turns: int, flip: int) -> Array:
    """Maps (..., 4 or 8, H, W): map (n, s) of the result is map g^-1 (n, s), moved by g, where g is
    `turns` turns and then a flip, if `flip`; the index of (n, s) is 4 n + s."""
    out = np.empty(moved(x, turns, flip).shape, x.dtype)
    for n in range(x.shape[-3] // 4):
        for s in range(4):
            # g (k, t) = F^f R^r F^k R^t: behind a flip the r turns go the other way round.
            k = (n - flip) % 2
            t = (s + turns if k else s - turns) % 4
            out[..., 4 * n + s, :, :] = moved(x[..., 4 * k + t, :, :], turns, flip)
    return out


def group_conv(
    input: Array, weight: Array, bias: Array, order: int, *, stride: int = 1, padding: int = 0
) -> Array:
    """Cohen and Welling's sums (ICML 2016, section 6), one map at a time: (N, O, order, H, W).

    weight (O, C, K, K) for images, (O, C, order, K, K) for maps on the group.
    """
    window: dict[str, Any] = {"stride": stride, "padding": padding}
    maps = []
    for g in range(order):
        if weight.ndim == 4:
            maps.append(conv_forward(input, moved(weight, g % 4, g // 4), bias, **window))
            continue
        kernel = moved_maps(weight, g % 4, g // 4)
        parts = [conv_forward(input[:, :, s], kernel[:, :, s], **window) for s in range(order)]
        maps.append(np.sum(parts, axis=0) + bias[:, None, None])
    return np.stack(maps, 2)
