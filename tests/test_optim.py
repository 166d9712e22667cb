"""Optimisers, schedules, clipping, and what they save."""

import math

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import nn, optim
from fusednn.optim import lr_scheduler as lrs

f32, f64 = np.float32, np.float64


def leaf(data, dtype=f64):
    return fn.tensor(np.asarray(data, dtype), requires_grad=True)


def with_grad(data, grad, dtype=f64):
    x = leaf(data, dtype)
    x.grad = np.asarray(grad, dtype)
    return x


# ---- updates -------------------------------------------------------------------------------------

UPDATES = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "dampening": 0.5, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1}),
    ("SGD", {"lr": 0.1, "momentum": 0.5, "maximize": True}),
    ("Adam", {}),
    ("Adam", {"lr": 0.01, "betas": (0.5, 0.9), "eps": 1e-3, "weight_decay": 0.1}),
    ("Adam", {"amsgrad": True, "lr": 0.1, "betas": (0.5, 0.6)}),
    ("Adam", {"maximize": True, "weight_decay": 0.1}),
    ("AdamW", {}),
    ("AdamW", {"lr": 0.1, "weight_decay": 0.3, "amsgrad": True}),
    ("AdamW", {"maximize": True}),
    ("RMSprop", {}),
    ("RMSprop", {"momentum": 0.9, "centered": True, "weight_decay": 0.1, "alpha": 0.8}),
    ("RMSprop", {"maximize": True}),
    ("Adagrad", {}),
    ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1, "initial_accumulator_value": 0.2}),
]


