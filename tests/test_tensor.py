"""Tensor as an array: making, combining, reducing, reshaping, indexing, printing, handing out."""

import copy
import pickle

import numpy as np
import pytest

import fusednn as fn

f32, f64 = np.float32, np.float64


def values(*shape, seed=0, dtype=f64):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def same(tensor, expected, tol=0.0):
    assert isinstance(tensor, fn.Tensor)
    expected = np.asarray(expected)
    assert tensor.shape == expected.shape
    np.testing.assert_allclose(tensor.numpy(), expected, rtol=tol, atol=tol)


# ---- making --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (1.5, f32),
        ([1.0, 2.0], f32),
        ([[1.0], [2]], f32),
        ([], f32),
        (3, np.int64),
        ([1, 2], np.int64),
        (True, np.bool_),
        (np.float64(1.5), f64),
        ([np.float64(1.5)], f64),
        (np.zeros(2, f64), f64),
        (np.zeros(2, f32), f32),
        (np.zeros(2, np.int32), np.int32),
        ([np.zeros(2, f32), np.ones(2, f32)], f32),
        (np.zeros(2, ">f4"), f32),
    ],
)
def test_tensor_keeps_numpys_dtypes_and_gives_python_floats_float32(data, dtype):
    out = fn.tensor(data)
    assert out.dtype == np.dtype(dtype)
    assert out.dtype.isnative


def test_tensor_copies_and_from_numpy_shares():
    a = np.zeros(3, f32)
    copied, shared = fn.tensor(a), fn.from_numpy(a)
    a[0] = 5
    assert copied.tolist() == [0, 0, 0]
    assert shared.tolist() == [5, 0, 0]
    shared += 1
    assert a.tolist() == [6, 1, 1]


@pytest.mark.parametrize("dtype", [np.float16, np.complex64, object, "S3", "M8[s]"])
def test_unsupported_dtypes_are_refused(dtype):
    a = np.zeros(2, dtype)
    for make in (fn.tensor, fn.from_numpy):
        with pytest.raises(TypeError, match=r"dtype .* is not supported, expected float32"):
            make(a)


def test_integers_have_no_gradient():
    with pytest.raises(TypeError, match="dtype int64; only float32 and float64 have gradients"):
        fn.tensor([1, 2], requires_grad=True)
    with pytest.raises(TypeError, match="only float32 and float64"):
        fn.from_numpy(np.arange(3)).requires_grad_()


def test_tensor_is_not_made_by_its_class():
    with pytest.raises(TypeError, match=r"fusednn\.tensor"):
        fn.Tensor([1.0])
    with pytest.raises(TypeError, match="expected a NumPy array, got list"):
        fn.from_numpy([1.0])


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0)[::-1],
        np.arange(6.0).reshape(2, 3).T,
        np.arange(12.0)[::2],
        np.broadcast_to(np.arange(3.0), (2, 3)),
        np.arange(6.0).astype(">f8"),
        np.lib.stride_tricks.as_strided(np.arange(4.0), (3, 2), (8, 8)),
    ],
    ids=["reversed", "transposed", "strided", "stride0", "big-endian", "overlapping"],
)
@pytest.mark.parametrize("writeable", [True, False])
def test_any_array_is_accepted_for_reading(array, writeable):
    array = array.view()
    if not writeable:
        array.flags.writeable = False
    before = array.copy()
    x = fn.from_numpy(array)
    x.requires_grad = True
    y = (x * x + np.ones_like(before)).sum()
    assert y.item() == (before**2 + 1).sum()
    y.backward()
    same(x.grad, 2 * before)
    np.testing.assert_array_equal(array, before)


def test_read_only_memory_is_never_written():
    a = np.zeros(3)
    a.flags.writeable = False
    x = fn.from_numpy(a)
    for change in (lambda: x.add_(1), lambda: x.zero_(), lambda: x.__setitem__(0, 9.0)):
        with pytest.raises(ValueError, match="read-only array and cannot be changed"):
            change()
    assert a.tolist() == [0, 0, 0]


