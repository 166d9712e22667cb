"""The training loop: epochs with validation and checkpoints, resumable at any batch."""

from __future__ import annotations

import argparse
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..options import use_device, use_threads
from .options import BEST, LAST, Refused, configuration, folder, resume_command


@dataclass
class Task:
    """What a network's file gives the loop.

    loss: of a batch, to be made small. validate: numbers on held-out data, among them "loss" and
    `metric`, by which the best epoch is chosen. report: what is printed of the trained model.
    """

    title: str
    model: Any
    optimizer: Any
    loader: Any
    loss: Callable[[Any], Any]
    validate: Callable[[], dict[str, float]]
    metric: str
    higher_is_better: bool = True
    scheduler: Any = None
    report: Callable[[], str] | None = None


@dataclass
class Progress:
    """Where a run is; what of it is not in the parts goes into the checkpoint's metadata."""

    epoch: int  # done
    loss_sum: float  # of the epoch that runs
    samples: int
    history: list[dict[str, float]]
    best_epoch: int

    def metadata(self, config: dict[str, Any]) -> dict[str, Any]:
        return {"config": config, "progress": dict(vars(self))}


def run(arguments: argparse.Namespace) -> int:
    """Trains as the arguments say; returns the exit status."""
    from ... import _core, random
    from ...data import MissingDataError

    try:
        use_device(arguments)
    except ValueError as error:
        raise Refused(str(error)) from None
    use_threads(arguments)
    if arguments.plot is not None:
        from . import plot

        plot.check(arguments.plot, arguments.out)
    recipe = arguments.recipes[arguments.data]
    saved = None
    if arguments.resume:
        out = folder(arguments)
        saved = _saved(out / LAST)
    config = configuration(arguments, recipe, None if saved is None else saved.get("config"))
    random.manual_seed(config["seed"])
    try:
        task = arguments.prepare(config)
    except MissingDataError as error:
        raise Refused(str(error)) from None
    if saved is None:
        out = folder(arguments)
        progress = Progress(0, 0.0, 0, [], 0)
        _save(out, task, progress, config)
    else:
        progress = _resume(out, task)
    size = sum(parameter.numel() for parameter in task.model.parameters())
    print(
        f"{task.title}; {size} parameters, seed {config['seed']}, "
        f"{_core.get_num_threads()} threads, {_core.cpu_isa()}; in {out}"
    )
    status = _train(arguments, config, out, task, progress)
    if arguments.plot is not None and progress.history:
        plot.draw(arguments.plot, task, progress)
        print(f"learning curves in {arguments.plot}")
    return status


# ---- checkpoints ---------------------------------------------------------------------------------


def _parts(task: Task) -> dict[str, Any]:
    return {
        "model": task.model,
        "optimizer": task.optimizer,
        "scheduler": task.scheduler,
        "loader": task.loader,
    }


def _save(out: Path, task: Task, progress: Progress, config: dict[str, Any]) -> None:
    from ...io import save_checkpoint

    save_checkpoint(out / LAST, **_parts(task), metadata=progress.metadata(config))


def _saved(path: Path) -> dict[str, Any]:
    from ...io import load_checkpoint

    try:
        return load_checkpoint(path, random=False)
    except (ValueError, OSError) as error:
        raise Refused(f"--resume: {error}") from None


def _resume(out: Path, task: Task) -> Progress:
    from ...io import load_checkpoint

    try:
        saved = load_checkpoint(out / LAST, **_parts(task))["progress"]
        history = [{key: float(value) for key, value in row.items()} for row in saved["history"]]
        progress = Progress(
            int(saved["epoch"]),
            float(saved["loss_sum"]),
            int(saved["samples"]),
            history,
            int(saved["best_epoch"]),
        )
        rows = all({"train_loss", "loss", "epoch", "lr", task.metric} <= set(r) for r in history)
        if not rows or len(history) != progress.epoch or not _has_best(progress):
            raise ValueError("its epochs are not those of a run")
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise Refused(f"--resume: {out / LAST} does not fit: {error}") from None
    return progress


def _has_best(progress: Progress) -> bool:
    return min(progress.epoch, 1) <= progress.best_epoch <= progress.epoch


# ---- epochs --------------------------------------------------------------------------------------


def _train(
    arguments: argparse.Namespace,
    config: dict[str, Any],
    out: Path,
    task: Task,
    progress: Progress,
) -> int:
    epochs = config["epochs"]
    start = time.perf_counter()
    with _signals() as stopped, _bar(task, progress, epochs) as bar:
        while progress.epoch < epochs and not _stale(arguments, progress):
            begun = time.perf_counter()
            if not _epoch(task, progress, stopped, bar):
                if stopped:
                    return _stop(arguments, config, out, task, progress, stopped[0])
                print(
                    f"fusednn train {arguments.network}: the loss is not finite in epoch "
                    f"{progress.epoch + 1}; try a smaller --lr",
                    file=sys.stderr,
                )
                return 1
            row = _validated(task, progress)
            seconds = time.perf_counter() - begun
            is_best = _note(task, progress, row)
            if is_best:
                from ...io import save

                save(task.model.state_dict(), out / BEST)
            _save(out, task, progress, config)
            _say(bar, f"{_line(row, epochs)}  {seconds:.1f} s{'  best' * is_best}")
            if stopped and progress.epoch < epochs:
                return _stop(arguments, config, out, task, progress, stopped[0])
    _report(arguments, out, task, progress, time.perf_counter() - start)
    if task.report is not None:
        from ... import no_grad

        task.model.eval()
        with no_grad():
            print(task.report())
    return 0