@pytest.mark.parametrize(("name", "options"), UPDATES)
def test_updates_match_torch(name, options):
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    start = random.standard_normal((5, 7))
    ours, theirs = leaf(start), torch.tensor(start, requires_grad=True)
    a = getattr(optim, name)([ours], **options)
    b = getattr(torch.optim, name)([theirs], **options)
    for _ in range(5):
        grad = random.standard_normal((5, 7))
        ours.grad, theirs.grad = grad, torch.tensor(grad)
        a.step()
        b.step()
        np.testing.assert_allclose(ours.numpy(), theirs.detach().numpy(), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_every_optimiser_fits_a_line(name):
    fn.manual_seed(0)
    x = np.linspace(-1, 1, 32, dtype=f32)[:, None]
    layer = nn.Linear(1, 1)
    optimizer = getattr(optim, name)(layer.parameters(), lr=0.5 if name == "Adagrad" else 0.05)
    for _ in range(300):
        optimizer.zero_grad()
        F.mse_loss(layer(x), 3 * x + 2).backward()
        optimizer.step()
    assert layer.weight.item() == pytest.approx(3, abs=0.25)
    assert layer.bias.item() == pytest.approx(2, abs=0.25)


def test_step_and_zero_grad():
    a, b = with_grad([1.0], [1.0]), leaf([5.0])
    optimizer = optim.SGD([a, b], lr=0.5)
    version = a._memory[0]
    assert optimizer.step() is None
    assert a.tolist() == [0.5]
    assert a._memory[0] == version + 1
    assert b.tolist() == [5]
    optimizer.zero_grad()
    assert a.grad is None

    def closure():
        loss = (a * 3).sum()
        loss.backward()
        return loss

    with fn.no_grad():
        assert optimizer.step(closure).item() == 1.5
    assert a.tolist() == [-1]


def test_a_step_between_forward_and_backward_is_noticed():
    w = with_grad([2.0], [1.0])
    y = (w * w).sum()
    optim.SGD([w], lr=0.1).step()
    with pytest.raises(RuntimeError, match="mul: a value that the gradient of mul needs"):
        y.backward()


def test_groups_have_their_own_options():
    a, b = with_grad([1.0], [1.0]), with_grad([1.0], [1.0])
    optimizer = optim.SGD([{"params": a}, {"params": [b], "lr": 0.5}], lr=0.1)
    optimizer.step()
    assert (a.item(), b.item()) == (0.9, 0.5)
    c = with_grad([1.0], [1.0])
    optimizer.add_param_group({"params": [c], "lr": 1.0})
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step()
    assert (a.item(), c.item()) == (0.9, 0.0)
    assert repr(optimizer).startswith("SGD (\nParameter Group 0\n    dampening: 0.0\n    lr: 0.0")


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: optim.SGD([]), ValueError, "SGD: params is empty"),
        (lambda: optim.SGD(leaf([1.0])), TypeError, "params must be an iterable of Tensors"),
        (lambda: optim.SGD([1.0]), TypeError, "params must hold Tensors, got float"),
        (lambda: optim.SGD([leaf([1.0]) * 2]), ValueError, "can only optimise leaf tensors"),
        (lambda: optim.SGD([fn.arange(3)]), TypeError, "dtype int64, expected floats"),
        (
            lambda: optim.SGD([leaf([1.0])], lr=-1),
            ValueError,
            "SGD: lr=-1, expected a finite",
        ),
        (lambda: optim.SGD([leaf([1.0])], lr=math.nan), ValueError, "lr=nan"),
        (lambda: optim.SGD([leaf([1.0])], lr="x"), TypeError, "lr must be a number, got str"),
        (lambda: optim.SGD([leaf([1.0])], nesterov=True), ValueError, "nesterov needs a momentum"),
        (lambda: optim.Adam([leaf([1.0])], betas=(0.9, 1)), ValueError, r"betas=\(0.9, 1\)"),
        (
            lambda: optim.Adam([{"params": [leaf([1.0])], "momentum": 1}]),
            ValueError,
            "Adam: unknown options 'momentum' in a group, known: lr, betas",
        ),
        (lambda: optim.SGD([{"lr": 1}]), TypeError, "a group must be a dictionary with 'params'"),
    ],
)
def test_bad_optimisers_are_refused(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_a_parameter_given_twice_is_refused():
    w = leaf([1.0])
    with pytest.raises(ValueError, match="a parameter was given twice"):
        optim.SGD([w, w])
    with pytest.raises(ValueError, match="given twice"):
        optim.SGD([{"params": [w]}, {"params": [w]}])


# ---- names and state -----------------------------------------------------------------------------


def test_state_is_keyed_by_name():
    def two(order):
        a, b = with_grad([0.0], [1.0]), with_grad([0.0], [5.0])
        pairs = {"a": ("a", a), "b": ("b", b)}
        return a, b, optim.Adam([pairs[name] for name in order])

    a, b, first = two("ab")
    first.step()
    saved = first.state_dict()
    assert saved["state"]["b"]["exp_avg"] == pytest.approx(0.5)
    a, b, second = two("ba")
    second.load_state_dict(saved)
    assert second.state[b]["exp_avg"] == pytest.approx(0.5)
    assert second.state[a]["exp_avg"] == pytest.approx(0.1)
    assert second.state[a]["step"] == 1


def test_parameters_of_a_module_know_their_names():
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    names = ["0.weight", "0.bias", "1.weight", "1.bias"]
    for given in (net.parameters(), net.named_parameters(), list(net.parameters())):
        assert optim.AdamW(given).param_groups[0]["param_names"] == names
    groups = optim.SGD([{"params": net[0].parameters()}, {"params": net[1].parameters()}])
    assert groups.param_groups[1]["param_names"] == ["group1.weight", "group1.bias"]
    both = optim.SGD([*net[0].parameters(), *net[1].parameters(), leaf([1.0])])
    assert both.param_groups[0]["param_names"] == ["weight", "bias", "#2", "#3", "#4"]


@pytest.mark.parametrize("name", ["SGD", "Adam", "AdamW", "RMSprop", "Adagrad"])
def test_a_resumed_run_goes_on_with_the_same_bits(name):
    options = {"SGD": {"momentum": 0.9}, "Adam": {"amsgrad": True}, "RMSprop": {"centered": True}}

    def build():
        fn.manual_seed(0)
        net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
        return net, getattr(optim, name)(net.parameters(), lr=0.01, **options.get(name, {}))

    def run(net, optimizer, steps):
        x = np.random.default_rng(1).standard_normal((8, 3)).astype(f32)
        for _ in range(steps):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()

    net, optimizer = build()
    run(net, optimizer, 3)
    weights, state = net.state_dict(), optimizer.state_dict()
    run(net, optimizer, 3)
    again, resumed = build()
    again.load_state_dict(weights)
    resumed.load_state_dict(state)
    run(again, resumed, 3)
    for key, value in net.state_dict().items():
        np.testing.assert_array_equal(again.state_dict()[key], value)


def test_state_that_does_not_fit_is_refused_and_changes_nothing():
    w = with_grad(np.zeros((2, 3)), np.ones((2, 3)))
    optimizer = optim.Adam([("w", w)])
    optimizer.step()
    good = optimizer.state_dict()

    def changed(**entry):
        state = {"w": {**good["state"]["w"], **entry}}
        return {**good, "state": state}

    group = good["param_groups"][0]
    other = optim.Adam([("v", with_grad([1.0], [1.0]))]).state_dict()
    for state, text in (
        (other, "the state is of other parameters; missing: w; unexpected: v"),
        ({}, r"load_state_dict expects what state_dict\(\) gave"),
        ({**good, "param_groups": []}, "the state has 0 groups, expected 1"),
        (changed(exp_avg=np.zeros(3)), r"exp_avg of w has shape \(3,\), expected \(2, 3\)"),
        (changed(exp_avg=[1.0]), "exp_avg of w is not an array of floats"),
        (changed(step=-1), "step of w is -1, expected a count"),
        (changed(step="x"), "step of w is 'x'"),
        (changed(momentum_buffer=np.zeros((2, 3))), "w has state 'momentum_buffer', which is not"),
        ({**good, "param_groups": [{**group, "momentum": 1}]}, "options momentum do not fit"),
        ({**good, "param_groups": [{**group, "lr": -1}]}, "lr=-1, expected a finite number >= 0"),
    ):
        with pytest.raises(ValueError, match=text):
            optimizer.load_state_dict(state)
    assert optimizer.state[w]["step"] == 1
    optimizer.load_state_dict(good)


# ---- clipping ------------------------------------------------------------------------------------


def test_clip_grad_norm():
    a, b = with_grad([3.0, 0.0], [3.0, 0.0]), with_grad([4.0], [4.0])
    ignored = leaf([1.0])
    norm = optim.clip_grad_norm_([a, b, ignored], 10.0)
    assert type(norm) is float
    assert norm == 5
    assert a.grad.tolist() == [3, 0]
    assert nn.utils.clip_grad_norm_([a, b], 1.0) == 5
    np.testing.assert_allclose(a.grad.numpy(), [0.6, 0], rtol=1e-6)
    np.testing.assert_allclose(b.grad.numpy(), [0.8], rtol=1e-6)
    assert optim.clip_grad_norm_(iter([a]), math.inf) == pytest.approx(0.6)
    assert optim.clip_grad_norm_([], 1.0) == 0
    assert optim.clip_grad_norm_(a, 0.0) == pytest.approx(0.6)
    assert a.grad.tolist() == [0, 0]


@pytest.mark.parametrize("dtype", [f32, f64])
def test_clip_grad_norm_neither_overflows_nor_underflows(dtype):
    large = 3e38 if dtype == f32 else 1e300
    x = with_grad([0.0, 0.0], [large, large], dtype)
    norm = optim.clip_grad_norm_([x], 1.0)
    assert norm == pytest.approx(large * math.sqrt(2), rel=1e-6)
    np.testing.assert_allclose(x.grad.numpy(), [math.sqrt(0.5)] * 2, rtol=1e-6)
    small = 1e-40 if dtype == f32 else 1e-300
    x = with_grad([0.0, 0.0], [small, small], dtype)
    assert optim.clip_grad_norm_([x], 1.0) == pytest.approx(small * math.sqrt(2), rel=1e-4)


@pytest.mark.parametrize("bad", [[math.inf, 1.0, 2.0], [math.nan, 1.0, math.inf]])
def test_a_norm_that_is_not_finite_leaves_the_gradients_alone(bad):
    x, y = with_grad([0.0] * 3, bad, f32), with_grad([0.0], [1.0], f32)
    norm = optim.clip_grad_norm_([x, y], 1.0)
    assert not math.isfinite(norm)
    np.testing.assert_array_equal(x.grad.numpy(), np.array(bad, f32))
    assert y.grad.tolist() == [1]
    with pytest.raises(
        RuntimeError, match=r"clip_grad_norm_: the norm of the gradients is (inf|nan)"
    ):
        optim.clip_grad_norm_([x, y], 1.0, True)
    assert y.grad.tolist() == [1]


def test_clip_grad_norm_arguments():
    x = with_grad([0.0, 0.0], [3.0, 4.0])
    for limit in (-1, math.nan):
        with pytest.raises(ValueError, match=rf"clip_grad_norm_: max_norm={limit}, expected"):
            optim.clip_grad_norm_([x], limit)
        with pytest.raises(ValueError, match=rf"clip_grad_value_: clip_value={limit}, expected"):
            optim.clip_grad_value_([x], limit)
    with pytest.raises(ValueError, match="norm_type=0"):
        optim.clip_grad_norm_([x], 1, norm_type=0)
    with pytest.raises(TypeError, match="parameters must be Tensors, got ndarray"):
        optim.clip_grad_norm_([np.zeros(2)], 1)
    assert x.grad.tolist() == [3, 4]
    assert optim.clip_grad_norm_([x], 100, norm_type=math.inf) == 4
    assert optim.clip_grad_norm_([x], 100, norm_type=1) == pytest.approx(7)
    assert optim.clip_grad_norm_([x], 100, norm_type=3) == pytest.approx((27 + 64) ** (1 / 3))


def test_clip_grad_value():
    x = with_grad([0.0] * 4, [-5.0, 0.5, 7.0, math.nan])
    optim.clip_grad_value_([x], 1.0)
    np.testing.assert_array_equal(x.grad.numpy(), [-1, 0.5, 1, math.nan])


def test_clipping_never_writes_into_a_users_array():
    mine = np.array([3.0, 4.0])
    x = leaf([0.0, 0.0])
    x.grad = fn.from_numpy(mine)
    optim.clip_grad_norm_([x], 1.0)
    assert mine.tolist() == [3, 4]
    np.testing.assert_allclose(x.grad.numpy(), [0.6, 0.8], rtol=1e-6)
    seen = x.grad.numpy()
    optim.clip_grad_value_([x], 0.1)
    np.testing.assert_allclose(seen, [0.6, 0.8], rtol=1e-6)


def test_clip_grad_norm_matches_torch():
    torch = pytest.importorskip("torch")
    grads = [np.random.default_rng(i).standard_normal((40, 500)).astype(f32) for i in range(3)]
    ours = [with_grad(np.zeros((40, 500)), g, f32) for g in grads]
    theirs = [torch.zeros(40, 500, requires_grad=True) for _ in grads]
    for t, g in zip(theirs, grads, strict=True):
        t.grad = torch.tensor(g)
    a = optim.clip_grad_norm_(ours, 2.0)
    b = torch.nn.utils.clip_grad_norm_(theirs, 2.0).item()
    assert a == pytest.approx(b, rel=1e-5)
    for x, t in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(x.grad.numpy(), t.grad.numpy(), rtol=1e-5)


# ---- schedules -----------------------------------------------------------------------------------


def rates(make, steps=12, base=0.4, groups=1):
    """The first group's rate at each update."""
    optimizer = optim.SGD([{"params": [leaf([1.0])]} for _ in range(groups)], lr=base, momentum=0.9)
    schedule = make(optimizer)
    out = []
    for _ in range(steps):
        out.append(optimizer.param_groups[0]["lr"])
        assert schedule.get_last_lr()[0] == out[-1]
        schedule.step()
    return out


SCHEDULES = {
    "step": lambda m, o: m.StepLR(o, 3, 0.5),
    "multi-step": lambda m, o: m.MultiStepLR(o, [2, 5, 5], 0.5),
    "constant": lambda m, o: m.ConstantLR(o, 0.25, 4),
    "linear": lambda m, o: m.LinearLR(o, 0.25, 0.75, 4),
    "exponential": lambda m, o: m.ExponentialLR(o, 0.9),
    "cosine": lambda m, o: m.CosineAnnealingLR(o, 5, 0.01),
    "lambda": lambda m, o: m.LambdaLR(o, lambda k: 1 / (k + 1)),
    "multiplicative": lambda m, o: m.MultiplicativeLR(o, lambda k: 0.9),
    "one cycle": lambda m, o: m.OneCycleLR(o, 1.0, 12),
    "one cycle linear": lambda m, o: m.OneCycleLR(o, 1.0, 13, anneal_strategy="linear"),
    "one cycle three": lambda m, o: m.OneCycleLR(
        o, 1.0, epochs=4, steps_per_epoch=3, three_phase=True, pct_start=0.4, div_factor=10
    ),
    "sequential": lambda m, o: m.SequentialLR(
        o, [m.ConstantLR(o, 0.5, 2), m.ExponentialLR(o, 0.9), m.StepLR(o, 2)], [3, 7]
    ),
    "sequential cosine": lambda m, o: m.SequentialLR(
        o, [m.LinearLR(o, 0.1, 1.0, 4), m.CosineAnnealingLR(o, 6)], [4]
    ),
    "chained": lambda m, o: m.ChainedScheduler([m.ConstantLR(o, 0.5, 3), m.ExponentialLR(o, 0.9)]),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules_match_torch(name):
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4, momentum=0.9)
    schedule, expected = SCHEDULES[name](torch.optim.lr_scheduler, optimizer), []
    for _ in range(12):
        expected.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    found = rates(lambda o: SCHEDULES[name](lrs, o))
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-15)


