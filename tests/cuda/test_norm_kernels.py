"""Normalisations on the GPU, beside the CPU's in double."""

from __future__ import annotations

import numpy as np
import pytest
from compare import between_vectors, check, close

import fusednn.functional as F
from fusednn import _core

BATCHES = (
    (4, 3),
    (5, 33, 1),
    (2, 3, 7, 5),
    (3, 2, 4, 4),
    (1, 1, 2051),
    (70, 5),
    (2, 40, 3),
    (5, 3, 100),
)
ROWS = ((3, 8), (2, 33), (5, 64), (1, 1), (2, 1028), (2, 2053), (0, 4), (2, 3, 16))
# The last two: several channels, and parts of them, in a vector.
GROUPS = (
    ((2, 6, 5), 3),
    ((1, 4, 4, 4), 2),
    ((3, 3, 7), 3),
    ((2, 8), 2),
    ((1, 2, 1030), 1),
    ((2, 88), 2),
    ((1, 36, 3), 1),
)


def arrays(shape, channels, dtype, seed=0):
    rng = np.random.default_rng(seed)
    x = (rng.standard_normal(shape) * 2 + 30).astype(dtype)
    w, b = (rng.standard_normal(channels).astype(dtype) for _ in range(2))
    return x, rng.standard_normal(shape).astype(dtype), w, b


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("shape", BATCHES, ids=str)
def test_batch_norm(xp, dtype, shape, training, relu, order):
    x, dy, w, b = arrays(shape, shape[1], dtype)
    mean, var = np.full(shape[1], 29, dtype), np.full(shape[1], 3, dtype)

    def forward(a, m, v, weight, bias):
        m, v = m.copy(), v.copy()
        y, stats = _core.batch_norm_forward(a, m, v, weight, bias, training, 0.25, 1e-3, relu)
        return y, m, v, stats[0], stats[2]

    check(xp, forward, x, mean, var, w, b, units=128)
    y, stats = _core.batch_norm_forward(
        x, mean.copy(), var.copy(), w, b, training, 0.25, 1e-3, relu
    )
    out = y if relu else None

    def backward(g, a, o, weight, s):
        return _core.batch_norm_backward(g, a, o, weight, s, training, True, True)

    scale = np.sqrt(x.size)
    check(xp, backward, dy, x, out, w, stats, units=64, scale=scale)


def test_batch_norm_without_parameters(xp, dtype):
    x, dy, _, _ = arrays((3, 4, 5), 4, dtype)
    check(xp, lambda a: F.batch_norm(a, None, None, training=True), x, units=128)
    stats = _core.batch_norm_forward(x, None, None, None, None, True, 0.1, 1e-5, False)[1]
    check(
        xp,
        lambda g, a, s: _core.batch_norm_backward(g, a, None, None, s, True, False, False),
        dy, x, stats, units=128,
    )  # fmt: skip


def test_an_empty_batch_leaves_the_statistics(xp, dtype):
    mean, var = xp.asarray(np.ones(3, dtype)), xp.asarray(np.full(3, 2, dtype))
    F.batch_norm(xp.zeros((0, 3, 2), dtype), mean, var, training=True)
    np.testing.assert_array_equal(xp.asnumpy(mean), 1)
    np.testing.assert_array_equal(xp.asnumpy(var), 2)


def test_a_mean_far_from_zero(xp):
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((4, 3, 50)) + 1e4).astype("float32")
    wide = x.astype("float64")
    expected = (wide - wide.mean((0, 2), keepdims=True)) / wide.std((0, 2), keepdims=True)
    got = xp.asnumpy(F.batch_norm(xp.asarray(x), None, None, training=True, eps=0.0))
    close(got, expected, units=64)
    expected = (wide - wide.mean(2, keepdims=True)) / wide.std(2, keepdims=True)
    got = xp.asnumpy(F.layer_norm(xp.asarray(x), (50,), eps=0.0))
    close(got, expected, units=64)


