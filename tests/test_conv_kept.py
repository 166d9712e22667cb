"""Convolution layers keep their weights packed between calls, and never serve stale ones."""

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

# layer, input, whether its forward pass has a packed form
LAYERS = [
    (lambda: nn.Conv2d(20, 33, 3, padding=1), (3, 20, 17, 19), True),  # Winograd, k3
    (lambda: nn.Conv2d(32, 36, 5, padding=2, groups=2), (2, 32, 13, 12), True),  # k5, groups
    (lambda: nn.Conv2d(70, 67, 3, padding=1), (1, 70, 7, 7), True),  # few positions
    (lambda: nn.Conv2d(40, 130, 3, padding=1, dilation=2), (9, 40, 7, 7), True),
    (lambda: nn.Conv1d(48, 64, 3, padding=1), (2, 48, 9), True),
    (lambda: nn.Conv3d(16, 32, 2), (2, 16, 4, 4, 4), True),
    (lambda: nn.Conv2d(3, 8, 3), (2, 3, 20, 20), False),  # few input channels
    (lambda: nn.Conv2d(8, 8, 3, groups=8), (2, 8, 20, 20), False),  # depthwise
]


def example(make, shape, dtype="float32", seed=0):
    fn.manual_seed(seed)
    layer = make().to(dtype)
    return layer, np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def plain(layer, x):
    """The layer's function on arrays, which keeps nothing."""
    call = (F.conv1d, F.conv2d, F.conv3d)[x.ndim - 3]
    arrays = (x, layer.weight.detach().numpy(), layer.bias.detach().numpy())
    return call(*arrays, layer.stride, layer.padding, layer.dilation, layer.groups)


def checked(layer, x):
    """The layer's output without gradients, equal to the last bit to what is computed anew."""
    with fn.no_grad():
        out = layer(x).numpy()
    weight = layer.weight.numpy().copy(), layer.bias.numpy().copy()
    call = (F.conv1d, F.conv2d, F.conv3d)[x.ndim - 3]
    expected = call(
        x, *weight, layer.stride, layer.padding, layer.dilation, layer.groups,
        flip_kernel=layer.flip_kernel,
    )  # fmt: skip
    assert np.array_equal(out, expected, equal_nan=True)
    return out


