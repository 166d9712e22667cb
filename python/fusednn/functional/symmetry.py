"""Finite groups of flips and quarter turns, and kernels transformed by all of their elements.

An element is F^m R^r: r quarter turns counter-clockwise (as `numpy.rot90`), then m flips left to
right; its index is 4 m + r. Cohen, Welling, "Group equivariant convolutional networks", ICML 2016,
arXiv:1602.07576, sections 4 to 6, whose parametrisation of p4m this is.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from .._tensor.device import beside, namespace
from .._tensor.mode import grad_enabled
from .._tensor.tape import Array, Gradients, Node, TensorBase, needs, new_result, raw, record


class Group:
    """Quarter turns alone (mirrored=False: "c4", 4 elements) or with flips ("d4", 8)."""

    def __init__(self, name: str, mirrored: bool) -> None:
        self.name = name
        self.order = 8 if mirrored else 4
        # [g, h]: the index of g^-1 h.
        self.quotient = np.array(
            [[_product(_inverse(g), h) for h in range(self.order)] for g in range(self.order)]
        )

    def act(self, x: Any, g: int) -> Any:
        """An array or Tensor of images, its last two axes transformed by element g, as a view."""
        turns = g % 4
        if isinstance(x, TensorBase):
            x = turned(x, turns)
            return x.flip(-1) if g >= 4 else x
        x = np.rot90(x, turns, (-2, -1))
        return np.flip(x, -1) if g >= 4 else x

    def act_on_maps(self, x: Any, g: int) -> Any:
        """Maps on the group (..., order, H, W) transformed by element g: images and positions."""
        return self.act(x, g)[..., self.quotient[g], :, :]


def turned(x: Any, turns: int) -> Any:
    """A Tensor's last two axes turned by quarter turns, as `numpy.rot90`."""
    turns %= 4
    if turns == 0:
        return x
    if turns == 2:
        return x.flip(-2, -1)
    return x.flip(-1).transpose(-2, -1) if turns == 1 else x.transpose(-2, -1).flip(-1)


def _product(g: int, h: int) -> int:
    # F^m R^r F^n R^s = F^(m+n) R^(s +- r): a flip turns the sense of rotation round.
    sign = -1 if h >= 4 else 1
    return (g // 4 + h // 4) % 2 * 4 + (h + sign * g) % 4


def _inverse(g: int) -> int:
    return g if g >= 4 else -g % 4


C4, D4 = Group("c4", False), Group("d4", True)


@cache
def filter_table(mirrored: bool, kernel_size: int, lifting: bool) -> Array:
    """Where each transformed kernel takes its taps from: (order, taps), each row a permutation.

    lifting: kernels on the plane, taps (K, K); else on the group, taps (order, K, K): element g of
    w is w moved by g, so that its part s is g applied to part g^-1 s of w.
    """
    group = D4 if mirrored else C4
    plane = np.arange(kernel_size**2).reshape(kernel_size, kernel_size)
    moved = np.stack([group.act(plane, g) for g in range(group.order)])
    if lifting:
        return moved.reshape(group.order, -1)
    table = group.quotient[:, :, None, None] * kernel_size**2 + moved[:, None]
    return np.ascontiguousarray(table).reshape(group.order, -1)


def kernel_orbit(weight: Any, table: Array) -> Any:
    """Copies of each kernel with its taps in other orders.

    weight (O, C, ...) with T taps, table (G, T) of permutations -> (O, G, C, T): element
    [o, g, c, t] is tap table[g, t] of weight[o, c].
    """
    w = raw(weight)
    taps = w.reshape(*w.shape[:2], table.shape[1])
    out = namespace(w).ascontiguousarray(taps.take(beside(table, w), 2).transpose(0, 2, 1, 3))
    if not isinstance(weight, TensorBase):
        return out
    return record(out, _kernel_orbit_backward, (weight,), (), (w.shape, table))


def _kernel_orbit_backward(node: Node, grad: Any) -> Gradients:
    shape, table = node.saved
    total = namespace(grad).zeros((*shape[:2], table.shape[1]), grad.dtype)
    for g, inverse in enumerate(beside(np.argsort(table, 1), grad)):
        total += grad[:, g].take(inverse, 2)
    return (total.reshape(shape),)


def larger_map(a: Any, b: Any) -> Any:
    """The larger of each pair of two Tensors, newly made by ops that do not keep their outputs.

    NaN wins; ties share the gradient, so that it has the symmetry of the values. Without a gradient
    the result takes a's memory: a fresh page costs more than the comparison.
    """
    x, y = a._data, b._data
    if not (grad_enabled() and (needs(a) or needs(b))):
        np.maximum(x, y, out=x)
        return a
    on_host = type(x) is np.ndarray
    out = np.maximum(x, y, out=new_result(x.shape, x.dtype) if on_host else None)
    return record(out, _larger_map_backward, (a, b), (a, b))


def _larger_map_backward(node: Node, grad: Any) -> Gradients:
    x, y = node.saved
    if type(x) is not np.ndarray:
        share = (x > y) * grad.dtype.type(0.5) + (x >= y) * grad.dtype.type(0.5)
        return share * grad, (1 - share) * grad
    first, second = (new_result(x.shape, x.dtype) for _ in range(2))
    np.add(np.greater(x, y), np.greater_equal(x, y), out=first, dtype=x.dtype)
    first *= 0.5
    first *= grad
    return first, np.subtract(grad, first, out=second)


__all__ = ["C4", "D4", "Group", "filter_table", "kernel_orbit", "larger_map", "turned"]
