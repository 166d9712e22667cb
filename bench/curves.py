"""Learning curves beside PyTorch: same initial weights, same batches, same optimiser.

usage: python bench/curves.py {lstm,gpt} [--steps N] [--threads N]

Trains the recipe of `python -m fusednn train` for Shakespeare and its twin in PyTorch, a step of
the one after a step of the other in one process, and prints both validation losses (nats per
character, the same held-out windows), and the median time of a step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import fusednn as fn
from fusednn.bench import twins
from fusednn.cli.train import gpt, lstm
from fusednn.cli.train.options import DEFAULTS

MARKS = (50, 100, 200, 300, 400, 500)


def ours(task: Any, limit: float) -> Callable[[Any], None]:
    def step(batch: Any) -> None:
        task.optimizer.zero_grad()
        loss = task.loss(batch)
        loss.backward()
        fn.optim.clip_grad_norm_(task.model.parameters(), limit)
        task.optimizer.step()
        loss.item()

    return step


def theirs(model: Any, rate: float, limit: float) -> Callable[[Any], None]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)

    def step(batch: Any) -> None:
        optimizer.zero_grad()
        loss = _loss(model, batch)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        optimizer.step()
        loss.item()

    return step


def _twin(size: int, config: dict[str, Any]) -> Any:
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
    return functional.cross_entropy(scores.flatten(0, 1), y.flatten(), reduction=reduction)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("network", choices=("lstm", "gpt"))
    parser.add_argument("--steps", type=int)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    fn.set_num_threads(arguments.threads)
    torch.set_num_threads(arguments.threads)
    module = {"lstm": lstm, "gpt": gpt}[arguments.network]
    config = {
        "network": arguments.network, "data": "shakespeare", **DEFAULTS,
        **module.RECIPES["shakespeare"],
    }  # fmt: skip
    steps = arguments.steps or 50 * config["epochs"]
    fn.manual_seed(0)
    task = module.prepare(config)
    size = task.about["model"]["vocab_size"]
    twin = _twin(size, config)
    state = {name: torch.tensor(value) for name, value in task.model.state_dict().items()}
    twin.load_state_dict(state)
    limit = config["clip_grad_norm"]
    turns = {"fusednn": ours(task, limit), "PyTorch": theirs(twin, config["lr"], limit)}
    times: dict[str, list[float]] = {name: [] for name in turns}
    print(f"{'step':>5}  {'fusednn':>8}  {'PyTorch':>8}")
    done = 0
    while done < steps:
        for batch in task.loader:
            for name, turn in turns.items():
                start = time.perf_counter()
                turn(batch)
                times[name].append(time.perf_counter() - start)
            done += 1
            if done in MARKS or done == steps:
                task.model.eval()
                with fn.no_grad(), torch.no_grad():
                    own = task.validate()["loss"]
                    sums = [_loss(twin, held, "sum").item() for held in task.held_out]
                task.model.train()
                count = sum(held[1].size for held in task.held_out)
                print(f"{done:5}  {own:8.4f}  {sum(sums) / count:8.4f}", flush=True)
            if done == steps:
                break
    medians = {name: statistics.median(values) for name, values in times.items()}
    text = ", ".join(f"{name} {value * 1e3:.1f} ms" for name, value in medians.items())
    ratio = medians["PyTorch"] / medians["fusednn"]
    print(f"a step: {text} (medians of {done}); {ratio:.2f}x with {arguments.threads} threads")


if __name__ == "__main__":
    main()
