"""Sums of many rows keep their digits, along any axis and in any layout."""

import numpy as np
import pytest

import fusednn as fn

f32, f64 = np.float32, np.float64


def layouts(data):
    yield data
    yield np.asfortranarray(data)
    yield np.ascontiguousarray(data[::-1])[::-1]
    yield data.astype(data.dtype.newbyteorder(">"))


@pytest.mark.parametrize("rows", [1, 127, 128, 129, 255, 256, 257, 1000, 50_000])
@pytest.mark.parametrize("axes", [(0,), (0, 1), (1,), (0, 2), (0, 1, 2), (2,), (1, 2)])
def test_sums_along_every_axis(rows, axes):
    data = np.random.default_rng(0).uniform(0, 1, (rows, 2, 3)).astype(f32)
    for array in layouts(data):
        x = fn.from_numpy(array)
        for keepdim in (False, True):
            out = x.sum(axes, keepdim)
            assert out.dtype == f32
            expected = data.astype(f64).sum(axes, keepdims=keepdim)
            assert out.shape == expected.shape
            np.testing.assert_allclose(out.numpy(), expected, rtol=2e-6)
        np.testing.assert_allclose(x.mean(axes).numpy(), data.astype(f64).mean(axes), rtol=2e-6)


@pytest.mark.parametrize("axes", [(1, 0), (2, 0), (0, 2, 1)])
def test_the_order_of_the_axes_does_not_matter(axes):
    x = fn.tensor(np.random.default_rng(0).uniform(0, 1, (300, 2, 5)).astype(f32))
    np.testing.assert_array_equal(x.sum(axes).numpy(), x.sum(tuple(sorted(axes))).numpy())


def test_statistics_of_many_rows():
    data = (np.random.default_rng(0).standard_normal((200_000, 2)) + 3).astype(f32)
    exact, x = data.astype(f64), fn.tensor(data)
    np.testing.assert_allclose(x.mean(0).numpy(), exact.mean(0), rtol=1e-6)
    np.testing.assert_allclose(x.var(0).numpy(), exact.var(0, ddof=1), rtol=1e-5)
    np.testing.assert_allclose(x.norm(dim=0).numpy(), np.sqrt((exact**2).sum(0)), rtol=1e-6)
    np.testing.assert_allclose(x.cumsum(0).numpy(), exact.cumsum(0), rtol=1e-6)


def test_gradients_that_sum_many_rows():
    rows = 300_000
    grad = np.full((rows, 2), 0.1, f32)
    expected = [rows * float(f32(0.1))] * 2
    bias = fn.zeros(2, requires_grad=True)
    (fn.zeros(rows, 1) + bias).backward(grad)
    np.testing.assert_allclose(bias.grad.numpy(), expected, rtol=1e-6)
    table = fn.zeros(3, 2, requires_grad=True)
    table[np.zeros(rows, int)].backward(grad)
    np.testing.assert_allclose(table.grad.numpy()[0], expected, rtol=1e-6)
    row = fn.zeros(1, 2, requires_grad=True)
    row.repeat(rows, 1).backward(grad)
    np.testing.assert_allclose(row.grad.numpy()[0], expected, rtol=1e-6)
    steps = fn.zeros(rows, 2, requires_grad=True)
    steps.cumsum(0).backward(grad)
    np.testing.assert_allclose(steps.grad.numpy()[0], expected, rtol=1e-6)


def test_the_same_bits_at_any_number_of_threads():
    x = fn.tensor(np.random.default_rng(0).standard_normal((5000, 7)).astype(f32))
    seen = set()
    for threads in (1, 2, 3):
        fn.set_num_threads(threads)
        seen.add(x.sum(0).numpy().tobytes())
    assert len(seen) == 1
