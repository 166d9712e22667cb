"""Initial values of layers."""

import math

import numpy as np
import pytest

import fusednn as fn
from fusednn import nn

f32, f64 = np.float32, np.float64


def values(*shape, seed=0, dtype=f32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# ---- initialisation ------------------------------------------------------------------------------


def test_default_initialisations():
    fn.manual_seed(0)
    layer = nn.Linear(400, 300)
    bound = 1 / 20
    for p in layer.parameters():
        a = p.numpy()
        assert abs(a).max() <= bound
        assert abs(a.std() - bound / math.sqrt(3)) < 0.1 * bound
    conv = nn.Conv2d(8, 16, 5, groups=2)
    assert abs(conv.weight.numpy()).max() <= 1 / math.sqrt(4 * 25)
    assert abs(conv.weight.numpy()).max() > 0.95 / math.sqrt(4 * 25)
    fn.manual_seed(0)
    again = nn.Linear(400, 300)
    np.testing.assert_array_equal(again.weight.numpy(), layer.weight.numpy())
    assert nn.Linear(0, 3).bias.tolist() == [0, 0, 0]


def test_init_functions():
    fn.manual_seed(0)
    w = fn.zeros(200, 100, requires_grad=True)
    init = nn.init
    for function, std, most in (
        (lambda: init.uniform_(w, -1, 3), 4 / math.sqrt(12), 3),
        (lambda: init.normal_(w, 0, 2), 2, 12),
        (lambda: init.trunc_normal_(w, 0, 1, -2, 2), 0.88, 2),
        (lambda: init.xavier_uniform_(w), math.sqrt(2 / 300), math.sqrt(6 / 300)),
        (lambda: init.xavier_normal_(w, 2), 2 * math.sqrt(2 / 300), 1),
        (lambda: init.kaiming_uniform_(w), math.sqrt(2 / 100), math.sqrt(6 / 100)),
        (lambda: init.kaiming_normal_(w, mode="fan_out", nonlinearity="relu"), 0.1, 1),
    ):
        assert function() is w
        assert w.numpy().std() == pytest.approx(std, rel=0.03)
        assert abs(w.numpy()).max() <= most
    assert w.requires_grad
    init.orthogonal_(w, gain=2)
    np.testing.assert_allclose(w.numpy().T @ w.numpy(), 4 * np.eye(100), atol=1e-4)
    assert init.constant_(w, 3).numpy().min() == 3
    assert init.zeros_(w).numpy().max() == 0
    assert init.ones_(w).numpy().min() == 1
    np.testing.assert_array_equal(init.eye_(fn.zeros(2, 3)).numpy(), np.eye(2, 3))
    for call, text in (
        (lambda: init.xavier_normal_(fn.zeros(3)), r"shape \(3,\) has no fan"),
        (lambda: init.kaiming_normal_(w, mode="in"), "mode='in', expected 'fan_in'"),
        (lambda: init.calculate_gain("swish"), "unknown nonlinearity 'swish'"),
        (lambda: init.eye_(fn.zeros(3)), "eye_: expected a matrix"),
        (lambda: init.trunc_normal_(w, 0, 1, 2, 1), "a=2 must be below b=1"),
        (lambda: init.trunc_normal_(w, 0, 1e-9, 2, 3), "too far out"),
        (lambda: init.orthogonal_(fn.zeros(3)), "expected 2 axes"),
    ):
        with pytest.raises(ValueError, match=text):
            call()


def test_dirac_hands_on_the_input():
    x = np.random.default_rng(0).standard_normal((2, 4, 7, 5)).astype(f32)
    for groups in (1, 2):
        conv = nn.Conv2d(4, 4, 3, padding=1, groups=groups, bias=False)
        nn.init.dirac_(conv.weight, groups)
        np.testing.assert_array_equal(conv(x).numpy(), x)
    assert nn.init.dirac_(fn.zeros(4, 2, 3)).numpy().sum() == 2
    with pytest.raises(ValueError, match="expected a convolution's weight of 3 to 5 axes"):
        nn.init.dirac_(fn.zeros(3, 3))
    with pytest.raises(ValueError, match=r"shape\[0\]=3 must be divisible by groups=2"):
        nn.init.dirac_(fn.zeros(3, 3, 3), 2)


def test_sparse_has_its_zeros_in_every_column():
    fn.manual_seed(0)
    w = nn.init.sparse_(fn.zeros(50, 20), 0.3, std=2).numpy()
    assert ((w == 0).sum(0) == 15).all()
    assert len({tuple(column) for column in (w == 0).T.tolist()}) > 15
    assert w[w != 0].std() == pytest.approx(2, rel=0.1)
    assert not nn.init.sparse_(fn.zeros(5, 2), 1).numpy().any()
    for call, text in (
        (lambda: nn.init.sparse_(fn.zeros(3), 0.1), "expected a matrix"),
        (lambda: nn.init.sparse_(fn.zeros(3, 3), 1.5), "sparsity=1.5, expected a fraction"),
    ):
        with pytest.raises(ValueError, match=text):
            call()


@pytest.mark.parametrize(
    "call",
    [
        lambda w: nn.init.uniform_(w),
        lambda w: nn.init.normal_(w),
        lambda w: nn.init.trunc_normal_(w),
        lambda w: nn.init.constant_(w, 1.5),
        lambda w: nn.init.orthogonal_(w),
        lambda w: nn.init.sparse_(w, 0.5, std=3.3),
        lambda w: nn.init.kaiming_uniform_(w),
        lambda w: nn.init.xavier_normal_(w),
    ],
)
def test_integers_take_what_they_can_hold_alone(call):
    w = fn.full((3, 4), 7)
    with pytest.raises(TypeError, match="_: the tensor has dtype int64, which cannot hold"):
        call(w)
    assert (w == 7).all()
    nn.init.constant_(w, 2.0)
    assert (nn.init.ones_(w) == 1).all()
    assert nn.init.eye_(w).sum().item() == 3
    with pytest.raises(TypeError, match="_: expected a Tensor or Parameter, got ndarray"):
        call(np.ones((3, 4)))
