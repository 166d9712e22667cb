"""The Tensor class: an array, what is known of how it was made, and the ops as methods."""

from __future__ import annotations

import builtins
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray

from ..functional.activation import relu, sigmoid, tanh
from ..functional.softmax import log_softmax, softmax
from .autocast import cast_array, to_backward
from .comparison import Comparison
from .device import (
    beside,
    check_device,
    device_of,
    dtype_named,
    is_array,
    is_device,
    is_float,
    is_half,
    moved,
    on_gpu,
)
from .display import represent
from .extrema import Extrema
from .indexing import Indexing
from .linalg import LinearAlgebra
from .order import Order
from .pointwise import Pointwise
from .reduction import Reduction
from .shape import Shape, _owned
from .tape import (
    PRIVATE,
    SAVED,
    SHARED,
    Array,
    Hook,
    Node,
    raw,
    record,
    register_tensor_type,
    wrap,
)
from .walk import Hooks, RemovableHandle, backward_walk


class Tensor(Pointwise, Comparison, LinearAlgebra, Reduction, Extrema, Shape, Order, Indexing):
    """An array of float32 or float64 (or integers, booleans) on which gradients can be computed.

    Made by `tensor` (copies), `from_numpy` (shares) and by ops. Where PyTorch's Tensor has a method
    of the same name, it means the same.

    >>> import fusednn as fn
    >>> w = fn.tensor([1.0, 2.0], requires_grad=True)
    >>> (w * w).sum().backward()
    >>> w.grad
    tensor([2., 4.])
    """

    __slots__ = ()

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise TypeError("Tensor: use fusednn.tensor(data) or fusednn.from_numpy(array)")

    # ---- what it is ----

    @property
    def shape(self) -> tuple[builtins.int, ...]:
        """The sizes of all axes."""
        return self._data.shape

    def size(self, dim: builtins.int | None = None) -> Any:
        """The shape, or the size of one axis."""
        return self._data.shape if dim is None else self._data.shape[dim]

    @property
    def ndim(self) -> builtins.int:
        """The number of axes."""
        return self._data.ndim

    def dim(self) -> builtins.int:
        """The number of axes."""
        return self._data.ndim

    def numel(self) -> builtins.int:
        """The number of elements."""
        return self._data.size

    @property
    def dtype(self) -> np.dtype[Any]:
        """The NumPy dtype of the elements."""
        return self._data.dtype

    @property
    def device(self) -> str:
        """Where the elements are: "cpu", or "cuda:0"."""
        return device_of(self._data)

    @property
    def is_cuda(self) -> builtins.bool:
        """True if the elements are on a GPU."""
        return device_of(self._data) != "cpu"

    def is_contiguous(self) -> builtins.bool:
        """True if the elements lie in row-major order without gaps."""
        return self._data.flags.c_contiguous

    def is_floating_point(self) -> builtins.bool:
        """True for float32 and float64, and the 16-bit floats of a GPU."""
        return is_float(self._data.dtype)

    def __repr__(self) -> str:
        return represent(self)

    def __format__(self, spec: str) -> str:
        if spec and self._data.size == 1:
            return format(self._data.item(), spec)
        return format(repr(self), spec)

    # ---- values out ----

    def numpy(self) -> Array:
        """The elements as an array that shares memory; also for tensors that require grad.

        Where the tape relies on the values (a leaf that requires grad, a value saved for backward)
        the array is read-only: change it through the tensor, or change a copy. TypeError for a
        tensor on a GPU.

        >>> import fusednn as fn
        >>> fn.ones(2).numpy()
        array([1., 1.], dtype=float32)
        """
        if type(self._data) is not ndarray and on_gpu(self._data):
            raise TypeError(
                f"numpy: the tensor is on {self.device}; copy it to the CPU first: cpu().numpy()"
            )
        memory = self._memory
        if memory[1] == SHARED:
            return self._data
        view = self._data.view()
        if memory[1] == SAVED or (self._requires_grad and self._node is None):
            view.flags.writeable = False
        else:
            memory[1] = SHARED
        return view

    def __array__(self, dtype: Any = None, copy: builtins.bool | None = None) -> Array:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            if copy is False:
                raise ValueError(f"__array__: a {array.dtype} tensor is not {dtype} without a copy")
            return array.astype(dtype)
        return array.copy() if copy else array

    def __dlpack__(self, **options: Any) -> Any:
        if type(self._data) is not ndarray and on_gpu(self._data):
            return self._gpu_memory(options).__dlpack__(**options)
        # Consumers may write, so what the tape relies on goes out as a copy; negative strides are
        # allowed by the protocol, but end PyTorch 2.13.
        array = self.numpy()
        turned = any(stride < 0 for stride in array.strides)
        if array.flags.writeable and not turned and array.dtype.isnative:
            return array.__dlpack__(**options)
        if options.get("copy") is False:
            raise BufferError(
                "__dlpack__: this memory is relied on by the tape, read-only, reversed or of "
                "another byte order; export a clone()"
            )
        return _owned(array).__dlpack__(**options)

    def _gpu_memory(self, options: dict[str, Any]) -> Any:
        """The array for another library, which may write into it."""
        if self._memory[1] == SAVED or (self._requires_grad and self._node is None):
            if options.get("copy") is False:
                raise BufferError(
                    "__dlpack__: this memory is relied on by the tape; export a clone()"
                )
            return self._data.copy()
        self._memory[1] = SHARED
        return self._data

    def __dlpack_device__(self) -> Any:
        return self._data.__dlpack_device__()

    def item(self) -> Any:
        """The only element as a Python number; ValueError if there is not exactly one."""
        if self._data.size != 1:
            raise ValueError(f"item: the tensor has shape {self._data.shape}, expected one element")
        return self._data.item()

    def tolist(self) -> Any:
        """Nested lists of Python numbers."""
        return self._data.tolist()

    def __float__(self) -> builtins.float:
        return float(self.item())

    def __int__(self) -> builtins.int:
        return int(self.item())

    def __round__(self, digits: builtins.int | None = None) -> Any:
        return round(self.item(), digits)

    def __index__(self) -> builtins.int:
        if self._data.dtype.kind not in "iu" or self._data.size != 1:
            raise TypeError("only integer tensors of one element can be used as an index")
        return int(self._data.item())

    def __bool__(self) -> builtins.bool:
        if self._data.size != 1:
            raise ValueError(
                f"bool: a tensor of shape {self._data.shape} has no one truth value; "
                "use any() or all()"
            )
        return bool(self._data.item())

    # ---- other dtypes and devices ----

    def to(self, *targets: Any, dtype: Any = None, device: Any = None) -> Tensor:
        """With another dtype and on a device: to(np.float64), to("cuda"), to(other_tensor).

        Devices are "cpu", "cuda" (CuPy's current GPU) and "cuda:N". Casts as NumPy does, with
        gradient; self if nothing changes. ValueError for a device that is not here. float16 and
        "bfloat16" are for GPUs: TypeError on the CPU, where such a tensor can only be looked at.

        >>> import fusednn as fn
        >>> fn.ones(1).to("float64").dtype
        dtype('float64')
        """
        for target in targets:
            if isinstance(target, Tensor):
                dtype, device = target._data.dtype, target.device
            elif is_device(target):
                device = target
            else:
                dtype = target
        own = self._data.dtype
        place = device_of(self._data) if device is None else device
        wanted = own if dtype is None else supported_dtype("to", dtype_named(dtype), place)
        out = self._data if device is None else moved("to", self._data, device)
        if wanted == own and out is self._data:
            return self
        if not (is_float(wanted) and is_float(own)):
            return wrap(out if wanted == own else out.astype(wanted))
        if wanted != own:
            out = cast_array(out, wanted)
        return record(out, to_backward, (self,), (), (own, self.device))

    def float(self) -> Tensor:
        """As float32."""
        return self.to(np.float32)

    def double(self) -> Tensor:
        """As float64."""
        return self.to(np.float64)

    def long(self) -> Tensor:
        """As int64, off the tape."""
        return self.to(np.int64)

    def int(self) -> Tensor:
        """As int32, off the tape."""
        return self.to(np.int32)

    def bool(self) -> Tensor:
        """As booleans (not 0), off the tape."""
        return self.to(np.bool_)

    def cpu(self) -> Tensor:
        """On the CPU: a copy of a tensor on a GPU, else self."""
        return self.to(device="cpu")

    def cuda(self, device: builtins.int | None = None) -> Tensor:
        """On a GPU, that of the number `device` or CuPy's current one."""
        return self.to(device="cuda" if device is None else f"cuda:{device}")

    # ---- the tape ----

    @property
    def is_leaf(self) -> builtins.bool:
        """True if no recorded op made this tensor."""
        return self._node is None

    @property
    def grad_fn(self) -> Node | None:
        """The recorded op that made this tensor."""
        return self._node

    @property
    def grad(self) -> Tensor | None:
        """The gradient that backward has added up, of this tensor's shape and dtype; may be set."""
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | Array | None) -> None:
        if value is None:
            self._grad = None
            return
        data = raw(value)
        if not is_array(data):
            raise TypeError(f"grad: must be a Tensor, an array or None, got {type(value).__name__}")
        if data.shape != self._data.shape or data.dtype.char != self._data.dtype.char:
            raise ValueError(
                f"grad: has shape {data.shape} and dtype {data.dtype}, expected "
                f"{self._data.shape} and {self._data.dtype}"
            )
        check_device("grad", "the gradient", data, "the tensor", self._data)
        self._grad = value if isinstance(value, Tensor) else wrap(data.copy())

    def backward(
        self, grad: Tensor | Array | None = None, retain_graph: builtins.bool = False
    ) -> None:
        """Adds the gradient of this tensor (times `grad`) to the grad of every leaf it came from.

        grad has this tensor's shape and dtype; it may be left out for a single element. The saved
        values are freed on the way unless retain_graph. If anything raises, no grad has changed.

        >>> import fusednn as fn
        >>> x = fn.tensor([3.0], requires_grad=True)
        >>> (x**2).backward()
        >>> x.grad
        tensor([6.])
        """
        if not self._requires_grad:
            raise RuntimeError(
                "backward: this tensor does not require grad, so nothing was recorded; set "
                "requires_grad=True on an input, and compute outside no_grad()"
            )
        data = self._data
        if grad is None:
            if data.size != 1:
                raise ValueError(
                    f"backward: the tensor has shape {data.shape}, not one element, so grad "
                    f"(of that shape) must be given"
                )
            given = beside(np.array(1, data.dtype.type), data)
            if data.ndim:
                given = given.reshape(data.shape)
        else:
            given = raw(grad)
            if not is_array(given):
                raise TypeError(
                    f"backward: grad must be a Tensor or an array, got {type(grad).__name__}"
                )
            if given.shape != data.shape or given.dtype.char != data.dtype.char:
                raise ValueError(
                    f"backward: grad has shape {given.shape} and dtype {given.dtype}, expected "
                    f"{data.shape} and {data.dtype}"
                )
            check_device("backward", "grad", given, "the tensor", data)
        backward_walk(self, given, retain_graph)

    def detach(self) -> Tensor:
        """The same memory, off the tape. A change in place through either is noticed."""
        out = wrap(self._data)
        out._memory = self._memory
        return out

    @property
    def data(self) -> Tensor:
        """The same memory, off the tape: `detach()`. Setting it writes the values into it."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor | Array) -> None:
        if not (isinstance(value, Tensor) and value._data is self._data):
            self.detach().copy_(value)

    def retain_grad(self) -> None:
        """Keeps the gradient of a tensor that an op made in its `grad`; leaves always have it."""
        if not self._requires_grad:
            raise RuntimeError("retain_grad: this tensor does not require grad")
        if self._node is not None:
            if self._node.hooks is None:
                self._node.hooks = Hooks()
            self._node.hooks.retain = weakref.ref(self)

    def register_hook(self, hook: Hook) -> RemovableHandle:
        """Calls hook(grad) in backward when this tensor's gradient is known.

        What it returns, if not None, takes the gradient's place. The handle has `remove()`.

        >>> import fusednn as fn
        >>> x = fn.tensor([1.0], requires_grad=True)
        >>> handle = x.register_hook(lambda grad: grad * 10)
        >>> x.sum().backward()
        >>> x.grad
        tensor([10.])
        """
        if not self._requires_grad:
            raise RuntimeError("register_hook: this tensor does not require grad")
        if not callable(hook):
            raise TypeError(f"register_hook: hook must be callable, got {type(hook).__name__}")
        holder: Any = self if self._node is None else self._node
        attribute = "_hooks" if self._node is None else "hooks"
        hooks = getattr(holder, attribute)
        if hooks is None:
            hooks = Hooks()
            setattr(holder, attribute, hooks)
        return hooks.add(hook)  # type: ignore[no-any-return]

    # ---- activations as methods ----

    def relu(self) -> Tensor:
        """max(self, 0)."""
        return relu(self)  # type: ignore[no-any-return]

    def sigmoid(self) -> Tensor:
        """1 / (1 + exp(-self))."""
        return sigmoid(self)  # type: ignore[no-any-return]

    def tanh(self) -> Tensor:
        """The hyperbolic tangent."""
        return tanh(self)  # type: ignore[no-any-return]

    def softmax(self, dim: builtins.int) -> Tensor:
        """exp(self) scaled to sum 1 along dim."""
        return softmax(self, dim)  # type: ignore[no-any-return]

    def log_softmax(self, dim: builtins.int) -> Tensor:
        """The logarithm of softmax."""
        return log_softmax(self, dim)  # type: ignore[no-any-return]

    # ---- copies of the object ----

    def __copy__(self) -> Tensor:
        if self._node is not None:
            raise RuntimeError("copy: only leaf tensors can be copied; detach() first")
        out = type(self)._rebuild(self._data, self._requires_grad)
        out._data, out._memory, out._grad = self._data, self._memory, self._grad
        return out

    def __deepcopy__(self, memo: dict[builtins.int, Any]) -> Tensor:
        if self._node is not None:
            raise RuntimeError("deepcopy: only leaf tensors can be copied; detach() first")
        out = type(self)._rebuild(self._data.copy(), self._requires_grad)
        if self._grad is not None:
            out._grad = wrap(self._grad._data.copy())
        memo[id(self)] = out
        return out

    def __reduce__(self) -> tuple[Callable[..., Tensor], tuple[Any, ...]]:
        if self._node is not None:
            raise RuntimeError("pickle: only leaf tensors can be pickled; detach() first")
        return type(self)._rebuild, (self._data, self._requires_grad)

    @classmethod
    def _rebuild(cls, data: Array, requires_grad: builtins.bool) -> Tensor:
        out = object.__new__(cls)
        out._data = data
        out._requires_grad = requires_grad
        out._node = out._grad = out._hooks = None
        out._memory = [0, PRIVATE]
        return out


def supported_dtype(op: str, dtype: np.dtype[Any], device: str | None = None) -> np.dtype[Any]:
    """dtype in native byte order; TypeError unless it is float32, float64, an integer or bool, or
    on a GPU a 16-bit float."""
    if dtype.char in "fd?" or dtype.kind in "iu":
        return dtype.newbyteorder("=")
    if device not in (None, "cpu") and is_half(dtype):
        return dtype.newbyteorder("=")
    raise TypeError(
        f"{op}: dtype {dtype} is not supported, expected float32, float64, integers or bool"
    )


register_tensor_type(Tensor)
