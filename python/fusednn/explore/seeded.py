"""Initial weights that depend on a seed alone, while other threads draw theirs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from .. import random

_lock = threading.Lock()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Restarts the library's generator inside the block, where one thread at a time may be; behind
    it the generator goes on as if nothing had been drawn.

    >>> import fusednn as fn
    >>> with seeded(3):
    ...     a = fn.rand(2)
    >>> with seeded(3):
    ...     bool((a == fn.rand(2)).all())
    True
    """
    with _lock:
        state = random.get_state()
        random.manual_seed(seed)
        try:
            yield
        finally:
            random.set_state(state)


__all__ = ["seeded"]
