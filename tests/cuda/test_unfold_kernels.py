"""Windows as columns, their sum, and transposed matrices on the GPU: as on the CPU."""

from __future__ import annotations

import numpy as np
import pytest

import fusednn.functional as F

# input, kernel, dilation, padding, stride
CASES = (
    ((1, 1, 1, 1), 1, 1, 0, 1),
    ((2, 3, 7, 6), 3, 1, 1, 1),
    ((1, 2, 9, 8), (2, 3), (2, 1), (0, 2), (3, 2)),
    ((3, 5, 5), 2, 2, 1, 2),
    ((0, 2, 4, 4), 2, 1, 0, 2),
    ((1, 1, 2, 3), 1, 1, 2**31, 2**31 - 1),
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_unfold_and_fold(xp, dtype, case):
    shape, *window = case
    rng = np.random.default_rng(0)
    x = rng.integers(-8, 8, shape).astype(dtype)
    columns = F.unfold(x, *window)
    got = F.unfold(xp.asarray(x), *window)
    assert isinstance(got, xp.ndarray)
    np.testing.assert_array_equal(xp.asnumpy(got), columns)
    values = rng.integers(-8, 8, columns.shape).astype(dtype)  # sums are exact
    got = F.fold(xp.asarray(values), shape[-2:], *window)
    np.testing.assert_array_equal(xp.asnumpy(got), F.fold(values, shape[-2:], *window))
