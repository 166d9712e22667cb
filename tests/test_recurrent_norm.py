"""The layer-normalised LSTM: against its definition, built of other ops; starting values, texts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import fusednn as fn
import fusednn.functional as F
from fusednn import nn

Array = NDArray[Any]


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape)


def by_steps(x: Any, h: Any, c: Any, weights: list[Any], eps: float) -> tuple[Any, Any, Any]:
    """One layer, one direction, by F.linear, F.layer_norm and the gates' functions."""
    w_ih, w_hh, b_ih, b_hh, gain_ih, gain_hh, gain_c, bias_c = weights
    width = gain_c.shape[0]
    outs = []
    for t in range(x.shape[0]):
        gates = F.layer_norm(F.linear(x[t], w_ih), (4 * width,), gain_ih, b_ih, eps)
        gates = gates + F.layer_norm(F.linear(h, w_hh), (4 * width,), gain_hh, b_hh, eps)
        i, f, g, o = (gates[:, k * width : (k + 1) * width] for k in range(4))
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * F.layer_norm(c, (width,), gain_c, bias_c, eps).tanh()
        outs.append(h)
    return fn.stack(outs), h, c


@pytest.mark.parametrize("hidden, batch", [(5, 3), (16, 1), (33, 6)])
def test_against_other_ops(hidden: int, batch: int, isa: str) -> None:
    """Values, and gradients of a loss on all outputs."""
    shapes = [(4 * hidden, 4), (4 * hidden, hidden), *[(4 * hidden,)] * 4, (hidden,), (hidden,)]
    arrays = [0.5 * normal(*s, seed=i) + (i in (4, 5, 6)) for i, s in enumerate(shapes)]
    states = [normal(batch, hidden, seed=k) for k in (20, 21)]
    results = []
    for fused in (False, True):
        x = fn.tensor(normal(6, batch, 4), requires_grad=True)
        h, c = (fn.tensor(s, requires_grad=True) for s in states)
        weights = [fn.tensor(a, requires_grad=True) for a in arrays]
        if fused:
            state = h.reshape(1, batch, hidden), c.reshape(1, batch, hidden)
            out, (h_n, c_n) = F.layer_norm_lstm(x, state, weights, eps=1e-3)
        else:
            out, h_n, c_n = by_steps(x, h, c, weights, 1e-3)
        (out.sin().sum() + (h_n * 2).sum() + (c_n * c_n).sum()).backward()
        grads = [t.grad.numpy() for t in (x, h, c, *weights)]
        results.append([out.numpy(), h_n.numpy().reshape(batch, -1), *grads])
    for i, (one, two) in enumerate(zip(*results, strict=True)):
        np.testing.assert_allclose(two, one, rtol=1e-8, atol=1e-10, err_msg=str(i))


def test_module(dtype: str) -> None:
    fn.manual_seed(0)
    layer = nn.LayerNormLSTM(3, 6, 2, bidirectional=True, forget_bias=1.5, dtype=dtype)
    names = [name for name, _ in layer.named_parameters()]
    assert names[:8] == [
        "weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0", "gain_ih_l0", "gain_hh_l0",
        "gain_c_l0", "bias_c_l0",
    ]  # fmt: skip
    assert len(names) == 32
    state = layer.state_dict()
    assert (state["gain_ih_l1_reverse"] == 1).all()
    assert not state["bias_hh_l1"].any()
    assert state["bias_ih_l0"].tolist() == [0] * 6 + [1.5] * 6 + [0] * 12
    assert 0.2 < np.abs(state["weight_hh_l0"]).max() <= 6**-0.5
    x = normal(4, 2, 3).astype(dtype)
    out, (h, c) = layer(x, lengths=np.array([4, 2]))
    assert out.shape == (4, 2, 12)
    assert h.shape == c.shape == (4, 2, 6)
    assert out.dtype == dtype
    assert not out.numpy()[2:, 1].any()
    plain = nn.LayerNormLSTM(3, 6, bias=False)
    assert len(plain.state_dict()) == 5
    assert repr(plain) == "LayerNormLSTM(3, 6, bias=False)"
    packed = nn.utils.rnn.pack_padded_sequence(x, [4, 2])
    again, (h_n, _) = layer(packed)
    np.testing.assert_array_equal(nn.utils.rnn.pad_packed_sequence(again)[0].numpy(), out.numpy())
    np.testing.assert_array_equal(h_n.numpy(), h.numpy())