def test_filled_tensors():
    same(fn.zeros(2, 3), np.zeros((2, 3)))
    same(fn.ones((2, 1)), np.ones((2, 1)))
    same(fn.full((2,), 7), [7, 7])
    assert fn.full((2,), 7).dtype == np.int64
    assert fn.full(2, 0.5).dtype == f32
    same(fn.arange(1, 7, 2), [1, 3, 5])
    assert fn.arange(0, 1, 0.25).dtype == f32
    like = fn.ones_like(np.zeros((2, 2), f64))
    assert like.dtype == f64
    same(fn.zeros_like(like), np.zeros((2, 2)))
    with pytest.raises(TypeError, match="zeros: sizes must be ints"):
        fn.zeros(2.5)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: fn.zeros(-1), ValueError, r"zeros: shape \(-1,\): negative dimensions"),
        (lambda: fn.ones(2**62), ValueError, "ones: shape"),
        (lambda: fn.full((2,), "a"), TypeError, "full: dtype <U1 is not supported"),
        (lambda: fn.zeros(2, dtype=np.float16), TypeError, "zeros: dtype float16 is not supported"),
        (lambda: fn.zeros_like([1.0]), TypeError, "zeros_like: input must be a Tensor or an array"),
        (lambda: fn.arange(), TypeError, "arange: expected end, or start, end and step, got 0"),
        (lambda: fn.arange(0, 3, 0), ValueError, "arange: step is 0"),
        (
            lambda: fn.rand(2, dtype=int),
            TypeError,
            "rand: dtype int64, expected float32",
        ),
        (lambda: fn.randn(-2), ValueError, r"randn: shape \(-2,\)"),
    ],
)
def test_what_cannot_be_made_is_named(call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_dtypes_of_filled_tensors():
    for make in (fn.zeros, fn.ones, fn.rand, fn.randn):
        assert make(2, dtype=None).dtype == make(2).dtype == f32
        assert make((2, 1), dtype="float64", requires_grad=True).requires_grad
    like = fn.ones_like(fn.arange(3), dtype=f32, requires_grad=True)
    assert like.dtype == f32
    assert like.requires_grad
    assert fn.zeros_like(np.ones(2, bool)).dtype == np.bool_
    assert fn.full((2,), fn.tensor(2)).dtype == np.int64


def test_manual_seed_gives_the_same_bits():
    def draw():
        return [fn.rand(5).tolist(), fn.randn(2, 3).tolist(), fn.zeros(4).uniform_().tolist()]

    fn.manual_seed(3)
    first = draw()
    state = fn.random.get_state()
    following = draw()
    fn.manual_seed(3)
    assert draw() == first
    fn.random.set_state(state)
    assert draw() == following
    assert first != following
    fn.manual_seed(4)
    assert draw() != first
    with pytest.raises(TypeError, match="seed must be an int"):
        fn.manual_seed(1.5)
    with pytest.raises(ValueError, match="expected the result of get_state"):
        fn.random.set_state({"seed": 1})


# ---- arithmetic ----------------------------------------------------------------------------------

OPERATORS = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "pow": lambda x, y: x**y,
    "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y,
    "gt": lambda x, y: x > y,
    "ge": lambda x, y: x >= y,
    "eq": lambda x, y: x == y,
    "ne": lambda x, y: x != y,
}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize(
    "shapes", [((3,), (3,)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((), (2,)), ((0, 3), (3,))]
)
def test_operators_broadcast_with_tensors_arrays_and_scalars(name, shapes):
    op = OPERATORS[name]
    a, b = (abs(values(*shape, seed=i)) + 0.5 for i, shape in enumerate(shapes))
    same(op(fn.tensor(a), fn.tensor(b)), op(a, b))
    same(op(fn.tensor(a), b), op(a, b))
    same(op(a, fn.tensor(b)), op(a, b))
    same(op(fn.tensor(a), 2), op(a, 2))
    same(op(fn.tensor(a), 2.5), op(a, 2.5))
    if name not in ("eq", "ne"):
        same(op(2.5, fn.tensor(b)), op(2.5, b))


@pytest.mark.parametrize("scalar", [3, 2.5, True, f64(2.5), f32(2.5), np.int64(3)])
@pytest.mark.parametrize("dtype", [f32, f64])
def test_scalars_never_change_the_dtype(scalar, dtype):
    x = fn.tensor(np.ones(3, dtype))
    zero_axes = fn.tensor(np.ones((), dtype))
    for out in (x + scalar, scalar * x, x / scalar, scalar - x, x**scalar, zero_axes * scalar):
        assert out.dtype == dtype
    assert (scalar / zero_axes).dtype == dtype
    assert fn.where(x > 0, x, scalar).dtype == dtype
    assert x.clamp(0, scalar).dtype == dtype


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "pow", "eq", "ne"])
def test_float32_and_float64_do_not_mix(name):
    op = OPERATORS[name]
    single, double = fn.ones(2), np.ones(2)
    for x, y in ((single, double), (double, single), (single, fn.tensor(double))):
        with pytest.raises(TypeError, match=rf"{name}: operands are float.*float.*nothing is cast"):
            op(x, y)


