"""Learning curves as a picture."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .options import Refused

if TYPE_CHECKING:
    from .task import Progress, Task

# Okabe and Ito's blue and vermilion differ in lightness too; the marks tell them apart in grey.
_TRAIN: dict[str, Any] = {"color": "#0072B2", "marker": "o", "linestyle": "-"}
_VALIDATION: dict[str, Any] = {"color": "#D55E00", "marker": "s", "linestyle": "--"}


def check(path: Path, out: Path | None) -> None:
    """Refused, before any training, if the picture could not be made."""
    if importlib.util.find_spec("matplotlib") is None:
        raise Refused("--plot needs matplotlib: pip install 'fusednn[plot]'")
    parent = path.absolute().parent
    if not parent.is_dir() and (out is None or parent != out.absolute()):
        raise Refused(f"--plot {path}: its folder does not exist")


def draw(path: Path, task: Task, progress: Progress) -> None:
    """Losses on the left, the validation metric on the right, one mark per epoch; below them what
    the network draws of itself, if it does."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    rows = progress.history
    epochs = [row["epoch"] for row in rows]
    style: dict[str, Any] = {"linewidth": 1.8, "markersize": 5}
    if len(rows) > 40:
        style["markevery"] = len(rows) // 20
    rows_of_axes = 1 if task.drawing is None else 2
    figure = Figure(figsize=(9, 4 * rows_of_axes), dpi=150, layout="constrained")
    grid = figure.add_gridspec(rows_of_axes, 2)
    left, right = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[0, 1])
    if task.drawing is not None:
        task.drawing(figure.add_subplot(grid[1, :]))
    left.plot(epochs, [row["train_loss"] for row in rows], label="training", **_TRAIN, **style)
    left.plot(epochs, [row["loss"] for row in rows], label="validation", **_VALIDATION, **style)
    left.set_ylabel(f"loss ({task.unit or 'mean per sample'})")
    left.set_ylim(bottom=0)
    left.legend(frameon=False, handlelength=3.5)
    # The loss is on the left already: then the other number that validation gives, if there is one.
    known = ("epoch", "lr", "train_loss", "loss")
    others = [key for key in rows[-1] if key not in known]
    shown = others[0] if task.metric == "loss" and others else task.metric
    values = [row[shown] for row in rows]
    right.plot(epochs, values, label="validation", **_VALIDATION, **style)
    best = rows[progress.best_epoch - 1]
    right.axvline(best["epoch"], color="#666666", linewidth=1, linestyle=":")
    right.set_ylabel(f"validation {shown}")
    right.set_title(
        f"best {task.metric} {best[task.metric]:.4f} in epoch {progress.best_epoch}",
        fontsize="medium",
    )
    left.set_title(task.title.partition(":")[0], fontsize="medium")
    for axes in (left, right):
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.grid(color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
