"""Embeddings and rotations on the GPU, beside the CPU's."""

from __future__ import annotations

import numpy as np
import pytest
from compare import between_vectors, check, close

import fusednn.functional as F
from fusednn import _core


@pytest.mark.parametrize("width", [0, 1, 4, 33])
@pytest.mark.parametrize("shape", [(), (5,), (3, 40), (0,)], ids=str)
def test_embedding(xp, dtype, width, shape):
    rng = np.random.default_rng(width)
    ids = rng.integers(0, 7, shape)
    table = rng.standard_normal((7, width)).astype(dtype)
    check(xp, F.embedding, ids, table, units=0)
    dy = rng.standard_normal((*shape, width)).astype(dtype)
    for padding, by_frequency in ((-1, False), (2, False), (-1, True)):
        # Sums of up to 120 rows, in the CPU's order.
        check(
            xp,
            lambda g, i, p=padding, f=by_frequency: _core.embedding_backward(g, i, 7, p, f),
            dy, ids, units=256,
        )  # fmt: skip


@pytest.mark.parametrize("kind", ["int32", "uint8", "int64"])
def test_ids_are_checked(xp, kind):
    table = xp.zeros((3, 2))
    assert F.embedding(xp.asarray(np.array([2, 0], kind)), table).shape == (2, 2)
    with pytest.raises(ValueError, match=r"embedding: input value 3 at index 1 is out of bounds"):
        F.embedding(xp.asarray(np.array([0, 3], kind)), table)
    with pytest.raises(ValueError, match="embedding: weight is on cuda:0, expected on the CPU"):
        F.embedding(np.array([0]), table)


def test_ids_of_many_blocks_are_checked(xp):
    """The first that is wrong is named, by place and value; ids are counted from 0."""
    ids = np.zeros(700, "int64")
    ids[[300, 301, 699]] = -7, 9, 5
    table = xp.zeros((3, 2))
    with pytest.raises(ValueError, match=r"embedding: input value -7 at index 300 is out of"):
        F.embedding(xp.asarray(ids), table)
    with pytest.raises(ValueError, match=r"embedding: input value 0 at index 0 is out of bounds"):
        F.embedding(xp.asarray(ids[:1]), xp.zeros((0, 2)))


def test_large_table(xp, dtype):
    """Several blocks for ids, rows and elements, and a first row of a last block."""
    rng = np.random.default_rng(1)
    ids = rng.integers(0, 256, 300)
    ids[:2] = 255, 0
    table = rng.standard_normal((256, 8)).astype(dtype)
    check(xp, F.embedding, ids, table, units=0)
    dy = rng.standard_normal((300, 8)).astype(dtype)
    for padding, by_frequency in ((255, False), (-1, True)):
        check(
            xp,
            lambda g, i, p=padding, f=by_frequency: _core.embedding_backward(g, i, 256, p, f),
            dy, ids, units=64,
        )  # fmt: skip
    np.testing.assert_array_equal(
        xp.asnumpy(F.embedding(xp.asarray(ids), between_vectors(xp, table))), table[ids]
    )
    got = _core.embedding_backward(between_vectors(xp, dy), xp.asarray(ids), 256, -1, False)
    expected = np.zeros((256, 8))
    np.add.at(expected, ids, dy)
    close(xp.asnumpy(got), expected, units=64)


def test_an_embedding_keeps_the_signs_of_zeros(xp, dtype):
    """A row that one place names has that place's gradient, bit for bit."""
    dy = np.array([[-0.0, 1.0], [-0.0, 0.0]], dtype)
    got = xp.asnumpy(_core.embedding_backward(xp.asarray(dy), xp.asarray([2, 0]), 3, -1, False))
    np.testing.assert_array_equal(np.signbit(got), [[1, 0], [0, 0], [1, 0]])


# Heads by axis, of even and odd width; side by side in the last axis, in several blocks.
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("shape", "heads", "rotated"),
    [((2, 3, 5, 6), 0, 0), ((2, 3, 5, 7), 0, 4), ((2, 150, 18), 3, 0), ((2, 5, 18), 3, 4)],
    ids=str,
)
def test_rotary(xp, dtype, interleaved, shape, heads, rotated):
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(dtype)
    length = shape[-2]
    cos, sin = F.rotary_angles(length + 4, rotated or 6, dtype=dtype)
    ids = rng.integers(0, length + 4, (2, length))
    for c, s, positions in ((cos, sin, None), (cos, sin, ids), (cos[ids], sin[ids], None)):
        for inverse in (False, True):
            check(
                xp,
                lambda a, c, s, p, i=inverse: _core.rotary(
                    a, c, s, p, interleaved, heads, rotated, i
                ),
                x, c, s, positions, units=8,
            )  # fmt: skip