def test_integers_and_floats_do_not_mix_but_masks_do():
    x = fn.ones(3)
    for other in (np.arange(3), fn.arange(3), np.ones(3, np.float16)):
        with pytest.raises(TypeError, match="mul: operands are float32 and "):
            x * other
    with pytest.raises(TypeError, match="operands are int64 and a float"):
        fn.arange(3) * 0.5
    masked = x * np.array([True, False, True])
    same(masked, [1, 0, 1])
    assert masked.dtype == f32
    same(fn.arange(3) + 2, [2, 3, 4])


def test_unknown_operands_are_left_to_python():
    x = fn.ones(2)
    for other in ("a", [1, 2], None, 1j):
        with pytest.raises(TypeError, match="unsupported operand"):
            x + other
    assert (x == None) is False  # noqa: E711
    assert (x != "a") is True


def test_array_operators_leave_the_work_to_the_tensor():
    a = np.ones((2, 2))
    x = fn.tensor(a, requires_grad=True)
    for out in (a + x, a - x, a * x, a / x, a @ x, a < x, np.float64(2) * x):
        assert isinstance(out, fn.Tensor)
    a += 1
    assert isinstance(a, np.ndarray)
    with pytest.raises(TypeError):
        np.exp(x)


def test_unary_functions_match_numpy():
    a = abs(values(4, 3)) + 0.1
    x = fn.tensor(a)
    for name in ("exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tanh", "square", "abs"):
        same(getattr(x, name)(), getattr(np, name)(a), 1e-15)
    same(x.reciprocal(), 1 / a)
    same(x.rsqrt(), 1 / np.sqrt(a), 1e-15)
    same(x.sigmoid(), 1 / (1 + np.exp(-a)), 1e-15)
    same(-x, -a)
    same(+x, a)
    same(abs(-x), a)
    with pytest.raises(TypeError, match="exp: input has dtype int64, expected float32 or float64"):
        fn.arange(3).exp()


def test_sigmoid_is_right_far_out_without_a_warning():
    x = fn.tensor(np.array([-1e30, -200.0, -20.0, 0.0, 200.0], f32))
    np.testing.assert_allclose(x.sigmoid().numpy(), [0, 0, 2.0611537e-9, 0.5, 1], rtol=1e-6)


