"""Max pooling: kernels on every ISA build against the plain twin, checks, public functions."""

from __future__ import annotations

import ctypes
import mmap
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import fusednn as fn
import fusednn.functional as F
from fusednn import _core
from fusednn.testing import reference_pool as ref

Array = NDArray[Any]
NAN, INF = np.nan, np.inf


def forward(
    x: Array,
    kernel: Any,
    stride: Any = None,
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
    *,
    spatial: int = 2,
    argmax: bool = True,
) -> tuple[Array, Array | None]:
    return _core.max_pool_forward(spatial, x, kernel, stride, padding, dilation, ceil_mode, argmax)


def check(x: Array, *window: Any, spatial: int = 2) -> None:
    """On every ISA build: values, winners, positions and gradient, exactly as the twin's."""
    values, taps, positions = ref.max_pool(x, *window, spatial=spatial)
    # Whole numbers, so that sums come out exactly in any order.
    grad = np.random.default_rng(0).integers(-8, 9, values.shape).astype(x.dtype)
    gradient = ref.max_pool_backward(grad, positions, x.shape, spatial=spatial)
    full = (*window, *(None, 0, 1, False)[len(window) - 1 :])
    for isa in _core.usable_isas():
        with fn.testing.isa(isa):
            plain, none = forward(x, *window, spatial=spatial, argmax=False)
            y, argmax = forward(x, *window, spatial=spatial)
            assert none is None
            assert argmax is not None
            found = _core.max_pool_indices(spatial, argmax, x.shape, *full)
            dx = _core.max_pool_backward(spatial, grad, argmax, x.shape, *full)
        where = f"on {isa}"
        np.testing.assert_array_equal(plain, values, where)
        np.testing.assert_array_equal(y, values, where)
        np.testing.assert_array_equal(argmax, taps, where)
        np.testing.assert_array_equal(found, positions, where)
        np.testing.assert_array_equal(dx, gradient, where)
        assert plain.dtype == y.dtype == dx.dtype == x.dtype


def values(rng: np.random.Generator, shape: tuple[int, ...], kind: str, dtype: str) -> Array:
    """Distinct numbers, ties, nothing but -inf, or ties with NaN and infinities among them."""
    if kind == "distinct":
        return rng.permutation(np.arange(np.prod(shape))).reshape(shape).astype(dtype)
    if kind == "-inf":
        return np.full(shape, -INF, dtype)
    x = rng.integers(-2, 3, shape).astype(dtype)
    if kind == "special":
        dice = rng.random(shape)
        x[dice < 0.1] = NAN
        x[(dice > 0.1) & (dice < 0.3)] = -INF
        x[dice > 0.95] = INF
    return x


# ---- kernels -------------------------------------------------------------------------------------


