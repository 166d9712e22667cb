"""The tape: what a forward pass records for the walk (`walk.py`) that makes gradients of it.

How an op uses it (`functional/activation.py` is the shortest example)::

    def relu(input):
        if not isinstance(input, TensorBase):
            return _core.relu_forward(input)
        out = _core.relu_forward(input._data)
        return record(out, _relu_backward, (input,), keep_output=True)

    def _relu_backward(node, grad):
        (out,) = node.saved
        return (_core.relu_backward(grad, out),)

Rules for a backward function: it returns one gradient per input (None where `node.edges` has
None); each is newly made, or `grad` itself, or a view; never an array that `node` saved. The walk
copies what is not newly made before a leaf keeps it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy import array, empty, ndarray
from numpy.typing import NDArray

from .. import _core
from .device import as_array, as_cupy, namespace, on_gpu
from .mode import grad_enabled

if TYPE_CHECKING:
    from .tensor import Tensor
    from .walk import Hooks

Array: TypeAlias = NDArray[Any]
Operand: TypeAlias = "Tensor | Array | float"
Gradients = Sequence[Any]
Backward = Callable[["Node", Any], Gradients]
Hook = Callable[["Tensor"], "Tensor | Array | None"]

# ---- nodes and tensors ---------------------------------------------------------------------------

# A tensor's memory is [version, state], shared by all views of it. In-place ops count the version
# up. NumPy writes cannot be seen, so a user's buffer (SHARED) is copied when backward needs it, and
# a buffer that backward already relies on (SAVED) is handed out to NumPy read-only.
PRIVATE, SAVED, SHARED = 0, 1, 2

_next_sequence = count(1).__next__


class Node:
    """One recorded op.

    edges: for each input the Node that made it, the leaf Tensor itself, or None (no gradient);
    empty once walked and freed.
    saved: what backward reads. checks: (memory, version) pairs, flat: what must not have changed.
    view: the memory's version when a view was taken, None for ops that make new memory.
    """

    __slots__ = ("__weakref__", "backward", "checks", "edges", "hooks", "saved", "sequence", "view")

    backward: Backward
    edges: tuple[Any, ...]
    saved: tuple[Any, ...]
    checks: tuple[Any, ...]
    sequence: int
    view: int | None
    hooks: Hooks | None

    def __init__(
        self,
        backward: Backward,
        edges: tuple[Any, ...],
        saved: tuple[Any, ...],
        checks: tuple[Any, ...],
        view: int | None,
    ) -> None:
        self.backward = backward
        self.edges = edges
        self.saved = saved
        self.checks = checks
        self.view = view
        self.hooks = None
        self.sequence = _next_sequence()

    @property
    def op(self) -> str:
        """The op's name, from that of its backward function."""
        return self.backward.__name__.strip("_").removesuffix("_backward")

    def __repr__(self) -> str:
        return f"<{self.op.title().replace('_', '')}Backward>"


class TensorBase:
    """The slots of a Tensor: what the ops' mixins and the tape agree on."""

    __slots__ = ("__weakref__", "_data", "_grad", "_hooks", "_memory", "_node", "_requires_grad")

    _data: Array
    _requires_grad: bool
    _node: Node | None  # the op that made it; None for leaves and whatever needs no gradient
    _grad: Tensor | None
    _memory: list[int]
    _hooks: Hooks | None  # a leaf's; those of the others live in their node


_tensor_type: type[Tensor]


def register_tensor_type(cls: type[Tensor]) -> None:
    """Tells `wrap` and `record` which class to make; called once, by tensor.py."""
    global _tensor_type
    _tensor_type = cls


_new = object.__new__


def wrap(data: Any) -> Tensor:
    """A Tensor around an array that nobody else holds, off the tape."""
    out = _new(_tensor_type)
    out._data = data if type(data) is ndarray else as_array(data)
    out._requires_grad = False
    out._node = out._grad = out._hooks = None
    out._memory = [0, PRIVATE]
    return out


def raw(value: Any) -> Any:
    """The array of a Tensor; anything else unchanged."""
    return value._data if isinstance(value, TensorBase) else value


