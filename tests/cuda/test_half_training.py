"""Training in 16 bits: master weights of the optimisers, GradScaler on the GPU."""

from __future__ import annotations

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import nn, optim

ml_dtypes = pytest.importorskip("ml_dtypes")
DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}


@pytest.fixture(params=list(DTYPES))
def half(request):
    return request.param


def values(tensor):
    return tensor.cpu()._data.astype(np.float32)


OPTIMISERS = {
    "sgd": lambda p: optim.SGD(p, lr=1e-4),
    "momentum": lambda p: optim.SGD(p, lr=1e-4, momentum=0.9),
    "adam": lambda p: optim.AdamW(p, lr=1e-4, amsgrad=True),
    "rmsprop": lambda p: optim.RMSprop(p, lr=1e-5),
    "adagrad": lambda p: optim.Adagrad(p, lr=1e-4),
}


@pytest.mark.parametrize("name", OPTIMISERS)
def test_small_steps_add_up(half, name):
    """Steps of 1e-4 from 1, which 16 bits round away, as in float32 on the CPU."""
    start = np.ones(10, np.float32)
    ours = nn.Parameter(fn.tensor(start, dtype=half, device="cuda"))
    exact = nn.Parameter(start)
    first, second = OPTIMISERS[name]([ours]), OPTIMISERS[name]([exact])
    slope = np.linspace(0.5, 2, 10, dtype=np.float32).astype(DTYPES[half])
    memory = ours._data
    for _ in range(40):
        ours.grad = fn.tensor(slope, device="cuda")
        exact.grad = fn.tensor(slope.astype(np.float32))
        first.step()
        second.step()
    assert ours._data is memory and ours.dtype == ours.grad.dtype == DTYPES[half]
    state = first.state_dict()["state"]["#0"]
    assert state["master"].dtype == np.float32
    np.testing.assert_allclose(state["master"], exact.numpy(), rtol=1e-6)
    np.testing.assert_array_equal(values(ours), state["master"].astype(DTYPES[half]).astype("f"))
    assert all(one.dtype == np.float32 for one in state.values() if isinstance(one, np.ndarray))


def test_states_move_to_another_run(half):
    def run(parameter, optimizer, steps):
        for _ in range(steps):
            parameter.grad = fn.tensor(np.ones(3, "f"), dtype=half, device="cuda")
            optimizer.step()

    one = nn.Parameter(fn.tensor(np.ones(3, "f"), dtype=half, device="cuda"))
    first = optim.Adam([one], lr=1e-4)
    run(one, first, 3)
    other = nn.Parameter(one)
    second = optim.Adam([other], lr=1e-4)
    second.load_state_dict(first.state_dict())
    run(one, first, 3)
    run(other, second, 3)
    for key, value in first.state_dict()["state"]["#0"].items():
        np.testing.assert_array_equal(second.state_dict()["state"]["#0"][key], value)
    # A weight that somebody else writes counts, not the copy of the one before.
    with fn.no_grad():
        one.fill_(4.0)
    run(one, first, 1)
    assert abs(values(one) - 4).max() < 0.01


def test_a_scaler_finds_its_scale(xp):
    """float16 gradients of 1e-9 are there, and inf ends a step."""
    layer = nn.Linear(4, 1, bias=False).cuda()
    optimizer, scaler = optim.SGD(layer.parameters(), lr=1.0), optim.GradScaler(2.0**44)
    before = values(layer.weight)
    x = fn.tensor(np.full((1, 4), 1e-3, "f"), device="cuda")
    steps = []
    for _ in range(12):
        optimizer.zero_grad()
        with fn.autocast("float16"):
            loss = layer(x).float().sum() * 1e-6
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        steps.append(scaler.get_scale())
    assert steps[0] == 2.0**43 and steps[-1] == steps[-2] <= 2.0**36
    np.testing.assert_allclose(values(layer.weight.grad), 1e-9, rtol=1e-2)
    assert np.all(values(layer.weight) <= before)


def test_the_host_waits_once(xp, monkeypatch):
    layer = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)).cuda()
    optimizer, scaler = optim.SGD(layer.parameters(), lr=1.0), optim.GradScaler()
    scaler.scale(layer(fn.ones(1, 4, device="cuda")).sum()).backward()
    looks = []
    truth = type(layer[0].weight._data).__bool__
    monkeypatch.setattr(xp.ndarray, "__bool__", lambda self: looks.append(1) or truth(self))
    scaler.step(optimizer)
    scaler.update()
    assert len(looks) == 1


@pytest.mark.parametrize(("half", "form"), [("float16", "autocast"), ("bfloat16", "half")])
def test_a_network_learns(xp, half, form):
    """Two classes by a small network, within a few steps, in both ways of computing in 16 bits."""
    fn.manual_seed(0)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((16, 6)).astype("f")
    target = xp.asarray((x[:, 0] * x[:, 1] > 0).astype(np.int64))
    model = nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 2)).cuda()
    data = fn.tensor(x, device="cuda")
    if form == "half":
        model.to(dtype=half)
        data = data.to(half)
    optimizer, scaler = optim.Adam(model.parameters(), lr=0.05), optim.GradScaler(256.0)
    losses = []
    for _ in range(12):
        optimizer.zero_grad()
        with fn.autocast(half, enabled=form == "autocast"):
            loss = F.cross_entropy(model(data), target)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
