"""What a network's file gives the loop, and where a run is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Task:
    """A network with its data.

    loss: the mean over a batch, to be made small; size: of how many things it is the mean (the
    samples, unless given). Both are given batches as the loader makes them, on the CPU. validate:
    numbers on held-out data, among them "loss" and `metric`, by
    which the best epoch is chosen; held_out: its batches, where others want them. sample: some
    lines to print after every epoch; report: of the trained model, at the end; drawing: what the
    picture shows below the learning curves, given an axes of matplotlib. about: what it takes to
    build the network again, kept in the checkpoint. The loop fills in scheduler and average.
    """

    title: str
    model: Any
    optimizer: Any
    loader: Any
    loss: Callable[[Any], Any]
    validate: Callable[[], dict[str, float]]
    metric: str
    higher_is_better: bool = True
    unit: str = ""
    size: Callable[[Any], int] = lambda batch: len(batch[0])
    sample: Callable[[], str] | None = None
    report: Callable[[], str] | None = None
    drawing: Callable[[Any], None] | None = None
    held_out: Any = None
    about: dict[str, Any] = field(default_factory=dict)
    scheduler: Any = None
    average: Any = None


def placed(model: Any, *arrays: Any) -> tuple[Any, ...]:
    """Arrays as Tensors where the model is; as they are for the CPU."""
    from ... import tensor

    device = next(model.parameters()).device
    return arrays if device == "cpu" else tuple(tensor(one, device=device) for one in arrays)


@dataclass
class Progress:
    """Where a run is; what of it is not in the parts goes into the checkpoint's metadata."""

    epoch: int  # done
    loss_sum: float  # of the epoch that runs
    samples: int
    history: list[dict[str, float]]
    best_epoch: int

    def metadata(self, config: dict[str, Any], about: dict[str, Any]) -> dict[str, Any]:
        return {"config": config, "progress": dict(vars(self)), "about": about}
