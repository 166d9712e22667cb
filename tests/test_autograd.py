"""The tape: the walk, what it frees, modes, hooks, and gradients of parts."""

import asyncio
import gc
import sys
import threading
import weakref

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import nn
from fusednn.testing import gradcheck

f32, f64 = np.float32, np.float64


def values(*shape, seed=0, dtype=f64):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def positive(*shape, seed=0):
    return np.asarray(abs(values(*shape, seed=seed)) + 0.5)


def spaced(*shape, seed=0):
    """Distinct values far apart from each other and from 0, so that no kink or tie is near."""
    count = int(np.prod(shape))
    grid = np.arange(count) - count / 2 + 0.25
    return np.random.default_rng(seed).permutation(grid).reshape(shape) * 0.3


def leaf(data, dtype=None):
    return fn.tensor(np.asarray(data, dtype or f64), requires_grad=True)


# ---- backward ------------------------------------------------------------------------------------


def test_gradients_add_up_until_set_to_none():
    x = leaf([1.0, 2.0])
    for n in (1, 2, 3):
        (x * 3).sum().backward()
        assert x.grad.tolist() == [3 * n, 3 * n]
    x.grad = None
    assert x.grad is None
    x.sum().backward()
    assert x.grad.tolist() == [1, 1]
    assert x.grad is x.grad


def test_one_leaf_used_many_times():
    x = leaf(3.0)
    y = x * x + x * 2 - x
    z = y * x + y
    z.backward()
    assert x.grad.item() == pytest.approx(3 * 9 + 2 * 2 * 3 + 1)


def test_grad_is_the_tensors_own():
    given = np.ones(3)
    x, y = leaf([1.0, 2.0, 3.0]), leaf([1.0, 1.0, 1.0])
    (x + y).backward(given)
    assert x.grad._data is not y.grad._data
    given[:] = 7
    x.grad += 1
    assert y.grad.tolist() == [1, 1, 1]
    x.grad = None
    x.backward(given)
    x.grad.zero_()
    assert given.tolist() == [7, 7, 7]


def test_backward_arguments():
    x = leaf([1.0, 2.0])
    y = x * 2
    for grad, error, text in (
        (None, ValueError, r"the tensor has shape \(2,\), not one element, so grad"),
        (np.ones(3), ValueError, r"grad has shape \(3,\) and dtype float64, expected \(2,\)"),
        (np.ones(2, f32), ValueError, "dtype float32, expected .* and float64"),
        ([1.0, 1.0], TypeError, "grad must be a Tensor or an array, got list"),
    ):
        with pytest.raises(error, match=text):
            y.backward(grad)
    y.backward(np.array([1.0, 10.0]))
    assert x.grad.tolist() == [2, 20]
    with pytest.raises(RuntimeError, match="does not require grad, so nothing was recorded"):
        fn.ones(1).backward()
    leaf([5.0]).backward()


def test_grad_may_be_set_to_what_fits():
    x = leaf([1.0, 2.0])
    x.grad = np.ones(2)
    x.sum().backward()
    assert x.grad.tolist() == [2, 2]
    with pytest.raises(ValueError, match=r"grad: has shape \(3,\) and dtype float64, expected"):
        x.grad = np.ones(3)
    with pytest.raises(ValueError, match="dtype float32"):
        x.grad = fn.ones(2)
    with pytest.raises(TypeError, match="must be a Tensor, an array or None, got int"):
        x.grad = 3


def test_a_set_grad_that_shares_a_users_memory_is_not_written():
    mine = np.ones(2)
    x = leaf([1.0, 2.0])
    x.grad = fn.from_numpy(mine)
    x.sum().backward()
    assert x.grad.tolist() == [2, 2]
    assert mine.tolist() == [1, 1]


