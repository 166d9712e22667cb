"""Operators and methods of Tensor beside those of NumPy and of PyTorch, and their gradients."""

import copy
import math
import operator

import numpy as np
import pytest

import fusednn as fn
from fusednn import nn
from fusednn.testing import gradcheck

f32, f64 = np.float32, np.float64


def values(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape)


def leaf(data):
    return fn.tensor(np.asarray(data, f64), requires_grad=True)


# ---- operators -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["floordiv", "mod", "pow"])
@pytest.mark.parametrize("dtype", [f32, f64, np.int32, np.int64])
def test_operators_of_any_numbers_match_numpy_from_both_sides(name, dtype):
    function = getattr(operator, name)
    a = np.array([[7, 2, 3], [5, 1, 4]]).astype(dtype)
    b = np.array([2, 3, 1]).astype(dtype)
    expected, turned = function(a, b), function(b, a)
    for other in (b, fn.tensor(b)):
        out = function(fn.tensor(a), other)
        assert out.dtype == expected.dtype
        np.testing.assert_array_equal(out.numpy(), expected)
        np.testing.assert_array_equal(function(other, fn.tensor(a)).numpy(), turned)
    np.testing.assert_array_equal(function(fn.tensor(a), 2).numpy(), function(a, 2))
    np.testing.assert_array_equal(function(2, fn.tensor(a)).numpy(), function(2, a))
    with pytest.raises(TypeError):
        function(fn.tensor(a), "2")


def test_signs_of_quotients_and_remainders_are_pythons():
    x = np.array([-7.5, -7.0, 7.0, 7.5])
    for y in (2.0, -2.0):
        assert (fn.tensor(x) // y).tolist() == [v // y for v in x]
        assert (fn.tensor(x) % y).tolist() == [v % y for v in x]


def test_gradients_of_remainders_and_quotients():
    x, y = np.array([[7.3, -2.2], [5.0, 0.4]]), np.array([1.7, -0.9])
    assert gradcheck(lambda a, b: a % b, (x, y))
    assert gradcheck(lambda a, b: b % a, (x, y))
    assert gradcheck(lambda a: 3.1 % a, x)
    a, b = leaf(x), leaf(y)
    (a // b).sum().backward()
    assert not a.grad.numpy().any()
    assert b.grad.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x, b, i: x & x, "and: an operand has dtype float32, expected booleans"),
        (lambda x, b, i: b | x, "or: an operand has dtype float32"),
        (lambda x, b, i: x.numpy() ^ b, "xor: an operand has dtype float32"),
        (lambda x, b, i: ~x, "invert: an operand has dtype float32"),
        (lambda x, b, i: -b, "neg: input has dtype bool; ~input turns"),
        (lambda x, b, i: b // b, "floordiv: input has dtype bool"),
        (lambda x, b, i: b % 2, "mod: input has dtype bool"),
        (lambda x, b, i: b**2, "pow: input has dtype bool"),
        (lambda x, b, i: i % 2.5, "mod: operands are int64 and a float"),
        (lambda x, b, i: i**0.5, "pow: operands are int64 and a float"),
        (lambda x, b, i: b & "a", "unsupported operand type"),
        (lambda x, b, i: [True] & b, "unsupported operand type"),
    ],
)
def test_operands_of_other_kinds_are_refused(call, text):
    with pytest.raises(TypeError, match=text):
        call(fn.ones(2), fn.tensor([True, False]), fn.tensor([1, 2]))


def test_integers_have_logic_bit_by_bit():
    i = fn.tensor([6, 3])
    assert (i & 2).tolist() == [2, 2]
    assert (1 | i).tolist() == [7, 3]
    assert (i ^ np.array([1, 1])).tolist() == [7, 2]
    assert (~i).tolist() == [-7, -4]
    with pytest.raises(ValueError, match="negative"):
        i**-1


# ---- elementwise ---------------------------------------------------------------------------------

STEPS = ["floor", "ceil", "trunc", "round", "sign"]


@pytest.mark.parametrize("name", [*STEPS, "log2", "log10", "isinf"])
def test_elementwise_methods_match_numpy(name):
    x = np.array([0.3, 0.5, 1.5, 2.5, 7.9])
    np.testing.assert_array_equal(getattr(fn.tensor(x), name)().numpy(), getattr(np, name)(x))
    if name in STEPS:
        y = leaf(x)
        getattr(y, name)().sum().backward()
        assert y.grad.tolist() == [0] * 5
        assert getattr(fn.tensor([-2, 3]), name)().dtype.kind == "i"
    elif name != "isinf":
        assert gradcheck(lambda a: getattr(a, name)(), x)


def test_rounding():
    assert fn.tensor([1.256, -1.251]).double().round(2).numpy() == pytest.approx([1.26, -1.25])
    assert round(fn.tensor(2.5)) == 2
    assert round(fn.tensor(np.float64(2.345)), 1) == 2.3


