"""Embeddings and rotations on the GPU, beside the CPU's."""

from __future__ import annotations

import numpy as np
import pytest
from compare import check

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


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotated", [0, 4])
def test_rotary(xp, dtype, interleaved, rotated):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 5, 6)).astype(dtype)
    cos, sin = F.rotary_angles(9, rotated or 6, dtype=dtype)
    ids = rng.integers(0, 9, (2, 5))
    for positions in (None, ids):
        for inverse in (False, True):
            check(
                xp,
                lambda a, c, s, p, i=inverse: _core.rotary(
                    a, c, s, p, interleaved, 0, rotated, i
                ),
                x, cos, sin, positions, units=8,
            )  # fmt: skip