def test_second_backward_needs_retain_graph():
    x = leaf([2.0])
    y = (x * x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [8]
    with pytest.raises(RuntimeError, match=r"walked before .*retain_graph=True"):
        y.backward()
    assert x.grad.tolist() == [8]


def test_only_needed_gradients_are_computed(monkeypatch):
    from fusednn import _core

    calls = []
    for name in ("conv_backward_input", "conv_backward_weight", "conv_backward_bias"):
        real = getattr(_core, name)
        monkeypatch.setattr(
            _core, name, lambda *a, name=name, real=real: (calls.append(name), real(*a))[1]
        )
    x, w, b = values(1, 1, 4, 4), values(1, 1, 2, 2), values(1)
    F.conv2d(x, leaf(w), b).sum().backward()
    F.conv2d(leaf(x), w, leaf(b)).sum().backward()
    assert calls == ["conv_backward_weight", "conv_backward_input", "conv_backward_bias"]


def test_a_failing_backward_changes_no_gradient():
    from fusednn._tensor.tape import record

    def bad_backward(node, grad):
        raise ValueError("no")

    x, y = leaf([1.0]), leaf([2.0])
    bad = record(y._data * 1, bad_backward, (y,))
    total = bad.sum() + (x * 2).sum()
    with pytest.raises(ValueError, match="no") as caught:
        total.backward()
    assert "while computing the gradient of bad" in caught.value.__notes__[0]
    assert x.grad is None
    assert y.grad is None


def test_several_outputs():
    from fusednn._tensor.tape import record_outputs

    def both_backward(node, grad):
        x, _, _ = node.saved
        first, second = grad
        total = np.zeros_like(x)
        if first is not None:
            total = total + 2 * first
        if second is not None:
            total = total + 2 * x * second
        return (total,)

    def both(x):
        outputs = (x._data * 2, x._data**2)
        return record_outputs(outputs, both_backward, (x,), (x,), (), keep_outputs=True)

    assert gradcheck(lambda x: both(x)[0], values(3))
    assert gradcheck(lambda x: both(x)[1] * 2 + both(x)[1], values(3))
    assert gradcheck(both, values(3))
    x = leaf([1.0, 2.0])
    a, b = both(x)
    (a + a * b).sum().backward()
    assert x.grad.tolist() == [2 + 6, 2 + 24]
    a, b = both(x)
    b += 1
    with pytest.raises(RuntimeError, match="changed in place"):
        a.sum().backward()
    with fn.no_grad():
        assert not both(x)[1].requires_grad


# ---- depth and memory ----------------------------------------------------------------------------


def chain(x, length):
    y = x
    for _ in range(length):
        y = y + 1.0
    return y


def test_a_chain_of_100_000_ops_runs_backward_and_is_freed():
    limit = sys.getrecursionlimit()
    x = leaf([1.0])
    y = chain(x, 100_000)
    y.backward()
    assert x.grad.tolist() == [1]
    del y
    z = chain(x, 100_000)  # freed without ever having been walked
    node = weakref.ref(z.grad_fn)
    del z
    gc.collect()
    assert node() is None
    assert sys.getrecursionlimit() == limit


def test_saved_memory_is_freed_on_the_way():
    x = leaf(values(1000))
    hidden = x.exp()
    saved = weakref.ref(hidden.grad_fn)
    arrays = [weakref.ref(hidden._data)]
    y = (hidden * hidden.detach().clone()).sum()
    node = y.grad_fn
    del hidden
    assert arrays[0]() is not None  # the tape holds it
    y.backward()
    assert arrays[0]() is None
    assert saved() is None
    assert node.saved == ()
    assert node.edges == ()


def test_no_reference_cycles_keep_a_graph_alive():
    gc.disable()
    try:
        x = leaf(values(10))
        y = (F.softmax(x.reshape(2, 5), 1) * x.reshape(2, 5)).sum()
        seen = [weakref.ref(y), weakref.ref(y.grad_fn), weakref.ref(y.grad_fn.edges[0])]
        del y
        assert [ref() for ref in seen] == [None, None, None]
    finally:
        gc.enable()


# ---- recording on and off ------------------------------------------------------------------------


def test_grad_modes():
    x = leaf([1.0])
    with fn.no_grad():
        assert not (x * 2).requires_grad
        assert x.requires_grad
        with fn.enable_grad():
            assert (x * 2).requires_grad
        assert not fn.is_grad_enabled()
    with fn.set_grad_enabled(False):
        assert not (x * 2).requires_grad
    assert fn.is_grad_enabled()

    @fn.no_grad()
    def called(x):
        return x * 2

    @fn.no_grad
    def plain(x):
        """Its own text."""
        return x * 2

    assert not called(x).requires_grad
    assert not plain(x).requires_grad
    assert plain.__doc__ == "Its own text."
    with pytest.raises(KeyError), fn.no_grad():
        raise KeyError
    assert fn.is_grad_enabled()
    both = fn.no_grad()
    with both, both:
        assert not fn.is_grad_enabled()
    assert fn.is_grad_enabled()


def test_a_decorated_generator_has_the_mode_while_it_runs_alone():
    x = leaf([1.0])

    @fn.no_grad()
    def halves(count):
        got = []
        try:
            for _ in range(count):
                assert not fn.is_grad_enabled()
                got.append((yield (x * 2).requires_grad))
        except KeyError:
            yield fn.is_grad_enabled()
        finally:
            closed.append(fn.is_grad_enabled())
        return got

    closed = []
    running = halves(2)
    assert next(running) is False
    assert fn.is_grad_enabled()
    assert running.send("sent") is False
    with pytest.raises(StopIteration) as end:
        running.send("last")
    assert end.value.value == ["sent", "last"]
    running = halves(9)
    next(running)
    assert running.throw(KeyError()) is False
    assert fn.is_grad_enabled()
    running.close()
    running = halves(9)
    next(running)
    running.close()
    assert closed == [False, False, False]
    assert fn.is_grad_enabled()
    # Two that run in turn do not disturb each other.
    both = zip(halves(2), fn.enable_grad()(lambda: iter("ab"))(), strict=True)
    assert [a for a, _ in both] == [False, False]


def test_coroutines_and_asynchronous_generators_have_the_mode_too():
    @fn.no_grad
    async def one():
        await asyncio.sleep(0)
        return fn.is_grad_enabled()

    @fn.no_grad()
    async def many():
        for _ in range(2):
            await asyncio.sleep(0)
            yield fn.is_grad_enabled()

    async def run():
        seen = [await one(), fn.is_grad_enabled()]
        async for enabled in many():
            seen += [enabled, fn.is_grad_enabled()]
        return seen

    assert asyncio.run(run()) == [False, True] * 3


def test_modes_decorate_functions_alone():
    assert fn.set_grad_enabled(False)(fn.is_grad_enabled)() is False
    assert fn.is_grad_enabled()
    for what in (3, True, nn.Linear):
        with pytest.raises(TypeError, match="no_grad: can decorate functions alone, got"):
            fn.no_grad(what)


def test_grad_mode_belongs_to_its_thread():
    seen = []
    with fn.no_grad():
        thread = threading.Thread(target=lambda: seen.append(fn.is_grad_enabled()))
        thread.start()
        thread.join()
    assert seen == [True]


def test_detach_shares_memory_off_the_tape():
    x = leaf([1.0, 2.0])
    y = (x * 2).detach()
    assert not y.requires_grad
    assert y.is_leaf
    assert np.shares_memory(x.detach().numpy(), x.numpy())
    assert x.data.tolist() == [1, 2]
    (x * x.detach()).sum().backward()
    assert x.grad.tolist() == [1, 2]


def test_leaves_and_results():
    x = leaf([1.0])
    y = x * 2
    assert x.is_leaf
    assert not y.is_leaf
    assert x.grad_fn is None
    assert repr(y.grad_fn) == "<MulBackward>"
    with pytest.raises(RuntimeError, match="an op made this tensor; use detach"):
        y.requires_grad = False
    x.requires_grad_(False)
    assert not (x * 2).requires_grad


# ---- hooks ---------------------------------------------------------------------------------------


def test_hooks_on_leaves_see_the_whole_gradient_once():
    x, seen = leaf([1.0, 2.0]), []
    handle = x.register_hook(lambda grad: seen.append(grad.tolist()))
    (x * 2 + x * 3).sum().backward()
    assert seen == [[5, 5]]
    handle.remove()
    handle.remove()
    (x * 2).sum().backward()
    assert len(seen) == 1


def test_hooks_on_results_replace_the_gradient_in_order():
    x = leaf([1.0, 2.0])
    y = x * 1
    y.register_hook(lambda grad: grad * 10)
    y.register_hook(lambda grad: grad.numpy() + 1)
    y.retain_grad()
    (y * 2).sum().backward()
    assert x.grad.tolist() == [21, 21]
    assert y.grad.tolist() == [21, 21]


def test_retain_grad():
    x = leaf([1.0])
    y = x * 2
    y.retain_grad()
    x.retain_grad()
    z = y * y
    z.backward(retain_graph=True)
    assert y.grad.tolist() == [4]
    assert z.grad is None
    z.backward()
    assert y.grad.tolist() == [8]
    with pytest.raises(RuntimeError, match="retain_grad: this tensor does not require grad"):
        fn.ones(1).retain_grad()


def test_a_hook_is_a_function():
    for x in (leaf([1.0]), leaf([1.0]) * 2):
        with pytest.raises(TypeError, match="register_hook: hook must be callable, got int"):
            x.register_hook(3)


def test_bad_hooks():
    x = leaf([1.0])
    with pytest.raises(RuntimeError, match="register_hook: this tensor does not require grad"):
        fn.ones(1).register_hook(print)
    for result, error, text in (
        (np.ones(2), ValueError, r"hook: returned shape \(2,\)"),
        (np.ones(1, f32), ValueError, "dtype float32"),
        ("a", TypeError, "hook: must return a Tensor, an array or None, got str"),
    ):
        handle = x.register_hook(lambda grad, result=result: result)
        with pytest.raises(error, match=text):
            (x * 1).sum().backward()
        handle.remove()
    assert x.grad is None


def test_a_hook_that_changes_its_argument_harms_nobody():
    x, y = leaf([1.0]), leaf([1.0])
    given = np.ones(1)
    z = x + y
    z.register_hook(lambda grad: None)
    z.backward(given)
    assert given.tolist() == [1]
    assert x.grad.tolist() == y.grad.tolist() == [1]


# ---- gradients of parts --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "indices",
    [
        [0, 1, 2],  # every row, once
        [2, 0],  # rows missing
        [0, 0, 1, 2],  # a row twice
        [-1, 0, 1],
        [slice(0, 2), slice(1, 3)],  # overlapping
        [(0, 1), (slice(None), 2), (..., 0), None],
        [slice(None, None, 2), 1, (2, slice(None), 3)],
    ],
)
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("leaf", [False, True])
def test_parts_of_a_tensor_add_up(indices, whole, leaf):
    """As many zeros and sums of whole arrays, however the parts' gradients are gathered."""
    data = np.random.default_rng(0).standard_normal((3, 4, 5))

    def f(x):
        y = x if leaf else x * 2
        total = sum(((k + 1) * y[index].square()).sum() for k, index in enumerate(indices))
        return total + (y * y * y).sum() if whole else total

    assert fn.testing.gradcheck(f, data)
    x = fn.tensor(data, requires_grad=True)
    parts = [x[index] for index in indices]
    sum(part.sum() for part in parts).backward()
    expected = np.zeros(data.shape)
    for index in indices:
        expected[index] += 1
    np.testing.assert_array_equal(x.grad.numpy(), expected)


