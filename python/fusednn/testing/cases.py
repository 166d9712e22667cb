"""Named shapes, shared by the tests and the benchmark.

One dataclass per op. A case knows its name, its array shapes, how much arithmetic it is and how
many bytes it must move at least; it knows nothing of any library. `BENCH` holds the shapes that are
timed, `TEST` the small and odd ones that only the tests use.

A name leaves out what is usual: padding of (kernel - 1) // 2 and dilation 1.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .case_types import Arrays, Case, Direction, Shape
from .cases_attention import ATTENTION_BENCH, ATTENTION_TEST
from .cases_function import FUNCTION_BENCH, FUNCTION_TEST
from .cases_train import TRAIN_BENCH, TRAIN_TEST


def _normal(rng: np.random.Generator, shape: Shape, dtype: DTypeLike) -> NDArray[Any]:
    return rng.standard_normal(shape).astype(dtype)


def _per_axis(value: int | Sequence[int], axes: int) -> Shape:
    return (value,) * axes if isinstance(value, int) else tuple(value)


def _short(values: Shape) -> str:
    """One number where all axes agree: (3, 3) is "3", (3, 5) is "3x5"."""
    return "x".join(map(str, values[:1] if len(set(values)) == 1 else values))


def _window_name(kernel: Shape, stride: Shape, padding: Shape, dilation: Shape) -> str:
    name = f"k{_short(kernel)} s{_short(stride)}"
    if padding != tuple((k - 1) // 2 for k in kernel):
        name += f" p{_short(padding)}"
    if set(dilation) != {1}:
        name += f" d{_short(dilation)}"
    return name


@dataclass(frozen=True)
class ConvCase:
    """A convolution of any spatial rank; input is (N, C, spatial...)."""

    input: Shape
    out_channels: int
    kernel: Shape
    stride: Shape
    padding: Shape
    dilation: Shape
    groups: int

    op = "conv"

    @property
    def spatial(self) -> int:
        return len(self.kernel)

    @property
    def name(self) -> str:
        window = _window_name(self.kernel, self.stride, self.padding, self.dilation)
        shape = "x".join(map(str, self.input))
        return f"conv {shape} O{self.out_channels} {window} g{self.groups}"

    @property
    def weight(self) -> Shape:
        return (self.out_channels, self.input[1] // self.groups, *self.kernel)

    @property
    def output(self) -> Shape:
        axes = zip(
            self.input[2:], self.kernel, self.stride, self.padding, self.dilation, strict=True
        )
        sizes = ((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in axes)
        return (self.input[0], self.out_channels, *sizes)

    @property
    def window(self) -> dict[str, Any]:
        """The keyword arguments of a call."""
        return {
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "groups": self.groups,
        }

    def flops(self, direction: Direction) -> int:
        """A multiplication and an addition per tap, those in the padding too; backward is twice."""
        forward = 2 * math.prod(self.output) * math.prod(self.weight[1:])
        return forward if direction == "fwd" else 3 * forward

    def bytes(self, direction: Direction, itemsize: int = 4) -> int:
        """Every input read and every result written, once per pass."""
        x, w, y = math.prod(self.input), math.prod(self.weight), math.prod(self.output)
        elements = x + w + self.out_channels + y
        if direction == "fwdbwd":
            elements += y + 2 * x + 2 * w + self.out_channels
        return itemsize * elements

    def arrays(self, dtype: DTypeLike = np.float32, seed: int = 0) -> Arrays:
        """input, weight, bias, and grad (of the output), standard normal."""
        rng = np.random.default_rng(seed)
        shapes = {
            "input": self.input,
            "weight": self.weight,
            "bias": (self.out_channels,),
            "grad": self.output,
        }
        return {name: _normal(rng, shape, dtype) for name, shape in shapes.items()}


@dataclass(frozen=True)
class PoolCase:
    """A max pooling of any spatial rank; input is (N, C, spatial...)."""

    input: Shape
    kernel: Shape
    stride: Shape
    padding: Shape
    dilation: Shape
    ceil_mode: bool = False

    op = "pool"

    @property
    def spatial(self) -> int:
        return len(self.kernel)

    @property
    def name(self) -> str:
        window = _window_name(self.kernel, self.stride, self.padding, self.dilation)
        shape = "x".join(map(str, self.input))
        return f"maxpool {shape} {window}{' ceil' if self.ceil_mode else ''}"

    @property
    def output(self) -> Shape:
        sizes = []
        for n, k, s, p, d in zip(
            self.input[2:], self.kernel, self.stride, self.padding, self.dilation, strict=True
        ):
            span = n + 2 * p - d * (k - 1) - 1
            size = (-(-span // s) if self.ceil_mode else span // s) + 1
            # A last window that would start behind the input and its front padding is dropped.
            sizes.append(size - 1 if self.ceil_mode and (size - 1) * s >= n + p else size)
        return (*self.input[:2], *sizes)

    @property
    def window(self) -> dict[str, Any]:
        """The keyword arguments of a call."""
        return {
            "kernel_size": self.kernel,
            "stride": self.stride,
            "padding": self.padding,
            "dilation": self.dilation,
            "ceil_mode": self.ceil_mode,
        }

    def flops(self, direction: Direction) -> int:
        """None: pooling compares and moves."""
        return 0

    def bytes(self, direction: Direction, itemsize: int = 4) -> int:
        """Input read, output written; with backward also one byte per output for the winner."""
        x, y = math.prod(self.input), math.prod(self.output)
        forward = itemsize * (x + y)
        return forward if direction == "fwd" else 2 * forward + 2 * y

    def arrays(self, dtype: DTypeLike = np.float32, seed: int = 0) -> Arrays:
        """input and grad (of the output), standard normal."""
        rng = np.random.default_rng(seed)
        return {
            "input": _normal(rng, self.input, dtype),
            "grad": _normal(rng, self.output, dtype),
        }


@dataclass(frozen=True)
class RecurrentCase:
    """One LSTM layer over a whole sequence, time-major, from a state of zeros."""

    steps: int
    batch: int
    inputs: int
    hidden: int

    op = "recurrent"

    @property
    def name(self) -> str:
        return f"lstm T{self.steps} B{self.batch} I{self.inputs} H{self.hidden}"

    def flops(self, direction: Direction) -> int:
        """The products with both weights, at every step."""
        rows = self.steps * self.batch
        forward = 2 * rows * 4 * self.hidden * (self.inputs + self.hidden)
        return forward if direction == "fwd" else 3 * forward

    def bytes(self, direction: Direction, itemsize: int = 4) -> int:
        """Input, weights and output once; a backward reads them again and writes as much.

        What a step reads again, the recurrent weights, comes from a cache or not, as they fit.
        """
        rows, gates = self.steps * self.batch, 4 * self.hidden
        weights = gates * (self.inputs + self.hidden + 2)
        forward = itemsize * (rows * (self.inputs + self.hidden) + weights)
        return forward if direction == "fwd" else 3 * forward

    def arrays(self, dtype: DTypeLike = np.float32, seed: int = 0) -> Arrays:
        """input, the four weights, uniform as a layer starts, and grad (of the output)."""
        rng = np.random.default_rng(seed)
        gates, bound = 4 * self.hidden, self.hidden**-0.5
        weights = {
            "weight_ih": (gates, self.inputs),
            "weight_hh": (gates, self.hidden),
            "bias_ih": (gates,),
            "bias_hh": (gates,),
        }
        return {
            "input": _normal(rng, (self.steps, self.batch, self.inputs), dtype),
            **{name: rng.uniform(-bound, bound, s).astype(dtype) for name, s in weights.items()},
            "grad": _normal(rng, (self.steps, self.batch, self.hidden), dtype),
        }


@dataclass(frozen=True)
class GemmCase:
    """A matrix product (m, k) @ (k, n); a linear layer of n outputs on m rows."""

    m: int
    n: int
    k: int

    op = "gemm"

    @property
    def name(self) -> str:
        return f"gemm {self.m}x{self.n}x{self.k}"

    def flops(self, direction: Direction) -> int:
        forward = 2 * self.m * self.n * self.k
        return forward if direction == "fwd" else 3 * forward

    def bytes(self, direction: Direction, itemsize: int = 4) -> int:
        """Every matrix once per product it takes part in."""
        forward = self.m * self.k + self.k * self.n + self.m * self.n
        return itemsize * (forward if direction == "fwd" else 3 * forward)

    def arrays(self, dtype: DTypeLike = np.float32, seed: int = 0) -> Arrays:
        """a (m, k), b (k, n), and grad (of the product), standard normal."""
        rng = np.random.default_rng(seed)
        shapes = {"a": (self.m, self.k), "b": (self.k, self.n), "grad": (self.m, self.n)}
        return {name: _normal(rng, shape, dtype) for name, shape in shapes.items()}


def conv(
    input: Shape,
    out_channels: int,
    kernel: int | Shape,
    stride: int | Shape = 1,
    padding: int | Shape | None = None,
    dilation: int | Shape = 1,
    groups: int = 1,
) -> ConvCase:
    """A ConvCase; padding (kernel - 1) // 2 unless given.

    >>> conv((1, 3, 224, 224), 64, 7, stride=2).output
    (1, 64, 112, 112)
    """
    axes = len(input) - 2
    kernel = _per_axis(kernel, axes)
    pads = tuple((k - 1) // 2 for k in kernel) if padding is None else _per_axis(padding, axes)
    return ConvCase(
        input,
        out_channels,
        kernel,
        _per_axis(stride, axes),
        pads,
        _per_axis(dilation, axes),
        groups,
    )


def pool(
    input: Shape,
    kernel: int | Shape,
    stride: int | Shape,
    padding: int | Shape | None = None,
    dilation: int | Shape = 1,
    ceil_mode: bool = False,
) -> PoolCase:
    """A PoolCase; padding (kernel - 1) // 2 unless given.

    >>> pool((16, 64, 112, 112), 3, stride=2).name
    'maxpool 16x64x112x112 k3 s2'
    """
    axes = len(input) - 2
    kernel = _per_axis(kernel, axes)
    pads = tuple((k - 1) // 2 for k in kernel) if padding is None else _per_axis(padding, axes)
    return PoolCase(
        input, kernel, _per_axis(stride, axes), pads, _per_axis(dilation, axes), ceil_mode
    )


# ---- timed ---------------------------------------------------------------------------------------

CONV_BENCH = [
    # ResNet's stem and its 3x3 blocks, one image.
    conv((1, 3, 224, 224), 64, 7, stride=2),
    conv((1, 64, 56, 56), 64, 3),
    conv((1, 128, 28, 28), 128, 3),
    conv((1, 256, 14, 14), 256, 3),
    conv((1, 512, 7, 7), 512, 3),
    # Its bottleneck's 1x1 layers, wide to narrow and back.
    conv((1, 64, 56, 56), 256, 1),
    conv((1, 1024, 14, 14), 256, 1),
    # Training batches.
    conv((16, 64, 56, 56), 64, 3),
    conv((16, 256, 14, 14), 256, 3),
    # LeNet on digits.
    conv((64, 1, 28, 28), 32, 5),
    conv((64, 32, 14, 14), 64, 5),
    # Depthwise, as MobileNet.
    conv((1, 32, 112, 112), 32, 3, groups=32),
    conv((16, 144, 56, 56), 144, 3, groups=144),
    # Small enough that the call itself counts; and a strided training layer.
    conv((1, 8, 16, 16), 16, 3),
    conv((16, 128, 56, 56), 128, 3, stride=2),
]

POOL_BENCH = [
    pool((16, 64, 112, 112), 3, stride=2),
    pool((64, 32, 28, 28), 2, stride=2),
    pool((1, 64, 112, 112), 3, stride=2),
    pool((64, 16, 8, 8), 2, stride=2),
]

RECURRENT_BENCH = [
    # A step of a stream: the weights are read for one sequence.
    RecurrentCase(1, 1, 256, 256),
    # One sequence: the recurrent weights in L2, and in L3.
    RecurrentCase(100, 1, 128, 128),
    RecurrentCase(200, 1, 512, 512),
    # Training batches, up to weights as large as L3.
    RecurrentCase(50, 32, 128, 128),
    RecurrentCase(50, 64, 512, 512),
    RecurrentCase(25, 16, 512, 512),
    RecurrentCase(25, 16, 1024, 1024),
]

# ---- tested only ---------------------------------------------------------------------------------

CONV_TEST = [
    # Nothing: no image, no input channel, no output channel, an empty axis that padding fills.
    conv((0, 3, 5, 5), 4, 3),
    conv((2, 0, 5, 5), 4, 3),
    conv((2, 3, 5, 5), 0, 3),
    conv((1, 2, 0), 3, 3, padding=2),
    # One of everything; a kernel as large as the input; a kernel that only just fits the padding.
    conv((1, 1, 1, 1), 1, 1),
    conv((1, 1, 5, 4), 1, (5, 4), padding=0),
    conv((1, 2, 1, 1), 3, 3),
    conv((1, 1, 2, 2), 1, 5, padding=2),
    # Primes, mixed axes, strides that do not divide, dilation, padding beyond half the kernel.
    conv((2, 3, 11, 13), 5, 3),
    conv((3, 7, 13, 17), 5, 3, stride=2),
    conv((2, 5, 17, 11), 7, (3, 5), stride=(2, 3), padding=(0, 4), dilation=(2, 1)),
    conv((1, 2, 19, 23), 3, 3, stride=3, padding=5, dilation=4),
    conv((1, 3, 9, 9), 4, 2, stride=3, padding=0),
    conv((2, 4, 8, 6), 6, 1, stride=2),
    conv((2, 70, 9, 11), 33, 1),
    conv((3, 37, 16, 16), 40, 1),
    # Output widths around one and two vectors of every ISA, and around the tiles of the product.
    *(conv((1, 3, 3, width), 2, 3) for width in (3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33)),
    *(conv((1, 2, 6, 6), channels, 3) for channels in (13, 14, 15, 27, 28, 29)),
    # Few input channels, outputs of a vector and a part: rows are joined, in bands.
    conv((2, 1, 28, 28), 32, 5),
    conv((1, 3, 150, 24), 20, 5, padding=0),
    conv((1, 2, 40, 21), 9, (7, 3), padding=(0, 4), dilation=(3, 2)),
    conv((2, 6, 13, 5), 14, 3, groups=2),
    # Few output (and, backward, input) channels beside many on the other side, in bands.
    conv((2, 40, 9, 11), 13, (3, 5), padding=(2, 1), dilation=(1, 2)),
    conv((1, 12, 30, 34), 40, 3, padding=(0, 2)),
    conv((2, 60, 8, 7), 36, 3, groups=3),
    conv((1, 9, 70), 33, 4, padding=0),
    # Scratch rows dealt out by strides of 2 and 4, with the kernel shorter than the stride.
    conv((1, 6, 13, 75), 6, 5, stride=(2, 4), groups=6),
    conv((2, 5, 12, 37), 5, 3, stride=2, dilation=2, groups=5),
    conv((1, 3, 9, 131), 7, (2, 3), stride=(3, 4), padding=(1, 6)),
    conv((1, 2, 40), 3, 1, stride=4),
    # The weight gradient's units reach over several images; dilated taps of transposed pixels.
    conv((300, 5, 1, 1), 7, 3),
    conv((70, 3, 2, 3), 19, (1, 3)),
    conv((2, 32, 14, 18), 17, 3, padding=3, dilation=(2, 3)),
    # The weight gradient with channels in the lanes: blocks of one and two vectors, whole and not;
    # units of some rows, of one row, and of a part of a row.
    conv((2, 32, 18, 20), 9, 3),
    conv((1, 47, 9, 70), 15, (3, 5), stride=(1, 2), padding=(0, 2)),
    conv((3, 16, 7, 7), 4, 5),
    conv((1, 64, 3, 300), 8, 3, stride=(2, 1), groups=2),
    conv((2, 33, 15, 15), 65, 3),
    # It with a row of the kernel as one tap: pixels narrower than a vector, lanes of two blocks,
    # groups; and in volumes, where planes of the depth taps lie in the padding.
    conv((2, 6, 14, 14), 16, 5, padding=0),
    conv((1, 16, 9, 40), 30, 3, groups=2),
    conv((2, 4, 20, 21), 8, 8, stride=4, padding=0),
    conv((1, 11, 12, 30), 5, 3, padding=(0, 2)),
    conv((1, 20, 5, 6, 7), 9, 3),
    conv((2, 5, 6, 7, 8), 6, (3, 2, 3), stride=(2, 1, 2), padding=(2, 0, 1), dilation=(2, 1, 1)),
    # Winograd's tiles of 4 (and 2) outputs: full, one over, one short.
    *(conv((1, 16, size, size), 16, 3) for size in (4, 5, 7, 8, 9)),
    # Its long sums: panels of tiles over several rows and images, every padding, groups.
    conv((3, 17, 13, 22), 19, 3),
    conv((1, 16, 9, 70), 18, 3, padding=0),
    conv((1, 20, 11, 6), 16, 3, padding=2),
    conv((2, 16, 11, 9), 20, 5),
    conv((1, 18, 8, 35), 17, 5, padding=0),
    conv((2, 32, 10, 10), 34, 3, groups=2),
    # Groups: dense ones, depthwise, depthwise with several outputs a channel.
    conv((2, 6, 9, 9), 4, 3, groups=2),
    conv((1, 12, 7, 7), 18, 3, stride=2, groups=3),
    conv((2, 5, 11, 17), 5, 3, groups=5),
    conv((1, 4, 13, 13), 8, 5, stride=2, groups=4),
    conv((1, 3, 10, 10), 3, 3, dilation=2, groups=3),
    # One and three spatial axes.
    conv((2, 3, 17), 4, 3),
    conv((1, 2, 31), 5, 7, stride=2, padding=0, dilation=3),
    conv((4, 8, 1), 8, 1),
    conv((1, 6, 40), 6, 4, padding=0, groups=6),
    conv((1, 2, 5, 6, 7), 3, 3),
    conv((2, 2, 4, 3, 5), 2, (2, 1, 3), stride=(1, 2, 2), padding=(1, 0, 1), groups=2),
]

POOL_TEST = [
    pool((0, 3, 6, 6), 2, stride=2),
    pool((2, 0, 6, 6), 2, stride=2),
    pool((1, 1, 1, 1), 1, stride=1),
    pool((1, 1, 3, 3), 3, stride=1, padding=0),
    pool((2, 3, 11, 13), 3, stride=2),
    pool((2, 3, 11, 13), 2, stride=2),
    pool((1, 2, 7, 9), (2, 3), stride=(3, 1), padding=(1, 0), dilation=(1, 2)),
    pool((1, 1, 10, 10), 3, stride=1, padding=2, dilation=4),
    pool((1, 1, 5, 5), 2, stride=2, padding=1),
    pool((3, 5, 6, 7), 3, stride=5),
    # Output widths around one and two vectors of every ISA, for the two common windows.
    *(pool((1, 2, 4, 2 * width), 2, stride=2) for width in (1, 3, 4, 5, 8, 9, 15, 16, 17, 33)),
    *(pool((1, 2, 5, 2 * width), 3, stride=2) for width in (1, 3, 4, 5, 8, 9, 15, 16, 17, 33)),
    # Windows of more than 256 taps: the winner no longer fits into one byte.
    pool((1, 2, 20, 19), (17, 16), stride=1, padding=0),
    # The last window hangs over the edge, or is dropped for starting behind it.
    pool((1, 1, 6, 7), 1, stride=2, ceil_mode=True),
    pool((1, 1, 8, 10), 3, stride=4, padding=0, ceil_mode=True),
    pool((1, 1, 8, 8), 3, stride=2, ceil_mode=True),
    pool((2, 2, 5, 5), 2, stride=2, padding=1, ceil_mode=True),
    # One and three spatial axes.
    pool((2, 3, 17), 3, stride=2),
    pool((1, 1, 4), 4, stride=4, padding=0),
    pool((1, 2, 5, 6, 7), 2, stride=2),
    pool((1, 2, 5, 6, 7), 3, stride=(1, 2, 2)),
]

# Sizes around the register tiles (14 x 32 and 6 x 16) and beyond one cache block.
_EDGES = (0, 1, 5, 6, 7, 13, 14, 15, 16, 17, 31, 32, 33)
GEMM_TEST = [
    *(GemmCase(m, n, 7) for m, n in itertools.product(_EDGES, _EDGES)),
    *(GemmCase(5, 17, k) for k in (0, 1, 2, 31, 32, 33, 255, 256, 257, 513)),
    GemmCase(97, 131, 67),
    GemmCase(260, 70, 300),
    GemmCase(1, 1000, 64),
    GemmCase(1000, 1, 64),
]

# One of everything, nothing of something, and sizes around a vector's width.
RECURRENT_TEST = [
    RecurrentCase(0, 2, 3, 4),
    RecurrentCase(3, 0, 3, 4),
    RecurrentCase(3, 2, 0, 4),
    RecurrentCase(1, 1, 1, 1),
    RecurrentCase(4, 1, 5, 31),
    RecurrentCase(5, 7, 3, 33),
    RecurrentCase(3, 18, 17, 16),
]

BENCH: dict[str, Sequence[Case]] = {
    "conv": CONV_BENCH,
    "pool": POOL_BENCH,
    "attention": ATTENTION_BENCH,
    "recurrent": RECURRENT_BENCH,
    "function": FUNCTION_BENCH,
    "train": TRAIN_BENCH,
}
TEST: dict[str, Sequence[Case]] = {
    "conv": CONV_TEST,
    "pool": POOL_TEST,
    "gemm": GEMM_TEST,
    "attention": ATTENTION_TEST,
    "recurrent": RECURRENT_TEST,
    "function": FUNCTION_TEST,
    "train": TRAIN_TEST,
}
