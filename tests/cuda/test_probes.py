"""Single instructions, bit for bit: the emulators and a GPU against what the PTX ISA says.

Where elements lie in the registers of a warp is written here as the ISA writes it, as functions of
lane and element; tests/cuda/emulator has it by register, and neither knows of the other. Numbers
are chosen so that every sum is exact, whatever its order.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from entries import call

ROOT = Path(__file__).resolve().parents[2]
LANE = np.arange(32)[:, None]
GROUP, THREAD = LANE // 4, LANE % 4


def probe(xp, name, words, per_lane):
    """The words (lane, i) that the probe writes."""
    out = xp.empty((32, per_lane), "uint32")
    call("test_probe", name, xp.asarray(np.ascontiguousarray(words, np.uint32)), out)
    return xp.asnumpy(out)


# ---- fragments: (row, column) of element i of a lane ---------------------------------------------


def low_or_high(condition, step):
    return np.where(condition, 0, step)


def accumulators():
    """C and D of m16n8: rows of a group, then those 8 below."""
    i = np.arange(4)
    return GROUP + low_or_high(i < 2, 8), THREAD * 2 + (i & 1)


def a_16bit():
    """A of m16n8k16: elements 0 to 7."""
    i = np.arange(8)
    upper = (i < 2) | ((i >= 4) & (i < 6))
    return GROUP + low_or_high(upper, 8), THREAD * 2 + (i & 1) + low_or_high(i < 4, 8)


def b_16bit():
    i = np.arange(4)
    return THREAD * 2 + (i & 1) + low_or_high(i < 2, 8), GROUP + 0 * i


def a_tf32():
    """A of m16n8k8."""
    i = np.arange(4)
    return GROUP + low_or_high(i % 2 == 0, 8), THREAD + low_or_high(i < 2, 4)


def b_tf32():
    i = np.arange(2)
    return THREAD + low_or_high(i == 0, 4), GROUP + 0 * i


def bits_of(values, dtype):
    """The values' 16 or 32 bits, packed into words, the first in the lower half."""
    if dtype == "bf16":  # small integers: nothing is rounded
        halves = (np.ascontiguousarray(values, "float32").view("uint32") >> 16).astype("uint16")
    else:
        halves = np.ascontiguousarray(values, dtype)
    return halves.view("uint32")


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("name", "dtype", "k", "a_at", "b_at"),
    [
        ("mma_bf16", "bf16", 16, a_16bit, b_16bit),
        ("mma_f16", "float16", 16, a_16bit, b_16bit),
        ("mma_tf32", "float32", 8, a_tf32, b_tf32),
    ],
    ids=["bf16", "f16", "tf32"],
)
def test_products(xp, name, dtype, k, a_at, b_at, seed):
    rng = np.random.default_rng(seed)
    a, b, c = (rng.integers(-8, 8, shape) for shape in ((16, k), (k, 8), (16, 8)))
    lanes = [bits_of(a[a_at()], dtype), bits_of(b[b_at()], dtype)]
    lanes.append(c[accumulators()].astype("float32").view("uint32"))
    got = probe(xp, name, np.concatenate(lanes, 1), 4).view("float32")
    np.testing.assert_array_equal(got, (a @ b + c)[accumulators()])


@pytest.mark.parametrize("seed", range(5))
def test_products_of_doubles(xp, seed):
    """m8n8k4: A and B have one element a lane."""
    rng = np.random.default_rng(seed)
    a, b, c = (rng.integers(-(2**20), 2**20, shape) for shape in ((8, 4), (4, 8), (8, 8)))
    at = GROUP, THREAD * 2 + np.arange(2)
    lanes = np.concatenate([a[GROUP, THREAD], b[THREAD, GROUP], c[at]], 1).astype("float64")
    got = probe(xp, "mma_f64", lanes.view("uint32"), 4).view("float64")
    np.testing.assert_array_equal(got, (a @ b + c)[at])


@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
def test_loads_of_matrices(xp, transposed):
    """Lanes 8 m to 8 m + 7 name the rows of matrix m; a lane gets two of its row lane / 4."""
    rows = np.random.default_rng(0).permutation(64)[:32]
    elements = (rows[:, None] * 8 + np.arange(8)).reshape(4, 8, 8)
    if transposed:
        elements = elements.transpose(0, 2, 1)
    pair = elements[:, GROUP, THREAD * 2 + np.arange(2)]
    expected = (pair[..., 0] | pair[..., 1] << 16).T
    name = "load_matrix_x4_transposed" if transposed else "load_matrix_x4"
    np.testing.assert_array_equal(probe(xp, name, rows, 4), expected)


