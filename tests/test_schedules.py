"""Schedules beside PyTorch's, resumed in the middle, and what they refuse."""

import math

import numpy as np
import pytest

import fusednn as fn
from fusednn import optim
from fusednn.optim import lr_scheduler


def optimizer(momentum=0.9):
    groups = [{"params": [fn.zeros(1, requires_grad=True)]} for _ in range(2)]
    groups[1]["lr"] = 0.3
    return optim.SGD(groups, lr=1.0, momentum=momentum)


def rates(one):
    return [[group["lr"], group["momentum"]] for group in one.param_groups]


SCHEDULES = {
    "lambda": lambda S, o: S.LambdaLR(o, lambda k: 1 / (k + 1)),
    "multiplicative": lambda S, o: S.MultiplicativeLR(o, lambda k: 0.95),
    "step": lambda S, o: S.StepLR(o, 7, 0.5),
    "multi-step": lambda S, o: S.MultiStepLR(o, [3, 3, 10], 0.1),
    "constant": lambda S, o: S.ConstantLR(o, 0.3, 6),
    "linear": lambda S, o: S.LinearLR(o, 0.1, 0.9, 9),
    "linear to 0": lambda S, o: S.LinearLR(o, 1.0, 0.0, 10),
    "exponential": lambda S, o: S.ExponentialLR(o, 0.9),
    "cosine": lambda S, o: S.CosineAnnealingLR(o, 13, 0.01),
    "cosine of 1": lambda S, o: S.CosineAnnealingLR(o, 1, 0.01),
    "restarts": lambda S, o: S.CosineAnnealingWarmRestarts(o, 7, 1, 0.01),
    "longer restarts": lambda S, o: S.CosineAnnealingWarmRestarts(o, 3, 2),
    "polynomial": lambda S, o: S.PolynomialLR(o, 30, 0.9),
    "cyclic": lambda S, o: S.CyclicLR(o, 0.01, [0.5, 0.1], 4, 7),
    "cyclic, halved": lambda S, o: S.CyclicLR(o, [0.01, 0.02], 0.5, 5, mode="triangular2"),
    "cyclic, fading": lambda S, o: S.CyclicLR(o, 0.1, 0.5, 3, mode="exp_range", gamma=0.9),
    "cyclic, scaled": lambda S, o: S.CyclicLR(
        o, 0.1, 0.5, 3, scale_fn=lambda k: 1 / (k + 1), scale_mode="iterations"
    ),
    "one-cycle": lambda S, o: S.OneCycleLR(o, [2.0, 1.0], total_steps=51),
    "one-cycle of 3": lambda S, o: S.OneCycleLR(
        o, 2.0, epochs=5, steps_per_epoch=11, three_phase=True, anneal_strategy="linear"
    ),
    "sequential": lambda S, o: S.SequentialLR(
        o,
        [S.LinearLR(o, 0.1, 1.0, 5), S.CosineAnnealingLR(o, 20), S.ExponentialLR(o, 0.9)],
        [5, 25],
    ),
    "sequential steps": lambda S, o: S.SequentialLR(
        o, [S.StepLR(o, 3, 0.5), S.MultiStepLR(o, [2, 6], 0.1)], [9]
    ),
    "chained": lambda S, o: S.ChainedScheduler(
        [S.LinearLR(o, 0.5, 1.0, 6), S.CosineAnnealingLR(o, 30), S.StepLR(o, 10, 0.5)]
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.filterwarnings("ignore")
def test_fifty_updates_match_torch_also_resumed(name):
    torch = pytest.importorskip("torch")
    make, ours = SCHEDULES[name], optimizer()
    groups = [{"params": [torch.zeros(1)]} for _ in range(2)]
    groups[1]["lr"] = 0.3
    theirs = torch.optim.SGD(groups, lr=1.0, momentum=0.9)
    schedule, expected = make(lr_scheduler, ours), make(torch.optim.lr_scheduler, theirs)
    for k in range(50):
        np.testing.assert_allclose(rates(ours), rates(theirs), rtol=1e-9, atol=1e-14)
        np.testing.assert_allclose(
            schedule.get_last_lr(), expected.get_last_lr(), rtol=1e-9, atol=1e-14
        )
        if k == 23:
            again = optimizer()
            resumed = make(lr_scheduler, again)
            resumed.load_state_dict(schedule.state_dict())
            again.load_state_dict(ours.state_dict())
            ours, schedule = again, resumed
        ours.step()
        theirs.step()
        schedule.step()
        expected.step()


def test_schedules_of_schedules_of_schedules():
    # The chain's first update is what its members make of it, also within another schedule.
    one = optimizer()
    chain = lr_scheduler.ChainedScheduler(
        [lr_scheduler.LinearLR(one, 0.5, 1.0, 2), lr_scheduler.ExponentialLR(one, 0.5)]
    )
    schedule = lr_scheduler.SequentialLR(one, [chain, lr_scheduler.ConstantLR(one, 0.1, 1)], [3])
    seen = []
    for _ in range(5):
        seen.append(one.param_groups[0]["lr"])
        schedule.step()
    assert seen == pytest.approx([0.5, 0.375, 0.25, 0.1, 1.0])
    # A sequence within a sequence starts with its first member.
    one = optimizer()
    inner = lr_scheduler.SequentialLR(
        one, [lr_scheduler.LinearWarmup(one, 2), lr_scheduler.ExponentialLR(one, 0.5)], [2]
    )
    schedule = lr_scheduler.SequentialLR(one, [lr_scheduler.ConstantLR(one, 0.1, 2), inner], [2])
    seen = []
    for _ in range(6):
        seen.append(one.param_groups[0]["lr"])
        schedule.step()
    assert seen == pytest.approx([0.1, 0.1, 0.5, 1.0, 1.0, 0.5])


@pytest.mark.parametrize("name", SCHEDULES)
def test_groups_added_later(name):
    one = optimizer()
    schedule = SCHEDULES[name](lr_scheduler, one)
    schedule.step()
    one.add_param_group({"params": [fn.zeros(1, requires_grad=True)], "lr": 0.7})
    before = schedule.last_epoch
    try:
        schedule.step()
    except ValueError as error:
        assert "the optimiser has 3 groups, but had 2 when the schedule was made" in str(error)
        assert schedule.last_epoch == before
        assert name not in ("step", "multi-step", "exponential", "chained")
    else:  # a schedule that changes the rate which it finds
        assert len(schedule.get_last_lr()) == 3
        assert name not in ("lambda", "restarts", "one-cycle", "cyclic", "sequential")


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda o: lr_scheduler.StepLR(o, 2, "x"), TypeError, "StepLR: gamma must be a number"),
        (
            lambda o: lr_scheduler.ExponentialLR(o, None),
            TypeError,
            "gamma must be a number, got",
        ),
        (lambda o: lr_scheduler.MultiStepLR(o, [1], True), TypeError, "MultiStepLR: gamma must"),
        (lambda o: lr_scheduler.PolynomialLR(o, 0), ValueError, "PolynomialLR: total_iters=0"),
        (lambda o: lr_scheduler.PolynomialLR(o, 3, "2"), TypeError, "power must be a number"),
        (lambda o: lr_scheduler.CyclicLR(o, 0.1, 1.0, 0), ValueError, "CyclicLR: step_size_up=0"),
        (lambda o: lr_scheduler.CyclicLR(o, 0.1, 1.0, mode="x"), ValueError, "mode='x', expected"),
        (lambda o: lr_scheduler.CyclicLR(o, [0.1], 1.0), ValueError, "1 values of base_lr, expec"),
        (
            lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 0),
            ValueError,
            "CosineAnnealingWarmRestarts: T_0=0, expected a number >= 1",
        ),
        (
            lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2, 0.5),
            ValueError,
            "T_mult=0.5, expected a number >= 1",
        ),
    ],
)
def test_bad_schedules_are_refused(make, error, text):
    with pytest.raises(error, match=text):
        make(optimizer())


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda p: optim.SGD(p, lr=math.inf), ValueError, "lr=inf, expected a finite number >= 0"),
        (lambda p: optim.SGD(p, dampening="x"), TypeError, "dampening must be a number, got str"),
        (lambda p: optim.SGD(p, dampening=math.nan), ValueError, "dampening=nan"),
        (lambda p: optim.Adam(p, betas=0.9), ValueError, "betas=0.9, expected two numbers in"),
        (lambda p: optim.Adam(p, betas=("a", 0.9)), ValueError, "expected two numbers in"),
        (lambda p: optim.RMSprop(p, alpha=1.5), ValueError, r"alpha=1.5, expected a number in \[0"),
    ],
)
def test_bad_options_of_optimisers_are_refused(make, error, text):
    with pytest.raises(error, match=text):
        make([fn.zeros(1, requires_grad=True)])


def read_only(size):
    array = np.zeros(size, np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("memory", [read_only(2), np.zeros(4, np.float32)[::2], np.zeros(2, ">f4")])
def test_memory_that_no_update_can_write_is_refused_at_once(memory):
    parameter = fn.from_numpy(memory).requires_grad_()
    with pytest.raises(ValueError, match="read-only, strided or of another byte order"):
        optim.SGD([fn.zeros(1, requires_grad=True), parameter])
    optim.SGD([fn.tensor(memory, requires_grad=True)])


def test_zero_grad_may_keep_zeros():
    p = fn.tensor([1.0, 2.0], requires_grad=True)
    one = optim.SGD([p])
    one.zero_grad(set_to_none=False)
    assert p.grad is None
    p.grad = np.ones(2, np.float32)
    one.zero_grad(set_to_none=False)
    assert p.grad.tolist() == [0, 0]
    one.zero_grad()
    assert p.grad is None
    layer = fn.nn.Linear(2, 1)
    layer(fn.ones(1, 2)).sum().backward()
    layer.zero_grad(set_to_none=False)
    assert layer.weight.grad.tolist() == [[0, 0]]
    layer.zero_grad()
    assert layer.weight.grad is None
