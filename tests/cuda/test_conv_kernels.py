"""Convolutions on the GPU: against float64, in both precisions, every pass."""

from __future__ import annotations

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import _core
from fusednn.testing import reference, reference_conv

# input, weight, stride, padding, dilation, groups
CASES = {
    "one": ((1, 1, 1), (1, 1, 1), 1, 0, 1, 1),
    "line": ((2, 3, 37), (5, 3, 4), 2, 3, 2, 1),
    "plain": ((2, 5, 9, 11), (7, 5, 3, 3), 1, 1, 1, 1),
    "point": ((1, 8, 5, 8), (40, 8, 1, 1), 1, 0, 1, 1),
    "wide kernel": ((1, 2, 8, 8), (3, 2, 7, 5), 1, (3, 2), 1, 1),
    "stride": ((1, 3, 12, 13), (36, 3, 3, 3), 2, 1, 1, 1),
    "patches": ((1, 3, 8, 8), (6, 3, 4, 4), 4, 0, 1, 1),
    "gaps": ((1, 2, 11, 10), (3, 2, 2, 2), (5, 3), 1, 1, 1),
    "dilation": ((1, 3, 13, 12), (4, 3, 3, 2), (1, 2), (2, 1), (2, 3), 1),
    "common divisor": ((1, 2, 17, 19), (3, 2, 3, 3), (4, 6), 3, (2, 4), 1),
    "groups": ((2, 6, 7, 6), (9, 2, 3, 3), 1, 1, 1, 3),
    "groups stride": ((2, 4, 7, 6), (6, 2, 3, 2), 2, 1, 1, 2),
    "few inputs": ((1, 2, 3, 9), (3, 2, 2, 2), (4, 2), (2, 1), 1, 1),
    "depthwise": ((2, 5, 8, 9), (5, 1, 3, 3), 1, 1, 1, 5),
    "depthwise far": ((1, 3, 10, 11), (6, 1, 3, 2), 2, 2, 2, 3),
    "depthwise volume": ((2, 2, 4, 5, 3), (4, 1, 2, 2, 3), (2, 1, 1), (4, 1, 2), (2, 1, 1), 2),
    "volume": ((1, 2, 4, 5, 6), (3, 2, 3, 2, 3), (1, 2, 1), 1, 1, 1),
    "deep": ((1, 64, 4, 4), (4, 64, 3, 3), 1, 1, 1, 1),
}
each_case = pytest.mark.parametrize("name", CASES)


TF32 = 1.28 * 2.0**-10


@pytest.fixture(params=["highest", "high"])
def precision(request):
    if request.param == "high" and request.node.callspec.params.get("dtype") == "float64":
        pytest.skip("float64 knows one precision")
    fn.set_float32_precision(request.param)
    yield request.param
    fn.set_float32_precision("highest")


def close(got, expected, bound, depth, precision):
    """Within what rounding explains; see test_product_kernels."""
    eps = np.finfo(got.dtype).eps * (2 + np.sqrt(depth))
    if got.dtype == "float32" and precision == "high":
        eps += TF32
    assert got.shape == expected.shape
    assert np.all(np.abs(got - expected) <= eps * np.asarray(bound, "float64") + 1e-300)


def sample(name, dtype, seed=0):
    """Input, weight, bias, gradient, and the window as `reference` takes it."""
    shape, weight, stride, padding, dilation, groups = CASES[name]
    rng = np.random.default_rng(seed)
    x, w, b = (rng.standard_normal(s).astype(dtype) for s in (shape, weight, weight[:1]))
    window = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    y = reference.conv_forward(x, w, b, **window)
    dy = rng.standard_normal(y.shape).astype(dtype)
    return x, w, b, dy, y, window


def arguments(window):
    return window["stride"], window["padding"], window["dilation"], window["groups"], "auto"


@each_case
def test_forward(xp, dtype, precision, name):
    x, w, b, _, y, window = sample(name, dtype)
    got = getattr(F, f"conv{x.ndim - 2}d")(*map(xp.asarray, (x, w, b)), **window)
    assert isinstance(got, xp.ndarray)
    bound = reference.conv_forward(abs(x), abs(w), abs(b), **window)
    close(xp.asnumpy(got), y, bound, w[0].size, precision)


