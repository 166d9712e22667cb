"""Options that several commands have."""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path

_LARGEST = 1 << 31  # no count of anything here is larger


def positive(text: str) -> int:
    """An int of at least 1."""
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is below 1")
    if value > _LARGEST:
        raise argparse.ArgumentTypeError(f"{text[:20]} is above {_LARGEST}")
    return value


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None


def figure(text: str) -> Path:
    """The path of a picture to write."""
    path = Path(text)
    if path.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise argparse.ArgumentTypeError(f"{text} must end in .png, .pdf or .svg")
    return path


def printable(text: str) -> str:
    """Text that does nothing to a terminal but show itself, with line ends."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def add_threads(parser: argparse.ArgumentParser) -> None:
    """--threads N."""
    parser.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help="threads of the kernels (default: the CPUs this process may use, or "
        "FUSEDNN_NUM_THREADS); results are the same bits for any number",
    )


def add_seed(parser: argparse.ArgumentParser, default: int | None = 0) -> None:
    """--seed N; 0 if left out, or what a default of None stands for."""
    parser.add_argument(
        "--seed",
        type=_whole,
        default=default,
        metavar="N",
        help="seed of initial weights and shuffles; same seed, same bits (default: 0)",
    )


def use_threads(arguments: argparse.Namespace) -> None:
    """Applies --threads."""
    if arguments.threads is not None:
        from .. import _core

        _core.set_num_threads(arguments.threads)


def add_device(parser: argparse.ArgumentParser) -> None:
    """--device NAME."""
    parser.add_argument(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where the kernels run (default: cpu)",
    )


def use_device(arguments: argparse.Namespace) -> None:
    """ValueError unless --device is one that is here."""
    if arguments.device == "cpu":
        return
    from .. import _core

    if not _core.has_cuda():
        raise ValueError(f"--device {arguments.device}: {_core.cuda_status()}")
    if find_spec("cupy") is None:
        raise ValueError(f"--device {arguments.device} needs CuPy; pip install 'fusednn[cuda]'")