@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("shape", ROWS, ids=str)
def test_layer_norm(xp, dtype, shape, rms, order):
    inner = shape[-1:] if len(shape) == 2 else shape[1:]
    x, dy, w, b = arrays(shape, inner, dtype)
    b = None if rms else b
    residual = np.random.default_rng(4).standard_normal(shape).astype(dtype)

    def forward(a, r, weight, bias):
        y, stats, total = _core.layer_norm_forward(rms, a, inner, weight, bias, r, 1e-3)
        return y, stats[0], stats[2], total

    check(xp, forward, x, residual, w, b, units=128)
    check(xp, forward, x, None, None, None, units=128)
    stats = _core.layer_norm_forward(rms, x, inner, w, b, None, 1e-3)[1]

    def backward(g, a, weight, s):
        return _core.layer_norm_backward(rms, g, a, inner, weight, s, True, not rms)

    check(xp, backward, dy, x, w, stats, units=128, scale=4.0)


@pytest.mark.parametrize("case", GROUPS, ids=str)
def test_group_norm(xp, dtype, case, order):
    shape, groups = case
    x, dy, w, b = arrays(shape, shape[1], dtype)

    def forward(a, weight, bias):
        y, stats = _core.group_norm_forward("group_norm", a, groups, weight, bias, 1e-3)
        return y, stats[0], stats[2]

    check(xp, forward, x, w, b, units=128)
    check(xp, forward, x, None, None, units=128)
    stats = _core.group_norm_forward("group_norm", x, groups, w, b, 1e-3)[1]

    def backward(g, a, weight, s):
        return _core.group_norm_backward("group_norm", g, a, groups, weight, s, True, True)

    check(xp, backward, dy, x, w, stats, units=128, scale=8.0)


@pytest.mark.parametrize("op", ["group_norm", "layer_norm", "batch_norm"])
def test_arrays_that_begin_anywhere(xp, dtype, op):
    """One argument after the other begins between two vectors."""
    x, dy, w, b = arrays((2, 3, 64), 64 if op == "layer_norm" else 3, dtype)

    def forward(a, weight, bias, residual=None):
        if op == "group_norm":
            return _core.group_norm_forward(op, a, 1, weight, bias, 1e-3)
        if op == "layer_norm":
            return _core.layer_norm_forward(False, a, (64,), weight, bias, residual, 1e-3)[:2]
        return _core.batch_norm_forward(a, None, None, weight, bias, True, 0.1, 1e-3, False)

    def backward(g, a, weight, s):
        if op == "group_norm":
            return _core.group_norm_backward(op, g, a, 1, weight, s, True, True)
        if op == "layer_norm":
            return _core.layer_norm_backward(False, g, a, (64,), weight, s, True, True)
        return _core.batch_norm_backward(g, a, None, weight, s, True, True, True)

    stats = forward(x, w, b)[1]
    inputs = (x, w, b, dy) if op == "layer_norm" else (x, w, b)
    for function, args in ((forward, inputs), (backward, (dy, x, w, stats))):
        exact = function(*(one.astype("float64") for one in args))
        for moved in range(len(args)):
            held = [xp.asarray(one) for one in args]
            held[moved] = between_vectors(xp, args[moved])
            for got, value in zip(function(*held), exact, strict=True):
                close(xp.asnumpy(got), value, units=128, scale=16.0)


def test_instance_norm_updates_running_statistics(xp, dtype):
    x, _, w, b = arrays((2, 3, 7), 3, dtype)

    def forward(a, weight, bias, m, v):
        m, v = m.copy(), v.copy()
        return F.instance_norm(a, m, v, weight, bias), m, v

    check(xp, forward, x, w, b, np.zeros(3, dtype), np.ones(3, dtype), units=128)


def test_nan_stays_in_its_row(xp, dtype):
    x = np.random.default_rng(5).standard_normal((3, 40)).astype(dtype)
    x[1, 7] = np.nan
    check(xp, lambda a: F.layer_norm(a, (40,)), x, units=128)

    def relu_of_batch_norm(a, mean, var):
        return _core.batch_norm_forward(a, mean, var, None, None, False, 0.1, 1e-5, True)[0]

    check(xp, relu_of_batch_norm, x, np.zeros(40, dtype), np.ones(40, dtype), units=128)


def test_devices_do_not_mix(xp):
    x = xp.zeros((2, 3), "float32")
    with pytest.raises(ValueError, match="layer_norm: weight is on the CPU, expected on cuda:0"):
        F.layer_norm(x, (3,), np.ones(3, "float32"))
