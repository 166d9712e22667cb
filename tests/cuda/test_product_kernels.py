"""Matrix products on the GPU: against float64, in both precisions, around the tiles' sizes."""

from __future__ import annotations

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import _core

TF32 = 1.28 * 2.0**-10


@pytest.fixture(params=["highest", "high"])
def precision(request):
    if request.param == "high" and request.node.callspec.params.get("dtype") == "float64":
        pytest.skip("float64 knows one precision")
    fn.set_float32_precision(request.param)
    yield request.param
    fn.set_float32_precision("highest")


def close(got, factors, dtype, precision):
    """The product of two float64 matrices, within what rounding explains.

    TF32 has 10 bits of mantissa: a factor loses at most 1.28 * 2^-11 of itself (gemm/math.h), a
    product twice that, and the sum at most that of the sum of absolute values. Without it, n
    additions and multiplications cost at most n + 1 roundings of half a bit, of which sqrt(n) are
    usual.
    """
    a, b = (np.asarray(x, "float64") for x in factors)
    bound = np.abs(a) @ np.abs(b)
    eps = np.finfo(dtype).eps * (2 + np.sqrt(a.shape[-1]))
    if dtype == "float32" and precision == "high":
        eps += TF32
    assert got.dtype == dtype
    assert np.all(np.abs(got - a @ b) <= eps * bound + 1e-300)


def make(rng, xp, shape, turned, dtype):
    """A random matrix, and the array that holds it (transposed)."""
    value = rng.standard_normal(shape).astype(dtype)
    held = np.ascontiguousarray(value.swapaxes(-1, -2)) if turned else value
    return value, xp.asarray(held)


SIZES = (
    (1, 1, 1),
    (1, 130, 17),
    (3, 7, 1),
    (31, 127, 8),
    (32, 128, 16),
    (33, 129, 9),
    (63, 65, 31),
    (64, 64, 64),
    (65, 63, 33),
    (130, 36, 20),
    (16, 40, 600),  # the depth in parts
    (66, 1, 522),
)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_products(xp, dtype, precision, size):
    m, n, k = size
    rng = np.random.default_rng(0)
    for turn_a in (False, True):
        for turn_b in (False, True):
            a, held_a = make(rng, xp, (m, k), turn_a, dtype)
            b, held_b = make(rng, xp, (k, n), turn_b, dtype)
            got = _core.matmul(held_a, held_b, turn_a, turn_b)
            assert isinstance(got, xp.ndarray)
            close(xp.asnumpy(got), (a, b), dtype, precision)


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True)], ids=str)
def test_large_tiles(xp, precision, turned):
    """Sizes of which the large tiles take care, with edges, and two steps of depth."""
    rng = np.random.default_rng(1)
    a, held_a = make(rng, xp, (1001, 9), turned[0], "float32")
    b, held_b = make(rng, xp, (9, 461), turned[1], "float32")
    close(xp.asnumpy(_core.matmul(held_a, held_b, *turned)), (a, b), "float32", precision)


@pytest.mark.parametrize("shape", [(0, 3, 4), (3, 0, 4), (3, 4, 0)], ids=str)
def test_empty(xp, dtype, precision, shape):
    m, k, n = shape
    got = fn.matmul(xp.zeros((m, k), dtype), xp.zeros((k, n), dtype))
    np.testing.assert_array_equal(xp.asnumpy(got), np.zeros((m, n)))


def test_order(xp, precision, order):
    rng = np.random.default_rng(2)
    a, held_a = make(rng, xp, (40, 520), False, "float32")
    b, held_b = make(rng, xp, (520, 70), True, "float32")
    close(xp.asnumpy(_core.matmul(held_a, held_b, False, True)), (a, b), "float32", precision)


