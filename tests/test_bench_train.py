"""The benchmark of whole training steps: its networks, its counts, and how it judges a step."""

import importlib.util

import numpy as np
import pytest

import fusednn as fn
from fusednn.bench import peers, train
from fusednn.bench.work import OURS, Call, WrongAnswerError
from fusednn.testing import cases
from fusednn.testing.cases_train import TRAIN_BENCH, TRAIN_TEST

ALONE = peers.load([], threads=1)


def named(group):
    return pytest.mark.parametrize("case", group, ids=lambda case: case.name)


@named([*TRAIN_BENCH, *TRAIN_TEST])
def test_a_case_counts_its_networks_parameters(case):
    model = train._model(case, np.dtype(np.float32))
    assert sum(parameter.numel() for parameter in model.parameters()) == case.parameters
    assert case.bytes("step", 8) == 2 * case.bytes("step", 4) > 4 * 10 * case.parameters


def test_the_timed_steps_are_as_much_work_as_documented():
    work = [round(case.flops("step") / 1e9, 1) for case in TRAIN_BENCH]
    assert work == [4.6, 29.2, 4.1, 3.8, 69.0]


@named(TRAIN_TEST)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("threads", [1, 2])
def test_a_step_is_the_one_that_float64_takes(case, dtype, threads):
    before = fn.get_num_threads()
    fn.set_num_threads(threads)
    try:
        work = train.prepare(case, "step", np.dtype(dtype), ALONE)
        call = work.calls[OURS]
        for _ in range(3):
            call.run()  # later steps must not change what is checked
        assert work.check(OURS) <= work.tolerance < 1e-2
    finally:
        fn.set_num_threads(before)


@named(TRAIN_TEST)
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_torch_takes_the_same_step(case, dtype):
    others = peers.load(["torch"], threads=1)
    work = train.prepare(case, "step", np.dtype(dtype), others)
    assert not work.unable
    assert work.check("torch") <= work.tolerance


@named(TRAIN_TEST)
def test_training_that_does_something_else_is_a_wrong_answer(case, monkeypatch):
    work = train.prepare(case, "step", np.dtype(np.float32), ALONE)
    monkeypatch.setattr(train, "RATE", 3 * train.RATE)
    work.calls["other rate"] = train.prepare(case, "step", work.dtype, ALONE).calls[OURS]
    with pytest.raises(WrongAnswerError, match="other rate"):
        work.check("other rate")
    call = work.calls[OURS]
    work.calls["no number"] = Call(call.run, lambda result: [np.full(4, np.nan)])
    with pytest.raises(WrongAnswerError, match="relative error nan"):
        work.check("no number")


def test_every_network_is_timed_and_tested():
    timed = {case.network for case in cases.BENCH["train"]}
    assert timed == {case.network for case in cases.TEST["train"]}
