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
        lists = [None if a is None else [a] for a in copies]
        step(lists[0], [grad], *lists[1:], *options)
        return tuple(copies)

    return op


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("momentum", [None, False, True], ids=["plain", "first", "later"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_sgd(xp, dtype, size, momentum, nesterov):
    grad, param, buffer = values(size, 3, dtype)
    if momentum is None:
        check(xp, stepped(_core.sgd_step, [False], 0.1, 0.0, 0.0, 0.01, False, True), grad, param,
              None, units=8)  # fmt: skip
        return
    if not momentum:
        buffer[:] = np.nan  # not even a factor of 0 may touch it
    op = stepped(_core.sgd_step, [not momentum], 0.1, 0.9, 0.0, 0.01, nesterov, False)
    check(xp, op, grad, param, buffer, units=8)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("amsgrad", [False, True])
@pytest.mark.parametrize("decoupled", [False, True])
def test_adam(xp, dtype, size, amsgrad, decoupled):
    grad, param, mean, square, most = values(size, 5, dtype, positive=(3, 4))
    op = stepped(_core.adam_step, [3], 0.01, 0.9, 0.999, 1e-8, 0.1, decoupled, False)
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
    check(xp, stepped(_core.adagrad_step, [0.1], 1e-10, 0.1, True), grad, param, total, units=16)


def test_arrays_between_the_vectors(xp):
    grad, param = (xp.asarray(a) for a in values(40, 2, "float32"))
    expected = xp.asnumpy(param)[1:] - np.float32(0.5) * xp.asnumpy(grad)[1:]
    _core.sgd_step([param[1:]], [grad[1:]], None, [False], 0.5, 0.0, 0.0, 0.0, False, False)
    np.testing.assert_allclose(xp.asnumpy(param)[1:], expected, rtol=1e-6)


def test_devices_do_not_mix(xp):
    with pytest.raises(ValueError, match="sgd_step: param is on the CPU, expected on cuda:0 like"):
        _core.sgd_step(
            [np.zeros(2, "float32")],
            [xp.zeros(2, "float32")],
            None,
            [False],
            0.1,
            0,
            0,
            0,
            False,
            False,
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


# ---- lists of tensors ----------------------------------------------------------------------------

# Chunks are 4096 elements of float32: several tensors of one chunk, and one of several; most that
# begin where 16 bytes do, some between.
LIST_SIZES = (5, 1, 4097, 0, 64, 8191, 3, 4096)
STEPS = {
    "sgd": (_core.sgd_step, 1, lambda n: ([i % 2 == 0 for i in range(n)], 0.1, 0.9, 0.1, 0.01,
                                          False, False)),
    "plain": (_core.sgd_step, 0, lambda n: ([False] * n, 0.1, 0.0, 0.0, 0.01, False, True)),
    "adam": (_core.adam_step, 2, lambda n: ([1 + i // 3 for i in range(n)], 0.01, 0.9, 0.99, 1e-8,
                                            0.1, True, False)),
    "amsgrad": (_core.adam_step, 3, lambda n: ([4] * n, 0.01, 0.9, 0.99, 1e-8, 0.1, False, False)),
    "rmsprop": (_core.rmsprop_step, 3, lambda n: (0.01, 0.9, 1e-4, 0.1, 0.9, False)),
    "adagrad": (_core.adagrad_step, 1, lambda n: ([0.1 / (1 + i % 2) for i in range(n)], 1e-10, 0.1,
                                                  False)),
}  # fmt: skip


def tensor_lists(xp, sizes, states, dtype):
    """Columns of arrays, [param], [grad], states...; every third array lies between vectors."""
    rng = np.random.default_rng(0)
    columns = []
    for _ in range(2 + states):
        arrays = []
        for i, size in enumerate(sizes):
            held = xp.asarray(abs(rng.standard_normal(size + 1)).astype(dtype) + 1)
            arrays.append(held[1:] if i % 3 == 2 else held[:size])
        columns.append(arrays)
    return columns


def one_by_one(options, i):
    return tuple([one[i]] if isinstance(one, list) else one for one in options)


def lists_of(name, columns):
    """As the step takes them: optional columns that the case has none of are None."""
    missing = {"plain": 1, "adam": 1}.get(name, 0)
    return (*columns, *[None] * missing)


@pytest.mark.parametrize("name", STEPS)
def test_lists_are_updated_as_their_tensors_one_by_one(xp, dtype, name, order):
    step, states, options = STEPS[name]
    sizes = LIST_SIZES * 2 if name == "adam" else LIST_SIZES
    chosen = options(len(sizes))
    results = []
    for fused in (True, False):
        columns = tensor_lists(xp, sizes, states, dtype)
        if fused:
            step(*lists_of(name, columns), *chosen)
        else:
            for i in range(len(sizes)):
                single = [[arrays[i]] for arrays in columns]
                step(*lists_of(name, single), *one_by_one(chosen, i))
        results.append([xp.asnumpy(a) for arrays in columns for a in arrays])
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    before = [xp.asnumpy(a) for arrays in tensor_lists(xp, sizes, states, dtype) for a in arrays]
    changed = [not np.array_equal(a, b) for a, b in zip(results[0], before, strict=True)]
    count = len(sizes)
    assert changed[:count] == [size > 0 for size in sizes]
    assert not any(changed[count : 2 * count])


@pytest.mark.emulated
@pytest.mark.parametrize(("count", "launches"), [(1, 1), (40, 1), (90, 2)])
def test_many_tensors_are_one_launch(xp, count, launches):
    from emulated import take_counts

    columns = [[xp.ones(3, "float32") for _ in range(count)] for _ in range(4)]
    take_counts()
    _core.adam_step(*columns, None, [1] * count, 0.1, 0.9, 0.99, 1e-8, 0.0, False, False)
    assert take_counts()["launches"] == launches
    _core.sum_of_squares(columns[0], 1.0)
    assert take_counts()["launches"] == 2
    _core.scale_arrays(columns[0], 2.0)
    assert take_counts()["launches"] == 1


def test_parameters_that_share_memory_are_updated_in_turn(xp):
    """As one after the other would be, on the CPU as well."""
    rng = np.random.default_rng(1)
    start, grads = rng.standard_normal(12), [rng.standard_normal(8) for _ in range(2)]
    results = []
    for place in (np.asarray, xp.asarray):
        memory = place(start.copy())
        overlapping = [memory[:8], memory[4:]]
        _core.sgd_step(
            overlapping,
            [place(g) for g in grads],
            None,
            [False] * 2,
            0.1,
            0.0,
            0.0,
            0.5,
            False,
            False,
        )
        results.append(memory)
    np.testing.assert_allclose(xp.asnumpy(results[1]), results[0], rtol=1e-15)
    # A gradient that is another's parameter is read before, or after, but never in between.
    a, b = place(start[:8].copy()), place(start[4:].copy())
    _core.sgd_step(
        [a, b], [b, place(grads[0])], None, [False] * 2, 1.0, 0.0, 0.0, 0.0, False, False
    )
    np.testing.assert_array_equal(xp.asnumpy(a), start[:8] - start[4:])


def test_a_gradient_may_belong_to_several(xp):
    grad = xp.ones(5, "float32")
    params = [xp.zeros(5, "float32") for _ in range(3)]
    _core.sgd_step(params, [grad] * 3, None, [False] * 3, 0.5, 0.0, 0.0, 0.0, False, False)
    assert all(xp.asnumpy(p).tolist() == [-0.5] * 5 for p in params)


@pytest.mark.parametrize("sizes", [(0,), (1,), (5, 4097, 3), (8193, 1)], ids=str)
def test_sum_of_squares(xp, dtype, sizes, order):
    (arrays, _) = tensor_lists(xp, sizes, 0, dtype)
    got = _core.sum_of_squares(arrays, 0.5)
    assert isinstance(got, xp.ndarray) and got.shape == () and got.dtype == np.float64
    expected = _core.sum_of_squares([xp.asnumpy(a) for a in arrays], 0.5)
    np.testing.assert_allclose(float(got), expected, rtol=1e-13)
    assert float(_core.sum_of_squares(arrays, 0.5)) == float(got)


def test_sums_of_more_arrays_than_a_launch_takes(xp):
    arrays = [xp.asarray(np.full(2, i, "float32")) for i in range(200)]
    assert float(_core.sum_of_squares(arrays, 1.0)) == 2 * sum(i * i for i in range(200))


def test_scale_arrays(xp, dtype, order):
    (arrays, _) = tensor_lists(xp, LIST_SIZES, 0, dtype)
    before = [xp.asnumpy(a) for a in arrays]
    _core.scale_arrays(arrays, 0.3)
    for array, value in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(xp.asnumpy(array), value * np.dtype(dtype).type(0.3))


def test_clipping_waits_once(xp):
    """The norm of many gradients: the CPU's, and one look at the device."""
    rng = np.random.default_rng(2)
    values = [rng.standard_normal(s).astype("float32") for s in ((3, 4), (7,), (64, 80))]
    norms, results = [], []
    for device in ("cpu", "cuda"):
        params = []
        for value in values:
            w = fn.tensor(value, device=device, requires_grad=True)
            (w * w.detach()).sum().backward()
            params.append(w)
        # One whose gradient lies transposed.
        params[0].grad = fn.tensor(values[0].T.copy(), device=device).T
        norms.append(fn.optim.clip_grad_norm_(params, 0.5))
        results.append([w.grad.cpu().numpy() for w in params])
    assert norms[1] == pytest.approx(norms[0], rel=1e-12)
    for mine, expected in zip(results[1], results[0], strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-6)


def test_lists_are_checked_before_anything_is_written(xp):
    p, g, short = xp.ones(4, "float32"), xp.ones(4, "float32"), xp.ones(3, "float32")
    q = xp.ones(4, "float32")
    step = (0.1, 0.0, 0.0, 0.0, False, False)
    with pytest.raises(ValueError, match=r"sgd_step: param has shape \(3,\), expected \(4,\)"):
        _core.sgd_step([p, short], [g, g], None, [False] * 2, *step)
    with pytest.raises(TypeError, match="grad has dtype float64, expected float32 like input"):
        _core.sgd_step([p, q], [g, xp.ones(4)], None, [False] * 2, *step)
    with pytest.raises(ValueError, match="sgd_step: param has 1 entries, expected 2 like grad"):
        _core.sgd_step([p], [g, g], None, [False] * 2, *step)
    with pytest.raises(ValueError, match="sgd_step: first_step has 1 entries, expected 2"):
        _core.sgd_step([p, q], [g, g], None, [False], *step)
    with pytest.raises(TypeError, match="sgd_step: grad must be a list, got tuple"):
        _core.sgd_step([p], (g,), None, [False], *step)
    with pytest.raises(ValueError, match="sgd_step: grad is on the CPU, expected on cuda:0 like"):
        _core.sgd_step([p, q], [g, np.ones(4, "float32")], None, [False] * 2, *step)
    assert xp.asnumpy(p).tolist() == [1.0] * 4


def test_parameters_of_two_places_and_dtypes():
    """An optimiser may have any; each device and dtype is one update."""
    made = []
    for device in ("cpu", "cuda"):
        for kind in ("float32", "float64"):
            w = fn.tensor(np.ones(3, kind), device=device, requires_grad=True)
            (w * 2).sum().backward()
            made.append(w)
    fn.optim.clip_grad_norm_(made, 100.0)
    fn.optim.Adam(made, lr=0.5).step()
    for w in made:
        np.testing.assert_allclose(w.detach().cpu().numpy(), 0.5, rtol=1e-6)


@pytest.mark.emulated
def test_scaling_back_and_averaging_are_a_launch_for_all(xp):
    """The CPU's gradients and averages; how many parameters there are makes no difference."""
    from emulated import take_counts

    rng = np.random.default_rng(3)
    values = [rng.standard_normal(s).astype("float32") for s in ((3, 4), (7,), (5, 5), (2,), ())]
    results = []
    for device in ("cpu", "cuda"):
        params = [fn.tensor(v, device=device, requires_grad=True) for v in values]
        scaler, ema = fn.optim.GradScaler(), fn.optim.EMA(params, 0.5)
        optimizer = fn.optim.SGD(params, lr=0.1)
        scaler.scale(sum((p * p).sum() for p in params)).backward()
        take_counts()
        scaler.unscale_(optimizer)
        launches = [take_counts()["launches"]]
        scaler.step(optimizer)
        scaler.update()
        take_counts()
        ema.update()
        launches.append(take_counts()["launches"])
        if device == "cuda":  # a product; its squares and their sum
            assert launches == [3, 1]
        results.append([p.grad.detach().cpu().numpy() for p in params])
        results[-1] += [xp.asnumpy(a) for a in ema.state_dict()["averages"].values()]
    for got, value in zip(results[1], results[0], strict=True):
        np.testing.assert_allclose(got, value, rtol=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scaling_back_finds_what_is_not_finite(xp, dtype, bad):
    """And takes nothing else for it, however large."""
    top = np.finfo(dtype).max
    params = [fn.zeros(n, dtype=dtype, device="cuda", requires_grad=True) for n in (3, 4, 5)]
    optimizer = fn.optim.SGD(params, lr=0.0)
    for value, finite in ((top, True), (bad, False)):
        scaler = fn.optim.GradScaler(1.0)
        for p in params:
            p.grad = fn.full(p.shape, top, dtype=dtype, device="cuda")
        params[1].grad._data[2] = value
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == (1.0 if finite else 0.5)
