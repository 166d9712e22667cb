"""The tape: gradients of every op, the walk, what it saves, and what may change meanwhile."""

import gc
import sys
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fusednn as fn
import fusednn.functional as F
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


# ---- every op against central differences --------------------------------------------------------

MASK = values(3, 4, seed=9) > 0
UNARY = {
    "neg": lambda x: -x,
    "pos": lambda x: +x,
    "abs": abs,
    "square": lambda x: x.square(),
    "exp": lambda x: x.exp(),
    "expm1": lambda x: x.expm1(),
    "sin": lambda x: x.sin(),
    "cos": lambda x: x.cos(),
    "tanh": lambda x: x.tanh(),
    "sigmoid": lambda x: x.sigmoid(),
    "relu": lambda x: x.relu(),
    "clamp": lambda x: x.clamp(-0.4, 1.1),
    "clamp min": lambda x: x.clamp(min=0.1),
    "add scalar": lambda x: x + 2,
    "rsub scalar": lambda x: 2 - x,
    "mul scalar": lambda x: 3 * x,
    "div scalar": lambda x: x / 3,
    "rdiv scalar": lambda x: 3 / x,
    "power 2": lambda x: x**2,
    "power 3": lambda x: x**3,
    "power 0": lambda x: x**0,
    "power -1": lambda x: x**-1,
    "rpow": lambda x: 2.0**x,
    "sum": lambda x: x.sum(),
    "sum 0": lambda x: x.sum(0),
    "sum keepdim": lambda x: x.sum((0, 1), keepdim=True),
    "mean": lambda x: x.mean(),
    "mean 1": lambda x: x.mean(1, keepdim=True),
    "var": lambda x: x.var(),
    "var 0": lambda x: x.var(0, correction=0),
    "std": lambda x: x.std(),
    "std 1": lambda x: x.std(1, keepdim=True),
    "prod": lambda x: x.prod(),
    "prod 1": lambda x: x.prod(1),
    "amax": lambda x: x.amax(),
    "amin 1": lambda x: x.amin(1),
    "max": lambda x: x.max(),
    "max 0": lambda x: x.max(0).values,
    "min 1": lambda x: x.min(1, keepdim=True).values,
    "cumsum": lambda x: x.cumsum(1),
    "reshape": lambda x: x.reshape(2, 6),
    "flatten": lambda x: x.flatten(),
    "permute": lambda x: x.permute(1, 0),
    "transpose": lambda x: x.transpose(0, -1),
    "T": lambda x: x.T,
    "unsqueeze": lambda x: x.unsqueeze(1),
    "squeeze": lambda x: x[:1].squeeze(),
    "expand": lambda x: x[:, :1].expand(3, 5),
    "expand lead": lambda x: x.expand(2, 3, 4),
    "repeat": lambda x: x.repeat(2, 3),
    "repeat lead": lambda x: x.repeat(2, 1, 2),
    "flip": lambda x: x.flip(0, 1),
    "movedim": lambda x: x.movedim(0, 1),
    "clone": lambda x: x.clone(),
    "contiguous": lambda x: x.T.contiguous(),
    "split": lambda x: x.split((1, 3), 1)[1],
    "unbind": lambda x: x.unbind(1)[2],
    "slice": lambda x: x[1:, ::-2],
    "int": lambda x: x[1],
    "element": lambda x: x[1, 2],
    "new axis": lambda x: x[None, ..., 1],
    "rows": lambda x: x[np.array([2, 0, 2, -1])],
    "rows 2d": lambda x: x[np.array([[2, 0], [2, 1]])],
    "pairs": lambda x: x[np.array([0, 0, 2]), np.array([1, 1, 3])],
    "columns": lambda x: x[:, [1, 1, 0]],
    "mask": lambda x: x[MASK],
    "gather": lambda x: x.gather(1, np.array([[0, 0], [1, 3], [2, 2]])),
    "index_select": lambda x: x.index_select(1, np.array([3, 0, 3])),
    "masked_fill": lambda x: x.masked_fill(MASK, 0.0),
    "where": lambda x: fn.where(MASK, x, 1.0),
    "where other": lambda x: fn.where(MASK, 1.0, x),
    "maximum": lambda x: fn.maximum(x, 0.2),
    "minimum": lambda x: fn.minimum(0.2, x),
    "cat twice": lambda x: fn.cat([x, x[:1]], 0),
    "stack": lambda x: fn.stack([x, x * 2], 1),
    "relu6": F.relu6,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.3),
    "elu": lambda x: F.elu(x, 1.3),
    "selu": F.selu,
    "silu": F.silu,
    "mish": F.mish,
    "softplus": lambda x: F.softplus(x, 2.0, 1.0),
    "logsigmoid": F.logsigmoid,
    "softsign": F.softsign,
    "hardtanh": lambda x: F.hardtanh(x, -0.7, 0.5),
    "hardsigmoid": F.hardsigmoid,
    "hardswish": F.hardswish,
    "glu": lambda x: F.glu(x, 1),
    "softmax": lambda x: F.softmax(x, 1),
    "softmax 0": lambda x: F.softmax(x, 0),
    "log_softmax": lambda x: F.log_softmax(x, 1),
    "softmin": lambda x: F.softmin(x, 0),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1), value=3.0),
    "pad crop": lambda x: F.pad(x, (-1, 2, 1, -1)),
    "pad reflect": lambda x: F.pad(x, (3, 2, 1, 2), "reflect"),
    "pad replicate": lambda x: F.pad(x, (3, 2, 1, 2), "replicate"),
    "pad circular": lambda x: F.pad(x, (4, 2, 1, 3), "circular"),
}


