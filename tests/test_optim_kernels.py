"""The in-place update kernels against the formulas in more digits, on every ISA."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fusednn as fn
from fusednn import _core
from fusednn.testing import reference

# More than float64 where the machine has it, so that float64 kernels are judged as well.
EXACT = np.longdouble

# Vectors have 2 to 16 lanes, bursts up to 4 vectors, tasks 16384 elements.
SIZES = (0, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 16384, 16385)


def listed(array):
    return None if array is None else [array]


@dataclass(frozen=True)
class Sgd:
    lr: float = 0.1
    momentum: float = 0.0
    dampening: float = 0.0
    decay: float = 0.0
    nesterov: bool = False
    maximize: bool = False

    def kernel(self, p, g, buffer, first):
        _core.sgd_step([p], [g], listed(buffer), [first], self.lr, self.momentum, self.dampening,
                       self.decay, self.nesterov, self.maximize)  # fmt: skip

    def formula(self, p, g, buffer, first):
        """One step in whatever precision it is given."""
        t = p.dtype.type
        g = -g if self.maximize else g
        if self.decay:
            g = g + t(self.decay) * p
        if buffer is not None:
            buffer = g if first else t(self.momentum) * buffer + t(1 - self.dampening) * g
            g = g + t(self.momentum) * buffer if self.nesterov else buffer
        return p - t(self.lr) * g, buffer


@dataclass(frozen=True)
class Adam:
    lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    eps: float = 1e-8
    decay: float = 0.1
    decoupled: bool = False
    amsgrad: bool = False
    maximize: bool = False

    def kernel(self, p, g, m, v, most, step):
        _core.adam_step([p], [g], [m], [v], listed(most), [step], self.lr, self.beta1,
                        self.beta2, self.eps, self.decay, self.decoupled,
                        self.maximize)  # fmt: skip

    def formula(self, p, g, m, v, most, step):
        """One step in whatever precision it is given."""
        t = p.dtype.type
        g = -g if self.maximize else g
        if self.decoupled:
            p = p * t(1 - self.lr * self.decay)
        elif self.decay:
            g = g + t(self.decay) * p
        m = t(self.beta1) * m + t(1 - self.beta1) * g
        v = t(self.beta2) * v + t(1 - self.beta2) * g * g
        top = v
        if most is not None:
            top = most = np.maximum(most, v)
        root = np.sqrt(top) / t(np.sqrt(1 - self.beta2**step)) + t(self.eps)
        return p - t(self.lr / (1 - self.beta1**step)) * m / root, m, v, most


SGDS = [
    Sgd(),
    Sgd(maximize=True, decay=0.01),
    Sgd(momentum=0.9, decay=0.01),
    Sgd(lr=0.05, momentum=0.9, decay=0.01, nesterov=True),
    Sgd(lr=0.05, momentum=0.5, dampening=0.3, maximize=True),
]
ADAMS = [
    Adam(),
    Adam(decay=0.0),
    Adam(decoupled=True),
    Adam(decoupled=True, amsgrad=True),
    Adam(amsgrad=True, maximize=True),
    Adam(beta1=0.2, beta2=0.3),
    Adam(beta1=0.0, decay=0.0, eps=0.5),
]


def _assert_step(results, before, formula):
    """Each result of one step, from the same state, is as good as the naive version's."""
    exact = formula(*(None if a is None else a.astype(EXACT) for a in before))
    naive = formula(*before)
    for result, e, n in zip(results, exact, naive, strict=True):
        if result is not None:
            reference.assert_accurate(result, e, n.astype(result.dtype))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("options", SGDS, ids=repr)
def test_sgd(size, options, isa, dtype):
    rng = np.random.default_rng(size)
    p = rng.standard_normal(size).astype(dtype)
    buffer = np.full(size, np.nan, dtype) if options.momentum else None
    for step in range(3):
        g = rng.standard_normal(size).astype(dtype)
        before = (p.copy(), g, None if buffer is None else buffer.copy())
        options.kernel(p, g, buffer, step == 0)
        _assert_step((p, buffer), before, lambda *a, s=step: options.formula(*a, s == 0))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("options", ADAMS, ids=repr)
