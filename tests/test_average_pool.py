"""Average, adaptive, global pooling and unpooling: every ISA, the definitions, torch, refusals."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fusednn as fn
import fusednn.functional as F
from fusednn import _core, nn
from fusednn.testing import reference_pool as ref

NAN, INF = np.nan, np.inf
AVERAGE = {1: F.avg_pool1d, 2: F.avg_pool2d, 3: F.avg_pool3d}
ADAPTIVE_AVG = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}
ADAPTIVE_MAX = {1: F.adaptive_max_pool1d, 2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}


def values(shape: tuple[int, ...], seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def gradient(call: Any, x: Any, grad: Any = None) -> tuple[Any, Any]:
    t = fn.tensor(x, requires_grad=True)
    y = call(t)
    y.backward(np.ones(y.shape, x.dtype) if grad is None else grad)
    return y.numpy(), t.grad.numpy()


def check(call: Any, x: Any, matrix: Any, out: tuple[int, ...], spatial: int) -> None:
    """Value and gradient of a linear op, which per plane is `matrix` (outputs, inputs)."""
    lead = x.shape[: x.ndim - spatial]
    planes = x.reshape(int(np.prod(lead)), matrix.shape[1]).astype(np.float64)
    grad = values((*lead, *out), 1, x.dtype)
    tolerance = {"rtol": 8 * np.finfo(x.dtype).eps, "atol": 8 * np.finfo(x.dtype).eps}
    for isa in _core.usable_isas():
        with fn.testing.isa(isa):
            y, dx = gradient(call, x, grad)
            np.testing.assert_array_equal(call(x), y)
        assert y.dtype == dx.dtype == x.dtype
        assert y.shape == grad.shape
        np.testing.assert_allclose(y, (planes @ matrix.T).reshape(y.shape), **tolerance)
        expected = grad.reshape(len(planes), len(matrix)).astype(np.float64) @ matrix
        np.testing.assert_allclose(dx, expected.reshape(x.shape), **tolerance)


# ---- avg_pool ------------------------------------------------------------------------------------


@st.composite
def averages(draw: st.DrawFn) -> tuple[Any, tuple[Any, ...], int]:
    spatial = draw(st.integers(1, 3))
    size, kernel, stride, padding = [], [], [], []
    for axis in range(spatial):
        k = draw(st.sampled_from([1, 2, 2, 3, 3, 4, 5, 7]))
        size.append(draw(st.integers(1, 70 if axis == spatial - 1 else 9 if spatial < 3 else 4)))
        kernel.append(k)
        stride.append(draw(st.sampled_from([1, 1, 2, 2, 3, 4])))
        padding.append(draw(st.integers(0, k // 2)))
    divisor = draw(st.sampled_from([None, None, 3]))
    flags = draw(st.booleans()), draw(st.booleans())
    lead = draw(st.sampled_from([(1,), (2,), (2, 3), (0, 2), (2, 0)]))
    dtype = draw(st.sampled_from(["float32", "float64"]))
    window = (kernel, stride, padding, *flags, *(() if spatial == 1 else (divisor,)))
    return values((*lead, *size), draw(st.integers(0, 99)), dtype), window, spatial


def window_matrix(size: Any, window: tuple[Any, ...]) -> tuple[Any, tuple[int, ...]]:
    """The matrix of avg_pool (outputs, inputs) of one plane, word for word as defined."""
    kernel, stride, padding, ceil_mode, include, *divisor = window
    counts = ref.window_counts(size, kernel, stride, padding, 1, ceil_mode)
    matrix = np.zeros((*counts, *size))
    for out in np.ndindex(counts):
        start = [o * s - p for o, s, p in zip(out, stride, padding, strict=True)]
        stop = [min(b + k, n + p) for b, k, n, p in zip(start, kernel, size, padding, strict=True)]
        real = tuple(slice(max(b, 0), min(e, n)) for b, e, n in zip(start, stop, size, strict=True))
        spans = [e - b for b, e in zip(start, stop, strict=True)]
        number = np.prod(spans) if include else np.prod([r.stop - r.start for r in real])
        matrix[(*out, *real)] = 1 / (divisor[0] if divisor and divisor[0] else number)
    return matrix.reshape(int(np.prod(counts)), int(np.prod(size))), counts


@settings(max_examples=120, deadline=None, derandomize=True)
@given(averages())
def test_random_windows(case):
    x, window, spatial = case
    size = x.shape[x.ndim - spatial :]
    call = lambda x: AVERAGE[spatial](x, *window)  # noqa: E731
    if min(ref.window_counts(size, *window[:3], 1, window[3])) < 1:
        with pytest.raises(ValueError, match=f"avg_pool{spatial}d: the output would have size"):
            call(x)
        return
    matrix, counts = window_matrix(size, window)
    check(call, x, matrix, counts, spatial)


@pytest.mark.parametrize("kernel, stride, padding", [(2, 2, 0), (3, 2, 1), (3, 1, 1), (2, 1, 0),
                                                     (5, 2, 2), (4, 3, 1), (7, 7, 0)])  # fmt: skip
def test_widths(dtype, kernel, stride, padding):
    """Around the vector widths and their multiples."""
    for width in (1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 34, 64, 65, 67):
        if width + 2 * padding < kernel:
            continue
        x = values((2, 8, width), width, dtype)
        window = ([kernel] * 2, [stride] * 2, [padding] * 2, False, True)
        matrix, counts = window_matrix((8, width), window)
        check(lambda x, w=window: F.avg_pool2d(x, *w), x, matrix, counts, 2)


def test_the_mean_of_a_constant_is_the_constant(isa, dtype):
    x = np.full((1, 2, 30, 31), 0.1, dtype)
    for kernel in (2, 3, 5, 7):
        np.testing.assert_allclose(F.avg_pool2d(x, kernel), 0.1, rtol=4 * np.finfo(dtype).eps)
    np.testing.assert_array_equal(F.avg_pool2d(np.full_like(x, 3), 3), 3)


def test_huge_windows_cost_nothing(isa):
    x = np.arange(10.0).reshape(1, 1, 10)
    y = F.avg_pool1d(x, 10**12, 10**12, 5 * 10**11, count_include_pad=False)
    np.testing.assert_array_equal(y, [[[4.5]]])
    _, dx = gradient(
        lambda x: F.avg_pool1d(x, 10**12, 10**12, 5 * 10**11, count_include_pad=False), x
    )
    np.testing.assert_array_equal(dx, np.full((1, 1, 10), 0.1))


def test_threads_do_not_change_a_bit(isa, dtype):
    x = values((7, 5, 101, 203), 0, dtype)
    for call in (
        lambda x: F.avg_pool2d(x, 3, 2, 1),
        lambda x: F.avg_pool2d(x, 3, 1, 1),
        lambda x: F.avg_pool2d(x, 4, 3),
        lambda x: F.adaptive_avg_pool2d(x, (7, 9)),
        lambda x: F.adaptive_max_pool2d(x, (7, 9)),
        F.global_pool,
    ):
        results = []
        for threads in (1, 2, 3):
            fn.set_num_threads(threads)
            results.append([a.tobytes() for a in gradient(call, x)])
        assert results[0] == results[1] == results[2]


def test_results_do_not_depend_on_old_memory(isa, dtype):
    x = values((4, 3, 40, 41), 0, dtype)
    for call in (
        lambda x: F.avg_pool2d(x, 3, 2, 1),
        lambda x: F.avg_pool2d(x, 3, 1, 1),
        lambda x: F.avg_pool2d(x, 2, 5),
        lambda x: F.adaptive_avg_pool2d(x, 7),
    ):
        results = []
        for _ in range(3):
            pair = gradient(call, x)
            results.append([a.tobytes() for a in pair])
            for a in pair:
                a.setflags(write=True)
                a.fill(np.nan)
            del a, pair
        assert results[0] == results[1] == results[2]


# ---- adaptive and global -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "output"),
    [((5,), (3,)), ((7,), 7), ((3,), (8,)), ((6, 7), (2, 3)), ((9, 33), (4, 5)), ((8, 8), 4),
     ((7, 7), 1), ((5, 6), (None, 2)), ((4, 5, 6), (3, 2, 4)), ((40,), (0,)), ((20, 300), (1, 3)),
     ((2, 3, 4), 1)],
)  # fmt: skip
def test_adaptive(size, output, dtype):
    spatial = len(size)
    given = output if isinstance(output, tuple) else (output,) * spatial
    out = tuple(n if o is None else o for o, n in zip(given, size, strict=True))
    matrix = np.zeros((*out, *size))
    x = values((2, 3, *size), 0, dtype)
    best = np.full((2, 3, *out), -INF)
    for place in np.ndindex(out):
        span = tuple(
            slice(i * n // o, -(-(i + 1) * n // o))
            for i, n, o in zip(place, size, out, strict=True)
        )
        matrix[(*place, *span)] = 1 / np.prod([s.stop - s.start for s in span])
        axes = tuple(range(2, 2 + spatial))
        best[(..., *place)] = x[(..., *span)].max(axes)
    flat = matrix.reshape(int(np.prod(out)), int(np.prod(size)))
    check(lambda x: ADAPTIVE_AVG[spatial](x, output), x, flat, out, spatial)
    for isa in _core.usable_isas():
        with fn.testing.isa(isa):
            y, where = ADAPTIVE_MAX[spatial](x, output, return_indices=True)
            np.testing.assert_array_equal(y, best)
            planes = x.reshape(2, 3, -1)
            found = np.take_along_axis(planes, where.reshape(2, 3, -1), 2)
            np.testing.assert_array_equal(found.reshape(y.shape), y)
            grad = np.arange(y.size, dtype=dtype).reshape(y.shape)
            _, dx = gradient(lambda x: ADAPTIVE_MAX[spatial](x, output), x, grad)
        expected = np.zeros((6, int(np.prod(size))))
        for plane in range(6):
            np.add.at(expected[plane], where.reshape(6, -1)[plane], grad.reshape(6, -1)[plane])
        np.testing.assert_array_equal(dx.reshape(6, -1), expected)


def test_adaptive_max_of_special_values(dtype):
    x = np.array([[[1, NAN, 3, NAN, 5, 6, -INF]]], dtype)
    y, where = F.adaptive_max_pool1d(x, 2, return_indices=True)
    np.testing.assert_array_equal(y, [[[NAN, NAN]]])
    assert where.tolist() == [[[3, 3]]]
    y, where = F.adaptive_max_pool1d(np.full((1, 1, 5), -INF, dtype), 2, return_indices=True)
    np.testing.assert_array_equal(y, [[[-INF, -INF]]])
    assert where.tolist() == [[[0, 2]]]


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 7, 7), (1, 4, 3, 4, 5), (0, 3, 4), (2, 0, 4),
                                   (3, 2, 700)])  # fmt: skip
def test_global_pool(shape, isa, dtype):
    x = values(shape, 0, dtype)
    axes = tuple(range(2, len(shape)))
    count = int(np.prod(shape[2:]))
    grad = values(shape[:2], 1, dtype)
    wide = grad.reshape(*shape[:2], *(1,) * len(axes))
    eps = np.finfo(dtype).eps
    for reduce, exact, dx in (
        ("sum", x.astype(np.longdouble).sum(axes), np.broadcast_to(wide, shape)),
        ("mean", x.astype(np.longdouble).mean(axes), np.broadcast_to(wide / count, shape)),
    ):
        y, found = gradient(lambda x, r=reduce: F.global_pool(x, r), x, grad)
        np.testing.assert_allclose(y, exact, rtol=8 * eps, atol=count * eps)
        np.testing.assert_allclose(found, dx, rtol=4 * eps)
    if x.size:
        y, found = gradient(lambda x: F.global_pool(x, "max"), x, grad)
        np.testing.assert_array_equal(y, x.max(axes))
        np.testing.assert_array_equal(found, np.where(x == x.max(axes, keepdims=True), wide, 0))
    np.testing.assert_array_equal(nn.GlobalPool("sum")(x).numpy(), F.global_pool(x, "sum"))


def test_sum_over_nothing_is_zero():
    np.testing.assert_array_equal(F.global_pool(np.zeros((2, 3, 0)), "sum"), np.zeros((2, 3)))
    for reduce in ("mean", "max"):
        with pytest.raises(ValueError, match=r"global_pool: input has shape \(2, 3, 0\)"):
            F.global_pool(np.zeros((2, 3, 0)), reduce)


# ---- unpooling -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("kernel", "stride", "padding"), [(2, 2, 0), (3, 2, 1), (3, 3, 0)])
def test_unpool(kernel, stride, padding, isa, dtype):
    x = values((2, 3, 9, 12), 0, dtype)
    y, where = F.max_pool2d(x, kernel, stride, padding, return_indices=True)
    back, dy = gradient(
        lambda y: F.max_unpool2d(y, where, kernel, stride, padding, output_size=x.shape), y
    )
    expected = np.zeros((6, 9 * 12), dtype)
    np.put_along_axis(expected, where.reshape(6, -1), y.reshape(6, -1), 1)
    np.testing.assert_array_equal(back, expected.reshape(x.shape))
    assert dy.tolist() == np.ones(y.shape).tolist()
    layer = nn.MaxUnpool2d(kernel, stride, padding)
    np.testing.assert_array_equal(layer(y, where, output_size=x.shape).numpy(), back)


def test_unpool_of_one_axis():
    y, where = F.max_pool1d(np.array([[[1.0, 4, 2, 3, 9]]]), 2, return_indices=True)
    assert F.max_unpool1d(y, where, 2).tolist() == [[[0, 4, 0, 3]]]
    assert F.max_unpool1d(y, where, 2, output_size=(5,)).tolist() == [[[0, 4, 0, 3, 0]]]
    assert nn.MaxUnpool1d(2)(y, where).tolist() == [[[0, 4, 0, 3]]]


# ---- gradients, layouts, refusals, torch ---------------------------------------------------------


def test_gradients_by_differences():
    x = np.random.default_rng(3).permutation(2 * 3 * 6 * 7).reshape(2, 3, 6, 7) / 10
    check = fn.testing.gradcheck
    assert check(lambda x: F.avg_pool2d(x, 3, 2, 1), x)
    assert check(lambda x: F.avg_pool2d(x, (2, 3), (1, 2), (1, 0), True, False), x)
    assert check(lambda x: F.avg_pool1d(x[0], 3, 1, 1), x)
    assert check(lambda x: F.avg_pool3d(x, 2), x)
    assert check(lambda x: F.adaptive_avg_pool2d(x, (4, 3)), x)
    assert check(lambda x: F.adaptive_max_pool2d(x, (4, 3)), x)
    for reduce in ("sum", "mean", "max"):
        assert check(lambda x, r=reduce: F.global_pool(x, r), x)


def test_any_array_is_read(dtype):
    x = values((2, 4, 10, 12), 0, dtype)
    views = (
        np.asfortranarray(x), np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
        x[::-1, ..., ::-1].copy()[::-1, ..., ::-1], x.astype(x.dtype.newbyteorder(">")),
        np.repeat(x, 2, 3)[..., ::2],
    )  # fmt: skip
    for call in (
        lambda x: F.avg_pool2d(x, 3, 2, 1),
        lambda x: F.adaptive_avg_pool2d(x, 3),
        lambda x: F.adaptive_max_pool2d(x, 3),
        lambda x: F.global_pool(x, "max"),
    ):
        for view in views:
            np.testing.assert_array_equal(call(view), call(x))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: F.avg_pool2d(np.zeros((4, 4)), 2), ValueError,
         "avg_pool2d: input has shape (4, 4), expected (N, C, H, W) or (C, H, W)"),
        (lambda: F.avg_pool1d(np.zeros((1, 1, 2)), 3), ValueError,
         "avg_pool1d: the output would have size 0 along L: L = 2, kernel 3, stride 3"),
        (lambda: F.avg_pool1d(np.zeros((1, 1, 4)), 2, 0), ValueError,
         "avg_pool1d: stride must be at least 1, got 0"),
        (lambda: F.avg_pool1d(np.zeros((1, 1, 4)), 2, 1, 2), ValueError,
         "avg_pool1d: padding 2 is more than half of the kernel 2, expected at most 1 along L"),
        (lambda: F.avg_pool2d(np.zeros((1, 1, 4, 4)), 2, divisor_override=0), ValueError,
         "avg_pool2d: divisor_override is 0"),
        (lambda: F.avg_pool2d(np.zeros((1, 1, 4, 4)), 2, divisor_override=-2), ValueError,
         "avg_pool2d: divisor_override is -2, expected at least 1"),
        (lambda: F.avg_pool2d(np.zeros((1, 1, 4, 4), np.int32), 2), TypeError,
         "avg_pool2d: input has dtype int32, expected float32 or float64"),
        (lambda: F.adaptive_avg_pool2d(np.zeros((1, 1, 4, 4)), (1, 2, 3)), ValueError,
         "adaptive_avg_pool2d: output_size=(1, 2, 3) has 3 values, expected 2"),
        (lambda: F.adaptive_avg_pool2d(np.zeros((1, 1, 4, 4)), -1), ValueError,
         "adaptive_avg_pool2d: output_size must be at least 0, got (-1, -1)"),
        (lambda: F.adaptive_avg_pool2d(np.zeros((1, 1, 0, 4)), 1), ValueError,
         "adaptive_avg_pool2d: input has shape (1, 1, 0, 4), expected spatial sizes of at least 1"),
        (lambda: F.adaptive_max_pool1d(np.zeros((1, 1, 0)), 1), ValueError,
         "adaptive_max_pool1d: input has shape (1, 1, 0), expected spatial sizes of at least 1"),
        (lambda: F.global_pool(np.zeros((2, 3))), ValueError,
         "global_pool: input has shape (2, 3), expected (N, C, ...)"),
        (lambda: F.global_pool(np.zeros((2, 3, 4)), "min"), ValueError,
         "global_pool: reduce='min', expected 'mean', 'max' or 'sum'"),
        (lambda: F.max_unpool1d(np.zeros((1, 1, 2)), np.array([[[0, 9]]]), 2), ValueError,
         "max_unpool1d: indices value 9 at index (0, 0, 1) is out of bounds for planes of 4"),
        (lambda: F.max_unpool1d(np.zeros((1, 1, 2)), np.array([[[0, 1]]]), 2, output_size=(9,)),
         ValueError, "max_unpool1d: output_size=(9,) is not within a stride of (4,)"),
        (lambda: F.max_unpool1d(np.zeros((1, 1, 2)), np.array([[0, 1]]), 2), ValueError,
         "max_unpool1d: indices has shape (1, 2), expected (1, 1, 2)"),
    ],
)  # fmt: skip
def test_refused_calls(call, error, text):
    with pytest.raises(error, match=re.escape(text)):
        call()


@settings(max_examples=80, deadline=None, derandomize=True)
@given(averages())
def test_averages_against_torch(case):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra 'peers')")
    x, window, spatial = case
    if min(ref.window_counts(x.shape[x.ndim - spatial :], *window[:3], 1, window[3])) < 1:
        return
    if 0 in x.shape:
        return
    peer = torch.tensor(x, requires_grad=True)
    out = getattr(torch.nn.functional, f"avg_pool{spatial}d")(peer, *window)
    out.sum().backward()
    y, dx = gradient(lambda t: AVERAGE[spatial](t, *window), x)
    close = {"rtol": 1e-5, "atol": 1e-6}
    np.testing.assert_allclose(y, out.detach().numpy(), **close)
    np.testing.assert_allclose(dx, peer.grad.numpy(), **close)


def test_layers_against_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed (extra 'peers')")
    x = values((2, 3, 9, 11))
    for name, arguments in (
        ("AvgPool2d", (3, 2, 1)), ("AvgPool2d", (2, 2, 0, True, False)),
        ("AdaptiveAvgPool2d", ((4, None),)), ("AdaptiveMaxPool2d", (5,)),
    ):  # fmt: skip
        ours, peer = getattr(nn, name)(*arguments), getattr(torch.nn, name)(*arguments)
        expected = peer(torch.tensor(x)).numpy()
        np.testing.assert_allclose(ours(x).numpy(), expected, rtol=1e-5, atol=1e-6)
    pool, back = torch.nn.MaxPool2d(2, return_indices=True), torch.nn.MaxUnpool2d(2)
    y, where = nn.MaxPool2d(2, return_indices=True)(x)
    found = nn.MaxUnpool2d(2)(y, where, output_size=x.shape)
    expected = back(*pool(torch.tensor(x)), output_size=x.shape).numpy()
    np.testing.assert_array_equal(found.numpy(), expected)
    line = x.reshape(2, 3, 99)
    assert nn.AvgPool1d(2)(line).shape == (2, 3, 49)
    assert nn.AdaptiveAvgPool1d(4)(line).shape == nn.AdaptiveMaxPool1d(4)(line).shape == (2, 3, 4)
    block = x.reshape(2, 3, 3, 3, 11)
    assert nn.AvgPool3d(2)(block).shape == (2, 3, 1, 1, 5)
    assert nn.AdaptiveAvgPool3d(2)(block).shape == nn.AdaptiveMaxPool3d(2)(block).shape