def _epoch(task: Task, progress: Progress, stopped: list[int], bar: Any) -> bool:
    """The rest of an epoch; False if it was stopped, or the loss is not finite."""
    task.model.train()
    for batch in task.loader:
        task.optimizer.zero_grad()
        loss = task.loss(batch)
        value = loss.item()
        if not math.isfinite(value):
            return False
        loss.backward()
        task.optimizer.step()
        if task.scheduler is not None:
            task.scheduler.step()
        samples = len(batch[0])
        progress.loss_sum += value * samples
        progress.samples += samples
        if bar is not None:
            bar.set_description_str(f"epoch {progress.epoch + 1}", refresh=False)
            bar.set_postfix_str(f"loss {value:.4f}", refresh=False)
            bar.update()
        if stopped:
            return False
    return True


def _validated(task: Task, progress: Progress) -> dict[str, float]:
    from ... import no_grad

    task.model.eval()
    with no_grad():
        numbers = task.validate()
    rates = [group["lr"] for group in task.optimizer.param_groups]
    mean = progress.loss_sum / max(progress.samples, 1)
    return {"epoch": progress.epoch + 1, "lr": rates[0], "train_loss": mean, **numbers}


def _note(task: Task, progress: Progress, row: dict[str, float]) -> bool:
    """Enters a finished epoch; True if it is the best so far."""
    progress.epoch += 1
    progress.loss_sum, progress.samples = 0.0, 0
    progress.history.append({key: float(value) for key, value in row.items()})
    sign = 1 if task.higher_is_better else -1
    best = progress.history[progress.best_epoch - 1] if progress.best_epoch else None
    if best is None or sign * row[task.metric] > sign * best[task.metric]:
        progress.best_epoch = progress.epoch
        return True
    return False


def _stale(arguments: argparse.Namespace, progress: Progress) -> bool:
    patience = arguments.early_stop
    return patience is not None and progress.epoch - progress.best_epoch >= patience


def _stop(
    arguments: argparse.Namespace,
    config: dict[str, Any],
    out: Path,
    task: Task,
    progress: Progress,
    number: int,
) -> int:
    _save(out, task, progress, config)
    print(
        f"stopped in epoch {progress.epoch + 1}; saved. Go on with\n"
        f"  {resume_command(arguments, out)}",
        file=sys.stderr,
    )
    return 128 + number


# ---- what it says --------------------------------------------------------------------------------


def _line(row: dict[str, float], epochs: int) -> str:
    known = ("epoch", "lr", "train_loss", "loss")
    rest = "".join(f"  {key} {value:.4f}" for key, value in row.items() if key not in known)
    return (
        f"epoch {int(row['epoch']):{len(str(epochs))}}/{epochs}  loss {row['train_loss']:.4f}  "
        f"validation {row['loss']:.4f}{rest}"
    )


def _report(
    arguments: argparse.Namespace, out: Path, task: Task, progress: Progress, seconds: float
) -> None:
    last, best = progress.history[-1], progress.history[progress.best_epoch - 1]
    early = " (stopped early)" * _stale(arguments, progress)
    print(
        f"validation {task.metric} {last[task.metric]:.4f} after {progress.epoch} epochs{early}, "
        f"best {best[task.metric]:.4f} in epoch {progress.best_epoch}; {seconds:.1f} s; weights in "
        f"{out / BEST}"
    )


def _say(bar: Any, text: str) -> None:
    if bar is None:
        print(text, flush=True)
    else:
        bar.write(text, file=sys.stdout)


@contextmanager
def _bar(task: Task, progress: Progress, epochs: int) -> Iterator[Any]:
    """A tqdm bar over all batches; None where tqdm is missing or nobody watches."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield None
        return
    total = epochs * len(task.loader)
    done = progress.epoch * len(task.loader) + task.loader.state_dict()["batch"]
    with tqdm(total=total, initial=done, unit="batch", disable=None, leave=False) as bar:
        yield None if bar.disable else bar


@contextmanager
def _signals() -> Iterator[list[int]]:
    """A list that SIGINT or SIGTERM is appended to: the loop looks at it between batches, where
    nothing is half done. A second Ctrl-C stops at once."""
    stopped: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield stopped
        return

    def note(number: int, frame: Any) -> None:
        if stopped and number == signal.SIGINT:
            raise KeyboardInterrupt
        stopped.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stopped
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
