"""The explorations of convolutions, mirrors and rotations against NumPy, and what they refuse."""

import itertools
import re

import numpy as np
import pytest

from fusednn.explore import convolution, digits, mirror, rotation
from fusednn.explore.fields import BadRequest, Fields


def ask(compute, **fields):
    return compute(Fields(fields))


def correlated(x, w, padding=(0, 0), stride=1):
    """The plain definition, for pictures."""
    x = np.pad(x, [(p, p) for p in padding])
    (h, w_in), (kh, kw) = x.shape, w.shape
    rows, columns = range(0, h - kh + 1, stride), range(0, w_in - kw + 1, stride)
    return np.array([[(x[r : r + kh, c : c + kw] * w).sum() for c in columns] for r in rows])


# ---- convolution ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dims", "shape", "taps"),
    [
        (1, (10,), (3,)),
        (1, (1,), (1,)),
        (1, (24,), (9,)),
        (2, (5, 7), (3, 2)),
        (2, (1, 10), (1, 5)),
    ],
)
@pytest.mark.parametrize(("padding", "stride"), [(0, 1), (2, 1), (1, 2), (4, 3)])
@pytest.mark.parametrize("flip", [False, True])
def test_convolution(dims, shape, taps, padding, stride, flip):
    random = np.random.default_rng(len(shape) + padding)
    x, w = random.standard_normal(shape), random.standard_normal(taps)
    got = ask(
        convolution.compute, dims=dims, input=x.tolist(), kernel=w.tolist(), padding=padding,
        stride=stride, flip=flip,
    )  # fmt: skip
    x2, w2 = np.atleast_2d(x), np.atleast_2d(w)
    used = w2[::-1, ::-1] if flip else w2
    pads = (0, padding) if dims == 1 else (padding, padding)
    expected = correlated(x2, used, pads, stride)
    padded = np.pad(x2, [(p, p) for p in pads])
    np.testing.assert_allclose(got["output"], expected, atol=1e-12)
    np.testing.assert_array_equal(got["padded"], padded)
    np.testing.assert_array_equal(got["kernel"], used)
    assert len(got["windows"]) == len(got["products"]) == len(got["corners"]) == expected.size
    for (r, c), window, products, total in zip(
        got["corners"], got["windows"], got["products"], expected.ravel(), strict=True
    ):
        under = padded[r : r + w2.shape[0], c : c + w2.shape[1]]
        np.testing.assert_array_equal(window, under.ravel())
        np.testing.assert_allclose(products, (under * used).ravel(), rtol=1e-15)
        np.testing.assert_allclose(np.sum(products), total, atol=1e-12)
    assert got["limits"]["output"] == pytest.approx(np.abs(expected).max() or 1)


def test_convolution_refuses_a_kernel_that_does_not_fit():
    with pytest.raises(BadRequest, match=r"a kernel of 5 does not fit into an input of 2 with a p"):
        ask(
            convolution.compute,
            dims=1,
            input=[1, 2],
            kernel=[1] * 5,
            padding=1,
            stride=1,
            flip=False,
        )
    with pytest.raises(BadRequest, match=r"kernel of 1 x 3 does not fit into an input of 2 x 2"):
        ask(
            convolution.compute, dims=2, input=[[1, 2], [3, 4]], kernel=[[1, 2, 3]], padding=0,
            stride=1, flip=False,
        )  # fmt: skip


# ---- mirror --------------------------------------------------------------------------------------

FLIPS = {"horizontal": (-1,), "vertical": (-2,), "both": (-2, -1)}
COMBINE = {"sum": np.sum, "mean": np.mean, "max": np.max}


@pytest.mark.parametrize("combine", COMBINE)
@pytest.mark.parametrize(("axis", "flip"), [*itertools.product(FLIPS, FLIPS)])
def test_mirror_of_pictures(combine, axis, flip):
    random = np.random.default_rng(7)
    x, w = random.standard_normal((4, 6)), random.standard_normal((2, 3))
    got = ask(
        mirror.compute, dims=2, input=x.tolist(), kernel=w.tolist(), padding=1, combine=combine,
        axis=axis, flip=flip,
    )  # fmt: skip
    images = [w]
    for one in FLIPS[axis][::-1]:
        images += [np.flip(image, one) for image in images]
    flipped = np.flip(x, FLIPS[flip])
    np.testing.assert_array_equal(got["flipped"], flipped)
    assert len(got["maps"]) == len(images)
    for one in got["maps"]:
        weights = np.array(one["weights"])
        assert any(np.array_equal(weights, image) for image in images)
        np.testing.assert_allclose(one["map"], correlated(x, weights, (1, 1)), atol=1e-12)
        after = correlated(flipped, weights, (1, 1))
        np.testing.assert_allclose(one["flipped"], after, atol=1e-12)
        difference = np.abs(after - np.flip(one["map"], FLIPS[flip])).max()
        assert one["difference"] == pytest.approx(difference)
        assert one["follows"] is False
    assert got["maps"][0]["weights"] == w.tolist()
    for key, source in (("map", x), ("flipped", flipped)):
        maps = [correlated(source, image, (1, 1)) for image in images]
        np.testing.assert_allclose(got["combined"][key], COMBINE[combine](maps, axis=0), atol=1e-12)
    # The layer promises what it mirrors, and nothing else.
    assert got["combined"]["follows"] == (set(FLIPS[flip]) <= set(FLIPS[axis]))