def test_one_cycle_moves_the_momentum():
    torch = pytest.importorskip("torch")
    for options in ({}, {"three_phase": True}):
        mine = optim.SGD([leaf([1.0])], lr=0.1, momentum=0.9)
        adam = optim.Adam([leaf([1.0])])
        other = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9)
        schedules = [
            lrs.OneCycleLR(mine, 1.0, 10, **options),
            lrs.OneCycleLR(adam, 1.0, 10, **options),
            torch.optim.lr_scheduler.OneCycleLR(other, 1.0, 10, **options),
        ]
        for _ in range(9):
            expected = other.param_groups[0]["momentum"]
            assert mine.param_groups[0]["momentum"] == pytest.approx(expected)
            assert adam.param_groups[0]["betas"] == (pytest.approx(expected), 0.999)
            other.step()
            for schedule in schedules:
                schedule.step()


def test_warm_up_starts_above_zero_and_ends_at_the_base():
    found = rates(lambda o: lrs.LinearWarmup(o, 4), 5, 1.0)
    assert found == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert rates(lambda o: lrs.LambdaLR(o, lambda k: min(1, (k + 1) / 4)), 5, 1.0) == found
    assert rates(lambda o: lrs.LinearWarmup(o, 5), 7, 5.0)[4:] == [5.0, 5.0, 5.0]
    for n in range(1, 60):
        assert rates(lambda o, n=n: lrs.LinearWarmup(o, n), n, 0.3)[-1] == 0.3
    assert rates(lambda o: lrs.LinearWarmup(o, 0), 2, 0.3) == [0.3, 0.3]
    both = rates(
        lambda o: lrs.SequentialLR(o, [lrs.LinearWarmup(o, 3), lrs.CosineAnnealingLR(o, 4)], [3]),
        8,
        1.0,
    )
    np.testing.assert_allclose(both[:4], [1 / 3, 2 / 3, 1, 1])
    assert both[3] > both[4] > both[7] == pytest.approx(0)