@each_case
def test_backward(xp, dtype, precision, name):
    x, w, _, dy, _, window = sample(name, dtype)
    spatial = x.ndim - 2
    dx, dw, db = reference.conv_backward(dy, x, w, **window)
    dx_bound, dw_bound, db_bound = reference.conv_backward(abs(dy), abs(x), abs(w), **window)
    grad = xp.asarray(dy)
    got = _core.conv_backward_input(spatial, grad, xp.asarray(w), x.shape, *arguments(window))
    close(xp.asnumpy(got), dx, dx_bound, w[:, 0].size, precision)
    got = _core.conv_backward_weight(spatial, grad, xp.asarray(x), w.shape, *arguments(window))
    close(xp.asnumpy(got), dw, dw_bound, dy[:, 0].size, precision)
    got = _core.conv_backward_bias(spatial, grad)
    close(xp.asnumpy(got), db, db_bound, dy[:, 0].size, "highest")


@each_case
def test_transposed(xp, precision, name):
    x, w, _, dy, _, window = sample(name, "float32")
    spatial = x.ndim - 2
    rng = np.random.default_rng(1)
    b = rng.standard_normal(x.shape[1]).astype("float32")
    y = reference_conv.conv_transpose_forward(dy, w, b, **window)
    bound = reference_conv.conv_transpose_forward(abs(dy), abs(w), abs(b), **window)
    layer = getattr(F, f"conv_transpose{spatial}d")
    got = layer(*map(xp.asarray, (dy, w, b)), **window)
    close(xp.asnumpy(got), y, bound, w[:, 0].size, precision)
    grad = rng.standard_normal(y.shape).astype("float32")
    dx, dw, _ = reference_conv.conv_transpose_backward(grad, dy, w, **window)
    bounds = reference_conv.conv_transpose_backward(abs(grad), abs(dy), abs(w), **window)
    stride, padding, dilation, groups, algorithm = arguments(window)
    rest = (stride, padding, 0, dilation, groups, algorithm)
    got = _core.conv_transpose_backward_input(
        spatial, xp.asarray(grad), xp.asarray(w), dy.shape, *rest
    )
    close(xp.asnumpy(got), dx, bounds[0], w[0].size, precision)
    got = _core.conv_transpose_backward_weight(
        spatial, xp.asarray(grad), xp.asarray(dy), w.shape, *rest
    )
    close(xp.asnumpy(got), dw, bounds[1], dy[:, 0].size, precision)


