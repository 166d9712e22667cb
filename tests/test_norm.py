"""Normalisations: values and gradients on every ISA, statistics, layers, refused calls."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import _core, nn
from fusednn.testing import reference_norm as ref

EXACT = np.longdouble


def values(*shape: int, seed: int = 0, dtype: Any = np.float32, mean: float = 0.5) -> Any:
    return (np.random.default_rng(seed).standard_normal(shape) + mean).astype(dtype)


def assert_close(found: Any, exact: Any, naive: Any, terms: float = 0) -> None:
    """Within twice the naive version's error, and a few units in the last place of the largest
    number, or of the terms it is a difference of."""
    what = f"off by {np.abs(found - exact).max() if found.size else 0}"
    found = np.asarray(found)
    assert found.dtype == naive.dtype, what
    assert found.shape == exact.shape, what
    if not found.size:
        return
    scale = max(float(np.abs(exact).max()), terms) * np.finfo(naive.dtype).eps
    allowed = 2 * float(np.abs(naive - exact).max()) + 4 * scale
    assert float(np.abs(found - exact).max()) <= allowed, what


def run(call: Any, grad: Any, *arrays: Any) -> list[Any]:
    """The value and the gradients of all arrays."""
    tensors = [None if a is None else fn.tensor(a, requires_grad=True) for a in arrays]
    out = call(*tensors)
    out.backward(grad)
    return [out.numpy(), *(None if t is None else t.grad.numpy() for t in tensors)]


# ---- layer_norm, rms_norm, group_norm, batch_norm against the formulas ---------------------------

ROWS = [(1, 1), (3, 2), (2, 7), (5, 8), (4, 15), (3, 16), (2, 17), (7, 31), (2, 33), (1, 65),
        (300, 5), (6, 768), (130, 129), (0, 5), (5, 0), (3, 20001)]  # fmt: skip


@pytest.mark.parametrize("shape", ROWS)
@pytest.mark.parametrize("rms", [False, True])
@pytest.mark.parametrize("affine", [False, True])
def test_layer_norm(shape, rms, affine, isa, dtype):
    x, grad = values(*shape, dtype=dtype), values(*shape, seed=1, dtype=dtype)
    w = values(shape[1], seed=2, dtype=dtype) if affine else None
    b = values(shape[1], seed=3, dtype=dtype) if affine and not rms else None
    eps = 1e-5

    def call(x, w, b):
        if rms:
            return F.rms_norm(x, shape[1:], w, eps)
        return F.layer_norm(x, shape[1:], w, b, eps)

    found = run(call, grad, x, w, b)
    arrays = call(x, w, b)
    np.testing.assert_array_equal(found[0], arrays)

    def truth(kind):
        wide, g = x.astype(kind), grad.astype(kind)
        scale = np.ones(1, kind) if w is None else w.astype(kind)
        xhat = ref.normalize(wide, (1,), eps, rms) if shape[1] else wide
        y = xhat * scale + (0 if b is None else b.astype(kind))
        dx = ref.normalize_backward(g * scale, wide, (1,), eps, rms) if shape[1] else wide
        return y, dx, (g * xhat).sum(0), g.sum(0)

    # A row of one element: its gradient is dy - dy, times 1 / sqrt(eps).
    terms = np.abs(grad).max() * np.abs(1 if w is None else w).max() / eps**0.5 if x.size else 0
    terms = float(terms) if shape[1] == 1 else 0.0
    for one, exact, naive in zip(found, truth(EXACT), truth(np.dtype(dtype).type), strict=False):
        if one is not None:
            assert_close(one, exact, naive, terms)


GROUPS = [((2, 4, 5), 2), ((1, 3, 7, 7), 1), ((3, 6, 4, 4), 3), ((2, 5, 17), 5), ((2, 8), 4),
          ((0, 4, 3), 2), ((2, 4, 0), 2), ((2, 32, 15, 3), 8), ((3, 2, 70, 90), 1)]  # fmt: skip


@pytest.mark.parametrize(("shape", "groups"), GROUPS)
def test_group_norm(shape, groups, isa, dtype):
    x, grad = values(*shape, dtype=dtype), values(*shape, seed=1, dtype=dtype)
    w, b = values(shape[1], seed=2, dtype=dtype), values(shape[1], seed=3, dtype=dtype)
    found = run(lambda x, w, b: F.group_norm(x, groups, w, b), grad, x, w, b)
    np.testing.assert_array_equal(found[0], F.group_norm(x, groups, w, b))
    if 0 in shape:
        assert [one.shape for one in found] == [shape, shape, (shape[1],), (shape[1],)]
        assert not found[2].any()
        return
    per_channel = (1, -1, *(1,) * (len(shape) - 2))
    others = tuple(i for i in range(len(shape)) if i != 1)

    def truth(kind):
        split = (shape[0], groups, -1)
        g, scale = grad.astype(kind), w.astype(kind).reshape(per_channel)
        wide = x.astype(kind).reshape(split)
        xhat = ref.normalize(wide, (2,), 1e-5).reshape(shape)
        dx = ref.normalize_backward((g * scale).reshape(split), wide, (2,), 1e-5).reshape(shape)
        y = xhat * scale + b.astype(kind).reshape(per_channel)
        return y, dx, (g * xhat).sum(others), g.sum(others)

    for one, exact, naive in zip(found, truth(EXACT), truth(np.dtype(dtype).type), strict=True):
        assert_close(one, exact, naive)


BATCHES = [(2, 3), (7, 1), (5, 16), (3, 17), (2000, 33), (2, 3, 5), (4, 2, 1), (1, 5, 7),
           (3, 4, 8, 8), (2, 3, 16), (5, 7, 15), (2, 2, 3, 4, 5), (1, 2, 40000),
           (9, 3, 70, 33)]  # fmt: skip


@pytest.mark.parametrize("shape", BATCHES)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("relu", [False, True])
def test_batch_norm(shape, training, relu, isa, dtype):
    x, grad = values(*shape, dtype=dtype), values(*shape, seed=1, dtype=dtype)
    w, b, mean = (values(shape[1], seed=s, dtype=dtype) for s in (2, 3, 4))
    var = np.abs(values(shape[1], seed=5, dtype=dtype)) + np.dtype(dtype).type(0.1)
    old = mean.copy(), var.copy()

    def call(x, w, b):
        kept = (mean, var) if not training else (None, None)
        return F.batch_norm(
            x, *kept, w, b, training, activation="relu" if relu else None
        )  # fmt: skip

    found = run(call, grad, x, w, b)
    np.testing.assert_array_equal(found[0], call(x, w, b))
    np.testing.assert_array_equal((mean, var), old)
    per_channel = (1, -1, *(1,) * (len(shape) - 2))
    axes = tuple(i for i in range(len(shape)) if i != 1)

    def truth(kind):
        wide, scale = x.astype(kind), w.astype(kind).reshape(per_channel)
        g = np.where(found[0] > 0, grad, 0).astype(kind) if relu else grad.astype(kind)
        if training:
            xhat = ref.normalize(wide, axes, 1e-5)
            dx = ref.normalize_backward(g * scale, wide, axes, 1e-5)
        else:
            rstd = 1 / np.sqrt(var.astype(kind) + kind(1e-5)).reshape(per_channel)
            xhat = (wide - mean.astype(kind).reshape(per_channel)) * rstd
            dx = g * scale * rstd
        y = xhat * scale + b.astype(kind).reshape(per_channel)
        return np.maximum(y, 0) if relu else y, dx, (g * xhat).sum(axes), g.sum(axes)

    for one, exact, naive in zip(found, truth(EXACT), truth(np.dtype(dtype).type), strict=True):
        assert_close(one, exact, naive)


# ---- what the kernels promise --------------------------------------------------------------------


def offset_cases(dtype: str) -> list[tuple[str, Any, tuple[int, ...], Any]]:
    x = values(6, 8, 40, dtype=dtype, mean=1e4)
    return [
        ("layer", x, (2,), lambda x: F.layer_norm(x, (40,))),
        ("group", x, (2,), lambda x: F.instance_norm(x)),
        ("batch", x, (0, 2), lambda x: F.batch_norm(x, None, None, training=True)),
        ("columns", x.reshape(48, 40), (0,),
         lambda x: F.batch_norm(x, None, None, training=True)),
    ]  # fmt: skip


def test_a_large_mean_does_not_cancel(isa, dtype):
    """Errors stay at the size of the result's own rounding, not of the mean's."""
    eps = np.finfo(dtype).eps
    for name, x, axes, call in offset_cases(dtype):
        grad = values(*x.shape, seed=1, dtype=dtype)
        y, dx = run(call, grad, x)
        wide = x.astype(EXACT)
        exact = ref.normalize(wide, axes, 1e-5)
        assert float(np.abs(y - exact).max()) < 20 * eps, name
        exact = ref.normalize_backward(grad.astype(EXACT), wide, axes, 1e-5)
        assert float(np.abs(dx - exact).max()) < 60 * eps, name


def test_running_statistics_of_a_large_mean(dtype):
    x = values(64, 3, 5, dtype=dtype, mean=1e4)
    mean, var = np.zeros(3, dtype), np.ones(3, dtype)
    F.batch_norm(x, mean, var, training=True, momentum=1.0)
    wide = x.astype(EXACT)
    rtol = 4 * np.finfo(dtype).eps
    np.testing.assert_allclose(mean, wide.mean((0, 2)), rtol=rtol)
    np.testing.assert_allclose(var, wide.var((0, 2), ddof=1), rtol=rtol * 4)


@pytest.mark.parametrize("shape", [(70, 40, 33, 31), (3000, 257), (3, 2, 300, 300)])
def test_threads_do_not_change_a_bit(shape, isa, dtype):
    x, grad = values(*shape, dtype=dtype), values(*shape, seed=1, dtype=dtype)
    last = values(shape[-1], seed=2, dtype=dtype)
    channel = values(shape[1], seed=3, dtype=dtype)
    calls = [
        (lambda x, w: F.layer_norm(x, shape[-1:], w), last),
        (lambda x, w: F.rms_norm(x, shape[-1:], w), last),
        (lambda x, w: F.batch_norm(x, None, None, w, training=True), channel),
        (lambda x, w: F.group_norm(x, 1, w), channel),
    ]
    for call, w in calls:
        results = []
        for threads in (1, 2, 3):
            fn.set_num_threads(threads)
            results.append([a.tobytes() for a in run(call, grad, x, w)])
        assert results[0] == results[1] == results[2]


def test_results_do_not_depend_on_old_memory(isa, dtype):
    x = values(20, 12, 10, dtype=dtype)
    w, b = values(12, seed=1, dtype=dtype), values(12, seed=2, dtype=dtype)
    calls = [
        lambda: run(lambda x: F.layer_norm(x, (10,)), x, x),
        lambda: run(lambda x, w, b: F.group_norm(x, 3, w, b), x, x, w, b),
        lambda: run(lambda x, w, b: F.batch_norm(x, None, None, w, b, True), x, x, w, b),
    ]
    for call in calls:
        first = [a.copy() for a in call()]
        for _ in range(3):
            again = call()
            for a, expected in zip(again, first, strict=True):
                np.testing.assert_array_equal(a, expected)
                a.setflags(write=True)
                a.fill(np.nan)
            del a, again


def test_any_layout(isa, dtype):
    x = values(4, 6, 10, dtype=dtype)
    w = values(6, seed=1, dtype=dtype)
    read_only = x.copy()
    read_only.flags.writeable = False
    spread = np.zeros((4, 6, 20), dtype)
    spread[..., ::2] = x
    layouts = (
        read_only, spread[..., ::2], np.asfortranarray(x),
        np.ascontiguousarray(x[::-1, :, ::-1])[::-1, :, ::-1],
        x.astype(np.dtype(dtype).newbyteorder(">")),
    )  # fmt: skip
    for call in (
        lambda x: F.layer_norm(x, 10),
        lambda x: F.rms_norm(x, 10),
        lambda x: F.group_norm(x, 2, w[::-1][::-1]),
        lambda x: F.batch_norm(x, None, None, w, training=True),
    ):
        for view in layouts:
            np.testing.assert_array_equal(call(view), call(x))


def test_nan_stays_in_its_row_or_channel(isa, dtype):
    x = values(3, 4, 5, dtype=dtype)
    x[1, 2, 3] = np.nan
    lost = np.isnan(F.layer_norm(x, 5))
    assert lost[1, 2].all()
    assert lost.sum() == 5
    lost = np.isnan(F.batch_norm(x, None, None, training=True))
    assert lost[:, 2].all()
    assert lost.sum() == 15
    lost = np.isnan(F.group_norm(x, 2))
    assert lost[1, 2:].all()
    assert lost.sum() == 10


def test_gradients_by_differences():
    x, w, b = values(3, 4, 5, dtype=np.float64), *values(2, 4, seed=1, dtype=np.float64)
    last = values(5, seed=2, dtype=np.float64)
    check = fn.testing.gradcheck
    assert check(lambda x, w, b: F.layer_norm(x, (5,), w, b), (x, last, last + 1))
    assert check(lambda x: F.layer_norm(x, (4, 5)), x)
    assert check(lambda x, w: F.rms_norm(x, (5,), w), (x, last))
    assert check(lambda x, w, b: F.group_norm(x, 2, w, b), (x, w, b))
    assert check(lambda x, w, b: F.instance_norm(x, None, None, w, b), (x, w, b))
    assert check(lambda x, w, b: F.batch_norm(x, None, None, w, b, True), (x, w, b))
    assert check(lambda x, w, b: F.batch_norm(x[..., 0], None, None, w, b, True), (x, w, b))
    stats = np.zeros(4), np.ones(4)
    assert check(lambda x, w, b: F.batch_norm(x, *stats, w, b), (x, w, b))
    relu = {"activation": "relu"}
    assert check(lambda x, w, b: F.batch_norm(x, None, None, w, b, True, **relu), (x, w, b))
    residual = values(3, 4, 5, seed=6, dtype=np.float64)
    for op in (F.layer_norm, F.rms_norm):
        assert check(lambda x, r, w, op=op: op(x, (5,), w, residual=r), (x, residual, last))
        assert check(lambda x, r, op=op: op(x, (5,), residual=r)[0], (x, residual))
        assert check(lambda x, r, op=op: op(x, (5,), residual=r)[1], (x, residual))


@pytest.mark.parametrize("op", [F.layer_norm, F.rms_norm])
def test_residual(op, isa, dtype):
    x, r = values(5, 33, dtype=dtype), values(5, 33, seed=1, dtype=dtype)
    y, total = op(x, (33,), residual=r)
    np.testing.assert_array_equal(total, x + r)
    np.testing.assert_array_equal(y, op(x + r, (33,)))
    t = fn.tensor(x, requires_grad=True)
    y, total = op(t * 1, (33,), residual=t)  # one tensor as both
    (y + total).sum().backward()
    t2 = fn.tensor(x, requires_grad=True)
    both = t2 * 1 + t2
    (op(both, (33,)) + both).sum().backward()
    np.testing.assert_allclose(t.grad.numpy(), t2.grad.numpy(), rtol=1e-4, atol=1e-5)


# ---- batch_norm's statistics ---------------------------------------------------------------------


def test_worked_example_of_statistics():
    """Normalised by the biased variance, remembered by the unbiased one."""
    mean, var = np.zeros(1), np.ones(1)
    y = F.batch_norm(np.array([[1.0], [3.0]]), mean, var, training=True, momentum=1.0, eps=0.0)
    assert y.tolist() == [[-1], [1]]
    assert (mean[0], var[0]) == (2, 2)
    mean, var = np.zeros(1), np.ones(1)
    F.batch_norm(np.array([[1.0], [3.0]]), mean, var, training=True)
    np.testing.assert_allclose((mean[0], var[0]), (0.2, 1.1))


def test_one_value_per_channel_is_refused():
    for shape in ((1, 2), (1, 2, 1, 1)):
        text = f"batch_norm: training needs more than 1 value per channel, input has shape {shape}"
        with pytest.raises(ValueError, match=re.escape(text)):
            nn.BatchNorm1d(2)(np.zeros(shape, np.float32)) if len(shape) == 2 else F.batch_norm(
                np.zeros(shape), None, None, training=True
            )
    layer = nn.BatchNorm1d(2)
    with pytest.raises(ValueError, match="more than 1 value"):
        layer(np.zeros((1, 2), np.float32))
    assert layer.eval()(np.zeros((1, 2), np.float32)).shape == (1, 2)


def test_an_empty_batch_leaves_the_statistics():
    layer = nn.BatchNorm1d(5)
    x = fn.tensor(np.zeros((0, 5, 9), np.float32), requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert y.shape == (0, 5, 9)
    assert layer.running_mean.tolist() == [0] * 5
    assert layer.running_var.tolist() == [1] * 5
    assert layer.num_batches_tracked.item() == 0
    assert x.grad.shape == (0, 5, 9)
    assert layer.weight.grad.tolist() == layer.bias.grad.tolist() == [0] * 5


def test_momentum_none_averages_all_batches():
    layer = nn.BatchNorm1d(3, momentum=None)
    batches = [values(4, 3, seed=s) for s in range(5)]
    for batch in batches:
        layer(batch)
    np.testing.assert_allclose(
        layer.running_mean.numpy(), np.mean([b.mean(0) for b in batches], 0), rtol=1e-5
    )
    np.testing.assert_allclose(
        layer.running_var.numpy(), np.mean([b.var(0, ddof=1) for b in batches], 0), rtol=1e-5
    )
    assert layer.num_batches_tracked.item() == 5
    assert layer.num_batches_tracked.dtype == np.int64


def test_state_of_batch_norm():
    layer = nn.BatchNorm2d(3)
    state = layer.state_dict()
    assert list(state) == ["weight", "bias", "running_mean", "running_var", "num_batches_tracked"]
    assert state["num_batches_tracked"].dtype == np.int64
    assert state["num_batches_tracked"].shape == ()
    layer(values(2, 3, 4, 4))
    other = nn.BatchNorm2d(3)
    other.load_state_dict(layer.state_dict())
    x = values(1, 3, 4, 4, seed=1)
    np.testing.assert_array_equal(other.eval()(x).numpy(), layer.eval()(x).numpy())
    layer.reset_running_stats()
    assert layer.running_var.tolist() == [1, 1, 1]
    bare = nn.BatchNorm2d(3, affine=False, track_running_stats=False)
    assert list(bare.state_dict()) == []
    y = bare.eval()(x).numpy()  # without statistics the batch's own, in evaluation too
    np.testing.assert_allclose(y.mean((0, 2, 3)), 0, atol=1e-6)
    layer.double()
    assert layer.running_mean.dtype == np.float64
    assert layer.num_batches_tracked.dtype == np.int64


def test_statistics_are_not_written_in_evaluation():
    mean, var = np.zeros(2, np.float32), np.ones(2, np.float32)
    for one in (mean, var):
        one.flags.writeable = False
    F.batch_norm(values(3, 2), mean, var)
    with pytest.raises(ValueError, match="running_mean is updated in place and must be writable"):
        F.batch_norm(values(3, 2), mean, var, training=True)


# ---- layers, refusals, torch ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: F.layer_norm(values(2, 3), (4,)), ValueError,
         "layer_norm: input has shape (2, 3), expected its last sizes to be normalized_shape (4,)"),
        (lambda: F.layer_norm(values(2, 3), ()), ValueError,
         "layer_norm: normalized_shape is (), expected at least one size"),
        (lambda: F.layer_norm(values(2, 3), (3,), values(2)), ValueError,
         "layer_norm: weight has shape (2,), expected (3,)"),
        (lambda: F.layer_norm(values(2, 3), (3,), eps=-1.0), ValueError,
         "layer_norm: eps is -1, expected a number of at least 0"),
        (lambda: F.layer_norm(values(2, 3), (3,), residual=values(3, 3)), ValueError,
         "layer_norm: residual has shape (3, 3), expected (2, 3)"),
        (lambda: F.rms_norm(np.zeros((2, 3), np.int64), (3,)), TypeError,
         "rms_norm: input has dtype int64, expected float32 or float64"),
        (lambda: F.layer_norm(values(2, 3), (3,), np.ones(3)), TypeError,
         "layer_norm: weight has dtype float64, expected float32 like input"),
        (lambda: F.group_norm(values(2, 6, 3), 4), ValueError,
         "group_norm: num_groups is 4, expected a divisor of the 6 channels of input of shape "
         "(2, 6, 3)"),
        (lambda: F.group_norm(values(2, 6), 0), ValueError, "group_norm: num_groups is 0"),
        (lambda: F.group_norm(values(6), 2), ValueError,
         "group_norm: input has shape (6,), expected (N, C) or (N, C, ...)"),
        (lambda: F.batch_norm(values(2, 6), None, None), ValueError,
         "batch_norm: evaluation needs running_mean and running_var, got None"),
        (lambda: F.batch_norm(values(2, 6), values(5), values(6)), ValueError,
         "batch_norm: running_mean has shape (5,), expected (6,) for input of shape (2, 6)"),
        (lambda: F.batch_norm(values(2, 6), None, None, training=True, activation="gelu"),
         ValueError, "batch_norm: activation='gelu', expected None or 'relu'"),
        (lambda: F.instance_norm(values(2, 6, 1)), ValueError,
         "instance_norm: input has shape (2, 6, 1), expected (N, C, ...) with more than 1"),
        (lambda: nn.BatchNorm2d(3)(values(2, 3)), ValueError,
         "BatchNorm2d: input has shape (2, 3), expected 4 axes with 3 channels"),
        (lambda: nn.BatchNorm1d(3)(values(3, 2)), ValueError,
         "BatchNorm1d: input has shape (3, 2), expected 2 or 3 axes with 3 channels"),
        (lambda: nn.GroupNorm(4, 6), ValueError, "num_channels=6 must be divisible"),
        (lambda: _core.layer_norm_backward(False, values(2, 3), values(2, 3), (3,), None,
                                           values(3, 3), False, False), ValueError,
         "layer_norm: stats has shape (3, 3), expected (3, 2)"),
    ],
)  # fmt: skip
def test_refused_calls(call, error, text):
    with pytest.raises(error, match=re.escape(text)):
        call()


def test_layers():
    x = values(4, 6, 5)
    np.testing.assert_array_equal(nn.LayerNorm(5)(x).numpy(), F.layer_norm(x, 5))
    np.testing.assert_array_equal(nn.LayerNorm((6, 5))(x).numpy(), F.layer_norm(x, (6, 5)))
    np.testing.assert_array_equal(nn.RMSNorm(5)(x).numpy(), F.rms_norm(x, 5))
    np.testing.assert_array_equal(nn.GroupNorm(3, 6)(x).numpy(), F.group_norm(x, 3))
    np.testing.assert_array_equal(nn.InstanceNorm1d(6)(x).numpy(), F.instance_norm(x))
    np.testing.assert_allclose(nn.InstanceNorm1d(6)(x[0]).numpy(), F.instance_norm(x)[0])
    assert [n for n, _ in nn.LayerNorm(3, bias=False).named_parameters()] == ["weight"]
    assert [n for n, _ in nn.RMSNorm(3).named_parameters()] == ["weight"]
    normed, total = nn.LayerNorm(5)(x, residual=x)
    np.testing.assert_array_equal(total.numpy(), x + x)
    assert normed.shape == x.shape
    layer = nn.LayerNorm(5, dtype=np.float64)
    layer.weight._data[:] = 3
    layer.reset_parameters()
    assert layer.weight.tolist() == [1] * 5


def torch_of() -> Any:
    return pytest.importorskip("torch", reason="torch is not installed (extra 'peers')")


def test_layers_against_torch():
    torch = torch_of()
    cases = [
        ("BatchNorm1d", (3,), (7, 3)), ("BatchNorm1d", (3,), (7, 3, 5)),
        ("BatchNorm2d", (3, 1e-3, 0.3), (2, 3, 5, 4)), ("BatchNorm3d", (3, 1e-5, None),
                                                        (2, 3, 2, 2, 3)),
        ("InstanceNorm1d", (3,), (4, 3, 5)), ("InstanceNorm2d", (3, 1e-5, 0.2, True, True),
                                              (4, 3, 5, 6)),
        ("LayerNorm", (6,), (4, 6)), ("LayerNorm", ((5, 6),), (3, 5, 6)),
        ("GroupNorm", (2, 4), (3, 4, 5)), ("RMSNorm", (6,), (4, 6)),
    ]  # fmt: skip
    for name, arguments, shape in cases:
        ours, peer = getattr(nn, name)(*arguments), getattr(torch.nn, name)(*arguments)
        for p in peer.parameters():
            torch.nn.init.normal_(p)
        for mode in (True, True, False):
            ours.load_state_dict({k: v.numpy() for k, v in peer.state_dict().items()})
            ours.train(mode)
            peer.train(mode)
            x, grad = values(*shape, seed=7), values(*shape, seed=8)
            a = fn.tensor(x, requires_grad=True)
            b = torch.tensor(x, requires_grad=True)
            y, z = ours(a), peer(b)
            y.backward(grad)
            peer.zero_grad()
            z.backward(torch.tensor(grad))
            close = {"rtol": 1e-4, "atol": 1e-5}
            np.testing.assert_allclose(y.numpy(), z.detach().numpy(), **close, err_msg=name)
            np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), **close, err_msg=name)
            for (key, p), q in zip(ours.named_parameters(), peer.parameters(), strict=True):
                np.testing.assert_allclose(p.grad.numpy(), q.grad.numpy(), **close, err_msg=key)
                p.grad = None
            for key, value in peer.state_dict().items():
                np.testing.assert_allclose(
                    ours.state_dict()[key], value.numpy(), **close, err_msg=f"{name} {key}"
                )
