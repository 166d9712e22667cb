"""ONNX's own node cases of normalisation, activations, average pooling and rotary positions."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fusednn.functional as F

onnx = pytest.importorskip("onnx", reason="onnx is not installed (extra 'peers')")

Attributes = dict[str, Any]

# ---- adapters: (attributes, inputs) -> outputs ---------------------------------------------------


def batch_norm(a: Attributes, x: Any, w: Any, b: Any, mean: Any, var: Any) -> list[Any]:
    eps = a.get("epsilon", 1e-5)
    if not a.get("training_mode", 0):
        return [F.batch_norm(x, mean, var, w, b, eps=eps)]
    # ONNX keeps `momentum` of the old, and the biased variance.
    kept = a.get("momentum", 0.9)
    new_mean, new_var = mean.copy(), var.copy()
    y = F.batch_norm(x, new_mean, new_var, w, b, True, 1 - kept, eps)
    count = x.size // x.shape[1]
    biased = var * kept + (new_var - var * kept) * ((count - 1) / count)
    return [y, new_mean, biased.astype(x.dtype)]


def layer_norm(a: Attributes, x: Any, w: Any, b: Any = None) -> list[Any]:
    axis = a.get("axis", -1) % x.ndim
    eps = a.get("epsilon", 1e-5)
    y = F.layer_norm(x, x.shape[axis:], w, b, eps)
    axes = tuple(range(axis, x.ndim))
    mean = x.mean(axes, keepdims=True)
    return [y, mean, 1 / np.sqrt(x.var(axes, keepdims=True) + x.dtype.type(eps))]


def rms_norm(a: Attributes, x: Any, w: Any) -> list[Any]:
    axis = a.get("axis", -1) % x.ndim
    scale = np.ascontiguousarray(np.broadcast_to(w, x.shape[axis:]))
    return [F.rms_norm(x, x.shape[axis:], scale, a.get("epsilon", 1e-5))]


def group_norm(a: Attributes, x: Any, w: Any, b: Any) -> list[Any]:
    return [F.group_norm(x, a["num_groups"], w, b, a.get("epsilon", 1e-5))]


def instance_norm(a: Attributes, x: Any, w: Any, b: Any) -> list[Any]:
    return [F.instance_norm(x, None, None, w, b, eps=a.get("epsilon", 1e-5))]


def hard_sigmoid(a: Attributes, x: Any) -> list[Any]:
    # Ours is alpha = 1 / 6, beta = 1 / 2; other lines are moved onto it.
    alpha, beta = a.get("alpha", 0.2), a.get("beta", 0.5)
    return [F.hardsigmoid((x * alpha + beta - 0.5).astype(x.dtype) * x.dtype.type(6))]


def selu(a: Attributes, x: Any) -> list[Any]:
    alpha, gamma = a.get("alpha", 1.6732632), a.get("gamma", 1.050701)
    return [F.elu(x, alpha) * x.dtype.type(gamma)]


def swish(a: Attributes, x: Any) -> list[Any]:
    alpha = x.dtype.type(a.get("alpha", 1.0))
    return [F.silu(x * alpha) / alpha]


def average_pool(a: Attributes, x: Any) -> list[Any]:
    kernel, size = a["kernel_shape"], x.shape[2:]
    strides = a.get("strides", [1] * len(size))
    dilations = a.get("dilations", [1] * len(size))
    if any(d != 1 for d in dilations):
        pytest.skip("averages have no dilation")
    include = bool(a.get("count_include_pad", 0))
    auto = a.get("auto_pad", b"NOTSET")
    pads = a.get("pads", [0] * (2 * len(size)))
    if auto in (b"SAME_UPPER", b"SAME_LOWER"):
        totals = [
            max(0, (-(-n // s) - 1) * s + k - n)
            for n, s, k in zip(size, strides, kernel, strict=True)
        ]
        less = [t // 2 for t in totals]
        more = [t - t // 2 for t in totals]
        pads = less + more if auto == b"SAME_UPPER" else more + less
    front, back = pads[: len(size)], pads[len(size) :]
    op = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[len(size) - 1]
    ceil_mode = bool(a.get("ceil_mode", 0))
    if front == back and all(2 * p <= k for p, k in zip(front, kernel, strict=True)):
        return [op(x, kernel, strides, front, ceil_mode, include)]
    # Sides that differ, or more than half a window: padded by hand, counts likewise.
    sides = [s for pair in reversed(list(zip(front, back, strict=True))) for s in pair]
    wide = F.pad(x, sides)
    ones = np.ones_like(wide) if include else F.pad(np.ones_like(x), sides)
    args = (kernel, strides, 0, ceil_mode)
    return [op(wide, *args) / op(ones, *args)]


def max_unpool(a: Attributes, x: Any, at: Any, shape: Any = None) -> list[Any]:
    assert x.shape[0] * x.shape[1] == 1  # ONNX counts through the whole array, we through planes
    y = F.max_unpool2d(x, at, a["kernel_shape"], a.get("strides", [1] * (x.ndim - 2)))
    if shape is None:
        return [y]
    # Positions are those in the smaller array, which the larger one has in its corner.
    return [np.pad(y, [(0, n - own) for n, own in zip(shape, y.shape, strict=True)])]


def rotary(a: Attributes, x: Any, cos: Any, sin: Any, ids: Any = None) -> list[Any]:
    return [
        F.rotary_embedding(
            x, cos, sin, ids, interleaved=bool(a.get("interleaved", 0)),
            num_heads=a.get("num_heads", 0), rotary_dim=a.get("rotary_embedding_dim", 0),
        )
    ]  # fmt: skip


def _global(reduce: str) -> Callable[..., list[Any]]:
    return lambda a, x: [F.global_pool(x, reduce).reshape(*x.shape[:2], *(1,) * (x.ndim - 2))]


def _plain(op: Any) -> Callable[..., list[Any]]:
    return lambda a, x: [op(x)]


OPS: dict[str, tuple[str, Callable[..., list[Any]]]] = {
    "BatchNormalization": ("batch_normalization", batch_norm),
    "LayerNormalization": ("layernormalization", layer_norm),
    "RMSNormalization": ("rmsnormalization", rms_norm),
    "GroupNormalization": ("groupnormalization", group_norm),
    "InstanceNormalization": ("instance_normalization", instance_norm),
    "Gelu": (
        "gelu",
        lambda a, x: [F.gelu(x, a.get("approximate", b"none").decode())],
    ),
    "LeakyRelu": ("leakyrelu", lambda a, x: [F.leaky_relu(x, a.get("alpha", 0.01))]),
    "Elu": ("elu", lambda a, x: [F.elu(x, a.get("alpha", 1.0))]),
    "Selu": ("selu", selu),
    "Sigmoid": ("sigmoid", _plain(F.sigmoid)),
    "Tanh": ("tanh", _plain(F.tanh)),
    "Softplus": ("softplus", _plain(F.softplus)),
    "Mish": ("mish", _plain(F.mish)),
    "HardSigmoid": ("hardsigmoid", hard_sigmoid),
    "HardSwish": ("hardswish", _plain(F.hardswish)),
    "Swish": ("swish", swish),
    "AveragePool": ("averagepool", average_pool),
    "GlobalAveragePool": ("globalaveragepool", _global("mean")),
    "GlobalMaxPool": ("globalmaxpool", _global("max")),
    "MaxUnpool": ("maxunpool", max_unpool),
    "RotaryEmbedding": ("rotaryembedding", rotary),
    "Softmax": ("softmax", lambda a, x: [F.softmax(x, a.get("axis", -1))]),
    "LogSoftmax": ("logsoftmax", lambda a, x: [F.log_softmax(x, a.get("axis", -1))]),
}


def node_cases() -> list[Any]:
    package = "onnx.backend.test.case.node"
    for module, _ in OPS.values():
        importlib.import_module(f"{package}.{module}")
    cases = []
    for case in importlib.import_module(package)._NodeTestCases:
        nodes = [] if case.model is None else case.model.graph.node
        if len(nodes) != 1 or nodes[0].op_type not in OPS:
            continue
        kinds = {np.asarray(x).dtype.char for x in case.data_sets[0][0]} - set("bhilqBHILQ?")
        if kinds <= set("fd"):
            cases.append(case)
    return cases


NODES = node_cases()


@pytest.mark.parametrize("case", NODES, ids=lambda case: case.name)
def test_node(case, isa):
    (node,) = case.model.graph.node
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    for inputs, expected in case.data_sets:
        given = iter(inputs)
        arguments = [next(given) if name else None for name in node.input]
        found = OPS[node.op_type][1](attributes, *arguments)
        for ours, theirs in zip(found, expected, strict=False):
            assert ours.shape == theirs.shape
            assert ours.dtype == theirs.dtype
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


# ---- PyTorch's layers, converted -----------------------------------------------------------------


def axes_of(op: Any) -> Callable[..., list[Any]]:
    return lambda a, x: [op(x, tuple(a["axes"]))]


PLUMBING: dict[str, Callable[..., list[Any]]] = {
    "Gather": lambda a, table, ids: [F.embedding(ids, table)],
    "Squeeze": axes_of(np.squeeze),
    "Unsqueeze": axes_of(np.expand_dims),
    "Neg": lambda a, x: [-x],
}
ADAPTERS = PLUMBING | {name: adapter for name, (_, adapter) in OPS.items()}


def converted_cases() -> list[tuple[str, Path, Any]]:
    from onnx.backend.test.loader import load_model_tests

    cases = []
    for case in sorted(load_model_tests(kind="pytorch-converted"), key=lambda case: case.name):
        model = onnx.load(Path(case.model_dir) / "model.onnx")
        kinds = {node.op_type for node in model.graph.node}
        if kinds <= set(ADAPTERS) and kinds - {"Neg", "Squeeze", "Unsqueeze"}:
            cases.append((case.name, Path(case.model_dir), model))
    return cases


CONVERTED = converted_cases()


def read(folder: Path, kind: str) -> list[Any]:
    paths = sorted(folder.glob(f"{kind}_*.pb"), key=lambda path: int(path.stem.split("_")[1]))
    return [onnx.numpy_helper.to_array(onnx.load_tensor(path)) for path in paths]


@pytest.mark.parametrize("case", CONVERTED, ids=lambda case: case[0])
def test_converted_layer(case, isa):
    _, folder, model = case
    for data in sorted(folder.glob("test_data_set_*")):
        values = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
        free = [i.name for i in model.graph.input if i.name not in values]
        values |= dict(zip(free, read(data, "input"), strict=True))
        for node in model.graph.node:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            if node.op_type in ("Softmax", "LogSoftmax"):
                attributes.setdefault("axis", 1)  # what it was up to version 12
            arguments = [values[name] for name in node.input]
            outputs = ADAPTERS[node.op_type](attributes, *arguments)
            values |= dict(zip(node.output, outputs, strict=False))
        for output, expected in zip(model.graph.output, read(data, "output"), strict=True):
            found = values[output.name]
            assert found.shape == expected.shape
            np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-5)


def test_cases_were_found():
    """As many as onnx 1.23 has, or this file has lost its grip."""
    count = {name: sum(c.model.graph.node[0].op_type == name for c in NODES) for name in OPS}
    assert min(count.values()) >= 1
    assert count["LayerNormalization"] >= 18
    assert count["RMSNormalization"] >= 18
    assert count["AveragePool"] >= 18
    assert count["RotaryEmbedding"] >= 8
    assert count["BatchNormalization"] >= 4
    assert len(CONVERTED) >= 26
    for layer, least in (("BatchNorm", 5), ("AvgPool", 7), ("Embedding", 2)):
        assert sum(layer in name for name, _, _ in CONVERTED) >= least
