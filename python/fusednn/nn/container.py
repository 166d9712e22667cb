"""Modules that hold modules or parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, overload

from .activation import ReLU
from .module import Module
from .norm import BatchNorm
from .parameter import Parameter


def _child(owner: str, value: Any) -> Module:
    if not isinstance(value, Module):
        raise TypeError(f"{owner}: expected a Module, got {type(value).__name__}")
    return value


class _Indexed(Module):
    """Children named "0", "1", ..."""

    def _items(self) -> list[Module]:
        return [module for module in self._modules.values() if module is not None]

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._items())

    @overload
    def __getitem__(self, index: int) -> Module: ...
    @overload
    def __getitem__(self, index: slice) -> _Indexed: ...
    def __getitem__(self, index: int | slice) -> Module:
        if isinstance(index, slice):
            return self._part(index)
        names = self._names()
        module = self._modules[names[self._place(index, len(names))]]
        assert module is not None
        return module

    def _part(self, index: slice) -> _Indexed:
        return type(self)(self._items()[index])  # type: ignore[call-arg]

    def _names(self) -> list[str]:
        return list(self._modules)

    def _place(self, index: Any, size: int) -> int:
        if not -size <= index < size:
            raise IndexError(f"{type(self).__name__}: index {index} is out of range of {size}")
        return int(index.__index__())

    def __setitem__(self, index: int, module: Module) -> None:
        names = self._names()
        name = names[self._place(index, len(names))]
        self._register(self._modules, name, _child(type(self).__name__, module))

    def __delitem__(self, index: int | slice) -> None:
        items = self._items()
        del items[index]
        for name in list(self._modules):
            delattr(self, name)
        for module in items:
            self.append(module)

    def append(self, module: Module) -> Any:
        """Adds a module at the end; returns the container."""
        number = len(self._modules)
        while str(number) in self._modules:  # in a part of another one, or where names are given
            number += 1
        self.add_module(str(number), _child(type(self).__name__, module))
        return self

    def extend(self, modules: Iterable[Module]) -> Any:
        """Adds modules at the end; returns the container."""
        for module in list(modules):
            self.append(module)
        return self

    __iadd__ = extend

    def __add__(self, other: Iterable[Module]) -> Any:
        return self._part(slice(None)).extend(other)

    def insert(self, index: int, module: Module) -> Any:
        """Adds a module before the one at `index`; returns the container."""
        items = self._items()
        items.insert(index, _child(type(self).__name__, module))
        for name in list(self._modules):
            delattr(self, name)
        return self.extend(items)

    def pop(self, index: int = -1) -> Module:
        """Takes a module out and returns it."""
        module = self[index]
        del self[index]
        return module


class Sequential(_Indexed):
    """Modules called one after the other, named "0", "1", ... or as a mapping names them.

    >>> from fusednn import nn
    >>> nn.Sequential(nn.Linear(4, 3), nn.ReLU())
    Sequential(
      (0): Linear(in_features=4, out_features=3, bias=True)
      (1): ReLU()
    )
    """

    def __init__(self, *modules: Module | Mapping[str, Module]) -> None:
        super().__init__()
        if len(modules) == 1 and isinstance(modules[0], Mapping):
            for name, module in modules[0].items():
                self.add_module(name, _child("Sequential", module))
        else:
            self.extend(modules)  # type: ignore[arg-type]

    def _part(self, index: slice) -> Sequential:
        # Names stay, so that the part's state fits the whole one's.
        part = type(self)()
        for name in self._names()[index]:
            part.add_module(name, self._modules[name])
        return part

    def forward(self, input: Any) -> Any:
        """The last module's output."""
        modules = iter(self._items())
        module = next(modules, None)
        while module is not None:
            following = next(modules, None)
            if type(following) is ReLU and _takes_relu(module) and following._hooks is None:
                input = module(input, activation="relu")
                following = next(modules, None)
            else:
                input = module(input)
            module = following
        return input


def _takes_relu(module: Module) -> bool:
    # A hook wants to see what lies between the two; a subclass may do something else.
    return (
        isinstance(module, BatchNorm)
        and type(module).forward is BatchNorm.forward
        and module._hooks is None
    )


class ModuleList(_Indexed):
    """A list of modules whose parameters are found.

    >>> from fusednn import nn
    >>> len(nn.ModuleList([nn.ReLU(), nn.ReLU()]))
    2
    """

    def __init__(self, modules: Iterable[Module] | None = None) -> None:
        super().__init__()
        self.extend(modules or ())


