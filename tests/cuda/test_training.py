"""Whole training runs on the GPU give the CPU's losses."""

from __future__ import annotations

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import nn, optim


def lenet():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, padding=1),
        nn.GroupNorm(2, 6),
        nn.PReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(24, 10),
    )


def kernels_alone():
    return nn.Sequential(
        nn.BatchNorm2d(1), nn.MaxPool2d(2), nn.GELU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
        nn.LayerNorm(4), nn.RMSNorm(4), nn.PReLU(4),
    )  # fmt: skip


@pytest.mark.parametrize(("network", "method"), [(lenet, "AdamW"), (kernels_alone, "SGD")])
def test_losses_are_those_of_the_cpu(network, method):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((8, 1, 8, 8)).astype("float32")
    classes = 10 if network is lenet else 4
    y = rng.integers(0, classes, 8)
    losses = {}
    for device in ("cpu", "cuda", "cuda"):
        fn.manual_seed(1)
        model = network().to(device)
        options = {"momentum": 0.9} if method == "SGD" else {}
        optimizer = getattr(optim, method)(model.parameters(), lr=0.02, **options)
        images, labels = fn.tensor(x, device=device), fn.tensor(y, device=device)
        run = []
        for _ in range(6):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images), labels, label_smoothing=0.05)
            loss.backward()
            optim.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            run.append(loss.item())
        if device in losses:
            assert losses[device] == run  # the same bits, run after run
        losses[device] = run
    assert losses["cpu"][-1] < losses["cpu"][0] - 0.02
    # Roundings of float32, which six steps let grow.
    np.testing.assert_allclose(losses["cuda"], losses["cpu"], rtol=2e-4)
