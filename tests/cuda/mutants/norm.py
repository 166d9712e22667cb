"""Normalisations, sums over channels, and reductions of a block."""

from __future__ import annotations

from .target import Target

TARGETS = (
    Target(
        "csrc/cuda/reduce.h",
        ("test_norm_kernels.py", "-k", "layer_norm"),
        {
            "half of the lanes": ("step = width / 2;", "step = width / 4;"),
            "a warp is left out": ("warp = 1; warp < warps", "warp = 2; warp < warps"),
            "a warp too many": ("warp = 1; warp < warps", "warp = 1; warp <= warps"),
            "every lane writes": ("if (thread % 32 == 0) of_warp", "of_warp"),
        },
        compiled="csrc/cuda/norm/layer.cu",
    ),
    Target(
        "csrc/cuda/channels.h",
        ("test_norm_kernels.py", "-k", "batch_norm"),
        {
            "vectors across channels": ("packs && view.inner % wide == 0", "packs"),
            "an element too many": ("at < size; at += step", "at <= size; at += step"),
            "the line for the channel": ("line - quotient(line, channels) * channels", "line"),
            "no step to the next row": ("at += rows * channels", "at += channels"),
            "rows of one channel": ("over ? (channels - 1) * inner : 0", "0"),
            "the place before": ("(i += rest) >= inner", "(i += rest) > inner"),
            "half a slice": ("place < end; place += k", "place + 1 < end; place += k"),
            "slices in one place": (
                "partial[(slice * kValues + n) * channels + c];",
                "partial[n];",
            ),
            "warps left out": ("w < warps; ++w) total", "w < warps / 2; ++w) total"),
        },
        equivalent={
            "delete __syncthreads 1": "a block has a second job only beyond 2^31 - 1 of them",
        },
        compiled="csrc/cuda/norm/batch.cu",
    ),
)
