"""How alike vectors, or distributions, are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .._tensor.autocast import in_float32
from .._tensor.tape import SHARED, Gradients, Node, TensorBase, wrap
from .activation import floats
from .loss import _finish, _pair, _reduced, _spread

if TYPE_CHECKING:
    from .._tensor.tensor import Tensor


def _lifted(op: str, value: Any, argument: str = "input") -> Tensor:
    """A Tensor of an argument that may be an array, whose memory is a user's."""
    array = floats(op, value, argument)
    if isinstance(value, TensorBase):
        return value  # type: ignore[return-value]
    out = wrap(array)
    out._memory[1] = SHARED
    return out


def _lowered(out: Tensor, *inputs: Any) -> Any:
    """out, or its array if all inputs were arrays."""
    return out if any(isinstance(one, TensorBase) for one in inputs) else out._data


@in_float32("input", rounded=True)
def normalize(input: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Any:
    """input divided by its length along dim (`Tensor.norm` of p = 1, 2 or inf), which counts as eps
    where it is smaller.

    >>> import numpy as np, fusednn.functional as F
    >>> F.normalize(np.array([[3.0, 4.0]]))
    array([[0.6, 0.8]])
    """
    x = _lifted("normalize", input)
    return _lowered(x / x.norm(p, dim, keepdim=True).clamp(min=eps), input)


@in_float32("x1", "x2", rounded=True)
def cosine_similarity(x1: Any, x2: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    """The cosine of the angle between x1 and x2 along dim; both broadcast. Lengths below eps count
    as eps.

    >>> import numpy as np, fusednn.functional as F
    >>> F.cosine_similarity(np.array([[1.0, 0.0]]), np.array([[3.0, 4.0]]))
    array([0.6])
    """
    op = "cosine_similarity"
    a, b = _lifted(op, x1, "x1"), _lifted(op, x2, "x2")
    try:
        shape = np.broadcast_shapes(a.shape, b.shape)
    except ValueError:
        raise ValueError(f"{op}: x1 of shape {a.shape} and x2 of {b.shape} do not fit") from None
    a, b = a.expand(shape), b.expand(shape)
    lengths = a.norm(2, dim).clamp(min=eps) * b.norm(2, dim).clamp(min=eps)
    return _lowered((a * b).sum(dim) / lengths, x1, x2)


@in_float32("input", "target")
def kl_div(input: Any, target: Any, *, reduction: str = "mean", log_target: bool = False) -> Any:
    """target * (log target - input), the divergence of a distribution `target` from one whose
    logarithm is `input`; 0 where target is 0.

    input, target: one shape. reduction: "mean" over all elements, "batchmean" (the sum divided by
    the first axis: the divergence itself), "sum" or "none". log_target: target holds logarithms.
    Kullback, Leibler, "On information and sufficiency", Annals of Math. Statistics 22 (1951).

    >>> import numpy as np, fusednn.functional as F
    >>> F.kl_div(np.log([[0.5, 0.5]]), np.array([[1.0, 0.0]]), reduction="batchmean")
    array(0.69314718)
    """
    op = "kl_div"
    if reduction not in ("none", "mean", "sum", "batchmean"):
        raise ValueError(
            f"{op}: reduction={reduction!r}, expected 'none', 'mean', 'batchmean' or 'sum'"
        )
    x, t = _pair(op, input, target)
    if reduction == "batchmean" and x.ndim == 0:
        raise ValueError(f"{op}: reduction='batchmean' needs an axis of samples")
    if log_target:
        share = np.exp(t)
        values = share * (t - x)
        slope = values + share
    else:
        share = t
        with np.errstate(divide="ignore", invalid="ignore"):
            logarithm = np.log(t)
            values = np.where(t == 0, 0, t * (logarithm - x)).astype(t.dtype)
            slope = np.where(t == 0, 0, logarithm + 1 - x).astype(t.dtype)
    if reduction == "batchmean":
        out = _reduced(values, "sum") / max(x.shape[0], 1)
        kind, count = "mean", max(x.shape[0], 1)
    else:
        out, kind, count = _reduced(values, reduction), reduction, x.size
    context = (share.copy() if share is t else share, slope, kind, count)
    return _finish(out, (input, target), _kl_div_backward, (), context)


def _kl_div_backward(node: Node, grad: Any) -> Gradients:
    x_edge, t_edge = node.edges
    share, slope, reduction, count = node.saved
    scale = _spread(grad, reduction, count)
    return (
        None if x_edge is None else -share * scale,
        None if t_edge is None else slope * scale,
    )


__all__ = ["cosine_similarity", "kl_div", "normalize"]
