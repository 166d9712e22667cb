"""Arguments that all networks share, and the folder a run lives in."""

from __future__ import annotations

import argparse
import math
import os
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..options import add_device, add_seed, add_threads, figure, positive

LAST, BEST = "last.safetensors", "best.safetensors"
_TAKEN_OVER = ("batch_size", "lr", "seed", "limit")  # what makes a run the run it is


class Refused(Exception):
    """Arguments that cannot be; the text is the one line that answers them."""


def _rate(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def add_options(parser: argparse.ArgumentParser, data: list[str]) -> None:
    """What every `train NETWORK` takes. Defaults come from the recipe of the data, or the run."""
    parser.add_argument("--data", choices=data, required=True, help="what it learns from")
    parser.add_argument("--epochs", type=positive, metavar="N", help="passes over the data")
    parser.add_argument("--batch-size", type=positive, metavar="N", help="samples in a batch")
    parser.add_argument("--lr", type=_rate, metavar="R", help="learning rate")
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
        values = ", ".join(f"{key.replace('_', '-')} {recipe[key]}" for key in ("epochs", *_SHOWN))
        lines.append(f"  {data:14} {values}")
    return "\n".join(lines)


_SHOWN = ("batch_size", "lr")


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
    config: dict[str, Any] = {"network": arguments.network, "data": arguments.data, "seed": 0}
    config |= {"limit": None, **recipe}
    if saved is not None:
        if not isinstance(saved, dict) or set(saved) != set(config) or not _sane(saved):
            raise Refused("--resume: the checkpoint is not one of this command")
        for name in ("network", "data"):
            if saved[name] != config[name]:
                raise Refused(f"--resume: the run is one of {saved[name]}, not of {config[name]}")
        for name in _TAKEN_OVER:
            given = getattr(arguments, name)
            if given is not None and given != saved[name]:
                raise Refused(
                    f"--{name.replace('_', '-')} {given}: the run that is resumed has {saved[name]}"
                )
        config = dict(saved)
    for name in ("epochs", *_TAKEN_OVER):
        given = getattr(arguments, name)
        if given is not None:
            config[name] = given
    return config


def _sane(saved: dict[str, Any]) -> bool:
    sizes = [saved["epochs"], saved["batch_size"], 1 if saved["limit"] is None else saved["limit"]]
    return (
        all(type(size) is int and 0 < size < 1 << 62 for size in sizes)
        and type(saved["seed"]) is int
        and isinstance(saved["lr"], (int, float))
        and 0 < saved["lr"] < math.inf
    )


def resume_command(arguments: argparse.Namespace, out: Path) -> str:
    """The command that goes on with this run."""
    words = ["python", "-m", "fusednn", "train", arguments.network, "--data", arguments.data]
    words += ["--out", str(out), "--resume"]
    for name in ("epochs", "early_stop", "plot", "threads"):
        value = getattr(arguments, name)
        if value is not None:
            words += [f"--{name.replace('_', '-')}", str(value)]
    return shlex.join(words)