def needs(value: Any) -> bool:
    """True if a gradient flows to this input (should the op be recorded)."""
    return isinstance(value, TensorBase) and value._requires_grad


def record(
    data: Any,
    backward: Backward,
    inputs: tuple[Any, ...],
    keep: tuple[Any, ...] = (),
    context: tuple[Any, ...] = (),
    keep_output: bool = False,
) -> Tensor:
    """A Tensor around the new array `data`, on the tape if a gradient flows to any of `inputs`.

    backward finds in node.saved: the arrays of `keep` (Tensors, or arrays of the user, which are
    copied), then `context` as it is, then the output's array if `keep_output`.
    """
    out = _new(_tensor_type)
    out._data = data if type(data) is ndarray else as_array(data)
    out._memory = memory = [0, PRIVATE]
    out._grad = out._hooks = None
    if grad_enabled():
        edges: list[Any] = []
        tracked = False
        for value in inputs:
            if isinstance(value, TensorBase) and value._requires_grad:
                tracked = True
                node = value._node
                if node is None:
                    edges.append(value)
                elif node.view is None or node.view == value._memory[0]:
                    edges.append(node)
                else:
                    raise stale_view(node)
            else:
                edges.append(None)
        if tracked:
            checks: list[Any] = []
            if keep:
                context = (*[_kept(value, checks) for value in keep], *context)
            if keep_output:
                memory[1] = SAVED
                checks += (memory, 0)
                context = (*context, out._data)
            out._requires_grad = True
            out._node = Node(backward, tuple(edges), context, tuple(checks), None)
            return out
    out._requires_grad = False
    out._node = None
    return out


def _kept(value: Any, checks: list[Any]) -> Any:
    if isinstance(value, TensorBase):
        memory = value._memory
        if memory[1] == SHARED:
            return value._data.copy()
        memory[1] = SAVED
        checks += (memory, memory[0])
        return value._data
    if isinstance(value, ndarray):
        return value.copy()
    return as_cupy(value).copy() if on_gpu(value) else value


def record_view(
    source: TensorBase, data: Array, backward: Backward, context: tuple[Any, ...]
) -> Tensor:
    """Like `record`, for one input and an output that may share its memory.

    `source` and `data` share memory if NumPy (or CuPy) made a view; then they share versions too.
    """
    out = _new(_tensor_type)
    out._data = data
    out._grad = out._hooks = None
    base = data.base
    shared = data is source._data or (
        base is not None and (base is source._data or base is source._data.base)
    )
    out._memory = memory = source._memory if shared else [0, PRIVATE]
    if source._requires_grad and grad_enabled():
        node = source._node
        if node is not None and node.view is not None and node.view != source._memory[0]:
            raise stale_view(node)
        out._requires_grad = True
        edge = source if node is None else node
        out._node = Node(backward, (edge,), context, (), memory[0] if shared else None)
    else:
        out._requires_grad = False
        out._node = None
    return out


def stale_view(node: Node) -> RuntimeError:
    """The error for using a view whose base has changed since."""
    return RuntimeError(
        f"{node.op}: this tensor is a view whose memory was changed in place after the view was "
        "taken, so its gradient is not known any more; take the view again after the change"
    )


# ---- several outputs -----------------------------------------------------------------------------


class Parts(tuple[Any, ...]):
    """Gradients of an op with several outputs; adding two of them merges them.

    Such an op records one node for all its outputs; `record_outputs` puts a small node behind each
    output, whose backward hands on Parts with its own gradient and None for the others.
    """

    __slots__ = ()

    def __add__(self, other: Any) -> Parts:
        return Parts(
            a if b is None else b if a is None else a + b for a, b in zip(self, other, strict=True)
        )


def new_result(shape: tuple[int, ...], dtype: Any) -> Array:
    """An array of undefined contents for a result; floats of up to 8 axes in recycled memory, whose
    pages the system need not provide anew."""
    if dtype.char in "fd" and len(shape) <= 8:
        return _core.empty(shape, dtype.char == "d")
    return empty(shape, dtype)


# Smaller ones the allocator of NumPy keeps at hand; a page of larger ones costs more than its sums.
_LARGE = 1 << 16


