"""`python -m fusednn demo`: a small CNN learns to read real handwritten digits."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from .options import add_device, add_seed, add_threads, positive, use_device, use_threads

if TYPE_CHECKING:
    from .._tensor.tape import Array
    from ..nn import Module

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

TRAIN = 1437  # of the 1797 digits; the other 360 are the test set
GOAL = 0.98
BATCH = 64

_DESCRIPTION = """\
Trains a small convolutional network on the 1797 handwritten digits (8x8 pixels) that scikit-learn
brings along: conv 3x3-16, ReLU, max-pool, conv 3x3-32, ReLU, max-pool, linear; cross-entropy,
AdamW. The test set is always the same 360 digits. Prints the accuracy, the confusion matrix, what
ran, and each kernel beside the same maths in NumPy. Takes a few seconds.

Exit status: 0 if at least 98 % of the test digits were read, 1 if not, 2 without scikit-learn or
without the device.
"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """The arguments of `demo`."""
    parser = subparsers.add_parser(
        "demo",
        help="train a small CNN on real handwritten digits",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--epochs",
        type=positive,
        default=20,
        metavar="N",
        help="passes over the data (default: 20)",
    )
    parser.add_argument(
        "--no-table", action="store_true", help="leave the table of kernels against NumPy out"
    )
    add_threads(parser)
    add_seed(parser)
    add_device(parser)
    return parser


def digits() -> tuple[Array, Array, Array, Array]:
    """Images (N, 1, 8, 8) in [0, 1] and labels: train, then test. ImportError without sklearn."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    x = (images / 16).reshape(-1, 1, 8, 8).astype(np.float32)
    y = labels.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(x))
    train, test = order[:TRAIN], order[TRAIN:]
    return x[train], y[train], x[test], y[test]


def network() -> Module:
    """The CNN: (N, 1, 8, 8) -> (N, 10)."""
    from .. import nn

    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(128, 10),
    )


def _progress(total: int) -> Any:
    """A tqdm bar; None where tqdm is missing or nobody watches."""
    try:
        from tqdm import tqdm
    except ImportError:
        return None
    return tqdm(total=total, unit="batch", disable=None, leave=False)


def train(model: Module, x: Array, y: Array, epochs: int) -> float:
    """Trains in place; returns the last epoch's mean loss."""
    from .. import functional as F
    from .. import optim, random, tensor

    device = next(model.parameters()).device
    optimizer = optim.AdamW(model.parameters(), lr=3e-3)
    batches = -(-len(x) // BATCH)
    bar = _progress(epochs * batches)
    mean = float("nan")
    for epoch in range(epochs):
        order = random.next_generator().permutation(len(x))
        total = 0.0
        for start in range(0, len(x), BATCH):
            chosen = order[start : start + BATCH]
            optimizer.zero_grad()
            images, labels = tensor(x[chosen], device=device), tensor(y[chosen], device=device)
            loss = F.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total += loss.item() * len(chosen)
            if bar is not None:
                bar.update()
        mean = total / len(x)
        if bar is not None:
            bar.set_postfix(epoch=epoch + 1, loss=f"{mean:.4f}")
    if bar is not None:
        bar.close()
    return mean


def _matrix(truth: Array, guess: Array) -> str:
    counts = np.zeros((10, 10), int)
    np.add.at(counts, (truth, guess), 1)
    head = "      read as" + "".join(f"{digit:4}" for digit in range(10))
    rows = [
        f"{'digit' if digit == 0 else '':>11} {digit}"
        + "".join(f"{n:4}" if n else "   ." for n in row)
        for digit, row in enumerate(counts)
    ]
    return "\n".join([head, *rows])


def run(arguments: argparse.Namespace) -> int:
    """Trains, tests and reports."""
    from .. import _core, no_grad, random, tensor

    try:
        use_device(arguments)
    except ValueError as error:
        print(f"fusednn demo: {error}", file=sys.stderr)
        return 2
    try:
        x, y, test_x, test_y = digits()
    except ImportError:
        print(
            "fusednn demo: the digits come with scikit-learn; pip install 'fusednn[demo]'",
            file=sys.stderr,
        )
        return 2
    use_threads(arguments)
    random.manual_seed(arguments.seed)
    model = network().to(arguments.device)
    start = time.perf_counter()
    loss = train(model, x, y, arguments.epochs)
    seconds = time.perf_counter() - start
    model.eval()
    with no_grad():
        guess = model(tensor(test_x, device=arguments.device)).argmax(1).cpu().numpy()
    accuracy = float((guess == test_y).mean())
    print(
        f"read {accuracy:.4f} of {len(test_y)} test digits right after {arguments.epochs} epochs "
        f"of {len(x)} ({seconds:.1f} s, loss {loss:.4f})\n"
    )
    print(_matrix(test_y, guess))
    print(f"\nisa {_core.cpu_isa()}, threads {_core.get_num_threads()}, device {arguments.device}")
    if not arguments.no_table:
        from . import kernels

        print("\n" + kernels.table(kernels.measure()))
    return 0 if accuracy >= GOAL else 1