def test_adam(size, options, isa, dtype):
    rng = np.random.default_rng(size)
    p = rng.standard_normal(size).astype(dtype)
    m, v = np.zeros(size, dtype), np.zeros(size, dtype)
    most = np.zeros(size, dtype) if options.amsgrad else None
    for step in (1, 2, 3, 1000):
        g = rng.standard_normal(size).astype(dtype)
        before = (p.copy(), g, m.copy(), v.copy(), None if most is None else most.copy())
        options.kernel(p, g, m, v, most, step)
        _assert_step((p, m, v, most), before, lambda *a, s=step: options.formula(*a, s))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.integers(0, 12), max_size=4).map(tuple),
    st.sampled_from(SGDS + ADAMS),
    st.sampled_from(_core.usable_isas()),
    st.sampled_from(["float32", "float64"]),
    st.integers(0, 2**31),
)
def test_any_shape(shape, options, isa_name, dtype, seed):
    """Arrays of any shape are updated as their elements in a row would be."""
    rng = np.random.default_rng(seed)
    arrays = [np.asarray(abs(rng.standard_normal(shape)), dtype) for _ in range(5)]
    flat = [a.ravel().copy() for a in arrays]
    with fn.testing.isa(isa_name):
        for p, g, m, v, most in (arrays, flat):
            if isinstance(options, Sgd):
                options.kernel(p, g, m if options.momentum else None, False)
            else:
                options.kernel(p, g, m, v, most if options.amsgrad else None, 7)
    for a, b in zip(arrays, flat, strict=True):
        np.testing.assert_array_equal(a.ravel(), b)


def test_a_gradient_may_have_any_layout(isa, dtype):
    rng = np.random.default_rng(0)
    g = rng.standard_normal((5, 7)).astype(dtype)
    spread = np.zeros((5, 14), dtype)
    spread[:, ::2] = g
    read_only = g.copy()
    read_only.flags.writeable = False
    start = np.ones((5, 7), dtype)
    expected = start.copy()
    Sgd().kernel(expected, g, None, True)
    for view in (
        spread[:, ::2],
        np.ascontiguousarray(g[::-1])[::-1],
        np.asfortranarray(g),
        g.astype(np.dtype(dtype).newbyteorder(">")),
        read_only,
    ):
        p = start.copy()
        Sgd().kernel(p, view, None, True)
        np.testing.assert_array_equal(p, expected)
        np.testing.assert_array_equal(view, g)


def test_nan_and_infinity_stay_with_their_element(isa, dtype):
    g = np.zeros(67, dtype)
    g[3], g[64], g[66] = np.nan, np.inf, np.nan
    bad = g != 0
    p, m, v, most = (np.zeros(67, dtype) for _ in range(4))
    Adam(decay=0.0).kernel(p, g, m, v, most, 1)
    for state in (p, m, v, most):
        np.testing.assert_array_equal(np.isfinite(state), ~bad)
    # Once NaN, the maximum stays NaN, whatever comes.
    Adam(decay=0.0).kernel(p, np.ones(67, dtype), m, np.zeros(67, dtype), most, 2)
    np.testing.assert_array_equal(np.isnan(most), np.isnan(g))
    p, buffer = np.zeros(67, dtype), np.zeros(67, dtype)
    Sgd(momentum=0.9).kernel(p, g, buffer, False)
    np.testing.assert_array_equal(np.isfinite(p), ~bad)


