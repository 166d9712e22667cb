"""Cosines, lengths and divergences beside PyTorch's, and their gradients."""

import math

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import nn
from fusednn.testing import gradcheck


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def distributions(*shape, seed=0):
    p = np.random.default_rng(seed).uniform(0.1, 1, shape)
    return p / p.sum(-1, keepdims=True)


def beside_torch(ours, theirs, *arrays):
    """Value and gradients of both."""
    torch = pytest.importorskip("torch")
    a = [fn.tensor(x, requires_grad=True) for x in arrays]
    b = [torch.tensor(x, requires_grad=True) for x in arrays]
    out, expected = ours(*a), theirs(torch, *b)
    np.testing.assert_allclose(out.numpy(), expected.detach().numpy(), rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(ours(*arrays), out.numpy())
    weight = values(*out.shape, seed=9)
    out.backward(np.asarray(weight))
    expected.backward(torch.tensor(weight))
    for x, y in zip(a, b, strict=True):
        np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("p", [1, 2, math.inf])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_normalize(p, dim):
    def theirs(torch, x):
        return torch.nn.functional.normalize(x, p, dim)

    beside_torch(lambda x: F.normalize(x, p, dim), theirs, values(3, 4, 5))


def test_nothing_has_length_eps():
    x = fn.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    out = F.normalize(x)
    assert out.tolist()[0] == [0, 0]
    out.sum().backward()
    assert np.isfinite(x.grad.numpy()).all()
    assert F.normalize(np.zeros((1, 2))).tolist() == [[0, 0]]
    assert F.normalize(np.zeros((0, 2))).shape == (0, 2)


@pytest.mark.parametrize(
    ("a", "b", "dim"),
    [((3, 4), (3, 4), 1), ((3, 4), (1, 4), -1), ((2, 3, 4), (3, 4), 0), ((4,), (4,), 0)],
)
def test_cosine_similarity(a, b, dim):
    def theirs(torch, x, y):
        return torch.nn.functional.cosine_similarity(x, y, dim)

    beside_torch(
        lambda x, y: F.cosine_similarity(x, y, dim), theirs, values(*a), values(*b, seed=1)
    )


@pytest.mark.parametrize("reduction", ["mean", "sum", "batchmean", "none"])
@pytest.mark.parametrize("log_target", [False, True])
@pytest.mark.filterwarnings("ignore:reduction")
def test_kl_div(reduction, log_target):
    def theirs(torch, x, t):
        return torch.nn.functional.kl_div(x, t, reduction=reduction, log_target=log_target)

    log_p, target = np.log(distributions(3, 5)), distributions(3, 5, seed=1)
    target = np.log(target) if log_target else target

    def ours(x, t):
        return F.kl_div(x, t, reduction=reduction, log_target=log_target)

    beside_torch(ours, theirs, log_p, target)
    assert gradcheck(ours, (log_p, target))


def test_what_cannot_happen_costs_nothing():
    x = fn.tensor(np.log([[0.25, 0.75]]), requires_grad=True)
    t = fn.tensor(np.array([[0.0, 1.0]]), requires_grad=True)
    loss = F.kl_div(x, t, reduction="batchmean")
    assert loss.item() == pytest.approx(-math.log(0.75))
    loss.backward()
    assert x.grad.tolist() == [[0, -1]]
    assert np.isfinite(t.grad.numpy()).all()
    assert F.kl_div(np.zeros((0, 3)), np.zeros((0, 3)), reduction="batchmean") == 0


def test_a_users_target_may_change_before_backward():
    x, target = fn.tensor(np.zeros((1, 2)), requires_grad=True), np.array([[0.5, 0.5]])
    loss = F.kl_div(x, target, reduction="sum") + F.cosine_similarity(x + 1, target, 1).sum()
    target[:] = 9
    loss.backward()
    np.testing.assert_allclose(x.grad.numpy(), [[-0.5, -0.5]], atol=1e-15)


def test_modules():
    log_p, target = np.log(distributions(3, 5)), distributions(3, 5, seed=1)
    out = nn.KLDivLoss("batchmean")(log_p, target)
    assert out.item() == F.kl_div(log_p, target, reduction="batchmean")
    assert nn.CosineSimilarity(0)(log_p, target).shape == (5,)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: F.kl_div(np.zeros(3), np.zeros((3, 1))), ValueError, r"kl_div: target has shape"),
        (lambda: F.kl_div(np.zeros(3), np.zeros(3), reduction="x"), ValueError, "reduction='x'"),
        (
            lambda: F.kl_div(np.array(0.0), np.array(1.0), reduction="batchmean"),
            ValueError,
            "needs an axis of samples",
        ),
        (lambda: F.kl_div(np.zeros(3), np.zeros(3, int)), TypeError, "target has dtype int64"),
        (
            lambda: nn.KLDivLoss("avg"),
            ValueError,
            "KLDivLoss: reduction='avg', expected 'none', 'm",
        ),
        (
            lambda: F.cosine_similarity(np.ones((2, 3)), np.ones((2, 4))),
            ValueError,
            r"x1 of shape \(2, 3\) and x2 of \(2, 4\) do not fit",
        ),
        (lambda: F.normalize(np.ones(3, int)), TypeError, "normalize: input has dtype int64"),
        (lambda: F.normalize(np.ones(3)), ValueError, "dim=1 is out of range"),
        (lambda: F.normalize(np.ones((2, 3)), p=3), ValueError, "norm: p=3, expected 1, 2 or inf"),
    ],
)
def test_bad_calls_say_what_is_wrong(call, error, text):
    with pytest.raises(error, match=text):
        call()
