"""Everything public takes 16-bit arrays on a GPU: the cases of coverage_cases.py and
coverage_methods.py beside the CPU in float64 on the same values. What is new must take them too."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from coverage_cases import FUNCTIONS, MODULES
from coverage_methods import METHODS
from test_coverage import drawn, flat
from test_half_kernels import DTYPES

import fusednn as fn

HALF = DTYPES["bfloat16"]
EPS = 2.0**-8
# What is computed in float32 all the way.
FLOAT32 = {
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "huber_loss",
    "kl_div", "l1_loss", "mse_loss", "nll_loss", "smooth_l1_loss", "BCELoss", "BCEWithLogitsLoss",
    "CrossEntropyLoss", "HuberLoss", "KLDivLoss", "L1Loss", "MSELoss", "NLLLoss", "SmoothL1Loss",
}  # fmt: skip

# What makes new tensors, or is for another dtype.
OTHER_DTYPES = {"double", "float", "to", "type_as", "__round__"}
OTHER_DTYPES |= {"full", "ones", "rand", "randn", "tensor", "zeros"}


def held(values: Any) -> Any:
    """The nearest values that 16 bits have."""
    return values.astype("f").astype(HALF).astype("d") if values.dtype.kind == "f" else values


def outcome(function: Any, arrays: list[Any], device: str, parameters: Any = ()) -> list[Any]:
    """Results, then gradients, in float64."""
    fn.manual_seed(7)
    dtype = "float64" if device == "cpu" else HALF
    leaves = [
        fn.tensor(a, requires_grad=a.dtype.kind == "f", device=device,
                  dtype=dtype if a.dtype.kind == "f" else None)
        for a in arrays
    ]  # fmt: skip
    results = flat(function(*leaves))
    loss: Any = None
    for result in results:
        if result.requires_grad:
            wide = result if device == "cpu" else result.float()
            loss = wide.sum() if loss is None else loss + wide.sum()
    if loss is not None:
        loss.backward()
    grads = [leaf.grad for leaf in (*leaves, *parameters)]
    for leaf, grad in zip((*leaves, *parameters), grads, strict=True):
        assert grad is None or grad.dtype == leaf.dtype
    found = [None if one is None else one.detach().cpu() for one in (*results, *grads)]
    return [None if one is None else np.asarray(one._data).astype("d") for one in found], results


def compare(mine: list[Any], expected: list[Any]) -> None:
    """Within roundings of the largest values, which sums and their parts are not far from."""
    for got, want in zip(mine, expected, strict=True):
        assert (got is None) == (want is None)
        if got is not None and got.size:
            scale = max(1.0, np.abs(want[np.isfinite(want)]).max(initial=0))
            np.testing.assert_allclose(got, want, rtol=0, atol=24 * EPS * scale)


def check_dtypes(results: list[Any], dtype: Any) -> None:
    assert {one.dtype for one in results if one.is_floating_point()} <= {np.dtype(dtype)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(xp: Any, name: str) -> None:
    for function, *arrays in FUNCTIONS[name]:
        values = [held(one) for one in drawn(arrays)]
        expected, _ = outcome(function, values, "cpu")
        got, results = outcome(function, values, "cuda")
        compare(got, expected)
        if values[0].dtype.kind == "f":
            check_dtypes(results, np.float32 if name in FLOAT32 else HALF)


@pytest.mark.parametrize("name", MODULES)
def test_module(xp: Any, name: str) -> None:
    for factory, *rest in MODULES[name]:
        call = rest.pop(0) if callable(rest[0]) else None
        values = [held(one) for one in drawn(rest)]
        fn.manual_seed(3)
        there = factory().to("cuda", HALF)
        here = copy.deepcopy(there).to("cpu", "float64")

        def run(module: Any, device: str, call: Any = call, values: Any = values) -> Any:
            parameters = list(module.parameters())
            function = module if call is None else lambda *x: call(module, *x)
            return outcome(function, values, device, parameters)[0]

        compare(run(there, "cuda"), run(here, "cpu"))


@pytest.mark.parametrize("name", METHODS)
def test_method(xp: Any, name: str) -> None:
    for function, *arrays in METHODS[name]:
        values = [held(one) for one in drawn(arrays)]
        got, results = outcome(function, values, "cuda")
        compare(got, outcome(function, values, "cpu")[0])
        if values and values[0].dtype.kind == "f" and name not in OTHER_DTYPES:
            check_dtypes(results, HALF)
