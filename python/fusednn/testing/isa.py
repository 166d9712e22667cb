"""Choosing the instruction set of the kernels, for tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from .. import _core


@contextmanager
def isa(name: str) -> Iterator[None]:
    """Runs the kernels of one instruction set inside the block; ValueError if it is not usable.

    For the whole process, so not for code that runs kernels in several threads.

    >>> import fusednn as fn
    >>> with fn.testing.isa(fn.cpu_isa()):
    ...     pass
    """
    before = _core.cpu_isa()
    _core.set_isa(name)
    try:
        yield
    finally:
        _core.set_isa(before)
