"""Embeddings and rotary positions: values, gradients on every ISA, refused calls, torch, ONNX."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import nn


def values(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def table_gradient(ids: Any, w: Any, grad: Any, **options: Any) -> Any:
    t = fn.tensor(w, requires_grad=True)
    F.embedding(ids, t, **options).backward(grad)
    return t.grad.numpy()


# ---- embedding -----------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [0, 1, 2, 7, 8, 15, 16, 17, 33, 129])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 40), (0,), (2, 3, 4)])
def test_embedding(width, shape, isa, dtype):
    rng = np.random.default_rng(width)
    w, ids = values(11, width, dtype=dtype), rng.integers(0, 11, shape)
    ids = np.asarray(ids)
    y = F.embedding(ids, w)
    assert y.shape == (*shape, width)
    assert y.dtype == w.dtype
    np.testing.assert_array_equal(y, w[ids])
    # Whole numbers, whose sums are exact in any order.
    grad = rng.integers(-8, 9, y.shape).astype(dtype)
    expected = np.zeros_like(w)
    np.add.at(expected, ids, grad)
    np.testing.assert_array_equal(table_gradient(ids, w, grad), expected)


@pytest.mark.parametrize(
    "kind", ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", ">i4"]
)
def test_ids_of_any_integer_dtype(kind):
    w = values(5, 3)
    ids = np.array([[4, 0, 4]], kind)
    np.testing.assert_array_equal(F.embedding(ids, w), w[[[4, 0, 4]]])
    np.testing.assert_array_equal(F.embedding(ids[:, ::-1], w), w[[[4, 0, 4]]])


def test_ids_in_a_tensor():
    y = F.embedding(fn.tensor(np.array([1, 0])), values(3, 2))
    assert isinstance(y, fn.Tensor)
    assert not y.requires_grad


def test_padding_row_gets_no_gradient(dtype):
    w, ids = values(4, 3, dtype=dtype), np.array([1, 3, 1, 0, 3])
    grad = np.ones((5, 3), dtype)
    for index in (1, -3):
        dw = table_gradient(ids, w, grad, padding_idx=index)
        np.testing.assert_array_equal(dw[:, 0], [1, 0, 0, 2])
    dw = table_gradient(ids, w, grad, scale_grad_by_freq=True)
    np.testing.assert_array_equal(dw[:, 0], [1, 1, 0, 1])


def test_sums_are_the_same_at_any_thread_count(isa, dtype):
    rng = np.random.default_rng(0)
    ids = (rng.random(20000) ** 3 * 500).astype(np.int64)  # some rows very often
    w, grad = values(700, 65, dtype=dtype), values(20000, 65, seed=1, dtype=dtype)
    results = []
    for threads in (1, 2, 3):
        fn.set_num_threads(threads)
        results.append((F.embedding(ids, w).tobytes(), table_gradient(ids, w, grad).tobytes()))
    assert results[0] == results[1] == results[2]
    expected = np.zeros(w.shape, np.longdouble)
    np.add.at(expected, ids, grad)
    found = table_gradient(ids, w, grad)
    np.testing.assert_allclose(found, expected, atol=1e-3 if dtype == "float32" else 1e-12)
    assert not found[np.bincount(ids, minlength=700) == 0].any()


@pytest.mark.parametrize("count", [255, 256, 257, 512, 200_000])
def test_a_token_that_is_everywhere_keeps_its_digits(count, isa):
    """One float32 sum of so many equal values would end 0.2 % off."""
    grad = np.full((count, 3), 0.1, np.float32)
    found = table_gradient(np.zeros(count, np.int64), np.zeros((2, 3), np.float32), grad)
    assert np.allclose(found[0], grad.sum(0, dtype=np.float64), rtol=5e-5, atol=0)
    assert not found[1].any()


def test_changed_ids_do_not_change_the_gradient():
    ids, w = np.array([0, 1]), fn.tensor(values(3, 2), requires_grad=True)
    y = F.embedding(ids, w)
    ids[:] = 2
    y.sum().backward()
    assert w.grad.tolist() == [[1, 1], [1, 1], [0, 0]]


def test_embedding_layer():
    layer = nn.Embedding(6, 4, padding_idx=-1)
    assert layer.padding_idx == 5
    assert layer.weight[5].tolist() == [0] * 4
    y = layer(np.array([[5, 2]]))
    y.sum().backward()
    assert layer.weight.grad.numpy().sum(1).tolist() == [0, 0, 4, 0, 0, 0]
    assert repr(layer) == "Embedding(6, 4, padding_idx=5)"
    table = values(3, 2)
    frozen = nn.Embedding.from_pretrained(table)
    assert not frozen.weight.requires_grad
    np.testing.assert_array_equal(frozen(np.array([2])).numpy(), table[[2]])
    big = nn.Embedding(2000, 50)
    assert abs(big.weight.numpy().std() - 1) < 0.02


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: F.embedding(np.array([[0, 3], [5, 1]]), values(5, 2)), ValueError,
         "embedding: input value 5 at index (1, 0) is out of bounds for the 5 rows of weight of "
         "shape (5, 2)"),
        (lambda: F.embedding(np.array([1, -1]), values(5, 2)), ValueError,
         "embedding: input value -1 at index 1 is out of bounds"),
        (lambda: F.embedding(np.array([2**64 - 1], np.uint64), values(5, 2)), ValueError,
         "embedding: input value 18446744073709551615 at index 0"),
        (lambda: F.embedding(np.array([1.0]), values(5, 2)), TypeError,
         "embedding: input has dtype float64, expected an integer dtype"),
        (lambda: F.embedding(np.array([True]), values(5, 2)), TypeError,
         "embedding: input has dtype bool, expected an integer dtype"),
        (lambda: F.embedding(np.array([1]), values(5)), ValueError,
         "embedding: weight has shape (5,), expected (rows, width)"),
        (lambda: F.embedding(np.array([1]), values(5, 2), 5), ValueError,
         "embedding: padding_idx=5 is out of range for weight of shape (5, 2)"),
        (lambda: F.embedding(np.array([1]), np.ones((5, 2), np.int64)), TypeError,
         "embedding: weight has dtype int64, expected float32 or float64"),
        (lambda: nn.Embedding(3, 2, 3), ValueError, "padding_idx=3 is out of range for 3 rows"),
    ],
)  # fmt: skip
def test_refused_calls(call, error, text):
    with pytest.raises(error, match=re.escape(text)):
        call()


def test_embedding_against_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed (extra 'peers')")
    rng = np.random.default_rng(3)
    w, ids, grad = values(9, 5), rng.integers(0, 9, (4, 6)), values(4, 6, 5, seed=1)
    for options in ({}, {"padding_idx": 2}, {"scale_grad_by_freq": True}):
        t = torch.tensor(w, requires_grad=True)
        y = torch.nn.functional.embedding(torch.tensor(ids), t, **options)
        y.backward(torch.tensor(grad))
        np.testing.assert_array_equal(F.embedding(ids, w, **options), y.detach().numpy())
        dw = table_gradient(ids, w, grad, **options)
        np.testing.assert_allclose(dw, t.grad.numpy(), rtol=1e-5, atol=1e-6)


# ---- rotary positions ----------------------------------------------------------------------------


def turned(x: Any, cos: Any, sin: Any, interleaved: bool, dim: int) -> Any:
    """x (N, heads, T, E), cos and sin (N, T, dim / 2): pair by pair as complex numbers."""
    out = x.astype(np.complex128)
    pairs = [(2 * i, 2 * i + 1) if interleaved else (i, i + dim // 2) for i in range(dim // 2)]
    for i, (a, b) in enumerate(pairs):
        z = (x[..., a] + 1j * x[..., b]) * (cos + 1j * sin)[:, None, :, i]
        out[..., a], out[..., b] = z.real, z.imag
    return out.real


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    ("shape", "dim"),
    [((1, 1, 1, 2), 2), ((2, 3, 5, 8), 8), ((2, 2, 4, 10), 6), ((1, 2, 7, 64), 64),
     ((2, 1, 3, 34), 34), ((1, 1, 2, 66), 64), ((0, 2, 3, 4), 4), ((2, 2, 3, 5), 4)],
)  # fmt: skip
def test_rotary(shape, dim, interleaved, isa, dtype):
    n, heads, length, width = shape
    x, grad = values(*shape, dtype=dtype), values(*shape, seed=1, dtype=dtype)
    cos, sin = F.rotary_angles(20, dim, dtype=dtype)
    ids = np.random.default_rng(2).integers(0, 20, (n, length))
    options = {"interleaved": interleaved, "rotary_dim": 0 if dim == width else dim}
    close = {"rtol": 1e-5, "atol": 4 * np.finfo(dtype).eps}
    y = F.rotary_embedding(x, cos, sin, ids, **options)
    expected = turned(x, cos[ids], sin[ids], interleaved, dim)
    np.testing.assert_allclose(y, expected, **close)
    per_place = F.rotary_embedding(x, cos[ids], sin[ids], **options)
    np.testing.assert_array_equal(per_place, y)
    in_order = F.rotary_embedding(x, cos, sin, **options)
    counted = np.broadcast_to(np.arange(length), (n, length))
    np.testing.assert_array_equal(in_order, F.rotary_embedding(x, cos, sin, counted, **options))
    flat = x.transpose(0, 2, 1, 3).reshape(n, length, heads * width)
    z = F.rotary_embedding(flat, cos, sin, ids, num_heads=heads, **options)
    np.testing.assert_array_equal(z.reshape(n, length, heads, width).transpose(0, 2, 1, 3), y)
    t = fn.tensor(x, requires_grad=True)
    F.rotary_embedding(t, cos, sin, ids, **options).backward(grad)
    back = turned(grad, cos[ids], -sin[ids], interleaved, dim)
    np.testing.assert_allclose(t.grad.numpy(), back, **close)


def test_rotary_scores_depend_on_distance_alone():
    q, k = values(1, 1, 1, 16, dtype=np.float64), values(1, 1, 1, 16, seed=1, dtype=np.float64)
    angles = F.rotary_angles(50, 16, dtype=np.float64)

    def score(i: int, j: int) -> float:
        a = F.rotary_embedding(q, *angles, np.array([[i]]))
        b = F.rotary_embedding(k, *angles, np.array([[j]]))
        return float((a * b).sum())

    np.testing.assert_allclose(score(3, 1), score(42, 40), rtol=1e-12)
    assert abs(score(3, 1) - score(3, 2)) > 1e-3


def test_rotary_gradient_by_differences():
    angles = F.rotary_angles(5, 4, dtype=np.float64)
    x = values(2, 2, 3, 6, dtype=np.float64)
    for interleaved in (False, True):
        assert fn.testing.gradcheck(
            lambda x, i=interleaved: F.rotary_embedding(x, *angles, interleaved=i, rotary_dim=4), x
        )


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c, s: F.rotary_embedding(values(2, 3), c, s),
         "rotary_embedding: input has shape (2, 3), expected (N, heads, L, E), or (N, L, heads"),
        (lambda c, s: F.rotary_embedding(values(1, 2, 9, 4), c, s),
         "rotary_embedding: cos has shape (5, 2), expected (9, 2) or more rows"),
        (lambda c, s: F.rotary_embedding(values(1, 2, 3, 8), c, s),
         "rotary_embedding: cos has shape (5, 2), expected (3, 4) or more rows"),
        (lambda c, s: F.rotary_embedding(values(1, 2, 3, 4), c, s[:4]),
         "rotary_embedding: sin has shape (4, 2), expected (5, 2)"),
        (lambda c, s: F.rotary_embedding(values(1, 2, 2, 4), c, s, np.array([[0, 5]])),
         "rotary_embedding: position_ids value 5 at index (0, 1) is out of bounds for the 5 rows"),
        (lambda c, s: F.rotary_embedding(values(1, 2, 2, 4), c, s, np.array([0, 1])),
         "rotary_embedding: position_ids has shape (2,), expected (1, 2)"),
        (lambda c, s: F.rotary_embedding(values(1, 2, 6), c, s, num_heads=4),
         "rotary_embedding: num_heads is 4, expected a divisor of the last size"),
        (lambda c, s: F.rotary_embedding(values(1, 2, 2, 4), c, s, num_heads=3),
         "rotary_embedding: num_heads is 3, expected 2 for input of shape (1, 2, 2, 4)"),
        (lambda c, s: F.rotary_embedding(values(1, 2, 2, 3), c, s),
         "rotary_embedding: rotary_dim is 3, expected an even number"),
        (lambda c, s: F.rotary_embedding(values(1, 2, 2, 4), fn.tensor(c, True), s),
         "rotary_embedding: cos and sin are constants, but one requires grad"),
        (lambda c, s: F.rotary_angles(3, 5), "rotary_angles: length=3 and rotary_dim=5"),
    ],
)  # fmt: skip
def test_refused_rotations(call, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        call(*F.rotary_angles(5, 4))
