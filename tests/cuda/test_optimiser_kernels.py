"""Optimiser steps on the GPU, beside the CPU's in double."""

from __future__ import annotations

import numpy as np
import pytest
from compare import check

import fusednn as fn
from fusednn import _core

SIZES = (0, 1, 3, 4, 255, 1029)


def values(size, count, dtype, positive=()):
    rng = np.random.default_rng(size)
    made = [rng.standard_normal(size).astype(dtype) for _ in range(count)]
    return [abs(a) if i in positive else a for i, a in enumerate(made)]


def stepped(step, *options):
    """A function of arrays that are copied, changed by the step, and given back."""

    def op(grad, *arrays):
        copies = [None if a is None else a.copy() for a in arrays]
        step(copies[0], grad, *copies[1:], *options)
        return tuple(copies)

    return op


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("momentum", [None, False, True], ids=["plain", "first", "later"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd(xp, dtype, size, momentum, nesterov):
    grad, param, buffer = values(size, 3, dtype)
    if momentum is None:
        check(xp, stepped(_core.sgd_step, False, 0.1, 0.0, 0.0, 0.01, False, True), grad, param,
              None, units=8)  # fmt: skip
        return
    if not momentum:
        buffer[:] = np.nan  # not even a factor of 0 may touch it
    op = stepped(_core.sgd_step, not momentum, 0.1, 0.9, 0.0, 0.01, nesterov, False)
    check(xp, op, grad, param, buffer, units=8)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("decoupled", [False, True])
def test_adam(xp, dtype, size, amsgrad, decoupled):
    grad, param, mean, square, most = values(size, 5, dtype, positive=(3, 4))
    op = stepped(_core.adam_step, 3, 0.01, 0.9, 0.999, 1e-8, 0.1, decoupled, False)
    check(xp, op, grad, param, mean, square, most if amsgrad else None, units=16)


@pytest.mark.parametrize("size", (1, 7, 1029))
@pytest.mark.parametrize("centered", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_rmsprop(xp, dtype, size, centered, momentum):
    grad, param, square, mean, buffer = values(size, 5, dtype, positive=(2,))
    mean *= 0.1
    square += 1
    op = stepped(_core.rmsprop_step, 0.01, 0.99, 1e-8, 0.1, momentum, False)
    check(xp, op, grad, param, square, mean if centered else None, buffer if momentum else None,
          units=32)  # fmt: skip


@pytest.mark.parametrize("size", (0, 1, 1029))
def test_adagrad(xp, dtype, size):
    grad, param, total = values(size, 3, dtype, positive=(2,))
    check(xp, stepped(_core.adagrad_step, 0.1, 1e-10, 0.1, True), grad, param, total, units=16)


def test_arrays_between_the_vectors(xp):
    grad, param = (xp.asarray(a) for a in values(40, 2, "float32"))
    expected = xp.asnumpy(param)[1:] - np.float32(0.5) * xp.asnumpy(grad)[1:]
    _core.sgd_step(param[1:], grad[1:], None, False, 0.5, 0.0, 0.0, 0.0, False, False)
    np.testing.assert_allclose(xp.asnumpy(param)[1:], expected, rtol=1e-6)


def test_devices_do_not_mix(xp):
    with pytest.raises(ValueError, match="sgd_step: param is on the CPU, expected on cuda:0 like"):
        _core.sgd_step(
            np.zeros(2, "float32"), xp.zeros(2, "float32"), None, False, 0.1, 0, 0, 0, False, False
        )


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_optimisers(name):
    """The same steps as on the CPU; a state that was saved there goes on here."""
    results = []
    for device in ("cpu", "cuda"):
        w = fn.tensor(np.linspace(-1, 1, 9, dtype="float32"), device=device)
        w.requires_grad = True
        options = {"momentum": 0.9} if name in ("SGD", "RMSprop") else {}
        optimizer = getattr(fn.optim, name)([w], lr=0.05, **options)
        for _ in range(3):
            optimizer.zero_grad()
            ((w - 0.5) ** 2).sum().backward()
            optimizer.step()
        state = optimizer.state_dict()
        optimizer.load_state_dict(state)
        for entry in state["state"].values():
            assert all(isinstance(a, (np.ndarray, int)) for a in entry.values())
        optimizer.step()
        assert w.device == ("cpu" if device == "cpu" else "cuda:0") and w.grad.device == w.device
        results.append(w.cpu().detach().numpy())
    np.testing.assert_allclose(results[1], results[0], rtol=1e-5, atol=1e-6)
