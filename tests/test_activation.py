"""ReLU: values, special values, views, on every ISA; the others follow NumPy's formulas."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fusednn as fn
import fusednn.functional as F
from fusednn import _core

# Vectors have 2 to 16 lanes, bursts 4 vectors, tasks 16384 elements.
SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 127, 16383, 16384, 16385, 70001)


@pytest.mark.parametrize("size", SIZES)
def test_relu(size, isa, dtype):
    rng = np.random.default_rng(size)
    x, grad = (rng.standard_normal(size).astype(dtype) for _ in range(2))
    y = _core.relu_forward(x)
    assert y.dtype == x.dtype
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    np.testing.assert_array_equal(_core.relu_backward(grad, y), np.where(x > 0, grad, 0))
    np.testing.assert_array_equal(_core.relu_backward(grad, x), np.where(x > 0, grad, 0))


def test_relu_of_special_values(isa, dtype):
    tiny = np.finfo(dtype).smallest_subnormal
    # 31 of each: whole vectors and single lanes, at every position of a vector.
    x = np.array([np.nan, np.inf, -np.inf, tiny, -tiny, 0.0, -0.0] * 31, dtype)
    y = _core.relu_forward(x)
    np.testing.assert_array_equal(y, np.array([np.nan, np.inf, 0, tiny, 0, 0, 0] * 31, dtype))
    # Only where -0 came in may -0 come out, as torch has it.
    np.testing.assert_array_equal(
        np.signbit(y[~np.isnan(x)]), (np.signbit(x) & (x == 0))[~np.isnan(x)]
    )
    grad = _core.relu_backward(np.ones_like(x), y)
    np.testing.assert_array_equal(grad, np.array([1, 1, 0, 1, 0, 0, 0] * 31, dtype))
    # A gradient passes whatever it is, and is dropped whatever it is.
    for value in (np.nan, np.inf, tiny):
        grad = _core.relu_backward(np.full_like(x, value), y)
        expected = np.array([value, value, 0, value, 0, 0, 0] * 31, dtype)
        np.testing.assert_array_equal(grad, expected)


def _views(a):
    """The same values in layouts that no kernel can read as they are."""
    read_only = a.copy()
    read_only.flags.writeable = False
    spread = np.zeros((*a.shape[:-1], 2 * a.shape[-1]), a.dtype)
    spread[..., ::2] = a
    raw = np.zeros(a.nbytes + 1, np.uint8)
    misaligned = raw[1:].view(a.dtype).reshape(a.shape)
    misaligned[...] = a
    return {
        "read-only": read_only,
        "strided": spread[..., ::2],
        "reversed": np.ascontiguousarray(a[::-1, :, ::-1])[::-1, :, ::-1],
        "fortran": np.asfortranarray(a),
        "big-endian": a.astype(a.dtype.newbyteorder(">")),
        "misaligned": misaligned,
    }


@pytest.mark.parametrize(
    "layout", ["read-only", "strided", "reversed", "fortran", "big-endian", "misaligned"]
)
def test_relu_reads_any_layout(layout, isa, dtype):
    rng = np.random.default_rng(5)
    x, grad = (rng.standard_normal((3, 5, 7)).astype(dtype) for _ in range(2))
    view, grad_view = _views(x)[layout], _views(grad)[layout]
    y = _core.relu_forward(view)
    assert y.flags.c_contiguous
    assert y.dtype == np.dtype(dtype)
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    dx = _core.relu_backward(grad_view, view)
    assert dx.flags.c_contiguous
    np.testing.assert_array_equal(dx, np.where(x > 0, grad, 0))
    np.testing.assert_array_equal(view, x)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 9), max_size=6).map(tuple),
    st.sampled_from(_core.usable_isas()),
    st.sampled_from(["float32", "float64"]),
    st.integers(0, 2**31),
)
def test_relu_of_any_shape(shape, isa_name, dtype, seed):
    rng = np.random.default_rng(seed)
    x, grad = (np.asarray(rng.standard_normal(shape), dtype) for _ in range(2))
    with fn.testing.isa(isa_name):
        y, dx = _core.relu_forward(x), _core.relu_backward(grad, x)
    assert y.shape == dx.shape == shape
    np.testing.assert_array_equal(y, np.maximum(x, 0))
    np.testing.assert_array_equal(dx, np.where(x > 0, grad, 0))


def test_relu_keeps_the_shape():
    assert F.relu(np.array(-1.0)).shape == ()
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)[:, ::-1, ::2] - 10
    y = F.relu(x)
    assert y.flags.c_contiguous
    np.testing.assert_array_equal(y, np.maximum(x, 0))


def test_relu_of_a_worked_example():
    a = np.array([[-2, -1, 1, 2], [2, -1, -1, 1], [1, -1, -1, -2], [-2, -1, -2, -3]], np.float32)
    y = F.relu(a)
    assert y.tolist() == [[0, 0, 1, 2], [2, 0, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0]]
    assert F.max_pool2d(y[None, None], 2)[0, 0].tolist() == [[2, 2], [1, 0]]


def test_relu_at_any_thread_count(isa):
    x = np.random.default_rng(0).standard_normal(1_000_003).astype(np.float32)
    grad = np.random.default_rng(1).standard_normal(x.size).astype(np.float32)
    for threads in (1, 2, 3):
        fn.set_num_threads(threads)
        np.testing.assert_array_equal(_core.relu_forward(x), np.maximum(x, 0))
        np.testing.assert_array_equal(_core.relu_backward(grad, x), np.where(x > 0, grad, 0))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: F.relu(np.arange(3)), TypeError, ["relu", "input", "int64", "float32"]),
        (lambda: F.relu([1.0]), TypeError, ["relu", "input", "list"]),
        (lambda: F.relu(np.ones(3, bool)), TypeError, ["relu", "input", "bool", "float32"]),
        (lambda: F.relu(np.ones(3, object)), TypeError, ["relu", "input", "object", "float32"]),
        (lambda: F.relu(np.ones(3, np.float16)), TypeError, ["relu", "input", "float16"]),
        (lambda: _core.relu_forward(np.ones((1,) * 9)), ValueError,
         ["relu", "input", "9 dimensions", "at most 8"]),
        (lambda: _core.relu_backward(np.ones(3), np.ones(4)), ValueError,
         ["relu", "grad", "(3,)", "(4,)"]),
        (lambda: _core.relu_backward(np.ones(3), np.ones(3, np.float32)), TypeError,
         ["relu", "output", "float32", "float64"]),
    ],
)  # fmt: skip
def test_refused_calls_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_against_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed (extra 'peers')")
    x = np.array([np.nan, np.inf, -np.inf, 1e-40, -1e-40, 0.0, -0.0, 3, -3] * 5, np.float32)
    peer = torch.tensor(x, requires_grad=True)
    out = torch.relu(peer)
    out.sum().backward()
    y = _core.relu_forward(x)
    np.testing.assert_array_equal(y, out.detach().numpy())
    np.testing.assert_array_equal(np.signbit(y), np.signbit(out.detach().numpy()))
    np.testing.assert_array_equal(_core.relu_backward(np.ones_like(x), y), peer.grad.numpy())