def test_choosing_methods():
    x, y = leaf([1.0, 5.0]), fn.tensor(np.array([3.0, 2.0]))
    assert x.maximum(y).tolist() == [3, 5]
    assert x.minimum(y).tolist() == [1, 2]
    x.where(y > 2.5, y * 0).sum().backward()
    assert x.grad.tolist() == [1, 0]
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        expected = getattr(operator, name)(x.numpy(), y.numpy())
        assert getattr(x, name)(y).tolist() == expected.tolist()


def test_where_casts_nothing():
    condition = fn.tensor([True, False])
    assert fn.where(condition, 1.5, 2.0).dtype == f32
    assert fn.where(condition, 1, 2).dtype == np.int64
    assert fn.where(condition.numpy(), 1.5, 2.0).dtype == f64
    for a, b in ((np.ones(2, f32), np.ones(2)), (np.ones(2, int), np.ones(2))):
        for chosen in (condition, condition.numpy()):
            with pytest.raises(TypeError, match=r"where: operands are .* and float64"):
                fn.where(chosen, a, b)
    assert fn.where(condition, np.ones(2, f32), 2.0).dtype == f32
    assert fn.where(condition, np.array([True, True]), np.array([False, False])).dtype == np.bool_


# ---- reductions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("p", [1, 2, math.inf])
@pytest.mark.parametrize("dim", [None, 0, -1, (0, 1)])
def test_norm(p, dim):
    x = values(3, 4)
    expected = {
        1: abs(x).sum(dim),
        2: np.sqrt((x * x).sum(dim)),
        math.inf: abs(x).max(dim),
    }[p]
    np.testing.assert_allclose(fn.tensor(x).norm(p, dim).numpy(), expected, rtol=1e-15)
    assert gradcheck(lambda a: a.norm(p, dim, keepdim=True), x)


def test_norm_of_nothing_has_gradient_zero():
    x = leaf([0.0, 0.0])
    x.norm().backward()
    assert x.grad.tolist() == [0, 0]
    with pytest.raises(ValueError, match="norm: p=3, expected 1, 2 or inf"):
        x.norm(3)


@pytest.mark.parametrize("dim", [None, 0, 1, (0, 1)])
def test_logsumexp(dim):
    x = values(3, 4) * 5
    expected = np.log(np.exp(x).sum(dim))
    np.testing.assert_allclose(fn.tensor(x).logsumexp(dim).numpy(), expected, rtol=1e-12)
    assert gradcheck(lambda a: a.logsumexp(dim), x)


def test_logsumexp_far_out():
    inf = math.inf
    x = fn.tensor([[1e30, 1e30], [-inf, -inf], [inf, 0.0], [math.nan, 0.0]])
    out = x.logsumexp(1).tolist()
    assert out[:3] == [fn.tensor(1e30).item(), -inf, inf]
    assert math.isnan(out[3])
    assert fn.zeros(0).logsumexp(0).item() == -inf
    y = leaf([-inf, 0.0])
    y.logsumexp(0).backward()
    assert y.grad.tolist() == [0, 1]


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "amax", "amin", "all", "any"])
def test_a_number_has_the_axes_0_and_minus_1(name):
    x = fn.tensor(2.5)
    for dim in (0, -1, (0,)):
        out = getattr(x, name)(dim)
        assert out.shape == ()
        assert out.item() == 2.5 or name in ("all", "any")
    assert x.cumsum(0).item() == 2.5
    assert x.squeeze(0).shape == x.transpose(0, -1).shape == x.movedim(-1, 0).shape == ()
    assert x.max(0)[1].item() == x.argmax(-1).item() == 0
    with pytest.raises(ValueError, match="dim=1 is out of range"):
        getattr(x, name)(1)


def test_variances_by_all_names():
    x = values(3, 4)
    t = fn.tensor(x)
    np.testing.assert_allclose(t.var(1, unbiased=False).numpy(), x.var(1))
    np.testing.assert_allclose(t.var(False).numpy(), x.var())
    np.testing.assert_allclose(t.std(0, False, True).numpy(), x.std(0, keepdims=True))
    np.testing.assert_allclose(t.std(correction=2).numpy(), x.std(ddof=2))
    np.testing.assert_allclose(t.var(axis=0, correction=0.5).numpy(), x.var(0, ddof=0.5))
    # Nothing to divide by: inf, or NaN for 0 / 0.
    assert fn.tensor([1.0, 2.0]).var(correction=2).item() == math.inf
    assert math.isnan(fn.tensor([1.0]).var().item())
    assert fn.tensor([1.0]).var(unbiased=False).item() == 0


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "amax", "argmax", "all", "var", "max"])
def test_axis_and_keepdims_are_numpys_names(name):
    out = getattr(fn.tensor(values(3, 4)), name)(axis=1, keepdims=True)
    assert (out.values if name == "max" else out).shape == (3, 1)


