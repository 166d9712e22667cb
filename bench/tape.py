"""What the tape costs: tiny ops forward and backward, and a tiny training step, beside PyTorch.

usage: python bench/tape.py [--rounds N] [--threads N]

Each figure is the median over rounds; ours and PyTorch's turns alternate inside a round, in one
process, with the same number of threads. For an op, "over the array call" is its time with tape and
backward less that of the same function called on plain arrays: what recording and walking cost.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import fusednn as fn
import fusednn.functional as F
from fusednn import nn, optim

REPEAT = 200  # calls in a turn, so that the clock's own cost does not count
CHAIN = 50  # ops in a row


def microseconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    for _ in range(REPEAT):
        call()
    return (time.perf_counter() - start) / REPEAT * 1e6


def ours() -> dict[str, Callable[[], Any]]:
    data = np.linspace(-1, 1, 8, dtype=np.float32)
    grad = np.ones(8, np.float32)
    x = fn.tensor(data, requires_grad=True)

    def op() -> None:
        x.grad = None
        F.relu(x).backward(grad)

    def chain_of_arrays() -> None:
        y = data
        for _ in range(CHAIN):
            y = F.relu(y)

    def chain() -> None:
        x.grad = None
        y = x
        for _ in range(CHAIN):
            y = F.relu(y)
        y.backward(grad)

    fn.manual_seed(0)
    layer = nn.Linear(100, 100)
    optimizer = optim.SGD(layer.parameters(), lr=0.01)
    random = np.random.default_rng(0)
    inputs, target = (random.standard_normal((4, 100), dtype=np.float32) for _ in range(2))

    def step() -> None:
        optimizer.zero_grad()
        F.mse_loss(layer(inputs), target).backward()
        optimizer.step()

    return {
        "array call": lambda: F.relu(data),
        "one op": op,
        "chain of array calls": chain_of_arrays,
        "chain of ops": chain,
        "training step": step,
    }


def pytorch(threads: int) -> dict[str, Callable[[], Any]]:
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(threads)
    x = torch.linspace(-1, 1, 8, requires_grad=True)
    grad = torch.ones(8)

    def op() -> None:
        x.grad = None
        torch.relu(x).backward(grad)

    def chain() -> None:
        x.grad = None
        y = x
        for _ in range(CHAIN):
            y = torch.relu(y)
        y.backward(grad)

    layer = torch.nn.Linear(100, 100)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.01)
    inputs, target = torch.randn(4, 100), torch.randn(4, 100)

    def step() -> None:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(layer(inputs), target).backward()
        optimizer.step()

    return {"one op": op, "chain of ops": chain, "training step": step}


def measure(rounds: int, threads: int) -> dict[tuple[str, str], float]:
    """Median microseconds by (library, what)."""
    fn.set_num_threads(threads)
    calls = {("fusednn", name): call for name, call in ours().items()}
    calls |= {("torch", name): call for name, call in pytorch(threads).items()}
    times: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    for call in calls.values():
        microseconds(call)  # warm
    for _ in range(rounds):
        for key, call in calls.items():
            times[key].append(microseconds(call))
    return {key: float(np.median(values)) for key, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, metavar="N")
    parser.add_argument("--threads", type=int, default=1, metavar="N")
    arguments = parser.parse_args()
    found = measure(arguments.rounds, arguments.threads)

    def line(text: str, mine: float, peer: float | None) -> None:
        print(f"{text:44}{mine:9.2f}" + ("" if peer is None else f"{peer:11.2f}"))

    print(f"{'median us':44}{'fusednn':>9}{'torch':>11}")
    get = found.get
    one, base = found["fusednn", "one op"], found["fusednn", "array call"]
    line("relu of 8 numbers, array call", base, None)
    line("relu of 8 numbers, forward + backward", one, get(("torch", "one op")))
    line("  over the array call", one - base, None)
    chain, arrays = found["fusednn", "chain of ops"], found["fusednn", "chain of array calls"]
    peer = get(("torch", "chain of ops"))
    line(f"per op in a chain of {CHAIN}", chain / CHAIN, None if peer is None else peer / CHAIN)
    line("  over the array call", (chain - arrays) / CHAIN, None)
    line(
        "training step: Linear(100, 100), B=4, SGD",
        found["fusednn", "training step"],
        get(("torch", "training step")),
    )


if __name__ == "__main__":
    main()
