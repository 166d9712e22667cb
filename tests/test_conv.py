"""Convolution: values and gradients on every ISA, bits at any thread count, refused calls."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fusednn as fn
import fusednn.functional as F
from fusednn import _core
from fusednn.testing import cases, reference

ALGORITHMS = ("implicit_gemm", "winograd", "direct")


def _applies(case, algorithm):
    if algorithm == "winograd":
        # Not where a plain sum is so short that it has no error to speak of.
        return (
            case.kernel in ((3, 3), (5, 5))
            and case.input[1] >= 2 * case.groups
            and all(n >= k for n, k in zip(case.input[2:], case.kernel, strict=True))
            and {*case.stride, *case.dilation} == {1}
            and all(p < k for p, k in zip(case.padding, case.kernel, strict=True))
        )
    if algorithm == "direct":
        unit = set(case.stride[-2:]) == {1}
        return (
            case.groups == case.input[1] > 1
            or (case.input[1] <= 8 * case.groups and case.spatial < 3)
            or (case.input[1] <= 64 and case.out_channels <= 16 and case.spatial < 3)
            or (case.out_channels <= 4 * case.groups and unit)
        )
    return True


def _run(case, arrays, algorithm="auto"):
    """Forward and the three gradients of a case, straight from the kernels."""
    x, w, b, dy = (arrays[name] for name in ("input", "weight", "bias", "grad"))
    window = (*case.window.values(), algorithm)
    return (
        _core.conv_forward(case.spatial, x, w, b, *window),
        _core.conv_backward_input(case.spatial, dy, w, x.shape, *window),
        _core.conv_backward_weight(case.spatial, dy, x, w.shape, *window),
        _core.conv_backward_bias(case.spatial, dy),
    )


NAMES = ("output", "grad input", "grad weight", "grad bias")


def _check(case, dtype, algorithm, seed=0):
    """Compares with the oracle; small results over several draws, so that luck evens out."""
    pooled = {name: ([], [], []) for name in NAMES}
    smallest = min(case.out_channels, case.input[1])
    for draw in range(max(1, min(32, 128 // max(smallest, 1)))):
        arrays = case.arrays(dtype, seed + draw)
        x, w, b, dy = (arrays[name] for name in ("input", "weight", "bias", "grad"))
        results = _run(case, arrays, algorithm)
        exact = (
            reference.conv_forward(x, w, b, **case.window),
            *reference.conv_backward(dy, x, w, **case.window),
        )
        naive = (
            reference.naive_conv_forward(x, w, b, **case.window),
            *reference.naive_conv_backward(dy, x, w, **case.window),
        )
        for name, *three in zip(NAMES, results, exact, naive, strict=True):
            for pool, array in zip(pooled[name], three, strict=True):
                pool.append(array)
    for name, (results, exact, naive) in pooled.items():
        stacked = (np.stack(arrays) for arrays in (results, exact, naive))
        factor = 2
        if algorithm == "winograd" and name in ("output", "grad input"):
            # What the transforms round off does not shrink with the sums: only sums over 16
            # channels and more make "auto" choose them, and have the stated bound.
            factor = 16 if case.input[1] // case.groups >= 16 else 64
        reference.assert_accurate(*stacked, factor=factor, what=name)


@pytest.mark.parametrize(
    ("case", "algorithm"),
    [
        pytest.param(case, algorithm, id=f"{case.name} {algorithm}")
        for case in cases.TEST["conv"]
        for algorithm in ALGORITHMS
        if _applies(case, algorithm)
    ],
)
def test_values_and_gradients(case, algorithm, isa, dtype):
    _check(case, dtype, algorithm)


@st.composite
def _random_case(draw):
    axes = draw(st.integers(1, 3))
    groups = draw(st.sampled_from([1, 1, 1, 2, 3]))
    channels = groups * draw(st.integers(1, 10))
    outputs = groups * draw(st.integers(1, 17))
    several = st.tuples(*[st.integers(1, 4)] * axes)
    kernel, stride, dilation = draw(several), draw(several), draw(several)
    padding = draw(st.tuples(*[st.integers(0, 5)] * axes))
    size = tuple(
        max(1, (k - 1) * d + 1 - 2 * p) + draw(st.integers(0, (40, 14, 6)[axes - 1]))
        for k, d, p in zip(kernel, dilation, padding, strict=True)
    )
    return cases.conv(
        (draw(st.integers(0, 3)), channels, *size),
        outputs, kernel, stride, padding, dilation, groups,
    )  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(_random_case(), st.sampled_from(_core.usable_isas()), st.integers(0, 2**31))
def test_random_shapes(case, isa_name, seed):
    with fn.testing.isa(isa_name):
        for algorithm in ALGORITHMS:
            if _applies(case, algorithm):
                _check(case, "float32", algorithm, seed)


@pytest.mark.parametrize(
    "case",
    [
        cases.conv((4, 32, 28, 28), 32, 3),
        cases.conv((1, 64, 14, 14), 256, 3),
        cases.conv((64, 1, 28, 28), 8, 5),
        cases.conv((2, 16, 30, 30), 24, 3, stride=2),
        cases.conv((2, 48, 40, 40), 48, 3, groups=48),
        cases.conv((8, 64, 33, 33), 64, 1),
        cases.conv((2, 64, 2000), 64, 5),
    ],
    ids=lambda case: case.name,
)
def test_same_bits_at_any_thread_count(case, isa, dtype):
    arrays = case.arrays(dtype)
    fn.set_num_threads(1)
    single = _run(case, arrays)
    for threads in (2, 3):
        fn.set_num_threads(threads)
        for _ in range(2):
            for one, many in zip(single, _run(case, arrays), strict=True):
                np.testing.assert_array_equal(one, many)


@pytest.mark.parametrize("case", cases.BENCH["conv"], ids=lambda case: case.name)
def test_benchmarked_shapes(case):
    """The timed shapes are right too (one image, against float64)."""
    case = cases.conv(
        (1, *case.input[1:]), case.out_channels, case.kernel, case.stride, case.padding,
        case.dilation, case.groups,
    )  # fmt: skip
    arrays = case.arrays(np.float32)
    x, w, b, dy = (arrays[name] for name in ("input", "weight", "bias", "grad"))
    results = _run(case, arrays)
    exact = (
        reference.conv_forward(x, w, b, **case.window),
        *reference.conv_backward(dy, x, w, **case.window),
    )
    # Rounding errors of a sum grow with the root of its length; 2e-7 is a little over half an ulp
    # of 1 for each addition. Winograd's transforms cost a factor of 16 at most.
    transformed = F.conv_plan(case.input, case.weight, **case.window)[0] == "winograd"
    for result, truth, length in zip(
        results, exact, (w[0].size, w.size // w.shape[1], dy[:, 0].size, dy[:, 0].size), strict=True
    ):
        bound = 2e-7 * length**0.5 * np.abs(truth).max() + 1e-6
        assert reference.max_error(result, truth) <= bound * (16 if transformed else 1)


@pytest.mark.parametrize("view", ["strided", "reversed", "transposed", "big-endian", "read-only"])
def test_any_view_is_read(view, dtype):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 3, 9, 8)).astype(dtype)
    w = rng.standard_normal((4, 3, 3, 3)).astype(dtype)
    expected = F.conv2d(x, w, padding=1)

    def as_view(a):
        if view == "strided":
            wide = np.full((*a.shape[:-1], 2 * a.shape[-1]), np.nan, dtype)
            wide[..., ::2] = a
            return wide[..., ::2]
        if view == "reversed":
            return np.ascontiguousarray(a[:, ::-1, :, ::-1])[:, ::-1, :, ::-1]
        if view == "transposed":
            return np.ascontiguousarray(a.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
        if view == "big-endian":
            return a.astype(a.dtype.newbyteorder(">"))
        a = a.copy()
        a.flags.writeable = False
        return a

    before = x.copy(), w.copy()
    np.testing.assert_array_equal(F.conv2d(as_view(x), as_view(w), padding=1), expected)
    np.testing.assert_array_equal(x, before[0])
    np.testing.assert_array_equal(w, before[1])


def test_stride_0_input_needs_no_memory_for_im2col():
    """One element seen as 1.6 million, and an im2col matrix of 20 million."""
    x = np.broadcast_to(np.float32(1), (1, 1, 8, 200_000))
    y = F.conv2d(x, np.ones((1, 1, 7, 7), np.float32))
    assert y.shape == (1, 1, 2, 199_994)
    assert (y == 49).all()


def test_unbatched_input():
    rng = np.random.default_rng(0)
    x, w = rng.standard_normal((3, 7, 7)), rng.standard_normal((2, 3, 3, 3))
    np.testing.assert_array_equal(F.conv2d(x, w), F.conv2d(x[None], w)[0])


def test_worked_examples():
    """The numbers that an introductory lecture works out by hand."""
    x = np.array([0.0, 0, 0, 1, 0, 1, 1, 1, 0, 0])[None, None]
    y = F.conv1d(x, np.array([[[1.0, -1, 1]]]))
    assert y[0, 0].tolist() == [0, 1, -1, 2, 0, 1, 0, 1]
    image = np.array(
        [[1, 1, 1, 0, 0], [0, 1, 1, 1, 0], [0, 0, 1, 1, 1], [0, 0, 1, 1, 0], [0, 1, 1, 0, 0]], float
    )
    kernel = np.array([[1, 0, 1], [0, 1, 0], [1, 0, 1]], float)
    y = F.conv2d(image[None, None], kernel[None, None])
    assert y[0, 0].tolist() == [[4, 3, 4], [2, 4, 3], [2, 3, 4]]
    assert sum(p.numpy().size for p in fn.nn.Conv2d(3, 1, 3, bias=False).parameters()) == 27


@pytest.mark.parametrize(
    ("padding", "expected"),
    [
        (1, [[4, 6, 6, 4], [6, 9, 9, 6], [4, 6, 6, 4]]),
        ((1, 0), [[6, 6], [9, 9], [6, 6]]),
        ((0, 1), [[6, 9, 9, 6]]),
    ],
)
def test_borders_of_a_wide_image(padding, expected, dtype):
    y = F.conv2d(np.ones((1, 1, 3, 4), dtype), np.ones((1, 1, 3, 3), dtype), padding=padding)
    assert y[0, 0].tolist() == expected


def test_empty_batches_and_channels():
    x = fn.tensor(np.zeros((0, 3, 5, 5), np.float32), requires_grad=True)
    w = fn.tensor(np.ones((4, 3, 3, 3), np.float32), requires_grad=True)
    b = fn.tensor(np.ones(4, np.float32), requires_grad=True)
    y = F.conv2d(x, w, b)
    assert y.shape == (0, 4, 3, 3)
    y.sum().backward()
    assert x.grad.shape == (0, 3, 5, 5)
    assert not w.grad.numpy().any()
    assert not b.grad.numpy().any()

    bias = np.arange(4, dtype=np.float32)
    y = F.conv2d(np.zeros((2, 0, 5, 5), np.float32), np.zeros((4, 0, 3, 3), np.float32), bias)
    np.testing.assert_array_equal(y, np.broadcast_to(bias[:, None, None], (2, 4, 3, 3)))

    y = F.conv1d(np.zeros((1, 1, 0)), np.ones((1, 1, 3)), np.array([5.0]), padding=2)
    assert y.tolist() == [[[5, 5]]]


def test_nan_and_infinity_stay_where_they_are(isa):
    rng = np.random.default_rng(0)
    w = np.abs(rng.standard_normal((16, 16, 3, 3)).astype(np.float32)) + 0.1
    for value in (np.nan, np.inf):
        x = rng.standard_normal((1, 16, 20, 20)).astype(np.float32)
        x[0, 3, 7, 9] = value
        y = F.conv2d(x, w, padding=1)
        touched = np.zeros((20, 20), bool)
        touched[6:9, 8:11] = True
        assert np.isfinite(y[0][:, ~touched]).all()
        same = np.isnan(y) if np.isnan(value) else y == value
        assert same[0][:, touched].all()


def test_the_callers_float_mode_is_left_alone():
    """Denormals are flushed inside the sums only: afterwards they still exist."""
    x = np.full((1, 8, 16, 16), 1e-20, np.float32)
    F.conv2d(x, np.full((8, 8, 3, 3), 1e-20, np.float32))
    assert np.float32(1e-40) * np.float32(1) == np.float32(1e-40)
    assert F.relu(np.array([1e-40], np.float32))[0] == np.float32(1e-40)


@pytest.mark.parametrize("op", [F.conv1d, F.conv2d, F.conv3d])
def test_gradcheck(op):
    rng = np.random.default_rng(0)
    axes = int(op.__name__[4])
    x = rng.standard_normal((2, 4, *(5, 6, 7)[:axes]))
    w = rng.standard_normal((6, 2, *(3, 2, 3)[:axes]))
    b = rng.standard_normal(6)
    assert fn.testing.gradcheck(
        lambda x, w, b: op(x, w, b, stride=2, padding=2, dilation=2, groups=2), (x, w, b)
    )


_X = np.ones((1, 3, 4, 4), np.float32)
_W = np.ones((5, 4, 3, 3), np.float32)
_ONE = np.ones((1, 1, 4, 4), np.float32), np.ones((1, 1, 1, 1), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: F.conv2d(_X, _W), ValueError,
         ["conv2d", "weight expects 4", "got 3", "(1, 3, 4, 4)", "(5, 4, 3, 3)", "groups = 1"]),
        (lambda: F.conv2d(np.ones((5, 3, 1, 4, 4), np.float32), _W), ValueError,
         ["conv2d", "input", "(5, 3, 1, 4, 4)", "(N, C, H, W)"]),
        (lambda: F.conv2d(_X, np.ones((5, 3, 3), np.float32)), ValueError,
         ["conv2d", "weight", "(5, 3, 3)"]),
        (lambda: F.conv2d(*_ONE, stride=0), ValueError,
         ["conv2d", "stride", "at least 1", "got 0"]),
        (lambda: F.conv2d(*_ONE, algorithm="fft"), ValueError,
         ["conv2d", "algorithm", "'fft'", "'winograd'"]),
        (lambda: F.conv2d(*_ONE, algorithm="winograd"), ValueError,
         ["conv2d", "winograd", "3 x 3"]),
        (lambda: F.conv2d(np.ones((1, 9, 3, 3)), np.ones((17, 9, 1, 1)), algorithm="direct"),
         ValueError, ["conv2d", "direct", "9 input and 17 output channels in 1 groups"]),
        (lambda: F.conv2d(np.ones((1, 65, 3, 3)), np.ones((5, 65, 1, 1)), algorithm="direct"),
         ValueError, ["conv2d", "direct", "64 for up to 16", "65 input and 5 output channels"]),
        (lambda: F.conv2d(*_ONE, stride=(1, -1)), ValueError, ["conv2d", "stride", "(1, -1)"]),
        (lambda: F.conv2d(*_ONE, dilation=0), ValueError, ["conv2d", "dilation", "got 0"]),
        (lambda: F.conv2d(*_ONE, groups=0), ValueError, ["conv2d", "groups", "got 0"]),
        (lambda: F.conv2d(*_ONE, groups=-2), ValueError, ["conv2d", "groups", "got -2"]),
        (lambda: F.conv2d(*_ONE, padding=-1), ValueError, ["conv2d", "padding", "got -1"]),
        (lambda: F.conv2d(*_ONE, padding=(1, 2, 3)), ValueError,
         ["conv2d", "padding", "(1, 2, 3)"]),
        (lambda: F.conv2d(*_ONE, stride=1.5), TypeError, ["conv2d", "stride", "float"]),
        (lambda: F.conv2d(*_ONE, np.ones(2, np.float32)), ValueError,
         ["conv2d", "bias", "(2,)", "(1,)"]),
        (lambda: F.conv2d(_X, np.ones((6, 1, 3, 3), np.float32), groups=2), ValueError,
         ["conv2d", "3 channels", "groups = 2"]),
        (lambda: F.conv2d(np.ones((1, 4, 4, 4), np.float32), np.ones((5, 2, 3, 3), np.float32),
                          groups=2), ValueError, ["conv2d", "5 output channels", "groups = 2"]),
        (lambda: F.conv1d(np.ones((1, 1, 10)), np.ones((1, 1, 2)), dilation=20), ValueError,
         ["conv1d", "L = 10", "kernel 2", "dilation 20", "effective kernel 21", "padding 0"]),
        (lambda: F.conv1d(np.ones((1, 1, 10)), np.ones((1, 1, 0))), ValueError,
         ["conv1d", "(1, 1, 0)", "at least 1"]),
        (lambda: F.conv1d(np.ones((1, 1, 4)), np.ones((1, 1, 2)), dilation=2**62), ValueError,
         ["conv1d"]),
        (lambda: F.conv1d(np.ones((1, 1, 4)), np.ones((1, 1, 2)), padding=2**62), ValueError,
         ["conv1d", "overflow"]),
        (lambda: F.conv1d(np.ones((1, 1, 4)), np.ones((1, 1, 2)), stride=10**30), ValueError,
         ["conv1d", "stride", "64 bits"]),
        (lambda: F.conv2d(_X.astype(np.float64), np.ones((5, 3, 3, 3), np.float32)), TypeError,
         ["conv2d", "weight", "float32", "float64"]),
        (lambda: F.conv2d(_X.astype(np.int64), np.ones((5, 3, 3, 3), np.float32)), TypeError,
         ["conv2d", "input", "int64"]),
        (lambda: F.conv2d(_X.astype(np.float16), np.ones((5, 3, 3, 3), np.float16)), TypeError,
         ["conv2d", "input", "float16"]),
        (lambda: F.conv2d(_X.astype(object), np.ones((5, 3, 3, 3), np.float32)), TypeError,
         ["conv2d", "input", "object"]),
        (lambda: F.conv2d([[1.0]], np.ones((5, 3, 3, 3), np.float32)), TypeError,
         ["conv2d", "input", "list"]),
    ],
)  # fmt: skip
def test_refused_calls_say_what_is_wrong(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_against_torch():
    torch = pytest.importorskip("torch", reason="torch is not installed (extra 'peers')")
    rng = np.random.default_rng(0)
    x, w, b = (
        rng.standard_normal(shape).astype(np.float32)
        for shape in ((2, 6, 15, 14), (8, 3, 3, 5), (8,))
    )
    window = {"stride": (2, 1), "padding": (1, 3), "dilation": (1, 2), "groups": 2}
    ours = [fn.tensor(a, requires_grad=True) for a in (x, w, b)]
    peers = [torch.tensor(a, requires_grad=True) for a in (x, w, b)]
    y, y_peer = F.conv2d(*ours, **window), torch.nn.functional.conv2d(*peers, **window)
    np.testing.assert_allclose(y.numpy(), y_peer.detach().numpy(), rtol=1e-5, atol=1e-5)
    grad = rng.standard_normal(y.shape).astype(np.float32)
    y.backward(fn.tensor(grad))
    y_peer.backward(torch.tensor(grad))
    for a, p in zip(ours, peers, strict=True):
        np.testing.assert_allclose(a.grad.numpy(), p.grad.numpy(), rtol=1e-4, atol=1e-4)


def test_axes_of_one_pixel_cost_nothing():
    """A column of pixels is the same problem as a row of them: the same memory, the same bits."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, 5, 37), dtype=np.float32)
    w = rng.standard_normal((4, 5, 3), dtype=np.float32)
    row = F.conv1d(x, w, stride=2, padding=1)
    column = F.conv2d(x[..., None], w[..., None], stride=(2, 1), padding=(1, 0))
    assert np.array_equal(column[..., 0], row)
    deep = F.conv3d(x[..., None, None], w[..., None, None], stride=(2, 1, 1), padding=(1, 0, 0))
    assert np.array_equal(deep[..., 0, 0], row)
    up = F.conv_transpose1d(x, w.transpose(1, 0, 2), stride=2)
    column = F.conv_transpose2d(x[..., None], w.transpose(1, 0, 2)[..., None], stride=(2, 1))
    assert np.array_equal(column[..., 0], up)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("channels", "outputs", "groups"), [(1, 9, 1), (3, 2, 1), (6, 6, 6)])
