"""The table that a run prints, line by line as results come in."""

import math
from collections.abc import Sequence

from fusednn.bench.records import Record
from fusednn.bench.work import OURS


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def number(value: float) -> str:
    """Three digits that count, never in exponent form."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def rate(record: Record) -> str:
    if record.ceiling == "FMA":
        return f"{number(record.gflops)} GF/s"
    return f"{number(record.gbps)} GB/s"


class Table:
    """Columns: ours, then each peer's median, then the ratio to the best of them."""

    def __init__(self, names: Sequence[str], peers: Sequence[str]) -> None:
        self.width = max(map(len, names), default=4) + len(" bfloat16")
        self.peers = peers

    def heading(self) -> str:
        ours = f"{'median':>9} {'best':>9} {'rate':>10} {'of ceiling':>11} {'error':>8}"
        peers = "".join(f" {peer:>9}" for peer in self.peers)
        ratio = f"  {'vs best peer':>12}" if self.peers else ""
        return f"{'times in us':{self.width}} {ours}{peers}{ratio}".rstrip()

    def line(self, records: Sequence[Record]) -> str:
        """One case in one direction: our record and those of the peers."""
        by_impl = {record.impl: record for record in records}
        ours = by_impl[OURS]
        text = (
            f"{_label(ours):{self.width}} {number(ours.median_us):>9} "
            f"{number(ours.best_us):>9} {rate(ours):>10} "
            f"{f'{ours.of_ceiling:.0%} {ours.ceiling}':>11} {ours.max_rel_err:>8.0e}"
        )
        for peer in self.peers:
            median = number(by_impl[peer].median_us) if peer in by_impl else "-"
            text += f" {median:>9}"
        if ours.ratio_to_best_peer is not None:
            text += f"  {f'{ours.ratio_to_best_peer:.2f}x {ours.best_peer}':>12}"
        return text.rstrip()

    def gpu_line(self, records: Sequence[Record], on_cpu: Sequence[Record]) -> str:
        """The same case on a GPU, and how many times as fast as on the CPU beside it."""
        by_impl = {record.impl: record for record in records}
        ours = by_impl[OURS]
        kernel = ours.kernel_us or ours.median_us
        label = "  on cuda" if on_cpu else _label(ours)
        text = (
            f"{label:{self.width}} {number(ours.median_us):>9} {number(ours.best_us):>9} "
            f"{large_rate(ours):>10} {f'{ours.of_ceiling:.0%} {ours.ceiling}':>11} "
            f"{ours.max_rel_err:>8.0e}  {'' if on_cpu else 'on cuda: '}kernels {number(kernel)}"
        )
        if ours.transfer_us is not None:
            text += f", transfer {number(ours.transfer_us)}"
        if "torch" in by_impl:
            text += f", torch {number(by_impl['torch'].kernel_us or 0)}"
        if ours.ratio_to_best_peer is not None:
            text += f" ({ours.ratio_to_best_peer:.2f}x)"
        for record in on_cpu:
            if record.impl == OURS:
                text += f"; {number(record.median_us / ours.median_us)}x the CPU"
        return text


def _label(record: Record) -> str:
    return f"{record.case} {record.direction} {record.dtype}"


def large_rate(record: Record) -> str:
    """TFLOP/s where arithmetic limits."""
    if record.ceiling == "FMA":
        return f"{number(record.gflops / 1e3)} TF/s"
    return rate(record)


def summary(records: Sequence[Record]) -> str:
    """The geometric mean of our ratios and the worst of them, for each device."""
    devices = dict.fromkeys(record.device for record in records)
    parts = {device: _summary([r for r in records if r.device == device]) for device in devices}
    if len(parts) == 1:
        return next(iter(parts.values()))
    lines = [f"{device}: {text}" for device, text in parts.items()]
    ours = {(r.case, r.direction, r.device): r.median_us for r in records if r.impl == OURS}
    ratios = [
        ours[case, direction, "cpu"] / time
        for (case, direction, device), time in ours.items()
        if device == "cuda" and (case, direction, "cpu") in ours
    ]
    if ratios:
        lines.append(f"cuda is {geometric_mean(ratios):.2f}x the CPU ({len(ratios)} cases)")
    return "\n".join(lines)


def _summary(records: Sequence[Record]) -> str:
    ours = [r for r in records if r.impl == OURS and r.ratio_to_best_peer is not None]
    if not ours:
        return "No peer took part, so there is no ratio."
    ratios = [r.ratio_to_best_peer for r in ours if r.ratio_to_best_peer is not None]
    worst = min(ours, key=lambda r: r.ratio_to_best_peer or math.inf)
    return (
        f"{geometric_mean(ratios):.2f}x the best peer (geometric mean of {len(ratios)}); "
        f"worst {worst.ratio_to_best_peer:.2f}x: {worst.case} {worst.direction}"
    )
