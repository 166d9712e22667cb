"""Softmax and cross-entropy, and the rows that they share with normalisations."""

from __future__ import annotations

from .target import Target

TARGETS = (
    Target(
        "csrc/cuda/rows.h",
        ("test_softmax_kernels.py", "-k", "test_softmax"),
        {
            "a row too many": ("live(row < rows)", "live(row <= rows)"),
            "past the row's end": ("k < size; k += threads", "k <= size; k += threads"),
            "teams share a row": (
                "threadIdx.x / unsigned(team)",
                "threadIdx.x / unsigned(team) / 2",
            ),
            "vectors anywhere": ("size % Pack<T>::kSize == 0 &&", ""),
            "a block's row in one warp": ("return threads > 32 ?", "return threads > 256 ?"),
            "a class too many": ("k = 0; k < classes", "k = 0; k <= classes"),
            "steps of lanes": ("k += threads * kWide", "k += threads"),
        },
        compiled="csrc/cuda/softmax.cu",
    ),
)