def test_long_rows_are_cut_without_a_seam(channels, outputs, groups, stride, isa):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((2, channels, 9001))
    w = rng.standard_normal((outputs, channels // groups, 7))
    window = ((stride,), (3,), (1,), groups)
    dy = rng.standard_normal(F.conv1d(x, w, stride=stride, padding=3, groups=groups).shape)

    def run(algorithm):
        return (
            _core.conv_forward(1, x, w, None, *window, algorithm),
            _core.conv_backward_input(1, dy, w, x.shape, *window, algorithm),
            _core.conv_backward_weight(1, dy, x, w.shape, *window, algorithm),
        )

    for direct, product in zip(run("auto"), run("implicit_gemm"), strict=True):
        np.testing.assert_allclose(direct, product, rtol=0, atol=1e-11)


@pytest.mark.parametrize("width", [5, 17, 20, 36])
@pytest.mark.parametrize("kernel", [3, 5])
def test_winograd_is_not_disturbed_by_what_was_in_its_memory(width, kernel, isa, dtype):
    """NaN of an earlier call, in lanes behind the last tile, changes nothing."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((1, 16, 16, width)).astype(dtype)
    w = rng.standard_normal((16, 16, kernel, kernel)).astype(dtype)
    fn.set_num_threads(1)

    def run(x):
        return F.conv2d(x, w, padding=kernel // 2, algorithm="winograd")

    before = run(x)
    # It was Winograd's algorithm: the product rounds otherwise.
    assert (before != F.conv2d(x, w, padding=kernel // 2, algorithm="implicit_gemm")).any()
    # Results take the memory that workspaces take: a few of every size.
    spoiled = [F.relu(np.full(128 * n, np.nan, dtype)) for n in range(8, 128) for _ in range(3)]
    assert np.isnan(spoiled[0]).all()
    del spoiled
    np.testing.assert_array_equal(run(x), before)