@pytest.mark.parametrize("name", UNARY)
def test_gradients_of_one_operand(name):
    assert gradcheck(UNARY[name], spaced(3, 4))


@pytest.mark.parametrize("name", UNARY)
def test_float32_stays_float32(name):
    x = leaf(spaced(3, 4), f32)
    y = UNARY[name](x)
    assert y.dtype == f32
    y.backward(np.ones(y.shape, f32))
    assert x.grad.dtype == f32
    assert x.grad.shape == x.shape


@pytest.mark.parametrize("dtype", [f32, f64])
def test_tensors_without_axes(dtype):
    for function in (
        lambda x: x * x,
        lambda x: x / 3 - x**2,
        lambda x: x.exp().log().tanh().sigmoid(),
        lambda x: F.relu(x) + F.silu(x) + F.softplus(x),
        lambda x: x.sum() + x.mean() + x.max() + x.var(correction=0),
        lambda x: fn.where(x > 0, x, 0.0) + fn.maximum(x, 0.1),
        lambda x: F.mse_loss(x, fn.tensor(np.ones((), x.dtype))),
        lambda x: fn.stack([x, x]).sum() + x.reshape(1)[0] + x[None].squeeze(),
    ):
        x = leaf(0.7, dtype)
        y = function(x)
        assert y.shape == ()
        y.backward()
        assert type(x.grad._data) is np.ndarray
        assert x.grad.shape == ()
        assert y.dtype == x.grad.dtype == dtype
        assert gradcheck(function, np.array(0.7))


@pytest.mark.parametrize("name", ["log", "log1p", "sqrt", "rsqrt", "reciprocal"])
def test_gradients_where_the_operand_is_positive(name):
    assert gradcheck(lambda x: getattr(x, name)(), positive(3, 4))