def test_a_first_moment_without_memory_is_the_gradient(isa, dtype):
    g = np.random.default_rng(0).standard_normal(40).astype(dtype)
    m = np.full(40, 1e30, dtype)
    Adam(beta1=0.0, decay=0.0).kernel(np.zeros(40, dtype), g, m, np.zeros(40, dtype), None, 1)
    np.testing.assert_array_equal(m, g)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("momentum", "centered", "decay", "maximize"), [
    (0.0, False, 0.0, False), (0.9, False, 0.1, False), (0.0, True, 0.1, True),
    (0.5, True, 0.0, False),
])  # fmt: skip
def test_rmsprop(size, momentum, centered, decay, maximize, isa, dtype):
    rng = np.random.default_rng(size)
    p = rng.standard_normal(size).astype(dtype)
    square = np.zeros(size, dtype)
    mean = np.zeros(size, dtype) if centered else None
    buffer = np.zeros(size, dtype) if momentum else None
    lr, alpha, eps = 0.01, 0.9, 1e-4
    x, xs, xm, xb = p.astype(np.float64), 0.0, 0.0, 0.0
    for _ in range(5):
        g = rng.standard_normal(size).astype(dtype)
        _core.rmsprop_step(
            [p],
            [g],
            [square],
            listed(mean),
            listed(buffer),
            lr,
            alpha,
            eps,
            decay,
            momentum,
            maximize,
        )
        d = (-1 if maximize else 1) * g.astype(np.float64) + decay * x
        xs, xm = alpha * xs + (1 - alpha) * d * d, alpha * xm + (1 - alpha) * d
        step = d / (np.sqrt(xs - xm * xm if centered else xs) + eps)
        xb = momentum * xb + step
        x = x - lr * xb
    tolerance = 64 * np.finfo(dtype).eps  # centered subtracts two numbers that may be close
    np.testing.assert_allclose(p, x, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(square, xs, rtol=tolerance, atol=tolerance)


def test_a_variance_is_never_below_zero(isa, dtype):
    """With the same gradient all the time, square_avg - grad_avg**2 is 0 but for rounding."""
    g = np.linspace(0.1, 3, 101).astype(dtype)
    p, square, mean = np.zeros(101, dtype), g * g, g.copy()
    for _ in range(50):
        _core.rmsprop_step([p], [g], [square], [mean], None, 1e-3, 0.99, 1e-2, 0.0, 0.0, False)
    assert np.isfinite(p).all()
    g[3] = np.nan
    _core.rmsprop_step([p], [g], [square], [mean], None, 1e-3, 0.99, 1e-2, 0.0, 0.0, False)
    assert np.isnan(p).nonzero()[0].tolist() == [3]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("decay", "maximize"), [(0.0, False), (0.1, True)])
def test_adagrad(size, decay, maximize, isa, dtype):
    rng = np.random.default_rng(size)
    p = rng.standard_normal(size).astype(dtype)
    total = np.zeros(size, dtype)
    x, xs = p.astype(np.float64), 0.0
    for step in range(5):
        g = rng.standard_normal(size).astype(dtype)
        lr = 0.1 / (1 + step)
        _core.adagrad_step([p], [g], [total], [lr], 1e-10, decay, maximize)
        d = (-1 if maximize else 1) * g.astype(np.float64) + decay * x
        xs = xs + d * d
        x = x - lr * d / (np.sqrt(xs) + 1e-10)
    tolerance = 32 * np.finfo(dtype).eps
    np.testing.assert_allclose(p, x, rtol=tolerance, atol=tolerance)
    np.testing.assert_allclose(total, xs, rtol=tolerance, atol=tolerance)


def test_same_bits_at_any_thread_count(isa):
    rng = np.random.default_rng(0)
    start, g = (rng.standard_normal(400_001).astype(np.float32) for _ in range(2))
    results = []
    for threads in (1, 2, 3):
        fn.set_num_threads(threads)
        p, m, v = start.copy(), np.zeros_like(start), np.zeros_like(start)
        Adam(decoupled=True).kernel(p, g, m, v, None, 1)
        Sgd(momentum=0.9, decay=0.1, nesterov=True).kernel(p, g, m, False)
        _core.rmsprop_step([p], [g], [v], [m], None, 0.1, 0.9, 1e-8, 0.1, 0.0, False)
        _core.adagrad_step([p], [g], [v], [0.1], 1e-8, 0.1, False)
        results.append((p, m, v))
    for other in results[1:]:
        for one, many in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(one, many)


