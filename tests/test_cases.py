"""The named shapes and the oracles that everything else is tested with."""

import itertools
import math

import numpy as np
import pytest

from fusednn.testing import cases, reference
from fusednn.testing.cases import ConvCase, GemmCase, PoolCase, conv

CONV = [case for case in cases.TEST["conv"] if isinstance(case, ConvCase)]
POOL = [*cases.POOL_BENCH, *cases.POOL_TEST]
SMALL_CONV = [case for case in CONV if case.flops("fwd") < 200_000]


def loops(case, x, w, b):
    """The definition of a convolution, index by index."""
    y = np.zeros(case.output)
    channels, outs = case.weight[1], case.out_channels // case.groups
    for n, o, *at in np.ndindex(*case.output):
        total = b[o]
        for c, *tap in np.ndindex(channels, *case.kernel):
            axes = zip(at, tap, case.stride, case.dilation, case.padding, strict=True)
            place = [t * s + k * d - p for t, k, s, d, p in axes]
            if all(0 <= i < size for i, size in zip(place, case.input[2:], strict=True)):
                total += w[(o, c, *tap)] * x[(n, o // outs * channels + c, *place)]
        y[(n, o, *at)] = total
    return y


# ---- cases ---------------------------------------------------------------------------------------


def test_every_op_with_timed_shapes_has_odd_ones_too():
    assert cases.BENCH.keys() <= cases.TEST.keys()


@pytest.mark.parametrize("table", [cases.BENCH, cases.TEST], ids=["bench", "test"])
def test_names_are_unique_and_say_their_op(table):
    for op, group in table.items():
        names = [case.name for case in group]
        assert len(set(names)) == len(names)
        assert {case.op for case in group} == {op}


def test_names():
    assert cases.CONV_BENCH[0].name == "conv 1x3x224x224 O64 k7 s2 g1"
    assert cases.CONV_BENCH[12].name == "conv 16x144x56x56 O144 k3 s1 g144"
    assert cases.POOL_BENCH[1].name == "maxpool 64x32x28x28 k2 s2"
    case = conv((2, 5, 17, 11), 7, (3, 5), stride=(2, 3), padding=(0, 4), dilation=(2, 1))
    assert case.name == "conv 2x5x17x11 O7 k3x5 s2x3 p0x4 d2x1 g1"
    assert cases.pool((1, 1, 6, 7), 1, stride=2, ceil_mode=True).name.endswith("k1 s2 ceil")


def test_work_and_traffic():
    case = conv((1, 64, 56, 56), 64, 3)
    assert case.flops("fwd") == 2 * 64 * 64 * 9 * 56 * 56 == 231_211_008
    assert case.flops("fwdbwd") == 3 * case.flops("fwd")
    x = y = 64 * 56 * 56
    w, b = 64 * 64 * 9, 64
    assert case.bytes("fwd") == 4 * (x + w + b + y)
    # Backward reads grad, input and weight, and writes the gradients of input, weight and bias.
    assert case.bytes("fwdbwd") == 4 * (x + w + b + y) + 4 * (y + x + w + x + w + b)
    grouped = conv((1, 32, 112, 112), 32, 3, groups=32)
    assert grouped.flops("fwd") == 2 * 32 * 112 * 112 * 9
    pooled = cases.pool((64, 32, 28, 28), 2, stride=2)
    x, y = 64 * 32 * 28 * 28, 64 * 32 * 14 * 14
    assert pooled.bytes("fwd", itemsize=8) == 8 * (x + y)
    assert pooled.bytes("fwdbwd") == 8 * (x + y) + 2 * y
    assert GemmCase(2, 3, 4).flops("fwd") == 48
    assert GemmCase(2, 3, 4).bytes("fwd") == 4 * (8 + 12 + 6)


@pytest.mark.parametrize(
    "case", [*cases.CONV_BENCH[:1], *CONV[:8], *POOL[-4:]], ids=lambda c: c.name
)
def test_arrays_fit_the_case_and_repeat(case):
    first, again = case.arrays(np.float64, seed=3), case.arrays(np.float64, seed=3)
    assert first["input"].shape == case.input
    assert first["grad"].shape == case.output
    for name, array in first.items():
        assert array.dtype == np.float64
        assert np.array_equal(array, again[name])
    if first["input"].size:
        assert not np.array_equal(first["input"], case.arrays(np.float64, seed=4)["input"])


@pytest.mark.parametrize("case", POOL, ids=lambda case: case.name)
def test_every_pooling_window_holds_an_element(case):
    """An empty window has no maximum, so such a shape must not be among the good ones."""
    axes = zip(
        case.input[2:], case.output[2:], case.kernel, case.stride, case.padding, case.dilation,
        strict=True,
    )  # fmt: skip
    for size, out, k, s, p, d in axes:
        assert out >= 1
        for t in range(out):
            assert any(0 <= t * s + tap * d - p < size for tap in range(k))


def test_ceil_mode_output_sizes():
    assert cases.pool((1, 1, 6, 7), 1, stride=2, ceil_mode=True).output == (1, 1, 3, 4)
    assert cases.pool((1, 1, 8, 10), 3, 4, padding=0, ceil_mode=True).output == (1, 1, 2, 3)
    assert PoolCase((1, 1, 5), (2,), (2,), (1,), (1,), ceil_mode=True).output == (1, 1, 3)


# ---- oracles -------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", SMALL_CONV, ids=lambda case: case.name)
def test_conv_oracles_agree_with_the_definition(case):
    a = case.arrays(np.float64)
    expected = loops(case, a["input"], a["weight"], a["bias"])
    for function in (reference.conv_forward, reference.naive_conv_forward):
        y = function(a["input"], a["weight"], a["bias"], **case.window)
        assert y.shape == case.output
        np.testing.assert_allclose(y, expected, rtol=1e-12, atol=1e-12)


def test_conv_border_values():
    x, w = np.ones((1, 1, 3, 4)), np.ones((1, 1, 3, 3))
    for function in (reference.conv_forward, reference.naive_conv_forward):
        assert function(x, w, padding=1)[0, 0].tolist() == [
            [4, 6, 6, 4],
            [6, 9, 9, 6],
            [4, 6, 6, 4],
        ]


@pytest.mark.parametrize("case", SMALL_CONV, ids=lambda case: case.name)
def test_conv_backward_is_the_derivative_of_forward(case):
    """Forward is linear in input, weight and bias, so a directional derivative is one forward."""
    a, direction = case.arrays(np.float64), case.arrays(np.float64, seed=1)
    zero_bias = np.zeros(case.out_channels)
    slopes = [
        reference.conv_forward(direction["input"], a["weight"], zero_bias, **case.window),
        reference.conv_forward(a["input"], direction["weight"], zero_bias, **case.window),
        np.broadcast_to(direction["bias"].reshape(-1, *[1] * case.spatial), case.output),
    ]
    for function in (reference.conv_backward, reference.naive_conv_backward):
        gradients = function(a["grad"], a["input"], a["weight"], **case.window)
        for name, slope, gradient in zip(
            ("input", "weight", "bias"), slopes, gradients, strict=True
        ):
            assert gradient.shape == a[name].shape
            left, right = np.sum(gradient * direction[name]), np.sum(a["grad"] * slope)
            assert left == pytest.approx(right, rel=1e-10, abs=1e-10)


@pytest.mark.parametrize(
    "case", [c for c in SMALL_CONV if c.groups == 1], ids=lambda case: case.name
)
def test_columns_are_a_convolution_waiting_for_its_product(case):
    a = case.arrays(np.float64)
    window = {k: v for k, v in case.window.items() if k != "groups"}
    columns = reference.columns(a["input"], case.kernel, **window)
    y = a["weight"].reshape(case.out_channels, math.prod(case.weight[1:])) @ columns
    expected = reference.conv_forward(a["input"], a["weight"], **window)
    np.testing.assert_allclose(y.reshape(case.output), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("shape", [*itertools.product((0, 1, 3), (0, 1, 4), (0, 1, 5))])
def test_dense_oracles(shape):
    m, n, k = shape
    a = GemmCase(m, n, k).arrays(np.float64)
    expected = np.einsum("ik,kj->ij", a["a"], a["b"])
    np.testing.assert_allclose(reference.gemm(a["a"], a["b"]), expected, atol=1e-12)
    np.testing.assert_allclose(reference.naive_gemm(a["a"], a["b"]), expected, atol=1e-12)
    weight, bias = a["b"].T.copy(), np.arange(float(n))
    for function in (reference.linear_forward, reference.naive_linear_forward):
        np.testing.assert_allclose(function(a["a"], weight, bias), expected + bias, atol=1e-12)
    for function in (reference.linear_backward, reference.naive_linear_backward):
        dx, dw, db = function(a["grad"], a["a"], weight)
        np.testing.assert_allclose(dx, a["grad"] @ weight, atol=1e-12)
        np.testing.assert_allclose(dw, a["grad"].T @ a["a"], atol=1e-12)
        np.testing.assert_allclose(db, a["grad"].sum(axis=0), atol=1e-12)


def test_oracles_are_float64_and_naive_versions_keep_the_precision():
    case = conv((2, 3, 7, 7), 4, 3)
    a = case.arrays(np.float32)
    assert reference.conv_forward(a["input"], a["weight"], a["bias"]).dtype == np.float64
    naive = reference.naive_conv_backward(a["grad"], a["input"], a["weight"], **case.window)
    exact = reference.conv_backward(a["grad"], a["input"], a["weight"], **case.window)
    for rough, fine in zip(naive, exact, strict=True):
        assert (rough.dtype, fine.dtype) == (np.float32, np.float64)
        assert 0 < reference.relative_error(rough, fine) < 1e-5


def test_naive_sum_adds_first_to_last():
    """1 + 2**-24 rounds back to 1 in float32 however often; a pairwise sum would keep some."""
    rows = np.full((1, 1025), 2.0**-24, np.float32)
    rows[0, 0] = 1
    assert reference.naive_sum(rows)[0] == 1
    assert reference.naive_sum(rows[:, :0]).tolist() == [0]


# ---- how close is close --------------------------------------------------------------------------


def test_accuracy_bound_is_twice_the_naive_error_and_two_ulp():
    exact = np.array([1.0, 2.0, 4.0])
    naive = np.array([1.0, 2.0, 4.0 + 2.0**-20], np.float32)
    ulp = 2.0**-21  # of 4 in float32
    bound = 2 * 2.0**-20 + 2 * ulp
    assert reference.error_bound(exact, naive) == bound
    inside = np.add(exact, [0, 0, bound]).astype(np.float32)
    reference.assert_accurate(inside, exact, naive)
    outside = np.add(exact, [0, bound + ulp, 0]).astype(np.float32)
    with pytest.raises(AssertionError, match=r"weight\[1\] is .* expected .*2\.0.* off by"):
        reference.assert_accurate(outside, exact, naive, what="weight")


@pytest.mark.parametrize(
    ("actual", "match"),
    [
        (np.zeros((2, 3), np.float32), r"float32 \(2, 3\), expected float32 \(3,\)"),
        (np.zeros(3), r"float64 \(3,\), expected float32"),
        (np.array([np.nan, 0, 0], np.float32), r"off by nan"),
        (np.array([0, 0, np.inf], np.float32), r"off by inf"),
    ],
)
def test_accuracy_refuses(actual, match):
    with pytest.raises(AssertionError, match=match):
        reference.assert_accurate(actual, np.zeros(3), np.zeros(3, np.float32))


def test_accuracy_wants_nan_and_infinity_where_the_naive_version_has_them():
    naive = np.array([np.nan, np.inf, 1], np.float32)
    exact = np.array([np.nan, np.inf, 1.0])
    reference.assert_accurate(naive.copy(), exact, naive)
    for wrong in ([1, np.inf, 1], [np.nan, -np.inf, 1], [np.nan, 3e38, 1]):
        with pytest.raises(AssertionError, match="NaN or infinity"):
            reference.assert_accurate(np.array(wrong, np.float32), exact, naive)


def test_accuracy_of_nothing():
    empty = np.zeros((0, 3), np.float32)
    reference.assert_accurate(empty, empty.astype(np.float64), empty)
    assert reference.relative_error(empty, empty) == 0
