"""Smooth and piecewise activations: values and gradients on every ISA against float64, limits."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import _core

EXACT = np.longdouble


def _sigmoid(x: Any) -> Any:
    return np.where(x < 0, np.exp(np.minimum(x, 0)), 1) / (1 + np.exp(-abs(x)))


def _normal(x: Any) -> Any:
    """P(Z <= x), its tail by erfc: element by element, since NumPy has none."""
    a = np.ravel(-x / np.sqrt(EXACT(2)))
    near = a.astype(np.float64)
    flat = np.array([math.erfc(v) for v in near], EXACT)
    # What rounding the argument to float64 changed: it counts in the tail.
    flat -= 2 / np.sqrt(EXACT(np.pi)) * np.exp(-(a**2)) * np.where(np.isfinite(a), a - near, 0)
    return (flat / 2).reshape(x.shape)


def _tanh_gelu(x: Any) -> Any:
    return _sigmoid(2 * np.sqrt(2 / EXACT(np.pi)) * (x + EXACT(0.044715) * x**3))


def _mish(x: Any) -> Any:
    return np.tanh(np.log1p(np.exp(np.minimum(x, 60))) + np.maximum(x - 60, 0))


# Name, arguments, the function and its derivative.
PHI = 1 / np.sqrt(2 * EXACT(np.pi))
CASES: list[tuple[str, tuple[Any, ...], Any, Any]] = [
    ("sigmoid", (), _sigmoid, lambda x: _sigmoid(x) * _sigmoid(-x)),
    ("tanh", (), np.tanh, lambda x: 1 / np.cosh(np.clip(x, -300, 300)) ** 2),
    ("gelu", (), lambda x: x * _normal(x), lambda x: _normal(x) + x * np.exp(-x * x / 2) * PHI),
    ("gelu", ("tanh",), lambda x: x * _tanh_gelu(x),
     lambda x: _tanh_gelu(x) + x * _tanh_gelu(x) * (1 - _tanh_gelu(x))
     * 2 * np.sqrt(2 / EXACT(np.pi)) * (1 + 3 * EXACT(0.044715) * x * x)),
    ("silu", (), lambda x: x * _sigmoid(x),
     lambda x: _sigmoid(x) * (1 + x * _sigmoid(-x))),
    ("mish", (), lambda x: x * _mish(x),
     lambda x: _mish(x) + x * (1 - _mish(x) ** 2) * _sigmoid(x)),
    ("leaky_relu", (0.01,), lambda x: np.where(x > 0, x, x * EXACT(0.01)),
     lambda x: np.where(x > 0, 1, EXACT(0.01))),
    ("elu", (1.5,), lambda x: np.where(x > 0, x, 1.5 * np.expm1(np.minimum(x, 0))),
     lambda x: np.where(x > 0, 1, 1.5 * np.exp(np.minimum(x, 0)))),
    ("selu", (), lambda x: 1.0507009873554805 * np.where(
        x > 0, x, 1.6732632423543772 * np.expm1(np.minimum(x, 0))),
     lambda x: 1.0507009873554805 * np.where(
        x > 0, 1, 1.6732632423543772 * np.exp(np.minimum(x, 0)))),
    ("softplus", (2.0, 20.0),
     lambda x: np.where(x > 10, x, np.maximum(x, 0) + np.log1p(np.exp(-2 * abs(x))) / 2),
     lambda x: np.where(x > 10, 1, _sigmoid(2 * x))),
    ("logsigmoid", (), lambda x: np.minimum(x, 0) - np.log1p(np.exp(-abs(x))),
     lambda x: _sigmoid(-x)),
    ("hardsigmoid", (), lambda x: np.clip(x / 6 + 0.5, 0, 1),
     lambda x: np.where(abs(x) < 3, EXACT(1) / 6, 0)),
    ("hardswish", (), lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
     lambda x: np.where(x >= 3, 1, np.where(x > -3, x / 3 + 0.5, 0))),
    ("hardtanh", (-0.5, 2.0), lambda x: np.clip(x, -0.5, 2), lambda x: (x > -0.5) & (x < 2)),
    ("relu6", (), lambda x: np.clip(x, 0, 6), lambda x: (x > 0) & (x < 6)),
]  # fmt: skip
IDS = [f"{name}{len(arguments)}" for name, arguments, _, _ in CASES]
# Vectors have 2 to 16 lanes, bursts 2 or 4 vectors, tasks 16384 elements.
SIZES = (0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 33, 63, 65, 129)


def gradient(name: str, arguments: tuple[Any, ...], x: Any, grad: Any) -> Any:
    t = fn.tensor(x, requires_grad=True)
    getattr(F, name)(t, *arguments).backward(grad)
    return t.grad.numpy()


@pytest.mark.parametrize(("name", "arguments", "f", "slope"), CASES, ids=IDS)
def test_values_and_gradients(name, arguments, f, slope, isa, dtype):
    """A few units in the last place of the result, or of the largest term it is made of."""
    eps = float(np.finfo(dtype).eps)
    # exp and tanh are right to 3 units; erfc of the C library is a float64.
    loose = 8 * eps if dtype == "float32" else 16 * eps
    for size in (*SIZES, *(() if name == "gelu" else (16385,))):
        rng = np.random.default_rng(size)
        x = (rng.standard_normal(size) * 4).astype(dtype)
        grad = rng.standard_normal(size).astype(dtype)
        y = getattr(F, name)(x, *arguments)
        assert y.dtype == x.dtype
        exact = f(x.astype(EXACT))
        np.testing.assert_allclose(y, exact, rtol=loose, atol=loose)
        dx = gradient(name, arguments, x, grad)
        exact = grad * slope(x.astype(EXACT))
        np.testing.assert_allclose(dx, exact, rtol=loose, atol=loose * 2)


@pytest.mark.parametrize("name", ["gelu", "silu", "sigmoid", "softplus", "elu", "logsigmoid"])
def test_tails_keep_their_digits(name, isa, dtype):
    """Far out the result is tiny, and right relative to itself."""
    f = next(case[2] for case in CASES if case[0] == name)
    if name == "softplus":
        f = lambda x: np.log1p(np.exp(x))  # noqa: E731
    if name == "elu":
        f = np.expm1
    x = np.linspace(-12, -0.01, 1001).astype(dtype)
    exact = f(x.astype(EXACT))
    np.testing.assert_allclose(getattr(F, name)(x), exact, rtol=12 * np.finfo(dtype).eps)


SPECIAL = {
    # of -inf, inf, -0, and the slopes there at -inf, inf
    "sigmoid": (0, 1, 0.5, 0, 0), "tanh": (-1, 1, -0.0, 0, 0), "gelu": (-0.0, np.inf, -0.0, 0, 1),
    "silu": (-0.0, np.inf, -0.0, 0, 1), "mish": (-0.0, np.inf, -0.0, 0, 1),
    "leaky_relu": (-np.inf, np.inf, -0.0, 0.01, 1), "elu": (-1, np.inf, 0, 0, 1),
    "softplus": (0, np.inf, math.log(2), 0, 1), "logsigmoid": (-np.inf, 0, -math.log(2), 1, 0),
    "hardsigmoid": (0, 1, 0.5, 0, 0), "hardswish": (-0.0, np.inf, -0.0, 0, 1),
    "hardtanh": (-1, 1, 0, 0, 0), "selu": (-1.7580993408473766, np.inf, 0, 0, 1.0507009873554805),
}  # fmt: skip


@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(name, isa, dtype):
    low, high, zero, slope_low, slope_high = SPECIAL[name]
    big = np.finfo(dtype).max
    # 31 of each: whole vectors and single lanes.
    x = np.array([-np.inf, np.inf, -0.0, np.nan, big] * 31, dtype)
    y = getattr(F, name)(x).reshape(31, 5)
    expected = np.array([low, high, zero, np.nan], dtype)
    np.testing.assert_allclose(y[:, :4], np.broadcast_to(expected, (31, 4)), rtol=1e-6)
    assert not np.isnan(y[:, 4]).any()
    dx = gradient(name, (), x, np.ones_like(x)).reshape(31, 5)
    np.testing.assert_allclose(dx[:, 0], slope_low, rtol=1e-6, atol=1e-30)
    np.testing.assert_allclose(dx[:, 1], slope_high, rtol=1e-6, atol=1e-30)
    np.testing.assert_allclose(dx[:, 4], slope_high, rtol=1e-6, atol=1e-30)


def test_gelu_with_tanh_has_limits(dtype):
    x = np.array([-np.inf, np.inf, -1e30, 1e30, np.nan], dtype)
    np.testing.assert_array_equal(F.gelu(x, "tanh"), [0, np.inf, 0, x[3], np.nan])
    dx = gradient("gelu", ("tanh",), x, np.ones_like(x))
    np.testing.assert_array_equal(dx, [0, 1, 0, 1, np.nan])


# ---- prelu ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "count"),
    [((5,), 1), ((3, 4), 4), ((3, 4), 1), ((2, 3, 5), 3), ((2, 3, 16), 3), ((1, 17), 17),
     ((4, 33, 7, 7), 33), ((0, 3, 2), 3), ((2, 1, 40000), 1), ((), 1), ((2000, 3), 3)],
)  # fmt: skip
def test_prelu(shape, count, isa, dtype):
    rng = np.random.default_rng(0)
    x, grad = (np.asarray(rng.standard_normal(shape), dtype) for _ in range(2))
    w = rng.standard_normal(count).astype(dtype)
    a, b = fn.tensor(x, requires_grad=True), fn.tensor(w, requires_grad=True)
    y = F.prelu(a, b)
    y.backward(grad)
    slope = w.reshape(1, -1, *(1,) * (len(shape) - 2)) if count > 1 else w.reshape(())
    expected = np.where(x > 0, x, x * slope)
    np.testing.assert_array_equal(y.numpy(), expected)
    np.testing.assert_array_equal(F.prelu(x, w), expected)
    np.testing.assert_array_equal(a.grad.numpy(), np.where(x > 0, grad, grad * slope))
    part = np.where(x > 0, 0, x).astype(EXACT) * grad
    axes = tuple(i for i in range(x.ndim) if count == 1 or i != 1)
    np.testing.assert_allclose(
        b.grad.numpy(), part.sum(axes).reshape(count), rtol=4 * np.finfo(dtype).eps,
        atol=np.abs(part).sum() * np.finfo(dtype).eps,
    )  # fmt: skip


def test_threads_do_not_change_a_bit(isa, dtype):
    rng = np.random.default_rng(0)
    x, grad = (rng.standard_normal((40, 30, 803)).astype(dtype) for _ in range(2))
    w = rng.standard_normal(30).astype(dtype)

    def prelu() -> list[bytes]:
        a, b = fn.tensor(x, requires_grad=True), fn.tensor(w, requires_grad=True)
        y = F.prelu(a, b)
        y.backward(grad)
        return [one.numpy().tobytes() for one in (y, a.grad, b.grad)]

    def gelu() -> list[bytes]:
        return [F.gelu(x).tobytes(), gradient("gelu", (), x, grad).tobytes()]

    for call in (prelu, gelu):
        results = []
        for threads in (1, 2, 3):
            fn.set_num_threads(threads)
            results.append(call())
        assert results[0] == results[1] == results[2]


@pytest.mark.parametrize(("name", "arguments", "f", "slope"), CASES, ids=IDS)
def test_gradients_by_differences(name, arguments, f, slope):
    x = np.random.default_rng(1).standard_normal(40) * 2
    x = x[(abs(x % 0.5) > 1e-3) & (abs(x % 0.5 - 0.5) > 1e-3)]  # away from the corners
    assert fn.testing.gradcheck(lambda x: getattr(F, name)(x, *arguments), x)


def test_shapes_and_layouts(dtype):
    x = np.random.default_rng(2).standard_normal((4, 5, 6)).astype(dtype)
    for call in (F.gelu, F.silu, lambda x: F.prelu(x, np.ones(5, x.dtype) / 4)):
        expected = call(x)
        views = (
            np.asfortranarray(x), x[::-1][::-1], x.astype(np.dtype(dtype).newbyteorder(">")),
            np.repeat(x, 2, 2)[..., ::2],
        )  # fmt: skip
        for view in views:
            np.testing.assert_array_equal(call(view), expected)
    assert F.gelu(np.array(1.0)).shape == ()


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: F.gelu(np.arange(3)), TypeError,
         "gelu: input has dtype int64, expected float32 or float64"),
        (lambda: F.silu([1.0]), TypeError,
         "silu: input must be a Tensor or a NumPy array, got list"),
        (lambda: F.gelu(np.ones(2), "fast"), ValueError, "gelu: approximate='fast', expected"),
        (lambda: F.hardtanh(np.ones(2), 2.0, 1.0), ValueError, "hardtanh: min_val=2.0 must be"),
        (lambda: F.prelu(np.ones((2, 3)), np.ones(2)), ValueError,
         "prelu: weight has shape (2,), expected (1,) or (3,) for input of shape (2, 3)"),
        (lambda: F.prelu(np.ones((2, 3)), np.ones(3, np.float32)), TypeError,
         "prelu: weight has dtype float32, expected float64 like input"),
        (lambda: _core.unary_forward("x", "y", np.ones(2), 0.0, 0.0), ValueError,
         "unary: 'y' is no function"),
        (lambda: _core.unary_backward("gelu", "gelu", np.ones(2), np.ones(3), 0.0, 0.0),
         ValueError, "gelu: grad has shape (2,), expected (3,)"),
    ],
)  # fmt: skip
def test_refused_calls(call, error, text):
    with pytest.raises(error, match=re.escape(text)):
        call()


@pytest.mark.parametrize(("name", "arguments", "f", "slope"), CASES, ids=IDS)
def test_against_torch(name, arguments, f, slope):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra 'peers')")
    peer = getattr(torch.nn.functional, name)
    x = np.linspace(-30, 30, 1001).astype(np.float32)
    t = torch.tensor(x, requires_grad=True)
    y = peer(t, approximate="tanh") if arguments == ("tanh",) else peer(t, *arguments)
    y.sum().backward()
    close = {"rtol": 1e-5, "atol": 2e-6}
    np.testing.assert_allclose(getattr(F, name)(x, *arguments), y.detach().numpy(), **close)
    dx = gradient(name, arguments, x, np.ones_like(x))
    np.testing.assert_allclose(dx, t.grad.numpy(), **close)
