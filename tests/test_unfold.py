"""unfold and fold: kernels on every ISA build against the plain twin, checks, public functions."""

from __future__ import annotations

import re
from collections.abc import Callable
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
Pair = tuple[int, int]
# kernel, dilation, padding, stride
Window = tuple[Any, Any, Any, Any]


def whole(shape: tuple[int, ...], dtype: str, seed: int = 0) -> Array:
    """Whole numbers: their sums come out exactly in any order."""
    return np.random.default_rng(seed).integers(-9, 10, shape).astype(dtype)


def check(x: Array, window: Window) -> None:
    """On every ISA build, exactly what the twin gives."""
    size = x.shape[2:]
    columns = ref.unfold(x, *window)
    given_columns = whole(columns.shape, str(x.dtype), 1)
    image = ref.fold(given_columns, size, *window) if min(size) > 0 else None
    for isa in _core.usable_isas():
        with fn.testing.isa(isa):
            found = _core.unfold(x, *window)
            np.testing.assert_array_equal(found, columns, f"unfold on {isa}")
            assert found.dtype == x.dtype
            if image is not None:
                found = _core.fold(given_columns, size, *window)
                np.testing.assert_array_equal(found, image, f"fold on {isa}")
                assert found.dtype == x.dtype


@st.composite
def windows(draw: st.DrawFn) -> tuple[tuple[int, ...], Window, str]:
    def pair(*choices: int) -> Pair:
        return draw(st.sampled_from(choices)), draw(st.sampled_from(choices))

    shape = (
        draw(st.integers(0, 2)),
        draw(st.integers(0, 3)),
        draw(st.integers(0, 9)),
        draw(st.integers(0, 70)),
    )
    window = (pair(1, 2, 3, 4, 5), pair(1, 1, 2, 3), pair(0, 0, 1, 2, 5), pair(1, 1, 2, 3, 4, 50))
    return shape, window, draw(st.sampled_from(["float32", "float64"]))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(windows())
def test_random_windows(case: tuple[tuple[int, ...], Window, str]) -> None:
    shape, (kernel, dilation, padding, stride), dtype = case
    x = whole(shape, dtype)
    if min(ref.window_counts(shape[2:], kernel, stride, padding, dilation)) < 1:
        with pytest.raises(ValueError, match=r"unfold: the output would have size"):
            _core.unfold(x, kernel, dilation, padding, stride)
        return
    check(x, (kernel, dilation, padding, stride))


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel, padding", [(1, 0), (2, 1), (3, 1), (4, 0)])
def test_widths(dtype: str, kernel: int, padding: int, stride: int) -> None:
    """Around the vector widths (2 to 16 elements), and one and two of their multiples."""
    for width in (1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65):
        if width + 2 * padding >= kernel:
            check(whole((2, 2, 5, width), dtype, width), (kernel, 1, padding, stride))


def test_padding_wider_than_the_window(dtype: str) -> None:
    """Some windows lie in the padding altogether: zeros, and nothing comes back from them."""
    check(whole((1, 2, 3, 4), dtype), (2, 1, 7, 2))
    check(whole((1, 1, 2, 2), dtype), ((1, 3), (1, 9), (5, 30), (1, 4)))


@pytest.mark.parametrize("window", [(3, 1, 1, 1), (3, 1, 1, 2), (4, 2, 3, 3)])
def test_threads_do_not_change_a_bit(isa: str, dtype: str, window: Window) -> None:
    """Large enough to be cut into tasks; a single plane is cut by rows."""
    rng = np.random.default_rng(2)
    for shape in ((3, 5, 101, 103), (1, 1, 401, 503)):
        x = rng.standard_normal(shape).astype(dtype)
        results = []
        for threads in (1, 2, 3):
            fn.set_num_threads(threads)
            columns = _core.unfold(x, *window)
            image = _core.fold(columns, shape[2:], *window)
            results.append((columns.tobytes(), image.tobytes()))
        assert results[0] == results[1] == results[2]


def test_fold_is_the_transpose_of_unfold(isa: str) -> None:
    rng = np.random.default_rng(3)
    for window in ((3, 1, 1, 1), ((2, 3), (3, 1), (0, 2), (2, 1)), (4, 1, 0, 4)):
        x = rng.standard_normal((2, 3, 13, 21))
        columns = _core.unfold(x, *window)
        other = rng.standard_normal(columns.shape)
        image = _core.fold(other, x.shape[2:], *window)
        np.testing.assert_allclose((columns * other).sum(), (x * image).sum(), rtol=1e-12)


