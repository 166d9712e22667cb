"""--schedule and --warmup."""

from __future__ import annotations

from typing import Any

from .options import Refused


def schedule(optimizer: Any, name: str, warmup: int, updates: int) -> Any:
    """The schedule of a run of so many updates, whose first `warmup` ones rise; None if it is
    constant. Refused for a cosine that would be all warm-up."""
    from ...optim import lr_scheduler as lrs

    if name == "inverse-sqrt":
        return lrs.InverseSqrtLR(optimizer, max(warmup, 1))
    if name == "cosine":
        if warmup >= updates:
            raise Refused(f"--warmup {warmup}: the run has {updates} updates in all")
        if warmup == 0:
            return lrs.CosineAnnealingLR(optimizer, updates)
        rise = lrs.LinearWarmup(optimizer, warmup)
        fall = lrs.CosineAnnealingLR(optimizer, updates - warmup)
        return lrs.SequentialLR(optimizer, [rise, fall], [warmup])
    return lrs.LinearWarmup(optimizer, warmup) if warmup else None
