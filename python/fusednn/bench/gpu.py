"""The same cases on a GPU: ours on CuPy's arrays, torch on its own, both timed by CUDA's events.

Arrays are moved there before the clock starts; what moving costs is measured apart.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import fusednn as fn
from fusednn.bench.ceilings import Ceilings
from fusednn.bench.measure import ROUNDS, Timing
from fusednn.bench.peers import Peers
from fusednn.bench.work import OURS, Call, Work, WrongAnswerError
from fusednn.testing.case_types import Arrays

TRANSFERS = 3  # of which the fastest counts
# Far larger than a GPU's caches; a product that keeps every multiprocessor busy.
COPY_BYTES = 1 << 30
PRODUCT_SIZE = 8192


@dataclass(frozen=True)
class Gpu:
    """A usable device. `torch` is PyTorch where its build has CUDA, else None."""

    cupy: Any
    torch: Any
    ceiling: Ceilings

    def describe(self) -> dict[str, Any]:
        return {"status": fn.cuda_status(), "ceilings": asdict(self.ceiling)}


@dataclass(frozen=True)
class Measured:
    """Of one implementation: seconds per call as the host sees them (waiting for each round's end),
    seconds between CUDA's events, and seconds to move the inputs there and the results back."""

    host: Timing
    kernel: Timing
    transfer: float | None
    error: float


def unavailable() -> str | None:
    """Why nothing can be timed on a GPU here; None if it can."""
    if not fn.has_cuda():
        return fn.cuda_status()
    try:
        import cupy  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
    except ImportError as error:
        return f"CuPy is missing ({error}); pip install 'fusednn[cuda]'"
    return None


def open_gpu(dtype: np.dtype[Any], others: Peers) -> Gpu:
    """Measures the device's ceilings; `unavailable` must have been None."""
    import cupy

    torch = others.torch if others.torch and others.torch.cuda.is_available() else None
    return Gpu(cupy, torch, measure_ceilings(cupy, dtype))


def measure_ceilings(cupy: Any, dtype: np.dtype[Any]) -> Ceilings:
    """A large copy and a large product of CuPy's, which is cuBLAS."""
    return Ceilings(_product_rate(cupy, dtype), {"DRAM": _copy_rate(cupy)}, {})


def _copy_rate(cupy: Any) -> float:
    """GB/s, read and written."""
    source = cupy.ones(COPY_BYTES // 2, "uint8")
    target = cupy.empty_like(source)

    def copy() -> None:
        target[...] = source

    return COPY_BYTES / min(_events(cupy, copy, 4) for _ in range(4)) / 1e9


def _product_rate(cupy: Any, dtype: np.dtype[Any]) -> float:
    """GFLOP/s"""
    a = cupy.ones((PRODUCT_SIZE, PRODUCT_SIZE), dtype)
    best = min(_events(cupy, lambda: cupy.matmul(a, a), 2) for _ in range(3))
    return 2 * PRODUCT_SIZE**3 / best / 1e9


def _events(cupy: Any, call: Callable[[], object], count: int) -> float:
    """Seconds per call on the device, in CuPy's stream. After one call that is not timed."""
    call()
    start, end = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, end)) / 1e3 / count


# ---- one case ------------------------------------------------------------------------------------


def measure(
    gpu: Gpu, work: Work, budget: float
) -> tuple[dict[str, Measured], list[str], dict[str, str]]:
    """What was measured, wrong answers, and what cannot run there with its own words for it."""
    calls, errors, complaints, unable = {}, {}, [], {}
    for name, build in _builders(gpu, work).items():
        try:
            call = build()
            errors[name] = work.check_call(f"{name} on cuda", call)
            calls[name] = call
        except WrongAnswerError as error:
            complaints.append(str(error))
        except Exception as error:
            unable[name] = str(error).splitlines()[0] if str(error) else type(error).__name__
    if OURS not in calls:
        return {}, complaints, unable
    timings = _alternate(gpu.cupy, calls, budget, ROUNDS)
    moved = _transfer(gpu.cupy, work.arrays, calls[OURS])
    found = {
        name: Measured(host, kernel, moved if name == OURS else None, errors[name])
        for name, (host, kernel) in timings.items()
    }
    return found, complaints, unable


def _builders(gpu: Gpu, work: Work) -> dict[str, Callable[[], Call]]:
    def ours() -> Call:
        if work.build_ours is None:
            raise NotImplementedError(f"cases of {work.case.op} are not timed on a GPU")
        return work.build_ours(moved(gpu.cupy, work.arrays))

    builders: dict[str, Callable[[], Call]] = {OURS: ours}
    if gpu.torch and "torch" in work.builders:
        builders["torch"] = lambda: _on_torch(gpu.torch, work.builders["torch"])
    return builders


def _on_torch(torch: Any, build: Callable[[], Call]) -> Call:
    with torch.device("cuda"):  # where torch then makes its tensors
        return build()


def moved(cupy: Any, arrays: Arrays) -> Arrays:
    return {name: cupy.asarray(array) for name, array in arrays.items()}


def _alternate(
    cupy: Any, calls: dict[str, Call], budget: float, rounds: int
) -> dict[str, tuple[Timing, Timing]]:
    """As measure.alternate, with the device's clock beside the host's."""
    repeats = {}
    for name, call in calls.items():
        once = max(_events(cupy, call.run, 1), 1e-6)
        repeats[name] = max(1, min(1000, int(budget / rounds / len(calls) / once)))
    host: dict[str, list[float]] = {name: [] for name in calls}
    kernel: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for _ in range(rounds):
        for name in order:
            run, count = calls[name].run, repeats[name]
            start, end = cupy.cuda.Event(), cupy.cuda.Event()
            before = time.perf_counter()
            start.record()
            for _ in range(count):
                run()
            end.record()
            end.synchronize()
            host[name].append((time.perf_counter() - before) / count)
            kernel[name].append(float(cupy.cuda.get_elapsed_time(start, end)) / 1e3 / count)
        order.append(order.pop(0))
    return {name: (Timing(tuple(host[name])), Timing(tuple(kernel[name]))) for name in calls}


def _transfer(cupy: Any, arrays: Arrays, call: Call) -> float:
    """Seconds to move every input there and every result back, through pageable memory."""
    result = call.run()
    times = []
    for _ in range(TRANSFERS):
        start = time.perf_counter()
        moved(cupy, arrays)
        call.arrays(result)
        times.append(time.perf_counter() - start)
    return min(times)
