"""What machine this is, and holding a run to some of its CPUs."""

import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
# Where the system does not say: sizes that most servers of the last ten years have at least.
_USUAL = {"L1": 32 << 10, "L2": 1 << 20, "L3": 32 << 20}


def cpu_name() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        text = ""
    match = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1].strip() if match else platform.processor() or platform.machine()


def cache_sizes(folder: Path = _CACHES) -> dict[str, int]:
    """Bytes of the data caches that one core reaches, by level."""
    sizes = {}
    for index in sorted(folder.glob("index*")):
        try:
            kind = (index / "type").read_text().strip()
            level = (index / "level").read_text().strip()
            size = (index / "size").read_text().strip()
        except OSError:
            continue
        if kind != "Instruction" and (match := re.fullmatch(r"(\d+)([KM])", size)):
            sizes[f"L{level}"] = int(match[1]) << {"K": 10, "M": 20}[match[2]]
    return {**_USUAL, **sizes}


def describe() -> dict[str, str | int]:
    return {
        "cpu": cpu_name(),
        "cpus": len(available_cpus()),
        "architecture": platform.machine(),
        "system": platform.platform(),
        "python": platform.python_version(),
        **{f"{level} KB": size >> 10 for level, size in cache_sizes().items()},
    }


def load() -> float:
    """How many processes were running, on average over the last minute."""
    return round(os.getloadavg()[0], 2)


def available_cpus() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


@contextmanager
def only_cpus(count: int) -> Iterator[None]:
    """Keeps this thread, and the threads that libraries start from now on, on `count` CPUs.

    So that no library uses more than it was given, whatever its own settings are.
    """
    before = available_cpus()
    if count > len(before):
        raise ValueError(f"{count} threads asked for, but this process may use {len(before)} CPUs")
    if not hasattr(os, "sched_setaffinity"):
        yield
        return
    os.sched_setaffinity(0, before[:count])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
