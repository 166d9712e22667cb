"""Whole training steps: a network, a batch, AdamW; see `cases`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .case_types import Arrays, Direction, Shape

Network = Literal["lenet", "vgg", "charlstm", "gpt"]


@dataclass(frozen=True)
class TrainCase:
    """One step of training: zero the gradients, loss, backward, clip, AdamW.

    options: the keyword arguments of the network. products: (m, n, k) of every matrix product of a
    forward pass, a convolution being the product of its patches with its weights. parameters: how
    many there are.
    """

    name: str
    network: Network
    options: tuple[tuple[str, Any], ...]
    input: Shape
    classes: int
    products: tuple[tuple[int, int, int], ...]
    parameters: int

    op = "train"

    @property
    def tokens(self) -> bool:
        """The input is class numbers, each followed by the one to predict."""
        return self.network in ("charlstm", "gpt")

    @property
    def target(self) -> Shape:
        return self.input if self.tokens else self.input[:1]

    def flops(self, direction: Direction) -> int:
        """Forward, and twice that for the gradients of both factors of every product.

        Nobody asks for the gradient of an image: the first product has only its weights'.
        """
        work = [2 * m * n * k for m, n, k in self.products]
        return 3 * sum(work) - (0 if self.tokens else work[0])

    def bytes(self, direction: Direction, itemsize: int = 4) -> int:
        """Every product's input and output in three passes, and the parameters in AdamW.

        Its step reads weight, gradient and both averages, and writes weight and averages.
        """
        rows = sum(m * (n + k) for m, n, k in self.products)
        return itemsize * (3 * rows + (3 + 7) * self.parameters)

    def arrays(self, dtype: DTypeLike = np.float32, seed: int = 0) -> Arrays:
        """input (standard normal, or class numbers) and target (class numbers)."""
        rng = np.random.default_rng(seed)
        if self.tokens:
            given: NDArray[Any] = rng.integers(0, self.classes, self.input)
        else:
            given = rng.standard_normal(self.input).astype(dtype)
        return {"input": given, "target": rng.integers(0, self.classes, self.target)}


def lenet(
    batch: int, size: int = 28, widths: Sequence[int] = (32, 64), hidden: int = 512
) -> TrainCase:
    """LeNet with 5x5 kernels on size x size images.

    >>> lenet(64).name
    'train lenet b64'
    """
    products, channels, side = [], 1, size
    for width in widths:
        products.append((batch * side * side, width, channels * 25))
        channels, side = width, side // 2
    products.append((batch, hidden, channels * side * side))
    products.append((batch, 10, hidden))
    options = {"size": size, "widths": tuple(widths), "kernel_size": 5, "hidden": hidden}
    return TrainCase(
        f"train lenet b{batch}", "lenet", tuple(options.items()), (batch, 1, size, size), 10,
        tuple(products), sum((k + 1) * n for _, n, k in products),
    )  # fmt: skip


def vgg(batch: int, size: int = 32, widths: Sequence[int] = (64, 128, 256)) -> TrainCase:
    """Pairs of 3x3 convolutions with batch norm, each pair followed by 2x2 max-pooling.

    >>> vgg(32).name
    'train vggish b32'
    """
    products, channels, side = [], 3, size
    for width in widths:
        for _ in range(2):
            products.append((batch * side * side, width, channels * 9))
            channels = width
        side //= 2
    parameters = sum((k + 3) * n for _, n, k in products) + (channels + 1) * 10
    products.append((batch, 10, channels))
    options = {"plan": tuple((width, width) for width in widths)}
    return TrainCase(
        f"train vggish b{batch}", "vgg", tuple(options.items()), (batch, 3, size, size), 10,
        tuple(products), parameters,
    )  # fmt: skip


def charlstm(steps: int, batch: int, width: int = 128, layers: int = 2) -> TrainCase:
    """An embedding, LSTM layers and a linear layer over 65 characters.

    >>> charlstm(50, 50).name
    'train charlstm T50 B50'
    """
    rows, size = steps * batch, 65
    products = [(rows, 4 * width, 2 * width)] * layers + [(rows, size, width)]
    parameters = layers * 4 * width * (2 * width + 2) + (2 * width + 1) * size
    options = {
        "vocab_size": size, "hidden_size": width, "num_layers": layers, "embedding_dim": width
    }  # fmt: skip
    return TrainCase(
        f"train charlstm T{steps} B{batch}", "charlstm", tuple(options.items()), (batch, steps),
        size, tuple(products), parameters,
    )  # fmt: skip


def gpt(batch: int, steps: int, width: int, layers: int, heads: int) -> TrainCase:
    """A decoder-only Transformer over 65 characters; attention counts the allowed half.

    >>> gpt(12, 64, 128, 4, 4).name
    'train gpt B12 T64 d128'
    """
    rows, size = batch * steps, 65
    block = [(rows, 3 * width, width), (rows, width, steps), (rows, width, width)]
    block += [(rows, 4 * width, width), (rows, width, 4 * width)]
    parameters = layers * (12 * width + 13) * width + 2 * width + (2 * size + steps) * width
    options = {
        "vocab_size": size, "block_size": steps, "n_layer": layers, "n_head": heads, "n_embd": width
    }  # fmt: skip
    return TrainCase(
        f"train gpt B{batch} T{steps} d{width}", "gpt", tuple(options.items()), (batch, steps),
        size, (*block * layers, (rows, size, width)), parameters,
    )  # fmt: skip


TRAIN_BENCH = [
    lenet(64),
    vgg(32),
    charlstm(50, 50),
    gpt(12, 64, 128, 4, 4),
    gpt(4, 256, 384, 6, 6),
]

TRAIN_TEST = [
    lenet(3, 12, (4, 6), 16),
    vgg(2, 8, (4, 5, 6)),
    charlstm(5, 3, 8),
    gpt(2, 7, 12, 2, 3),
]
