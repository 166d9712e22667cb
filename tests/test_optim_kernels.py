"""The in-place update kernels against the formulas in float64, on every ISA."""

from __future__ import annotations

import numpy as np
import pytest

import fusednn as fn
from fusednn import _core

SIZES = (0, 1, 7, 8, 15, 16, 17, 33, 16385)


def _sgd(p, g, buffer, first, lr, momentum, dampening, decay, nesterov, maximize):
    g = (-g if maximize else g) + decay * p
    if buffer is not None:
        buffer = g if first else momentum * buffer + (1 - dampening) * g
        g = g + momentum * buffer if nesterov else buffer
    return p - lr * g, buffer


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("options", [
    (0.1, 0.0, 0.0, 0.0, False, False),
    (0.1, 0.9, 0.0, 0.01, False, False),
    (0.05, 0.9, 0.0, 0.01, True, False),
    (0.05, 0.5, 0.3, 0.0, False, True),
])  # fmt: skip
def test_sgd(size, options, isa, dtype):
    rng = np.random.default_rng(size)
    p, g = (rng.standard_normal(size).astype(dtype) for _ in range(2))
    buffer = np.full(size, np.nan, dtype) if options[1] else None
    exact, exact_buffer = p.astype(np.float64), None if buffer is None else 0.0
    for step in range(3):
        _core.sgd_step(p, g, buffer, step == 0, *options)
        exact, exact_buffer = _sgd(exact, g.astype(np.float64), exact_buffer, step == 0, *options)
    tolerance = 8 * np.finfo(dtype).eps
    np.testing.assert_allclose(p, exact, rtol=tolerance, atol=tolerance)
    if buffer is not None:
        np.testing.assert_allclose(buffer, exact_buffer, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("decoupled", "amsgrad", "maximize"), [
    (True, False, False), (False, False, False), (True, True, False), (False, True, True),
])  # fmt: skip
def test_adam(size, decoupled, amsgrad, maximize, isa, dtype):
    rng = np.random.default_rng(size)
    p = rng.standard_normal(size).astype(dtype)
    m, v = np.zeros(size, dtype), np.zeros(size, dtype)
    most = np.zeros(size, dtype) if amsgrad else None
    lr, b1, b2, eps, decay = 0.01, 0.9, 0.99, 1e-8, 0.1
    x, xm, xv, xmost = p.astype(np.float64), 0.0, 0.0, 0.0
    for step in range(1, 6):
        g = rng.standard_normal(size).astype(dtype)
        _core.adam_step(p, g, m, v, most, step, lr, b1, b2, eps, decay, decoupled, maximize)
        d = -g.astype(np.float64) if maximize else g.astype(np.float64)
        if decoupled:
            x = x * (1 - lr * decay)
        else:
            d = d + decay * x
        xm, xv = b1 * xm + (1 - b1) * d, b2 * xv + (1 - b2) * d * d
        xmost = np.maximum(xmost, xv)
        root = np.sqrt(xmost if amsgrad else xv) / np.sqrt(1 - b2**step)
        x = x - lr / (1 - b1**step) * xm / (root + eps)
    tolerance = 32 * np.finfo(dtype).eps
    np.testing.assert_allclose(p, x, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("momentum", "centered", "decay", "maximize"), [
    (0.0, False, 0.0, False), (0.9, False, 0.1, False), (0.0, True, 0.1, True),
    (0.5, True, 0.0, False),
])  # fmt: skip
def test_rmsprop(size, momentum, centered, decay, maximize, isa, dtype):
    rng = np.random.default_rng(size)
    p = rng.standard_normal(size).astype(dtype)
    square = np.zeros(size, dtype)
    mean = np.zeros(size, dtype) if centered else None
    buffer = np.zeros(size, dtype) if momentum else None
    lr, alpha, eps = 0.01, 0.9, 1e-4
    x, xs, xm, xb = p.astype(np.float64), 0.0, 0.0, 0.0
    for _ in range(5):
        g = rng.standard_normal(size).astype(dtype)
        _core.rmsprop_step(p, g, square, mean, buffer, lr, alpha, eps, decay, momentum, maximize)
        d = (-1 if maximize else 1) * g.astype(np.float64) + decay * x
        xs, xm = alpha * xs + (1 - alpha) * d * d, alpha * xm + (1 - alpha) * d
        step = d / (np.sqrt(xs - xm * xm if centered else xs) + eps)
        xb = momentum * xb + step
        x = x - lr * xb
    tolerance = 64 * np.finfo(dtype).eps  # centered subtracts two numbers that may be close
    np.testing.assert_allclose(p, x, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(square, xs, rtol=tolerance, atol=tolerance)


def test_a_variance_is_never_below_zero(isa, dtype):
    """With the same gradient all the time, square_avg - grad_avg**2 is 0 but for rounding."""
    g = np.linspace(0.1, 3, 101).astype(dtype)
    p, square, mean = np.zeros(101, dtype), g * g, g.copy()
    for _ in range(50):
        _core.rmsprop_step(p, g, square, mean, None, 1e-3, 0.99, 1e-2, 0.0, 0.0, False)
    assert np.isfinite(p).all()
    g[3] = np.nan
    _core.rmsprop_step(p, g, square, mean, None, 1e-3, 0.99, 1e-2, 0.0, 0.0, False)
    assert np.isnan(p).nonzero()[0].tolist() == [3]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("decay", "maximize"), [(0.0, False), (0.1, True)])
