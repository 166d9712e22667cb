"""Walks the cases: prepares, checks, times, and makes records of them."""

import datetime
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

import fusednn as fn
from fusednn._tensor.device import dtype_named
from fusednn.bench import (
    attention,
    ceilings,
    conv,
    function,
    gpu,
    machine,
    peers,
    pool,
    records,
    recurrent,
    table,
    train,
)
from fusednn.bench.measure import ROUNDS, Timing, alternate
from fusednn.bench.work import HALVES, OURS, Rounded, Work, WrongAnswerError
from fusednn.testing.case_types import Case, Direction
from fusednn.testing.cases import BENCH

PREPARE: dict[str, Callable[..., Work]] = {
    "conv": conv.prepare,
    "pool": pool.prepare,
    "attention": attention.prepare,
    "recurrent": recurrent.prepare,
    "function": function.prepare,
    "train": train.prepare,
}
# More than this many running processes before we start are somebody else's.
BUSY = 0.7
# What each op's cases are timed in.
DIRECTIONS: dict[str, tuple[Direction, ...]] = {
    **dict.fromkeys(PREPARE, ("fwd", "fwdbwd")),
    "train": ("step",),
}


@dataclass(frozen=True)
class Options:
    ops: Sequence[str] = tuple(PREPARE)
    cases: str = ""
    direction: str = "all"
    threads: int = 1
    peers: Sequence[str] = peers.PEERS
    dtype: str = "float32"
    budget: float = 1.2
    devices: Sequence[str] = ("cpu",)


def selected(options: Options) -> list[tuple[Case, Direction]]:
    """The cases of the chosen ops and directions whose name (with direction) matches."""
    return [
        (case, direction)
        for op in options.ops
        for direction in DIRECTIONS[op]
        if options.direction in (direction, "all")
        for case in BENCH[op]
        if re.search(options.cases, f"{case.name} {direction}")
    ]


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = fn.get_num_threads()
    with machine.only_cpus(count):
        fn.set_num_threads(count)
        try:
            yield
        finally:
            fn.set_num_threads(before)


def run(options: Options, say: Callable[[str], None] = print) -> tuple[records.Run, list[str]]:
    """Runs the selected cases; returns the results and what went wrong, case by case.

    An interrupt ends the run early and keeps what is done.
    """
    chosen = selected(options)
    dtype = _dtype(options)
    half = dtype.name in HALVES
    wide = np.dtype(np.float32) if half else dtype
    with _threads(options.threads):
        others = peers.load(options.peers, options.threads)
        ceiling = ceilings.measure(options.threads, wide, others)
        result = records.Run(_header(options, others, ceiling))
        for line in _introduction(result.header, others, ceiling, wide):
            say(line)
        card = _open_gpu(options, dtype, others, result, say)
        names = [f"{case.name} {direction}" for case, direction in chosen]
        lines = table.Table(names, [name for name in others.names if name in others])
        say(lines.heading())
        wrong = []
        try:
            for case, direction in chosen:
                given = Rounded(case, dtype) if half else case
                work = PREPARE[case.op](given, direction, wide, others)
                work.dtype = dtype
                found: list[records.Record] = []
                if "cpu" in options.devices:
                    found, complaints = _one(work, options, ceiling)
                    wrong += complaints
                    for name, reason in work.unable.items():
                        say(f"{name} cannot run {case.name} {direction}: {reason}")
                    for complaint in complaints:
                        say(f"WRONG: {complaint}")
                    if found:
                        result.records += found
                        say(lines.line(found))
                if card:
                    on_gpu, complaints = _on_gpu(work, options, card, say)
                    wrong += complaints
                    if on_gpu:
                        result.records += on_gpu
                        say(lines.gpu_line(on_gpu, found))
        except KeyboardInterrupt:
            wrong.append("interrupted")
    return result, wrong


def _dtype(options: Options) -> np.dtype[Any]:
    if options.dtype in HALVES and list(options.devices) != ["cuda"]:
        raise ValueError(
            f"--dtype {options.dtype}: 16-bit floats are computed on GPUs only, expected "
            "--device cuda"
        )
    try:
        found: np.dtype[Any] = dtype_named(options.dtype)
    except ImportError as error:
        raise ValueError(f"--dtype {options.dtype}: {error}") from None
    return found


def _one(
    work: Work, options: Options, ceiling: ceilings.Ceilings
) -> tuple[list[records.Record], list[str]]:
    """Checks every implementation and times those whose answer is right."""
    errors, complaints = {}, []
    for name in list(work.calls):
        try:
            errors[name] = work.check(name)
        except WrongAnswerError as error:
            complaints.append(str(error))
    if OURS not in errors:
        return [], complaints
    calls = {name: work.calls[name].run for name in errors}
    # Idle workers of some libraries spin for milliseconds; they must not spin in our round.
    pause = 0.005 if options.threads > 1 else 0.0
    timings = alternate(calls, options.budget, ROUNDS, pause)
    return _records(work, options, ceiling, timings, errors), complaints


