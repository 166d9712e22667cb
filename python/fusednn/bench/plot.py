"""A run as a picture: our speed over the best peer's, or the share of the ceiling, per case."""

import importlib.util
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fusednn.bench.records import Record, Run
from fusednn.bench.table import number
from fusednn.bench.work import OURS

# Okabe and Ito's blue and vermilion, which differ in lightness too.
_AHEAD, _BEHIND = "#0072B2", "#D55E00"


def check(path: Path) -> None:
    """ValueError, before anything is measured, if the picture could not be made."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--plot needs matplotlib: pip install 'fusednn[plot]'")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"--plot {path}: its folder does not exist")


def draw(path: Path, run: Run) -> None:
    """One bar per case and direction, in the order they ran; `run` holds at least one of ours."""
    from matplotlib.figure import Figure

    device = run.records[0].device  # one of them: bars of two would say the same names
    ours = [record for record in run.records if record.impl == OURS and record.device == device]
    compared = [record for record in ours if record.ratio_to_best_peer is not None]
    shown = compared or ours
    figure = Figure(figsize=(9, 1.4 + 0.24 * len(shown)), dpi=150, layout="constrained")
    axes = figure.subplots()
    if compared:
        ratios = [record.ratio_to_best_peer or math.nan for record in compared]
        _bars(
            axes,
            compared,
            ratios,
            [f"{ratio:.2f}x {r.best_peer}" for ratio, r in zip(ratios, compared, strict=True)],
            base=1,
        )
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}x")
        axes.axvline(1, color="#333333", linewidth=1)
        axes.set_xlim(min(0.5, min(ratios)) / 1.1, max(2.0, max(ratios)) * 1.9)
        axes.set_xlabel("speed over the best peer (logarithmic)")
    else:
        shares = [record.of_ceiling for record in shown]
        _bars(
            axes,
            shown,
            shares,
            [
                f"{share:.0%} {r.ceiling}, {number(r.median_us)} µs"
                for share, r in zip(shares, shown, strict=True)
            ],
            base=0,
        )
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        axes.set_xlim(0, max(1.0, *shares) * 1.3)
        axes.set_xlabel("share of what this machine can do at best")
    first = shown[0]
    threads = f"{first.threads} thread{'s' if first.threads > 1 else ''}"
    axes.set_title(f"{first.device}, {first.isa}, {threads}, {first.dtype}", fontsize="medium")
    figure.savefig(path)


def _bars(
    axes: Any, shown: Sequence[Record], values: Sequence[float], notes: list[str], base: float
) -> None:
    """Bars from `base` to each value, and beside them its note."""
    places = range(len(shown))
    ahead = [r.ratio_to_best_peer is None or r.ratio_to_best_peer >= 1 for r in shown]
    axes.barh(
        places,
        [value - base for value in values],
        left=base,
        color=[_AHEAD if it else _BEHIND for it in ahead],
        height=0.7,
    )
    axes.set_yticks(places, [f"{r.case} {r.direction}" for r in shown], fontsize="small")
    axes.set_ylim(len(shown) - 0.4, -0.6)
    for place, value, note in zip(places, values, notes, strict=True):
        axes.annotate(
            note,
            (value, place),
            (4, 0),
            textcoords="offset points",
            va="center",
            fontsize="x-small",
        )
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