# ---- asynchronous copies -------------------------------------------------------------------------


@pytest.mark.parametrize("whole", [False, True], ids=["partial", "whole"])
@pytest.mark.parametrize("size", [4, 8, 16])
def test_asynchronous_copies(xp, order, size, whole):
    """What lies behind the source's bytes is zero, and nothing beyond the copy is touched."""
    rng = np.random.default_rng(size)
    count = np.full(32, size) if whole else rng.permutation(32) % (size + 1)
    data = rng.integers(0, 256, (32, size), np.uint8)
    words = np.concatenate([count.astype("uint32"), data.view("uint32").ravel()])
    expected = np.full((32, 16), 255, np.uint8)
    expected[:, :size] = np.where(np.arange(size) < count[:, None], data, 0)
    got = probe(xp, f"copy_async_{size}", words, 4)
    np.testing.assert_array_equal(np.roll(got, 1, 0), expected.view("uint32"))


def test_groups_of_copies(xp, order):
    data = np.random.default_rng(0).integers(0, 2**32, (3, 32), np.uint32)
    np.testing.assert_array_equal(probe(xp, "copy_groups", data, 3).reshape(3, 32), data)


# ---- warp operations -----------------------------------------------------------------------------


def shuffled(x, source, width):
    """Values of the lanes `source`; a lane's own where that lies outside of its segment."""
    lane = np.arange(32)
    first = lane // width * width
    return x[np.where((source < first) | (source >= first + width), lane, source)]


