"""Products of 16-bit floats on the tensor cores: gemm, linear layers and convolutions with their
gradients, against float64."""

from __future__ import annotations

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import _core

ml_dtypes = pytest.importorskip("ml_dtypes")
DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}


@pytest.fixture(params=list(DTYPES))
def half(request):
    return DTYPES[request.param]


def close(xp, got, exact, size, depth):
    """Factors are exact and their products too; sums are made in float32 (`size`: of absolute
    values) and rounded once to 16 bits."""
    got = xp.asnumpy(got)
    unit = float(ml_dtypes.finfo(got.dtype).eps) / 2
    bound = unit * abs(exact) * (1 + 2.0**-8) + 2.0**-23 * (2 + depth**0.5) * size
    tiny = 2.0**-25 if got.dtype == np.float16 else 1e-38
    assert np.all(abs(got.astype(np.float64) - exact) <= bound + tiny)


def make(rng, xp, shape, dtype, turned=False):
    value = rng.standard_normal(shape).astype(np.float32).astype(dtype)
    held = np.ascontiguousarray(value.swapaxes(-1, -2)) if turned else value
    return value.astype(np.float64), xp.asarray(held)


SIZES = (
    (1, 1, 1),
    (1, 130, 17),
    (3, 7, 1),
    (33, 129, 33),
    (63, 65, 31),
    (64, 64, 64),
    (65, 72, 40),
    (16, 40, 600),  # the depth in parts
    (66, 1, 522),
)


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_products(xp, half, size):
    m, n, k = size
    rng = np.random.default_rng(0)
    for turn_a in (False, True):
        for turn_b in (False, True):
            a, held_a = make(rng, xp, (m, k), half, turn_a)
            b, held_b = make(rng, xp, (k, n), half, turn_b)
            got = _core.matmul(held_a, held_b, turn_a, turn_b)
            assert isinstance(got, xp.ndarray) and got.dtype == half
            close(xp, got, a @ b, abs(a) @ abs(b), k)


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True)], ids=str)
def test_large_tiles(xp, half, turned):
    rng = np.random.default_rng(1)
    m, n, k = 1027, 1025, 40
    a, held_a = make(rng, xp, (m, k), half, turned[0])
    b, held_b = make(rng, xp, (k, n), half, turned[1])
    got = _core.matmul(held_a, held_b, *turned)
    close(xp, got, a @ b, abs(a) @ abs(b), k)


@pytest.mark.parametrize("offset", [0, 1])
def test_orders_and_places(xp, half, order, offset):
    """Wide copies, and single ones from arrays that begin anywhere; twice the same bits."""
    rng = np.random.default_rng(2)
    m, n, k = 70, 72, 80
    flat = make(rng, xp, m * k + offset, half)[1]
    held_a = flat[offset:].reshape(m, k)
    a = xp.asnumpy(held_a).astype(np.float64)
    b, held_b = make(rng, xp, (k, n), half)
    got = _core.matmul(held_a, held_b, False, False)
    close(xp, got, a @ b, abs(a) @ abs(b), k)
    again = _core.matmul(held_a, held_b, False, False)
    assert xp.asnumpy(got).tobytes() == xp.asnumpy(again).tobytes()


def test_values_that_are_special(xp, half):
    a = np.array([[np.nan, 1], [np.inf, 1], [-0.0, 0.0], [3e4, 3e4]], np.float32).astype(half)
    b = np.array([[1.0, 3e4], [1.0, 3e4]], np.float32).astype(half)
    got = xp.asnumpy(_core.matmul(xp.asarray(a), xp.asarray(b), False, False)).astype(np.float32)
    with np.errstate(invalid="ignore", over="ignore"):
        exact = (a.astype(np.float32) @ b.astype(np.float32)).astype(half).astype(np.float32)
    np.testing.assert_array_equal(got, exact)  # float16: 1.8e9 is inf


def test_sums_are_float32(xp, half):
    """3000 ones: a 16-bit sum would stop at 256 or 2048."""
    ones = xp.asarray(np.ones((1, 3000), half))
    got = _core.matmul(ones, ones, False, True)
    assert float(xp.asnumpy(got)[0, 0]) == float(np.float32(3000).astype(half))