def _open_gpu(
    options: Options,
    dtype: np.dtype[Any],
    others: peers.Peers,
    result: records.Run,
    say: Callable[[str], None],
) -> gpu.Gpu | None:
    """The GPU if one is asked for; says why its column stays empty, or what it can do."""
    if "cuda" not in options.devices:
        return None
    if reason := gpu.unavailable():
        if "cpu" not in options.devices:
            raise ValueError(f"nothing to time on: {reason}")
        say(f"NOTE: the cuda column stays empty: {reason}")
        result.header["cuda"] = {"status": reason}
        return None
    card = gpu.open_gpu(dtype, others)
    result.header["cuda"] = card.describe()
    say(
        f"{fn.cuda_status()}; measured ceilings: {card.ceiling.gflops / 1e3:.1f} TFLOP/s "
        f"{dtype.name} (matrix product), copy {card.ceiling.gbps['DRAM']:.0f} GB/s"
    )
    return card


def _on_gpu(
    work: Work, options: Options, card: gpu.Gpu, say: Callable[[str], None]
) -> tuple[list[records.Record], list[str]]:
    """Checks and times the case on the GPU."""
    where = f"{work.case.name} {work.direction}"
    measured, complaints, unable = gpu.measure(card, work, options.budget)
    for name, reason in unable.items():
        say(f"{name} cannot run {where} on cuda: {reason}")
    for complaint in complaints:
        say(f"WRONG: {complaint}")
    timings = {name: one.kernel for name, one in measured.items()}
    errors = {name: one.error for name, one in measured.items()}
    found = []
    for record in _records(work, options, card.ceiling, timings, errors, "cuda"):
        one = measured[record.impl]
        found.append(
            replace(
                record,
                median_us=one.host.median * 1e6,
                best_us=one.host.best * 1e6,
                spread=one.host.spread,
                kernel_us=one.kernel.median * 1e6,
                transfer_us=None if one.transfer is None else one.transfer * 1e6,
            )
        )
    return found, complaints


def _records(
    work: Work,
    options: Options,
    ceiling: ceilings.Ceilings,
    timings: dict[str, Timing],
    errors: dict[str, float],
    device: str = "cpu",
) -> list[records.Record]:
    """Rates, shares and ratios are those of the timings given."""
    case, direction = work.case, work.direction
    flops, moved = case.flops(direction), case.bytes(direction, work.dtype.itemsize)
    least, bound = ceiling.least_seconds(flops, moved)
    rivals = {name: timing.median for name, timing in timings.items() if name != OURS}
    best = min(rivals, key=lambda name: rivals[name]) if rivals else None
    found = []
    for name, timing in timings.items():
        against = best if name == OURS else None
        found.append(
            records.Record(
                op=case.op,
                case=case.name,
                direction=direction,
                dtype=work.dtype.name,
                device=device,
                isa=fn.cpu_isa(),
                threads=options.threads,
                impl=name,
                median_us=timing.median * 1e6,
                best_us=timing.best * 1e6,
                gflops=flops / timing.median / 1e9,
                gbps=moved / timing.median / 1e9,
                max_rel_err=errors[name],
                ratio_to_best_peer=rivals[against] / timing.median if against else None,
                best_peer=against,
                of_ceiling=least / timing.median,
                ceiling=bound,
                spread=timing.spread,
            )
        )
    return found


def _header(options: Options, others: peers.Peers, ceiling: ceilings.Ceilings) -> dict[str, Any]:
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine.describe(),
        "versions": {"fusednn": fn.__version__, "numpy": np.__version__, **others.versions},
        "isa": fn.cpu_isa(),
        "threads": options.threads,
        "load": machine.load(),
        "dtype": options.dtype,
        "budget_s": options.budget,
        "ceilings": asdict(ceiling),
        "argv": sys.argv[1:],
    }


def _introduction(
    header: dict[str, Any],
    others: peers.Peers,
    ceiling: ceilings.Ceilings,
    dtype: np.dtype[Any],
) -> Iterator[str]:
    bandwidths = ", ".join(f"{level} {value:.0f}" for level, value in ceiling.gbps.items())
    yield f"{header['machine']['cpu']}, {header['threads']} thread(s), ISA {header['isa']}"
    yield (
        f"measured ceilings: {ceiling.gflops:.0f} GFLOP/s {dtype.name} (matrix product); "
        f"copy GB/s: {bandwidths}"
    )
    yield ", ".join(f"{name} {version}" for name, version in header["versions"].items())
    if header["load"] > BUSY:
        busy = f"the machine is busy (load {header['load']})"
        yield f"NOTE: {busy}: trust ratios, not times or ceilings"
    for name, reason in others.missing.items():
        yield f"{name} takes no part: {reason}"