@st.composite
def pools(draw: st.DrawFn) -> tuple[Array, tuple[Any, ...], int]:
    spatial = draw(st.integers(1, 3))
    size, kernel, stride, padding, dilation = [], [], [], [], []
    for axis in range(spatial):
        last = axis == spatial - 1
        k = draw(st.sampled_from([1, 2, 2, 3, 3, 4, 5]))
        d = draw(st.sampled_from([1, 1, 1, 2, 3]))
        size.append(draw(st.integers(1, 70 if last else 10 if spatial < 3 else 5)))
        kernel.append(k)
        stride.append(draw(st.sampled_from([1, 1, 2, 2, 3, 4] + [70] * last)))
        padding.append(draw(st.integers(0, (d * (k - 1) + 1) // 2)))
        dilation.append(d)
    window = (kernel, stride, padding, dilation, draw(st.booleans()))
    lead = draw(st.sampled_from([(1,), (2,), (2, 3), (1, 1), (0, 2), (2, 0)]))
    kind = draw(st.sampled_from(["distinct", "ties", "-inf", "special"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    x = values(rng, (*lead, *size), kind, draw(st.sampled_from(["float32", "float64"])))
    return x, window, spatial


@settings(max_examples=150, deadline=None, derandomize=True)
@given(pools())
def test_random_windows(case: tuple[Array, tuple[Any, ...], int]) -> None:
    x, window, spatial = case
    size = x.shape[x.ndim - spatial :]
    if min(ref.window_counts(size, *window)) < 1 or not ref.all_windows_real(size, *window):
        with pytest.raises(ValueError, match=f"max_pool{spatial}d: "):
            forward(x, *window, spatial=spatial)
        return
    check(x, *window, spatial=spatial)


# Around the vector widths (2 to 16 elements), and one and two of their multiples.
WIDTHS = [1, 2, 3, 4, 5, 7, 8, 9, 14, 15, 16, 17, 30, 31, 32, 33, 34, 63, 64, 65, 112]
# kernel, stride, padding: each has its own code or its own branch of it.
WINDOWS = [
    (2, 2, 0), (2, 2, 1), (2, 1, 0), (2, 1, 1), (3, 2, 0), (3, 2, 1), (3, 1, 0), (3, 1, 1),
    (1, 2, 0), (4, 1, 2), (5, 2, 2), (4, 3, 1), (3, 3, 0), (7, 1, 3), (2, 40, 1),
]  # fmt: skip


@pytest.mark.parametrize("kernel, stride, padding", WINDOWS)
def test_widths(dtype: str, kernel: int, stride: int, padding: int) -> None:
    rng = np.random.default_rng(3)
    for width in WIDTHS:
        for height, kind in ((2, "ties"), (5, "special"), (6, "ties")):
            if min(height, width) + 2 * padding >= kernel:
                check(values(rng, (3, height, width), kind, dtype), kernel, stride, padding)


@pytest.mark.parametrize(
    "size, kernel, stride, padding, dilation",
    [
        ((2501,), 3, 1, 1, 1),  # a row of many tiles
        ((2501,), 6, 1, 3, 1),
        ((2501,), 4, 2, 0, 7),
        ((2501,), 5, 3, 2, 2),
        ((5001,), 4, 900, 1, 1),  # hardly any of it looked at
        ((2, 2001), (2, 5), (1, 2), (1, 2), (1, 3)),
        ((600,), 300, 5, 150, 1),  # winners of two bytes
        ((40,), 100, 1, 50, 1),  # every window over all of the row
        ((9, 9), (9, 9), (1, 1), (0, 0), (1, 1)),
        ((3, 7), 3, 1, 10, 10),  # all but one row and column of taps always in the padding
    ],
)
def test_odd_geometry(
    dtype: str, size: tuple[int, ...], kernel: Any, stride: Any, padding: Any, dilation: Any
) -> None:
    rng = np.random.default_rng(4)
    for kind in ("ties", "special"):
        x = values(rng, (2, *size), kind, dtype)
        check(x, kernel, stride, padding, dilation, spatial=len(size))


def test_winners_of_four_bytes(isa: str) -> None:
    x = np.zeros((1, 70_000), np.float32)
    x[0, 66_666] = 1
    _, argmax = forward(x, 70_000, spatial=1)
    assert argmax is not None
    assert argmax.dtype == np.int32
    assert argmax.item() == 66_666
    dx = _core.max_pool_backward(
        1, np.full((1, 1), 3, np.float32), argmax, x.shape, 70_000, None, 0, 1, False
    )
    assert np.flatnonzero(dx).tolist() == [66_666]


def test_huge_arguments_cost_nothing(isa: str) -> None:
    """Windows far larger than the input are as small as the input to the kernels."""
    x = np.arange(10, dtype=np.float64)[None]
    y, argmax = forward(x, 3, 10**12, 10**12, 10**12, True, spatial=1)
    assert y.tolist() == [[0, 0]]
    assert argmax is not None
    assert argmax.tolist() == [[1, 0]]
    y, _ = forward(x[:, :5], 10**9, 1, 5 * 10**8, spatial=1)
    assert y.tolist() == [[4, 4, 4, 4, 4, 4]]


@pytest.mark.parametrize(
    "kernel, stride, padding, dilation",
    [(3, 2, 1, 1), (3, 1, 1, 1), (2, 2, 0, 1), (5, 1, 2, 1), (4, 3, 1, 2), (2, 50, 0, 1)],
)
def test_threads_do_not_change_a_bit(
    isa: str, dtype: str, kernel: int, stride: int, padding: int, dilation: int
) -> None:
    """Large enough to be cut into tasks; a single plane is cut by rows."""
    rng = np.random.default_rng(5)
    for shape in ((7, 5, 101, 203), (1, 1, 801, 1003)):
        x = values(rng, shape, "special", dtype)
        window = (kernel, stride, padding, dilation, False)
        results = []
        for threads in (1, 2, 3):
            fn.set_num_threads(threads)
            plain, _ = forward(x, *window, argmax=False)
            y, argmax = forward(x, *window)
            assert argmax is not None
            grad = np.random.default_rng(6).standard_normal(y.shape).astype(dtype)
            dx = _core.max_pool_backward(2, grad, argmax, shape, *window)
            results.append([a.tobytes() for a in (plain, y, argmax, dx)])
            assert results[-1][0] == results[-1][1]
        assert results[0] == results[1] == results[2]
        # The pieces fit together: the same as plane by plane, and row of windows by row.
        top = x[-1:, -1:, : (kernel - 1) * dilation + 1 - padding]
        np.testing.assert_array_equal(ref.max_pool(top, *window)[0][..., 0, :], y[-1:, -1:, 0, :])


def test_results_do_not_depend_on_old_memory(isa: str, dtype: str) -> None:
    """Result and scratch memory is recycled; what is left in it must not show."""
    rng = np.random.default_rng(7)
    for kernel, stride, padding in WINDOWS:
        x = values(rng, (4, 40, 41), "ties", dtype)
        results = []
        for _ in range(3):
            plain, _ = forward(x, kernel, stride, padding, argmax=False)
            y, argmax = forward(x, kernel, stride, padding)
            assert argmax is not None
            dx = _core.max_pool_backward(2, y, argmax, x.shape, kernel, stride, padding, 1, False)
            arrays = (plain, y, argmax, dx)
            results.append([a.tobytes() for a in arrays])
            for a in arrays:
                a.view(np.uint8).fill(255)  # NaN, for floats
            del plain, y, argmax, dx, a, arrays
        assert results[0] == results[1] == results[2]
        assert np.frombuffer(results[2][0], dtype).max() <= 2


@contextmanager
def guarded(shape: tuple[int, ...], dtype: str, at_end: bool) -> Iterator[Array]:
    """An array that ends (or begins) where touching the next (or last) byte is fatal."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    page = mmap.PAGESIZE
    pages = -(-size // page)
    memory = mmap.mmap(-1, (pages + 2) * page)
    libc = ctypes.CDLL(None, use_errno=True)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for offset in (0, (pages + 1) * page):
        assert libc.mprotect(ctypes.c_void_p(start + offset), page, 0) == 0
    offset = (pages + 1) * page - size if at_end else page
    array = np.frombuffer(memory, np.uint8, size, offset).view(dtype).reshape(shape)
    yield array
    for offset in (0, (pages + 1) * page):
        assert libc.mprotect(ctypes.c_void_p(start + offset), page, 3) == 0


@pytest.mark.parametrize("at_end", [True, False])
def test_nothing_outside_the_input_is_read(isa: str, dtype: str, at_end: bool) -> None:
    for kernel, stride, padding in WINDOWS:
        for width in (3, 8, 13, 16, 31, 50):
            shape = (2, 6, width)
            if width + 2 * padding < kernel:
                continue
            with guarded(shape, dtype, at_end) as x:
                x[:] = values(np.random.default_rng(width), shape, "ties", dtype)
                y, argmax = forward(x, kernel, stride, padding)
                assert argmax is not None
                np.testing.assert_array_equal(
                    forward(x, kernel, stride, padding, argmax=False)[0], y
                )
            with guarded(y.shape, dtype, at_end) as grad:
                grad[:] = 1
                with guarded(y.shape, str(argmax.dtype), at_end) as taps:
                    taps[:] = argmax
                    dx = _core.max_pool_backward(
                        2, grad, taps, shape, kernel, stride, padding, 1, False
                    )
            assert dx.sum() == y.size


# ---- arrays of every kind ------------------------------------------------------------------------

BASE = np.random.default_rng(8).permutation(2 * 6 * 10 * 12).reshape(2, 6, 10, 12)


def misaligned(x: Array) -> Array:
    raw = np.zeros(x.nbytes + 1, np.uint8)
    view = raw[1:].view(x.dtype).reshape(x.shape)
    view[:] = x
    return view


def read_only(x: Array) -> Array:
    x = x.copy()
    x.flags.writeable = False
    return x


KINDS = {
    "reversed": lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
    "every second": lambda x: np.repeat(x, 2, axis=3)[..., ::2],
    "channels last": lambda x: np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2),
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "big-endian": lambda x: x.astype(x.dtype.newbyteorder(">")),
    "misaligned": misaligned,
    "read-only": read_only,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("window", [(3, 2, 1), (2, 2, 0), (4, 1, 2)])
def test_any_array_is_read(dtype: str, kind: str, window: tuple[int, int, int]) -> None:
    x = BASE.astype(dtype)
    strange = KINDS[kind](x)
    np.testing.assert_array_equal(strange, x)
    y, argmax = forward(x, *window)
    found, taps = forward(strange, *window)
    assert argmax is not None
    assert taps is not None
    np.testing.assert_array_equal(found, y)
    np.testing.assert_array_equal(taps, argmax)
    assert found.dtype == np.dtype(dtype)
    expected = _core.max_pool_backward(2, y, argmax, x.shape, *window, 1, False)
    strange_taps = argmax[..., ::-1].copy()[..., ::-1]
    np.testing.assert_array_equal(
        _core.max_pool_backward(2, KINDS[kind](y), strange_taps, x.shape, *window, 1, False),
        expected,
    )


def test_a_broadcast_array_is_read() -> None:
    x = np.broadcast_to(np.arange(6, dtype=np.float32)[:, None], (2, 3, 6, 7))
    check(x, 3, 2, 1)


def test_views_of_python_numbers_as_arguments() -> None:
    x = BASE.astype(np.float32)
    expected, _ = forward(x, (3, 2), (2, 1), (1, 0), (1, 2))
    for ints in (list, np.array, lambda v: tuple(np.int64(i) for i in v)):
        found, _ = forward(x, ints((3, 2)), ints((2, 1)), ints((1, 0)), ints((1, 2)))
        np.testing.assert_array_equal(found, expected)


def test_invalid_taps_never_write_elsewhere(isa: str) -> None:
    """The taps are data of the caller: nonsense gives nonsense, but inside dx."""
    for kernel, stride in ((2, 2), (3, 2), (4, 3)):
        y, argmax = forward(np.ones((2, 9, 9), np.float32), kernel, stride)
        assert argmax is not None
        argmax.fill(255)
        dx = _core.max_pool_backward(2, y, argmax, (2, 9, 9), kernel, stride, 0, 1, False)
        assert not dx.any()


# ---- refusals ------------------------------------------------------------------------------------

REFUSED = [
    # shape, arguments, text
    ((1, 1, 4), (3, 2, 0, 2),
     "max_pool1d: the output would have size 0 along L: L = 4, kernel 3, stride 2, dilation 2, "
     "padding 0 (effective kernel 5)"),
    ((1, 1, 1), (2,),
     "max_pool1d: the output would have size 0 along L: L = 1, kernel 2, stride 2, dilation 1, "
     "padding 0 (effective kernel 2)"),
    ((1, 1, 9, 2), (5, 1),
     "max_pool2d: the output would have size -2 along W: W = 2, kernel 5, stride 1, dilation 1, "
     "padding 0 (effective kernel 5)"),
    ((1, 1, 4, 4), (2, 0), "max_pool2d: stride must be at least 1, got 0"),
    ((1, 1, 4, 4), (2, (2, -3)), "max_pool2d: stride must be at least 1, got (2, -3)"),
    ((1, 1, 4, 4), (0,), "max_pool2d: kernel_size must be at least 1, got 0"),
    ((1, 1, 4, 4), (2, 2, 0, 0), "max_pool2d: dilation must be at least 1, got 0"),
    ((1, 1, 50), (3, 2, -1), "max_pool1d: padding must be at least 0, got -1"),
    ((1, 1, 4, 4), ((2, 2, 2),),
     "max_pool2d: kernel_size has 3 values (2, 2, 2), expected 1 or 2"),
    ((1, 1, 4), ((2, 2),), "max_pool1d: kernel_size has 2 values (2, 2), expected 1"),
    ((1, 1, 4, 4), (2, 2, (1, 1, 1)),
     "max_pool2d: padding has 3 values (1, 1, 1), expected 1 or 2"),
    ((1, 1, 4, 4), ((),), "max_pool2d: kernel_size has 0 values (), expected 1 or 2"),
    ((1, 1, 4, 4), (2, None, 2),
     "max_pool2d: padding 2 is more than half of the effective kernel 2 = dilation * "
     "(kernel_size - 1) + 1, expected at most 1 along H: H = 4, kernel 2, stride 2, dilation 1, "
     "padding 2"),
    ((1, 1, 20), (3, 2, 11, 10),
     "max_pool1d: padding 11 is more than half of the effective kernel 21 = dilation * "
     "(kernel_size - 1) + 1, expected at most 10 along L: L = 20, kernel 3, stride 2, "
     "dilation 10, padding 11"),
    ((1, 1, 9), (2, 1, 1, 10),
     "max_pool1d: window 0 would hold no element of the input along L: L = 9, kernel 2, stride 1, "
     "dilation 10, padding 1"),
    ((1, 1, 0, 4), (2, 2, 1),
     "max_pool2d: window 0 would hold no element of the input along H: H = 0, kernel 2, stride 2, "
     "dilation 1, padding 1"),
    ((4, 4), (2,), "max_pool2d: input has shape (4, 4), expected (N, C, H, W) or (C, H, W)"),
    ((1, 1, 1, 4, 4), (2,),
     "max_pool2d: input has shape (1, 1, 1, 4, 4), expected (N, C, H, W) or (C, H, W)"),
    ((1, 1, 4, 4), (1_250_000_000_000, 1_250_000_000_000, 0, 1_250_000_000_000),
     "max_pool2d: sizes overflow 64 bits along H: H = 4, kernel 1250000000000, "
     "stride 1250000000000, dilation 1250000000000, padding 0"),
    ((1, 1, 4, 4), (2**70,),
     "max_pool2d: kernel_size = 1180591620717411303424 does not fit into 64 bits"),
    ((1, 1, 4, 4), (2, 2, 2**62),
     "max_pool2d: sizes overflow 64 bits along H: H = 4, kernel 2, stride 2, dilation 1, "
     "padding 4611686018427387904"),
    ((1, 3, 3), (65_536, 1, 32_768),
     "max_pool2d: a window of 4294967296 elements is too large, expected at most 2147483647"),
]  # fmt: skip


@pytest.mark.parametrize("argmax", [False, True])
@pytest.mark.parametrize("shape, arguments, text", REFUSED)
def test_refused(shape: tuple[int, ...], arguments: Any, text: str, argmax: bool) -> None:
    """With one text, whether or not a gradient will be wanted, before anything is computed."""
    spatial = int(text[8])
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"):
        forward(np.zeros(shape, np.float32), *arguments, spatial=spatial, argmax=argmax)


@pytest.mark.parametrize(
    "x, kernel, text",
    [
        (np.zeros((1, 1, 4, 4), np.int32), 2,
         "max_pool2d: input has dtype int32, expected float32 or float64"),
        (np.zeros((1, 1, 4, 4), np.float16), 2,
         "max_pool2d: input has dtype float16, expected float32 or float64"),
        (np.zeros((1, 1, 4, 4), bool), 2,
         "max_pool2d: input has dtype bool, expected float32 or float64"),
        (np.zeros((1, 1, 4, 4), object), 2,
         "max_pool2d: input has dtype object, expected float32 or float64"),
        ([[[1.0]]], 2, "max_pool2d: input must be a NumPy array, got list"),
        (np.zeros((1, 1, 4, 4)), 2.0,
         "max_pool2d: kernel_size must be an int or a sequence of ints, got float"),
        (np.zeros((1, 1, 4, 4)), "22",
         "max_pool2d: kernel_size must be an int or a sequence of ints, got str"),
        (np.zeros((1, 1, 4, 4)), (2, 2.5), "max_pool2d: kernel_size must be an int, got float"),
    ],
)  # fmt: skip
def test_refused_types(x: Any, kernel: Any, text: str) -> None:
    with pytest.raises(TypeError, match=f"^{re.escape(text)}$"):
        forward(x, kernel)


def test_refused_in_backward() -> None:
    x = np.zeros((1, 1, 4, 4), np.float32)
    y, argmax = forward(x, 2)
    assert argmax is not None

    def backward(grad: Array, taps: Any, shape: tuple[int, ...] = (1, 1, 4, 4)) -> Array:
        return _core.max_pool_backward(2, grad, taps, shape, 2, None, 0, 1, False)

    op = "max_pool2d backward: "
    wrong = np.zeros((1, 1, 3, 2), np.float32)
    for error, text, call in [
        (ValueError, "grad has shape (1, 1, 3, 2), expected (1, 1, 2, 2)",
         lambda: backward(wrong, argmax)),
        (ValueError, "argmax has shape (1, 1, 1, 2), expected (1, 1, 2, 2)",
         lambda: backward(y, argmax[:, :, :1])),
        (TypeError, "argmax has dtype int64, expected uint8",
         lambda: backward(y, argmax.astype(np.int64))),
        (TypeError, "argmax must be a NumPy array, got NoneType", lambda: backward(y, None)),
        (TypeError, "grad has dtype int64, expected float32 or float64",
         lambda: backward(y.astype(np.int64), argmax)),
        (ValueError, "negative size in shape (1, 1, -4, 4)",
         lambda: backward(y, argmax, (1, 1, -4, 4))),
    ]:  # fmt: skip
        with pytest.raises(error, match=f"^{re.escape(op + text)}$"):
            call()
    with pytest.raises(ValueError, match=r"max_pool2d: argmax holds tap 9, which is not a real"):
        _core.max_pool_indices(2, argmax + 9, (1, 1, 4, 4), 2, None, 0, 1, False)


# ---- the public functions ------------------------------------------------------------------------


def pooled(x: Any, *window: Any, **options: Any) -> tuple[Array, Array]:
    """F.max_pool2d of one plane: values and positions."""
    plane = np.asarray(x, np.float64)[None, None]
    y, positions = F.max_pool2d(plane, *window, return_indices=True, **options)
    np.testing.assert_array_equal(F.max_pool2d(plane, *window, **options), y)
    assert positions.dtype == np.int64
    return y[0, 0], positions[0, 0]


def gradient(x: Any, function: Any, grad: Any = None) -> Array:
    t = fn.tensor(np.asarray(x, np.float64), requires_grad=True)
    y = function(t)
    y.backward(fn.tensor(np.ones(y.shape) if grad is None else np.asarray(grad, np.float64)))
    return np.asarray(t.grad.numpy())


def test_ceil_mode_shapes() -> None:
    assert F.max_pool2d(np.zeros((1, 1, 6, 7)), 1, 2, ceil_mode=True).shape == (1, 1, 3, 4)
    assert F.max_pool2d(np.zeros((1, 1, 8, 10)), 3, 4, ceil_mode=True).shape == (1, 1, 2, 3)
    assert F.max_pool2d(np.zeros((1, 1, 8, 10)), 3, 4).shape == (1, 1, 2, 2)


@pytest.mark.parametrize(
    "x, value, position",
    [
        ([[1, NAN], [5, 6]], NAN, 1),
        ([[NAN, 1], [5, 6]], NAN, 0),
        ([[1, 7], [NAN, INF]], NAN, 2),
        ([[NAN, NAN], [NAN, NAN]], NAN, 3),
        ([[NAN, 3], [NAN, 9]], NAN, 2),
        ([[-INF, -INF], [-INF, -INF]], -INF, 0),
        ([[-INF, -3], [-INF, -INF]], -3, 1),
        ([[0.0, -0.0], [0.0, 0.0]], 0, 0),
        ([[1, INF], [INF, 2]], INF, 1),
    ],
)
def test_special_values(isa: str, dtype: str, x: Any, value: float, position: int) -> None:
    """The first maximum, but the last NaN; in every lane of a vector, alone or among numbers."""
    window = np.asarray(x, dtype)
    for columns in (1, 7, 40):
        for at in {0, columns // 2, columns - 1}:
            plane = np.zeros((1, 1, 2, 2 * columns), dtype)
            plane[..., 2 * at : 2 * at + 2] = window
            y, positions = F.max_pool2d(plane, 2, return_indices=True)
            np.testing.assert_array_equal(y[0, 0, 0, at], value)
            row, column = divmod(position, 2)
            assert positions[0, 0, 0, at] == row * 2 * columns + 2 * at + column
            np.testing.assert_array_equal(np.delete(y[0, 0, 0], at), 0)
            np.testing.assert_array_equal(F.max_pool2d(plane, 2), y)
            dx = gradient(plane, lambda t: F.max_pool2d(t, 2))
            assert dx[0, 0, row, 2 * at + column] == 1
            assert dx.sum() == columns


def test_gradient_goes_to_the_first_of_equals() -> None:
    dx = gradient([[[0.6, 0.6, 0.3]]], lambda t: F.max_pool1d(t, 3), [[[2.5]]])
    np.testing.assert_array_equal(dx, [[[2.5, 0, 0]]])


def test_ties_in_every_layout() -> None:
    expected = np.broadcast_to([[0, 0, 1], [0, 0, 1], [3, 3, 4]], (1, 8, 3, 3))
    last = np.zeros((1, 3, 3, 8), np.float32).transpose(0, 3, 1, 2)
    for x in (np.zeros((1, 8, 3, 3), np.float32), last):
        for threads in (1, 2, 3):
            fn.set_num_threads(threads)
            _, positions = F.max_pool2d(x, 3, 1, 1, return_indices=True)
            np.testing.assert_array_equal(positions, expected)


def test_gradient_with_padding() -> None:
    x = [[[[1, 4, 7], [2, 5, 8], [3, 6, 9]]]]
    y, _ = pooled(x[0][0], 2, 2, 1)
    np.testing.assert_array_equal(y, [[1, 7], [3, 9]])
    dx = gradient(x, lambda t: F.max_pool2d(t, 2, 2, 1))
    np.testing.assert_array_equal(dx, [[[[1, 0, 1], [0, 0, 0], [1, 0, 1]]]])


def test_padding_never_wins() -> None:
    y, _ = pooled(np.full((3, 3), -2.0), 2, 2, 1)
    np.testing.assert_array_equal(y, np.full((2, 2), -2.0))
    with pytest.raises(TypeError, match="max_pool2d: input has dtype int32"):
        F.max_pool2d(np.full((1, 1, 3, 3), -5, np.int32), 2, 2, 1)
    with pytest.raises(ValueError, match="effective kernel"):
        F.max_pool2d(np.zeros((1, 1, 3, 3)), 2, 2, 2)
    y, positions = pooled(np.full((3, 3), -INF), 3, 2, 1)
    assert np.isneginf(y).all()
    np.testing.assert_array_equal(positions, [[0, 1], [3, 4]])


def test_padding_limit_counts_the_dilation() -> None:
    assert F.max_pool1d(np.zeros((1, 1, 30)), 3, 2, 2, 10).shape == (1, 1, 7)
    with pytest.raises(ValueError, match="window 0 would hold no element"):
        F.max_pool1d(np.zeros((1, 1, 9)), 2, 1, 1, 10)


def test_same_checks_with_and_without_gradient() -> None:
    for x in (np.zeros((1, 1, 50)), fn.tensor(np.zeros((1, 1, 50)), requires_grad=True)):
        with pytest.raises(ValueError, match=r"^max_pool1d: padding must be at least 0, got -1$"):
            F.max_pool1d(x, 3, 2, -1)


def test_empty_batches_and_channels() -> None:
    for shape in ((0, 3, 6, 6), (2, 0, 6, 6)):
        for window in ((2,), (3, 2, 1), (4, 3)):
            y, positions = F.max_pool2d(np.zeros(shape), *window, return_indices=True)
            assert y.shape == positions.shape == (*shape[:2], *y.shape[2:])
            assert gradient(np.zeros(shape), lambda t, w=window: F.max_pool2d(t, *w)).shape == shape
    with pytest.raises(ValueError, match="output would have size 0"):
        F.max_pool2d(np.zeros((0, 3, 1, 1)), 2)


def test_without_a_batch_axis() -> None:
    x = BASE.astype(np.float64)
    np.testing.assert_array_equal(F.max_pool2d(x[0], 3, 2, 1), F.max_pool2d(x, 3, 2, 1)[0])
    row = x.reshape(2, 6, 120)
    np.testing.assert_array_equal(F.max_pool1d(row[0], 3, 2, 1), F.max_pool1d(row, 3, 2, 1)[0])
    block = x.reshape(2, 6, 2, 5, 12)
    np.testing.assert_array_equal(F.max_pool3d(block[0], 2), F.max_pool3d(block, 2)[0])


def test_a_million_rows() -> None:
    x = np.random.default_rng(9).permutation(4 * 10**6).reshape(1, 10**6, 4)
    x = x.astype(np.float32)
    np.testing.assert_array_equal(F.max_pool1d(x, 4)[..., 0], x.max(2))
    dx = gradient(x, lambda t: F.max_pool1d(t, 4))
    assert dx.sum() == 10**6
    np.testing.assert_array_equal(dx.argmax(2), x.argmax(2))


@pytest.mark.parametrize("shape, padding", [((1, 16, 600, 400), 0), ((1, 64, 112, 112), 1)])
def test_shapes_of_real_networks(shape: tuple[int, ...], padding: int) -> None:
    x = np.random.default_rng(10).standard_normal(shape, dtype=np.float32)
    wide = np.pad(x, ((0, 0), (0, 0), (padding, 0), (padding, 0)), constant_values=-INF)
    rows = (shape[2] + 2 * padding - 3) // 2 + 1
    columns = (shape[3] + 2 * padding - 3) // 2 + 1
    taps = [
        wide[:, :, i : i + 2 * rows - 1 : 2, j : j + 2 * columns - 1 : 2]
        for i in range(3)
        for j in range(3)
    ]
    np.testing.assert_array_equal(F.max_pool2d(x, 3, 2, padding), np.max(taps, axis=0))


@pytest.mark.parametrize("window", [(2, 2, 0), (3, 2, 1), (3, 1, 1), (4, 3, 2), (2, 1, 1, 3)])
def test_gradient_by_differences(window: tuple[int, ...]) -> None:
    """Values a whole step apart, so that no small change makes another element win."""
    rng = np.random.default_rng(11)
    x = values(rng, (1, 2, 7, 6), "distinct", "float64")
    weight = rng.standard_normal(F.max_pool2d(x, *window).shape)
    found = gradient(x, lambda t: F.max_pool2d(t, *window), weight)
    expected = np.zeros_like(x)
    for index in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[index] += 0.25
        down[index] -= 0.25
        change = F.max_pool2d(up, *window) - F.max_pool2d(down, *window)
        expected[index] = (change * weight).sum() / 0.5
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)