def test_clamp_where_maximum_minimum():
    a, b = values(5), values(5, seed=1)
    x, y = fn.tensor(a), fn.tensor(b)
    same(x.clamp(-0.5, 0.5), a.clip(-0.5, 0.5))
    same(x.clamp(max=0.1), a.clip(max=0.1))
    same(fn.maximum(x, y), np.maximum(a, b))
    same(fn.minimum(x, 0.0), np.minimum(a, 0))
    same(fn.where(x > y, x, y), np.maximum(a, b))
    same(x.masked_fill(x > 0, 0.0), np.minimum(a, 0))
    assert isinstance(fn.where(a > b, a, b), np.ndarray)
    assert isinstance(fn.maximum(a, b), np.ndarray)
    nan = fn.tensor([float("nan")])
    assert nan.clamp(0, 1).isnan().item()
    assert fn.maximum(nan, 1.0).isnan().item()
    with pytest.raises(ValueError, match="clamp: give min, max or both"):
        x.clamp()
    with pytest.raises(TypeError, match="clamp: min must be a number, got ndarray"):
        x.clamp(a)
    with pytest.raises(TypeError, match="where: condition must be boolean, got float64"):
        fn.where(a, x, y)
    with pytest.raises(TypeError, match="mask must be a boolean"):
        x.masked_fill(a, 0.0)


def test_boolean_tensors():
    p, q = fn.tensor([True, False]), fn.tensor([True, True])
    same(p & q, [True, False])
    same(p | q, [True, True])
    same(p ^ q, [False, True])
    same(~p, [False, True])
    assert p.any().item() is True
    assert p.all().item() is False
    same((fn.tensor([1.0, 2.0]) > 1).float(), [0, 1])


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
        ((7, 1, 2, 3), (5, 3, 4)),
        ((5, 2, 3), (3,)),
        ((3,), (5, 3, 4)),
        ((0, 3), (3, 2)),
        ((2, 0), (0, 3)),
        ((0, 2, 3), (3, 4)),
        ((1, 1, 1), (1, 1)),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_matmul_matches_numpy(a, b, turned):
    x, y = values(*a), values(*b, seed=1)
    if turned:
        if min(len(a), len(b)) < 2:
            pytest.skip("vectors have no transpose")
        x = np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2)
        y = np.ascontiguousarray(y.swapaxes(-1, -2)).swapaxes(-1, -2)
    same(fn.from_numpy(x) @ fn.from_numpy(y), x @ y, 1e-13)
    same(x @ fn.from_numpy(y), x @ y, 1e-13)
    out = fn.matmul(x, y)
    assert isinstance(out, np.ndarray)
    np.testing.assert_allclose(out, x @ y, rtol=1e-13, atol=1e-13)


def test_matmul_errors():
    x = fn.ones(2, 3)
    for other, error, text in (
        (fn.ones(2, 3), ValueError, r"input of shape \(2, 3\) has 3 columns, expected 2"),
        (np.ones((3, 2)), TypeError, "input has dtype float32, other float64; nothing is cast"),
        (np.ones((3, 2), int), TypeError, "other has dtype int64, expected float32 or float64"),
        (fn.tensor(1.0), ValueError, "other has no axes"),
        (fn.ones(4, 3, 1), None, None),
    ):
        if error is None:
            assert (x @ other).shape == (4, 2, 1)
            continue
        with pytest.raises(error, match=text):
            x @ other
    with pytest.raises(ValueError, match=r"batch axes of .* do not broadcast"):
        fn.ones(2, 1, 3) @ fn.ones(3, 3, 1)
    with pytest.raises(TypeError, match="other must be a Tensor or an array, got list"):
        fn.matmul(x, [1.0])


# ---- reductions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [None, 0, -1, (0, 2), [1], (0, 1, 2)])
@pytest.mark.parametrize("keepdim", [False, True])
@pytest.mark.parametrize("name", ["sum", "mean", "prod", "amax", "amin", "var", "std"])
def test_reductions_match_numpy(name, dim, keepdim):
    a = values(2, 3, 4)
    axis = tuple(dim) if isinstance(dim, list) else dim
    options = {"ddof": 1} if name in ("var", "std") else {}
    expected = getattr(np, name)(a, axis=axis, keepdims=keepdim, **options)
    x = fn.tensor(a)
    same(getattr(x, name)(dim, keepdim=keepdim), expected, 1e-14)
    same(getattr(x, name)(axis=dim, keepdim=keepdim), expected, 1e-14)


