"""fusednn: fast neural-network kernels for Python, in one small wheel.

    import fusednn as fn
    import fusednn.functional as F
    from fusednn import nn, optim

`functional` has the ops (NumPy arrays in, arrays out; Tensors in, Tensors with gradients out), `nn`
the layers, `optim` the optimisers. Names and meanings are PyTorch's where it has the same thing.
"""

from typing import TYPE_CHECKING, Any

from . import _threadpoolctl, functional, io, nn, optim, random, testing
from ._config import config, show_config
from ._core import (
    __version__,
    cpu_isa,
    cuda_status,
    get_float32_precision,
    get_num_threads,
    has_cuda,
    set_float32_precision,
    set_num_threads,
)
from ._tensor.autocast import autocast, is_autocast_enabled
from ._tensor.creation import (
    arange,
    from_dlpack,
    from_numpy,
    full,
    ones,
    ones_like,
    rand,
    randn,
    tensor,
    zeros,
    zeros_like,
)
from ._tensor.linalg import matmul
from ._tensor.mode import enable_grad, is_grad_enabled, no_grad, set_grad_enabled
from ._tensor.pointwise import maximum, minimum, where
from ._tensor.shape import cat, stack
from ._tensor.tensor import Tensor
from .functional.conv_matrix import conv_matrix
from .io import load, save
from .random import manual_seed

if TYPE_CHECKING:
    from . import analysis, data, models

_threadpoolctl.register()


def __getattr__(name: str) -> Any:
    """What most programs need nothing of is imported when it is first used."""
    if name in ("analysis", "data", "models"):
        from importlib import import_module

        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Tensor",
    "__version__",
    "analysis",
    "arange",
    "autocast",
    "cat",
    "config",
    "conv_matrix",
    "cpu_isa",
    "cuda_status",
    "data",
    "enable_grad",
    "from_dlpack",
    "from_numpy",
    "full",
    "functional",
    "get_float32_precision",
    "get_num_threads",
    "has_cuda",
    "io",
    "is_autocast_enabled",
    "is_grad_enabled",
    "load",
    "manual_seed",
    "matmul",
    "maximum",
    "minimum",
    "models",
    "nn",
    "no_grad",
    "ones",
    "ones_like",
    "optim",
    "rand",
    "randn",
    "random",
    "save",
    "set_float32_precision",
    "set_grad_enabled",
    "set_num_threads",
    "show_config",
    "stack",
    "tensor",
    "testing",
    "where",
    "zeros",
    "zeros_like",
]
