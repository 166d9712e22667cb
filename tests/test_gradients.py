"""Gradients of every op, against central differences and against PyTorch."""

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
        return ((grad * factor).reshape(3),)

    def double(x):
        return record(x._data * 2, wrong_backward, (x,))

    with pytest.raises(AssertionError, match=r"input 0, element \(2,\): the gradient is .*1 of 3"):
        gradcheck(double, values(3))
    with pytest.raises(AssertionError, match=r"input 0 has shape \(3,\), expected \(1, 3\)"):
        gradcheck(double, values(1, 3).repeat(2, 0)[:1])
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