def test_reductions_of_nothing():
    x = fn.zeros(0, 3)
    same(x.sum(0), [0, 0, 0])
    same(x.prod(0), [1, 1, 1])
    assert np.isnan(x.mean(0).numpy()).all()
    assert x.sum(1).shape == (0,)
    assert x.mean().isnan().item()
    assert fn.ones(1).var().isnan().item()
    for name in ("amax", "max", "argmin"):
        with pytest.raises(ValueError, match=rf"{name}: no element to choose from in shape \(0, 3"):
            getattr(x, name)()
    with pytest.raises(ValueError, match="max: no element"):
        x.max(dim=0)
    assert x.max(dim=1).values.shape == (0,)


def test_max_min_with_positions():
    a = np.array([[1.0, 4.0, 4.0], [np.nan, 2.0, 9.0]])
    x = fn.tensor(a)
    best, at = x.max(dim=1)
    same(at, [1, 0])
    assert best.tolist()[0] == 4
    assert np.isnan(best.tolist()[1])
    least, at = x.min(dim=0, keepdim=True)
    same(at, [[1, 1, 0]])
    assert least.shape == (1, 3)
    assert x[0].max().item() == 4
    assert x.max().isnan().item()
    same(x.argmax(1), [1, 0])
    same(x[0].argmin(), 0)
    values_, positions = fn.tensor(3.0).max(dim=0)
    assert (values_.item(), positions.item()) == (3.0, 0)


def test_integers_sum_as_integers_and_have_no_mean():
    same(fn.arange(4).sum(), 6)
    same((fn.arange(4) > 1).sum(), 2)
    with pytest.raises(TypeError, match="mean: input has dtype bool, expected float32"):
        (fn.arange(4) > 1).mean()


def test_cumsum():
    a = values(2, 3)
    same(fn.tensor(a).cumsum(1), a.cumsum(1))


@pytest.mark.parametrize("dim", [3, -4, (0, 3)])
def test_axes_out_of_range(dim):
    with pytest.raises(ValueError, match=r"sum: dim=.* is out of range for a tensor of 3 dim"):
        fn.zeros(1, 2, 3).sum(dim)


def test_bad_axes():
    x = fn.zeros(2, 3)
    with pytest.raises(ValueError, match="names an axis twice"):
        x.sum((0, -2))
    with pytest.raises(TypeError, match="give dim or axis, not both"):
        x.sum(0, axis=1)
    with pytest.raises(TypeError, match="dim must be an int, got float"):
        x.mean(1.0)


# ---- other dtypes, copies, interchange -----------------------------------------------------------


def test_to():
    x = fn.ones(2)
    assert x.to(f32) is x
    assert x.to("cpu") is x
    assert x.cpu() is x
    assert x.double().dtype == f64
    assert x.to("float64").float().dtype == f32
    assert x.to(fn.arange(1)).dtype == np.int64
    assert x.to(dtype=f64, device="cpu").dtype == f64
    assert x.long().dtype == np.int64
    assert x.bool().dtype == np.bool_
    assert fn.ones(1).is_floating_point()
    assert not fn.arange(1).is_floating_point()


def test_numpy_shares_memory_and_is_read_only_where_the_tape_relies_on_it():
    x = fn.zeros(2)
    x.numpy()[0] = 3
    same(x, [3, 0])
    leaf = fn.zeros(2, requires_grad=True)
    assert not leaf.numpy().flags.writeable
    hidden = leaf.exp()  # saves its output
    assert not hidden.numpy().flags.writeable
    assert (leaf + 1).numpy().flags.writeable
    assert not leaf.detach().exp().requires_grad
    with fn.no_grad():
        assert leaf.exp().numpy().flags.writeable


def test_array_protocol():
    x = fn.ones(2, requires_grad=True)
    assert np.shares_memory(np.asarray(x), x.numpy())
    assert np.asarray(x, f64).dtype == f64
    copied = np.array(x)
    copied[0] = 5
    same(x.detach(), [1, 1])
    assert np.stack([x, x]).shape == (2, 2)
    with pytest.raises(ValueError, match="without a copy"):
        np.asarray(x, f64, copy=False)


