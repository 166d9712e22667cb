"""Makes `threadpoolctl.threadpool_limits` govern fusednn's thread pool, where it is installed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_NAME = "threadpoolctl"


def _register_controller(threadpoolctl: ModuleType) -> None:
    class FusednnController(threadpoolctl.LibController):  # type: ignore[name-defined,misc]
        user_api = "fusednn"
        internal_api = "fusednn"
        filename_prefixes = ("_core.",)
        check_symbols = ("fusednn_get_num_threads", "fusednn_set_num_threads")

        def get_num_threads(self) -> int:
            return int(self.dynlib.fusednn_get_num_threads())

        def set_num_threads(self, num_threads: int) -> None:
            self.dynlib.fusednn_set_num_threads(num_threads)

        def get_version(self) -> str:
            from . import _core

            return _core.__version__

        def set_additional_attributes(self) -> None:
            pass

    threadpoolctl.register(FusednnController)


# The two classes below follow the import protocol without the base classes of importlib.abc, whose
# import takes longer than that of all of fusednn.


class _Loader:
    """Runs the real loader, then registers."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        _register_controller(module)


class _Finder:
    """Waits for the import of threadpoolctl, once."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: Any = None
    ) -> ModuleSpec | None:
        if fullname != _NAME:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)  # type: ignore[assignment]
        return spec


def register() -> None:
    """Registers now if threadpoolctl is imported, else as soon as it is.

    Nothing is imported for it: a program that does not use threadpoolctl pays nothing.
    """
    module = sys.modules.get(_NAME)
    if module is not None:
        _register_controller(module)
    else:
        sys.meta_path.insert(0, _Finder())
