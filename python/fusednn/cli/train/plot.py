"""Learning curves as a picture."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import Refused

if TYPE_CHECKING:
    from .loop import Progress, Task

# Okabe and Ito's blue and vermilion differ in lightness too; the marks tell them apart in grey.
_TRAIN = {"color": "#0072B2", "marker": "o", "linestyle": "-"}
_VALIDATION = {"color": "#D55E00", "marker": "s", "linestyle": "--"}


def check(path: Path, out: Path | None) -> None:
    """Refused, before any training, if the picture could not be made."""
    if importlib.util.find_spec("matplotlib") is None:
        raise Refused("--plot needs matplotlib: pip install 'fusednn[plot]'")
    parent = path.absolute().parent
    if not parent.is_dir() and (out is None or parent != out.absolute()):
        raise Refused(f"--plot {path}: its folder does not exist")


def draw(path: Path, task: Task, progress: Progress) -> None:
    """Losses on the left, the validation metric on the right, one mark per epoch."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    rows = progress.history
    epochs = [row["epoch"] for row in rows]
    style: dict[str, Any] = {"linewidth": 1.8, "markersize": 5}
    if len(rows) > 40:
        style["markevery"] = len(rows) // 20
    figure = Figure(figsize=(9, 4), dpi=150, layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(epochs, [row["train_loss"] for row in rows], label="training", **_TRAIN, **style)
    left.plot(epochs, [row["loss"] for row in rows], label="validation", **_VALIDATION, **style)
    left.set_ylabel("loss (mean per sample)")
    left.set_ylim(bottom=0)
    left.legend(frameon=False, handlelength=3.5)
    values = [row[task.metric] for row in rows]
    right.plot(epochs, values, label="validation", **_VALIDATION, **style)
    best = rows[progress.best_epoch - 1]
    right.axvline(best["epoch"], color="#666666", linewidth=1, linestyle=":")
    right.set_ylabel(f"validation {task.metric}")
    right.set_title(
        f"best {best[task.metric]:.4f} in epoch {progress.best_epoch}", fontsize="medium"
    )
    left.set_title(task.title.partition(":")[0], fontsize="medium")
    for axes in (left, right):
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