@pytest.mark.parametrize("options", SGDS + ADAMS, ids=repr)
def test_against_torch(options, isa):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra 'peers')")
    rng = np.random.default_rng(0)
    p, m, v, most = (np.zeros(100, np.float32) for _ in range(4))
    p[:] = rng.standard_normal(100)
    peer = torch.nn.Parameter(torch.tensor(p))
    o = options
    if isinstance(o, Sgd):
        theirs = torch.optim.SGD([peer], o.lr, o.momentum, o.dampening, o.decay, o.nesterov,
                                 maximize=o.maximize)  # fmt: skip
    else:
        kind = torch.optim.AdamW if o.decoupled else torch.optim.Adam
        theirs = kind([peer], o.lr, (o.beta1, o.beta2), o.eps, o.decay, o.amsgrad,
                      maximize=o.maximize)  # fmt: skip
    for step in range(1, 21):
        g = rng.standard_normal(100).astype(np.float32)
        peer.grad = torch.tensor(g)
        theirs.step()
        if isinstance(o, Sgd):
            o.kernel(p, g, m if o.momentum else None, step == 1)
        else:
            o.kernel(p, g, m, v, most if o.amsgrad else None, step)
    np.testing.assert_allclose(p, peer.detach().numpy(), rtol=1e-5, atol=1e-6)


# ---- refused calls -------------------------------------------------------------------------------

_P = np.ones(4, np.float32)


def _read_only(a):
    a = a.copy()
    a.flags.writeable = False
    return a


@pytest.mark.parametrize(
    ("param", "grad", "error", "words"),
    [
        (_P.copy(), np.ones(3, np.float32), ValueError, ["sgd_step", "param", "(4,)", "(3,)"]),
        (_P.copy(), np.ones((4, 1), np.float32), ValueError, ["sgd_step", "(4,)", "(4, 1)"]),
        (_P.copy(), np.ones(4), TypeError, ["sgd_step", "param", "float32", "float64"]),
        (_P.copy(), np.ones(4, int), TypeError, ["sgd_step", "grad", "int64", "float32"]),
        (_read_only(_P), _P, ValueError, ["sgd_step", "param", "writable"]),
        (np.ones(8, np.float32)[::2], _P, ValueError, ["sgd_step", "param", "contiguous"]),
        (_P.astype(">f4"), _P, ValueError, ["sgd_step", "param"]),
        ([1.0], _P, TypeError, ["sgd_step", "param", "list"]),
    ],
)
def test_refused_calls_change_nothing(param, grad, error, words):
    before = np.copy(param)
    with pytest.raises(error) as caught:
        _core.sgd_step([param], [grad], None, [True], 0.1, 0.0, 0.0, 0.0, False, False)
    for word in words:
        assert word in str(caught.value)
    np.testing.assert_array_equal(param, before)


def test_the_adaptive_steps_refuse_a_bad_state_before_they_write():
    p, g, v = (np.ones(4, np.float32) for _ in range(3))
    short, wide = np.ones(3, np.float32), np.ones(4)
    with pytest.raises(ValueError, match=r"rmsprop_step: grad_avg has shape \(3,\)"):
        _core.rmsprop_step([p], [g], [v], [short], None, 0.1, 0.9, 1e-8, 0.0, 0.0, False)
    with pytest.raises(TypeError, match="rmsprop_step: momentum_buffer has dtype float64"):
        _core.rmsprop_step([p], [g], [v], None, [wide], 0.1, 0.9, 1e-8, 0.0, 0.9, False)
    with pytest.raises(ValueError, match=r"adagrad_step: sum has shape \(3,\)"):
        _core.adagrad_step([p], [g], [short], [0.1], 1e-8, 0.0, False)
    assert (p == 1).all()
    assert (v == 1).all()


_NAMES = ("param", "grad", "exp_avg", "exp_avg_sq", "max_exp_avg_sq")


@pytest.mark.parametrize("wrong", range(5))
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (np.ones(3, np.float32), ValueError),
        (np.ones(4), TypeError),
        (np.ones(4, int), TypeError),
        ([1.0] * 4, TypeError),
    ],
    ids=["shape", "dtype", "int", "list"],
)
def test_adam_refuses_a_bad_array_before_it_writes(wrong, bad, error):
    arrays = [np.ones(4, np.float32) for _ in _NAMES]
    given_arrays = [*arrays[:wrong], bad, *arrays[wrong + 1 :]]
    # A gradient of another dtype or shape makes param, which is compared with it, the odd one.
    culprit = "param" if wrong == 1 and isinstance(bad, np.ndarray) and bad.dtype.kind == "f" else (
        _NAMES[wrong])  # fmt: skip
    with pytest.raises(error, match=rf"^adam_step: {culprit} "):
        Adam().kernel(*given_arrays, 1)
    for a in arrays:
        assert (a == 1).all()


