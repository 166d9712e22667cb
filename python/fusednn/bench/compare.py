"""Two runs side by side: what became faster or slower by more than the noise."""

import math
from dataclasses import dataclass

from fusednn.bench.records import Record, Run
from fusednn.bench.table import geometric_mean, number
from fusednn.bench.work import OURS

# Two runs of the same build on a quiet machine differ by this much without any cause.
LEAST_NOISE = 0.02


@dataclass(frozen=True)
class Change:
    """One case in both runs. Ratios are A's time over B's: above 1, B is faster."""

    before: Record
    after: Record
    ratio: float
    # The same of the peers, which did not change: what the machine did between the runs.
    drift: float | None
    # The spreads of all medians that enter, as independent errors add up. The median of eight
    # rounds is uncertain by a third of its spread, so this is about three standard errors.
    noise: float

    @property
    def net(self) -> float:
        return self.ratio / (self.drift or 1.0)

    @property
    def verdict(self) -> str:
        if abs(math.log(self.net)) <= self.noise:
            return ""
        return "faster" if self.net > 1 else "slower"


def changes(a: Run, b: Run) -> list[Change]:
    """Our cases that both runs have, in A's order."""
    found = []
    after = b.of(OURS)
    peers = sorted({record.impl for record in a.records} - {OURS})
    for key, before in a.of(OURS).items():
        if key not in after:
            continue
        drifts, spreads = [], []
        for peer in peers:
            old, new = a.of(peer).get(key), b.of(peer).get(key)
            if old and new:
                drifts.append(old.median_us / new.median_us)
                spreads += [old.spread, new.spread]
        drift = geometric_mean(drifts) if drifts else None
        ratio = before.median_us / after[key].median_us
        spreads = [spread / len(drifts) for spread in spreads]  # the drift is their mean
        spreads += [before.spread, after[key].spread]
        noise = max(LEAST_NOISE, math.hypot(*spreads))
        found.append(Change(before, after[key], ratio, drift, noise))
    return found


def report(a: Run, b: Run, name_a: str, name_b: str) -> str:
    """The comparison as text; says so where the runs have nothing in common."""
    both = changes(a, b)
    if not both:
        return f"{name_a} and {name_b} have no case in common."
    width = max(len(f"{c.before.case} {c.before.direction}") for c in both)
    lines = [f"A = {name_a}, B = {name_b}; times in us, A/B above 1: B is faster"]
    for what, old, new in _differences(a, b):
        lines.append(f"  {what}: {old} -> {new}")
    lines.append(f"{'':{width}} {'A':>9} {'B':>9} {'A/B':>7} {'peers':>7} {'net':>7} {'noise':>7}")
    for c in both:
        drift = f"{c.drift:.2f}x" if c.drift else "-"
        lines.append(
            f"{f'{c.before.case} {c.before.direction}':{width}} {number(c.before.median_us):>9} "
            f"{number(c.after.median_us):>9} {c.ratio:>6.2f}x {drift:>7} {c.net:>6.2f}x "
            f"{f'{c.noise:.1%}':>7}  {c.verdict}".rstrip()
        )
    outside = [c for c in both if c.verdict]
    lines.append(
        f"{geometric_mean([c.net for c in both]):.2f}x over {len(both)} cases; outside the noise: "
        f"{sum(c.verdict == 'faster' for c in outside)} faster, "
        f"{sum(c.verdict == 'slower' for c in outside)} slower"
    )
    only = len(a.of(OURS)) - len(both), len(b.of(OURS)) - len(both)
    if any(only):
        lines.append(f"Left out: {only[0]} cases only in A, {only[1]} only in B.")
    return "\n".join(lines)


def _differences(a: Run, b: Run) -> list[tuple[str, object, object]]:
    """What the headers say differently of machine, versions and ISA."""
    found = []
    for part in ("machine", "versions"):
        old, new = a.header.get(part, {}), b.header.get(part, {})
        for name in sorted({*old, *new}):
            if old.get(name) != new.get(name):
                found.append((name, old.get(name), new.get(name)))
    if a.header.get("isa") != b.header.get("isa"):
        found.append(("isa", a.header.get("isa"), b.header.get("isa")))
    return found
