"""The one source of random numbers: counter-based, so its state is two integers.

Draw number k uses NumPy's Philox generator with the key (seed, k) (Salmon, Moraes, Dror, Shaw,
"Parallel random numbers: as easy as 1, 2, 3", SC 2011). Same seed, same order of draws: same bits,
at any number of threads.
"""

from __future__ import annotations

import os
from operator import index

import numpy as np

_MASK = (1 << 64) - 1


class _State:
    """Seed and number of draws so far."""

    __slots__ = ("draws", "seed")

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.draws = 0


_state = _State(int.from_bytes(os.urandom(8), "little"))


def manual_seed(seed: int) -> None:
    """Restarts the generator behind initialisations, dropout and shuffles.

    seed is any int (taken modulo 2**64). Without a call each process starts with its own seed.

    >>> import fusednn as fn
    >>> fn.manual_seed(0)
    >>> a = fn.rand(3)
    >>> fn.manual_seed(0)
    >>> bool((a == fn.rand(3)).all())
    True
    """
    if isinstance(seed, bool) or not hasattr(seed, "__index__"):
        raise TypeError(f"manual_seed: seed must be an int, got {type(seed).__name__}")
    _state.seed = seed.__index__() & _MASK
    _state.draws = 0


def initial_seed() -> int:
    """The seed in use.

    >>> import fusednn as fn
    >>> fn.manual_seed(7)
    >>> fn.random.initial_seed()
    7
    """
    return _state.seed


def get_state() -> dict[str, int]:
    """Seed and position, to be saved in a checkpoint.

    >>> import fusednn as fn
    >>> fn.manual_seed(7)
    >>> fn.random.get_state()
    {'seed': 7, 'draws': 0}
    """
    return {"seed": _state.seed, "draws": _state.draws}


def set_state(state: dict[str, int]) -> None:
    """Goes on where `get_state` was called; ValueError for anything else than its result.

    >>> import fusednn as fn
    >>> state = fn.random.get_state()
    >>> fn.random.set_state(state)
    """
    try:
        seed, draws = index(state["seed"]), index(state["draws"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ValueError(f"set_state: expected the result of get_state, got {state!r}") from None
    if not 0 <= seed <= _MASK or draws < 0:
        raise ValueError(f"set_state: seed {seed} or draws {draws} is out of range")
    _state.seed, _state.draws = seed, draws


def next_generator() -> np.random.Generator:
    """A NumPy generator for one draw; every call gives another one."""
    key = np.array([_state.seed, _state.draws & _MASK], np.uint64)
    _state.draws += 1
    return np.random.Generator(np.random.Philox(key=key))