@pytest.mark.parametrize(
    ("first", "second"), [(a, b) for b in range(5) for a in range(b)], ids=lambda i: _NAMES[i]
)
@pytest.mark.parametrize("offset", [0, 1, 3])
def test_adam_refuses_arrays_that_overlap(first, second, offset):
    shared = np.ones(8, np.float32)
    arrays = [np.ones(4, np.float32) for _ in _NAMES]
    halves = shared[:4], shared[offset : offset + 4]
    for arrays[first], arrays[second] in (halves, halves[::-1]):
        with pytest.raises(
            ValueError, match=f"{_NAMES[second]} shares memory with {_NAMES[first]}"
        ):
            Adam().kernel(*arrays, 1)
        assert (shared == 1).all()
    # Neighbours are no overlap.
    arrays[first], arrays[second] = shared[:4], shared[4:]
    Adam().kernel(*arrays, 1)


@pytest.mark.parametrize("offset", [0, 2])
def test_sgd_refuses_arrays_that_overlap(offset):
    shared, other = np.ones(8, np.float32), np.ones(4, np.float32)
    p, q = shared[:4], shared[offset : offset + 4]
    with pytest.raises(ValueError, match="sgd_step: grad shares memory with param"):
        Sgd().kernel(p, q, None, True)
    with pytest.raises(ValueError, match="sgd_step: momentum_buffer shares memory with param"):
        Sgd(momentum=0.9).kernel(p, other, q, True)
    with pytest.raises(ValueError, match="sgd_step: momentum_buffer shares memory with grad"):
        Sgd(momentum=0.9).kernel(other, p, q, True)
    assert (shared == 1).all()
    assert (other == 1).all()


@pytest.mark.parametrize(
    ("step", "error", "text"),
    [
        (0, ValueError, "adam_step: step must be at least 1, got 0"),
        (-3, ValueError, "adam_step: step must be at least 1, got -3"),
        (1.5, TypeError, "adam_step: step must be an int, got float"),
        (2**70, ValueError, "adam_step: step = .* does not fit into 64 bits"),
    ],
)
def test_adam_refuses_a_bad_step(step, error, text):
    arrays = [np.ones(4, np.float32) for _ in range(4)]
    with pytest.raises(error, match=text):
        replace(Adam(), decay=0.0).kernel(*arrays, None, step)
    for a in arrays:
        assert (a == 1).all()


# ---- sums of squares -----------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 7, 31, 32, 33, 16383, 16385, 100_003])
def test_sum_of_squares(size, isa, dtype):
    x = np.random.default_rng(size).standard_normal(size).astype(dtype)
    exact = float(np.sum((x.astype(np.longdouble) * 0.5) ** 2))
    results = []
    for threads in (1, 2, 3):
        fn.set_num_threads(threads)
        results.append(_core.sum_of_squares([x], 0.5))
    assert results[0] == results[1] == results[2]
    assert results[0] == pytest.approx(exact, rel=1e-14)
    spread = np.zeros((size, 2), dtype)
    spread[:, 0] = x
    assert _core.sum_of_squares([spread[:, 0]], 0.5) == results[0]
    assert _core.sum_of_squares([x[::-1].reshape(1, -1)], 0.5) == pytest.approx(exact, rel=1e-14)


def test_sums_of_squares_in_double(isa):
    big = np.full(5, 3e38, np.float32)
    assert _core.sum_of_squares([big], 1.0) == pytest.approx(5 * float(big[0]) ** 2, rel=1e-14)
    tiny = np.full(40, 1e-40, np.float32)
    assert _core.sum_of_squares([tiny], 1.0) == pytest.approx(40 * float(tiny[0]) ** 2, rel=1e-14)
    assert np.isnan(_core.sum_of_squares([np.array([1, np.nan])], 1.0))
    assert _core.sum_of_squares([np.array([1, -np.inf])], 1.0) == np.inf
    with pytest.raises(TypeError, match="sum_of_squares: input has dtype int64, expected float32"):
        _core.sum_of_squares([np.array([1])], 1.0)
