"""Learning curves beside PyTorch: same initial weights, same batches, same optimiser.

usage: python bench/curves.py {cnn,lstm,gpt} [--steps N] [--threads N]

Trains the recipe of `python -m fusednn train` for Fashion-MNIST or Shakespeare and its twin in
PyTorch, a step of the one after a step of the other in one process, and prints both validation
losses (nats per picture or character, the same held-out data), and the median and total time of the
steps. With one thread the times are those of the processor, which other processes do not lengthen.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch.nn import functional

import fusednn as fn
from fusednn.bench import twins
from fusednn.cli.train import cnn, gpt, lstm
from fusednn.cli.train.options import DEFAULTS
from fusednn.data import DataLoader, fashion_mnist

MARKS = (50, 100, 200, 300, 400, 469, 500, 938)
MODULES = {"cnn": cnn, "lstm": lstm, "gpt": gpt}


def ours(task: Any, limit: float | None) -> Callable[[Any], None]:
    def step(batch: Any) -> None:
        task.optimizer.zero_grad()
        loss = task.loss(batch)
        loss.backward()
        if limit is not None:
            fn.optim.clip_grad_norm_(task.model.parameters(), limit)
        task.optimizer.step()
        loss.item()

    return step


def theirs(model: Any, task: Any, limit: float | None) -> Callable[[Any], None]:
    own = task.optimizer
    kind = getattr(torch.optim, type(own).__name__)
    optimizer = kind(model.parameters(), lr=own.param_groups[0]["lr"])

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        loss = _loss(model, batch)
        loss.backward()
        if limit is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        loss.item()

    return step


def _twin(task: Any, config: dict[str, Any]) -> Any:
    if config["network"] == "cnn":
        plan = {"widths": (16, 32), "kernel_size": 3, **cnn.NETWORKS["fashion-mnist"]}
        return twins.build(torch, "lenet", **plan)
    size = task.about["model"]["vocab_size"]
    width, layers = config["width"], config["layers"]
    if config["network"] == "lstm":
        return twins.build(
            torch, "charlstm",
            vocab_size=size, hidden_size=width, num_layers=layers, embedding_dim=64,
        )  # fmt: skip
    return twins.build(
        torch, "gpt", vocab_size=size, block_size=config["length"],
        n_layer=layers, n_head=config["heads"], n_embd=width,
    )  # fmt: skip


def _loss(model: Any, batch: Any, reduction: str = "mean") -> Any:
    x, y = (torch.from_numpy(np.ascontiguousarray(array)) for array in batch)
    scores = model(x)
    scores = scores.reshape(-1, scores.shape[-1])
    return functional.cross_entropy(scores, y.flatten(), reduction=reduction)


def _pictures() -> Iterator[tuple[Any, Any]]:
    return iter(DataLoader(fashion_mnist()[1], 500))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("network", choices=tuple(MODULES))
    parser.add_argument("--steps", type=int)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    fn.set_num_threads(arguments.threads)
    torch.set_num_threads(arguments.threads)
    clock = time.thread_time if arguments.threads == 1 else time.perf_counter
    module: Any = MODULES[arguments.network]
    data = "fashion-mnist" if arguments.network == "cnn" else "shakespeare"
    config = {"network": arguments.network, "data": data, **DEFAULTS, **module.RECIPES[data]}
    fn.manual_seed(0)
    task = module.prepare(config)
    steps = arguments.steps or config["epochs"] * len(task.loader)
    held_out = task.held_out or list(_pictures())
    twin = _twin(task, config)
    state = {name: torch.tensor(value) for name, value in task.model.state_dict().items()}
    twin.load_state_dict(state)
    limit = config["clip_grad_norm"]
    turns = {"fusednn": ours(task, limit), "PyTorch": theirs(twin, task, limit)}
    times: dict[str, list[float]] = {name: [] for name in turns}
    print(f"{'step':>5}  {'fusednn':>8}  {'PyTorch':>8}")
    done = 0
    while done < steps:
        for batch in task.loader:
            for name, turn in turns.items():
                start = clock()
                turn(batch)
                times[name].append(clock() - start)
            done += 1
            if done in MARKS or done == steps:
                task.model.eval()
                with fn.no_grad(), torch.no_grad():
                    own = task.validate()["loss"]
                    sums = [_loss(twin, held, "sum").item() for held in held_out]
                task.model.train()
                count = sum(held[1].size for held in held_out)
                print(f"{done:5}  {own:8.4f}  {sum(sums) / count:8.4f}", flush=True)
            if done == steps:
                break
    medians = {name: statistics.median(values) for name, values in times.items()}
    text = ", ".join(f"{name} {value * 1e3:.1f} ms" for name, value in medians.items())
    ratio = medians["PyTorch"] / medians["fusednn"]
    print(f"a step: {text} (medians of {done}); {ratio:.2f}x with {arguments.threads} threads")
    totals = {name: sum(values) for name, values in times.items()}
    text = ", ".join(f"{name} {value:.1f} s" for name, value in totals.items())
    print(f"all steps: {text}; {totals['PyTorch'] / totals['fusednn']:.2f}x")


if __name__ == "__main__":
    main()