def test_sums_of_many_terms_are_accurate(isa: str, dtype: str) -> None:
    """25 overlapping terms, bounded by what 25 roundings can cost."""
    rng = np.random.default_rng(4)
    columns = rng.standard_normal((1, 2 * 25, 20 * 33)).astype(dtype)
    found = _core.fold(columns, (20, 33), 5, 1, 2, 1)
    exact = ref.fold(columns, (20, 33), 5, 1, 2, 1)
    size = ref.fold(np.abs(columns), (20, 33), 5, 1, 2, 1)
    assert (np.abs(found - exact) <= 25 * np.finfo(dtype).eps * size).all()


def test_special_values_move_unchanged(isa: str, dtype: str) -> None:
    x = np.array([[[[1e-40, -0.0, np.inf], [np.nan, -np.inf, 5]]]], dtype)
    columns = _core.unfold(x, 1, 1, 0, 1)
    assert columns.tobytes() == x.tobytes()
    np.testing.assert_array_equal(_core.fold(columns, (2, 3), 1, 1, 0, 1), x)


@pytest.mark.parametrize(
    "strange",
    [
        lambda x: np.ascontiguousarray(x[..., ::-1])[..., ::-1],
        lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
        lambda x: np.ascontiguousarray(x.T).T,
        lambda x: x.astype(x.dtype.newbyteorder(">")),
    ],
    ids=["reversed", "every second", "transposed", "big-endian"],
)
def test_any_array_is_read(dtype: str, strange: Callable[[Array], Array]) -> None:
    x = whole((2, 3, 6, 7), dtype)
    columns = _core.unfold(x, 3, 1, 1, 2)
    np.testing.assert_array_equal(_core.unfold(strange(x), 3, 1, 1, 2), columns)
    image = _core.fold(columns, (6, 7), 3, 1, 1, 2)
    np.testing.assert_array_equal(_core.fold(strange(columns), (6, 7), 3, 1, 1, 2), image)
    frozen = x.copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(_core.unfold(frozen, 3, 1, 1, 2), columns)


UNFOLD_REFUSED = [
    ((4, 4), (2, 1, 0, 1), "input has shape (4, 4), expected (N, C, H, W) or (C, H, W)"),
    ((1, 1, 2, 2), (3, 1, 0, 1),
     "the output would have size 0 along H: H = 2, kernel 3, stride 1, dilation 1, padding 0 "
     "(effective kernel 3)"),
    ((1, 1, 4, 4), (2, 1, 0, 0), "stride must be at least 1, got 0"),
    ((1, 1, 4, 4), (2, 1, (0, -1), 1), "padding must be at least 0, got (0, -1)"),
    ((1, 1, 4, 4), (2, 0, 0, 1), "dilation must be at least 1, got 0"),
    ((1, 1, 4, 4), (-2, 1, 0, 1), "kernel_size must be at least 1, got -2"),
    ((1, 1, 4, 4), ((1, 2, 3), 1, 0, 1), "kernel_size has 3 values (1, 2, 3), expected 1 or 2"),
    ((1, 1, 4, 4), (10**12, 10**12, 0, 1),
     "sizes overflow 64 bits along H: H = 4, kernel 1000000000000, stride 1, "
     "dilation 1000000000000, padding 0"),
]  # fmt: skip

FOLD_REFUSED = [
    ((1, 12, 5), (4, 5), (2, 1, 0, 1),
     "input has shape (1, 12, 5) with 5 windows, expected 3 * 4 = 12 for output_size (4, 5), "
     "kernel_size (2, 2), dilation (1, 1), padding (0, 0), stride (1, 1)"),
    ((1, 13, 12), (4, 5), (2, 1, 0, 1),
     "input has shape (1, 13, 12), expected size 13 of axis 1 to be a multiple of 4, the elements "
     "of kernel_size (2, 2)"),
    ((13, 12), (4, 5), (2, 1, 0, 1),
     "input has shape (13, 12), expected size 13 of axis 0 to be a multiple of 4, the elements "
     "of kernel_size (2, 2)"),
    ((12,), (4, 5), (2, 1, 0, 1),
     "input has shape (12,), expected (N, C * kernel elements, windows) or "
     "(C * kernel elements, windows)"),
    ((1, 12, 12), (4, 5, 6), (2, 1, 0, 1),
     "output_size has 3 values (4, 5, 6), expected 1 or 2"),
    ((1, 12, 12), (0, 5), (2, 1, 0, 1), "output_size must be at least 1, got (0, 5)"),
    ((1, 12, 12), (1, 5), (2, 1, 0, 1),
     "the output would have size 0 along H: H = 1, kernel 2, stride 1, dilation 1, padding 0 "
     "(effective kernel 2)"),
    ((1, 12, 12), (4, 5), (2, 1, 0, 0), "stride must be at least 1, got 0"),
]  # fmt: skip


