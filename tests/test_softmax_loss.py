"""softmax, log_softmax and cross-entropy: values and gradients on every ISA, refused calls."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fusednn as fn
import fusednn.functional as F
from fusednn import _core
from fusednn.testing import reference, reference_loss

# More than float64 where the machine has it, so that float64 kernels are judged as well.
EXACT = np.longdouble

SHAPES = [((4, 5), 1), ((3, 1), 1), ((0, 5), 1), ((7, 16), -1), ((2, 17), 0), ((5, 33, 3), 1),
          ((2, 3, 31), 1), ((6,), 0), ((64, 1000), 1), ((6, 20000), 1), ((3, 7, 40), 0),
          ((), 0)]  # fmt: skip


def _assert_accurate(result, exact, naive, scale, what="result"):
    """The ulp that counts is that of the terms (`scale`): a difference of equals is no smaller."""
    result, exact, naive = (
        np.append(a.ravel(), np.asarray(scale, a.dtype)) for a in (result, exact, naive)
    )
    reference.assert_accurate(result, exact, naive.astype(result.dtype), what=what)


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("op", ["softmax", "log_softmax"])
def test_softmax(op, shape, axis, isa, dtype):
    rng = np.random.default_rng(0)
    x, grad = (rng.standard_normal(shape).astype(dtype) * 5 for _ in range(2))
    x, grad = np.asarray(x, dtype), np.asarray(grad, dtype)
    wide = x.reshape(1) if shape == () else x
    y = getattr(_core, f"{op}_forward")(x, axis)
    assert y.shape == shape
    if 0 in shape:
        return
    formula = getattr(reference_loss, op)
    exact, naive = (formula(wide.astype(t), axis).reshape(shape) for t in (EXACT, dtype))
    reference.assert_accurate(y, exact, np.asarray(naive, dtype))
    # The gradient is a function of the rounded y: that is what all three are given.
    backward = getattr(_core, f"{op}_backward")(grad, y, axis)
    formula = getattr(reference_loss, f"{op}_backward")
    wide_y, wide_grad = (a.reshape(wide.shape) for a in (y, grad))
    exact, naive = (formula(wide_grad.astype(t), wide_y.astype(t), axis) for t in (EXACT, dtype))
    _assert_accurate(backward, exact, naive, np.abs(grad).max())


@settings(max_examples=150, deadline=None)
@given(
    # Vectors have 2 to 16 lanes; up to 4 of them stand side by side.
    st.integers(0, 5), st.integers(1, 70), st.integers(1, 140), st.booleans(),
    st.sampled_from(["softmax", "log_softmax"]), st.sampled_from(_core.usable_isas()),
    st.sampled_from(["float32", "float64"]), st.integers(0, 2**31),
)  # fmt: skip
def test_softmax_of_any_shape(outer, classes, inner, rows, op, isa_name, dtype, seed):
    rng = np.random.default_rng(seed)
    shape, axis = ((outer * 7, classes), 1) if rows else ((outer, classes, inner), 1)
    x, grad = (rng.standard_normal(shape).astype(dtype) * 4 for _ in range(2))
    with fn.testing.isa(isa_name):
        y = getattr(_core, f"{op}_forward")(x, axis)
        dx = getattr(_core, f"{op}_backward")(grad, y, axis)
    assert y.shape == dx.shape == shape
    if outer == 0:
        return
    formula, backward = (getattr(reference_loss, name) for name in (op, f"{op}_backward"))
    reference.assert_accurate(y, formula(x.astype(EXACT), axis), formula(x, axis))
    exact, naive = (backward(grad.astype(t), y.astype(t), axis) for t in (EXACT, dtype))
    _assert_accurate(dx, exact, naive, np.abs(grad).max())


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_any_layout(axis, isa, dtype):
    rng = np.random.default_rng(4)
    x = rng.standard_normal((5, 6, 7)).astype(dtype)
    grad = rng.standard_normal((5, 6, 7)).astype(dtype)
    spread = np.zeros((5, 6, 14), dtype)
    spread[..., ::2] = x
    read_only = x.copy()
    read_only.flags.writeable = False
    layouts = (
        read_only,
        spread[..., ::2],
        np.ascontiguousarray(x[::-1, :, ::-1])[::-1, :, ::-1],
        np.asfortranarray(x),
        x.astype(np.dtype(dtype).newbyteorder(">")),
    )
    for name in ("softmax", "log_softmax"):
        y = getattr(_core, f"{name}_forward")(x, axis)
        dx = getattr(_core, f"{name}_backward")(grad, y, axis)
        for view in layouts:
            np.testing.assert_array_equal(getattr(_core, f"{name}_forward")(view, axis), y)
            result = getattr(_core, f"{name}_backward")(np.asfortranarray(grad), y, axis)
            np.testing.assert_array_equal(result, dx)


@pytest.mark.parametrize("shape", [(40, 33), (40, 1000), (3, 21, 150), (40, 5, 3)])
def test_every_element_is_written_and_none_read(shape, isa, dtype):
    """Results come in recycled memory: here all of it holds NaN."""
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    target = np.random.default_rng(1).integers(0, shape[1], (shape[0], *shape[2:]))
    scale = np.ones(target.shape, dtype)
    calls = (
        lambda: _core.softmax_forward(x, 1),
        lambda: _core.log_softmax_forward(x, 1),
        lambda: _core.softmax_backward(x, x, 1),
        lambda: _core.log_softmax_backward(x, x, 1),
        lambda: _core.cross_entropy_forward("cross_entropy", x, target, None, -100, 0.1)[0],
        lambda: _core.cross_entropy_backward("cross_entropy", x, target, None, -100, 0.1, scale),
        lambda: _core.cross_entropy_backward("nll_loss", x, target, None, -100, 0.0, scale),
    )
    for call in calls:
        poisoned = [call() for _ in range(4)]
        for old in poisoned:
            old.fill(np.nan)
        del poisoned, old
        assert np.isfinite(call()).all()


@pytest.mark.parametrize("classes", [1, 2, 3, 5, 8, 15, 17, 31, 33, 70])
@pytest.mark.parametrize("inner", [1, 3, 70])
def test_only_differences_of_logits_count(classes, inner, isa, dtype):
    """Far below 0 (or above), no padding of a vector may pass for the largest logit."""
    rng = np.random.default_rng(classes)
    shape = (5, classes, inner) if inner > 1 else (5, classes)
    x = rng.integers(-8, 9, shape).astype(dtype)  # small integers: shifting them is exact
    target = rng.integers(0, classes, (5, *shape[2:]))
    for shift in (-4096, 4096):
        for op in (_core.softmax_forward, _core.log_softmax_forward):
            np.testing.assert_array_equal(op(x + x.dtype.type(shift), 1), op(x, 1))
        losses, moved = (
            _core.cross_entropy_forward("cross_entropy", a, target, None, -100, 0.1)[0]
            for a in (x, x + x.dtype.type(shift))
        )
        np.testing.assert_array_equal(losses, moved)


def test_infinite_gradients_stay_where_they_are(isa, dtype):
    """The rounding error that a sum carries along is inf - inf once the sum is infinite."""
    for shape in ((2, 300), (2, 300, 5)):
        y = np.full(shape, -np.log(300), dtype)
        grad = np.zeros(shape, dtype)
        grad[0, 3] = np.inf
        dx = _core.log_softmax_backward(grad, y, 1)
        assert (dx[0, 4:] == -np.inf).all()
        assert (dx[1] == 0).all()


@pytest.mark.parametrize("shape", [(20, 33), (4, 3, 70)])
def test_nan_reaches_its_own_row_only(shape, isa, dtype):
    x = np.random.default_rng(0).standard_normal(shape).astype(dtype)
    bad = (7, 5) if len(shape) == 2 else (1, 2, 65)
    x[bad] = np.nan
    rows = np.zeros(shape, bool)
    rows[(bad[0], slice(None), *bad[2:])] = True
    target = np.zeros((shape[0], *shape[2:]), int)
    for y in (
        _core.softmax_forward(x, 1),
        _core.log_softmax_forward(x, 1),
        _core.cross_entropy_backward(
            "cross_entropy", x, target, None, -100, 0.0, np.ones(target.shape, dtype)
        ),
    ):
        np.testing.assert_array_equal(np.isnan(y), rows)
    losses = _core.cross_entropy_forward("cross_entropy", x, target, None, -100, 0.0)[0]
    np.testing.assert_array_equal(np.isnan(losses), rows[:, 0])


def test_exponentials_over_the_whole_range(isa, dtype):
    """exp and log themselves, through a softmax of two classes: y = 1 / (1 + exp(-d))."""
    d = np.linspace(-800, 800, 40001).astype(dtype)
    x = np.stack([d, np.zeros_like(d)], axis=1)
    y = _core.softmax_forward(x, 1)[:, 0]
    with np.errstate(over="ignore"):
        exact = 1 / (1 + np.exp(-d.astype(np.float64)))
    normal = exact > np.finfo(dtype).tiny
    # exp(-|d|) is within 1.5 ulp, the sum and the quotient add half an ulp each.
    error = np.abs(y[normal] - exact[normal]) / np.spacing(exact[normal].astype(dtype))
    assert error.max() <= 3
    assert (y[~normal] <= np.finfo(dtype).tiny * 1.0001).all()
    log_y = _core.log_softmax_forward(x, 1)[:, 0]
    exact = -np.logaddexp(0, -d.astype(np.float64))
    error = np.abs(log_y - exact) / np.spacing(np.maximum(np.abs(exact), 0.5).astype(dtype))
    assert error.max() <= 3


def test_softmax_of_special_values(isa, dtype):
    inf, nan = np.inf, np.nan
    rows = [[0, nan, 1], [0, inf, 1], [-inf, -inf, -inf], [-inf, 0, -inf], [1e30, 0, 1]]
    x = np.array(rows, dtype)
    for values in (x, x.T.copy()):
        axis = 1 if values is x else 0
        y = _core.softmax_forward(values, axis)
        y = y if axis else y.T
        assert np.isnan(y[:3]).all()
        np.testing.assert_array_equal(y[3:], [[0, 1, 0], [1, 0, 0]])
        log_y = _core.log_softmax_forward(values, axis)
        log_y = log_y if axis else log_y.T
        np.testing.assert_array_equal(log_y[3], [-inf, 0, -inf])


def _arguments(rng, shape, dtype, ignored, weighted, smoothing, log_probabilities):
    x = rng.standard_normal(shape).astype(dtype) * 3
    if log_probabilities:
        x = reference_loss.log_softmax(x, 1)
    target = rng.integers(0, shape[1], (shape[0], *shape[2:]))
    if ignored:
        target[rng.random(target.shape) < 0.3] = -100
    weight = rng.random(shape[1]).astype(dtype) + np.asarray(0.1, dtype) if weighted else None
    return x, target, weight, smoothing


@settings(max_examples=150, deadline=None)
@given(
    st.tuples(st.integers(1, 9), st.integers(1, 40)).flatmap(
        lambda nc: st.sampled_from([nc, (*nc, 3), (*nc, 17), (*nc, 2, 3)])
    ),
    st.booleans(), st.booleans(), st.sampled_from([0.0, 0.1, 1.0]), st.booleans(),
    st.sampled_from(_core.usable_isas()), st.sampled_from(["float32", "float64"]),
    st.integers(0, 2**31),
)  # fmt: skip
def test_cross_entropy(shape, ignored, weighted, smoothing, log_p, isa_name, dtype, seed):
    rng = np.random.default_rng(seed)
    op, smoothing = ("nll_loss", 0.0) if log_p else ("cross_entropy", smoothing)
    x, target, weight, smoothing = _arguments(
        rng, shape, dtype, ignored, weighted, smoothing, log_p
    )
    scale = rng.standard_normal(target.shape).astype(dtype)
    with fn.testing.isa(isa_name):
        losses, counts = _core.cross_entropy_forward(op, x, target, weight, -100, smoothing)
        grad = _core.cross_entropy_backward(op, x, target, weight, -100, smoothing, scale)

    def formula(t):
        w = None if weight is None else weight.astype(t)
        a, s = x.astype(t), scale.astype(t)
        options = (w, -100, smoothing, log_p)
        return (
            *reference_loss.cross_entropy(a, target, *options),
            reference_loss.cross_entropy_backward(a, target, s, *options),
        )

    exact, naive = formula(EXACT), formula(dtype)
    # A loss is a difference of logits, and of their largest, and of a logarithm.
    scale_of_terms = 2 * np.abs(x).max() + np.log(shape[1]) + 1
    for what, *three in zip(
        ("losses", "counts", "grad"), (losses, counts, grad), exact, naive, strict=True
    ):
        _assert_accurate(*three, scale_of_terms, what)


def test_ignored_positions_do_not_matter(isa):
    x = np.array([[np.nan, np.inf], [1.0, 2.0]], np.float32)
    target = np.array([-100, 1])
    for shape in ((2, 2), (1, 2, 2)):
        a = x if shape == (2, 2) else np.ascontiguousarray(x.T)[None]
        t = target if shape == (2, 2) else target[None]
        losses, counts = _core.cross_entropy_forward("cross_entropy", a, t, None, -100, 0.0)
        assert losses.ravel()[0] == 0
        assert counts.ravel().tolist() == [0, 1]
        grad = _core.cross_entropy_backward(
            "cross_entropy", a, t, None, -100, 0.0, np.ones(t.shape, np.float32)
        )
        assert not (grad[0] if shape == (2, 2) else grad[0, :, 0]).any()


def test_class_weights_and_smoothing_together():
    x = np.array([[2.0, 0.0]])
    loss = F.cross_entropy(x, np.array([0]), weight=np.array([1.0, 16.0]), label_smoothing=0.1)
    assert abs(float(loss) - 1.822124) < 1e-6


def test_all_targets_ignored():
    x, target = np.array([[1.0, 2.0, 3.0]]), np.array([-100])
    assert np.isnan(F.cross_entropy(x, target))
    assert F.cross_entropy(x, target, reduction="sum") == 0
    assert F.cross_entropy(x, target, empty="zero") == 0
    t = fn.tensor(x, requires_grad=True)
    F.cross_entropy(t, target, reduction="sum").backward()
    assert not t.grad.numpy().any()


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", ">i8"])
def test_any_integer_target(kind):
    x = np.random.default_rng(0).standard_normal((4, 5))
    target = np.array([0, 4, 2, 1])
    assert F.cross_entropy(x, target.astype(kind)) == F.cross_entropy(x, target)
    reversed_view = np.ascontiguousarray(target[::-1]).astype(kind)[::-1]
    reversed_view.flags.writeable = False
    assert F.cross_entropy(x, reversed_view) == F.cross_entropy(x, target)


def test_one_class_and_one_position(isa, dtype):
    x = np.array([3.0], dtype)
    target = np.array(0)
    losses, counts = _core.cross_entropy_forward("cross_entropy", x, target, None, -100, 0.0)
    assert losses.shape == counts.shape == ()
    assert losses == 0
    assert counts == 1
    one = np.ones((), dtype)
    grad = _core.cross_entropy_backward("cross_entropy", x, target, None, -100, 0.0, one)
    assert grad.tolist() == [0]


@pytest.mark.parametrize("shape", [(0, 5), (0, 5, 2), (3, 5, 0), (3, 0), (3, 0, 2)])
def test_empty_arrays(shape, isa, dtype):
    x = np.zeros(shape, dtype)
    target = np.full((shape[0], *shape[2:]), -100)
    losses, counts = _core.cross_entropy_forward("cross_entropy", x, target, None, -100, 0.1)
    assert losses.shape == counts.shape == target.shape
    assert not losses.any()
    grad = _core.cross_entropy_backward("cross_entropy", x, target, None, -100, 0.1, losses)
    assert grad.shape == shape


@pytest.mark.parametrize("shape", [(3, 20000), (2, 3000, 5)])
@pytest.mark.parametrize("weighted", [False, True])
def test_smoothing_over_many_classes(shape, weighted, isa):
    """Sums over the classes keep their digits however many there are."""
    rng = np.random.default_rng(0)
    x, target, weight, _ = _arguments(rng, shape, "float32", False, weighted, 0.1, False)
    losses, _ = _core.cross_entropy_forward("cross_entropy", x, target, weight, -100, 0.1)
    wide = None if weight is None else weight.astype(np.float64)
    exact, _ = reference_loss.cross_entropy(x.astype(np.float64), target, wide, -100, 0.1)
    naive, _ = reference_loss.cross_entropy(x, target, weight, -100, 0.1)
    reference.assert_accurate(losses, exact, naive)


@pytest.mark.parametrize("threads", [2, 3])
def test_same_bits_at_any_thread_count(threads, isa):
    rng = np.random.default_rng(0)
    for shape, axis in (((3000, 65), 1), ((20, 100, 400), 1)):
        x = rng.standard_normal(shape).astype(np.float32)
        target = rng.integers(0, shape[1], (shape[0], *shape[2:]))
        scale = np.ones(target.shape, np.float32)
        results = []
        for n in (1, threads):
            fn.set_num_threads(n)
            results.append((
                _core.softmax_forward(x, axis),
                _core.log_softmax_forward(x, axis),
                *_core.cross_entropy_forward("cross_entropy", x, target, None, -100, 0.1),
                _core.cross_entropy_backward("cross_entropy", x, target, None, -100, 0.1, scale),
            ))  # fmt: skip
        for one, many in zip(*results, strict=True):
            np.testing.assert_array_equal(one, many)


def test_gradcheck():
    rng = np.random.default_rng(0)
    x = rng.standard_normal((4, 5, 3))
    target = rng.integers(0, 5, (4, 3))
    target[0, 0] = -100
    weight = rng.random(5) + 0.5
    for f in (
        lambda x: F.softmax(x, 1),
        lambda x: F.log_softmax(x, -1),
        lambda x: F.cross_entropy(x, target, weight=weight, label_smoothing=0.2),
        lambda x: F.cross_entropy(x, target, reduction="none"),
        lambda x: F.nll_loss(F.log_softmax(x, 1), target, weight=weight),
    ):
        assert fn.testing.gradcheck(f, (x,))


_X = np.ones((2, 5))
_T = np.array([0, 1])


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: F.cross_entropy(_X, np.array([0, -4]), ignore_index=-1), ValueError,
         ["cross_entropy: target value -4 at index 1 is out of bounds for 5 classes "
          "(ignore_index -1)"]),
        (lambda: F.cross_entropy(_X, np.array([5, 0])), ValueError, ["value 5 at index 0"]),
        (lambda: F.nll_loss(_X, np.array([5, 0])), ValueError, ["nll_loss", "value 5 at index 0"]),
        (lambda: F.cross_entropy(np.ones((2, 5, 3)), np.array([[0, 1, 2], [3, 4, 9]])), ValueError,
         ["cross_entropy", "value 9 at index (1, 2)", "5 classes"]),
        (lambda: F.cross_entropy(np.ones(5), np.array(7)), ValueError,
         ["cross_entropy: target value 7 is out of bounds"]),
        (lambda: F.cross_entropy(_X, np.array([0, 2**64 - 100], np.uint64)), ValueError,
         ["cross_entropy", "value 18446744073709551516 at index 1"]),
        (lambda: F.cross_entropy(_X, _T, ignore_index=2**70), ValueError,
         ["cross_entropy", "ignore_index", "64 bits"]),
        (lambda: F.cross_entropy(np.array(1.0), np.array(0)), ValueError,
         ["cross_entropy", "input", "()", "(N, C, d1, ...)"]),
        (lambda: _core.cross_entropy_forward("cross_entropy", _X, _T, None, 0.5, 0.0), TypeError,
         ["cross_entropy", "ignore_index", "float"]),
        (lambda: _core.cross_entropy_forward("cross_entropy", _X, _T, None, -100, "a"), TypeError,
         ["cross_entropy", "label_smoothing", "a number", "str"]),
        (lambda: _core.cross_entropy_forward("nll_loss", _X, _T, None, -100, 0.1), ValueError,
         ["nll_loss", "label_smoothing", "0.1", "expected 0"]),
        (lambda: _core.cross_entropy_forward("hinge", _X, _T, None, -100, 0.0), ValueError,
         ["'hinge'", "'cross_entropy'", "'nll_loss'"]),
        (lambda: _core.cross_entropy_backward("cross_entropy", _X, _T, None, -100, 0.0, np.ones(3)),
         ValueError, ["cross_entropy", "scale", "(3,)", "(2,)"]),
        (lambda: _core.cross_entropy_backward(
            "cross_entropy", _X, _T, None, -100, 0.0, np.ones(2, np.float32)),
         TypeError, ["cross_entropy", "scale", "float32", "float64"]),
        (lambda: _core.cross_entropy_forward("cross_entropy", _X, [0, 1], None, -100, 0.0),
         TypeError, ["cross_entropy", "target", "list"]),
        (lambda: _core.softmax_backward(_X, np.ones((2, 4)), 1), ValueError,
         ["softmax", "grad", "(2, 5)", "(2, 4)"]),
        (lambda: _core.softmax_forward(_X, "a"), TypeError, ["softmax", "dim", "int", "str"]),
        (lambda: _core.log_softmax_forward(_X, 1.5), TypeError, ["log_softmax", "dim", "float"]),
        (lambda: _core.softmax_forward(np.ones(3, int), 0), TypeError,
         ["softmax", "input", "int64", "float32"]),
        (lambda: F.cross_entropy(_X, np.array([0])), ValueError,
         ["cross_entropy", "target", "(1,)", "(2,)", "(2, 5)"]),
        (lambda: F.cross_entropy(_X, np.array([True, False])), TypeError,
         ["cross_entropy", "target", "bool"]),
        (lambda: F.cross_entropy(_X, _T, weight=np.ones(4)), ValueError,
         ["cross_entropy", "weight", "(4,)", "(5,)"]),
        (lambda: F.cross_entropy(_X, _T, weight=np.ones(5, np.float32)), TypeError,
         ["cross_entropy", "weight", "float32", "float64"]),
        (lambda: F.cross_entropy(_X, _T, label_smoothing=1.5), ValueError,
         ["cross_entropy", "label_smoothing", "1.5"]),
        (lambda: F.cross_entropy(_X, _T, label_smoothing=float("nan")), ValueError,
         ["cross_entropy", "label_smoothing", "nan"]),
        (lambda: F.cross_entropy(_X, _T, reduction="avg"), ValueError,
         ["cross_entropy", "reduction", "avg"]),
        (lambda: F.cross_entropy(_X.astype(int), _T), TypeError,
         ["cross_entropy", "input", "int64"]),
        (lambda: F.softmax(_X, 2), ValueError, ["softmax", "dim", "2"]),
        (lambda: F.log_softmax(_X, -3), ValueError, ["log_softmax", "dim", "-3"]),
    ],
)  # fmt: skip
def test_refused_calls_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_ignored_target_beyond_the_classes():
    losses = F.cross_entropy(_X, np.array([255, 1]), ignore_index=255, reduction="none")
    assert losses[0] == 0
    assert losses[1] > 0


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weight", [None, [1.0, 0.0, 2.0]])
@pytest.mark.parametrize("row", [
    [0, -np.inf, 1], [np.inf, 0, 1], [np.nan, 0, 1], [-np.inf] * 3, [1e4, 0, -1e4],
    [3e38, 0, -3e38],
])  # fmt: skip
def test_special_logits_against_torch(row, weight, smoothing, isa):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra 'peers')")
    w = None if weight is None else np.array(weight, np.float32)
    for x in (
        np.array([row, row], np.float32),
        np.array([row] * 2, np.float32)[..., None] + [[[0.0] * 5]],
    ):
        x = x.astype(np.float32)
        for op in ("softmax", "log_softmax"):
            peer = getattr(torch, op)(torch.tensor(x), 1).numpy()
            np.testing.assert_allclose(getattr(_core, f"{op}_forward")(x, 1), peer, rtol=1e-6)
        for label in range(3):
            target = np.full((2, *x.shape[2:]), label)
            options = (w, -100, smoothing)
            losses, _ = _core.cross_entropy_forward("cross_entropy", x, target, *options)
            grad = _core.cross_entropy_backward(
                "cross_entropy", x, target, *options, np.ones_like(losses)
            )
            peer = torch.tensor(x, requires_grad=True)
            theirs = torch.nn.functional.cross_entropy(
                peer, torch.tensor(target), None if w is None else torch.tensor(w),
                reduction="none", label_smoothing=smoothing,
            )  # fmt: skip
            theirs.sum().backward()
            np.testing.assert_allclose(losses, theirs.detach().numpy(), rtol=1e-5)
            np.testing.assert_allclose(grad, peer.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_against_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed (extra 'peers')")
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 7, 4)).astype(np.float32)
    target = rng.integers(0, 7, (6, 4))
    target[2] = -100
    weight = rng.random(7).astype(np.float32)
    for reduction in ("mean", "sum", "none"):
        for smoothing in (0.0, 0.3):
            ours, peer = fn.tensor(x, requires_grad=True), torch.tensor(x, requires_grad=True)
            options = {"reduction": reduction, "label_smoothing": smoothing}
            a = F.cross_entropy(ours, target, weight=weight, **options)
            b = torch.nn.functional.cross_entropy(
                peer, torch.tensor(target), weight=torch.tensor(weight), **options
            )
            np.testing.assert_allclose(a.numpy(), b.detach().numpy(), rtol=1e-5, atol=1e-6)
            a.sum().backward()
            b.sum().backward()
            np.testing.assert_allclose(ours.grad.numpy(), peer.grad.numpy(), rtol=1e-4, atol=1e-6)
