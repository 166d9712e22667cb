"""The walk over the tape that turns it into gradients, and the hooks that run on the way."""

from __future__ import annotations

import weakref
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy import ndarray

from .autocast import CASTS, cast_array
from .device import as_array, check_device, is_array, is_half
from .tape import SHARED, Hook, Node, Slices, TensorBase, in_recycled, raw, stale_view, wrap

if TYPE_CHECKING:
    from .tensor import Tensor


def backward_walk(root: TensorBase, grad: Any, retain_graph: bool) -> None:
    """Adds d(root)/d(leaf) * grad to every leaf's grad, newest node first.

    A node is reached after all that used its output, since those are newer. Leaves are written at
    the very end: if anything raises, no gradient has changed.
    """
    leaves: dict[Any, Any] = {}
    if root._node is None:
        leaves[root] = grad.copy()
    else:
        node = root._node
        if node.view is not None and node.view != root._memory[0]:
            raise stale_view(node)
        _walk(node, grad, leaves, retain_graph)
    for leaf, total in leaves.items():
        hooks = leaf._hooks
        if hooks is not None:
            total = hooks.run(total)
        prior = leaf._grad
        if prior is None:
            leaf._grad = wrap(total)
        elif prior._memory[1] == SHARED:
            leaf._grad = wrap(prior._data + total)
        else:
            np.add(prior._data, total, out=prior._data)
            prior._memory[0] += 1


def _walk(root: Node, grad: Any, leaves: dict[Any, Any], retain_graph: bool) -> None:
    grads: dict[Node, Any] = {root: grad}
    heap: list[tuple[int, Node]] = [(-root.sequence, root)]
    while heap:
        node = heappop(heap)[1]
        grad = grads.pop(node)
        if type(grad) is Slices:
            grad = grad.dense()
        edges = node.edges
        if not edges:
            raise RuntimeError(
                "backward: this graph was walked before and its saved values are freed; "
                "call backward(retain_graph=True) the first time"
            )
        if node.hooks is not None:
            grad = node.hooks.run(grad)
        checks = node.checks
        if checks:
            _check_versions(node, checks)
        try:
            results = node.backward(node, grad)
        except Exception as error:
            error.add_note(f"(while computing the gradient of {node.op})")
            raise
        if type(grad) is not ndarray and node.backward not in CASTS:
            dtype = getattr(grad, "dtype", None)  # Parts have none
            if dtype is not None and is_half(dtype):
                results = [_rounded(result, dtype) for result in results]
        if not retain_graph:
            node.edges = node.saved = node.checks = ()
        for edge, result in zip(edges, results, strict=True):
            if edge is None or result is None:
                continue
            if type(edge) is Node:
                prior = grads.get(edge)
                if prior is None:
                    grads[edge] = result
                    heappush(heap, (-edge.sequence, edge))
                else:
                    grads[edge] = (
                        in_recycled(np.add, prior, result)
                        if type(prior) is type(result) is ndarray
                        else prior + result
                    )
                continue
            if type(result) is Slices:
                result = result.dense()
            prior = leaves.get(edge)
            if prior is None:
                # A leaf keeps its gradient, so it must own it.
                base = getattr(result, "base", None)
                if result is grad or type(base) is ndarray or type(base) is type(result):
                    result = result.copy()
                leaves[edge] = result
            elif type(prior) is ndarray:
                np.add(prior, result, out=prior)
            else:
                leaves[edge] = prior + result


def _rounded(result: Any, dtype: np.dtype[Any]) -> Any:
    """bfloat16 times one of Python's numbers is float32, but a gradient has its tensor's dtype."""
    wide = getattr(result, "dtype", dtype)
    return result if wide.char not in "fd" else cast_array(as_array(result), dtype)


def _check_versions(node: Node, checks: tuple[Any, ...]) -> None:
    for i in range(0, len(checks), 2):
        found, expected = checks[i][0], checks[i + 1]
        if found != expected:
            raise RuntimeError(
                f"{node.op}: a value that the gradient of {node.op} needs was changed in place "
                f"after {node.op} had used it (version {found}, expected {expected}); change a "
                "copy (clone()) instead, or make the change after backward"
            )


# ---- hooks ---------------------------------------------------------------------------------------


class Hooks:
    """What runs on a tensor's gradient, in the order of registration; retain_grad comes last."""

    __slots__ = ("_next", "functions", "retain")

    def __init__(self) -> None:
        self.functions: dict[int, Hook] = {}
        self.retain: weakref.ref[Tensor] | None = None
        self._next = 0

    def add(self, function: Hook) -> RemovableHandle:
        self._next += 1
        self.functions[self._next] = function
        return RemovableHandle(self.functions, self._next)

    def run(self, grad: Any) -> Any:
        for function in tuple(self.functions.values()):
            given = wrap(grad)
            given._memory[1] = SHARED  # the array may be another node's as well
            result = function(given)
            if result is None:
                continue
            data = raw(result)
            if not is_array(data):
                raise TypeError(
                    f"hook: must return a Tensor, an array or None, got {type(result).__name__}"
                )
            if data.shape != grad.shape or data.dtype.char != grad.dtype.char:
                raise ValueError(
                    f"hook: returned shape {data.shape} and dtype {data.dtype} for a gradient of "
                    f"shape {grad.shape} and dtype {grad.dtype}"
                )
            check_device("hook", "the result", data, "the gradient", grad)
            grad = data.copy()
        target = self.retain() if self.retain is not None else None
        if target is not None:
            prior = target._grad
            target._grad = wrap(grad.copy() if prior is None else prior._data + grad)
        return grad


class RemovableHandle:
    """What `register_hook` returns; `remove()` takes the hook off again."""

    __slots__ = ("_functions", "_key")

    def __init__(self, functions: dict[int, Hook], key: int) -> None:
        self._functions = functions
        self._key = key

    def remove(self) -> None:
        """Takes the hook off; harmless a second time."""
        self._functions.pop(self._key, None)
