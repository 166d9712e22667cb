"""Does a function keep a symmetry? Tried on inputs, with the place where it fails worst."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy import ndarray

from .._tensor.mode import no_grad
from .._tensor.tape import Array, TensorBase, raw
from .trace import evaluating
from .transforms import unchanged


@dataclass(frozen=True)
class Report:
    """What a check found; true if the symmetry holds.

    deviation: the largest difference between f(transform(x)), `found` at `place`, and
    on_output(f(x)), `expected` there; tolerance: how large it may be.
    """

    holds: bool
    deviation: float
    tolerance: float
    place: tuple[int, ...]
    found: float
    expected: float
    what: str

    def __bool__(self) -> bool:
        return self.holds

    def __str__(self) -> str:
        relation = "<=" if self.holds else ">"
        text = f"{self.what}: deviation {self.deviation:.3g} {relation} {self.tolerance:.3g}"
        if not self.holds:
            text += f", worst at {self.place}: {self.found:.6g} instead of {self.expected:.6g}"
        return text


def check_equivariance(
    f: Callable[[Any], Any],
    transform: Callable[[Array], Array],
    x: Any,
    on_output: Callable[[Array], Array] | None = None,
    *,
    margin: int = 0,
    tolerance: float | None = None,
    samples: int = 3,
    seed: int = 0,
    dtype: Any = np.float32,
) -> Report:
    """Is f(transform(x)) equal to on_output(f(x)), up to rounding?

    f: a module or function of one array with one output. x: the input, or its shape, for `samples`
    random ones (standard normal, of `dtype`). transform: of `analysis.transforms`, or any function
    of an array; on_output: what it does to the output, by default the same. margin: so many
    positions at each end of on_output's axes are left out, as where padding shows. tolerance: by
    default 64 units in the last place of the largest output.

    ValueError where the two outputs differ in shape. Lecture "Neural networks II", section on
    equivariance: f(g(x)) = g(f(x)).

    >>> from fusednn import nn
    >>> from fusednn.analysis import check_equivariance, transforms
    >>> layer, move = nn.Conv2d(1, 2, 3, padding=1), transforms.shift(columns=1)
    >>> [bool(check_equivariance(layer, move, (1, 1, 9, 9), margin=m)) for m in (0, 2)]
    [False, True]
    """
    after = transform if on_output is None else on_output
    what = f"equivariance under {transform!r}"
    if after is not transform:
        what += f" as {after!r}"
    return _check("check_equivariance", what, f, transform, after, x, margin, tolerance,
                  samples, seed, dtype)  # fmt: skip


def check_invariance(
    f: Callable[[Any], Any],
    transform: Callable[[Array], Array],
    x: Any,
    *,
    tolerance: float | None = None,
    samples: int = 3,
    seed: int = 0,
    dtype: Any = np.float32,
) -> Report:
    """Is f(transform(x)) equal to f(x), up to rounding? Arguments as for `check_equivariance`.

    >>> import numpy as np
    >>> from fusednn import nn
    >>> from fusednn.analysis import check_invariance, transforms
    >>> print(check_invariance(nn.Identity(), transforms.flip_horizontal, np.array([[1.0, 4.0]])))
    invariance under flip_horizontal: deviation 3 > 5.68e-14, worst at (0, 0): 4 instead of 1
    """
    what = f"invariance under {transform!r}"
    return _check("check_invariance", what, f, transform, unchanged, x, 0, tolerance,
                  samples, seed, dtype)  # fmt: skip


def _check(
    op: str,
    what: str,
    f: Callable[[Any], Any],
    transform: Callable[[Array], Array],
    after: Callable[[Array], Array],
    x: Any,
    margin: int,
    tolerance: float | None,
    samples: int,
    seed: int,
    dtype: Any,
) -> Report:
    worst: Report | None = None
    with no_grad(), evaluating(f):
        for one in _inputs(op, x, samples, seed, dtype):
            expected = np.asarray(after(_output(op, f, one)))
            found = _output(op, f, np.ascontiguousarray(transform(one)))
            if found.shape != expected.shape:
                raise ValueError(
                    f"{op}: f(transform(x)) has shape {found.shape}, the transformed f(x) "
                    f"{expected.shape}, for x of shape {one.shape}"
                )
            report = _compared(what, found, expected, _inner(after, found, margin), tolerance)
            # NaN counts as the worst there is.
            if worst is None or not report.deviation <= worst.deviation:
                worst = report
    assert worst is not None
    return worst


def _inputs(op: str, x: Any, samples: int, seed: int, dtype: Any) -> list[Array]:
    array = raw(x)
    if isinstance(array, ndarray):
        return [array]
    if isinstance(array, tuple) and all(hasattr(n, "__index__") for n in array):
        if samples < 1:
            raise ValueError(f"{op}: samples={samples}, expected at least 1")
        random = np.random.default_rng(seed)
        return [random.standard_normal(array).astype(dtype) for _ in range(samples)]
    raise TypeError(f"{op}: x must be an array, a Tensor or a shape, got {x!r}")


def _output(op: str, f: Callable[[Any], Any], x: Array) -> Array:
    out = f(x)
    if not isinstance(out, (ndarray, TensorBase)):
        raise TypeError(f"{op}: f gave a {type(out).__name__}, expected one array or Tensor")
    found: Array = raw(out)
    return found


def _inner(after: Any, out: Array, margin: int) -> tuple[Any, ...]:
    axes = getattr(after, "axes", tuple(range(min(2, out.ndim), out.ndim)))
    index: list[Any] = [slice(None)] * out.ndim
    for axis in axes if margin else ():
        index[axis] = slice(margin, out.shape[axis] - margin)
    return tuple(index)


def _compared(
    what: str, found: Array, expected: Array, inner: tuple[Any, ...], tolerance: float | None
) -> Report:
    part, target = found[inner], expected[inner]
    if tolerance is None:
        epsilon = np.finfo(part.dtype).eps if part.dtype.kind == "f" else 0.0
        scale = np.abs(target[np.isfinite(target)]).max(initial=0)
        tolerance = float(64 * epsilon * max(1.0, scale))
    if not part.size:
        return Report(True, 0.0, tolerance, (), 0.0, 0.0, what)
    with np.errstate(invalid="ignore"):
        gap = np.where(part == target, 0, np.abs(part.astype(float) - target))
    at = np.unravel_index(int(gap.argmax()), gap.shape)  # the first NaN, if there is one
    place = tuple(
        int(i) + (0 if one.start is None else one.start) for i, one in zip(at, inner, strict=True)
    )
    deviation = float(gap[at])
    holds = deviation <= tolerance
    return Report(holds, deviation, tolerance, place, float(part[at]), float(target[at]), what)


__all__ = ["Report", "check_equivariance", "check_invariance"]