def test_hooks_see_the_whole_gradient_of_parts():
    x = fn.tensor(np.ones((2, 3)), requires_grad=True)
    seen = []
    y = x * 1
    y.register_hook(lambda grad: seen.append(grad.numpy().copy()))
    x.register_hook(lambda grad: seen.append(grad.numpy().copy()))
    (y[0].sum() + y[1, :2].sum()).backward()
    np.testing.assert_array_equal(seen[0], [[1, 1, 1], [1, 1, 0]])
    np.testing.assert_array_equal(seen[1], seen[0])


def test_parts_of_a_permuted_tensor_keep_its_order_in_memory():
    """As attention takes q, k and v out of one projection: their gradients need no second copy."""
    x = fn.tensor(np.arange(2.0 * 5 * 3 * 4).reshape(2, 5, 12), requires_grad=True)
    seen = []
    whole = x.reshape(2, 5, 3, 4)
    whole.register_hook(lambda grad: seen.append(grad.numpy().flags.c_contiguous))
    parts = whole.permute(2, 0, 3, 1)
    weights = np.random.default_rng(0).standard_normal((3, 2, 4, 5))
    sum((parts[i] * weights[i]).sum() for i in range(3)).backward()
    expected = weights.transpose(1, 3, 0, 2).reshape(2, 5, 12)
    np.testing.assert_array_equal(x.grad.numpy(), expected)
    assert seen == [True]
    x.grad = None
    (x.reshape(2, 5, 3, 4).permute(2, 0, 3, 1)[1, :, 1:3] * 2.0).sum().backward()
    expected = np.zeros((2, 5, 3, 4))
    expected[:, :, 1, 1:3] = 2
    np.testing.assert_array_equal(x.grad.numpy(), expected.reshape(2, 5, 12))