def test_scale_of_the_input_does_not_matter(isa: str, dtype: str) -> None:
    """What normalisation is for: weights or inputs 1000 times as large give the same."""
    layer = nn.LayerNormLSTM(8, 16, eps=1e-30, dtype=dtype)
    x = normal(5, 3, 8).astype(dtype)
    out = layer(x)[0].numpy()
    tolerance = 1e-5 if dtype == "float32" else 1e-12
    np.testing.assert_allclose(layer(1000 * x)[0].numpy(), out, rtol=tolerance, atol=tolerance)
    layer.weight_hh_l0._data[...] *= 1000
    np.testing.assert_allclose(layer(x)[0].numpy(), out, rtol=tolerance, atol=tolerance)


def test_products_far_from_zero(isa: str) -> None:
    """A mean that is large against the spread costs no precision beyond the product's own."""
    hidden = 20
    w_ih = np.full((4 * hidden, 1), 4096.0) + 0.25 * np.arange(4 * hidden)[:, None] % 7
    weights = [w_ih, np.zeros((4 * hidden, hidden)), np.ones(4 * hidden), np.ones(4 * hidden)]
    weights.append(np.ones(hidden))
    exact, _ = F.layer_norm_lstm(np.ones((3, 2, 1)), None, weights)
    found, _ = F.layer_norm_lstm(
        np.ones((3, 2, 1), np.float32), None, [w.astype(np.float32) for w in weights]
    )
    np.testing.assert_allclose(found, exact, rtol=1e-5, atol=1e-6)


def test_nan_stays_in_its_sequence(isa: str, dtype: str) -> None:
    layer = nn.LayerNormLSTM(3, 9, dtype=dtype)
    x = normal(4, 5, 3).astype(dtype)
    x[1, 2, 0] = np.nan
    out = layer(x)[0].numpy()
    assert np.isfinite(out[0]).all()
    assert np.isnan(out[1:, 2]).all()
    assert np.isfinite(np.delete(out, 2, axis=1)).all()


@pytest.mark.parametrize("shape", [(0, 2, 3), (5, 0, 3), (0, 3), (4, 2, 0)])
def test_empty(shape: tuple[int, ...], isa: str, dtype: str) -> None:
    layer = nn.LayerNormLSTM(shape[-1], 4, dtype=dtype)
    x = fn.tensor(np.zeros(shape, dtype), requires_grad=True)
    out, (h, _) = layer(x)
    assert out.shape == (*shape[:-1], 4)
    (out.sum() + h.sum()).backward()
    for p in layer.parameters():
        assert np.isfinite(p.grad.numpy()).all()


X = np.zeros((6, 4, 3))
W = [np.zeros((8, 3)), np.zeros((8, 2)), np.ones(8), np.ones(8), np.ones(2)]


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: F.layer_norm_lstm(X, None, W[:4]), ValueError,
         "layer_norm_lstm: got 4 weights, expected for each of 1 layers and 1 directions: "
         "weight_ih, weight_hh, gain_ih, gain_hh and gain_c, or"),
        (lambda: F.layer_norm_lstm(X, None, [*W[:3], np.ones(7), W[4]]), ValueError,
         "layer_norm_lstm: gain_hh_l0 has shape (7,), expected (8,)"),
        (lambda: F.layer_norm_lstm(X, None, [*W[:4], np.ones(8)]), ValueError,
         "layer_norm_lstm: gain_c_l0 has shape (8,), expected (2,)"),
        (lambda: F.layer_norm_lstm(X, None, W, eps=0), ValueError,
         "layer_norm_lstm: eps=0, expected a number above 0"),
        (lambda: F.layer_norm_lstm(X, X, W), TypeError,
         "layer_norm_lstm: state must be None or a pair (h, c)"),
        (lambda: F.layer_norm_lstm(X.astype("f4"), None, W), TypeError,
         "layer_norm_lstm: weights has dtype float64, expected float32"),
        (lambda: nn.LayerNormLSTM(3, 4, eps=-1), ValueError,
         "LayerNormLSTM: eps=-1, expected a number above 0"),
    ],
)  # fmt: skip
def test_refused(call: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error) as caught:
        call()
    assert text in str(caught.value)