@pytest.mark.parametrize("name", ["sum", "mean", "prod", "std", "var", "max", "min", "all", "any"])
def test_numpys_reductions_call_the_tensors(name):
    data = values(3, 4)
    x = leaf(data)
    out = getattr(np, name)(x)
    assert isinstance(out, fn.Tensor)
    assert out.requires_grad == (name not in ("all", "any"))
    np.testing.assert_allclose(out.numpy(), getattr(np, name)(data))
    if name not in ("max", "min"):
        out = getattr(np, name)(x, axis=1, keepdims=True)
        np.testing.assert_allclose(out.numpy(), getattr(np, name)(data, axis=1, keepdims=True))
    with pytest.raises(TypeError, match=f"{name}: the argument out is not supported"):
        getattr(np, name)(x, out=np.zeros(()))


def test_degrees_of_freedom_by_numpys_name():
    data = values(3, 4)
    assert fn.tensor(data).var(ddof=0).item() == pytest.approx(data.var())
    assert np.std(fn.tensor(data), ddof=2).item() == pytest.approx(data.std(ddof=2))


def test_a_boolean_is_no_axis():
    with pytest.raises(TypeError, match="sum: dim must be an int, got bool"):
        fn.ones(2, 2).sum(True)


# ---- products ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((1, 3, 0), (0,)),
        ((0, 5, 0), (0,)),
        ((2, 3, 0), (0, 4)),
        ((0, 3, 2), (2, 4)),
        ((2, 0, 3), (3, 4)),
        ((0,), (0,)),
        ((0,), (2, 0, 3)),
        ((2, 3, 4), (4, 0)),
    ],
)
def test_products_without_elements(a, b):
    x, y = leaf(np.ones(a)), leaf(np.ones(b))
    out = x @ y
    np.testing.assert_array_equal(out.numpy(), np.ones(a) @ np.ones(b))
    out.sum().backward()
    assert x.grad.shape == a
    assert y.grad.shape == b
    assert not x.grad.numpy().any()
    assert not y.grad.numpy().any()


def test_products_by_name():
    a, b = values(2, 3, 4), values(2, 4, 5)
    np.testing.assert_allclose(fn.tensor(a).bmm(b).numpy(), a @ b)
    np.testing.assert_allclose(fn.tensor(a[0]).mm(fn.tensor(b[0])).numpy(), a[0] @ b[0])
    for call, text in (
        (lambda: fn.tensor(a).mm(b[0]), r"mm: shapes \(2, 3, 4\) and \(4, 5\), expected 2 axes"),
        (lambda: fn.tensor(a).bmm(b[:1]), "bmm: shapes .* expected 3 axes each, the first of one"),
    ):
        with pytest.raises(ValueError, match=text):
            call()
    with pytest.raises(TypeError, match="mm: other must be"):
        fn.tensor(a[0]).mm([1])


# ---- order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (1,), (0,), (7,), (3, 5), (2, 3, 4), (2, 0)])
@pytest.mark.parametrize("descending", [False, True])
def test_sorting(shape, descending):
    x = np.round(values(*shape), 1)
    for dim in range(-1, max(len(shape), 1)):
        t = leaf(x)
        ordered, indices = t.sort(dim, descending)
        expected = np.sort(x, dim) if shape else x
        expected = np.flip(expected, dim) if descending and shape else expected
        np.testing.assert_array_equal(ordered.numpy(), expected)
        np.testing.assert_array_equal(t.argsort(dim, descending).numpy(), indices.numpy())
        (ordered * 2).sum().backward()
        assert (t.grad.numpy() == 2).all()
        k = min(2, x.shape[dim]) if shape else 1
        top = t.topk(k, dim, largest=descending)
        np.testing.assert_array_equal(top.values.numpy(), expected.take(range(k), dim)
                                      if shape else x)  # fmt: skip


def test_equals_keep_their_order():
    x = fn.tensor([1, 0, 1, 0])
    assert x.argsort().tolist() == [1, 3, 0, 2]
    assert x.argsort(descending=True).tolist() == [0, 2, 1, 3]
    assert fn.tensor([math.nan, 1.0]).sort().values.tolist()[0] == 1
    with pytest.raises(ValueError, match=r"topk: k=5, expected 0 to 4 for shape \(4,\)"):
        x.topk(5)


def test_triangles():
    x = values(2, 3, 4)
    for k in (-2, 0, 1):
        np.testing.assert_array_equal(fn.tensor(x).tril(k).numpy(), np.tril(x, k))
        np.testing.assert_array_equal(fn.tensor(x).triu(k).numpy(), np.triu(x, k))
    assert gradcheck(lambda a: a.tril() * a, x)
    assert fn.ones(2, 2, dtype=np.bool_).tril().tolist() == [[True, False], [True, True]]
    with pytest.raises(ValueError, match=r"triu: expected 2 axes or more, got shape \(3,\)"):
        fn.ones(3).triu()