def test_adagrad(size, decay, maximize, isa, dtype):
    rng = np.random.default_rng(size)
    p = rng.standard_normal(size).astype(dtype)
    total = np.zeros(size, dtype)
    x, xs = p.astype(np.float64), 0.0
    for step in range(5):
        g = rng.standard_normal(size).astype(dtype)
        lr = 0.1 / (1 + step)
        _core.adagrad_step(p, g, total, lr, 1e-10, decay, maximize)
        d = (-1 if maximize else 1) * g.astype(np.float64) + decay * x
        xs = xs + d * d
        x = x - lr * d / (np.sqrt(xs) + 1e-10)
    tolerance = 32 * np.finfo(dtype).eps
    np.testing.assert_allclose(p, x, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(total, xs, rtol=tolerance, atol=tolerance)


def test_same_bits_at_any_thread_count(isa):
    rng = np.random.default_rng(0)
    start, g = (rng.standard_normal(400_001).astype(np.float32) for _ in range(2))
    results = []
    for threads in (1, 2, 3):
        fn.set_num_threads(threads)
        p, m, v = start.copy(), np.zeros_like(start), np.zeros_like(start)
        _core.adam_step(p, g, m, v, None, 1, 0.1, 0.9, 0.999, 1e-8, 0.0, True, False)
        _core.sgd_step(p, g, m, False, 0.1, 0.9, 0.0, 0.1, True, False)
        _core.rmsprop_step(p, g, v, m, None, 0.1, 0.9, 1e-8, 0.1, 0.0, False)
        _core.adagrad_step(p, g, v, 0.1, 1e-8, 0.1, False)
        results.append((p, m, v))
    for other in results[1:]:
        for one, many in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one, many)


_P = np.ones(4, np.float32)


def _read_only(a):
    a = a.copy()
    a.flags.writeable = False
    return a


@pytest.mark.parametrize(
    ("param", "grad", "error", "words"),
    [
        (_P.copy(), np.ones(3, np.float32), ValueError, ["sgd_step", "param", "(4,)", "(3,)"]),
        (_P.copy(), np.ones(4), TypeError, ["sgd_step", "param", "float32", "float64"]),
        (_read_only(_P), _P, ValueError, ["sgd_step", "param", "writable"]),
        (np.ones(8, np.float32)[::2], _P, ValueError, ["sgd_step", "param", "contiguous"]),
        ([1.0], _P, TypeError, ["sgd_step", "param", "list"]),
    ],
)
def test_refused_calls_change_nothing(param, grad, error, words):
    before = np.copy(param)
    with pytest.raises(error) as caught:
        _core.sgd_step(param, grad, None, True, 0.1, 0.0, 0.0, 0.0, False, False)
    for word in words:
        assert word in str(caught.value)
    np.testing.assert_array_equal(param, before)


def test_adam_refuses_a_bad_state_before_it_writes():
    p, g, m = (np.ones(4, np.float32) for _ in range(3))
    with pytest.raises(ValueError, match=r"adam_step: exp_avg_sq has shape \(3,\)"):
        _core.adam_step(p, g, m, np.ones(3, np.float32), None, 1, 0.1, 0.9, 0.99, 1e-8, 0, 1, 0)
    with pytest.raises(ValueError, match="step must be at least 1"):
        _core.adam_step(p, g, m, m.copy(), None, 0, 0.1, 0.9, 0.99, 1e-8, 0, 1, 0)
    assert (p == 1).all()
    assert (m == 1).all()


def test_the_adaptive_steps_refuse_a_bad_state_before_they_write():
    p, g, v = (np.ones(4, np.float32) for _ in range(3))
    short, wide = np.ones(3, np.float32), np.ones(4)
    with pytest.raises(ValueError, match=r"rmsprop_step: grad_avg has shape \(3,\)"):
        _core.rmsprop_step(p, g, v, short, None, 0.1, 0.9, 1e-8, 0.0, 0.0, False)
    with pytest.raises(TypeError, match="rmsprop_step: momentum_buffer has dtype float64"):
        _core.rmsprop_step(p, g, v, None, wide, 0.1, 0.9, 1e-8, 0.0, 0.9, False)
    with pytest.raises(ValueError, match=r"adagrad_step: sum has shape \(3,\)"):
        _core.adagrad_step(p, g, short, 0.1, 1e-8, 0.0, False)
    assert (p == 1).all()
    assert (v == 1).all()
