"""Locally connected layers, and the matrix that a convolution is."""

from __future__ import annotations

import sys

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import nn
from fusednn.testing import reference_conv

OPS = {1: F.locally_connected1d, 2: F.locally_connected2d}
CONVS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


def normal(*shape, dtype="float64", seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# batch, channels, outputs, size, kernel, window
CASES = [
    (2, 3, 4, (7,), (3,), {}),
    (1, 1, 1, (1,), (1,), {}),
    (3, 2, 5, (17,), (4,), {"stride": 3, "padding": 2, "dilation": 2}),
    (1, 2, 1, (6,), (3,), {"stride": 2, "padding": "same"}),
    (2, 2, 2, (6,), (3,), {"padding": "causal"}),
    (2, 3, 4, (6, 5), (3, 2), {}),
    (2, 2, 3, (9, 16), (3, 3), {"stride": (2, 1), "padding": ((0, 1), (2, 1))}),
    (5, 2, 3, (4, 5), (2, 2), {"stride": 5, "dilation": 3}),
    (0, 2, 3, (4, 5), (2, 2), {}),
    (2, 0, 3, (4, 5), (2, 2), {}),
    (2, 2, 0, (4, 5), (2, 2), {}),
]


def by_definition(x, w, b, window):
    """Position by position, as a convolution with that position's weight."""
    axes = x.ndim - 2
    plain = {k: v for k, v in window.items() if k != "padding"}
    sides = reference_conv.sides(window.get("padding", 0), x.shape[2:], w.shape[-axes:], **plain)
    padded = np.pad(x, [(0, 0), (0, 0), *sides])
    positions = w.shape[:axes]
    y = np.zeros((x.shape[0], w.shape[axes], *positions))
    for position in np.ndindex(*positions):
        y[(..., *position)] = CONVS[axes](padded, w[position], **plain)[(..., *position)]
    return y if b is None else y + b


def arrays(case, dtype="float64"):
    batch, channels, outputs, size, kernel, window = case
    x = normal(batch, channels, *size, dtype=dtype)
    y = CONVS[len(size)](x, np.zeros((outputs, channels, *kernel), dtype), **window)
    positions = y.shape[2:]
    w = normal(*positions, outputs, channels, *kernel, dtype=dtype, seed=1)
    return x, w, normal(outputs, *positions, dtype=dtype, seed=2)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values(case, isa, dtype):
    x, w, b = arrays(case, dtype)
    op, window = OPS[len(case[3])], case[5]
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    for bias in (None, b):
        expected = by_definition(*(None if a is None else a.astype(float) for a in (x, w, bias)),
                                 window)  # fmt: skip
        y = op(x, w, bias, **window)
        assert y.dtype == dtype
        np.testing.assert_allclose(y, expected, rtol=0, atol=tolerance * 10)
        if len(x):
            np.testing.assert_array_equal(
                op(x[0], w, bias, **window), op(x[:1], w, bias, **window)[0]
            )


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients(case):
    op, window = OPS[len(case[3])], case[5]
    three = arrays(case)
    if all(a.size for a in three):
        assert fn.testing.gradcheck(lambda *three: op(*three, **window), three)
        alone = (three[0][0], *three[1:])
        assert fn.testing.gradcheck(lambda *three: op(*three, **window), alone)
        return
    tensors = [fn.tensor(a, requires_grad=True) for a in three]
    op(*tensors, **window).sum().backward()
    for tensor, array in zip(tensors, three, strict=True):
        assert tensor.grad.shape == array.shape


def test_the_lectures_count_of_weights():
    local = nn.LocallyConnected1d(1, 1, 10, 3, bias=False)
    shared = nn.Conv1d(1, 1, 3, bias=False)
    count = [sum(p.numpy().size for p in layer.parameters()) for layer in (local, shared)]
    assert count == [24, 3]
    x = np.array([0, 0, 0, 1, 0, 1, 1, 1, 0, 0], np.float32)[None, None]
    local.load_state_dict({"weight": np.tile(np.float32([1, -1, 1]), 8).reshape(8, 1, 1, 3)})
    assert local(x).numpy().ravel().tolist() == [0, 1, -1, 2, 0, 1, 0, 1]


def test_layers():
    layer = nn.LocallyConnected2d(2, 3, (6, 7), (3, 2), (1, 2), "same", bias=True)
    assert repr(layer) == (
        "LocallyConnected2d(2, 3, input_size=(6, 7), kernel_size=(3, 2), stride=(1, 2), "
        "padding='same')"
    )
    shapes = {name: a.shape for name, a in layer.state_dict().items()}
    assert shapes == {"weight": (6, 4, 3, 2, 3, 2), "bias": (3, 6, 4)}
    assert layer.output_size == (6, 4)
    assert 0.9 < np.abs(layer.weight.numpy()).max() * 12**0.5 <= 1
    x = normal(2, 2, 6, 7, dtype="float32")
    np.testing.assert_allclose(
        layer(x).numpy(),
        by_definition(x, layer.weight.numpy(), layer.bias.numpy(),
                      {"stride": (1, 2), "padding": "same"}), rtol=0, atol=1e-5)  # fmt: skip
    with pytest.raises(ValueError, match=r"positions \(6, 4\), the output of input .* \(6, 3\)"):
        layer(x[..., :5])
    with pytest.raises(ValueError, match="LocallyConnected1d: the output would have size"):
        nn.LocallyConnected1d(1, 1, 2, 3)


_X, _W = np.ones((1, 1, 4)), np.ones((3, 2, 1, 2))


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: F.locally_connected1d(_X, _W[:2]), ValueError, ["(2, 2, 1, 2)", "(2,)", "(3,)"]),
        (lambda: F.locally_connected1d(_X, _W[0]), ValueError, ["weight", "(2, 1, 2)", "4 axes"]),
        (lambda: F.locally_connected1d(_X, _W, np.ones(2)), ValueError, ["bias", "(2,)", "(2, 3)"]),
        (lambda: F.locally_connected1d(_X, _W.astype("f4")), TypeError, ["weight", "float32"]),
        (lambda: F.locally_connected1d(_X, _W, np.ones((2, 3), "f4")), TypeError, ["bias"]),
        (lambda: F.locally_connected1d(_X.astype(int), _W), TypeError, ["input", "int64"]),
        (lambda: F.locally_connected1d([[1.0]], _W), TypeError, ["input", "list"]),
        (lambda: F.locally_connected1d(np.ones((1, 2, 4)), _W), ValueError, ["expects 1", "got 2"]),
        (lambda: F.locally_connected1d(_X, _W, stride=0), ValueError, ["stride", "got 0"]),
    ],
)  # fmt: skip
def test_refused_calls(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in ["locally_connected1d", *words]:
        assert word in str(caught.value)


# ---- the matrix of a convolution -----------------------------------------------------------------

MATRICES = [
    ((3, 9), (4, 3, 3), {}),
    ((1, 1), (1, 1, 1), {}),
    ((4, 9), (6, 2, 2), {"stride": 2, "padding": 1, "dilation": 3, "groups": 2}),
    ((2, 7), (3, 2, 3), {"stride": 2, "padding": "same"}),
    ((2, 7), (3, 2, 3), {"padding": "causal"}),
    ((3, 5, 6), (2, 3, 3, 2), {"padding": ((1, 0), (0, 2))}),
    ((4, 6, 5), (4, 1, 3, 3), {"padding": 1, "groups": 4, "stride": (2, 1)}),
    ((2, 3, 4, 5), (3, 2, 2, 3, 2), {"padding": (0, 1, 1)}),
    ((0, 3), (2, 0, 2), {}),
    ((2, 3), (0, 2, 2), {}),
    ((1, 1, 1), (1, 1, 5, 5), {"padding": 4}),
]


@pytest.mark.parametrize("case", MATRICES, ids=str)
def test_the_matrix_times_a_vector_is_the_convolution(case, dtype):
    shape, weight, window = case
    x, w = normal(*shape, dtype=dtype), normal(*weight, dtype=dtype, seed=1)
    y = CONVS[len(shape) - 1](x, w, **window)
    matrix = fn.conv_matrix(w, shape, **window, dense=True)
    assert matrix.shape == (y.size, x.size)
    assert matrix.dtype == dtype
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(matrix @ x.ravel(), y.ravel(), rtol=0, atol=tolerance * 10)
    pytest.importorskip("scipy", reason="SciPy is not installed (extra 'test')")
    sparse = fn.conv_matrix(fn.tensor(w), shape, **window)
    assert sparse.has_canonical_format
    assert sparse.dtype == dtype
    np.testing.assert_array_equal(sparse.toarray(), matrix)
    np.testing.assert_allclose(sparse @ x.ravel(), y.ravel(), rtol=0, atol=tolerance * 10)


def test_the_matrix_of_the_lecture():
    w = np.array([[[1.0, -1.0, 1.0]]])
    x = np.array([0.0, 0, 0, 1, 0, 1, 1, 1, 0, 0])
    matrix = fn.conv_matrix(w, (1, 10), dense=True)
    assert matrix.shape == (8, 10)
    assert np.count_nonzero(matrix) == 24
    assert [np.count_nonzero(matrix == value) for value in (1, -1)] == [16, 8]
    assert (matrix @ x).tolist() == [0, 1, -1, 2, 0, 1, 0, 1]
    for shift in range(8):
        assert matrix[shift, shift : shift + 3].tolist() == [1, -1, 1]


def test_the_transposed_matrix_is_the_transposed_convolution():
    w, y = normal(4, 3, 3, 2), normal(1, 4, 4, 5)
    x = F.conv_transpose2d(y, w, stride=(2, 1))
    matrix = fn.conv_matrix(w, x.shape[1:], stride=(2, 1), dense=True)
    np.testing.assert_allclose(matrix.T @ y.ravel(), x.ravel(), rtol=0, atol=1e-12)


def test_zero_weights_are_stored():
    pytest.importorskip("scipy", reason="SciPy is not installed (extra 'test')")
    assert fn.conv_matrix(np.zeros((1, 1, 3)), (1, 10)).nnz == 24


def test_without_scipy(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(ImportError, match=r"conv_matrix: .*pip install scipy"):
        fn.conv_matrix(np.ones((1, 1, 2)), (1, 3))
    assert fn.conv_matrix(np.ones((1, 1, 2)), (1, 3), dense=True).tolist() == [[1, 1, 0], [0, 1, 1]]


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: fn.conv_matrix(np.ones((1, 1, 3)), (10,)), ValueError, ["(1, 1, 3)", "(10,)"]),
        (lambda: fn.conv_matrix(np.ones((1, 3)), (1, 10)), ValueError, ["(1, 3)", "3 to 5 axes"]),
        (lambda: fn.conv_matrix(np.ones((1, 2, 3)), (1, 10)), ValueError, ["expects 2", "got 1"]),
        (lambda: fn.conv_matrix(np.ones((1, 1, 3)), (1, 2)), ValueError, ["output", "L = 2"]),
        (lambda: fn.conv_matrix(np.ones((1, 1, 3), int), (1, 10)), TypeError, ["int64"]),
        (lambda: fn.conv_matrix([[[1.0]]], (1, 10)), TypeError, ["list"]),
    ],
)  # fmt: skip
def test_refused_matrices(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in ["conv_matrix", *words]:
        assert word in str(caught.value)
