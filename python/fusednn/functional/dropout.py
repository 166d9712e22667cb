"""Dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import ndarray

from .. import random
from .._tensor.device import beside, is_half, on_gpu
from .._tensor.tape import Array, Gradients, Node
from .activation import finish, floats


def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Zeroes each element with probability p and scales the others by 1 / (1 - p); the input as it
    is if not training. p = 1 gives zeros. Random numbers come from `manual_seed`'s generator.

    Srivastava et al., "Dropout", JMLR 15 (2014).

    >>> import numpy as np, fusednn.functional as F
    >>> F.dropout(np.ones(2), 0.5, training=False)
    array([1., 1.])
    """
    if not 0 <= p <= 1:
        raise ValueError(f"dropout: p={p}, expected a probability in [0, 1]")
    x = floats("dropout", input)
    if not training or p == 0:
        return input
    # Drawn on the CPU: the same bits on every device.
    mask = beside(random.next_generator().random(x.shape, np.float32) >= p, x)
    scale: Any = x.dtype.type(1 / (1 - p) if p < 1 else 0)
    if is_half(x.dtype):
        scale = beside(scale.reshape(1), x)  # CuPy does not know bfloat16's scalars
    return finish(_masked(x, mask, scale), input, _dropout_backward, (), (mask, scale))


def _dropout_backward(node: Node, grad: Any) -> Gradients:
    mask, scale = node.saved
    return (_masked(grad, mask, scale),)


def _masked(x: Array, mask: Array, scale: Any) -> Array:
    # Dropped elements are not looked at: NaN and inf become 0 too.
    if type(x) is not ndarray and on_gpu(x):
        return np.where(mask, x * scale, scale * 0)  # type: ignore[no-any-return]
    out: Array = np.zeros(x.shape, x.dtype)
    np.multiply(x, scale, out=out, where=mask)
    return out


__all__ = ["dropout"]