def test_shuffles(xp, order):
    x = np.random.default_rng(0).integers(0, 2**32, 32, np.uint32)
    lane = np.arange(32)
    # Under `xor`, lanes of earlier segments may be read, those of later ones not.
    by_xor = np.where((lane ^ 6) >= lane // 4 * 4 + 4, lane, lane ^ 6)
    expected = [
        shuffled(x, lane - 3, 8),
        shuffled(x, lane + 5, 16),
        x[lane ^ 9],
        x[by_xor],
        x[lane // 16 * 16 + (lane * 7 + 3) % 16],
        shuffled(x, lane - 1, 32),
        lane ^ 5,
        x[lane ^ 5],
    ]
    np.testing.assert_array_equal(probe(xp, "shuffle", x, 8), np.stack(expected, 1))


@pytest.mark.parametrize("seed", range(3))
def test_votes_and_sums(xp, order, seed):
    x = np.random.default_rng(seed).integers(seed == 1, 2**32 >> (seed == 2), 32, np.uint32)
    bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
    signed = x.view("int32")
    everyone = [
        bits[x % 2 == 1].sum(),
        (x != 0).all(),
        (x > 0x7FFFFFFF).any(),
        None,
        x.sum(dtype=np.uint32),
        x.min(),
        x.max(),
        signed.min().view("uint32"),
        signed.max().view("uint32"),
        np.bitwise_and.reduce(x | np.uint32(0xF0F00000)),
        np.bitwise_or.reduce(x & np.uint32(0x0F0F0F0F)),
        np.bitwise_xor.reduce(x),
    ]
    matches = [bits[x % 5 == one % 5].sum() for one in x]
    expected = np.array([matches if one is None else [one] * 32 for one in everyone], np.uint32)
    np.testing.assert_array_equal(probe(xp, "vote", x, 12), expected.T)


def test_half_a_warp(xp, order):
    x = np.arange(32) ** 2
    expected = np.where(np.arange(32) < 16, x[:16].sum(), x)
    np.testing.assert_array_equal(probe(xp, "half_warp", x, 1).ravel(), expected)


# ---- numbers -------------------------------------------------------------------------------------


def round_mantissa(x, dropped, away):
    """float32 with `dropped` bits fewer; halves go away from zero, or to the even neighbour."""
    bits = x.view("uint32").astype("int64")
    half = 1 << (dropped - 1)
    if not away:
        half += (bits >> dropped & 1) - 1
    return ((bits + half) >> dropped << dropped).astype("uint32")


def test_rounding(xp):
    """Halves, their neighbours, numbers that carry into the next power, the largest, infinity."""
    rng = np.random.default_rng(0)
    special = [0x3F801000, 0x3F800FFF, 0x3F803000, 0x3F808000, 0x3F818000, 0x3F807FFF, 0x3FFFF000]
    special += [0x7F7FFFFF, 0x7F800000, 0x3FFFFFFF, 0, 0x00800000]
    x = np.array(special + [word | 1 << 31 for word in special], np.uint32).view("float32")
    x = np.concatenate([x, rng.standard_normal(32 - x.size, "float32")])
    got = probe(xp, "round", x.view("uint32"), 6)
    bf16 = round_mantissa(x, 16, away=False)
    with np.errstate(over="ignore"):
        f16 = x.astype("float16")
    infinite = np.isinf(x)
    expected_tf32 = np.where(infinite, x.view("uint32"), round_mantissa(x, 13, away=True))
    np.testing.assert_array_equal(got[:, 0], expected_tf32)
    np.testing.assert_array_equal(got[:, 1], bf16 >> 16)
    np.testing.assert_array_equal(got[:, 2], f16.view("uint16"))
    np.testing.assert_array_equal(got[:, 3], bf16)
    np.testing.assert_array_equal(got[:, 4], f16.astype("float32").view("uint32"))
    second = np.arange(32, dtype="float32").view("uint32")
    np.testing.assert_array_equal(got[:, 5], bf16 >> 16 | second)


def test_integers(xp):
    x = np.random.default_rng(0).integers(0, 2**32, 32, np.uint32) >> np.arange(32, dtype="uint32")
    x[:2] = 0, 2**31
    rows = []
    for one in map(int, x):
        lowest = (one & -one).bit_length()
        rows.append([one.bit_count(), 32 - one.bit_length(), lowest, one * 0x9E3779B9 >> 32])
    np.testing.assert_array_equal(probe(xp, "integer", x, 4), np.array(rows, np.uint32))


@pytest.mark.parametrize("seed", range(8))
def test_quotients_of_positions(xp, seed):
    rng = np.random.default_rng(seed)
    a = rng.integers(0, 2**62, 32) >> rng.integers(0, 60, 32)
    b = 1 + (rng.integers(0, 2**62, 32) >> rng.integers(2, 62, 32))
    a[:8] = (a[:8] // b[:8]) * b[:8]  # at a multiple, and one before
    a[:4] -= a[:4] > 0
    a[8:12] = 0, 2**62, 2**40, 2**32
    b[8:12] = 2**40, 1, 2**40 + 1, 2**32 - 1
    words = np.stack([a, b], 1).view(np.uint32).ravel()
    got = probe(xp, "quotient", words, 2).ravel().view(np.int64)
    np.testing.assert_array_equal(got, a // b)


def test_atomics(xp, order):
    x = np.random.default_rng(0).integers(0, 2**32, 32, np.uint32)
    bits = np.bitwise_or.reduce(np.uint32(1) << x % 32)
    expected = [x.sum(dtype=np.uint32), x.max(), x.min(), bits, 32] + [sum(range(32))] * 27
    np.testing.assert_array_equal(probe(xp, "atomic", x, 1).ravel(), expected)


# ---- nothing is left out -------------------------------------------------------------------------


def functions_of(path):
    text = re.sub(r"//.*", "", (ROOT / path).read_text())
    names = re.findall(r"^FUSEDNN_DEVICE [\w:]+ (\w+)\(", text, re.MULTILINE)
    return {*names, *re.findall(r"^FUSEDNN_MMA\((\w+)", text, re.MULTILINE)} - {"name"}


def test_every_instruction_is_probed():
    """A function of ptx.h has a twin in the emulator, and is used by a kernel of this folder."""
    names = functions_of("csrc/cuda/ptx.h")
    assert {"mma_tf32", "copy_async_wait", "grid_sync"} <= names
    names.remove("shared_address")  # not for kernels
    twins = (ROOT / "tests/cuda/emulator/ptx.h").read_text()
    used = "".join(path.read_text() for path in (ROOT / "tests/cuda/kernels").glob("*.cu"))
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\b", twins)] == []
    assert [name for name in sorted(names) if not re.search(rf"\b{name}\s*[(<]", used)] == []
