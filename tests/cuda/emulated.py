"""The emulator's switches and reports, for tests marked `emulated`."""

from __future__ import annotations

import ctypes

from cupy._library import library

_NAMES = [
    "launches",
    "blocks",
    "threads",
    "switches",
    "barriers",
    "warp_operations",
    "mma",
    "load_matrix",
    "load_matrix_conflicts",
    "copied_bytes",
    "stream_waits",
]


def set_seed(seed: int) -> None:
    """0: threads and blocks run in a fixed order; else at random."""
    library.emulator_set_seed(seed)


def set_resident(blocks: int = 256) -> None:
    """How many blocks of a cooperative launch the device claims to hold at once."""
    library.emulator_set_resident(blocks)


def take_counts() -> dict[str, int]:
    """What was done since the last call."""
    numbers = (ctypes.c_uint64 * len(_NAMES))()
    library.emulator_take_counts(numbers)
    return dict(zip(_NAMES, numbers, strict=True))


def last_report() -> str:
    """Of the last launch that failed."""
    return library.emulator_last_report().decode()


class Profile:
    """Collects memory traffic by line in the strict build::

    with Profile() as profile: F.relu(x)
    print(profile.text)
    """

    text = ""

    def __enter__(self) -> Profile:
        library.emulator_profile()
        library.emulator_set_profile(1)
        return self

    def __exit__(self, *exception: object) -> None:
        library.emulator_set_profile(0)
        self.text = library.emulator_profile().decode()