@pytest.mark.parametrize("shape, window, text", UNFOLD_REFUSED)
def test_unfold_refuses(shape: tuple[int, ...], window: Window, text: str) -> None:
    with pytest.raises(ValueError, match=f"^unfold: {re.escape(text)}$"):
        _core.unfold(np.zeros(shape, np.float32), *window)


@pytest.mark.parametrize("shape, size, window, text", FOLD_REFUSED)
def test_fold_refuses(shape: tuple[int, ...], size: Any, window: Window, text: str) -> None:
    with pytest.raises(ValueError, match=f"^fold: {re.escape(text)}$"):
        _core.fold(np.zeros(shape, np.float32), size, *window)


def test_refused_types() -> None:
    for x in (np.zeros((1, 4, 4), np.int64), np.zeros((1, 4, 4), np.float16)):
        text = f"input has dtype {x.dtype}, expected float32 or float64"
        with pytest.raises(TypeError, match=f"^unfold: {text}$"):
            _core.unfold(x, 2, 1, 0, 1)
        with pytest.raises(TypeError, match=f"^fold: {text}$"):
            _core.fold(x, 3, 2, 1, 0, 1)
    with pytest.raises(TypeError, match=r"^unfold: input must be a NumPy array, got list$"):
        _core.unfold([[[1.0]]], 1, 1, 0, 1)


# ---- the public functions ------------------------------------------------------------------------


def test_public_functions() -> None:
    """A worked example: 2 x 2 windows of 1 2 3 / 4 5 6, one column each."""
    x = np.arange(1.0, 7.0).reshape(1, 1, 2, 3)
    columns = F.unfold(x, 2)
    np.testing.assert_array_equal(columns, [[[1, 2], [2, 3], [4, 5], [5, 6]]])
    np.testing.assert_array_equal(F.fold(columns, (2, 3), 2), [[[[1, 4, 3], [4, 10, 6]]]])
    np.testing.assert_array_equal(F.unfold(x[0], 2), columns[0])
    np.testing.assert_array_equal(F.fold(columns[0], (2, 3), 2), [[[1, 4, 3], [4, 10, 6]]])
    np.testing.assert_array_equal(
        F.unfold(x, kernel_size=(1, 2), dilation=(1, 2), padding=(0, 1), stride=(1, 3)),
        [[[0, 0], [2, 5]]],
    )


def test_empty() -> None:
    assert F.unfold(np.zeros((0, 3, 4, 4)), 2).shape == (0, 12, 9)
    assert F.unfold(np.zeros((2, 0, 4, 4)), 2).shape == (2, 0, 9)
    assert F.fold(np.zeros((0, 12, 9)), 4, 2).shape == (0, 3, 4, 4)
    assert F.fold(np.zeros((2, 0, 9)), 4, 2).shape == (2, 0, 4, 4)


def test_gradients_are_each_other() -> None:
    rng = np.random.default_rng(5)
    x = fn.tensor(rng.standard_normal((2, 3, 6, 7)), requires_grad=True)
    columns = F.unfold(x, 3, padding=1, stride=2)
    weight = rng.standard_normal(columns.shape)
    columns.backward(fn.tensor(weight))
    np.testing.assert_allclose(
        x.grad.numpy(), ref.fold(weight, (6, 7), 3, 1, 1, 2), rtol=1e-13, atol=1e-13
    )
    c = fn.tensor(weight, requires_grad=True)
    image = F.fold(c, (6, 7), 3, padding=1, stride=2)
    weight = rng.standard_normal(image.shape)
    image.backward(fn.tensor(weight))
    np.testing.assert_array_equal(c.grad.numpy(), ref.unfold(weight, 3, 1, 1, 2))
