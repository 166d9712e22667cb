"""Softmax and cross-entropy on the GPU, beside the CPU's in double."""

from __future__ import annotations

import numpy as np
import pytest
from compare import between_vectors, check, close

import fusednn.functional as F
from fusednn import _core

# Shape and axis: rows for a few lanes, a warp, a block; columns; nothing at all.
CASES = (
    ((3, 10), 1),
    ((1, 1), 1),
    ((5, 33), 1),
    ((2, 64), -1),
    ((9, 127), 1),
    ((3, 1028), 1),
    ((2, 2053), 1),
    ((2, 7, 5, 3), 1),
    ((3, 4, 1), 0),
    ((0, 5), 1),
    ((4, 0), 1),
    ((2, 3, 0), 1),
)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_softmax(xp, dtype, case, log, order):
    shape, dim = case
    rng = np.random.default_rng(0)
    x = (rng.standard_normal(shape) * 5).astype(dtype)
    dy = rng.standard_normal(shape).astype(dtype)
    forward = _core.log_softmax_forward if log else _core.softmax_forward
    backward = _core.log_softmax_backward if log else _core.softmax_backward
    check(xp, lambda a: forward(a, dim), x, units=64, scale=1.0 if log else 0.0)
    y = forward(x, dim)
    check(xp, lambda g, v: backward(g, v, dim), dy, y, units=64)


def test_softmax_special_values(xp, dtype):
    x = np.zeros((6, 40), dtype)
    x[0, 3], x[1, 5], x[2], x[3, 2], x[4, :39] = np.nan, np.inf, -np.inf, -np.inf, -np.inf
    for log in (False, True):
        forward = F.log_softmax if log else F.softmax
        check(xp, lambda a, f=forward: f(a, 1), x)


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize("shape", [(3, 10), (2, 40), (2, 5, 3)], ids=str)
def test_softmax_far_from_zero(xp, dtype, shape, log):
    x = (np.random.default_rng(6).standard_normal(shape) * 3 - 3000).astype(dtype)
    forward = _core.log_softmax_forward if log else _core.softmax_forward
    check(xp, lambda a: forward(a, 1), x, units=64, scale=1.0)


def test_arrays_that_begin_anywhere(xp, dtype):
    """One argument after the other begins between two vectors."""
    rng = np.random.default_rng(7)
    x, dy = (rng.standard_normal((2, 64)).astype(dtype) for _ in range(2))
    y, target, scale = F.softmax(x, 1), np.array([3, 63]), np.ones(2, dtype)
    options = (None, -100, 0.1)
    for function, args in (
        (lambda a: F.softmax(a, 1), (x,)),
        (lambda g, v: _core.softmax_backward(g, v, 1), (dy, y)),
        (lambda a, t: _core.cross_entropy_forward("cross_entropy", a, t, *options)[0], (x, target)),
        (
            lambda a, t, s: _core.cross_entropy_backward("cross_entropy", a, t, *options, s),
            (x, target, scale),
        ),
    ):
        expected = function(*args)
        for moved in range(len(args)):
            held = [xp.asarray(one) for one in args]
            held[moved] = between_vectors(xp, args[moved])
            close(xp.asnumpy(function(*held)), expected, units=64)


def test_softmax_of_views(xp):
    x = np.random.default_rng(1).standard_normal((7, 40)).astype("float32")
    check(xp, lambda a: F.softmax(a[::2, 1:38], 1), x)


LOSSES = (
    ((4, 10), None, 0.0),
    ((4, 10), "weight", 0.0),
    ((5, 37), "weight", 0.1),
    ((1, 3), None, 1.0),
    ((3, 1028), "weight", 0.2),
    ((2, 2051), None, 0.0),
    ((2, 5, 3, 4), "weight", 0.1),
    ((2, 5, 3, 4), None, 0.0),
    ((0, 4), None, 0.0),
    ((7,), None, 0.0),
)


@pytest.mark.parametrize("op", ["cross_entropy", "nll_loss"])
@pytest.mark.parametrize("case", LOSSES, ids=str)
def test_cross_entropy(xp, dtype, case, op, order):
    shape, weighted, smoothing = case
    if op == "nll_loss":
        smoothing = 0.0
    rng = np.random.default_rng(2)
    x = (rng.standard_normal(shape) * 3).astype(dtype)
    axis = 1 if len(shape) > 1 else 0
    positions = shape[:axis] + shape[axis + 1 :]
    target = rng.integers(0, shape[axis], positions)
    if target.ndim and target.size > 1:
        target.reshape(-1)[1] = -100
        x.reshape(-1)[:1] = 30
    weight = rng.random(shape[axis]).astype(dtype) if weighted else None
    scale = rng.standard_normal(positions).astype(dtype)

    def forward(a, t, w):
        return _core.cross_entropy_forward(op, a, t, w, -100, smoothing)

    def backward(a, t, w, s):
        return _core.cross_entropy_backward(op, a, t, w, -100, smoothing, s)

    check(xp, forward, x, target, weight, units=64, scale=40.0)
    check(xp, backward, x, target, weight, scale, units=64)


@pytest.mark.parametrize("shape", [(3, 10), (2, 40), (2, 5, 3)], ids=str)
@pytest.mark.parametrize("shift", [-3000.0, 3000.0])
def test_logits_far_from_zero(xp, dtype, shape, shift):
    """Their exponentials are 0 or infinite; differences are what counts."""
    rng = np.random.default_rng(3)
    x = (rng.standard_normal(shape) * 3 + shift).astype(dtype)
    target = rng.integers(0, shape[1], shape[:1] + shape[2:])
    scale = rng.standard_normal(target.shape).astype(dtype)
    check(
        xp,
        lambda a, t: _core.cross_entropy_forward("cross_entropy", a, t, None, -100, 0.1),
        x, target, units=64, scale=40.0,
    )  # fmt: skip
    check(
        xp,
        lambda a, t, s: _core.cross_entropy_backward("cross_entropy", a, t, None, -100, 0.1, s),
        x, target, scale, units=64,
    )  # fmt: skip


def test_ignored_rows_are_not_looked_at(xp, dtype):
    x = np.ones((3, 40), dtype)
    x[1] = np.nan
    target = np.array([0, -100, 2])
    losses, counts = _core.cross_entropy_forward(
        "cross_entropy", xp.asarray(x), xp.asarray(target), None, -100, 0.0
    )
    assert xp.asnumpy(losses)[1] == 0 == xp.asnumpy(counts)[1]
    dx = _core.cross_entropy_backward(
        "cross_entropy", xp.asarray(x), xp.asarray(target), None, -100, 0.0,
        xp.asarray(np.ones(3, dtype)),
    )  # fmt: skip
    assert not xp.asnumpy(dx)[1].any() and xp.asnumpy(dx)[0].any()


@pytest.mark.parametrize("kind", ["int64", "int32", "uint8"])
def test_targets_are_checked(xp, kind):
    x = xp.zeros((2, 3), "float32")
    with pytest.raises(ValueError, match=r"cross_entropy: target value 3 at index 1 is out of"):
        F.cross_entropy(x, xp.asarray(np.array([0, 3], kind)))
    loss = (
        F.cross_entropy(x, xp.asarray(np.array([0, 255], kind)), ignore_index=255)
        if (kind != "int8")
        else None
    )
    assert abs(float(loss) - np.log(3)) < 1e-6
    with pytest.raises(ValueError, match="cross_entropy: target is on the CPU, expected on cuda:0"):
        F.cross_entropy(x, np.array([0, 1]))
