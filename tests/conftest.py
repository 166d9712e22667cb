"""What all tests share: every kernel test runs on each ISA build that this CPU can run."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

import fusednn as fn
from fusednn import _core

PEERS = ("torch", "onnxruntime", "onnx")


def pytest_report_header() -> list[str]:
    missing = [name for name in PEERS if importlib.util.find_spec(name) is None]
    peers = (
        f"not installed, comparisons with them are skipped: {', '.join(missing)} "
        "(pip install '.[peers]')"
        if missing
        else "all installed"
    )
    return [
        f"fusednn {fn.__version__}, ISA {fn.cpu_isa()} of {', '.join(_core.usable_isas())}, "
        f"{fn.get_num_threads()} threads; CUDA: {fn.cuda_status()}",
        f"peers: {peers}",
    ]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long runs are left out unless -m names them."""
    if config.option.markexpr:
        return
    long = [item for item in items if {"training", "slow"} & {m.name for m in item.iter_markers()}]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture(params=_core.usable_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Runs the test once on each ISA build."""
    with fn.testing.isa(request.param):
        yield request.param


@pytest.fixture(autouse=True)
def default_threads() -> Iterator[None]:
    """Tests may set the thread count; the next test finds the default again."""
    yield
    fn.set_num_threads(0)


@pytest.fixture(params=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)
