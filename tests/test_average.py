"""optim.EMA, the inverse-square-root schedule, and averages in checkpoints."""

import math

import numpy as np
import pytest

import fusednn as fn
from fusednn import io, nn, optim
from fusednn.optim import lr_scheduler as lrs


def leaf(value):
    return fn.tensor(np.array(value, np.float32), requires_grad=True)


def test_averages_follow_the_formula(dtype):
    w = fn.tensor(np.array([1.0, -2.0], dtype), requires_grad=True)
    ema = optim.EMA([w], decay=0.9)
    expected = w.numpy().astype(np.float64)
    for k in range(100):
        with fn.no_grad():
            w[...] = np.array([k, 3.0], dtype)
        ema.update()
        d = min(0.9, (1 + k) / (10 + k))
        expected = d * expected + (1 - d) * w.numpy()
        with ema.averaged():
            assert w.dtype == np.dtype(dtype)
            np.testing.assert_allclose(w.numpy(), expected, rtol=1e-5)
        assert w.numpy().tolist() == [k, 3.0]


def test_weights_come_back_after_an_error():
    w = leaf([1.0])
    ema = optim.EMA([w], 0.5)
    with pytest.raises(RuntimeError, match="inside"), ema.averaged():
        w.numpy()[...]  # the averages
        raise RuntimeError("inside")
    assert w.item() == 1.0


def test_a_swap_between_forward_and_backward_is_noticed():
    w = leaf([1.0])
    ema = optim.EMA([w])
    loss = (w * w).sum()
    with ema.averaged():
        pass
    with pytest.raises(RuntimeError, match="changed"):
        loss.backward()


def test_averages_are_resumed_by_name():
    a, b = nn.Linear(2, 3), nn.Linear(2, 3)
    first, second = (optim.EMA(m.parameters(), 0.9) for m in (a, b))
    first.update()
    state = first.state_dict()
    assert set(state["averages"]) == {"weight", "bias"}
    second.load_state_dict(state)
    assert second.updates == 1
    with second.averaged():
        np.testing.assert_array_equal(b.weight.numpy(), a.weight.numpy())


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"decay": 0.5}, "decay of the state is 0.5, here it is 0.9"),
        ({"updates": -1}, "updates of the state is -1, expected a count"),
        ({"averages": {"weight": np.zeros((3, 2))}}, "other parameters: bias"),
        ({"averages": {"weight": np.zeros((2, 2)), "bias": np.zeros(3)}}, "weight of the state"),
        ({"averages": {"weight": np.zeros((3, 2)), "bias": [1, 2]}}, "bias of the state is not"),
        ({"averages": None}, "expects what state_dict"),
    ],
)
def test_states_that_do_not_fit_change_nothing(change, text):
    layer = nn.Linear(2, 3)
    ema = optim.EMA(layer.parameters(), 0.9)
    before = ema.state_dict()
    with pytest.raises(ValueError, match=text):
        ema.load_state_dict({**before, **change})
    after = ema.state_dict()
    assert after["updates"] == 0
    for name, value in before["averages"].items():
        np.testing.assert_array_equal(after["averages"][name], value)


@pytest.mark.parametrize("decay", [1.0, -0.1, math.nan])
def test_bad_averages_are_refused(decay):
    with pytest.raises(ValueError, match="EMA: decay="):
        optim.EMA([leaf([1.0])], decay)
    with pytest.raises(ValueError, match="EMA: params is empty"):
        optim.EMA([])
    with pytest.raises(TypeError, match="EMA: params must hold Tensors, got int"):
        optim.EMA([3])


def test_checkpoints_hold_averages(tmp_path):
    model = nn.Linear(2, 1)
    ema = optim.EMA(model.parameters())
    ema.update()
    path = tmp_path / "run.safetensors"
    io.save_checkpoint(path, model=model, average=ema)
    other = nn.Linear(2, 1)
    fresh = optim.EMA(other.parameters())
    io.load_checkpoint(path, model=other, average=fresh)
    assert fresh.updates == 1
    wrong = optim.EMA(other.parameters(), 0.5)
    before = other.weight.numpy().copy()
    with pytest.raises(ValueError, match="decay of the state"):
        io.load_checkpoint(path, model=other, average=wrong)
    np.testing.assert_array_equal(other.weight.numpy(), before)


def rates(make, steps):
    optimizer = optim.SGD([leaf([1.0])], lr=0.5)
    schedule, out = make(optimizer), []
    for _ in range(steps):
        out.append(schedule.get_last_lr()[0])
        schedule.step()
    return out


@pytest.mark.parametrize("warmup", [1, 4, 7])
def test_inverse_square_root(warmup):
    found = rates(lambda o: lrs.InverseSqrtLR(o, warmup), 50)
    for k, rate in enumerate(found):
        factor = min((k + 1) / warmup, math.sqrt(warmup / (k + 1)))
        assert rate == pytest.approx(0.5 * factor, rel=1e-12)
    assert found[warmup - 1] == 0.5
    assert max(found) == 0.5


def test_inverse_square_root_resumes_and_refuses():
    optimizer = optim.SGD([leaf([1.0])], lr=0.5)
    schedule = lrs.InverseSqrtLR(optimizer, 3)
    for _ in range(5):
        schedule.step()
    state, rate = schedule.state_dict(), schedule.get_last_lr()
    other = lrs.InverseSqrtLR(optim.SGD([leaf([1.0])], lr=0.5), 3)
    other.load_state_dict(state)
    assert other.get_last_lr() == rate
    with pytest.raises(ValueError, match="InverseSqrtLR: warmup_iters=0, expected a number >= 1"):
        lrs.InverseSqrtLR(optimizer, 0)
    with pytest.raises(ValueError, match="warmup_iters of the state is 3, here it is 4"):
        lrs.InverseSqrtLR(optimizer, 4).load_state_dict(state)
