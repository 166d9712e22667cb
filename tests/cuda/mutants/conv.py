"""Convolutions."""

from __future__ import annotations

from .target import Target

TARGETS = (
    Target(
        "csrc/cuda/conv/depthwise.cu",
        ("test_conv_kernels.py", "-k", "depthwise"),
        {
            "bound of the outputs": ("at < outputs; at", "at <= outputs; at"),
            "bound of the inputs": ("at < inputs; at", "at <= inputs; at"),
            "channel of the input": ("plane % (p.groups * p.multiplier)", "plane % p.groups"),
            "dilation ignored": ("from[i64(tw) * p.w.dilation]", "from[i64(tw)]"),
        },
        equivalent={
            "delete __syncthreads 3": "sums[0] is thread 0's own, the rest was read a barrier ago",
        },
    ),
)