@pytest.mark.parametrize(
    ("combine", "combined", "flipped"),
    [
        ("sum", [3, 3, 0], [0, 3, 3]),
        ("mean", [1.5, 1.5, 0], [0, 1.5, 1.5]),
        ("max", [2, 2, 0], [0, 2, 2]),
    ],
)
def test_mirror_of_a_sequence(combine, combined, flipped):
    got = ask(
        mirror.compute, dims=1, input=[0, 1, 0, 0], kernel=[1, 2], padding=0, combine=combine,
        axis="horizontal", flip="horizontal",
    )  # fmt: skip
    assert got["flipped"] == [0, 0, 1, 0]
    first, second = got["maps"]
    assert (first["map"], first["flipped"]) == ([2, 1, 0], [0, 2, 1])
    assert (second["map"], second["flipped"]) == ([1, 2, 0], [0, 1, 2])
    assert (got["combined"]["map"], got["combined"]["flipped"]) == (combined, flipped)
    assert got["combined"]["expected"] == flipped
    assert got["combined"]["difference"] == 0
    with pytest.raises(BadRequest, match="axis is 'vertical', expected one of horizontal"):
        ask(
            mirror.compute, dims=1, input=[1, 2], kernel=[1], padding=0, combine="max",
            axis="vertical", flip="horizontal",
        )  # fmt: skip


# ---- rotation ------------------------------------------------------------------------------------

CORNER = [[1.0, -1, -1], [1, -1, -1], [1, 1, 1]]


def turned_45(image):
    """Each pixel looked up where it was, between its four neighbours."""
    n = len(image)
    centre, root = (n - 1) / 2, 0.5**0.5
    out = np.zeros_like(image)
    padded = np.pad(image, n)
    for r, c in np.ndindex(n, n):
        y, x = r - centre, c - centre
        old_y, old_x = n + centre + root * (y + x), n + centre + root * (x - y)
        i, j = int(np.floor(old_y)), int(np.floor(old_x))
        a, b = old_y - i, old_x - j
        out[r, c] = (1 - a) * ((1 - b) * padded[i, j] + b * padded[i, j + 1]) + a * (
            (1 - b) * padded[i + 1, j] + b * padded[i + 1, j + 1]
        )
    return out


@pytest.mark.parametrize("size", [3, 4, 7, 9])
def test_rotation_of_one_kernel(size):
    image = np.random.default_rng(size).standard_normal((size, size))

    def score(picture):
        return np.maximum(correlated(picture, np.array(CORNER), (1, 1)), 0).max()

    got = ask(rotation.compute, image=image.tolist(), angle=135, network="filter", kernel=CORNER)
    for turn in got["turns"]:
        upright = np.rot90(image, turn["angle"] // 90)
        picture = turned_45(upright) if turn["angle"] % 90 else upright
        scores = [score(np.rot90(picture, k)) for k in range(4)]
        assert turn["score"] == pytest.approx(scores[0])
        assert turn["mean"] == pytest.approx(np.mean(scores))
        assert turn["max"] == pytest.approx(np.max(scores))
        if turn["angle"] == 135:
            np.testing.assert_allclose(got["scores"], scores)
            for k, view in enumerate(got["views"]):
                np.testing.assert_allclose(view, np.rot90(picture, k), atol=1e-12)
            assert (got["mean"], got["max"]) == (turn["mean"], turn["max"])


def test_quarter_turns_change_one_score_and_not_the_pooled_ones():
    image = np.random.default_rng(1).standard_normal((5, 5)).tolist()
    got = ask(rotation.compute, image=image, angle=0, network="random", weights=3)
    quarter = [turn for turn in got["turns"] if turn["angle"] % 90 == 0]
    between = [turn for turn in got["turns"] if turn["angle"] % 90]
    for key in ("mean", "max"):
        assert np.ptp([turn[key] for turn in quarter]) < 1e-12
        assert np.ptp([turn[key] for turn in between]) < 1e-12
        assert abs(quarter[0][key] - between[0][key]) > 1e-3
    assert np.ptp([turn["score"] for turn in quarter]) > 1e-3
    assert sorted(got["scores"]) == pytest.approx(sorted(turn["score"] for turn in quarter))
    other = ask(rotation.compute, image=image, angle=0, network="random", weights=4)
    assert other["scores"] != got["scores"]
    assert ask(rotation.compute, image=image, angle=0, network="random", weights=3) == got


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"angle": 30}, "angle is 30, expected a multiple of 45"),
        ({"image": [[1, 2], [3, 4]]}, "image is 2 x 2, expected a square, at least 3 x 3"),
        ({"image": [[1, 2, 3]] * 4}, "image is 4 x 3, expected a square"),
        ({"kernel": [[1, 2, 3]]}, "kernel is 1 x 3, expected 3 x 3 numbers"),
        ({"network": "none"}, "network is 'none', expected one of filter, random"),
    ],
)
def test_what_rotation_refuses(change, text):
    fields = {"image": np.eye(3).tolist(), "angle": 0, "network": "filter", "kernel": CORNER}
    with pytest.raises(BadRequest, match=re.escape(text)):
        ask(rotation.compute, **{**fields, **change})