def in_recycled(ufunc: Any, a: Any, b: Any) -> Any:
    """ufunc(a, b), such as a + b, in recycled memory where that pays: two large float arrays alike,
    or one and a scalar."""
    if type(a) is ndarray and a.nbytes >= _LARGE and a.dtype.char in "fd" and a.ndim <= 8:
        kind = type(b)
        if kind is float or kind is int:
            alike = a.flags.c_contiguous
        else:
            alike = (
                kind is ndarray
                and b.shape == a.shape
                and b.dtype.char == a.dtype.char
                and a.flags.c_contiguous
                and b.flags.c_contiguous
            )
        if alike:
            return ufunc(a, b, out=_core.empty(a.shape, a.dtype.char == "d"))
    return ufunc(a, b)


class Slices:
    """The gradient of an array of which only parts have one so far: (index, gradient) pairs.

    Taking three parts of an array and adding their gradients costs one array this way, where three
    arrays of zeros and two sums of whole arrays would do no more. `dense` makes that array.
    """

    __slots__ = ("parts", "shape", "strides")
    __array_ufunc__ = None  # array + Slices is decided here

    def __init__(
        self,
        shape: tuple[int, ...],
        parts: tuple[tuple[Any, Any], ...],
        strides: tuple[int, ...] | None = None,
    ) -> None:
        self.shape = shape
        self.parts = parts
        self.strides = strides  # of the array, unless it is C-contiguous

    def __add__(self, other: Any) -> Any:
        if type(other) is Slices:
            return Slices(self.shape, self.parts + other.parts, self.strides)
        total = array(other) if type(other) is ndarray else other.copy()
        for index, grad in self.parts:
            total[index] += grad
        return total

    __radd__ = __add__

    def _new(self, dtype: Any) -> Array:
        """Memory for the whole in the order of the array's own, so that what the array was a view
        of (before a permute, say) is found in one piece."""
        strides = self.strides
        if strides is None:
            return new_result(self.shape, dtype)
        order = sorted(range(len(strides)), key=lambda axis: -abs(strides[axis]))
        back = sorted(range(len(order)), key=order.__getitem__)
        return new_result(tuple(self.shape[axis] for axis in order), dtype).transpose(back)

    def dense(self) -> Array:
        """The whole gradient, a new array."""
        (index, grad), *others = self.parts
        if type(grad) is not ndarray and on_gpu(grad):
            return self._dense_on_gpu()  # type: ignore[no-any-return]
        rows = {index for index, _ in self.parts if len(index) == 1 and type(index[0]) is int}
        if len(rows) == len(self.parts) == self.shape[0] and min(rows)[0] >= 0:
            out = self._new(grad.dtype)  # each row has one, and is written once
            for index, grad in self.parts:
                out[index] = grad
            return out
        out = self._new(grad.dtype)
        out.fill(0)
        out[index] = grad
        for index, grad in others:
            out[index] += grad
        return out

    def _dense_on_gpu(self) -> Any:
        out = namespace(self.parts[0][1]).zeros(self.shape, self.parts[0][1].dtype)
        for index, grad in self.parts:
            out[index] += grad
        return out


def record_outputs(
    outputs: tuple[Array, ...],
    backward: Backward,
    inputs: tuple[Any, ...],
    keep: tuple[Any, ...] = (),
    context: tuple[Any, ...] = (),
    keep_outputs: bool = False,
) -> tuple[Tensor, ...]:
    """`record` for an op with several outputs: `grad` in backward is a tuple with one gradient (or
    None) per output; node.saved ends with the outputs' arrays if `keep_outputs`."""
    joint = record(outputs[0], backward, inputs, keep, context)
    node = joint._node
    if node is None:
        return tuple(wrap(data) for data in outputs)
    results = tuple(
        record(data, _output_backward, (joint,), (), (i, len(outputs)))
        for i, data in enumerate(outputs)
    )
    if keep_outputs:
        checks: list[Any] = []
        node.saved += tuple(_kept(result, checks) for result in results)
        node.checks += tuple(checks)
    return results


def _output_backward(node: Node, grad: Any) -> Gradients:
    index, total = node.saved
    return (Parts(grad if i == index else None for i in range(total)),)