class ModuleDict(Module):
    """A dictionary of modules whose parameters are found.

    >>> from fusednn import nn
    >>> list(nn.ModuleDict({"act": nn.ReLU()}))
    ['act']
    """

    def __init__(
        self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]] | None = None
    ) -> None:
        super().__init__()
        self.update(modules or {})

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[str]:
        return iter(self._modules)

    def __contains__(self, name: str) -> bool:
        return name in self._modules

    def __getitem__(self, name: str) -> Module:
        module = self._modules[name]
        assert module is not None
        return module

    def __setitem__(self, name: str, module: Module) -> None:
        self.add_module(name, _child("ModuleDict", module))

    def __delitem__(self, name: str) -> None:
        delattr(self, name)

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._modules.keys()

    def values(self) -> Iterable[Module]:
        """The modules."""
        return [self[name] for name in self]

    def items(self) -> Iterable[tuple[str, Module]]:
        """Names and modules."""
        return [(name, self[name]) for name in self]

    def update(self, modules: Mapping[str, Module] | Iterable[tuple[str, Module]]) -> None:
        """Adds or replaces modules."""
        for name, module in dict(modules).items():
            self[name] = module

    def pop(self, name: str) -> Module:
        """Takes a module out and returns it."""
        module = self[name]
        del self[name]
        return module

    def clear(self) -> None:
        """Takes all modules out."""
        for name in list(self):
            del self[name]


class ParameterList(Module):
    """A list of parameters that are found, named "0", "1", ...; arrays and Tensors become ones.

    >>> import numpy as np
    >>> from fusednn import nn
    >>> [name for name, _ in nn.ParameterList([np.zeros(2), np.ones(3)]).named_parameters()]
    ['0', '1']
    """

    def __init__(self, values: Iterable[Any] | None = None) -> None:
        super().__init__()
        self.extend(values or ())

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[Parameter]:
        return iter([one for one in self._parameters.values() if one is not None])

    def __getitem__(self, index: int) -> Parameter:
        return list(self)[index]

    def __setitem__(self, index: int, value: Any) -> None:
        names = list(self._parameters)
        self._register(self._parameters, names[index], _parameter(value))

    def append(self, value: Any) -> ParameterList:
        """Adds a parameter at the end; returns the list."""
        self.register_parameter(str(len(self)), _parameter(value))
        return self

    def extend(self, values: Iterable[Any]) -> ParameterList:
        """Adds parameters at the end; returns the list."""
        for value in values:
            self.append(value)
        return self

    def extra_repr(self) -> str:
        return ", ".join(f"{one.dtype}{list(one.shape)}" for one in self)


class ParameterDict(Module):
    """A dictionary of parameters that are found; arrays and Tensors become ones.

    >>> import numpy as np
    >>> from fusednn import nn
    >>> [name for name, _ in nn.ParameterDict({"gain": np.ones(3)}).named_parameters()]
    ['gain']
    """

    def __init__(self, parameters: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.update(parameters or {})

    def __len__(self) -> int:
        return len(self._parameters)

    def __iter__(self) -> Iterator[str]:
        return iter(self._parameters)

    def __contains__(self, name: str) -> bool:
        return name in self._parameters

    def __getitem__(self, name: str) -> Parameter:
        parameter = self._parameters[name]
        assert parameter is not None
        return parameter

    def __setitem__(self, name: str, value: Any) -> None:
        self.register_parameter(name, _parameter(value))

    def __delitem__(self, name: str) -> None:
        delattr(self, name)

    def keys(self) -> Iterable[str]:
        """The names."""
        return self._parameters.keys()

    def values(self) -> Iterable[Parameter]:
        """The parameters."""
        return [self[name] for name in self]

    def items(self) -> Iterable[tuple[str, Parameter]]:
        """Names and parameters."""
        return [(name, self[name]) for name in self]

    def update(self, parameters: Mapping[str, Any]) -> None:
        """Adds or replaces parameters."""
        for name, value in parameters.items():
            self[name] = value

    def extra_repr(self) -> str:
        return ", ".join(f"{name}: {one.dtype}{list(one.shape)}" for name, one in self.items())


def _parameter(value: Any) -> Parameter:
    return value if isinstance(value, Parameter) else Parameter(value)
