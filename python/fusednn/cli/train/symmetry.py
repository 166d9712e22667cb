"""`python -m fusednn train symmetry`: what augmentation teaches, and what a layer guarantees."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import numpy as np

from .cnn import _first
from .options import add_options, recipe_text

if TYPE_CHECKING:
    from ..._tensor.tape import Array
    from ...data import ArrayDataset
    from .task import Task

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

RECIPES: dict[str, dict[str, Any]] = {
    "digits": {"epochs": 20, "batch_size": 64, "lr": 3e-3},
    "fashion-mnist": {"epochs": 2, "batch_size": 128, "lr": 2e-3},
}

_DESCRIPTION = """\
Trains five networks side by side on the same pictures, all upright, and tests them on pictures that
are upright, flipped left to right, and turned by 90, 180 and 270 degrees.

  plain      convolutions, as the pictures are
  augmented  the same network; pictures are flipped and turned at random while it learns
  mirror     mirror convolutions: no flip can change a score
  c4         convolutions on the quarter turns: no quarter turn can
  d4         on quarter turns and flips: neither can

The last column says for how many test pictures all eight of these images get the same answer. A
symmetry that the task has not costs accuracy: a turned 6 is a 9.

Exit status: 0 trained, 1 failed, 2 wrong arguments or missing data, 130 stopped by Ctrl-C.
"""
_EXAMPLES = """
examples:
  python -m fusednn train symmetry --data digits
"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """The arguments of `train symmetry`."""
    parser = subparsers.add_parser(
        "symmetry",
        help="plain, augmented and equivariant networks on flipped and turned pictures",
        description=_DESCRIPTION,
        epilog=recipe_text(RECIPES) + "\n" + _EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, list(RECIPES))
    return parser


def networks(size: int) -> dict[str, Any]:
    """The five networks, by name, of about the same number of weights (23 000 to 27 000)."""
    from ... import models, nn

    def plain() -> Any:
        layers: list[nn.Module] = []
        channels = 1
        for i, width in enumerate((16, 32, 64)):
            layers += [nn.MaxPool2d(2)] * bool(i)
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
            channels = width
        return nn.Sequential(*layers, nn.GlobalPool("max"), nn.Linear(channels, 10))

    return {
        "plain": plain(),
        "augmented": plain(),
        "mirror": models.MirrorCNN(size=size),
        "c4": models.RotationCNN(size=size, group="c4"),
        "d4": models.RotationCNN(size=size, group="d4", widths=(6, 12, 24)),
    }


def prepare(config: dict[str, Any]) -> Task:
    """Data, networks and optimiser of a run."""
    from ... import data, nn, optim, random
    from ... import functional as F
    from .task import Task, placed

    name = config["data"]
    reader = {"digits": data.digits, "fashion-mnist": data.fashion_mnist}[name]
    train, test = (_first(part, config["limit"]) for part in reader())
    model = nn.ModuleDict(networks(train.arrays[0].shape[-1]))
    loader = data.DataLoader(
        train, config["batch_size"], shuffle=True, seed=config["seed"], prefetch=2
    )

    def loss(batch: Any) -> Any:
        x, y = batch
        generator = random.next_generator()
        varied = data.augment.flips(x, random=generator)
        varied = data.augment.rotations(varied, random=generator)
        x, varied, y = placed(model, x, varied, y)
        total: Any = 0.0
        for kind, network in model.items():
            seen = varied if kind == "augmented" else x
            total = total + F.cross_entropy(network(seen), y)
        return total

    return Task(
        title=f"five networks on {name}: {len(train)} pictures to train, {len(test)} to validate",
        model=model,
        optimizer=optim.Adam(model.parameters(), lr=config["lr"]),
        loader=loader,
        loss=loss,
        validate=lambda: _validated(model, test),
        metric="accuracy",
        report=lambda: table(model, test),
    )


def _scores(network: Any, x: Array) -> Array:
    from .task import placed

    parts = (placed(network, x[i : i + 500]) for i in range(0, len(x), 500))
    return np.concatenate([network(*part).cpu().numpy() for part in parts])


def _validated(model: Any, test: ArrayDataset) -> dict[str, float]:
    """Losses added up, and accuracies on upright pictures; "accuracy" is their mean."""
    from ... import functional as F

    x, y = test.arrays
    loss, right = 0.0, {}
    for kind, network in model.items():
        scores = _scores(network, x)
        loss += float(F.cross_entropy(scores, y))
        right[kind] = float((scores.argmax(1) == y).mean())
    return {"loss": loss, "accuracy": float(np.mean(list(right.values()))), **right}


def table(model: Any, test: ArrayDataset) -> str:
    """Each network's accuracy on the transformed test pictures, and how often all images of a
    picture get one answer, as text."""
    from ...functional.symmetry import D4

    x, y = test.arrays
    head = ("upright", "flipped", "turned", "one answer")
    lines = ["test accuracy  " + "".join(f"{name:>12}" for name in head)]
    for kind, network in model.items():
        answers = np.stack(
            [_scores(network, np.ascontiguousarray(D4.act(x, g))).argmax(1) for g in range(8)]
        )
        right = (answers == y).mean(1)
        same = (answers == answers[0]).all(0).mean()
        values = (right[0], right[4], right[1:4].mean(), same)
        lines.append(f"{kind:15}" + "".join(f"{value:12.4f}" for value in values))
    return "\n".join(lines)