BINARY = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "pow": lambda x, y: x**y,
    "maximum": fn.maximum,
    "minimum": fn.minimum,
    "where": lambda x, y: fn.where(np.arange(4) % 2 == 0, x, y),
}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize(
    "shapes", [((3, 4), (3, 4)), ((3, 4), (4,)), ((3, 1), (2, 1, 4)), ((), (4,)), ((4,), ())]
)
def test_gradients_of_two_operands(name, shapes):
    a, b = positive(*shapes[0]), positive(*shapes[1], seed=1)
    assert gradcheck(BINARY[name], (a, b))
    assert gradcheck(lambda x: BINARY[name](x, b), a)  # arrays beside a Tensor
    if name != "where":
        assert gradcheck(lambda y: BINARY[name](a, y), b)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((2, 3), (3, 4)),
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 4)),
        ((5, 2, 3), (5, 3, 4)),
        ((5, 2, 3), (3, 4)),
        ((2, 3), (5, 3, 4)),
        ((2, 1, 2, 3), (5, 3, 4)),
        ((5, 2, 3), (3,)),
        ((3,), (5, 3, 4)),
        ((2, 0), (0, 3)),
        ((0, 2, 3), (3, 4)),
    ],
)
def test_gradients_of_matmul(a, b):
    x, y = values(*a), values(*b, seed=1)
    assert gradcheck(fn.matmul, (x, y))
    assert gradcheck(lambda x: x @ y, x)
    assert gradcheck(lambda y: x @ y, y)
    if len(a) > 1 and len(b) > 1:
        x, y = np.ascontiguousarray(x.swapaxes(-1, -2)), np.ascontiguousarray(y.swapaxes(-1, -2))
        assert gradcheck(lambda x, y: x.mT @ y.mT, (x, y))


def test_gradients_of_layers():
    x, b = values(2, 4, 6), values(3, seed=2)
    assert gradcheck(F.linear, (values(2, 5, 4), values(3, 4, seed=1), b))
    assert gradcheck(F.linear, (values(4), values(3, 4, seed=1)))
    assert gradcheck(F.prelu, (spaced(2, 3, 2), positive(3)))
    assert gradcheck(F.prelu, (spaced(4), positive(1)))
    w = values(6, 2, 3, seed=1)
    assert gradcheck(lambda x, w, b: F.conv1d(x, w, b, 2, 1, 2, 2), (x, w, values(6)))
    assert gradcheck(lambda x, w: F.conv1d(x, w, None, 1, "same", 1, 2), (x, w))
    assert gradcheck(lambda x, w: F.conv1d(x, w[..., :2], None, 2, "same", 1, 2), (x, w))
    assert gradcheck(lambda x, w: F.conv1d(x, w, None, 1, "valid", 1, 2), (x[0], w))
    image, w, b = values(2, 2, 5, 4), values(3, 2, 3, 2, seed=1), values(3, seed=2)
    assert gradcheck(lambda x, w, b: F.conv2d(x, w, b, (2, 1), (1, 0)), (image, w, b))
    assert gradcheck(lambda w: F.conv2d(image, w), w)
    assert gradcheck(lambda b: F.conv2d(image, w, b), b)
    volume, w = values(1, 2, 3, 4, 3), values(2, 2, 2, 2, 2, seed=1)
    assert gradcheck(lambda x, w: F.conv3d(x, w, padding=1), (volume, w))


def test_gradients_of_patches_and_pooling():
    image = spaced(2, 2, 5, 4)
    assert gradcheck(lambda x: F.unfold(x, (3, 2), 1, (1, 0), 2), image)
    assert gradcheck(lambda x: F.fold(x, (4, 3), 2, padding=1, stride=2), values(2, 8, 6))
    assert gradcheck(lambda x: F.max_pool1d(x, 3, 2, 1), spaced(2, 3, 9))
    assert gradcheck(lambda x: F.max_pool2d(x, 2, 1, 1, ceil_mode=True), image)
    assert gradcheck(lambda x: F.max_pool2d(x, (3, 2), return_indices=True)[0], image)
    assert gradcheck(lambda x: F.max_pool3d(x, 2), spaced(1, 2, 4, 4, 4))


