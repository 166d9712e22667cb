"""What mutate.py breaks: source files, the tests that must notice, and bugs planted by hand.

A file for each folder of csrc/cuda; target.py says what a Target is. A new kernel file gets one.
"""

from __future__ import annotations

from . import (
    activation,
    arrays,
    attention,
    conv,
    embedding,
    gemm,
    loss,
    norm,
    optim,
    patterns,
    pool,
    recurrent,
)
from .target import ROOT, Mutant, Target, mutants, operators, synchronisation

TARGETS = (
    *patterns.TARGETS,
    *pool.TARGETS,
    *activation.TARGETS,
    *gemm.TARGETS,
    *arrays.TARGETS,
    *optim.TARGETS,
    *norm.TARGETS,
    *loss.TARGETS,
    *embedding.TARGETS,
    *conv.TARGETS,
    *recurrent.TARGETS,
    *attention.TARGETS,
)

NO_KERNELS = ("device", "memory", "table")
__all__ = [
    "ROOT", "TARGETS", "Mutant", "Target", "mutants", "operators", "synchronisation", "untargeted",
]  # fmt: skip


def untargeted() -> list[str]:
    """Kernel files without a Target."""
    kernels = {str(path.relative_to(ROOT)) for path in (ROOT / "csrc/cuda").rglob("*.cu")}
    broken = {name for target in TARGETS for name in (target.source, target.compiled)}
    return sorted(kernels - broken - {f"csrc/cuda/{name}.cu" for name in NO_KERNELS})
