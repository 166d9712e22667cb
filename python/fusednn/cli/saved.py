"""Networks that `train` has saved, ready for use."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .train.options import BEST, LAST, Refused

if TYPE_CHECKING:
    from ..data import Tokenizer


@dataclass
class Saved:
    """A trained network in evaluation mode, and the tokens it reads; target: those that it writes,
    where they are others."""

    network: str
    data: str
    model: Any
    tokens: Tokenizer
    target: Tokenizer | None


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    """--checkpoint PATH."""
    parser.add_argument(
        "--checkpoint",
        type=Path,
        required=True,
        metavar="PATH",
        help="the folder of a run of `train` (its best epoch is taken), or one of the two files in "
        "it",
    )


def saved(path: Path, networks: tuple[str, ...], device: str = "cpu") -> Saved:
    """The network of a run, on the device; Refused, with one line, if it is none of these, or
    damaged."""
    from .. import data, models
    from ..io import load

    if not path.exists():
        raise Refused(f"--checkpoint {path}: there is no such file or folder")
    is_folder = path.is_dir()
    last = (path if is_folder else path.parent) / LAST
    weights = path / BEST if is_folder else path
    if is_folder and not weights.is_file():
        weights = last
    try:
        state = load(last)
        metadata = state["metadata"]
        config, about = metadata["config"], metadata["about"]
        network, name = str(config["network"]), str(config["data"])
        if network not in networks or "tokenizer" not in about:
            raise Refused(
                f"--checkpoint {path}: a {network} on {name}; expected one of "
                f"{', '.join(networks)} that reads text"
            )
        kind = {"gpt": models.GPT, "lstm": models.CharLSTM, "translate": models.Seq2SeqTransformer}
        model = kind[network](**about["model"])
        loaded = load(weights)
        model.load_state_dict(loaded.get("model", loaded))
        tokens = data.tokenizer(about["tokenizer"])
        target = data.tokenizer(about["target"]) if "target" in about else None
    except (OSError, ImportError, ValueError) as error:
        raise Refused(f"--checkpoint {path}: {error}") from None
    except (KeyError, TypeError, AttributeError):
        raise Refused(f"--checkpoint {path}: it is not of a run of `train`") from None
    return Saved(network, name, model.eval().to(device), tokens, target)


def encoded(run: Saved, option: str, text: str) -> Any:
    """The ids of a text; Refused if it has none, or characters that the network has never seen."""
    try:
        ids = run.tokens.encode(text)
    except ValueError as error:
        raise Refused(f"{option}: {error}") from None
    if not len(ids):
        raise Refused(f"{option}: there is no token in it")
    if run.target is not None and len(ids) > run.model.max_len:
        raise Refused(f"{option}: {len(ids)} tokens, expected at most {run.model.max_len}")
    return ids
