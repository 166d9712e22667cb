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


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.int64, np.uint64])
def test_any_integer_target(kind):
    x = np.random.default_rng(0).standard_normal((4, 5))
    target = np.array([0, 4, 2, 1])
    assert F.cross_entropy(x, target.astype(kind)) == F.cross_entropy(x, target)


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
         ["cross_entropy", "target -4", "position 1", "5 classes", "ignore_index is -1"]),
        (lambda: F.cross_entropy(_X, np.array([5, 0])), ValueError, ["target 5", "position 0"]),
        (lambda: F.nll_loss(_X, np.array([5, 0])), ValueError, ["nll_loss", "target 5"]),
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