def test_dlpack_both_ways():
    a = values(3)
    x = fn.from_dlpack(a)
    a[0] = 7
    assert x[0].item() == 7
    out = np.from_dlpack(fn.tensor(a))
    np.testing.assert_array_equal(out, a)
    leaf = fn.tensor(a, requires_grad=True)
    exported = np.from_dlpack(leaf)  # a copy: whoever gets it may write
    assert not np.shares_memory(exported, leaf.numpy())
    frozen = a.copy()
    frozen.flags.writeable = False
    same(fn.from_dlpack(frozen), a)
    assert fn.from_dlpack(x)._memory is x._memory
    with pytest.raises(TypeError, match="list has no __dlpack__"):
        fn.from_dlpack([1.0])


def test_dlpack_hands_out_nothing_that_consumers_stumble_over():
    # PyTorch 2.13 ends the process for negative strides.
    torch = pytest.importorskip("torch")
    x = fn.tensor(values(2, 3))
    for t in (x.flip(0), fn.from_numpy(x.numpy().astype(">f8")), x.T, x[:, ::2]):
        assert torch.from_dlpack(t).numpy().tolist() == t.tolist()
    for t in (x.flip(0), fn.from_numpy(np.zeros(2, ">f8")), fn.ones(2, requires_grad=True)):
        with pytest.raises(BufferError, match="export a clone"):
            t.__dlpack__(copy=False)
    with pytest.raises(TypeError, match="from_dlpack: "):
        fn.from_dlpack(torch.ones(2, dtype=torch.bfloat16))
    with pytest.raises(TypeError, match="from_dlpack: dtype float16 is not supported"):
        fn.from_dlpack(torch.ones(2, dtype=torch.float16))


def test_dlpack_with_torch():
    torch = pytest.importorskip("torch")
    t = torch.arange(4.0)
    x = fn.from_dlpack(t)
    t[0] = 9
    assert x[0].item() == 9
    back = torch.from_dlpack(fn.tensor(np.arange(3.0)))
    assert back.tolist() == [0, 1, 2]


def test_copies_of_the_object():
    x = fn.tensor([1.0, 2.0], requires_grad=True)
    x.grad = fn.tensor([3.0, 4.0])
    for twin in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        same(twin, [1, 2])
        assert twin.requires_grad
        assert not np.shares_memory(twin.numpy(), x.numpy())
    assert copy.deepcopy(x).grad.tolist() == [3, 4]
    with pytest.raises(RuntimeError, match="only leaf tensors can be copied"):
        copy.deepcopy(x * 2)
    with pytest.raises(RuntimeError, match="only leaf tensors can be pickled"):
        pickle.dumps(x * 2)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: fn.tensor([1.0, 2.0]), "tensor([1., 2.])"),
        (lambda: fn.tensor([1.5, 2.0]), "tensor([1.5000, 2.0000])"),
        (lambda: fn.tensor([[1, 2], [3, 4]]), "tensor([[1, 2],\n        [3, 4]])"),
        (lambda: fn.tensor([True]), "tensor([ True])"),
        (lambda: fn.tensor(2.0), "tensor(2.)"),
        (lambda: fn.tensor(np.zeros(1)), "tensor([0.], dtype=float64)"),
        (lambda: fn.tensor([1.0], requires_grad=True), "tensor([1.], requires_grad=True)"),
        (
            lambda: fn.tensor([1.0], requires_grad=True) * 2,
            "tensor([2.], grad_fn=<MulBackward>)",
        ),
        (lambda: fn.zeros(0, 3), "tensor([], size=(0, 3))"),
        (lambda: fn.tensor([float("nan"), float("-inf")]), "tensor([ nan, -inf])"),
        (lambda: fn.tensor([1e10, 1.0]), "tensor([1.0000e+10, 1.0000e+00])"),
    ],
)
def test_repr(make, text):
    assert repr(make()) == text


def test_format():
    assert f"{fn.tensor(0.123456):.3f}" == "0.123"
    assert f"{fn.tensor([1.0, 2.0])}" == "tensor([1., 2.])"
