"""Losses as functions and as modules."""

import math

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import nn

f32, f64 = np.float32, np.float64


def values(*shape, seed=0, dtype=f32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# ---- losses --------------------------------------------------------------------------------------


def test_cross_entropy_over_no_target():
    x = fn.tensor([[1.0, 2.0, 3.0]], requires_grad=True)
    target = np.array([-100])
    loss = F.cross_entropy(x, target)
    assert math.isnan(loss.item())
    loss.backward()
    assert x.grad.tolist() == [[0, 0, 0]]
    assert F.cross_entropy(x, target, reduction="sum").item() == 0
    assert F.cross_entropy(x, target, reduction="none").tolist() == [0]
    zero = F.cross_entropy(x, target, empty="zero")
    assert zero.item() == 0
    x.grad = None
    zero.backward()
    assert x.grad.tolist() == [[0, 0, 0]]
    empty = np.zeros((0, 3), f32)
    assert math.isnan(F.cross_entropy(empty, np.zeros(0, int)))
    assert F.cross_entropy(empty, np.zeros(0, int), empty="zero") == 0
    assert F.cross_entropy(empty, empty, empty="zero") == 0
    assert math.isnan(F.cross_entropy(empty, empty))
    with pytest.raises(ValueError, match="cross_entropy: empty='no', expected 'nan' or 'zero'"):
        F.cross_entropy(x, target, empty="no")


def test_class_weights_with_smoothing():
    loss = F.cross_entropy(
        np.array([[2.0, 0.0]]), np.array([0]), np.array([1.0, 16.0]), label_smoothing=0.1
    )
    assert loss == pytest.approx(1.822124, abs=1e-6)


def test_targets():
    x = np.zeros((2, 3))
    with pytest.raises(ValueError, match=r"-4.* out of bounds"):
        F.cross_entropy(x, np.array([0, -4]), ignore_index=-1)
    out = F.cross_entropy(x, np.array([255, 1]), ignore_index=255, reduction="none")
    assert out.tolist() == [0, pytest.approx(math.log(3))]
    assert F.cross_entropy(x[0], np.int64(2)) == pytest.approx(math.log(3))
    assert F.cross_entropy(x, fn.arange(2)) == pytest.approx(math.log(3))
    with pytest.raises(ValueError, match="cross_entropy: reduction='avg', expected 'none'"):
        F.cross_entropy(x, np.array([0, 1]), reduction="avg")
    with pytest.raises(ValueError, match=r"probabilities has shape \(2, 2\), expected \(2, 3\)"):
        F.cross_entropy(x, np.zeros((2, 2)))
    with pytest.raises(TypeError, match="target has dtype float32, expected float64 like input"):
        F.cross_entropy(x, np.zeros((2, 3), f32))
    with pytest.raises(ValueError, match="label_smoothing=2"):
        F.cross_entropy(x, x, label_smoothing=2)
    with pytest.raises(ValueError, match=r"weight has shape \(2,\), expected \(3,\)"):
        F.cross_entropy(x, x, np.zeros(2))


def test_losses_demand_one_shape():
    for name in ("mse_loss", "l1_loss", "huber_loss", "binary_cross_entropy_with_logits"):
        with pytest.raises(
            ValueError, match=rf"{name}: target has shape \(4,\), expected \(4, 1\)"
        ):
            getattr(F, name)(np.zeros((4, 1)), np.zeros(4))
        with pytest.raises(TypeError, match=f"{name}: target has dtype float32, expected float64"):
            getattr(F, name)(np.zeros(2), np.zeros(2, f32))
    assert math.isnan(F.mse_loss(np.zeros(0), np.zeros(0)))
    with pytest.raises(ValueError, match="smooth_l1_loss: beta=-1, expected a number >= 0"):
        F.smooth_l1_loss(np.zeros(2), np.zeros(2), beta=-1)
    with pytest.raises(ValueError, match="huber_loss: delta=0"):
        F.huber_loss(np.zeros(2), np.zeros(2), delta=0)
    with pytest.raises(
        ValueError, match=r"pos_weight of shape \(3,\) does not broadcast|broadcast"
    ):
        F.binary_cross_entropy_with_logits(np.zeros(2), np.zeros(2), pos_weight=np.zeros(3))


def test_logits_far_out():
    x, t = np.array([-1e4, 1e4, 1e4]), np.array([0.0, 1.0, 0.0])
    out = F.binary_cross_entropy_with_logits(x, t, reduction="none")
    assert out.tolist() == [0, 0, 1e4]


def test_losses_as_modules():
    x, y = values(4, 3), np.array([0, 2, 1, 1])
    weight = np.array([1, 2, 3], f32)
    loss = nn.CrossEntropyLoss(weight, label_smoothing=0.1, ignore_index=1)
    assert isinstance(loss(x, y), fn.Tensor)
    assert loss(x, y).item() == F.cross_entropy(x, y, weight, label_smoothing=0.1, ignore_index=1)
    assert list(loss.state_dict()) == ["weight"]
    assert nn.NLLLoss()(x, y).item() == F.nll_loss(x, y)
    for module, function in (
        (nn.MSELoss(), F.mse_loss),
        (nn.L1Loss(), F.l1_loss),
        (nn.HuberLoss(), F.huber_loss),
        (nn.SmoothL1Loss(), F.smooth_l1_loss),
        (nn.BCEWithLogitsLoss(), F.binary_cross_entropy_with_logits),
    ):
        assert module(x, abs(x)).item() == function(x, abs(x))


def test_binary_cross_entropy_of_probabilities():
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    p, t, w = random.uniform(0, 1, (3, 4)), random.uniform(0, 1, (3, 4)), random.uniform(0, 2, 4)
    p[0, :2], t[0, :2] = [0, 1], [1, 1]
    for reduction in ("mean", "sum", "none"):
        x = fn.tensor(p, requires_grad=True)
        out = F.binary_cross_entropy(x, t, w, reduction=reduction)
        y = torch.tensor(p, requires_grad=True)
        expected = torch.nn.functional.binary_cross_entropy(
            y, torch.tensor(t), torch.tensor(w), reduction=reduction
        )
        np.testing.assert_allclose(out.numpy(), expected.detach().numpy(), rtol=1e-12)
        out.sum().backward()
        expected.sum().backward()
        # torch's guard against 0 is a float32 number
        np.testing.assert_allclose(x.grad.numpy(), y.grad.numpy(), rtol=1e-7)
    inside = random.uniform(0.1, 0.9, (3, 4))
    assert fn.testing.gradcheck(
        lambda a, b: F.binary_cross_entropy(a, b, w), (inside, random.uniform(0, 1, (3, 4)))
    )
    assert nn.BCELoss(reduction="sum")(np.array([1.0]), np.array([0.0])) == 100
    assert np.isnan(F.binary_cross_entropy(np.zeros(0), np.zeros(0)))
    with pytest.raises(ValueError, match=r"input has values from -0\.1 to 0\.5, expected \[0, 1\]"):
        F.binary_cross_entropy(np.array([-0.1, 0.5]), np.zeros(2))
    with pytest.raises(ValueError, match="expected \\[0, 1\\]"):
        F.binary_cross_entropy(np.array([np.nan]), np.zeros(1))
    with pytest.raises(ValueError, match=r"weight of shape \(3,\) does not broadcast to \(2,\)"):
        F.binary_cross_entropy(np.zeros(2), np.zeros(2), np.ones(3))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_losses_match_torch(reduction):
    torch = pytest.importorskip("torch")
    TF = torch.nn.functional
    a, b = values(4, 3, 5, dtype=f64), abs(values(4, 3, 5, seed=1, dtype=f64)) % 1
    labels = np.random.default_rng(2).integers(0, 3, (4, 5))
    labels[0, 0] = 1
    weight = np.array([0.5, 2.0, 3.0])
    o = {"reduction": reduction}
    cases = [
        (F.mse_loss, TF.mse_loss, b, o),
        (F.l1_loss, TF.l1_loss, b, o),
        (F.huber_loss, TF.huber_loss, b, o),
        (F.smooth_l1_loss, TF.smooth_l1_loss, b, o),
        (F.binary_cross_entropy_with_logits, TF.binary_cross_entropy_with_logits, b, o),
        (F.cross_entropy, TF.cross_entropy, labels, o),
        (F.cross_entropy, TF.cross_entropy, labels, {**o, "ignore_index": 1, "weight": weight}),
        (
            F.cross_entropy,
            TF.cross_entropy,
            labels,
            {**o, "label_smoothing": 0.3, "weight": weight},
        ),
        (F.cross_entropy, TF.cross_entropy, b, {**o, "label_smoothing": 0.3, "weight": weight}),
        (F.nll_loss, TF.nll_loss, labels, {**o, "ignore_index": 2, "weight": weight}),
    ]
    for ours, theirs, target, options in cases:
        x, t = fn.tensor(a, requires_grad=True), torch.tensor(a, requires_grad=True)
        wrapped = {
            k: torch.tensor(v) if isinstance(v, np.ndarray) else v for k, v in options.items()
        }
        y, z = ours(x, target, **options), theirs(t, torch.tensor(target), **wrapped)
        np.testing.assert_allclose(y.numpy(), z.detach().numpy(), rtol=1e-12)
        (y * y).sum().backward()
        (z * z).sum().backward()
        np.testing.assert_allclose(x.grad.numpy(), t.grad.numpy(), rtol=1e-11, atol=1e-14)
