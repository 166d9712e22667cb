"""A convolution step by step: every window, its products with the kernel, and their sum."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import functional as F
from .fields import BadRequest, Fields, limit, plain

MOST = {1: 24, 2: 10}  # numbers along an axis of the input, by the number of axes
MOST_KERNEL = {1: 9, 2: 5}


def compute(fields: Fields) -> dict[str, Any]:
    """Fields dims (1 or 2), input, kernel, padding, stride, flip -> all that there is to see.

    Rows of windows and products belong to positions, in the order of the output; a sequence is a
    picture of one row. corners: where each window begins, in the padded input.
    """
    dims = fields.integer("dims", 1, 2)
    x = fields.numbers("input", dims, MOST[dims])
    kernel = fields.numbers("kernel", dims, MOST_KERNEL[dims])
    padding, stride = fields.integer("padding", 0, 4), fields.integer("stride", 1, 4)
    flip = fields.flag("flip")
    fields.done()
    image, weight = (np.atleast_2d(a)[None, None] for a in (x, kernel))
    around = (0, padding) if dims == 1 else (padding, padding)
    sizes, taps = image.shape[2:], weight.shape[2:]
    for size, tap, pad in zip(sizes, taps, around, strict=True):
        if tap > size + 2 * pad:
            raise BadRequest(
                f"a kernel of {_size(taps, dims)} does not fit into an input of "
                f"{_size(sizes, dims)} with a padding of {padding}"
            )
    padded = F.pad(image, (around[1], around[1], around[0], around[0]))
    convolve = F.conv1d if dims == 1 else F.conv2d
    out = convolve(x[None, None], kernel[None, None], None, stride, padding, flip_kernel=flip)
    out = np.atleast_2d(out[0, 0])
    used = weight[..., ::-1, ::-1] if flip else weight
    windows = F.unfold(padded, taps, stride=stride)
    # Each number of a window by its weight: one channel each, and kernels of one tap.
    products = F.conv1d(windows, used.reshape(-1, 1, 1), groups=weight.size)
    rows, columns = out.shape
    return {
        "padded": plain(padded[0, 0]),
        "padding": list(around),
        "kernel": plain(used[0, 0]),
        "output": plain(out),
        "windows": plain(windows[0].T),
        "products": plain(products[0].T),
        "corners": [[r * stride, c * stride] for r in range(rows) for c in range(columns)],
        "limits": {
            "input": limit(x),
            "kernel": limit(kernel),
            "products": limit(products),
            "output": limit(out),
        },
    }


def _size(shape: tuple[int, ...], dims: int) -> str:
    return str(shape[1]) if dims == 1 else f"{shape[0]} x {shape[1]}"
