"""Tests of the CUDA kernels; tests/cuda/run starts them, once for each kind of device.

They see a module `cupy` (the real one, or the stand-in over the emulator) and the whole of fusednn.
In a run of all other tests they are left out: there the extension has no device.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

MODE = os.environ.get("FUSEDNN_CUDA_TESTS", "")
EMULATED = MODE in ("fast", "strict")

if not MODE:
    collect_ignore_glob = ["test_*.py"]


def pytest_report_header() -> str:
    return f"CUDA kernels: {MODE}" if MODE else "CUDA kernels: not tested here, see tests/cuda/run"


@pytest.fixture(scope="session")
def xp() -> Any:
    """CuPy, or its stand-in."""
    import cupy

    return cupy


@pytest.fixture(params=[0, 1] if EMULATED else [0], ids="order{}".format)
def order(request: pytest.FixtureRequest) -> Iterator[int]:
    """Runs a test once with the emulator's threads and blocks in order, once at random."""
    seed = int(request.param)
    if EMULATED:
        from emulated import set_seed

        set_seed(seed)
    yield seed
    if EMULATED:
        set_seed(0)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """@pytest.mark.emulated and @pytest.mark.strict: left out where they cannot run. And this
    process's part of the tests, where tests/cuda/run deals them."""
    mine, count = map(int, os.environ.get("FUSEDNN_CUDA_DEAL", "0/1").split("/"))
    others = [item for number, item in enumerate(items) if number % count != mine]
    items[:] = items[mine::count]
    config.hook.pytest_deselected(items=others)
    for item in items:
        needed = {mark.name for mark in item.iter_markers()} & {"emulated", "strict"}
        if ("emulated" in needed and not EMULATED) or ("strict" in needed and MODE != "strict"):
            item.add_marker(pytest.mark.skip(reason=f"needs the emulator ({', '.join(needed)})"))