@pytest.mark.parametrize(("make", "shape", "packs"), LAYERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_packed_weight_changes_no_bit(make, shape, packs, dtype, threads):
    layer, x = example(make, shape, dtype)
    before = fn.get_num_threads()
    fn.set_num_threads(threads)
    try:
        for _ in range(3):
            checked(layer, x)
    finally:
        fn.set_num_threads(before)
    # Which form is best depends on the ISA; the two that need none never keep anything.
    if not packs:
        assert layer._packed.nbytes == 0
    elif fn.cpu_isa() == "avx512" and dtype == "float32":
        assert layer._packed.nbytes >= layer.weight.numpy().nbytes


@pytest.mark.parametrize(("make", "shape", "packs"), LAYERS)
def test_every_isa_packs_for_itself(make, shape, packs):
    layer, x = example(make, shape)
    for name in [*fn._core.usable_isas(), *reversed(fn._core.usable_isas())]:
        with isa(name):
            checked(layer, x)


def test_one_layer_serves_shapes_of_different_forms():
    layer, _ = example(LAYERS[0][0], (1,))
    rng = np.random.default_rng(3)
    for size in [(17, 19), (3, 3), (40, 40), (3, 3), (17, 19), (1, 1)]:
        checked(layer, rng.standard_normal((2, 20, *size)).astype(np.float32))


def test_flipped_kernels_are_packed_flipped():
    layer, x = example(lambda: nn.Conv2d(20, 33, 3, padding=1, flip_kernel=True), (3, 20, 17, 19))
    checked(layer, x)
    checked(layer, x)


CHANGES = {
    "in place": lambda layer: layer.weight.mul_(2.0),
    "fill": lambda layer: nn.init.normal_(layer.weight),
    "an element": lambda layer: layer.weight.__setitem__((0, 0), 3.0),
    "through detach": lambda layer: layer.weight.detach().add_(1.0),
    "through a view": lambda layer: layer.weight.reshape(-1).zero_(),
    "load_state_dict": lambda layer: layer.load_state_dict(
        {name: value + 1 for name, value in layer.state_dict().items()}
    ),
    "another parameter": lambda layer: setattr(
        layer, "weight", nn.Parameter(fn.tensor(layer.weight.numpy() * 3))
    ),
    "reset": lambda layer: layer.reset_parameters(),
    "another dtype": lambda layer: layer.to("float64").to("float32").weight.sub_(0.5),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("frozen", [False, True])
def test_a_change_is_seen(change, frozen):
    layer, x = example(*LAYERS[0][:2])
    layer.requires_grad_(not frozen)
    first = checked(layer, x)
    with fn.no_grad():
        change(layer)
    assert not np.array_equal(checked(layer, x), first)


def test_an_optimizer_step_is_seen():
    layer, x = example(*LAYERS[0][:2])
    optimizer = fn.optim.SGD(layer.parameters(), lr=0.1)
    outputs = []
    for _ in range(3):
        outputs.append(checked(layer, x))
        optimizer.zero_grad()
        layer(x).square().mean().backward()
        optimizer.step()
    assert not np.array_equal(outputs[0], outputs[1])
    assert not np.array_equal(outputs[1], outputs[2])


def test_writes_by_numpy_are_seen():
    """They leave no trace, so that nothing is kept of memory that NumPy may write to."""
    layer, x = example(*LAYERS[0][:2])
    layer.requires_grad_(False)
    first = checked_without_alias(layer, x)
    assert layer._packed.nbytes > 0
    layer.weight.numpy()[...] *= 2  # the alias is gone again at the next call
    second = checked_without_alias(layer, x)
    assert layer._packed.nbytes == 0
    bias = layer.bias.numpy()[:, None, None]
    assert np.allclose(second - bias, 2 * (first - bias), rtol=1e-4, atol=1e-4)


def checked_without_alias(layer, x):
    with fn.no_grad():
        return layer(x).numpy().copy()


def test_training_keeps_nothing():
    layer, x = example(*LAYERS[0][:2])
    checked(layer, x)
    assert layer._packed.nbytes > 0
    layer(x)  # recorded: the weight is about to change
    assert layer._packed.nbytes == 0


def test_gradients_of_the_input_through_a_frozen_layer():
    layer, x = example(*LAYERS[0][:2], dtype="float64")
    layer.requires_grad_(False)
    given = fn.tensor(x, requires_grad=True)
    for _ in range(2):
        given.grad = None
        layer(given).square().sum().backward()
        found = given.grad.numpy().copy()
    assert layer._packed.nbytes > 0
    layer.requires_grad_(True)
    given.grad = None
    layer(given).square().sum().backward()
    assert np.array_equal(found, given.grad.numpy())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_copies_pack_for_themselves(copied):
    layer, x = example(*LAYERS[0][:2])
    first = checked(layer, x)
    other = copied(layer)
    assert other._packed.nbytes == 0
    with fn.no_grad():
        other.weight.mul_(2.0)
    assert not np.array_equal(checked(other, x), first)
    assert np.array_equal(checked(layer, x), first)


def test_values_that_winograd_cannot_have_come_from_the_product():
    layer, x = example(*LAYERS[0][:2])
    x[0, 0, 5, 5] = np.inf
    x[1, 3, 2, 2] = np.nan
    for _ in range(2):
        out = checked(layer, x)
    assert np.isinf(out).any()
    assert np.isnan(out).any()
    assert np.isfinite(out[2]).all()


def test_many_threads_may_call_one_layer():
    layer, x = example(*LAYERS[0][:2])
    expected = plain(layer, x)
    found = []

    def call():
        with fn.no_grad():
            for _ in range(5):
                found.append(layer(x).numpy())

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    assert all(np.array_equal(out, expected) for out in found)
