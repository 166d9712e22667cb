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
from fusednn.bench.work import HALVES, OURS, Call, Work, WrongAnswerError, torch_half
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
    """A large copy and a large product of CuPy's, which is cuBLAS; of either 16-bit float in
    float16, whose rate is the same."""
    dtype = np.dtype(np.float16) if dtype.name in HALVES else dtype
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
    transfer = _transfer(gpu.cupy, _inputs(work), calls[OURS])
    found = {
        name: Measured(host, kernel, transfer if name == OURS else None, errors[name])
        for name, (host, kernel) in timings.items()
    }
    return found, complaints, unable


def _builders(gpu: Gpu, work: Work) -> dict[str, Callable[[], Call]]:
    def ours() -> Call:
        if work.build_ours is None:
            raise NotImplementedError(f"cases of {work.case.op} are not timed on a GPU")
        call = work.build_ours(moved(gpu.cupy, _inputs(work)))
        return _narrow(call, fn.autocast(work.dtype.name)) if _autocasts(work) else call

    def theirs() -> Call:
        call = _on_torch(gpu.torch, work)
        if not _autocasts(work):
            return call
        return _narrow(call, gpu.torch.autocast("cuda", getattr(gpu.torch, work.dtype.name)))

    builders: dict[str, Callable[[], Call]] = {OURS: ours}
    if gpu.torch and "torch" in work.builders:
        builders["torch"] = theirs
    return builders


def _autocasts(work: Work) -> bool:
    """Training steps keep float32 parameters, and have autocast do the rest."""
    return work.dtype.name in HALVES and work.case.op == "train"


def _narrow(call: Call, autocast: Callable[..., Any]) -> Call:
    return Call(autocast(call.run), autocast(call.arrays))


def _inputs(work: Work) -> Arrays:
    """In the dtype that is timed, where that is 16 bits."""
    if work.dtype.name not in HALVES or _autocasts(work):
        return work.arrays
    return {k: a.astype(work.dtype) if a.dtype.kind == "f" else a for k, a in work.arrays.items()}


def _on_torch(torch: Any, work: Work) -> Call:
    halves = work.dtype.name in HALVES and not _autocasts(work)
    token = torch_half.set(work.dtype.name if halves else None)
    try:
        with torch.device("cuda"):  # where torch then makes its tensors
            return work.builders["torch"]()
    finally:
        torch_half.reset(token)


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
