"""How much memory the kernels move, against the fewest sectors and wavefronts that would do: a sign
of speed that can be had without a GPU. What is allowed is in budgets.py.

Shapes are those at which a kernel should be at its best: a whole number of tiles, and arrays that
begin at a sector.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase

import numpy as np
import pytest
from budgets import MOST_TRAFFIC, TRAFFIC
from entries import call

import fusednn.functional as F
from fusednn import _core

pytestmark = pytest.mark.strict

LINE = re.compile(
    r"(?P<where>.+?) +(?P<kind>(?:global|shared) (?:read|write)) +requests +\d+ "
    r"(?:wavefronts|sectors) +(?P<moved>\d+) ideal +(?P<ideal>\d+) x"
)


def ratios(text: str) -> dict[tuple[str, str], float]:
    """(file, "global read" and so on) -> moved over ideal, summed over the file's lines."""
    sums: dict[tuple[str, str], list[int]] = {}
    for line in text.splitlines():
        match = LINE.match(line)
        assert match, line
        # "inlined.h:12 < kernel.cu:34": what counts is the innermost line's file
        file = match["where"].split(":")[0]
        sum_ = sums.setdefault((file, match["kind"]), [0, 0])
        sum_[0] += int(match["moved"])
        sum_[1] += int(match["ideal"])
    return {key: moved / ideal for key, (moved, ideal) in sums.items()}


def allowed(file: str, kind: str) -> float:
    for pattern, what, most, _ in TRAFFIC:
        if fnmatchcase(file, pattern) and what == kind:
            return most
    return MOST_TRAFFIC


def check(run) -> dict[tuple[str, str], float]:
    from emulated import Profile

    with Profile() as profile:
        run()
    found = ratios(profile.text)
    assert found
    for (file, kind), ratio in found.items():
        assert ratio <= allowed(file, kind), f"{file}, {kind}: x{ratio:.2f}\n{profile.text}"
    return found


def normal(xp, *shape):
    return xp.asarray(np.random.default_rng(0).standard_normal(shape).astype("float32"))


def test_elementwise(xp):
    x = normal(xp, 4096)
    check(lambda: F.relu(x))
    check(lambda: F.gelu(x))


@pytest.mark.parametrize(("kernel", "stride"), [(2, 2), (3, 1), (3, 2)])
def test_max_pool(xp, kernel, stride):
    x = normal(xp, 2, 4, 32, 32)
    check(lambda: F.max_pool2d(x, kernel, stride, 1 if kernel == 3 else 0))


def test_gemm_tf32(xp):
    """Fragments from padded rows meet no bank conflict."""
    a, b, c = normal(xp, 64, 64), normal(xp, 64, 64), xp.empty((64, 64), "float32")
    found = check(lambda: call("test_gemm_tf32", a, b, c, 64, 64, 64))
    assert found["gemm_tf32.cu", "shared read"] == 1


def test_gemm_bf16(xp):
    from emulated import take_counts

    a, b = (xp.asarray(np.ones((64, 64), "uint16")) for _ in range(2))
    c = xp.empty((64, 64), "float32")
    take_counts()
    check(lambda: call("test_gemm_bf16", a, b, c, 64, 64, 64))
    counts = take_counts()
    assert counts["load_matrix"] > 0
    assert counts["load_matrix_conflicts"] == 0


@pytest.mark.parametrize("turned", [(False, False), (True, False), (False, True), (True, True)])
def test_products_of_halves(xp, turned):
    """Fragments meet no bank conflict, whichever way the matrices lie."""
    from emulated import take_counts

    a, b = (xp.asarray(np.ones((64, 64), "float16")) for _ in range(2))
    take_counts()
    check(lambda: _core.matmul(a, b, *turned))
    counts = take_counts()
    assert counts["load_matrix"] > 0
    assert counts["load_matrix_conflicts"] == 0


def test_elementwise_halves(xp):
    x = normal(xp, 4096).astype("float16")
    check(lambda: F.relu(x))
    check(lambda: F.gelu(x))
    check(lambda: _core.cast(x, "float32"))


def test_blocks(xp):
    x, out = normal(xp, 64, 64), xp.empty((64, 64), "float32")
    check(lambda: call("test_transpose", x, out, 64))
    check(lambda: call("test_softmax", x, out, 64, 64))


def test_optimisers(xp):
    """Every array once, whatever the sizes of the tensors."""
    columns = [[normal(xp, size) for size in (4096, 64, 8192)] for _ in range(4)]
    adam = (None, [1] * 3, 0.1, 0.9, 0.99, 1e-8, 0.0, False, False)
    check(lambda: _core.adam_step(*columns, *adam))
    check(lambda: _core.sum_of_squares(columns[0], 1.0))
    check(lambda: _core.scale_arrays(columns[0], 0.5))


def test_transposes(xp):
    x = normal(xp, 2, 64, 96)
    check(lambda: F.relu(x.transpose(0, 2, 1)))


def test_what_is_wrong_is_seen(xp):
    """Windows that lie far apart: every element in a sector of its own."""
    x = normal(xp, 1, 1, 64, 64)
    with pytest.raises(AssertionError, match=r"max\.cu, global read: x8\.00"):
        check(lambda: F.max_pool2d(x, 1, 8))
