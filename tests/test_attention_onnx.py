"""The node cases of ONNX's Attention operator in float32 and float64, by our arguments."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

import fusednn.functional as F

onnx = pytest.importorskip("onnx")

# What the operator has from input 0 on; and the attributes that this op answers.
INPUTS = ("query", "key", "value", "mask", "past_key", "past_value", "lengths")


def _cases() -> list[Any]:
    from onnx.backend.test.loader import load_model_tests

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of building other operators' cases
        tests = load_model_tests(kind="node")
    found = []
    for test in tests:
        nodes = test.model.graph.node
        # Some cases are written out in simpler operators: they are not ours.
        if test.name.startswith("test_attention") and [n.op_type for n in nodes] == ["Attention"]:
            query = test.data_sets[0][0][0]
            if query.dtype in (np.float32, np.float64):
                found.append(test)
    return found


def _heads(x: Any, heads: int) -> Any:
    """(B, T, heads * D) as (B, heads, T, D), in place."""
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


def test_node_cases():
    """In one test: building the cases takes seconds, which no other run of pytest should spend."""
    cases = _cases()
    assert len(cases) > 60
    for case in cases:
        _check(case)


def _check(case: Any) -> None:
    graph, (node,) = case.model.graph, case.model.graph.node
    option = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
    arrays, (expected, *_) = case.data_sets[0]
    by_name = dict(zip((i.name for i in graph.input), arrays, strict=True))
    given = {role: by_name[name] for role, name in zip(INPUTS, node.input, strict=False) if name}
    q, k, v = given["query"], given["key"], given["value"]
    flat = q.ndim == 3
    if flat:
        q = _heads(q, option["q_num_heads"])
        k, v = _heads(k, option["kv_num_heads"]), _heads(v, option["kv_num_heads"])
    causal: bool | str = bool(option.get("is_causal", 0))
    window = (option.get("left_window_size", -1), option.get("right_window_size", -1))
    past = given["past_key"].shape[2] if "past_key" in given else 0
    mask = given.get("mask")
    if causal and "lengths" in given:
        causal = "lower_right"  # the last query meets the last real key
    elif causal and past:
        # Query i stands at past + i, which is neither rule if new keys are not as many as queries.
        at = past + np.arange(q.shape[2])[:, None]
        j = np.arange(past + k.shape[2])
        sees = (j <= at) & (j >= (at - window[0] if window[0] >= 0 else 0))
        if mask is None or mask.dtype == bool:
            mask = sees if mask is None else mask & sees
        else:
            mask = np.where(sees, mask, np.float32(-np.inf))
        causal, window = False, (-1, -1)
    if past:
        k = np.concatenate([given["past_key"], k], axis=2)
        v = np.concatenate([given["past_value"], v], axis=2)
    if mask is not None and mask.shape[-1] < k.shape[2]:  # keys it does not reach are hidden
        widths = [(0, 0)] * (mask.ndim - 1) + [(0, k.shape[2] - mask.shape[-1])]
        mask = np.pad(mask, widths, constant_values=False if mask.dtype == bool else -np.inf)
    out = F.scaled_dot_product_attention(
        q,
        k,
        v,
        mask,
        is_causal=causal,
        scale=option.get("scale"),
        enable_gqa=True,
        softcap=option.get("softcap") or None,
        window=window,
        lengths=given.get("lengths"),
    )
    if flat:
        out = out.swapaxes(1, 2).reshape(out.shape[0], out.shape[2], -1)
    assert out.dtype == expected.dtype
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5, err_msg=case.name)
