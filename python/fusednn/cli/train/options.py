"""Arguments that all networks share, and the folder a run lives in."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..options import add_device, add_seed, add_threads, figure, positive

LAST, BEST = "last.safetensors", "best.safetensors"
SCHEDULES = ("constant", "cosine", "inverse-sqrt")
# What recipes need not say.
DEFAULTS: dict[str, Any] = {
    "seed": 0,
    "limit": None,
    "accumulate": 1,
    "clip_grad_norm": None,
    "ema": None,
    "schedule": "constant",
    "warmup": 0,
}


class Refused(Exception):
    """Arguments that cannot be; the text is the one line that answers them."""


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def rate(text: str) -> float:
    """A positive, finite number."""
    value = _number(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def fraction(text: str) -> float:
    """A number from 0 to below 1."""
    value = _number(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number in [0, 1)")
    return value


def _from_zero(text: str) -> int:
    return 0 if text.strip() == "0" else positive(text)


# Options that only some networks have: type, and what help says.
_EXTRA: dict[str, tuple[Callable[[str], Any], str, str]] = {
    "length": (positive, "N", "tokens in a window"),
    "layers": (positive, "N", "layers, one upon the other"),
    "width": (positive, "N", "size of a layer"),
    "heads": (positive, "N", "attention heads; the width must be a multiple of it"),
    "dropout": (fraction, "P", "probability of dropping a value"),
    "label_smoothing": (fraction, "P", "part of the target that goes to all tokens alike"),
    "vocabulary": (positive, "N", "number of byte pairs, with --tokens bpe"),
}


def add_options(
    parser: argparse.ArgumentParser, data: list[str], extra: Sequence[str] = ()
) -> None:
    """What every `train NETWORK` takes, and some of `_EXTRA`. Defaults come from the recipe of the
    data, or the run."""
    parser.add_argument("--data", choices=data, required=True, help="what it learns from")
    parser.add_argument("--epochs", type=positive, metavar="N", help="passes over the data")
    parser.add_argument("--batch-size", type=positive, metavar="N", help="samples in a batch")
    parser.add_argument("--lr", type=rate, metavar="R", help="learning rate")
    for name in extra:
        kind, metavar, text = _EXTRA[name]
        parser.add_argument(f"--{name.replace('_', '-')}", type=kind, metavar=metavar, help=text)
    parser.add_argument(
        "--schedule", choices=SCHEDULES, help="how the learning rate goes on after the warm-up"
    )
    parser.add_argument(
        "--warmup", type=_from_zero, metavar="N", help="updates in which the learning rate rises"
    )
    parser.add_argument(
        "--accumulate", type=positive, metavar="N", help="batches whose gradients make one update"
    )
    parser.add_argument(
        "--clip-grad-norm", type=rate, metavar="R", help="largest norm of all gradients together"
    )
    parser.add_argument(
        "--ema",
        type=fraction,
        metavar="D",
        help="validate, and keep as the best, an average of the weights that decays by D an update",
    )
    parser.add_argument(
        "--limit", type=positive, metavar="N", help="use N samples alone, for a quick try"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="the run's folder (default: a new one in runs/)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="go on with the run in --out (default: the newest one of this data in runs/); "
        "--epochs may be raised",
    )
    parser.add_argument(
        "--early-stop",
        type=positive,
        metavar="N",
        help="stop when N epochs in a row were no better than the best one",
    )
    parser.add_argument(
        "--plot",
        type=figure,
        metavar="F.png",
        help="draw the learning curves there (needs matplotlib)",
    )
    add_threads(parser)
    add_seed(parser, default=None)
    add_device(parser)


def recipe_text(recipes: Mapping[str, Mapping[str, Any]]) -> str:
    """The defaults per data set, for --help."""
    lines = ["defaults:"]
    for data, recipe in recipes.items():
        values = ", ".join(f"{key.replace('_', '-')} {value}" for key, value in recipe.items())
        lines += textwrap.wrap(f"{data:14} {values}", 98, subsequent_indent=" " * 15)
    return "\n  ".join(lines)


# ---- the run's folder ----------------------------------------------------------------------------


def folder(arguments: argparse.Namespace) -> Path:
    """The folder of this run, made if it is new; Refused if there is nothing to resume in it, or
    something that would be lost."""
    if arguments.out is None:
        name = f"{arguments.network}-{arguments.data}"
        if not arguments.resume:
            return _new_folder(Path("runs"), name)
        found = [p.parent for p in Path("runs").glob(f"{name}*/{LAST}") if _is_run(p, name)]
        if not found:
            raise Refused(f"--resume: there is no run of {arguments.data} in runs/")
        return max(found, key=lambda path: (path / LAST).stat().st_mtime)
    out = Path(arguments.out)
    last = out / LAST
    if arguments.resume:
        if not last.is_file():
            raise Refused(f"--resume: there is no {last}")
        return out
    if last.exists():
        raise Refused(f"{last} is of an earlier run; go on with it (--resume) or choose another")
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Refused(f"--out {out}: {error.strerror}") from None
    if not os.access(out, os.W_OK):
        raise Refused(f"--out {out}: it is not writable")
    return out


def _is_run(path: Path, name: str) -> bool:
    number = path.parent.name[len(name) :]
    return not number or (number[0] == "-" and number[1:].isdigit())


def _new_folder(parent: Path, name: str) -> Path:
    number = 1
    while True:
        out = parent / (name if number == 1 else f"{name}-{number}")
        try:
            out.mkdir(parents=True)
            return out
        except FileExistsError:
            number += 1
        except OSError as error:
            raise Refused(f"{out}: {error.strerror} (choose a folder with --out)") from None


def configuration(
    arguments: argparse.Namespace, recipe: Mapping[str, Any], saved: Any
) -> dict[str, Any]:
    """The run's numbers: of the arguments, else of the run that is resumed, else of the recipe.

    Refused if arguments contradict the run: its result would be neither the one nor the other.
    """
    config: dict[str, Any] = {"network": arguments.network, "data": arguments.data}
    config |= {**DEFAULTS, **recipe}
    # What makes a run the run it is; epochs may be raised.
    names = [name for name in config if name not in ("network", "data", "epochs")]
    if saved is not None:
        if not isinstance(saved, dict) or set(saved) != set(config) or not _sane(saved):
            raise Refused("--resume: the checkpoint is not one of this command")
        for name in ("network", "data"):
            if saved[name] != config[name]:
                raise Refused(f"--resume: the run is one of {saved[name]}, not of {config[name]}")
        for name in names:
            given = getattr(arguments, name, None)
            if given is not None and given != saved[name]:
                raise Refused(
                    f"--{name.replace('_', '-')} {given}: the run that is resumed has {saved[name]}"
                )
        epochs = arguments.epochs
        if saved["schedule"] == "cosine" and epochs not in (None, saved["epochs"]):
            raise Refused(
                f"--epochs {epochs}: the cosine of the run that is resumed ends with epoch "
                f"{saved['epochs']}"
            )
        config = dict(saved)
    for name in ("epochs", *names):
        given = getattr(arguments, name, None)
        if given is not None:
            config[name] = given
    return config


_COUNTS = ("epochs", "batch_size", "accumulate", "length", "layers", "width", "heads", "vocabulary")


def _sane(saved: dict[str, Any]) -> bool:
    """Whether a checkpoint's numbers are of the kinds that the options are."""
    fits = type(saved["seed"]) is int and saved["schedule"] in SCHEDULES
    for name in _COUNTS:
        fits = fits and (name not in saved or _is_count(saved[name], 1))
    fits = fits and _is_count(saved["warmup"], 0)
    fits = fits and (saved["limit"] is None or _is_count(saved["limit"], 1))
    fits = fits and _is_between(saved["lr"], math.inf)
    fits = fits and _is_between(saved["clip_grad_norm"] or 1.0, math.inf)
    for name in ("ema", "dropout", "label_smoothing"):
        fits = fits and _is_between(saved.get(name) or 0.5, 1)
    return fits


def _is_count(value: Any, low: int) -> bool:
    return type(value) is int and low <= value < 1 << 62


def _is_between(value: Any, high: float) -> bool:
    return type(value) in (int, float) and 0 < value < high


def resume_command(arguments: argparse.Namespace, out: Path) -> str:
    """The command that goes on with this run."""
    words = ["python", "-m", "fusednn", "train", arguments.network, "--data", arguments.data]
    words += ["--out", str(out), "--resume"]
    for name in ("epochs", "early_stop", "plot", "threads"):
        value = getattr(arguments, name)
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)
