"""unfold and fold of 16-bit arrays: copies have the same bits, sums are float32, rounded once."""

from __future__ import annotations

import numpy as np
import pytest
from test_half_kernels import DTYPES, close, make
from test_unfold_kernels import CASES

import fusednn as fn
import fusednn.functional as F
from fusednn import nn


@pytest.fixture(params=list(DTYPES))
def half(request):
    return DTYPES[request.param]


# Many windows over an element: rounding after each addition would be off by several roundings.
DENSE = ((2, 3, 40, 7), (25, 3), 1, (12, 1), 1)


@pytest.mark.parametrize("case", [*CASES, DENSE], ids=str)
def test_columns_and_their_sums(xp, half, case):
    shape, *window = case
    x, held = make(xp, shape, half)
    ours, exact = (fn.tensor(one, requires_grad=True) for one in (held, x))
    got, wanted = F.unfold(ours, *window), F.unfold(exact, *window)
    assert got.dtype == half
    np.testing.assert_array_equal(xp.asnumpy(got._data).astype(np.float64), wanted.numpy())
    dy, held_dy = make(xp, wanted.shape, half, seed=1)
    got.backward(held_dy)
    wanted.backward(dy)
    close(xp, ours.grad._data, exact.grad.numpy(), 1, 1e-4)
    columns = fn.tensor(held_dy, requires_grad=True)
    image = F.fold(columns, shape[-2:], *window)
    assert image.dtype == half
    np.testing.assert_array_equal(xp.asnumpy(image._data), xp.asnumpy(ours.grad._data))
    image.backward(held)
    np.testing.assert_array_equal(xp.asnumpy(columns.grad._data), xp.asnumpy(got._data))


def test_specials(xp, half):
    """What is copied keeps its sign, NaN, infinities and subnormal numbers; of them sums are NaN or
    infinite."""
    tiny = float(np.array(1, np.uint16).view(half))
    x = np.array([np.nan, np.inf, -np.inf, -0.0, tiny, -tiny], np.float32).astype(half)
    columns = F.unfold(xp.asarray(x.reshape(1, 1, 1, 6)), (1, 1))
    np.testing.assert_array_equal(xp.asnumpy(columns).ravel()[1:].view("u2"), x[1:].view("u2"))
    assert np.isnan(float(xp.asnumpy(columns).ravel()[0]))
    image = F.fold(xp.asarray(x[[1, 2, 1, 1]].reshape(1, 2, 2)), (1, 3), (1, 2))
    np.testing.assert_array_equal(xp.asnumpy(image).astype("f").ravel(), [np.inf, np.nan, np.inf])


@pytest.mark.parametrize("view", ["reversed", "transposed", "of every second"])
def test_views(xp, half, view):
    x, held = make(xp, (2, 3, 6, 5), half)
    take = {
        "reversed": lambda a: a[:, ::-1, ::-1],
        "transposed": lambda a: a.transpose(0, 1, 3, 2),
        "of every second": lambda a: a[..., ::2],
    }[view]
    got = xp.asnumpy(F.unfold(take(held), 2)).astype(np.float64)
    np.testing.assert_array_equal(got, F.unfold(take(x), 2))


def test_modules_and_autocast(xp, half):
    """They take what comes."""
    x, held = make(xp, (2, 3, 5, 4), half)
    columns = nn.Unfold(2, stride=2)(fn.tensor(held))
    assert columns.dtype == half
    with fn.autocast(half.name):
        assert nn.Fold((5, 4), 2, stride=2)(columns).dtype == half
        assert F.unfold(xp.asarray(x.astype("f")), 2).dtype == np.float32


def test_refused(xp, half):
    x = xp.asarray(np.ones((1, 4, 3), half))
    with pytest.raises(ValueError, match=r"fold: input has .*windows"):
        F.fold(x, (3, 3), 2)
    with pytest.raises(TypeError, match=f"unfold: input has dtype {half}, expected float32"):
        F.unfold(np.ones((1, 1, 3, 3), half), 2)
