"""Makes `threadpoolctl.threadpool_limits` govern fusednn's thread pool, where it is installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import _core

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_NAME = "threadpoolctl"


def _add_controller(threadpoolctl: ModuleType) -> None:
    """Tells threadpoolctl how to recognise and steer the extension, once."""
    if hasattr(threadpoolctl, "_fusednn_controller"):
        return

    class FusednnController(threadpoolctl.LibController):  # type: ignore[name-defined,misc]
        user_api = "fusednn"
        internal_api = "fusednn"
        # Other packages may have a library of this name too; the symbols tell.
        filename_prefixes = ("_core.",)
        check_symbols = ("fusednn_get_num_threads", "fusednn_set_num_threads")

        def get_num_threads(self) -> int:
            return int(self.dynlib.fusednn_get_num_threads())

        def set_num_threads(self, num_threads: int) -> None:
            self.dynlib.fusednn_set_num_threads(num_threads)

        def get_version(self) -> str:
            return _core.__version__

        def set_additional_attributes(self) -> None:
            self.cpu_isa = _core.cpu_isa()

    threadpoolctl.register(FusednnController)
    threadpoolctl._fusednn_controller = FusednnController  # type: ignore[attr-defined]


class _Finder:
    """Adds the controller when threadpoolctl is imported after this package.

    It follows the import protocol without the base class in importlib.abc, whose import takes
    longer than all of fusednn. It stays until the module has run: a mere look (`find_spec`) at
    whether threadpoolctl is installed must not use it up.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != _NAME:
            return None
        for finder in sys.meta_path:
            if finder is self:
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None:
                self._follow(spec.loader)
                return spec
        return None

    def _follow(self, loader: Any) -> None:
        """Has `loader` add the controller after it ran the module."""
        run = getattr(loader, "exec_module", None)
        if run is None:
            return

        def exec_module(module: ModuleType) -> None:
            run(module)
            if module.__name__ == _NAME:
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                _add_controller(module)

        loader.exec_module = exec_module


def register() -> None:
    """Adds the controller now if threadpoolctl is imported, else as soon as it is.

    Nothing is imported for it: a program that does not use threadpoolctl pays nothing.
    """
    module = sys.modules.get(_NAME)
    if module is not None:
        _add_controller(module)
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