def test_gradients_of_losses():
    x, t = values(5, 4), values(5, 4, seed=1)
    labels, weight = np.array([0, 3, 1, 2, 3]), positive(4)
    for reduction in ("mean", "sum", "none"):
        assert gradcheck(lambda x, t, r=reduction: F.mse_loss(x, t, r), (x, t))
        assert gradcheck(lambda x, t, r=reduction: F.l1_loss(x, t, r), (x, t))
        assert gradcheck(lambda x, t, r=reduction: F.huber_loss(x, t, r, 0.7), (x, t))
        assert gradcheck(lambda x, t, r=reduction: F.smooth_l1_loss(x, t, r, 0.7), (x, t))
        assert gradcheck(
            lambda x, t, r=reduction: F.binary_cross_entropy_with_logits(
                x, t, positive(4), reduction=r, pos_weight=positive(5, 1)
            ),
            (x, abs(t) % 1),
        )
        options = {"reduction": reduction, "ignore_index": 1}
        assert gradcheck(
            lambda x, o=options: F.cross_entropy(x, labels, weight, label_smoothing=0.2, **o), x
        )
        assert gradcheck(lambda x, o=options: F.nll_loss(x, labels, weight, **o), x)
        assert gradcheck(
            lambda x, t, r=reduction: F.cross_entropy(
                x, t, weight, reduction=r, label_smoothing=0.2
            ),
            (x, abs(t)),
        )
    deep = values(2, 4, 3)
    assert gradcheck(lambda x: F.cross_entropy(x, np.array([[0, 1, 3], [2, 2, 0]])), deep)
    assert gradcheck(lambda x, t: F.cross_entropy(x, t), (deep, abs(values(2, 4, 3, seed=1))))
    assert gradcheck(lambda x: F.cross_entropy(x, np.array(2)), values(4))


def test_gradient_of_dropout():
    def dropped(x):
        fn.manual_seed(3)
        return F.dropout(x, 0.4)

    assert gradcheck(dropped, values(20))


def test_gradcheck_finds_a_wrong_gradient_and_names_the_worst_element():
    from fusednn._tensor.tape import record

    def wrong_backward(node, grad):
        factor = np.array([2.0, 2.0, 5.0])
        return (grad * factor,)

    def double(x):
        return record(x._data * 2, wrong_backward, (x,))

    with pytest.raises(AssertionError, match=r"input 0, element \(2,\): the gradient is .*1 of 3"):
        gradcheck(double, values(3))
    with pytest.raises(AssertionError, match="the gradient is 0"):
        gradcheck(lambda x: x * x.detach() + 0 * x, positive(2))
    with pytest.raises(AssertionError, match="nan"):
        gradcheck(lambda x: x * float("nan"), positive(2))
    with pytest.raises(TypeError, match="input 0 has dtype float32, expected float64"):
        gradcheck(lambda x: x, values(2, dtype=f32))
    with pytest.raises(ValueError, match="no input is a float64 array"):
        gradcheck(lambda x: x, np.arange(3))
    with pytest.raises(TypeError, match="f must return Tensors, got float"):
        gradcheck(lambda x: 1.0, values(2))


# ---- conventions ---------------------------------------------------------------------------------


def test_ties_share_the_gradient_of_a_full_maximum():
    x = leaf([0.6, 0.6, 0.3])
    x.max().backward()
    assert x.grad.tolist() == [0.5, 0.5, 0]
    x.grad = None
    x.max(dim=0).values.backward()
    assert x.grad.tolist() == [1, 0, 0]
    x.grad = None
    fn.maximum(x, x.detach()).sum().backward()
    assert x.grad.tolist() == [0.5, 0.5, 0.5]


def test_gradients_beside_zeros_and_nan():
    x = leaf([0.0, 2.0, 3.0])
    x.prod().backward()
    assert x.grad.tolist() == [6, 0, 0]
    x.grad = None
    (x**0).sum().backward()
    assert x.grad.tolist() == [0, 0, 0]
    y = leaf([1.0, float("nan"), float("nan")])
    y.max().backward()
    assert y.grad.tolist() == [0, 0.5, 0.5]
    constant = leaf([2.0, 2.0])
    constant.std().backward()
    assert constant.grad.tolist() == [0, 0]