@pytest.mark.parametrize("padding", [((2, 0),), ((0, 3),), "same", "causal"], ids=str)
def test_padding_that_differs(xp, padding):
    rng = np.random.default_rng(2)
    x, w = (rng.standard_normal(s).astype("float32") for s in ((1, 2, 9), (3, 2, 4)))
    got = F.conv1d(xp.asarray(x), xp.asarray(w), padding=padding)
    np.testing.assert_allclose(
        xp.asnumpy(got), F.conv1d(x, w, padding=padding), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("name", ["plain", "stride", "deep", "depthwise"])
def test_order(xp, precision, order, name):
    x, w, b, dy, y, window = sample(name, "float32", 3)
    dx, dw, _ = reference.conv_backward(dy, x, w, **window)
    held = xp.asarray(w)
    tolerance = {"rtol": 1e-2, "atol": 0.1} if precision == "high" else {"rtol": 1e-4, "atol": 1e-4}
    got = F.conv2d(xp.asarray(x), held, xp.asarray(b), **window)
    np.testing.assert_allclose(xp.asnumpy(got), y, **tolerance)
    got = _core.conv_backward_input(2, xp.asarray(dy), held, x.shape, *arguments(window))
    np.testing.assert_allclose(xp.asnumpy(got), dx, **tolerance)
    got = _core.conv_backward_weight(2, xp.asarray(dy), xp.asarray(x), w.shape, *arguments(window))
    np.testing.assert_allclose(xp.asnumpy(got), dw, **tolerance)


def test_long_weight_gradient(xp, precision):
    """Positions in many parts, added in order: the same bits again."""
    rng = np.random.default_rng(4)
    x, dy = (rng.standard_normal(s).astype("float32") for s in ((3, 2, 30, 31), (3, 3, 30, 31)))
    expected = reference.conv_backward(dy, x, np.zeros((3, 2, 3, 3)), padding=1)[1]
    bound = reference.conv_backward(abs(dy), abs(x), np.zeros((3, 2, 3, 3)), padding=1)[1]
    window = (1, 1, 1, 1, "auto")
    first, second = (
        xp.asnumpy(
            _core.conv_backward_weight(2, xp.asarray(dy), xp.asarray(x), (3, 2, 3, 3), *window)
        )
        for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)
    close(first, expected, bound, dy[:, 0].size, precision)


def test_large_tiles(xp, precision):
    """Enough outputs for the large tiles, of two groups."""
    rng = np.random.default_rng(5)
    x, w = (rng.standard_normal(s).astype("float32") for s in ((1, 4, 48, 49), (140, 2, 1, 1)))
    x[0, 0] = 0  # fewer roundings to look at
    got = F.conv2d(xp.asarray(x), xp.asarray(w), groups=2)
    expected = reference.conv_forward(x, w, groups=2)
    bound = reference.conv_forward(abs(x), abs(w), groups=2)
    close(xp.asnumpy(got), expected, bound, 2, precision)


@pytest.mark.parametrize(
    ("x", "w", "y"),
    [
        ((0, 2, 4, 4), (3, 2, 3, 3), (0, 3, 2, 2)),
        ((1, 2, 4, 4), (0, 2, 3, 3), (1, 0, 2, 2)),
        ((1, 0, 4, 4), (3, 0, 3, 3), (1, 3, 2, 2)),
    ],
    ids=str,
)
def test_empty(xp, dtype, x, w, y):
    got = F.conv2d(xp.zeros(x, dtype), xp.zeros(w, dtype))
    np.testing.assert_array_equal(xp.asnumpy(got), np.zeros(y))
    window = (1, 0, 1, 1, "auto")
    dx = _core.conv_backward_input(2, xp.zeros(y, dtype), xp.zeros(w, dtype), x, *window)
    np.testing.assert_array_equal(xp.asnumpy(dx), np.zeros(x))
    dw = _core.conv_backward_weight(2, xp.zeros(y, dtype), xp.zeros(x, dtype), w, *window)
    np.testing.assert_array_equal(xp.asnumpy(dw), np.zeros(w))
    db = _core.conv_backward_bias(2, xp.zeros(y, dtype))
    np.testing.assert_array_equal(xp.asnumpy(db), np.zeros(y[1]))


@pytest.mark.parametrize(
    ("outer", "channels", "inner"),
    [
        (1, 1, 1),
        (700, 33, 1),
        (9000, 3, 1),
        (5, 7, 31),
        (3, 5, 32),
        (2, 3, 9001),
        (2, 3, 0),
        (0, 3, 4),
    ],
    ids=str,
)
def test_bias_gradient(xp, dtype, outer, channels, inner):
    rng = np.random.default_rng(6)
    dy = rng.integers(-8, 8, (outer, channels, inner)).astype(dtype)  # sums are exact
    got = xp.asnumpy(_core.conv_backward_bias(1, xp.asarray(dy)))
    np.testing.assert_array_equal(got, dy.sum((0, 2)))


def test_windows_far_beyond_the_input(xp):
    """Strides, padding and dilation that 32 bits have no room for."""
    far = 2**31
    rng = np.random.default_rng(7)
    x, w = rng.standard_normal((2, 2, 3)), rng.standard_normal((2, 2, 2))
    stride, padding, dilation = far - 1, far, far
    for groups, weight in ((1, w), (2, w[:, :1])):
        size = (3 + 2 * padding - dilation - 1) // stride + 1
        y, dx, dw = np.zeros((2, 2, size)), np.zeros_like(x), np.zeros_like(weight)
        dy = rng.standard_normal(y.shape)
        for out in range(2):
            ins = range(2) if groups == 1 else [out]
            for column, channel in enumerate(ins):
                for q, tap in np.ndindex(size, 2):
                    i = q * stride - padding + tap * dilation
                    if not 0 <= i < 3:
                        continue
                    y[:, out, q] += weight[out, column, tap] * x[:, channel, i]
                    dx[:, channel, i] += weight[out, column, tap] * dy[:, out, q]
                    dw[out, column, tap] += dy[:, out, q] @ x[:, channel, i]
        assert y.any()
        window = (stride, padding, dilation, groups, "auto")
        grad, held_x, held_w = map(xp.asarray, (dy, x, np.ascontiguousarray(weight)))
        for got, expected in (
            (_core.conv_forward(1, held_x, held_w, None, *window), y),
            (_core.conv_backward_input(1, grad, held_w, x.shape, *window), dx),
            (_core.conv_backward_weight(1, grad, held_x, weight.shape, *window), dw),
        ):
            np.testing.assert_allclose(xp.asnumpy(got), expected)


def test_more_groups_than_a_grid_has_along_y(xp):
    x = np.random.default_rng(9).standard_normal((1, 70_000, 1)).astype("float32")
    w = np.full((70_000, 1, 1), 2, "float32")
    got = F.conv1d(xp.asarray(x), xp.asarray(w), groups=70_000)
    np.testing.assert_array_equal(xp.asnumpy(got), 2 * x)


@pytest.mark.parametrize("offset", [0, 1])
def test_nothing_beside_the_arrays_is_read(xp, precision, offset):
    """NaN before and behind; padding is zero, not NaN times zero."""
    rng = np.random.default_rng(10)

    def inside(shape):
        value = rng.standard_normal(shape).astype("float32")
        flat = np.full(value.size + 8, np.nan, "float32")
        flat[offset : offset + value.size] = value.ravel()
        return value, xp.asarray(flat)[offset : offset + value.size].reshape(shape)

    x, held_x = inside((1, 3, 6, 5))
    w, held_w = inside((4, 3, 3, 3))
    expected = reference.conv_forward(x, w, padding=2)
    bound = reference.conv_forward(abs(x), abs(w), padding=2)
    got = F.conv2d(held_x, held_w, padding=2)
    close(xp.asnumpy(got), expected, bound, 27, precision)


def test_what_is_not_finite_stays_where_it_is_seen(xp, precision):
    x = np.ones((1, 2, 8, 8), "float32")
    x[0, 1, 0, 0] = np.nan
    got = xp.asnumpy(F.conv2d(xp.asarray(x), xp.asarray(np.ones((3, 2, 3, 3), "float32"))))
    assert np.isnan(got[0, :, 0, 0]).all()
    np.testing.assert_array_equal(got[0, :, 1:], 18)


def test_refused(xp):
    with pytest.raises(ValueError, match=r"conv2d: with groups = 1, weight expects 4 input ch"):
        F.conv2d(xp.zeros((1, 3, 4, 4)), xp.zeros((2, 4, 3, 3)))
    with pytest.raises(ValueError, match=r"conv2d: weight is on the CPU, expected on cuda:0"):
        F.conv2d(xp.zeros((1, 3, 4, 4)), np.zeros((2, 3, 3, 3)))
    with pytest.raises(ValueError, match=r"conv_transpose1d: bias is on cuda:0, expected on the"):
        F.conv_transpose1d(np.zeros((1, 3, 4)), np.zeros((3, 2, 3)), xp.zeros(2))


def test_reversed_kernels(xp):
    rng = np.random.default_rng(11)
    x, w = rng.standard_normal((1, 2, 9)), rng.standard_normal((3, 2, 4))
    got = F.conv1d(xp.asarray(x), xp.asarray(w), flip_kernel=True)
    np.testing.assert_allclose(xp.asnumpy(got), F.conv1d(x, w, flip_kernel=True))
