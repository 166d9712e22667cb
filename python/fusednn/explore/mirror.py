"""A kernel and its mirror images: each one's map, their combination, and what a flip does to it."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import functional as F
from .. import nn
from .._tensor.creation import from_numpy
from .._tensor.mode import no_grad
from .._tensor.tape import Array
from .fields import BadRequest, Fields, limit, plain
from .seeded import seeded

MOST = {1: 16, 2: 8}
MOST_KERNEL = {1: 7, 2: 5}
_AXES = {"horizontal": (-1,), "vertical": (-2,), "both": (-2, -1)}
_NAMES = {(): "kernel", (-1,): "left-right", (-2,): "up-down", (-2, -1): "both ways"}
_EQUAL = 1e-9  # of the largest response: rounding of float64 stays far below it


def compute(fields: Fields) -> dict[str, Any]:
    """Fields dims, input, kernel, padding, combine ("sum", "mean", "max"), axis (in which the layer
    mirrors its kernel), flip (in which the input is flipped).

    For the input and for the flipped one: the map of the kernel, those of its mirror images, and
    what `nn.MirrorConv1d` or 2d makes of them. `follows` says whether a map of the flipped input is
    the flipped map, `difference` by how much it is not.
    """
    dims = fields.integer("dims", 1, 2)
    x = fields.numbers("input", dims, MOST[dims])
    kernel = fields.numbers("kernel", dims, MOST_KERNEL[dims])
    padding = fields.integer("padding", 0, 3)
    combine = fields.choice("combine", ("sum", "mean", "max"))
    ways = tuple(_AXES) if dims == 2 else ("horizontal",)
    axis, flip = fields.choice("axis", ways), fields.choice("flip", ways)
    fields.done()
    if any(k > n + 2 * padding for k, n in zip(kernel.shape, x.shape, strict=True)):
        raise BadRequest(
            f"a kernel of {_size(kernel)} does not fit into an input of {_size(x)} with a padding "
            f"of {padding}"
        )
    kind = nn.MirrorConv1d if dims == 1 else nn.MirrorConv2d
    with seeded(0):  # its random weights are replaced
        layer = kind(
            1, 1, kernel.shape, padding=padding, bias=False, axis=axis, combine=combine,
            dtype=np.float64,
        )  # fmt: skip
    layer.load_state_dict({"weight": kernel[None, None]})
    flipped = np.flip(x, _AXES[flip])
    convolve = F.conv1d if dims == 1 else F.conv2d
    views = [_NAMES[()], *_mirrors(axis)]
    maps = []
    for name in views:
        weights = np.flip(kernel, _axes_of(name))
        before, after = (
            convolve(a[None, None], weights[None, None], None, 1, padding) for a in (x, flipped)
        )
        maps.append({"name": name, "weights": plain(weights), **_pair(before, after, flip)})
    with no_grad():
        before, after = (layer(a[None, None]).numpy() for a in (x, flipped))
    result = _pair(before, after, flip)
    largest = limit(*(np.array(one[key]) for one in (*maps, result) for key in ("map", "flipped")))
    return {
        "flipped": plain(flipped),
        "maps": maps,
        "combined": result,
        "limits": {"input": limit(x), "kernel": limit(kernel), "map": largest},
    }


def _mirrors(axis: str) -> list[str]:
    """Names of the mirror images that the layer adds to its kernel."""
    axes = _AXES[axis]
    return [_NAMES[one] for one in ((-1,), (-2,), (-2, -1)) if set(one) <= set(axes)]


def _axes_of(name: str) -> tuple[int, ...]:
    return next(axes for axes, known in _NAMES.items() if known == name)


def _pair(plainly: Array, after: Array, flip: str) -> dict[str, Any]:
    """The maps of an input and of the flipped one, and whether the second is the first, flipped."""
    expected = np.flip(plainly, _AXES[flip])
    difference = (from_numpy(after) - from_numpy(np.ascontiguousarray(expected))).abs().max().item()
    return {
        "map": plain(plainly[0, 0]),
        "flipped": plain(after[0, 0]),
        "expected": plain(expected[0, 0]),
        "difference": difference,
        "follows": difference <= _EQUAL * limit(plainly),
    }


def _size(a: Array) -> str:
    return " x ".join(map(str, a.shape))
