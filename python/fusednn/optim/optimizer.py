"""What all optimisers share: parameters and their names, groups of options, state."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy import ndarray

from .._tensor.autocast import cast_array
from .._tensor.device import beside, device_of, host, is_float, is_half, is_writable, namespace
from .._tensor.mode import enable_grad
from .._tensor.tape import Array, TensorBase, raw, wrap

Group = dict[str, Any]
Params = Iterable[Any]
LARGEST = sys.float_info.max  # as ints can be larger, isfinite would overflow
_MOST_STEPS = 1 << 53  # beyond, a count is no exact float any more


_FLOAT32 = np.dtype(np.float32)


class _Master(NamedTuple):
    """A 16-bit parameter in float32, and the parameter's array and version that were made of it."""

    array: Any
    data: Any
    version: int

    def fits(self, parameter: TensorBase) -> bool:
        return self.data is parameter._data and self.version == parameter._memory[0]


class Optimizer:
    """Base of the optimisers.

    params: Tensors or Parameters, (name, parameter) pairs, or groups: dictionaries with "params"
    and options of their own. State is keyed by name: that of the pair, else the one a Parameter
    learnt from `Module.parameters()`, else its position ("#0", "#1", ...).

    Parameters of 16 bits are updated through a copy in float32, in which small steps add up (the
    "master weights" of Micikevicius et al., "Mixed Precision Training", ICLR 2018); their state is
    float32 as well, and the copies are saved with it.
    """

    # Arrays of a parameter's shape that `state` may hold; "step" counts updates.
    _state_arrays: ClassVar[tuple[str, ...]] = ()

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        self.defaults = defaults
        self.state: dict[TensorBase, dict[str, Any]] = {}
        self._masters: dict[TensorBase, _Master] = {}
        self.param_groups: list[Group] = []
        if isinstance(params, TensorBase):
            raise TypeError(f"{self._name}: params must be an iterable of Tensors, got one Tensor")
        given = list(params)
        if not given:
            raise ValueError(f"{self._name}: params is empty, there is nothing to optimise")
        for group in given if isinstance(given[0], Mapping) else [{"params": given}]:
            self.add_param_group(group)

    @property
    def _name(self) -> str:
        return type(self).__name__

    # ---- groups and names ----

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Adds parameters with their own options; those not given are the constructor's."""
        if not isinstance(param_group, Mapping) or "params" not in param_group:
            raise TypeError(f"{self._name}: a group must be a dictionary with 'params'")
        members = param_group["params"]
        members = [members] if isinstance(members, TensorBase) else list(members)
        group: Group = {**self.defaults, **param_group}
        unknown = [key for key in param_group if key not in (*self.defaults, "params")]
        if unknown:
            raise ValueError(
                f"{self._name}: unknown options {', '.join(map(repr, unknown))} in a group, known: "
                f"{', '.join(self.defaults)}"
            )
        self._check_options(group)
        known = {id(p) for g in self.param_groups for p in g["params"]}
        names, parameters = [], []
        for member in members:
            pair = isinstance(member, tuple) and len(member) == 2
            name, parameter = member if pair else (getattr(member, "name", None), member)
            if not isinstance(parameter, TensorBase):
                raise TypeError(
                    f"{self._name}: params must hold Tensors, got {type(parameter).__name__}"
                )
            if parameter._node is not None:
                raise ValueError(f"{self._name}: can only optimise leaf tensors")
            if not is_float(parameter._data.dtype):
                raise TypeError(
                    f"{self._name}: a parameter has dtype {parameter._data.dtype}, expected floats"
                )
            flags = parameter._data.flags
            if not (
                flags.c_contiguous
                and is_writable(parameter._data)
                and parameter._data.dtype.isnative
            ):
                raise ValueError(
                    f"{self._name}: a parameter shares memory that is read-only, strided or of "
                    "another byte order, and cannot be updated; optimise a copy: "
                    "fusednn.tensor(array)"
                )
            if id(parameter) in known:
                raise ValueError(f"{self._name}: a parameter was given twice ({name or 'unnamed'})")
            known.add(id(parameter))
            names.append(name)
            parameters.append(parameter)
        group["params"] = parameters
        group["param_names"] = self._unique(names)
        self.param_groups.append(group)

    def _unique(self, names: list[str | None]) -> list[str]:
        taken = {name for group in self.param_groups for name in group["param_names"]}
        first = sum(len(group["params"]) for group in self.param_groups)
        lead = f"group{len(self.param_groups)}." if self.param_groups else ""
        out: list[str] = []
        for i, name in enumerate(names):
            if name is not None and name in taken and lead + name not in taken:
                name = lead + name
            if name is None or name in taken:
                name = f"#{first + i}"
            taken.add(name)
            out.append(name)
        return out

    def _check_options(self, group: Group) -> None:
        """Raises for options out of range; called before a group is used."""

    def _require(self, group: Group, *names: str) -> None:
        for name in names:
            value = group[name]
            if not _is_number(value):
                raise TypeError(
                    f"{self._name}: {name} must be a number, got {type(value).__name__}"
                )
            if not 0 <= value <= LARGEST:
                raise ValueError(f"{self._name}: {name}={value}, expected a finite number >= 0")

    # ---- the loop ----

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Sets the grad of every parameter to None, or to zeros if not set_to_none."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if set_to_none:
                    parameter._grad = None
                else:
                    parameter._clear_grad(False)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Changes every parameter that has a grad, once. closure, if given, computes the loss and
        its gradients first; its result is returned."""
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        for group in self.param_groups:
            halves = [
                parameter
                for parameter in group["params"]
                if parameter._grad is not None and is_half(parameter._data.dtype)
            ]
            if halves:
                self._update_halves(group, halves)
            else:
                self._update(group)
        return loss

    def _update_halves(self, group: Group, halves: list[Any]) -> None:
        """`_update` with float32 in the place of these parameters and their gradients."""
        own = [(parameter._data, parameter._grad) for parameter in halves]
        try:
            for parameter in halves:
                parameter._data, parameter._grad = (
                    self._master(parameter),
                    wrap(cast_array(parameter._grad._data, _FLOAT32)),
                )
            self._update(group)
        finally:
            for parameter, (data, grad) in zip(halves, own, strict=True):
                master = parameter._data
                parameter._data, parameter._grad = data, grad
                if master is not data:
                    data[...] = cast_array(master, data.dtype)
                    self._masters[parameter] = _Master(master, data, parameter._memory[0])

    def _master(self, parameter: TensorBase) -> Any:
        """The float32 copy; a new one where somebody else changed the parameter."""
        kept = self._masters.get(parameter)
        if kept is None or not kept.fits(parameter):
            return cast_array(parameter._data, _FLOAT32)
        return kept.array

    def _update(self, group: Group) -> None:
        raise NotImplementedError

    def _new_state(self, parameter: TensorBase, *names: str, **values: Any) -> dict[str, Any]:
        """A parameter's state: zero arrays `names` of its shape, and `values`."""
        data = parameter._data
        zeros = namespace(data).zeros
        state = {name: zeros(data.shape, data.dtype) for name in names}
        self.state[parameter] = state = {**values, **state}
        return state

    # ---- saving ----

    def state_dict(self) -> dict[str, Any]:
        """Copies of all state, on the CPU: {"state": {name: {...}}, "param_groups": [options,
        ...]}."""
        state: dict[str, dict[str, Any]] = {}
        groups = []
        for group in self.param_groups:
            for name, parameter in zip(group["param_names"], group["params"], strict=True):
                if parameter in self.state:
                    state[name] = {
                        key: value.copy() if isinstance(value, ndarray) else host(value)
                        for key, value in self.state[parameter].items()
                    }
                kept = self._masters.get(parameter)
                if kept is not None and kept.fits(parameter):
                    state.setdefault(name, {})["master"] = host(kept.array)
            options = {k: v for k, v in group.items() if k not in ("params", "param_names")}
            groups.append({**options, "params": list(group["param_names"])})
        return {"state": state, "param_groups": groups}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Takes over what `state_dict` gave, parameter by parameter name.

        ValueError if names, shapes or kinds of state differ; then nothing has changed.
        """
        try:
            saved_groups = [dict(group) for group in state_dict["param_groups"]]
            saved_names = [list(group.pop("params")) for group in saved_groups]
            saved_names = [[str(name) for name in names] for names in saved_names]
            saved_state = {name: dict(entry) for name, entry in state_dict["state"].items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ValueError(
                f"{self._name}: load_state_dict expects what state_dict() gave"
            ) from None
        if len(saved_groups) != len(self.param_groups):
            raise ValueError(
                f"{self._name}: the state has {len(saved_groups)} groups, expected "
                f"{len(self.param_groups)}"
            )
        for group, options, names in zip(self.param_groups, saved_groups, saved_names, strict=True):
            missing = [name for name in group["param_names"] if name not in names]
            unexpected = [name for name in names if name not in group["param_names"]]
            if missing or unexpected:
                raise ValueError(
                    f"{self._name}: the state is of other parameters; missing: "
                    f"{', '.join(missing) or 'none'}; unexpected: {', '.join(unexpected) or 'none'}"
                )
            odd = [key for key in self.defaults if key not in options]
            odd += [key for key in options if key not in (*self.defaults, "initial_lr")]
            if odd:
                raise ValueError(f"{self._name}: the options {', '.join(odd)} do not fit")
            for key, value in options.items():
                options[key] = self._checked_option(key, group.get(key, group["lr"]), value)
            self._check_options(options)
        state: dict[TensorBase, dict[str, Any]] = {}
        masters: dict[TensorBase, _Master] = {}
        for group in self.param_groups:
            for name, parameter in zip(group["param_names"], group["params"], strict=True):
                if name not in saved_state:
                    continue
                entry = self._checked_state(name, parameter, saved_state[name])
                master = entry.pop("master", None)
                if master is not None and is_half(parameter._data.dtype):
                    masters[parameter] = _Master(master, parameter._data, parameter._memory[0])
                if entry or not saved_state[name]:
                    state[parameter] = entry
        self.state, self._masters = state, masters
        for group, options in zip(self.param_groups, saved_groups, strict=True):
            group.update(options)

    def _checked_option(self, key: str, own: Any, value: Any) -> Any:
        """A loaded option, of the kind that the present one is of; numbers must be finite."""
        members = value if isinstance(value, (tuple, list)) else [value]
        numbers = all(_is_number(one) and abs(one) <= LARGEST for one in members)
        if isinstance(own, bool):
            fits = isinstance(value, bool)
        elif isinstance(own, (tuple, list)):
            fits = isinstance(value, (tuple, list)) and len(value) == len(own) and numbers
        else:
            fits = numbers and not isinstance(value, (tuple, list))
        if not fits:
            raise ValueError(
                f"{self._name}: the option {key} of the state is {value!r}, here it is {own!r}"
            )
        return tuple(value) if isinstance(value, list) else value

    def _checked_state(
        self, name: str, parameter: TensorBase, entry: dict[str, Any]
    ) -> dict[str, Any]:
        data = parameter._data
        dtype = _FLOAT32 if is_half(data.dtype) else data.dtype
        out: dict[str, Any] = {}
        for key, value in entry.items():
            value = host(raw(value))
            if key == "step":
                if not hasattr(value, "__index__") or not 0 <= value <= _MOST_STEPS:
                    raise ValueError(f"{self._name}: step of {name} is {value!r}, expected a count")
                out[key] = value.__index__()
            elif key not in (*self._state_arrays, "master"):
                raise ValueError(f"{self._name}: {name} has state {key!r}, which is not mine")
            elif not isinstance(value, ndarray) or value.dtype.kind != "f":
                raise ValueError(f"{self._name}: {key} of {name} is not an array of floats")
            elif value.shape != data.shape:
                raise ValueError(
                    f"{self._name}: {key} of {name} has shape {value.shape}, expected {data.shape}"
                )
            else:
                out[key] = beside(np.array(value, dtype, order="C"), data)
        return out

    def __repr__(self) -> str:
        lines = [f"{self._name} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [
                f"    {key}: {value}"
                for key, value in sorted(group.items())
                if key not in ("params", "param_names")
            ]
        return "\n".join([*lines, ")"])


def alike(arrays: Iterable[Any], key: Callable[[Any], Any]) -> list[list[Any]]:
    """What is given in lists, each of one dtype and on one device: what a kernel takes at once.
    key gives the array."""
    lists: dict[Any, list[Any]] = {}
    for one in arrays:
        array = key(one)
        char = array.dtype.char
        place = char if type(array) is ndarray else (char, device_of(array))
        lists.setdefault(place, []).append(one)
    return list(lists.values())


def with_grads(group: Group) -> list[list[TensorBase]]:
    """The group's parameters that have a grad, in lists that are updated at once."""
    having = (parameter for parameter in group["params"] if parameter._grad is not None)
    return alike(having, lambda parameter: parameter._data)


def grads_of(parameters: list[TensorBase]) -> list[Array]:
    """Their gradients' arrays."""
    return [parameter._grad._data for parameter in parameters if parameter._grad is not None]


def changed(parameters: list[TensorBase]) -> None:
    """Counts a change in place of each."""
    for parameter in parameters:
        parameter._memory[0] += 1


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