def test_setitem_splits_the_gradient():
    x, v = leaf([1.0, 2.0, 3.0]), leaf([10.0])
    y = x * 1
    y[1:2] = v * 2
    (y * np.array([1.0, 2.0, 3.0])).sum().backward()
    assert x.grad.tolist() == [1, 0, 3]
    assert v.grad.tolist() == [4]
    buffer = fn.zeros(3, dtype=f64)
    buffer[np.array([2, 0])] = leaf([1.0, 1.0]) * x[:2]
    assert buffer.requires_grad
    x.grad = None
    buffer.sum().backward()
    assert x.grad.tolist() == [1, 1, 0]
    with pytest.raises(ValueError, match="names a position twice"):
        (x * 1)[np.array([0, 0])] = v


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


# ---- memory that changes between forward and backward --------------------------------------------


def test_a_users_buffer_may_change_between_forward_and_backward():
    a = np.array([1.0, 2.0, 3.0])
    x = leaf([1.0, 1.0, 1.0])
    for other in (a, fn.from_numpy(a), fn.from_numpy(a)[::1], fn.from_numpy(a).detach()):
        a[:] = [1, 2, 3]
        x.grad = None
        y = (x * other).sum()
        a[:] = 100
        y.backward()
        assert x.grad.tolist() == [1, 2, 3]


def test_what_numpy_was_given_counts_as_the_users():
    x, given = leaf([1.0, 1.0]), fn.tensor([3.0, 4.0]).double()
    exported = given.numpy()
    y = (x * given).sum()
    exported[:] = 100
    y.backward()
    assert x.grad.tolist() == [3, 4]
    y = (x * given).sum()
    through_dlpack = np.from_dlpack(fn.tensor(np.array([3.0, 4.0])))
    assert through_dlpack.flags.writeable


@pytest.mark.parametrize(
    "op",
    [
        lambda x, a: F.linear(x.reshape(1, 4), a.reshape(1, 4)),
        lambda x, a: F.conv1d(x.reshape(1, 1, 4), a.reshape(1, 1, 4)),
        lambda x, a: x @ a,
        lambda x, a: fn.where(a > 0, x, x * 2),
        lambda x, a: F.mse_loss(x, a),
        lambda x, a: F.binary_cross_entropy_with_logits(x, a, a),
        lambda x, a: F.cross_entropy(x, abs(a), a),
        lambda x, a: x / a,
        lambda x, a: fn.maximum(x, a),
        lambda x, a: x.masked_fill(a > 2, 0.0),
        lambda x, a: x[(a > 1)],
        lambda x, a: F.prelu(x.reshape(1, 4), a),
    ],
)
@pytest.mark.parametrize("wrap", [lambda a: a, fn.from_numpy])
def test_no_op_keeps_a_users_buffer(op, wrap):
    a = np.array([1.0, 2.0, 3.0, 0.5])
    x = leaf([0.3, 0.2, 0.1, 0.7])
    op(x, wrap(a)).sum().backward()
    expected, x.grad = x.grad.tolist(), None
    y = op(x, wrap(a)).sum()
    a[:] = 1e6
    y.backward()
    assert x.grad.tolist() == expected


