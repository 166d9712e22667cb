"""Module: a tree of layers with named parameters and buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy import ndarray

from .._tensor.creation import from_gpu, from_numpy
from .._tensor.device import (
    as_cupy,
    beside,
    device_of,
    dtype_named,
    host,
    is_bfloat16,
    is_device,
    is_float,
    is_half,
    moved,
    on_gpu,
)
from .._tensor.tape import PRIVATE, SHARED, Array, TensorBase, wrap
from .._tensor.tensor import Tensor, supported_dtype
from .._tensor.walk import RemovableHandle
from .parameter import Parameter


class ForwardHooks:
    """What runs before and after a module's forward, in the order of registration."""

    __slots__ = ("_next", "after", "before")

    def __init__(self) -> None:
        self.before: dict[int, Callable[..., Any]] = {}
        self.after: dict[int, Callable[..., Any]] = {}
        self._next = 0

    def add(
        self, functions: dict[int, Callable[..., Any]], hook: Callable[..., Any]
    ) -> RemovableHandle:
        if not callable(hook):
            raise TypeError(f"forward hook: must be callable, got {type(hook).__name__}")
        self._next += 1
        functions[self._next] = hook
        return RemovableHandle(functions, self._next)

    def call(self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        for hook in tuple(self.before.values()):
            result = hook(module, args)
            if result is not None:
                args = result if isinstance(result, tuple) else (result,)
        output = module.forward(*args, **kwargs)
        for hook in tuple(self.after.values()):
            result = hook(module, args, output)
            if result is not None:
                output = result
        return output


class IncompatibleKeys(NamedTuple):
    """What `load_state_dict` did not find, and what it did not use."""

    missing_keys: list[str]
    unexpected_keys: list[str]


class Module:
    """Base of all layers and networks: define `forward`, set parameters and modules as attributes.

    Called on plain float arrays a module sees (and gives) Tensors that share their memory; integer
    arrays (classes, token ids) stay arrays.

    >>> from fusednn import nn
    >>> class Net(nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.hidden = nn.Linear(4, 3)
    ...     def forward(self, x):
    ...         return self.hidden(x).relu()
    >>> [name for name, _ in Net().named_parameters()]
    ['hidden.weight', 'hidden.bias']
    """

    training: bool
    _hooks: ForwardHooks | None = None
    # Registered things stand in the instance's __dict__ too, so that reading one costs what any
    # attribute costs; these dictionaries keep kind and order.
    _parameters: dict[str, Parameter | None]
    _buffers: dict[str, Tensor | None]
    _statistics: tuple[str, ...] = ()  # buffers that are float32 beside 16-bit parameters
    _modules: dict[str, Module | None]
    _not_saved: set[str]

    def __init__(self) -> None:
        state = self.__dict__
        state["training"] = True
        state["_parameters"] = {}
        state["_buffers"] = {}
        state["_modules"] = {}
        state["_not_saved"] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        for value in args:
            if not isinstance(value, TensorBase):
                args = tuple(_as_tensor(one) for one in args)
                break
        if kwargs:
            kwargs = {key: _as_tensor(value) for key, value in kwargs.items()}
        if self._hooks is not None:
            return self._hooks.call(self, args, kwargs)
        return self.forward(*args, **kwargs)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What calling the module computes; every subclass defines it."""
        raise NotImplementedError(f"{type(self).__name__} has no forward method")

    def register_forward_pre_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Calls hook(module, args) before forward; what it returns, if not None, takes the
        arguments' place (a tuple, or the only one). The handle has `remove()`."""
        self._hooks = self._hooks or ForwardHooks()
        return self._hooks.add(self._hooks.before, hook)

    def register_forward_hook(self, hook: Callable[..., Any]) -> RemovableHandle:
        """Calls hook(module, args, output) after forward; what it returns, if not None, takes the
        output's place. The handle has `remove()`.

        >>> from fusednn import nn
        >>> layer, shapes = nn.Linear(2, 3), []
        >>> handle = layer.register_forward_hook(lambda m, args, out: shapes.append(out.shape))
        >>> _ = layer(np.zeros((5, 2), np.float32))
        >>> shapes
        [(5, 3)]
        """
        self._hooks = self._hooks or ForwardHooks()
        return self._hooks.add(self._hooks.after, hook)

    # ---- registration ----

    def __setattr__(self, name: str, value: Any) -> None:
        state = self.__dict__
        if "_parameters" not in state:
            if isinstance(value, (Parameter, Module)):
                raise AttributeError(
                    f"{type(self).__name__}: call super().__init__() before setting {name!r}"
                )
            state[name] = value
        elif isinstance(value, Parameter):
            self._register(state["_parameters"], name, value)
        elif isinstance(value, Module):
            self._register(state["_modules"], name, value)
        elif name in state["_buffers"] and value is not None:
            self._register(state["_buffers"], name, _buffer(name, value))
        else:
            for kind in ("_parameters", "_modules", "_buffers"):
                if name in state[kind]:
                    if value is not None:
                        raise TypeError(
                            f"{type(self).__name__}.{name} is one of the {kind[1:]}; it cannot "
                            f"become a {type(value).__name__} (delete it first)"
                        )
                    state[kind][name] = None
            object.__setattr__(self, name, value)

    def _register(self, registry: dict[str, Any], name: str, value: Any) -> None:
        state = self.__dict__
        for other in (state["_parameters"], state["_buffers"], state["_modules"]):
            if other is not registry:
                other.pop(name, None)
        registry[name] = value
        state[name] = value

    def __delattr__(self, name: str) -> None:
        for registry in (self._parameters, self._buffers, self._modules):
            registry.pop(name, None)
        self._not_saved.discard(name)
        object.__delattr__(self, name)

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Adds a parameter; None keeps the name for one that is not used."""
        self._check_new_name(name)
        if param is not None and not isinstance(param, Parameter):
            raise TypeError(
                f"register_parameter: {name!r} must be a Parameter or None, got "
                f"{type(param).__name__}"
            )
        self._register(self._parameters, name, param)

    def register_buffer(
        self, name: str, tensor: Tensor | Array | None, persistent: bool = True
    ) -> None:
        """Adds a tensor that is saved (if persistent) but not trained. Arrays are copied."""
        self._check_new_name(name)
        self._register(self._buffers, name, None if tensor is None else _buffer(name, tensor))
        self._not_saved.discard(name)
        if not persistent:
            self._not_saved.add(name)

    def add_module(self, name: str, module: Module | None) -> None:
        """Adds a child under a name that need not be an identifier."""
        self._check_new_name(name)
        if module is not None and not isinstance(module, Module):
            raise TypeError(
                f"add_module: {name!r} must be a Module or None, got {type(module).__name__}"
            )
        self._register(self._modules, name, module)

    register_module = add_module

    def _check_new_name(self, name: str) -> None:
        if "_parameters" not in self.__dict__:
            raise AttributeError(
                f"{type(self).__name__}: call super().__init__() before registering {name!r}"
            )
        if not isinstance(name, str) or not name or "." in name:
            raise ValueError(f"register: name {name!r} must be a string without a dot")
        known = any(name in r for r in (self._parameters, self._buffers, self._modules))
        if not known and hasattr(self, name):
            raise ValueError(f"register: {type(self).__name__} already has {name!r}")

    # ---- the tree ----

    def named_modules(
        self,
        memo: set[Module] | None = None,
        prefix: str = "",
        remove_duplicate: bool = True,
    ) -> Iterator[tuple[str, Module]]:
        """This module and all below it with dotted names, each once (unless not remove_duplicate:
        then shared ones under each of their names); its own name is ""."""
        if not remove_duplicate:
            yield from self._every_module(prefix)
            return
        memo = set() if memo is None else memo
        if self in memo:
            return
        memo.add(self)
        yield prefix, self
        for name, child in self._modules.items():
            if child is not None:
                yield from child.named_modules(memo, f"{prefix}.{name}" if prefix else name)

    def modules(self) -> Iterator[Module]:
        """This module and all below it, each once."""
        for _, module in self.named_modules():
            yield module

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The direct children with their names, each once."""
        seen: set[Module] = set()
        for name, child in self._modules.items():
            if child is not None and child not in seen:
                seen.add(child)
                yield name, child

    def children(self) -> Iterator[Module]:
        """The direct children, each once."""
        for _, child in self.named_children():
            yield child

    def get_submodule(self, target: str) -> Module:
        """The module with a dotted name; "" is this one."""
        module = self
        for name in target.split(".") if target else ():
            child = module._modules.get(name)
            if child is None:
                raise AttributeError(f"{type(self).__name__} has no module {target!r}")
            module = child
        return module

    def get_parameter(self, target: str) -> Parameter:
        """The parameter with a dotted name; AttributeError if there is none."""
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path)._parameters.get(name)
        if found is None:
            raise AttributeError(f"{type(self).__name__} has no parameter {target!r}")
        return found

    def get_buffer(self, target: str) -> Tensor:
        """The buffer with a dotted name; AttributeError if there is none."""
        path, _, name = target.rpartition(".")
        found = self.get_submodule(path)._buffers.get(name)
        if found is None:
            raise AttributeError(f"{type(self).__name__} has no buffer {target!r}")
        return found

    def _named_members(
        self, registry: str, prefix: str, recurse: bool, once: bool
    ) -> Iterator[tuple[str, Module, str, Any]]:
        seen: set[int] = set()
        found = self.named_modules(prefix=prefix, remove_duplicate=once)
        modules = found if recurse else [(prefix, self)]
        for path, module in modules:
            for name, member in getattr(module, registry).items():
                if member is None or (once and id(member) in seen):
                    continue
                seen.add(id(member))
                yield f"{path}.{name}" if path else name, module, name, member

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """All parameters with dotted names, each once (shared ones under their first name)."""
        for name, _, _, parameter in self._named_members(
            "_parameters", prefix, recurse, remove_duplicate
        ):
            if remove_duplicate:  # else the last of its names would be the parameter's
                parameter.name = name
            yield name, parameter

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """All parameters, each once; each learns its name, for the optimiser's state."""
        for _, parameter in self.named_parameters(recurse=recurse):
            yield parameter

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """All buffers with dotted names."""
        for name, _, _, buffer in self._named_members(
            "_buffers", prefix, recurse, remove_duplicate
        ):
            yield name, buffer

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """All buffers, each once."""
        for _, buffer in self.named_buffers(recurse=recurse):
            yield buffer

    # ---- state ----

    def _saved(self) -> Iterator[tuple[str, Tensor]]:
        for path, module in self._every_module(""):
            lead = f"{path}." if path else ""
            for name, parameter in module._parameters.items():
                if parameter is not None:
                    yield lead + name, parameter
            for name, buffer in module._buffers.items():
                if buffer is not None and name not in module._not_saved:
                    yield lead + name, buffer

    def _every_module(self, prefix: str) -> Iterator[tuple[str, Module]]:
        # A shared module is saved under each of its names.
        yield prefix, self
        for name, child in self._modules.items():
            if child is not None:
                yield from child._every_module(f"{prefix}.{name}" if prefix else name)

    def state_dict(self) -> dict[str, Array]:
        """Copies of all parameters and saved buffers under their dotted names, on the CPU.

        >>> from fusednn import nn
        >>> {name: array.shape for name, array in nn.Linear(2, 3).state_dict().items()}
        {'weight': (3, 2), 'bias': (3,)}
        """
        return {
            name: member._data.copy() if type(member._data) is ndarray else host(member._data)
            for name, member in self._saved()
        }

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> IncompatibleKeys:
        """Copies arrays or Tensors into the parameters and buffers of the same names.

        Floats are cast to each parameter's own float dtype. A shape that differs is an error, a
        value beyond that dtype's range, and if strict a missing or unexpected name as well; then
        ValueError lists all of them, and nothing has changed. Anything that NumPy makes arrays of,
        as PyTorch's tensors, will do too.

        >>> from fusednn import nn
        >>> a, b = nn.Linear(2, 3), nn.Linear(2, 3)
        >>> b.load_state_dict(a.state_dict())
        IncompatibleKeys(missing_keys=[], unexpected_keys=[])
        """
        if not isinstance(state_dict, Mapping):
            raise TypeError(
                f"load_state_dict: expected a mapping of names to arrays, got "
                f"{type(state_dict).__name__}"
            )
        own = dict(self._saved())
        state_dict = {name: _array(value) for name, value in state_dict.items()}
        missing = [name for name in own if name not in state_dict]
        unexpected = [str(name) for name in state_dict if name not in own]
        wrong = []
        for name, member in own.items():
            if name in state_dict:
                problem = _misfit(member._data, state_dict[name])
                if problem:
                    wrong.append(f"{name} {problem}")
        lines = []
        if strict and missing:
            lines.append(f"missing: {', '.join(missing)}")
        if strict and unexpected:
            lines.append(f"unexpected: {', '.join(unexpected)}")
        if wrong:
            lines.append(f"mismatched: {'; '.join(wrong)}")
        if lines:
            raise ValueError(
                f"load_state_dict: the state does not fit {type(self).__name__}; "
                + "; ".join(lines)
            )
        for name, member in own.items():
            if name in state_dict:
                member._data[...] = beside(state_dict[name], member._data)
                member._memory[0] += 1
        return IncompatibleKeys(missing, unexpected)

    # ---- modes, dtypes, gradients ----

    def train(self, mode: bool = True) -> Self:
        """Sets training mode (dropout on, batch statistics) here and below."""
        for module in self.modules():
            module.training = bool(mode)
        return self

    def eval(self) -> Self:
        """Sets evaluation mode here and below."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        """Switches gradients of all parameters on or off."""
        for parameter in self.parameters():
            parameter.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Sets the grad of every parameter to None, or to zeros if not set_to_none."""
        for parameter in self.parameters():
            parameter._clear_grad(set_to_none)

    def to(self, *targets: Any, dtype: Any = None, device: Any = None) -> Self:
        """Parameters and buffers in another dtype (floats only) and on a device, in place:
        to(np.float64), to("cuda"). ValueError for a device that is not here. np.float16 and
        "bfloat16" are for modules on a GPU; running statistics are float32 then, for what a batch
        adds to them would be rounded away."""
        for target in targets:
            if is_device(target):
                device = target
            elif isinstance(target, TensorBase):
                dtype, device = target._data.dtype, device_of(target._data)
            else:
                dtype = target
        wanted = None
        if dtype is not None:
            first = next(iter(self.parameters()), None)
            place = device if device is not None or first is None else first.device
            wanted = supported_dtype("to", dtype_named(dtype), place)
            if not is_float(wanted):
                raise TypeError(f"to: a module's dtype must be float32 or float64, got {wanted}")
        for module in self.modules():
            for registry in (module._parameters, module._buffers):
                for name, member in registry.items():
                    if member is not None:
                        wide = name in module._statistics and wanted is not None and is_half(wanted)
                        cast_float(member, np.dtype(np.float32) if wide else wanted, device)
        return self

    def float(self) -> Self:
        """Parameters and buffers as float32."""
        return self.to(np.float32)

    def double(self) -> Self:
        """Parameters and buffers as float64."""
        return self.to(np.float64)

    def cpu(self) -> Self:
        """Parameters and buffers on the CPU."""
        return self.to(device="cpu")

    def cuda(self, device: int | None = None) -> Self:
        """Parameters and buffers on a GPU, that of the number `device` or CuPy's current one."""
        return self.to(device="cuda" if device is None else f"cuda:{device}")

    def apply(self, fn: Callable[[Module], Any]) -> Self:
        """Calls fn on every module below, children first, then on this one."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    # ---- text ----

    def extra_repr(self) -> str:
        """What stands in the brackets of the repr; layers give their arguments."""
        return ""

    def __repr__(self) -> str:
        inside = [
            f"({name}): {child!r}".replace("\n", "\n  ") for name, child in self._modules.items()
        ]
        extra = self.extra_repr()
        if not inside:
            return f"{type(self).__name__}({extra})"
        lines = [extra] * bool(extra) + inside
        return f"{type(self).__name__}(\n  " + "\n  ".join(lines) + "\n)"


def _as_tensor(value: Any) -> Any:
    if isinstance(value, ndarray) and value.dtype.kind == "f":
        return from_numpy(value)
    if on_gpu(value):
        array = as_cupy(value)
        return from_gpu("forward", array) if is_float(array.dtype) else array
    return value


def _buffer(name: str, value: Any) -> Tensor:
    if isinstance(value, Tensor):
        # Loading a state writes into buffers, never into an array of the caller.
        return value.detach().clone() if value._memory[1] == SHARED else value
    if on_gpu(value):
        return wrap(as_cupy(value).copy())
    if not isinstance(value, ndarray):
        raise TypeError(
            f"buffer {name!r} must be a Tensor, an array or None, got {type(value).__name__}"
        )
    return wrap(np.array(value, supported_dtype("register_buffer", value.dtype), order="C"))


def _misfit(own: Array, new: Any) -> str:
    """Why an array cannot be loaded into `own`; "" if it can."""
    if not isinstance(new, ndarray):
        return f"is a {type(new).__name__}, expected an array or a Tensor"
    if new.shape != own.shape:
        return f"has shape {new.shape}, expected {own.shape}"
    kinds = "iu" if own.dtype.kind in "iu" else own.dtype.kind
    if new.dtype.kind not in kinds and not (is_float(own.dtype) and is_float(new.dtype)):
        return f"has dtype {new.dtype}, expected {own.dtype}"
    if new.dtype.itemsize > own.dtype.itemsize and not _within(new, own.dtype):
        return f"has values of {new.dtype} that {own.dtype} has not"
    return ""


_LARGEST_BFLOAT16 = (2 - 2.0**-7) * 2.0**127  # NumPy's finfo does not know it


def _within(new: Array, dtype: np.dtype[Any]) -> bool:
    """Whether all (finite) values lie in dtype's range."""
    if is_float(dtype):
        largest = _LARGEST_BFLOAT16 if is_bfloat16(dtype) else float(np.finfo(dtype).max)
        return not (np.isfinite(new) & (abs(new) > largest)).any()
    if dtype.kind in "iu":
        return not ((new < np.iinfo(dtype).min) | (new > np.iinfo(dtype).max)).any()
    return True


def _array(value: Any) -> Any:
    """The array of a Tensor, or of another library's."""
    if isinstance(value, TensorBase):
        return host(value._data)
    if on_gpu(value):
        return host(as_cupy(value))
    if isinstance(value, ndarray) or not hasattr(value, "__array__"):
        return value
    try:
        return np.asarray(value)
    except (TypeError, ValueError, RuntimeError):  # not on the CPU, or of a dtype NumPy lacks
        return value


def cast_float(member: TensorBase, dtype: np.dtype[Any] | None, device: Any = None) -> None:
    """A parameter or buffer, and its gradient, with another dtype (if it is a float's) and on
    another device, in place."""
    data = member._data
    if dtype is None or not is_float(data.dtype):
        dtype = data.dtype
    new = _converted(data, dtype, device)
    if new is not data:
        member._data = new
        member._memory = [0, PRIVATE]
        if member._grad is not None:
            member._grad = wrap(_converted(member._grad._data, dtype, device))


def _converted(data: Array, dtype: np.dtype[Any], device: Any) -> Any:
    data = data if device is None else moved("to", data, device)
    return data if data.dtype == dtype else data.astype(dtype)
