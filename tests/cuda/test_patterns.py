"""Whole kernels of tests/cuda/kernels: what csrc/cuda is made of, and what mutate.py breaks."""

from __future__ import annotations

import numpy as np
import pytest
from entries import call


@pytest.mark.parametrize(
    "shape", [(64, 64, 32), (64, 64, 128), (100, 68, 76), (1, 4, 4), (130, 132, 100)], ids=str
)
def test_gemm_tf32(xp, order, shape):
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = rng.integers(-8, 9, (m, k)), rng.integers(-8, 9, (k, n))
    c = xp.empty((m, n), "float32")
    call("test_gemm_tf32", xp.asarray(a.astype("f")), xp.asarray(b.astype("f")), c, m, n, k)
    np.testing.assert_array_equal(xp.asnumpy(c), a @ b)


def test_gemm_rounds_to_tf32(xp):
    m, n, k = 64, 64, 64
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((m, k), "float32"), rng.standard_normal((k, n), "float32")
    c = xp.empty((m, n), "float32")
    call("test_gemm_tf32", xp.asarray(a), xp.asarray(b), c, m, n, k)
    exact = a.astype("float64") @ b
    error = np.abs(xp.asnumpy(c) - exact).max()
    assert 1e-5 < error < 2e-3 * np.sqrt(k)  # ten bits, neither less nor more


def test_a_number_stays_in_its_row(xp):
    """NaN in one row of A: what is filled in for rows beyond the edge must not be that row."""
    m, n, k = 3, 4, 36
    a, b = np.ones((m, k), "float32"), np.ones((k, n), "float32")
    a[0, 0] = np.nan
    c = xp.empty((m, n), "float32")
    call("test_gemm_tf32", xp.asarray(a), xp.asarray(b), c, m, n, k)
    np.testing.assert_array_equal(np.isnan(xp.asnumpy(c)).all(1), [True, False, False])


@pytest.mark.parametrize(
    "shape", [(32, 64, 32), (32, 64, 160), (50, 72, 80), (1, 8, 8), (65, 136, 104)], ids=str
)
def test_gemm_bf16(xp, order, shape):
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, b = rng.integers(-8, 9, (m, k)), rng.integers(-8, 9, (k, n))
    words = [(one.astype("float32").view("uint32") >> 16).astype("uint16") for one in (a, b)]
    c = xp.empty((m, n), "float32")
    call("test_gemm_bf16", *map(xp.asarray, words), c, m, n, k)
    np.testing.assert_array_equal(xp.asnumpy(c), a @ b)


@pytest.mark.parametrize("shape", [(3, 1000), (2, 17), (1, 1), (2, 129)], ids=str)
def test_softmax(xp, order, shape):
    x = np.random.default_rng(0).standard_normal(shape).astype("float32") * 4
    y = xp.empty(shape, "float32")
    call("test_softmax", xp.asarray(x), y, *shape)
    e = np.exp(x.astype("float64") - x.max(1, keepdims=True))
    np.testing.assert_allclose(xp.asnumpy(y), e / e.sum(1, keepdims=True), atol=1e-6)


@pytest.mark.parametrize("n", [1, 32, 33, 77])
def test_transpose(xp, order, n):
    x = np.random.default_rng(0).standard_normal((n, n)).astype("float32")
    out = xp.empty((n, n), "float32")
    call("test_transpose", xp.asarray(x), out, n)
    np.testing.assert_array_equal(xp.asnumpy(out), x.T)


@pytest.mark.parametrize("n", [1, 640, 5000])
def test_histogram(xp, order, n):
    x = np.random.default_rng(0).random(n).astype("float32")
    x[0] = 1
    out = xp.zeros(64, "uint32")
    call("test_histogram", xp.asarray(x), out, n)
    bins = np.minimum((x * 64).astype(int), 63)
    np.testing.assert_array_equal(xp.asnumpy(out), np.bincount(bins, minlength=64))


def test_votes(xp, order):
    x = np.random.default_rng(0).random(32).astype("float32")
    out = xp.empty(48, "float32")
    call("test_votes", xp.asarray(x), out)
    votes = (x > 0.5).astype(int)
    before = np.cumsum(votes) - votes
    up, down = np.r_[before[0], before[:-1]], np.r_[before[1:], before[-1]]
    expected = before + 0.25 * up + 0.125 * down + 1024.0 * before.sum()
    most = (x[:16] * np.float32(100)).astype(int).max()
    np.testing.assert_array_equal(xp.asnumpy(out), np.r_[expected, [most] * 16])


def test_barriers_of_a_warp(xp, order):
    x = np.arange(128, dtype="float32")
    out = xp.empty(128, "float32")
    call("test_reverse", xp.asarray(x), out)
    np.testing.assert_array_equal(xp.asnumpy(out).reshape(4, 32), x.reshape(4, 32)[:, ::-1] + 3)


def test_named_barriers(xp, order):
    x = np.random.default_rng(0).random((5, 32)).astype("float32")
    out = xp.empty((5, 3, 32), "float32")
    call("test_named_barriers", xp.asarray(x), out, 5)
    factors = np.array([1, 2, 3], "float32")[:, None]
    np.testing.assert_array_equal(xp.asnumpy(out), x[:, None, ::-1] * factors)


def test_meetings_of_the_grid(xp, order):
    n, steps = 150, 4
    x = np.random.default_rng(0).integers(-4, 5, steps).astype("float32")
    state, counter = xp.zeros((2, n), "float32"), xp.zeros(1, "uint32")
    call("test_grid_sync", xp.asarray(x), state, counter, n, steps)
    expected = np.zeros(n)
    for one in x:
        expected = one + expected.mean() / 2 + np.arange(n)
    np.testing.assert_allclose(xp.asnumpy(state)[steps % 2], expected, rtol=1e-5)
