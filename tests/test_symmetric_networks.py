"""Networks that cannot tell a flip or a turn, augmentation, and the command that compares them."""

from __future__ import annotations

import re

import numpy as np
import pytest

import fusednn as fn
from fusednn import analysis, cli, data, models
from fusednn.analysis import transforms as T
from fusednn.data import augment


def pictures(count=50, size=6, dtype="float32"):
    return np.random.default_rng(0).random((count, 2, size, size)).astype(dtype)


# ---- augmentation --------------------------------------------------------------------------------

CALLS = {
    "flips": lambda x, r: augment.flips(x, random=r),
    "both": lambda x, r: augment.flips(x, "both", random=r),
    "rotations": lambda x, r: augment.rotations(x, random=r),
    "shifts": lambda x, r: augment.shifts(x, 2, random=r),
    "noise": lambda x, r: augment.noise(x, 0.1, random=r),
}


@pytest.mark.parametrize("name", CALLS)
def test_augmentation_is_seeded_and_leaves_its_input(name, dtype):
    call, x = CALLS[name], pictures(dtype=dtype)
    before = x.copy()
    first, again, other = call(x, 1), call(x, 1), call(x, 2)
    assert first.dtype == dtype
    assert first.shape == x.shape
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    generator = np.random.default_rng(1)
    np.testing.assert_array_equal(call(x, generator), first)
    assert not np.array_equal(call(x, generator), first)
    read_only = x[::-1].copy()[::-1]
    read_only.flags.writeable = False
    np.testing.assert_array_equal(call(read_only, 1), first)
    np.testing.assert_array_equal(call(fn.tensor(x), 1), first)
    assert call(x[:0], 1).shape == (0, 2, 6, 6)


def kinds(x, y, images):
    """How often each transformation of a picture is its variation; all pictures are accounted."""
    found = [sum(np.array_equal(f(a), b) for a, b in zip(x, y, strict=True)) for f in images]
    assert sum(found) == len(x)
    return found


def test_what_flips_and_rotations_do():
    x = pictures(400)
    flip = [lambda a: a, T.flip_horizontal, T.flip_vertical, lambda a: a[..., ::-1, ::-1]]
    found = kinds(x, augment.flips(x, p=0.25, random=0), flip[:2])
    assert 60 < found[1] < 140
    found = kinds(x, augment.flips(x, "vertical", random=0), [flip[0], flip[2]])
    assert 150 < found[1] < 250
    assert min(kinds(x, augment.flips(x, "both", random=0), flip)) > 60
    assert min(kinds(x, augment.rotations(x, random=0), [T.rot90(k) for k in range(4)])) > 60
    np.testing.assert_array_equal(augment.flips(x, p=0, random=0), x)
    whole = np.arange(18).reshape(2, 3, 3)  # integers are moved as well
    assert augment.rotations(whole, random=0).dtype == whole.dtype


def test_what_shifts_and_noise_do():
    x = pictures(200)
    steps = [T.shift(i, j) for i in (-1, 0, 1) for j in (-1, 0, 1)]
    assert min(kinds(x, augment.shifts(x, 1, random=0), steps)) > 5
    np.testing.assert_array_equal(augment.shifts(x, 0, random=0), x)
    gap = augment.noise(x, 0.5, random=0) - x
    assert abs(gap.std() - 0.5) < 0.01
    assert abs(gap.mean()) < 0.01


@pytest.mark.parametrize(
    ("call", "kind", "text"),
    [
        (lambda x: augment.flips(x, "up", random=0), ValueError, "flips: axis='up', expected"),
        (lambda x: augment.flips(x, p=2, random=0), ValueError, r"flips: p=2, expected a prob"),
        (lambda x: augment.flips([1], random=0), TypeError, "flips: x must be an array, got list"),
        (lambda x: augment.flips(x, random=None), TypeError, "flips: random must be an int or"),
        (lambda x: augment.rotations(x[..., :3], random=0), ValueError, r"2, 6, 3\), expected sq"),
        (lambda x: augment.shifts(x, -1, random=0), ValueError, "shifts: limit=-1, expected at"),
        (lambda x: augment.shifts(x, 0.5, random=0), TypeError, "limit must be an int, got float"),
        (lambda x: augment.shifts(x[0, 0], 1, random=0), ValueError, r"has shape \(6, 6\), expec"),
        (lambda x: augment.noise(x, np.inf, random=0), ValueError, "noise: std=inf, expected a"),
        (lambda x: augment.noise(x.astype(int), 1, random=0), TypeError, "x has dtype int64"),
    ],
)
def test_what_augmentation_refuses(call, kind, text):
    with pytest.raises(kind, match=text):
        call(pictures(2))


# ---- networks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [8, 28])
def test_networks_are_invariant(size, dtype):
    fn.manual_seed(0)
    turn, flip, shape = T.rot90(), T.flip_horizontal, (2, 1, size, size)
    expected = {
        models.MirrorCNN(size=size, dtype=dtype): {flip},
        models.MirrorCNN(size=size, axis="both", combine="symmetric", dtype=dtype): {flip},
        models.RotationCNN(size=size, dtype=dtype): {turn},
        models.RotationCNN(size=size, group="d4", widths=(4, 6), dtype=dtype): {flip, turn},
        models.LeNet(size=size, dtype=np.dtype(dtype)): set(),
    }
    for net, held in expected.items():
        for transform in (turn, flip):
            report = analysis.check_invariance(net, transform, shape, dtype=dtype)
            assert bool(report) == (transform in held), f"{net}: {report}"


def test_what_networks_refuse():
    with pytest.raises(ValueError, match="MirrorCNN: size=30, expected a multiple of 4 for 2 halv"):
        models.MirrorCNN(size=30)
    with pytest.raises(ValueError, match="RotationCNN: size=7, expected a multiple of 2 for 1 hal"):
        models.RotationCNN(size=7, widths=(4, 4))
    with pytest.raises(ValueError, match="RotationCNN: group='mirror', expected 'c4' or 'd4'"):
        models.RotationCNN(group="mirror")


# ---- the command ---------------------------------------------------------------------------------


def test_train_symmetry(tmp_path, capsys):
    try:
        data.digits()
    except data.MissingDataError as error:
        pytest.skip(str(error))
    quick = ("train", "symmetry", "--data", "digits", "--limit", "200", "--out", str(tmp_path))
    assert cli.main([*quick, "--epochs", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("five networks on digits: 200 pictures to train, 200 to validate")
    assert lines[-6].split() == [
        "test",
        "accuracy",
        "upright",
        "flipped",
        "turned",
        "one",
        "answer",
    ]
    rows = {line.split()[0]: [float(n) for n in line.split()[1:]] for line in lines[-5:]}
    assert list(rows) == ["plain", "augmented", "mirror", "c4", "d4"]
    for upright, flipped, turned, same in [rows["d4"]]:
        assert upright == flipped == pytest.approx(turned, abs=1e-4)
        assert same == 1
    assert rows["mirror"][0] == rows["mirror"][1]
    assert rows["c4"][0] == pytest.approx(rows["c4"][2], abs=1e-4)
    last = re.search(r"plain (\S+)", lines[3])
    assert float(last[1]) == rows["plain"][0]
    # Going on from a checkpoint ends in the same bits: the augmentation's draws are part of it.
    whole = (tmp_path / "last.safetensors").read_bytes()
    other = [*quick[:-1], str(tmp_path / "parts")]
    assert cli.main([*other, "--epochs", "1"]) == 0
    assert cli.main([*other, "--epochs", "3", "--resume"]) == 0
    assert (tmp_path / "parts" / "last.safetensors").read_bytes() == whole