def test_index_arrays_and_targets_may_change_too():
    x = leaf([[1.0, 2.0], [3.0, 4.0]])
    rows, target = np.array([0, 0]), np.array([0, 1])
    y = x[rows].sum() + F.cross_entropy(x, target, reduction="sum")
    expected = leaf(x.numpy())
    (expected[rows].sum() + F.cross_entropy(expected, target, reduction="sum")).backward()
    rows[:] = 1
    target[:] = 0
    y.backward()
    assert x.grad.tolist() == expected.grad.tolist()


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.add_(1),
        lambda t: t.zero_(),
        lambda t: t.__setitem__(0, 5.0),
        lambda t: t[:1].fill_(5.0),
        lambda t: t.reshape(1, -1).mul_(2),
        lambda t: t.copy_(np.zeros(3)),
        lambda t: t.detach().clamp_(0, 0.5),
        lambda t: t.uniform_(),
        lambda t: fn.from_dlpack(t).add_(1),
    ],
)
def test_a_change_of_a_saved_value_is_noticed_and_names_the_op(change):
    x, t = leaf([1.0, 1.0, 1.0]), fn.tensor(np.array([1.0, 2.0, 3.0]))
    y = (x * t).sum()
    change(t)
    with pytest.raises(RuntimeError, match=r"mul: a value that the gradient of mul needs was chan"):
        y.backward()
    assert x.grad is None


def test_a_change_of_a_saved_output_is_noticed():
    x = leaf([1.0, 2.0])
    for function in (lambda x: x.exp(), lambda x: x.tanh(), F.relu, lambda x: F.softmax(x, 0)):
        y = function(x)
        z = y * 1
        y.detach().zero_()
        with pytest.raises(RuntimeError, match="changed in place after"):
            z.sum().backward()


def test_a_change_that_no_gradient_needs_is_fine():
    x, t = leaf([1.0, 2.0]), fn.tensor(np.array([1.0, 2.0]))
    y = x + t
    t.zero_()
    y.sum().backward()
    assert x.grad.tolist() == [1, 1]


def test_recorded_changes_in_place():
    x = leaf([1.0, 2.0, 3.0])
    y = x * 2
    y += 1
    y *= 3.0
    y /= 2.0
    y -= x
    assert y.tolist() == [3.5, 5.5, 7.5]
    y.sum().backward()
    assert x.grad.tolist() == [2, 2, 2]
    x.grad, y = None, x * 1
    y *= x
    y *= y
    y.sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), 4 * x.numpy() ** 3)
    for change, expected in (
        (lambda y: y.zero_(), [0, 0, 0]),
        (lambda y: y.clamp_(max=3.0), [2, 0, 0]),
        (lambda y: y.copy_(x), [1, 1, 1]),
        (lambda y: y.copy_(np.zeros(3)), [0, 0, 0]),
        (lambda y: y.normal_(), [0, 0, 0]),
        (lambda y: y.__setitem__(slice(1), 0.0), [0, 2, 2]),
    ):
        x.grad, y = None, x * 2
        change(y)
        y.sum().backward()
        assert x.grad.tolist() == expected


def test_a_leaf_is_checked_before_it_is_written():
    x = leaf([1.0, 2.0])
    for change in (
        lambda: x.add_(1),
        lambda: x.__setitem__(0, 9.0),
        lambda: x.zero_(),
        lambda: x.copy_(np.zeros(2)),
        lambda: x.uniform_(),
    ):
        with pytest.raises(RuntimeError, match="a leaf tensor that requires grad cannot be chang"):
            change()
        assert x.tolist() == [1, 2]
    with fn.no_grad():
        x.add_(1)
        x[0] = 7
    assert x.tolist() == [7, 3]
    assert x.is_leaf
    assert x.requires_grad


def test_views_of_recorded_tensors_are_not_changed_in_place():
    x = leaf([1.0, 2.0])
    y = x * 2
    with pytest.raises(
        RuntimeError, match=r"in place on a view \(reshape\).*base\[index\] = value"
    ):
        y.reshape(2, 1).add_(1)
    with pytest.raises(RuntimeError, match="in place on a view"):
        y[0] += 1
    assert y.tolist() == [2, 4]
    y[0] = y[0] + 1
    y.sum().backward()
    assert x.grad.tolist() == [2, 2]


