"""ONNX's own test cases for the ops that this project has too.

Two collections that come with the package `onnx`: cases of single nodes with the values of its
reference, and small PyTorch models with PyTorch's values. A case is run if `OPS` knows every node
of its model; to cover another op, add a line there and, for node cases, its module to `MODULES`.
"""

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


def _window(a: Attributes, kernel: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Strides and dilations, one per axis."""
    ones = [1] * len(kernel)
    return a.get("strides", ones), a.get("dilations", ones)


def _pads(a: Attributes, size: tuple[int, ...], kernel: tuple[int, ...]) -> list[tuple[int, int]]:
    """(front, back) of each axis: "pads" lists all fronts, then all backs."""
    strides, dilations = _window(a, kernel)
    auto = a.get("auto_pad", b"NOTSET")
    if auto in (b"SAME_UPPER", b"SAME_LOWER"):
        outs = [-(-n // s) for n, s in zip(size, strides, strict=True)]
        terms = zip(outs, strides, dilations, kernel, size, strict=True)
        totals = [max(0, (o - 1) * s + d * (k - 1) + 1 - n) for o, s, d, k, n in terms]
        halves = [(total // 2, total - total // 2) for total in totals]
        return halves if auto == b"SAME_UPPER" else [half[::-1] for half in halves]
    pads = a.get("pads", [0] * (2 * len(kernel)))
    return list(zip(pads[: len(kernel)], pads[len(kernel) :], strict=True))


def conv(a: Attributes, x: Any, w: Any, b: Any = None) -> list[Any]:
    size, kernel = x.shape[2:], w.shape[2:]
    strides, dilations = _window(a, kernel)
    padding = "same" if a.get("auto_pad") == b"SAME_UPPER" else _pads(a, size, kernel)
    op = (F.conv1d, F.conv2d, F.conv3d)[len(size) - 1]
    return [op(x, w, b, strides, padding, dilations, a.get("group", 1))]


def conv_transpose(a: Attributes, x: Any, w: Any, b: Any = None) -> list[Any]:
    size, kernel = x.shape[2:], w.shape[2:]
    strides, dilations = _window(a, kernel)
    extra = list(a.get("output_padding", [0] * len(size)))
    wanted = a.get("output_shape")
    upper = a.get("auto_pad") == b"SAME_UPPER"
    if upper and wanted is None:
        wanted = [n * s for n, s in zip(size, strides, strict=True)]
    pads = _pads({k: v for k, v in a.items() if k != "auto_pad"}, size, kernel)
    if wanted is not None:
        for i, (n, k, s, d) in enumerate(zip(size, kernel, strides, dilations, strict=True)):
            total = s * (n - 1) + extra[i] + d * (k - 1) + 1 - wanted[i]
            extra[i] += max(0, -total)
            less, more = max(0, total) // 2, max(0, total) - max(0, total) // 2
            pads[i] = (less, more) if upper else (more, less)
    op = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[len(size) - 1]
    return [op(x, w, b, strides, pads, extra, a.get("group", 1), dilations)]


def causal_conv(a: Attributes, x: Any, w: Any, b: Any = None, past: Any = None) -> list[Any]:
    state = np.zeros((*x.shape[:2], w.shape[2] - 1), x.dtype) if past is None else past
    y, state = F.conv1d(x, w, b, padding="causal", groups=x.shape[1], state=state)
    activation = a.get("activation", b"none")
    return [F.silu(y) if activation in (b"silu", b"swish") else y, state]


def max_pool(a: Attributes, x: Any) -> list[Any]:
    kernel, size = tuple(a["kernel_shape"]), x.shape[2:]
    strides, dilations = _window(a, kernel)
    pads = _pads(a, size, kernel)
    even = all(
        front == back and 2 * front <= k for (front, back), k in zip(pads, kernel, strict=True)
    )
    if not even:  # more than max_pool takes as padding
        x = F.pad(x, [side for pair in reversed(pads) for side in pair], value=-np.inf)
        pads = [(0, 0)] * len(kernel)
    padding = tuple(front for front, _ in pads)
    op = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[len(size) - 1]
    y, at = op(x, kernel, strides, padding, dilations, bool(a.get("ceil_mode", 0)), True)
    if a.get("storage_order", 0):  # counted down the columns
        height, width = size
        at = at % width * height + at // width
    # ONNX counts through the whole array.
    planes = np.arange(y.shape[0] * y.shape[1]).reshape(*y.shape[:2], *[1] * len(size))
    return [y, at + planes * int(np.prod(size))]


def prelu(a: Attributes, x: Any, slope: Any) -> list[Any]:
    """ONNX broadcasts any slope (up to version 6: one, or one per channel, as F.prelu)."""
    if slope.size == 1 or a["opset"] < 7:
        return [F.prelu(x, slope.reshape(-1))]
    slopes = np.broadcast_to(slope, x.shape).reshape(-1)
    return [F.prelu(x.reshape(1, -1), slopes).reshape(x.shape)]


OPS: dict[str, Callable[..., list[Any]]] = {
    "Conv": conv,
    "ConvTranspose": conv_transpose,
    "CausalConvWithState": causal_conv,
    "MaxPool": max_pool,
    "PRelu": prelu,
}

# Where onnx.backend.test.case.node defines the cases; importing a module adds them to one list.
MODULES = ("conv", "convtranspose", "causal_conv_with_state", "maxpool", "prelu")

# Cases that are refused on purpose, with the error.
REFUSED = {
    "test_maxpool_2d_uint8": (TypeError, "max_pool2d: input has dtype uint8"),
    "test_causal_conv_with_state_fp16": (TypeError, "conv1d: input has dtype float16"),
    "test_causal_conv_with_state_silu_fp16": (TypeError, "conv1d: input has dtype float16"),
}

# ---- running a model -----------------------------------------------------------------------------


def run(model: Any, inputs: list[Any]) -> list[Any]:
    """The outputs of a model whose nodes are all in OPS."""
    values = {t.name: onnx.numpy_helper.to_array(t) for t in model.graph.initializer}
    free = [i.name for i in model.graph.input if i.name not in values]
    values |= dict(zip(free, inputs, strict=True))
    (opset,) = (o.version for o in model.opset_import if o.domain in ("", "ai.onnx"))
    for node in model.graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        attributes["opset"] = opset
        arguments = [values[name] if name else None for name in node.input]
        outputs = OPS[node.op_type](attributes, *arguments)
        values |= dict(zip(node.output, outputs, strict=False))
    return [values[output.name] for output in model.graph.output]


def _known(model: Any) -> bool:
    return model is not None and all(node.op_type in OPS for node in model.graph.node)


def node_cases() -> list[Any]:
    package = "onnx.backend.test.case.node"
    for module in MODULES:
        importlib.import_module(f"{package}.{module}")
    return [case for case in importlib.import_module(package)._NodeTestCases if _known(case.model)]


def converted_cases() -> list[tuple[str, Path, Any]]:
    from onnx.backend.test.loader import load_model_tests

    cases = []
    for case in sorted(load_model_tests(kind="pytorch-converted"), key=lambda case: case.name):
        model = onnx.load(Path(case.model_dir) / "model.onnx")
        if _known(model):
            cases.append((case.name, Path(case.model_dir), model))
    return cases


NODES, CONVERTED = node_cases(), converted_cases()


def check(found: list[Any], expected: list[Any]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.shape == theirs.shape
        assert ours.dtype == theirs.dtype
        np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("case", NODES, ids=lambda case: case.name)
def test_node(case, isa):
    for inputs, expected in case.data_sets:
        if case.name in REFUSED:
            error, text = REFUSED[case.name]
            with pytest.raises(error, match=text):
                run(case.model, inputs)
            continue
        check(run(case.model, inputs), expected)


def _tensors(folder: Path, kind: str) -> list[Any]:
    paths = sorted(folder.glob(f"{kind}_*.pb"), key=lambda path: int(path.stem.split("_")[1]))
    return [onnx.numpy_helper.to_array(onnx.load_tensor(path)) for path in paths]


@pytest.mark.parametrize("case", CONVERTED, ids=lambda case: case[0])
def test_converted_model(case, isa):
    _, folder, model = case
    for data in sorted(folder.glob("test_data_set_*")):
        check(run(model, _tensors(data, "input")), _tensors(data, "output"))


def test_cases_were_found():
    """As many as onnx 1.23 has, or this file has lost its grip."""
    nodes = {name: sum(c.model.graph.node[0].op_type == name for c in NODES) for name in OPS}
    assert nodes["Conv"] >= 6
    assert nodes["ConvTranspose"] >= 11
    assert nodes["MaxPool"] >= 19
    assert nodes["PRelu"] >= 2
    converted = [name for name, _, _ in CONVERTED]
    assert sum(name.startswith("test_Conv") for name in converted) >= 27
    assert sum(name.startswith("test_MaxPool") for name in converted) >= 8
    assert sum(name.startswith("test_PReLU") for name in converted) >= 6


def test_refused_cases_exist():
    assert set(REFUSED) <= {case.name for case in NODES}