# ---- what is sent --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"dims": 3}, "dims is 3, expected a whole number from 1 to 2"),
        ({"dims": True}, "dims is true, expected a whole number from 1 to 2"),
        ({"dims": 1.0}, "dims is 1.0, expected a whole number"),
        ({"dims": 10**400}, "dims is too large, expected a whole number"),
        ({"stride": 0}, "stride is 0, expected a whole number from 1 to 4"),
        ({"flip": 1}, "flip is 1, expected true or false"),
        ({"input": "1 2"}, "input is text, expected a list"),
        ({"input": {}}, "input is an object, expected a list"),
        ({"input": []}, "input has 0 entries, expected 1 to 24"),
        ({"input": [0] * 25}, "input has 25 entries, expected 1 to 24"),
        ({"input": [1, None]}, "input[1] is empty, expected a number of at most 1000000"),
        ({"input": [1, "2"]}, "input[1] is '2', expected a number"),
        ({"input": [1, False]}, "input[1] is false, expected a number"),
        ({"input": [1, [2]]}, "input[1] is a list, expected a number"),
        ({"input": [1, float("inf")]}, "input[1] is too large, expected a number"),
        ({"input": [1, -1e7]}, "input[1] is -10000000.0, expected a number of at most 1000000"),
        ({"input": [10**400]}, "input[0] is too large, expected a number"),
        ({"dims": 2}, "input[0] is a number, expected a list"),
        ({"dims": 2, "input": [[1, 2], [3]]}, "input[1] has 1 numbers, expected 2 as in the first"),
        ({"more": 1}, "unknown field 'more'"),
        ({"stride": ["x" * 100]}, "stride is a list"),
        ({"x\n" * 40: 1}, r"unknown field 'x\nx\nx"),
    ],
)
def test_fields_are_refused_in_one_line(change, text):
    fields = {"dims": 1, "input": [1, 2], "kernel": [1], "padding": 0, "stride": 1, "flip": False}
    with pytest.raises(BadRequest) as refusal:
        ask(convolution.compute, **{**fields, **change})
    assert str(refusal.value).startswith(text)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 150


def test_a_missing_field_and_no_object():
    with pytest.raises(BadRequest, match=r"^dims is missing$"):
        ask(convolution.compute)
    for content, kind in (([], "a list"), (None, "null"), ("x", "text"), (1, "a number")):
        with pytest.raises(BadRequest, match=f"^the request is {kind}, expected an object"):
            Fields(content)


@pytest.mark.parametrize(
    ("strokes", "text"),
    [
        ([], "strokes has 0 entries"),
        ([[]], "strokes[0] has 0 entries"),
        ([[[0.1]]], "strokes[0][0] is [0.1], expected [x, y], both from 0 to 1"),
        ([[[0.1, 1.5]]], "strokes[0][0] is [0.1, 1.5], expected [x, y], both from 0 to 1"),
        ([[[0, 0]] * 1500, [[0, 0]] * 1500], "strokes has more than 2000 points"),
        ([[[0, 0]] * 2001], "strokes[0] has 2001 entries, expected 1 to 2000"),
    ],
)
def test_strokes_are_refused_in_one_line(strokes, text):
    with pytest.raises(BadRequest, match=re.escape(text)):
        Fields({"strokes": strokes}).strokes("strokes", digits.POINTS)
