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
    Target(
        "csrc/cuda/loss.cu",
        ("test_softmax_kernels.py", "-k", "cross_entropy or ignored or far or anywhere"),
        {
            "maximum of a row from 0": (
                "most(-T(INFINITY)), sum(0) {\n        team",
                "most(0), sum(0) {\n        team",
            ),
            "maximum of a column from 0": (
                "most(-T(INFINITY)), sum(0) {\n        for_each",
                "most(0), sum(0) {\n        for_each",
            ),
            "every lane stores": ("if (team.live && team.lane == 0) {", "if (team.live) {"),
            "ignored targets are followed": (
                "if (!w.ignored(team.row)) loss = log_sum",
                "loss = log_sum",
            ),
            "target of the first row": ("w.target[team.row]] -", "w.target[first]] -"),
            "smoothing by the number of classes": ("sum ? *sum : T(classes)", "T(classes)"),
            "only some weights are summed": (
                "k < classes; k += kThreads) total",
                "k < classes && k < kThreads; k += kThreads) total",
            ),
            "all threads store the sum": ("if (threadIdx.x == 0) *sum", "*sum"),
            "NaN of what is ignored": ("return ignored ? T(0) : grad;", "return grad;"),
            "smoothing not taken off": ("w.of(target) * w.hard;", "w.of(target);"),
            "class beside class": (
                "(column[k * inner] - sums.most)",
                "(column[k] - sums.most)",
            ),
            "target's column": ("column[w.target[at] * inner]", "column[w.target[at]]"),
            "a column too many": ("at < columns; at += step", "at <= columns; at += step"),
            "a gradient too many": ("at < size; at += step", "at <= size; at += step"),
            "classes of the first": ("(o * w.classes + w.target[at])", "w.target[at]"),
            "unweighted": ("-scale[position] * w.of(k)", "-scale[position]"),
            "position of the first": ("position = o * inner +", "position ="),
            "alignment of x": ("rows_of_packs<T>(p.classes, x),", "true,"),
            "alignment of x, backward": ("rows_of_packs<T>(p.classes, x, dx),", "true,"),
        },
    ),
    Target(
        "csrc/cuda/softmax.cu",
        ("test_softmax_kernels.py", "-k", "test_softmax or anywhere or far"),
        {
            "log in one": ("(x - most) - last", "x - (most + last)"),
            "maximum from 0": (
                "most = -Sum(INFINITY), sum = Sum(0); team",
                "most = Sum(0), sum = Sum(0); team",
            ),
            "maximum of a column from 0": (
                "most = -Sum(INFINITY), sum = Sum(0); for_each",
                "most = Sum(0), sum = Sum(0); for_each",
            ),
            "rows of the first": ("y + team.row * classes;", "y + first * classes;"),
            "sum of dy alone": ("log ? dy : dy * y", "dy"),
            "probabilities not weighted": ("log ? dy - exp(y) * sum", "log ? dy - exp(y)"),
            "columns of the first": ("base = o * classes * inner + (at", "base = (at"),
            "a column too many": ("at < columns; at += step", "at <= columns; at += step"),
            "alignment of y": (
                "rows_of_packs<T>(classes, dy, y, dx)",
                "rows_of_packs<T>(classes, dy, dx)",
            ),
            "alignment of x": ("rows_of_packs<T>(classes, x, y)", "rows_of_packs<T>(classes, y)"),
        },
    ),
)