def test_reduce_on_plateau_matches_torch():
    torch = pytest.importorskip("torch")
    metrics = [1.0, 0.9, 0.9, 0.9, 0.95, 0.5, 0.6, 0.6, 0.6, 0.6, 0.6, 0.4999, 0.6, 0.6, math.nan]
    for options in (
        {"patience": 1},
        {"patience": 1, "cooldown": 2, "min_lr": 0.05},
        {"patience": 0, "mode": "max", "threshold": 0.01, "threshold_mode": "abs"},
    ):
        mine = optim.SGD([leaf([1.0])], lr=0.4)
        other = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.4)
        a = lrs.ReduceLROnPlateau(mine, factor=0.5, **options)
        b = torch.optim.lr_scheduler.ReduceLROnPlateau(other, factor=0.5, **options)
        for metric in metrics:
            a.step(fn.tensor(metric))
            b.step(metric)
            assert mine.param_groups[0]["lr"] == pytest.approx(other.param_groups[0]["lr"])
    with pytest.raises(TypeError, match="ReduceLROnPlateau: step needs the metric"):
        a.step()


@pytest.mark.parametrize("name", [*SCHEDULES, "warm-up"])
def test_schedules_resume(name):
    make = SCHEDULES.get(name, lambda m, o: m.LinearWarmup(o, 4))

    def build():
        optimizer = optim.SGD([leaf([1.0])], lr=0.4, momentum=0.9)
        return optimizer, make(lrs, optimizer)

    optimizer, schedule = build()
    for _ in range(5):
        schedule.step()
    saved = optimizer.state_dict(), schedule.state_dict()
    again, resumed = build()
    again.load_state_dict(saved[0])
    resumed.load_state_dict(saved[1])
    for _ in range(5):
        schedule.step()
        resumed.step()
        assert again.param_groups[0]["lr"] == optimizer.param_groups[0]["lr"]
        assert resumed.get_last_lr() == schedule.get_last_lr()


