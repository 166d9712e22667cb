"""Variations of images that a network should see through: flips, turns, shifts and noise.

Functions of arrays (N, ..., H, W) that return new arrays of the same shape and dtype, each image
varied by itself. `random` is a seed or a NumPy generator; the same seed gives the same bits. The
label of an image stays right only where the class does not depend on what is varied.

>>> import numpy as np
>>> from fusednn.data import augment
>>> x = np.arange(8.0).reshape(2, 1, 2, 2)
>>> bool((augment.rotations(x, random=1) == augment.rotations(x, random=1)).all())
True
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray

from .._tensor.tape import Array, raw

Random = int | np.random.Generator


def _images(op: str, x: Any, floats: bool = False) -> Array:
    array = raw(x)
    if not isinstance(array, ndarray):
        raise TypeError(f"{op}: x must be an array, got {type(array).__name__}")
    if array.ndim < 3:
        raise ValueError(f"{op}: x has shape {array.shape}, expected (N, ..., H, W)")
    if floats and array.dtype.char not in "fd":
        raise TypeError(f"{op}: x has dtype {array.dtype}, expected float32 or float64")
    return array


def _generator(op: str, random: Random) -> np.random.Generator:
    if isinstance(random, np.random.Generator):
        return random
    if isinstance(random, bool) or not hasattr(random, "__index__"):
        raise TypeError(
            f"{op}: random must be an int or a numpy.random.Generator, got {type(random).__name__}"
        )
    return np.random.default_rng(random)


def _chance(op: str, p: float) -> float:
    if not 0 <= p <= 1:
        raise ValueError(f"{op}: p={p}, expected a probability in [0, 1]")
    return p


def flips(x: Any, axis: str = "horizontal", p: float = 0.5, *, random: Random) -> Array:
    """Each image flipped with probability p: "horizontal" swaps left and right, "vertical" top and
    bottom, "both" draws for each of the two.

    >>> augment_me = np.array([[[1.0, 2.0]]])
    >>> flips(augment_me, p=1.0, random=0)
    array([[[2., 1.]]])
    """
    out = np.array(_images("flips", x))
    axes = {"horizontal": (-1,), "vertical": (-2,), "both": (-1, -2)}
    if axis not in axes:
        raise ValueError(f"flips: axis={axis!r}, expected 'horizontal', 'vertical' or 'both'")
    generator = _generator("flips", random)
    for one in axes[axis]:
        chosen = generator.random(len(out)) < _chance("flips", p)
        out[chosen] = np.flip(out[chosen], one)
    return out


def rotations(x: Any, *, random: Random) -> Array:
    """Each image turned by 0 to 3 quarter turns, all equally likely. Images must be square.

    >>> rotations(np.ones((2, 1, 3, 3)), random=0).shape
    (2, 1, 3, 3)
    """
    out = np.array(_images("rotations", x))
    if out.shape[-1] != out.shape[-2]:
        raise ValueError(f"rotations: x has shape {out.shape}, expected square images")
    turns = _generator("rotations", random).integers(0, 4, len(out))
    for k in (1, 2, 3):
        out[turns == k] = np.rot90(out[turns == k], k, (-2, -1))
    return out


def shifts(x: Any, limit: int, *, random: Random) -> Array:
    """Each image moved by -limit ... limit pixels along both axes; zeros come in.

    >>> shifts(np.ones((2, 1, 3, 3)), 1, random=0).shape
    (2, 1, 3, 3)
    """
    array = _images("shifts", x)
    if isinstance(limit, bool) or not hasattr(limit, "__index__"):
        raise TypeError(f"shifts: limit must be an int, got {type(limit).__name__}")
    if limit < 0:
        raise ValueError(f"shifts: limit={limit}, expected at least 0")
    steps = _generator("shifts", random).integers(-limit, limit + 1, (len(array), 2))
    sides = [(0, 0)] * (array.ndim - 2) + [(limit, limit)] * 2
    height, width = array.shape[-2:]
    wide = np.pad(array, sides)
    out = np.empty(array.shape, array.dtype)
    for i, (down, right) in enumerate(steps):
        top, left = limit - down, limit - right
        out[i] = wide[i, ..., top : top + height, left : left + width]
    return out


def noise(x: Any, std: float, *, random: Random) -> Array:
    """x plus normal noise of standard deviation std, in x's dtype (float32 or float64).

    >>> noise(np.zeros((1, 1, 2, 2), np.float32), 0.1, random=0).dtype
    dtype('float32')
    """
    array = _images("noise", x, floats=True)
    if not 0 <= std < np.inf:
        raise ValueError(f"noise: std={std}, expected a finite number of at least 0")
    kind: Any = array.dtype.type
    return np.asarray(
        array + kind(std) * _generator("noise", random).standard_normal(array.shape, dtype=kind)
    )


__all__ = ["flips", "noise", "rotations", "shifts"]
