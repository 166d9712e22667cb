"""Everything public runs on a GPU: values and gradients of every function, module and method beside
the CPU's, by the tables of coverage_cases.py and coverage_methods.py. What is new fails a test
until it has a case there, or stands among those without a kernel."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from coverage_cases import (
    FUNCTIONS,
    FUNCTIONS_OF_NUMBERS,
    MODULES,
    NOT_CALLED,
    Positive,
)
from coverage_methods import METHODS, NO_ARRAYS, WITHOUT_DEVICE

import fusednn as fn
import fusednn.functional as F
from fusednn import nn


def drawn(arrays: Any) -> list[Any]:
    """The arrays of a case."""
    rng = np.random.default_rng(0)
    made = []
    for one in arrays:
        if isinstance(one, Positive):
            made.append(rng.uniform(0.5, 2, one.shape))
        elif isinstance(one, tuple):
            made.append(rng.standard_normal(one))
        else:
            made.append(one)
    return made


def flat(results: Any) -> list[Any]:
    """All Tensors in what a function gave."""
    if isinstance(results, fn.Tensor):
        return [results]
    if isinstance(results, tuple | list):
        return [tensor for one in results for tensor in flat(one)]
    return []


def outcome(function: Any, arrays: list[Any], device: str, parameters: Any = ()) -> list[Any]:
    """Results and gradients of a function on a device, as NumPy's arrays."""
    fn.manual_seed(7)
    leaves = [fn.tensor(a, requires_grad=a.dtype.kind == "f", device=device) for a in arrays]
    results = flat(function(*leaves))
    where = "cpu" if device == "cpu" else "cuda:0"
    loss: Any = None
    for i, result in enumerate(results):
        assert result.device == where
        if result.requires_grad:
            weights = np.linspace(1 + i, 2 + i, max(result.numel(), 1))[: result.numel()]
            placed = fn.tensor(weights.reshape(result.shape), device=device).to(result.dtype)
            loss = (result * placed).sum() if loss is None else loss + (result * placed).sum()
    if loss is not None:
        loss.backward()
    grads = [leaf.grad for leaf in (*leaves, *parameters)]
    for grad in grads:
        assert grad is None or grad.device == where
    return [None if one is None else one.detach().cpu().numpy() for one in (*results, *grads)]


def compare(mine: list[Any], expected: list[Any]) -> None:
    assert len(mine) == len(expected)
    for got, want in zip(mine, expected, strict=True):
        assert (got is None) == (want is None)
        if got is not None:
            assert got.dtype == want.dtype and got.shape == want.shape
            np.testing.assert_allclose(got, want, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str) -> None:
    for function, *arrays in FUNCTIONS[name]:
        values = drawn(arrays)
        expected = outcome(function, values, "cpu")
        compare(outcome(function, values, "cuda"), expected)


@pytest.mark.parametrize("name", MODULES)
def test_module(name: str) -> None:
    for factory, *rest in MODULES[name]:
        call = rest.pop(0) if callable(rest[0]) else None
        values = drawn(rest)
        fn.manual_seed(3)
        here = factory().to("float64")
        there = copy.deepcopy(here).to("cuda")

        def run(module: Any, device: str, call: Any = call, values: Any = values) -> list[Any]:
            parameters = list(module.parameters())
            function = module if call is None else lambda *x: call(module, *x)
            got = outcome(function, values, device, parameters)
            return got + [fn.tensor(b).numpy() for b in module.state_dict().values()]

        expected = run(here, "cpu")
        compare(run(there, "cuda"), expected)


@pytest.mark.parametrize("name", METHODS)
def test_method(name: str) -> None:
    for function, *arrays in METHODS[name]:
        values = drawn(arrays)
        compare(outcome(function, values, "cuda"), outcome(function, values, "cpu"))


def test_nothing_is_left_out() -> None:
    assert set(F.__all__) == set(FUNCTIONS) | FUNCTIONS_OF_NUMBERS
    assert set(nn.__all__) == set(MODULES) | NOT_CALLED
    methods = {name for name in dir(fn.Tensor) if not name.startswith("_")}
    operators = {
        name for name in dir(fn.Tensor) if name.startswith("__") and not hasattr(object, name)
    }
    functions = {name for name in fn.__all__ if callable(getattr(fn, name))}
    assert methods | operators | functions | {"__eq__"} <= set(METHODS) | NO_ARRAYS | WITHOUT_DEVICE


# ---- one device to a call ------------------------------------------------------------------------


def _mixed(name: str) -> list[tuple[Any, list[Any]]]:
    return [(f, drawn(arrays)) for f, *arrays in FUNCTIONS[name]]


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if any(len(c) > 2 for c in FUNCTIONS[n])])
def test_arrays_of_two_devices_are_refused(name: str) -> None:
    """Whichever argument is elsewhere: a ValueError that says where."""
    for function, values in _mixed(name):
        for other in range(1, len(values)):
            places = ["cuda" if i == other else "cpu" for i in range(len(values))]
            for swapped in (False, True):
                devices = [{"cpu": "cuda", "cuda": "cpu"}[p] if swapped else p for p in places]
                tensors = [fn.tensor(v, device=d) for v, d in zip(values, devices, strict=True)]
                with pytest.raises(ValueError) as caught:
                    function(*tensors)
                assert "on cuda:0" in str(caught.value)
                assert "on cpu" in str(caught.value) or "on the CPU" in str(caught.value)