def test_a_view_taken_before_a_change_is_stale():
    x = leaf([1.0, 2.0])
    y = x * 2
    view = y[:1]
    y.mul_(3.0)
    for use in (lambda: view * 2, lambda: view.reshape(1), lambda: view.backward()):
        with pytest.raises(RuntimeError, match="a view whose memory was changed in place after"):
            use()
    y[:1].backward()
    assert x.grad.tolist() == [6, 0]


# ---- against torch -------------------------------------------------------------------------------

STEPS = {
    "add": lambda m, x, y: x + y,
    "sub": lambda m, x, y: x - y,
    "mul": lambda m, x, y: x * y,
    "div": lambda m, x, y: x / (y * y + 1.0),
    "tanh": lambda m, x, y: x.tanh(),
    "sigmoid": lambda m, x, y: x.sigmoid(),
    "exp": lambda m, x, y: (-(x * x)).exp(),
    "sqrt": lambda m, x, y: (x * x + 1.0).sqrt(),
    "log": lambda m, x, y: (x * x + 1.0).log(),
    "relu": lambda m, x, y: x.relu(),
    "square": lambda m, x, y: x**2 * 0.1,
    "matmul": lambda m, x, y: x @ y.T @ y * 0.1,
    "transposed": lambda m, x, y: (x.T * 2.0).T,
    "row": lambda m, x, y: x + y[0],
    "column": lambda m, x, y: x * y[:, :1],
    "sum": lambda m, x, y: x - y.sum(0),
    "mean": lambda m, x, y: x * y.mean(1, keepdim=True),
    "gather": lambda m, x, y: x[[2, 0, 0]] + y,
    "reshape": lambda m, x, y: x.reshape(4, 3).reshape(3, 4) * y,
    "where": lambda m, x, y: m.where(x > y, x, y * 2.0),
    "max": lambda m, x, y: x - y.max(),
    "cat": lambda m, x, y: m.cat([x, y], 0)[1:4],
    "softmax": lambda m, x, y: x.softmax(1) + y,
    "clamp": lambda m, x, y: x.clamp(-0.8, 0.9) * y,
    "prod": lambda m, x, y: x + y.prod(1, keepdim=True),
    "var": lambda m, x, y: x * y.var(1, correction=0, keepdim=True),
}