def test_masked_select_and_nonzero():
    x = leaf([[1.0, -2.0, 3.0], [0.0, 5.0, -6.0]])
    picked = x.masked_select(x > 0)
    assert picked.tolist() == [1, 3, 5]
    picked.sum().backward()
    assert x.grad.tolist() == [[1, 0, 1], [0, 1, 0]]
    assert x.masked_select(np.array([True, False, False])).tolist() == [1, 0]
    assert x.nonzero().tolist() == [[0, 0], [0, 1], [0, 2], [1, 1], [1, 2]]
    with pytest.raises(ValueError, match="does not fit"):
        x.masked_select(np.ones(2, bool))
    with pytest.raises(TypeError, match="must be a boolean"):
        x.masked_select(np.ones(3))


# ---- other byte orders ---------------------------------------------------------------------------

REVERSED = {
    "amax": lambda x: x.amax(1),
    "max": lambda x: x.max(),
    "max dim": lambda x: x.max(1)[0],
    "prod": lambda x: x.prod(0),
    "cat": lambda x: fn.cat([x, x * 2, x.numpy()]),
    "stack": lambda x: fn.stack([x * 2, x]),
    "to": lambda x: x.to(f64 if x.dtype.itemsize == 4 else f32),
    "clone": lambda x: x.clone(),
    "norm": lambda x: x.norm(),
    "logsumexp": lambda x: x.logsumexp(1),
    "sort": lambda x: x.sort()[0],
    "matmul": lambda x: x @ x.T,
    "floor": lambda x: x.floor() * x,
    "mod": lambda x: x % 0.7,
    "getitem": lambda x: x[[0, 0]] * x[1],
    "itself": lambda x: x,
}


@pytest.mark.parametrize("name", REVERSED)
@pytest.mark.parametrize("dtype", [">f4", ">f8"])
def test_big_endian_arrays_have_gradients_in_native_order(name, dtype):
    data = values(2, 3).astype(dtype)
    x = fn.from_numpy(data).requires_grad_()
    y = fn.tensor(data, requires_grad=True)
    out, expected = REVERSED[name](x), REVERSED[name](y)
    np.testing.assert_array_equal(out.numpy(), expected.numpy())
    weight = np.ones(out.shape, expected.dtype)
    out.backward(weight)
    expected.backward(weight)
    assert x.grad.dtype.isnative
    np.testing.assert_array_equal(x.grad.numpy(), y.grad.numpy())
    x.grad = np.ones((2, 3), data.dtype.newbyteorder("="))


def test_made_tensors_are_native():
    for make in (fn.zeros, fn.ones):
        assert make(2, dtype=">f4").dtype.isnative
    assert fn.full((2,), 1.5, dtype=">f8").dtype.isnative
    assert fn.tensor([[fn.tensor(np.float64(1.5))]]).dtype == f64


# ---- copies --------------------------------------------------------------------------------------


def test_a_shallow_copy_shares_memory_and_its_version():
    w = fn.tensor([1.0, 2.0])
    x = fn.tensor([3.0, 4.0], requires_grad=True)
    y = x * w
    other = copy.copy(w)
    other.mul_(10)
    assert w.tolist() == [10, 20]
    with pytest.raises(RuntimeError, match="changed in place"):
        y.sum().backward()
    p = nn.Parameter(np.ones(2))
    p.grad = np.ones(2)
    q = copy.copy(p)
    assert isinstance(q, nn.Parameter)
    assert q.requires_grad
    assert q.grad is p.grad
    with fn.no_grad():
        q.add_(1)
    assert p.tolist() == [2, 2]
    with pytest.raises(RuntimeError, match="copy: only leaf tensors"):
        copy.copy(p * 2)


def test_data_may_be_changed_in_place_and_set():
    p = nn.Parameter(np.ones(2, f32))
    p.data -= 0.5
    assert p.tolist() == [0.5, 0.5]
    p.data.mul_(4)
    assert p.tolist() == [2, 2]
    y = (p * p).sum()
    p.data = fn.tensor([5.0, 6.0])
    assert p.tolist() == [5, 6]
    assert p.requires_grad
    with pytest.raises(RuntimeError, match="changed in place"):
        y.backward()
    p.data = np.zeros(2, f32)
    given = np.full(2, 3, f32)
    p.data = given
    given[:] = 0
    assert p.tolist() == [3, 3]
    with pytest.raises(ValueError, match=r"source has shape \(3,\), expected \(2,\)"):
        p.data = fn.zeros(3)
    with pytest.raises(TypeError, match="source must be"):
        p.data = 3
