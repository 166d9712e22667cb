"""Devices and streams. Work is done when a call returns: a stream is no more than its number."""

from __future__ import annotations

import time
from typing import Any

from ._library import library

used_bytes = 0


def second_heap() -> int:
    """Where the memory of device 1 begins."""
    return int(library.emulator_second_heap())


class Device:
    def __init__(self, device: int | None = None) -> None:
        self.id = library.emulator_get_device() if device is None else device
        self._before: list[int] = []

    def __enter__(self) -> Device:
        self._before.append(library.emulator_get_device())
        self.use()
        return self

    def __exit__(self, *exception: Any) -> None:
        library.emulator_set_device(self._before.pop())

    def use(self) -> None:
        if library.emulator_set_device(self.id) != 0:
            raise RuntimeError("cudaErrorInvalidDevice: invalid device ordinal")

    def synchronize(self) -> None: ...

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self) -> int:
        return hash(self.id)


class Stream:
    _numbers = iter(range(0x1000, 1 << 30, 0x10))

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        self.ptr = 0 if null else next(self._numbers)

    def __enter__(self) -> Stream:
        _streams.append(self)
        return self

    def __exit__(self, *exception: Any) -> None:
        _streams.pop()

    def synchronize(self) -> None: ...


Stream.null = Stream(null=True)  # type: ignore[attr-defined]
_streams = [Stream.null]  # type: ignore[attr-defined]


def get_current_stream() -> Stream:
    return _streams[-1]


class Event:
    """When it was recorded, by the host's clock: all work is done by then."""

    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self.seconds = 0.0

    def record(self, stream: Stream | None = None) -> None:
        self.seconds = time.perf_counter()

    def synchronize(self) -> None: ...


def get_elapsed_time(start: Event, end: Event) -> float:
    return (end.seconds - start.seconds) * 1e3


def is_available() -> bool:
    return True


class runtime:
    @staticmethod
    def getDeviceCount() -> int:
        return 2
