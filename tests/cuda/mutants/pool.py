"""Pooling."""

from __future__ import annotations

from .target import Target

TARGETS = (
    Target(
        "csrc/cuda/pool/max.cu",
        ("test_pool_kernels.py",),
        {
            "bound of the outputs": ("at >= outputs) return", "at > outputs) return"),
            "bound of the inputs": ("at >= inputs) return", "at > inputs) return"),
            "last tap one too many": ("taps < kernel ? taps", "taps <= kernel ? taps + 1"),
            "first tap not clamped": ("start < 0 ?", "start < -1 ?"),
            "windows beyond the input": ("if (start >= in) return 0;", ""),
            "last output not clamped": ("last < out ? last : out", "last"),
            "outputs before the first": ("before > 0 ?", "before > stride ?"),
            "dilation ignored": ("start_w + tw * w.dilation", "start_w + tw"),
            "padding ignored": ("o * stride - pad", "o * stride"),
            "last of equals wins": ("value > best ||", "value >= best ||"),
            "NaN does not win": ("value > best || value != value", "value > best"),
            "planes of the wrong size": ("(d.in) * h.in * w.in;", "(d.in) * h.in * w.out;"),
            "winners in bytes": ("if (bytes == 2) static", "if (bytes == 3) static"),
            "winners of the line": ("winner = taps + tw", "winner = tw"),
            "argmax always written": ("if (argmax) store_tap", "store_tap"),
            "some results not written": (
                "Arrays<T>::put(y, at, best);",
                "if (threadIdx.x) Arrays<T>::put(y, at, best);",
            ),
            "one block": ("{blocks_for(count, kThreads), kThreads}", "{1, kThreads}"),
        },
        equivalent={
            "windows beyond the input": "the count is then zero or below, as its remainder is",
        },
    ),
    Target(
        "csrc/cuda/pool/average.cu",
        ("test_half_pooling.py",),
        {
            "bound of the outputs": ("at >= outputs) return", "at > outputs) return"),
            "bound of the inputs": ("at >= inputs) return", "at > inputs) return"),
            "a lane too many": ("bool live = at < outputs", "bool live = at <= outputs"),
            "planes of the wrong size": ("o.plane * l.in[0] + d", "o.plane * l.out[0] + d"),
            "divided by the first": ("l.parts(d, h, w)", "l.parts(i.d, i.h, i.w)"),
        },
    ),
    Target(
        "csrc/cuda/pool/planes.cu",
        ("test_half_pooling.py", "-k", "maxima"),
        {
            "sums not cleared": ("check(cudaMemsetAsync(to, 0,", "check(cudaMemsetAsync(to, 64,"),
            "entries of the next plane": ("i < (plane + 1) * count", "i <= (plane + 1) * count"),
            "zeros left out": ("y[at] = last[at] ?", "if (last[at]) y[at] = last[at] ?"),
        },
    ),
)
