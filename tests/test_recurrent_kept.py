"""Recurrent layers keep their weights packed between calls, and never serve stale ones."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import nn
from fusednn.testing.isa import isa

LAYERS = {
    "lstm": lambda: nn.LSTM(13, 37),
    "two layers": lambda: nn.LSTM(9, 70, 2, bidirectional=True),
    "projection": lambda: nn.LSTM(9, 33, proj_size=5),
    "gru": lambda: nn.GRU(11, 40),
    "rnn": lambda: nn.RNN(11, 40, nonlinearity="relu"),
    "layer norm": lambda: nn.LayerNormLSTM(7, 35),
}


def arrays(layer):
    return [weight.numpy().copy() for weight in layer.parameters()]


def anew(layer, x):
    """The layer's function on arrays, which keeps nothing."""
    functions = {
        nn.LSTM: F.lstm, nn.GRU: F.gru, nn.RNN: F.rnn, nn.LayerNormLSTM: F.layer_norm_lstm
    }  # fmt: skip
    options = {"bidirectional": layer.bidirectional}
    if type(layer) is nn.RNN:
        options["nonlinearity"] = layer.nonlinearity
    return functions[type(layer)](x, None, arrays(layer), layer.num_layers, **options)[0]


def checked(layer, x):
    with fn.no_grad():
        out = layer(x)[0].numpy()
    assert np.array_equal(out, anew(layer, x))
    return out


def example(name="lstm", batch=3, dtype="float32"):
    fn.manual_seed(0)
    layer = LAYERS[name]().to(dtype)
    shape = (8, batch, layer.input_size)
    return layer, np.random.default_rng(1).standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_kept_weights_change_no_bit(name, dtype, threads):
    layer, _ = example(name, dtype=dtype)
    before = fn.get_num_threads()
    fn.set_num_threads(threads)
    try:
        for batch in (1, 1, 3, 20, 20, 1):  # of forms that differ
            checked(layer, example(name, batch, dtype)[1])
    finally:
        fn.set_num_threads(before)
    assert layer._packed.nbytes >= layer.weight_hh_l0.numpy().nbytes


@pytest.mark.parametrize("name", LAYERS)
def test_every_isa_packs_for_itself(name):
    layer, x = example(name)
    for one in [*fn._core.usable_isas(), *reversed(fn._core.usable_isas())]:
        with isa(one):
            checked(layer, x)


def test_single_steps_keep_nothing():
    layer, x = example()
    checked(layer, x[:1])
    assert layer._packed.nbytes == 0


CHANGES = {
    "in place": lambda layer: layer.weight_hh_l0.mul_(2.0),
    "fill": lambda layer: nn.init.normal_(layer.weight_hh_l0),
    "through a view": lambda layer: layer.weight_hh_l0.reshape(-1).zero_(),
    "load_state_dict": lambda layer: layer.load_state_dict(
        {name: value + 1 for name, value in layer.state_dict().items()}
    ),
    "another parameter": lambda layer: setattr(
        layer, "weight_hh_l0", nn.Parameter(fn.tensor(layer.weight_hh_l0.numpy() * 3))
    ),
    "reset": lambda layer: layer.reset_parameters(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("frozen", [False, True])
def test_a_change_is_seen(change, frozen):
    layer, x = example()
    layer.requires_grad_(not frozen)
    first = checked(layer, x)
    with fn.no_grad():
        change(layer)
    assert not np.array_equal(checked(layer, x), first)


def test_training_steps_are_seen_and_keep_nothing():
    layer, x = example()
    optimizer = fn.optim.SGD(layer.parameters(), lr=0.1)
    outputs = []
    for _ in range(3):
        outputs.append(checked(layer, x))
        assert layer._packed.nbytes > 0
        optimizer.zero_grad()
        layer(x)[0].square().mean().backward()
        assert layer._packed.nbytes == 0
        optimizer.step()
    assert not np.array_equal(outputs[0], outputs[1])
    assert not np.array_equal(outputs[1], outputs[2])


def test_writes_by_numpy_are_seen():
    layer, x = example()
    layer.requires_grad_(False)
    with fn.no_grad():
        first = layer(x)[0].numpy().copy()
    assert layer._packed.nbytes > 0
    layer.weight_hh_l0.numpy()[...] = 0  # the alias is gone again at the next call
    with fn.no_grad():
        second = layer(x)[0].numpy().copy()
    assert layer._packed.nbytes == 0
    assert np.array_equal(second[0], first[0])
    assert not np.array_equal(second[1], first[1])


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_pack_for_themselves(copied):
    layer, x = example()
    first = checked(layer, x)
    other = copied(layer)
    assert other._packed.nbytes == 0
    with fn.no_grad():
        other.weight_hh_l0.mul_(2.0)
    assert not np.array_equal(checked(other, x), first)
    assert np.array_equal(checked(layer, x), first)


def test_many_threads_may_call_one_layer():
    layer, x = example(batch=5)
    expected = anew(layer, x)
    found = []

    def call():
        with fn.no_grad():
            for _ in range(20):
                found.append(layer(x)[0].numpy())

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 80
    assert all(np.array_equal(out, expected) for out in found)


def test_a_layer_of_bfloat16_weights():
    dtype = pytest.importorskip("ml_dtypes").bfloat16
    layer, x = example(batch=1)
    layer.to(dtype)
    with fn.no_grad():
        outputs = [layer(x)[0].numpy() for _ in range(3)]
    expected = F.lstm(x, None, [weight.numpy().copy() for weight in layer.parameters()])[0]
    assert all(np.array_equal(out, expected) for out in outputs)
    assert layer._packed.nbytes > 0
