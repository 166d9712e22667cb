"""GradScaler: what it does to losses, gradients and the scale; here on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import fusednn as fn
from fusednn.optim import SGD, GradScaler


@pytest.fixture
def w():
    return fn.tensor([1.0, 2.0], requires_grad=True)


def backward(scaler, w, slope=3.0):
    w.grad = None
    scaler.scale((w * slope).sum()).backward()


def test_a_step(w):
    scaler, optimizer = GradScaler(), SGD([w], lr=0.5)
    backward(scaler, w)
    np.testing.assert_array_equal(w.grad.numpy(), [3 * 65536.0] * 2)
    scaler.step(optimizer)
    scaler.update()
    np.testing.assert_array_equal(w.numpy(), [-0.5, 0.5])
    np.testing.assert_array_equal(w.grad.numpy(), [3.0, 3.0])
    assert scaler.get_scale() == 65536.0
    assert [float(one) for one in scaler.scale((w[0], w[1]))] == [-32768.0, 32768.0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_skipped(w, bad):
    other = fn.tensor([1.0], requires_grad=True)
    scaler, optimizer = GradScaler(16.0), SGD([w, other], lr=0.5)
    backward(scaler, w)
    other.grad = fn.tensor([bad])
    assert scaler.step(optimizer) is None
    scaler.update()
    np.testing.assert_array_equal(w.numpy(), [1.0, 2.0])
    assert scaler.get_scale() == 8.0


def test_growth(w):
    scaler, optimizer = GradScaler(4.0, growth_factor=4.0, growth_interval=3), SGD([w], lr=0.0)
    scales = []
    for i in range(8):
        backward(scaler, w, np.inf if i == 1 else 1.0)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [4, 2, 2, 2, 8, 8, 8, 32]


def test_clipping_between(w):
    scaler, optimizer = GradScaler(1024.0), SGD([w], lr=1.0)
    backward(scaler, w)
    scaler.unscale_(optimizer)
    norm = fn.optim.clip_grad_norm_([w], 1.0)
    assert norm == pytest.approx(3 * 2**0.5)
    scaler.step(optimizer)
    scaler.update(new_scale=7.0)
    np.testing.assert_allclose(w.numpy(), [1 - 0.5**0.5, 2 - 0.5**0.5], rtol=1e-5)
    assert scaler.get_scale() == 7.0


def test_state(w):
    scaler, optimizer = GradScaler(32.0, growth_interval=5), SGD([w], lr=0.0)
    backward(scaler, w)
    scaler.step(optimizer)
    scaler.update()
    state = scaler.state_dict()
    assert state == {
        "scale": 32.0,
        "growth_factor": 2.0,
        "backoff_factor": 0.5,
        "growth_interval": 5,
        "_growth_tracker": 1,
    }
    other = GradScaler()
    other.load_state_dict(state)
    assert other.state_dict() == state
    with pytest.raises(ValueError, match=r"GradScaler: the state has \['scale'\], expected"):
        other.load_state_dict({"scale": 1.0})
    with pytest.raises(ValueError, match="GradScaler: backoff_factor=2, expected between 0 and 1"):
        other.load_state_dict({**state, "backoff_factor": 2})
    assert other.state_dict() == state


def test_disabled(w):
    scaler, optimizer = GradScaler(enabled=False), SGD([w], lr=0.5)
    assert not scaler.is_enabled() and scaler.get_scale() == 1.0 and scaler.state_dict() == {}
    backward(scaler, w)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    scaler.load_state_dict({})
    np.testing.assert_array_equal(w.numpy(), [-0.5, 0.5])


def test_refused(w):
    for options, text in (
        ({"init_scale": 0}, "init_scale=0, expected a finite number > 0"),
        ({"init_scale": np.inf}, "init_scale=inf, expected a finite number > 0"),
        ({"growth_factor": 1.0}, "growth_factor=1.0, expected more than 1"),
        ({"backoff_factor": 1.0}, "backoff_factor=1.0, expected between 0 and 1"),
        ({"growth_interval": 0}, "growth_interval=0, expected an integer >= 1"),
        ({"growth_interval": 2.5}, "growth_interval=2.5, expected an integer >= 1"),
    ):
        with pytest.raises(ValueError, match=f"GradScaler: {text}"):
            GradScaler(**options)
    scaler, optimizer = GradScaler(), SGD([w], lr=0.5)
    with pytest.raises(TypeError, match="GradScaler: scale expects a Tensor, got ndarray"):
        scaler.scale(np.ones(2))
    with pytest.raises(RuntimeError, match="GradScaler: update is called before"):
        scaler.update()
    with pytest.raises(RuntimeError, match="GradScaler: no parameter of the optimizer has"):
        scaler.step(optimizer)
    scaler = GradScaler()
    backward(scaler, w)
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="GradScaler: unscale_ was called for this optimizer"):
        scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="GradScaler: step does not take a closure"):
        scaler.step(optimizer, closure=lambda: None)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="GradScaler: step was called for this optimizer"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="GradScaler: unscale_ is called after step"):
        scaler.unscale_(optimizer)
