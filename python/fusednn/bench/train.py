"""Whole training steps, ours and PyTorch's."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusednn.bench import twins
from fusednn.bench.peers import Peers
from fusednn.bench.work import Call, Results, Work
from fusednn.testing.case_types import Arrays, Direction
from fusednn.testing.cases_train import TrainCase

RATE, LIMIT = 1e-3, 1.0
State = dict[str, NDArray[Any]]


def prepare(case: TrainCase, direction: Direction, dtype: np.dtype[Any], peers: Peers) -> Work:
    """Expected are the loss and the gradients' norm of the first two steps, in float64.

    They come from our own float64 build, which the tests hold against finite differences; PyTorch,
    where it takes part, is a second opinion.
    """
    arrays = case.arrays(np.float64)
    initial = _model(case, np.dtype(np.float64)).state_dict()
    oracle = _ours(case, arrays, initial, np.dtype(np.float64))
    # Sums run over all pixels or tokens of the batch; twice the layers hand the errors on.
    terms = int(np.prod(case.input)) * 2 * len(case.products)
    work = Work(case, direction, dtype, oracle.arrays(None), terms)
    work.ours(lambda arrays: _ours(case, arrays, initial, dtype), arrays)
    if "torch" in peers:
        work.peer("torch", lambda: _torch(peers.torch, case, arrays, initial, dtype))
    return work


def _model(case: TrainCase, dtype: np.dtype[Any]) -> Any:
    from fusednn import models

    options = dict(case.options)
    if case.network == "gpt":
        options["tied"] = False
    kinds: dict[str, Any] = {
        "lenet": models.LeNet, "vgg": models.VGG, "charlstm": models.CharLSTM, "gpt": models.GPT
    }  # fmt: skip
    return kinds[case.network](**options, dtype=dtype)


def _call(step: Callable[[], tuple[Any, Any]], restart: Callable[[], None]) -> Call:
    """What is timed is one step; what is checked are the first two from the initial weights."""

    def first_steps(_: Any) -> Results:
        restart()
        return [np.array([float(value) for _ in range(2) for value in step()])]

    return Call(step, first_steps)


def _ours(case: TrainCase, arrays: Arrays, initial: State, dtype: np.dtype[Any]) -> Call:
    import fusednn as fn
    import fusednn.functional as F

    # As a user has them: Tensors beside the model, wherever the arrays are.
    given, target = (fn.tensor(arrays[name]) for name in ("input", "target"))
    given, target = given if case.tokens else given.to(dtype), target.reshape(-1)
    model = _model(case, dtype).to(given.device)

    optimizer: Any = None

    def restart() -> None:
        nonlocal optimizer
        own = model.state_dict()
        model.load_state_dict({k: v.astype(own[k].dtype) for k, v in initial.items()})
        optimizer = fn.optim.AdamW(model.parameters(), lr=RATE)

    def step() -> tuple[Any, Any]:
        optimizer.zero_grad()
        scores = model(given)
        scores = scores[0] if case.network == "charlstm" else scores
        loss = F.cross_entropy(scores.reshape(-1, case.classes), target)
        loss.backward()
        norm = fn.optim.clip_grad_norm_(model.parameters(), LIMIT)
        optimizer.step()
        return loss.item(), norm

    restart()
    return _call(step, restart)


def _torch(
    torch: Any, case: TrainCase, arrays: Arrays, initial: State, dtype: np.dtype[Any]
) -> Call:
    kind = getattr(torch, dtype.name)
    model = twins.build(torch, case.network, **dict(case.options)).to(kind)
    given, target = (torch.tensor(arrays[name]) for name in ("input", "target"))
    given, target = given if case.tokens else given.to(kind), target.reshape(-1)

    optimizer: Any = None

    def restart() -> None:
        nonlocal optimizer
        model.load_state_dict({name: torch.tensor(value) for name, value in initial.items()})
        optimizer = torch.optim.AdamW(model.parameters(), lr=RATE)

    def step() -> tuple[Any, Any]:
        optimizer.zero_grad()
        scores = model(given).reshape(-1, case.classes)
        loss = torch.nn.functional.cross_entropy(scores, target)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        optimizer.step()
        return loss.item(), norm

    restart()
    return _call(step, restart)