def test_same_bits(xp, precision):
    rng = np.random.default_rng(3)
    a, b = (xp.asarray(rng.standard_normal(s).astype("float32")) for s in ((8, 1100), (1100, 8)))
    first, second = (xp.asnumpy(fn.matmul(a, b)) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("offset", [1, 2, 3])
def test_views_between_the_vectors(xp, dtype, precision, offset):
    """Matrices that begin anywhere: no 16 bytes at once, and nothing beside them is read."""
    rng = np.random.default_rng(4)
    flat = np.full(64 * 36 + 8, np.nan, dtype)
    a = rng.standard_normal((64, 36)).astype(dtype)
    flat[offset : offset + a.size] = a.ravel()
    view = xp.asarray(flat)[offset : offset + a.size].reshape(64, 36)
    close(xp.asnumpy(fn.matmul(view, view.T)), (a, a.T), dtype, precision)


def test_batches_and_vectors(xp, dtype):
    rng = np.random.default_rng(5)
    a, b = (rng.standard_normal(s).astype(dtype) for s in ((3, 5, 4), (4, 6)))
    x, y = xp.asarray(a), xp.asarray(b)
    for got, expected in (
        (fn.matmul(x, y), a @ b),
        (fn.matmul(x, xp.asarray(np.stack([b] * 3))), a @ b),
        (fn.matmul(x[0], y[:, 0]), a[0] @ b[:, 0]),
        (fn.matmul(x[0, 0], y), a[0, 0] @ b),
    ):
        np.testing.assert_allclose(xp.asnumpy(got), expected, rtol=1e-5, atol=1e-6)


BATCHES = (
    ((3, 5, 4), (3, 4, 6)),
    ((2, 3, 5, 4), (3, 4, 6)),
    ((2, 3, 5, 4), (2, 1, 4, 6)),
    ((2, 1, 5, 4), (3, 4, 6)),
    ((2, 1, 2, 5, 4), (3, 1, 4, 6)),  # three digits: two launches
    ((1, 5, 4), (3, 4, 6)),
    ((0, 5, 4), (1, 4, 6)),
    ((2, 33, 8), (2, 8, 68)),  # whole vectors
    ((3, 1, 3), (3, 3, 1)),
)


@pytest.mark.parametrize("shapes", BATCHES, ids=str)
@pytest.mark.parametrize("turned", [(False, False), (True, True)], ids=str)
def test_batches(xp, dtype, precision, shapes, turned):
    rng = np.random.default_rng(8)
    a, held_a = make(rng, xp, shapes[0], turned[0], dtype)
    b, held_b = make(rng, xp, shapes[1], turned[1], dtype)
    got = xp.asnumpy(_core.matmul(held_a, held_b, *turned))
    assert got.shape == (a @ b).shape
    close(got, (a, b), dtype, precision)


def test_batches_between_the_vectors(xp):
    """Matrices of which some begin at 16 bytes and some do not."""
    rng = np.random.default_rng(9)
    a, b = rng.standard_normal((3, 5, 9)), rng.standard_normal((3, 9, 7))
    close(xp.asnumpy(fn.matmul(xp.asarray(a), xp.asarray(b))), (a, b), "float64", "highest")


def test_batches_with_the_depth_in_parts(xp, order):
    rng = np.random.default_rng(10)
    a, held_a = make(rng, xp, (2, 6, 600), False, "float32")
    b, held_b = make(rng, xp, (1, 600, 5), False, "float32")
    close(xp.asnumpy(fn.matmul(held_a, held_b)), (a, b), "float32", "highest")


@pytest.mark.emulated
def test_batches_are_one_launch(xp):
    from emulated import take_counts

    for a, b, launches in (
        ((2, 3, 5, 4), (2, 3, 4, 6), 1),
        ((2, 1, 5, 4), (3, 4, 6), 1),
        ((2, 1, 2, 5, 4), (3, 1, 4, 6), 2),
    ):
        x, y = xp.zeros(a), xp.zeros(b)
        take_counts()
        fn.matmul(x, y)
        assert take_counts()["launches"] == launches


def test_gradients_of_what_is_broadcast(xp, dtype):
    rng = np.random.default_rng(11)
    a, b = rng.standard_normal((2, 1, 5, 4)), rng.standard_normal((3, 4, 6))
    dy = rng.standard_normal((2, 3, 5, 6))
    grads = []
    for device in ("cpu", "cuda", "cuda"):
        x, y = (fn.tensor(v.astype(dtype), device=device, requires_grad=True) for v in (a, b))
        (x @ y).backward(fn.tensor(dy.astype(dtype), device=device))
        grads.append([x.grad.cpu().numpy(), y.grad.cpu().numpy()])
    for expected, got, again in zip(*grads, strict=True):
        np.testing.assert_allclose(got, expected, rtol=2e-5, atol=1e-5)
        np.testing.assert_array_equal(got, again)


def test_what_is_not_finite_stays_in_its_row(xp, precision):
    a = np.ones((66, 20), "float32")
    a[3, 19], a[65, 0] = np.nan, np.inf
    got = xp.asnumpy(fn.matmul(xp.asarray(a), xp.asarray(np.ones((20, 67), "float32"))))
    assert np.isnan(got[3]).all() and np.isposinf(got[65]).all()
    np.testing.assert_array_equal(np.delete(got, [3, 65], 0), 20)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("size", [(5, 7, 3), (67, 70, 40), (2, 3, 1000)], ids=str)
def test_linear(xp, dtype, precision, size, relu):
    rows, outs, ins = size
    rng = np.random.default_rng(6)
    x, w = (rng.standard_normal(s).astype(dtype) for s in ((rows, ins), (outs, ins)))
    b = rng.standard_normal(outs).astype(dtype)
    got = _core.linear_forward(*map(xp.asarray, (x, w, b)), relu)
    expected = x.astype("float64") @ w.T.astype("float64") + b
    if relu:
        assert xp.asnumpy(got).min() >= 0
        expected = np.maximum(expected, 0)
    bound = np.abs(x.astype("float64")) @ np.abs(w.T.astype("float64")) + np.abs(b)
    high = dtype == "float32" and precision == "high"
    eps = np.finfo(dtype).eps * (2 + np.sqrt(ins)) + (TF32 if high else 0)
    assert np.all(np.abs(xp.asnumpy(got) - expected) <= eps * bound)


def test_linear_gradients(xp, dtype, precision):
    rng = np.random.default_rng(7)
    x, w = rng.standard_normal((2, 9, 5)).astype(dtype), rng.standard_normal((7, 5)).astype(dtype)
    dy = rng.standard_normal((2, 9, 7)).astype(dtype)
    flat = dy.reshape(-1, 7)
    grad = xp.asarray(dy)
    got = xp.asnumpy(_core.linear_backward_input(grad, xp.asarray(w)))
    assert got.shape == x.shape
    close(got.reshape(-1, 5), (flat, w), dtype, precision)
    got = xp.asnumpy(_core.linear_backward_weight(grad, xp.asarray(x)))
    close(got, (flat.T, x.reshape(-1, 5)), dtype, precision)


def test_refused(xp):
    with pytest.raises(ValueError, match=r"matmul: inner sizes differ, 3 and 4"):
        _core.matmul(xp.zeros((2, 3)), xp.zeros((4, 2)), False, False)
    with pytest.raises(ValueError, match=r"matmul: batches differ, 2 and 3 \(shapes \(2, 2, 3\)"):
        _core.matmul(xp.zeros((2, 2, 3)), xp.zeros((3, 3, 2)), False, False)
    with pytest.raises(ValueError, match=r"linear: weight is on the CPU, expected on cuda:0"):
        F.linear(xp.zeros((2, 3)), np.zeros((4, 3)))
    with pytest.raises(TypeError, match=r"linear: weight has dtype float64, expected float32"):
        F.linear(xp.zeros((2, 3), "float32"), xp.zeros((4, 3)))


def test_the_setting():
    assert fn.get_float32_precision() == "highest"
    with pytest.raises(ValueError, match="must be 'highest' or 'high', got 'medium'"):
        fn.set_float32_precision("medium")
    with pytest.raises(TypeError):
        fn.set_float32_precision(3)
    assert fn.get_float32_precision() == "highest"


@pytest.mark.emulated
def test_precision_reaches_the_kernels(xp):
    from emulated import take_counts

    x = xp.zeros((16, 16), "float32")
    for precision, expected in (("highest", False), ("high", True)):
        fn.set_float32_precision(precision)
        take_counts()
        fn.matmul(x, x)
        assert bool(take_counts()["mma"]) is expected
    fn.set_float32_precision("highest")


def test_high_precision_has_no_drift(xp):
    """Factors come out too small as often as too large: long sums of one sign stay near."""
    rng = np.random.default_rng(9)
    a, b = (np.exp(rng.uniform(0, 5, s)).astype("float32") for s in ((20, 1000), (1000, 20)))
    fn.set_float32_precision("high")
    got = xp.asnumpy(fn.matmul(xp.asarray(a), xp.asarray(b)))
    fn.set_float32_precision("highest")
    ratio = got / (a.astype("float64") @ b)
    assert abs(ratio.mean() - 1) < 2e-5
    np.testing.assert_allclose(ratio, 1, atol=1e-4)
    whole = xp.asarray(rng.integers(-256, 256, (20, 30)).astype("float32"))  # fits 10 bits
    fn.set_float32_precision("high")
    got = xp.asnumpy(fn.matmul(whole, whole.T))
    fn.set_float32_precision("highest")
    np.testing.assert_array_equal(got, xp.asnumpy(whole) @ xp.asnumpy(whole).T)