def run_graph(module, steps, inputs):
    pool = list(inputs)
    for name, i, j in steps:
        pool.append(STEPS[name](module, pool[i % len(pool)], pool[j % len(pool)]))
    return sum(((one * (k + 1.0)).mean() for k, one in enumerate(pool[2:])), pool[0].sum() * 0.1)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 20), st.integers(0, 20)),
        min_size=1,
        max_size=12,
    ),
    seed=st.integers(0, 1000),
)
def test_random_graphs_have_torchs_gradients(steps, seed):
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    arrays = [values(3, 4, seed=seed), values(3, 4, seed=seed + 1)]
    ours = [leaf(a) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    a, b = run_graph(fn, steps, ours), run_graph(torch, steps, theirs)
    np.testing.assert_allclose(a.item(), b.item(), rtol=1e-9, atol=1e-12)
    a.backward()
    b.backward()
    for mine, other in zip(ours, theirs, strict=True):
        if other.grad is None:
            assert mine.grad is None
        else:
            expected = other.grad.numpy()
            atol = 1e-10 * abs(expected).max() + 1e-13
            np.testing.assert_allclose(mine.grad.numpy(), expected, rtol=1e-8, atol=atol)


# Layers on images (2, 4, 6, 6), with the weights (4, 4, 3, 3) that are inputs of the graph as well.
LAYERS = {
    "conv": lambda m, f, x, y, w: f.conv2d(x, w, padding=1) * 0.2,
    "conv dilated": lambda m, f, x, y, w: f.conv2d(x, w, padding=2, dilation=2) * 0.2,
    "conv grouped": lambda m, f, x, y, w: f.conv2d(x, w[:, :2], padding=1, groups=2) * 0.3,
    "conv strided": lambda m, f, x, y, w: (
        (f.conv2d(x, w, stride=2, padding=1).reshape(2, 4, 9, 1) + y[:, :, :1, :1])
        .reshape(2, 4, 3, 3)
        .mean()
        * x
    ),
    "conv1d": lambda m, f, x, y, w: (
        f.conv1d(x.reshape(2, 4, 36), w[:, :, 0], padding=1).reshape(2, 4, 6, 6) * 0.3
    ),
    "pool": lambda m, f, x, y, w: f.max_pool2d(x, 3, 1, 1) - y,
    "pool small": lambda m, f, x, y, w: f.max_pool2d(x, 2).sum() * y * 0.01,
    "linear": lambda m, f, x, y, w: f.linear(x, w.reshape(24, 6)[:6]) * 0.3 + y,
    "relu": lambda m, f, x, y, w: f.relu(x) - 0.1 * y,
    "silu": lambda m, f, x, y, w: f.silu(x),
    "leaky": lambda m, f, x, y, w: f.leaky_relu(x, 0.1),
    "softplus": lambda m, f, x, y, w: f.softplus(x),
    "softmax": lambda m, f, x, y, w: f.softmax(x, 1) * y,
    "log_softmax": lambda m, f, x, y, w: f.log_softmax(x, -1) * 0.2,
    "cat": lambda m, f, x, y, w: m.cat([x[:, :2], y[:, 1:3]], 1),
    "turned": lambda m, f, x, y, w: x.permute(0, 1, 3, 2) + y,
    "padded": lambda m, f, x, y, w: f.pad(x, (1, 0, 0, 1))[:, :, 1:, :6] * 0.9,
    "mse": lambda m, f, x, y, w: f.mse_loss(x, y) * x * 0.1,
    "smooth l1": lambda m, f, x, y, w: f.smooth_l1_loss(x, y) * y,
    "unfold": lambda m, f, x, y, w: f.unfold(x, 3, padding=1).reshape(2, 9, 4, 6, 6)[:, 4] + y,
}


def run_layers(module, functional, steps, images, weight, classes):
    pool = list(images)
    for name, i, j in steps:
        x, y = pool[i % len(pool)], pool[j % len(pool)]
        pool.append(LAYERS[name](module, functional, x, y, weight))
    scores = sum(one.mean(-1).mean(-1) for one in pool)
    return functional.cross_entropy(scores, classes) + (weight * weight).sum() * 0.01


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(sorted(LAYERS)), st.integers(0, 20), st.integers(0, 20)),
        min_size=1,
        max_size=8,
    ),
    seed=st.integers(0, 1000),
)
def test_random_networks_have_torchs_gradients(steps, seed):
    torch = pytest.importorskip("torch")
    torch.set_num_threads(1)
    random = np.random.default_rng(seed)
    # Distinct values far apart: the winner of a maximum is never a matter of rounding.
    grid = random.permutation(2 * 4 * 6 * 6) / 100 - 1.44
    arrays = [grid.reshape(2, 4, 6, 6), random.standard_normal((2, 4, 6, 6)) + 0.003]
    arrays.append(random.standard_normal((4, 4, 3, 3)) * 0.3)
    classes = random.integers(0, 4, 2)
    ours = [leaf(a) for a in arrays]
    theirs = [torch.tensor(a, requires_grad=True) for a in arrays]
    a = run_layers(fn, F, steps, ours[:2], ours[2], classes)
    functional = torch.nn.functional
    b = run_layers(torch, functional, steps, theirs[:2], theirs[2], torch.tensor(classes))
    np.testing.assert_allclose(a.item(), b.item(), rtol=1e-9, atol=1e-12)
    a.backward()
    b.backward()
    for mine, other in zip(ours, theirs, strict=True):
        expected = other.grad.numpy()
        atol = 1e-10 * abs(expected).max() + 1e-13
        np.testing.assert_allclose(mine.grad.numpy(), expected, rtol=1e-8, atol=atol)


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
