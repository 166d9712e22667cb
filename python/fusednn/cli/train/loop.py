"""The training loop: epochs with validation and checkpoints, resumable at any batch."""

from __future__ import annotations

import argparse
import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

from ..options import printable, use_device, use_threads
from .options import BEST, LAST, Refused, configuration, folder, resume_command
from .schedules import schedule
from .task import Progress, Task


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
    task.model.to(arguments.device)
    _equip(task, config)
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


def _equip(task: Task, config: dict[str, Any]) -> None:
    """Schedule and averages, as the options say."""
    from ... import optim

    updates = config["epochs"] * -(-len(task.loader) // config["accumulate"])
    task.scheduler = schedule(task.optimizer, config["schedule"], config["warmup"], updates)
    if config["ema"] is not None:
        task.average = optim.EMA(task.model.parameters(), config["ema"])


# ---- checkpoints ---------------------------------------------------------------------------------


def _parts(task: Task) -> dict[str, Any]:
    return {
        "model": task.model,
        "optimizer": task.optimizer,
        "scheduler": task.scheduler,
        "loader": task.loader,
        "average": task.average,
    }


def _save(out: Path, task: Task, progress: Progress, config: dict[str, Any]) -> None:
    from ...io import save_checkpoint

    save_checkpoint(out / LAST, **_parts(task), metadata=progress.metadata(config, task.about))


def _saved(path: Path) -> dict[str, Any]:
    from ...io import load_checkpoint

    try:
        return load_checkpoint(path, random=False)
    except (ValueError, OSError) as error:
        raise Refused(f"--resume: {error}") from None


def _resume(out: Path, task: Task) -> Progress:
    from ...io import load_checkpoint

    try:
        metadata = load_checkpoint(out / LAST, **_parts(task))
        if metadata["about"] != task.about:
            raise ValueError("it is of another network or vocabulary")
        saved = metadata["progress"]
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
            if not _epoch(task, progress, config, stopped, bar):
                if stopped:
                    return _stop(arguments, config, out, task, progress, stopped[0])
                print(
                    f"fusednn train {arguments.network}: the loss is not finite in epoch "
                    f"{progress.epoch + 1}; try a smaller --lr",
                    file=sys.stderr,
                )
                return 1
            is_best, text = _finish(out, task, progress)
            seconds = time.perf_counter() - begun
            _save(out, task, progress, config)
            row = _line(task, progress.history[-1], epochs)
            _say(bar, f"{row}  {seconds:.1f} s{'  best' * is_best}{text}")
            if stopped and progress.epoch < epochs:
                return _stop(arguments, config, out, task, progress, stopped[0])
    _report(arguments, out, task, progress, time.perf_counter() - start)
    if task.report is not None:
        from ... import no_grad

        task.model.eval()
        with no_grad():
            print(task.report())
    return 0


def _epoch(
    task: Task,
    progress: Progress,
    config: dict[str, Any],
    stopped: list[int],
    bar: Any,
) -> bool:
    """The rest of an epoch; False if it was stopped, or the loss is not finite."""
    task.model.train()
    batches = iter(task.loader)
    # No batch is taken that this update has no use for: the loader's place is saved with the run.
    while rest := len(batches):
        group = list(islice(batches, min(rest, config["accumulate"])))
        value = _update(task, progress, group, config["clip_grad_norm"])
        if not math.isfinite(value):
            return False
        if bar is not None:
            bar.set_description_str(f"epoch {progress.epoch + 1}", refresh=False)
            bar.set_postfix_str(f"loss {value:.4f}", refresh=False)
            bar.update(len(group))
        if stopped:
            return False
    next(batches, None)  # the loader's epoch ends
    return True


def _update(task: Task, progress: Progress, group: list[Any], limit: float | None) -> float:
    """One update by the mean loss of some batches; the last one's loss, or one not finite."""
    from ... import optim

    task.optimizer.zero_grad()
    sizes = [task.size(batch) for batch in group]
    for batch, size in zip(group, sizes, strict=True):
        loss = task.loss(batch)
        value: float = loss.item()
        if not math.isfinite(value):
            return value
        (loss if len(group) == 1 else loss * (size / sum(sizes))).backward()
        progress.loss_sum += value * size
        progress.samples += size
    if limit is not None:
        optim.clip_grad_norm_(task.model.parameters(), limit)
    task.optimizer.step()
    if task.average is not None:
        task.average.update()
    if task.scheduler is not None:
        task.scheduler.step()
    return value


def _finish(out: Path, task: Task, progress: Progress) -> tuple[bool, str]:
    """Validates and enters an epoch: whether it is the best so far, and what it has to show."""
    from ...io import save

    with task.average.averaged() if task.average is not None else nullcontext():
        is_best = _note(task, progress, _validated(task, progress))
        if is_best:
            save(task.model.state_dict(), out / BEST)
        return is_best, _sampled(task)


def _sampled(task: Task) -> str:
    """What the network has to show; the training's random numbers stay as they would be."""
    from ... import no_grad, random

    if task.sample is None:
        return ""
    state = random.get_state()
    try:
        with no_grad():
            lines = task.sample().splitlines()
    finally:
        random.set_state(state)
    return "".join(f"\n    | {printable(line)}" for line in lines)


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


def _line(task: Task, row: dict[str, float], epochs: int) -> str:
    known = ("epoch", "lr", "train_loss", "loss")
    rest = "".join(f"  {key} {value:.4f}" for key, value in row.items() if key not in known)
    unit = f" {task.unit}" * bool(task.unit)
    return (
        f"epoch {int(row['epoch']):{len(str(epochs))}}/{epochs}  loss {row['train_loss']:.4f}  "
        f"validation {row['loss']:.4f}{unit}{rest}"
    )


def _report(
    arguments: argparse.Namespace, out: Path, task: Task, progress: Progress, seconds: float
) -> None:
    last, best = progress.history[-1], progress.history[progress.best_epoch - 1]
    early = " (stopped early)" * _stale(arguments, progress)
    unit = f" {task.unit}" * bool(task.unit and task.metric == "loss")
    print(
        f"validation {task.metric} {last[task.metric]:.4f}{unit} after {progress.epoch} "
        f"epochs{early}, best {best[task.metric]:.4f} in epoch {progress.best_epoch}; "
        f"{seconds:.1f} s; weights in {out / BEST}"
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