def test_last_epoch_resumes_a_schedule():
    optimizer = optim.SGD([leaf([1.0])], lr=0.4)
    with pytest.raises(ValueError, match="last_epoch=3 resumes a schedule, but the groups have no"):
        lrs.ExponentialLR(optimizer, 0.5, last_epoch=3)
    lrs.ExponentialLR(optimizer, 0.5)
    lrs.StepLR(optimizer, 4, 0.5, last_epoch=3)
    assert optimizer.param_groups[0]["lr"] == 0.2


def test_groups_keep_their_own_base():
    optimizer = optim.SGD(
        [{"params": [leaf([1.0])], "lr": 1.0}, {"params": [leaf([1.0])], "lr": 2.0}]
    )
    schedule = lrs.LambdaLR(optimizer, [lambda k: 0.5, lambda k: 0.25])
    assert schedule.get_last_lr() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda o: lrs.StepLR(o, 0), ValueError, "StepLR: step_size=0, expected a number >= 1"),
        (lambda o: lrs.StepLR([], 1), TypeError, "optimizer must be an Optimizer, got list"),
        (lambda o: lrs.ConstantLR(o, 0), ValueError, r"factor=0, expected a number in \(0, 1\]"),
        (lambda o: lrs.LinearLR(o, 0), ValueError, "start_factor=0"),
        (lambda o: lrs.LinearLR(o, 1, 2), ValueError, "end_factor=2"),
        (lambda o: lrs.LinearWarmup(o, -1), ValueError, "total_iters=-1"),
        (lambda o: lrs.CosineAnnealingLR(o, 0), ValueError, "T_max=0"),
        (lambda o: lrs.LambdaLR(o, []), ValueError, "0 functions, expected 1"),
        (lambda o: lrs.OneCycleLR(o, 1.0), ValueError, "give total_steps, or epochs and steps"),
        (lambda o: lrs.OneCycleLR(o, 1.0, 5, pct_start=2), ValueError, "pct_start=2"),
        (lambda o: lrs.OneCycleLR(o, 1.0, 5, anneal_strategy="x"), ValueError, "anneal_strategy"),
        (lambda o: lrs.OneCycleLR(o, [1.0, 2.0], 5), ValueError, "2 values of max_lr, expected 1"),
        (
            lambda o: lrs.ReduceLROnPlateau(o, "up"),
            ValueError,
            "mode='up', expected 'min' or 'max'",
        ),
        (lambda o: lrs.ReduceLROnPlateau(o, factor=1.0), ValueError, "factor=1.0"),
        (lambda o: lrs.SequentialLR(o, [], []), ValueError, "schedulers is empty"),
        (lambda o: lrs.SequentialLR(o, [lrs.StepLR(o, 1)], [1]), ValueError, "1 milestones for 1"),
        (
            lambda o: lrs.ChainedScheduler([lrs.StepLR(o, 1)], optim.SGD([leaf([1.0])])),
            ValueError,
            "must change the same optimiser",
        ),
        (lambda o: lrs.StepLR(o, 2).load_state_dict({}), ValueError, r"the state has \[\]"),
    ],
)
def test_bad_schedules_are_refused(make, error, text):
    with pytest.raises(error, match=text):
        make(optim.SGD([leaf([1.0])]))


def test_one_cycle_ends():
    schedule = lrs.OneCycleLR(optim.SGD([leaf([1.0])], momentum=0.9), 1.0, 3)
    for _ in range(3):
        schedule.step()
    with pytest.raises(ValueError, match="step 4 of a schedule of 3 steps"):
        schedule.step()


def test_a_shared_gradient_is_clipped_once():
    a, b = fn.zeros(2, requires_grad=True), fn.zeros(2, requires_grad=True)
    a.grad = b.grad = fn.tensor([3.0, 4.0])
    norm = 50**0.5
    assert optim.clip_grad_norm_([a, b], 1.0) == pytest.approx(norm)
    assert a.grad is b.grad
    assert a.grad.tolist() == pytest.approx([3 / norm, 4 / norm], rel=1e-5)
    a.grad = np.array([3, 4], np.float32)
    assert optim.clip_grad_norm_([a, a], 1.0) == 5
    assert a.grad.tolist() == pytest.approx([0.6, 0.8], rel=1e-5)
