"""Transformations of arrays to check symmetries with.

Each is a function of an array that returns an array; `axes` are those it works on.

>>> import numpy as np
>>> from fusednn.analysis import transforms
>>> transforms.shift(columns=1)(np.array([[1.0, 2.0, 3.0]]))
array([[0., 1., 2.]])
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .._tensor.tape import Array
from ..functional.symmetry import C4, D4


class Transform:
    """A function of an array with a name and the axes that it works on."""

    def __init__(self, name: str, axes: tuple[int, ...], function: Callable[[Array], Array]):
        self.name, self.axes, self._function = name, axes, function

    def __call__(self, x: Array) -> Array:
        return self._function(x)

    def __repr__(self) -> str:
        return self.name


def _moved(x: Array, steps: int, axis: int, wrap: bool) -> Array:
    if wrap:
        return np.roll(x, steps, axis)
    out = np.zeros_like(x)
    size = x.shape[axis]
    steps = max(-size, min(steps, size))
    to: list[Any] = [slice(None)] * x.ndim
    source = list(to)
    to[axis] = slice(max(steps, 0), size + min(steps, 0))
    source[axis] = slice(max(-steps, 0), size - max(steps, 0))
    out[tuple(to)] = x[tuple(source)]
    return out


def shift(rows: int = 0, columns: int = 0, wrap: bool = False) -> Transform:
    """Images (..., H, W) moved down and to the right. Zeros come in, or with wrap what went out."""
    return Transform(
        f"shift(rows={rows}, columns={columns}{', wrap=True' if wrap else ''})",
        (-2, -1),
        lambda x: _moved(_moved(x, rows, -2, wrap), columns, -1, wrap),
    )


def time_shift(steps: int, axis: int = -1, wrap: bool = False) -> Transform:
    """Sequences moved to later times along an axis: -1 for (N, C, L), 1 for (N, T, C)."""
    name = f"time_shift({steps}, axis={axis}{', wrap=True' if wrap else ''})"
    return Transform(name, (axis,), lambda x: _moved(x, steps, axis, wrap))


def permutation(order: Sequence[int] | int, axis: int = -2) -> Transform:
    """Tokens in another order along an axis, by default those of (..., T, d).

    order: where each comes from, or the seed of a random order.
    """

    def permuted(x: Array) -> Array:
        chosen: Any = order
        if isinstance(order, int):
            chosen = np.random.default_rng(order).permutation(x.shape[axis])
        return np.take(x, np.asarray(chosen, int), axis)

    return Transform(f"permutation({order}, axis={axis})", (axis,), permuted)


def rot90(turns: int = 1) -> Transform:
    """Images (..., H, W) turned counter-clockwise by quarter turns."""
    return Transform(f"rot90({turns})", (-2, -1), lambda x: np.rot90(x, turns, (-2, -1)))


def group_maps(element: int, group: str = "c4") -> Transform:
    """Maps on a group, (..., 4 or 8, H, W) as `nn.P4ConvZ2` and `nn.P4MConvZ2` give them, moved by
    an element: what `group_images` of it does to the input, seen in the output."""
    if group not in ("c4", "d4"):
        raise ValueError(f"group_maps: group={group!r}, expected 'c4' or 'd4'")
    chosen = C4 if group == "c4" else D4
    name = f"group_maps({element}, {group!r})"
    return Transform(name, (-2, -1), lambda x: chosen.act_on_maps(x, element))


def group_images(element: int) -> Transform:
    """Images (..., H, W) turned `element % 4` times, then flipped left to right if element > 3."""
    return Transform(f"group_images({element})", (-2, -1), lambda x: D4.act(x, element))


flip_horizontal = Transform("flip_horizontal", (-1,), lambda x: np.flip(x, -1))
flip_vertical = Transform("flip_vertical", (-2,), lambda x: np.flip(x, -2))
unchanged = Transform("unchanged", (), lambda x: x)

__all__ = [
    "Transform",
    "flip_horizontal",
    "flip_vertical",
    "group_images",
    "group_maps",
    "permutation",
    "rot90",
    "shift",
    "time_shift",
    "unchanged",
]
