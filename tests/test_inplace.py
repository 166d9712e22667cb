"""What may change between forward and backward, and what is noticed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fusednn as fn
import fusednn.functional as F

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


@pytest.mark.parametrize(
    ("index", "shape"),
    [
        (0, (1, 4)),
        (0, (1, 1, 4)),
        (0, (1, 1)),
        (slice(None), (1, 3, 4)),
        (slice(None), (1, 1, 1)),
        (slice(None), (3, 1)),
        ([0, 2], (1, 2, 1)),
        (Ellipsis, ()),
    ],
)
def test_the_gradient_of_a_value_has_the_values_shape(index, shape):
    value = leaf(values(*shape))
    target = leaf(values(3, 4))
    out = target * 1.0
    out[index] = value
    weight = values(3, 4, seed=1)
    (out * weight).sum().backward()
    expected = np.zeros(shape)
    marks = np.zeros((3, 4))
    for at in np.ndindex(shape):
        one = np.zeros(shape)
        one[at] = 1
        marks[...] = 0
        marks[index] = one
        expected[at] = (marks * weight).sum()
    assert value.grad.shape == shape
    np.testing.assert_allclose(value.grad.numpy(), expected)


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
    "mul": lambda a, b, c: a * b,
    "div": lambda a, b, c: a / (b * b + 1),
    "exp": lambda a, b, c: (a * 0.1).exp(),
    "square": lambda a, b, c: a * a,
    "slice": lambda a, b, c: a[..., 1:2],
    "row": lambda a, b, c: a[0:1],
    "turn": lambda a, b, c: a.transpose(0, 1),
    "reshape": lambda a, b, c: a.reshape(a.shape[0], -1),
    "flip": lambda a, b, c: a.flip(0),
    "expand": lambda a, b, c: a[0:1].expand(*a.shape) * 1.0,
    "clone": lambda a, b, c: a.clone(),
    "detach": lambda a, b, c: a.detach() * b,
    "iadd": lambda a, b, c: a.add_(b),
    "imul": lambda a, b, c: a.mul_(b),
    "scale": lambda a, b, c: a.mul_(c),
    "copy": lambda a, b, c: a.copy_(b),
    "clamp": lambda a, b, c: a.clamp_(-c, c),
    "zero": lambda a, b, c: a.zero_(),
    "row from row": lambda a, b, c: a.__setitem__(0, b[0]),
    "mask": lambda a, b, c: a.__setitem__(a > c, c),
    "list": lambda a, b, c: a.__setitem__([0], b[0:1] * c),
    "column": lambda a, b, c: a.__setitem__((Ellipsis, 0), c),
}


def run_steps(make, steps, arrays):
    leaves = [make(array) for array in arrays]
    known = [leaf * 1.0 for leaf in leaves] + leaves
    for name, i, j, c in steps:
        out = STEPS[name](known[i % len(known)], known[j % len(known)], c)
        if out is not None:
            known.append(out)
    total = sum((one * one * 0.1).sum() for one in known)
    total.backward()
    return [total.item(), *(leaf.grad for leaf in leaves)]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(list(STEPS)),
            st.integers(0, 99),
            st.integers(0, 99),
            st.floats(0.5, 1.5),
        ),
        min_size=2,
        max_size=8,
    ),
    seed=st.integers(0, 2**16),
)
@pytest.mark.filterwarnings("ignore")
def test_random_changes_in_place_have_torchs_gradients_or_are_refused(steps, seed):
    torch = pytest.importorskip("torch")
    arrays = [values(3, 3, seed=seed), values(3, 3, seed=seed + 1)]
    try:
        ours = run_steps(lambda a: fn.tensor(a, requires_grad=True), steps, arrays)
    except (RuntimeError, ValueError):
        return
    try:
        theirs = run_steps(lambda a: torch.tensor(a, requires_grad=True), steps, arrays)
    except RuntimeError:
        return
    assert ours[0] == pytest.approx(theirs[0])
    for a, b in zip(ours[1:], theirs[1:], strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-7, atol=1e-9)
