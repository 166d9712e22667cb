"""Optimisers, and the list of tensors that one launch takes."""

from __future__ import annotations

from .target import Target

TARGETS = (
    Target(
        "csrc/cuda/optim.cu",
        ("test_optimiser_kernels.py",),
        {
            "overlaps not looked for": ("if (apart(tensors)) {", "if (true) {"),
            "overlap by the wrong end": ("(span.written ? end : written_end)", "written_end"),
            "steps of others": ("return a.step == b.step;", "return true;"),
            "rates of others": ("return a.lr == b.lr;", "return true;"),
            "all partial sums in one place": ("sums.get() + first);", "sums.get());"),
            "half of the sums": ("i < count; i += kElementThreads) sum", "i < count / 2; ++i) sum"),
            "in float": (
                "const double scaled = double(value) * scale",
                "const float scaled = value",
            ),
        },
    ),
    Target(
        "csrc/cuda/tensors.h",
        ("test_optimiser_kernels.py",),
        {
            "the tensor before": ("<= block ? low : above)", "< block ? low : above)"),
            "chunk of the whole grid": (
                "(block - tensors.first_block[low]) * kChunk<T>;",
                "block * kChunk<T>;",
            ),
            "past the end": ("< tensors.size[low] ? begin", "<= tensors.size[low] + 1 ? begin"),
            "packs always": ("packs = addresses % 16 == 0;", "packs = true;"),
            "alignment of one array": ("addresses |= ", "addresses = "),
            "no rest": (
                "i < end; i += kElementThreads) body",
                "i < rest; i += kElementThreads) body",
            ),
            "one block to a tensor": ("(elements + kChunk<T> - 1) / kChunk<T>", "1"),
        },
        compiled="csrc/cuda/optim.cu",
    ),
)
