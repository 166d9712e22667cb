"""Checks of symmetries: what holds, what does not, and where it fails."""

from __future__ import annotations

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import analysis, nn
from fusednn.analysis import transforms as T


@pytest.fixture(autouse=True)
def seed():
    fn.manual_seed(3)


def test_shifts_of_a_convolution_hold_inside_and_not_at_padded_edges():
    move = T.shift(rows=1, columns=-2)
    net = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU())
    inside = analysis.check_equivariance(net, move, (2, 2, 9, 11), margin=3)
    assert inside
    assert "<=" in str(inside)
    edges = analysis.check_equivariance(net, move, (2, 2, 9, 11))
    assert not edges
    row, column = edges.place[2:]
    assert row in (0, 8) or column in (0, 8, 9, 10)
    assert f"worst at {edges.place}" in str(edges)
    for f in (F.relu, nn.ReLU()):
        assert analysis.check_equivariance(f, move, (2, 2, 9, 11))
    circular = nn.Conv2d(2, 3, 3, padding=1, padding_mode="circular")
    assert analysis.check_equivariance(circular, T.shift(2, 1, wrap=True), (1, 2, 6, 7))


def test_pooling_of_stride_2_is_equivariant_to_no_shift_by_one():
    pool = nn.MaxPool2d(2)
    for step in (0, 1):
        after = T.shift(columns=step)
        report = analysis.check_equivariance(
            pool, T.shift(columns=1), (1, 1, 8, 8), after, margin=1
        )
        assert not report
    even = analysis.check_equivariance(
        pool, T.shift(columns=2), (1, 1, 8, 8), T.shift(columns=1), margin=1
    )
    assert even


def test_mirrors():
    plain, mirror = nn.Conv2d(1, 2, 3, padding=1), nn.MirrorConv2d(1, 2, 3, padding=1)
    x = (2, 1, 7, 8)
    assert not analysis.check_equivariance(plain, T.flip_horizontal, x)
    assert analysis.check_equivariance(mirror, T.flip_horizontal, x)
    assert not analysis.check_equivariance(mirror, T.flip_vertical, x)
    invariant = nn.Sequential(mirror, nn.ReLU(), nn.GlobalPool("max"))
    assert analysis.check_invariance(invariant, T.flip_horizontal, x)
    assert not analysis.check_invariance(plain, T.flip_horizontal, x)


def test_turns():
    lift = nn.P4ConvZ2(1, 2, 3)
    for k in range(4):
        after = T.group_maps(k)
        assert analysis.check_equivariance(lift, T.rot90(k), (1, 1, 6, 7), after)
    assert not analysis.check_equivariance(lift, T.rot90(), (1, 1, 7, 7))
    mirrored = nn.P4MConvZ2(1, 2, 3)
    for g in range(8):
        after = T.group_maps(g, "d4")
        assert analysis.check_equivariance(mirrored, T.group_images(g), (1, 1, 6, 6), after)
    pooled = nn.GroupPool(nn.Sequential(nn.Flatten(), nn.Linear(36, 3)), "c4")
    assert analysis.check_invariance(pooled, T.rot90(), (2, 1, 6, 6))
    assert not analysis.check_invariance(pooled, T.flip_vertical, (2, 1, 6, 6))


def test_attention_is_equivariant_to_permutations_without_positions_alone():
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    positions = nn.SinusoidalPositionalEncoding(8)
    shuffle, x = T.permutation(1), (2, 6, 8)

    def attend(x, **options):
        return attention(x, x, x, need_weights=False, **options)[0]

    assert analysis.check_equivariance(attend, shuffle, x)
    assert not analysis.check_equivariance(lambda x: attend(positions(x)), shuffle, x)
    assert not analysis.check_equivariance(lambda x: attend(x, is_causal=True), shuffle, x)
    assert analysis.check_equivariance(attend, T.permutation([5, 4, 3, 2, 1, 0]), x)


def test_recurrent_layers_are_not_shifted_by_what_comes_first():
    rnn = nn.RNN(2, 3, batch_first=True)
    report = analysis.check_equivariance(lambda x: rnn(x)[0], T.time_shift(1, axis=1), (1, 8, 2))
    assert not report
    conv = nn.Conv1d(2, 3, 3, padding="causal")
    assert analysis.check_equivariance(conv, T.time_shift(2), (1, 2, 9), margin=4)


def test_transforms():
    x = np.arange(6.0).reshape(2, 3)
    assert T.shift(1, 1)(x).tolist() == [[0, 0, 0], [0, 0, 1]]
    assert T.shift(-1, 0)(x).tolist() == [[3, 4, 5], [0, 0, 0]]
    assert T.shift(0, 9)(x).tolist() == [[0, 0, 0], [0, 0, 0]]
    assert T.shift(0, -1, wrap=True)(x).tolist() == [[1, 2, 0], [4, 5, 3]]
    assert T.time_shift(1, axis=0)(x).tolist() == [[0, 0, 0], [0, 1, 2]]
    assert T.rot90()(x).tolist() == np.rot90(x).tolist()
    assert T.flip_vertical(x).tolist() == x[::-1].tolist()
    assert T.permutation([2, 0, 1], axis=-1)(x).tolist() == [[2, 0, 1], [5, 3, 4]]
    assert sorted(T.permutation(0, axis=-1)(x)[0]) == [0, 1, 2]
    assert repr(T.rot90(3)) == "rot90(3)"
    with pytest.raises(ValueError, match="group='d3', expected 'c4' or 'd4'"):
        T.group_maps(0, "d3")


def test_reports():
    report = analysis.check_invariance(lambda x: x, T.flip_horizontal, np.array([[1.0, 2, 5]]))
    assert (report.place, report.found, report.expected, report.deviation) == ((0, 0), 5, 1, 4)
    both = np.array([[np.nan, 1, 2]])
    report = analysis.check_equivariance(lambda x: x + both, T.flip_horizontal, np.ones((1, 3)))
    assert not report
    assert np.isnan(report.deviation)
    infinite = np.array([[np.inf, 1, np.inf]])
    assert analysis.check_equivariance(lambda x: x, T.flip_horizontal, infinite)
    assert analysis.check_equivariance(lambda x: x, T.flip_horizontal, np.zeros((0, 3)))
    net = nn.Dropout(0.5)
    assert analysis.check_equivariance(net, T.flip_horizontal, (2, 8))
    assert net.training
    with pytest.raises(ValueError, match=r"f\(transform\(x\)\) has shape \(3, 2\), the transf"):
        analysis.check_equivariance(lambda x: x, T.rot90(), (2, 3), T.unchanged)
    with pytest.raises(TypeError, match="f gave a tuple, expected one array or Tensor"):
        analysis.check_invariance(nn.LSTM(3, 2), T.rot90(), (2, 3))
    with pytest.raises(TypeError, match="x must be an array, a Tensor or a shape, got 3"):
        analysis.check_invariance(F.relu, T.rot90(), 3)
    with pytest.raises(ValueError, match="samples=0, expected at least 1"):
        analysis.check_invariance(F.relu, T.rot90(), (3,), samples=0)