@pytest.mark.parametrize("relu", [False, True])
def test_linear(xp, half, relu):
    rng = np.random.default_rng(3)
    x, held_x = make(rng, xp, (2, 5, 24), half)
    w, held_w = make(rng, xp, (17, 24), half)
    b, held_b = make(rng, xp, 17, half)
    y = _core.linear_forward(held_x, held_w, held_b, relu)
    exact = x @ w.T + b
    close(xp, y, np.maximum(exact, 0) if relu else exact, abs(x) @ abs(w.T) + abs(b), 24)
    dy, held_dy = make(rng, xp, (2, 5, 17), half)
    dx = _core.linear_backward_input(held_dy, held_w)
    close(xp, dx, dy @ w, abs(dy) @ abs(w), 17)
    dw = _core.linear_backward_weight(held_dy, held_x)
    rows, inputs = dy.reshape(10, 17), x.reshape(10, 24)
    close(xp, dw, rows.T @ inputs, abs(rows.T) @ abs(inputs), 10)
    db = _core.linear_backward_bias(held_dy)
    close(xp, db, rows.sum(0), abs(rows).sum(0), 10)


def test_bias_grad_of_many_rows(xp, half):
    dy, held = make(np.random.default_rng(4), xp, (9000, 3), half)
    close(xp, _core.linear_backward_bias(held), dy.sum(0), abs(dy).sum(0), 9000)


CONVS = {  # input, weight, stride, padding, dilation, groups
    "plain": ((2, 8, 9, 11), (10, 8, 3, 3), 1, 1, 1, 1),
    "strided": ((2, 4, 10, 9), (6, 4, 3, 3), 2, 1, 1, 1),
    "groups": ((1, 6, 7, 8), (4, 3, 3, 2), 1, 1, 2, 2),
    "one pixel": ((3, 16, 4, 4), (70, 16, 1, 1), 1, 0, 1, 1),
    "depthwise": ((2, 3, 8, 7), (6, 1, 3, 3), 2, 1, 1, 3),
}


@pytest.mark.parametrize("name", CONVS)
def test_convolutions(xp, half, name):
    """Values and all gradients beside those of the CPU in float64."""
    size, weight, stride, padding, dilation, groups = CONVS[name]
    rng = np.random.default_rng(5)
    values = [make(rng, xp, shape, half) for shape in (size, weight, (weight[0],))]

    def run(arrays, grad):
        x, w, b = (fn.tensor(one, requires_grad=True) for one in arrays)
        y = F.conv2d(x, w, b, stride, padding, dilation, groups)
        y.backward(grad)
        return [one._data for one in (y, x.grad, w.grad, b.grad)]

    exact_y = F.conv2d(*(v[0] for v in values), stride, padding, dilation, groups)
    grad, held_grad = make(rng, xp, exact_y.shape, half)
    exact = run([v[0] for v in values], grad)
    sizes = run([abs(v[0]) for v in values], abs(grad))
    got = run([v[1] for v in values], held_grad)
    for one, value, size in zip(got, exact, sizes, strict=True):
        assert one.dtype == half
        close(xp, one, value, size, max(grad.size, weight[1] * 9))


def test_conv_transpose(xp, half):
    rng = np.random.default_rng(6)
    x, held_x = make(rng, xp, (2, 6, 5, 4), half)
    w, held_w = make(rng, xp, (6, 3, 3, 3), half)
    got = F.conv_transpose2d(held_x, held_w, stride=2, padding=1)
    exact = F.conv_transpose2d(x, w, stride=2, padding=1)
    close(xp, got, exact, F.conv_transpose2d(abs(x), abs(w), stride=2, padding=1), 54)


def test_dtypes_must_agree(xp, half):
    x = xp.asarray(np.ones((2, 3), half))
    w = xp.asarray(np.ones((4, 3), np.float32))
    with pytest.raises(TypeError, match=f"linear: weight has dtype float32, expected {half.name}"):
        F.linear(x, w)
