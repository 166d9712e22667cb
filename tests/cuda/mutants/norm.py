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
    Target(
        "csrc/cuda/norm/group.cu",
        ("test_norm_kernels.py", "-k", "group_norm or instance or anywhere"),
        {
            "a channel from each vector's begin": (
                "left = (c + 1) * p.inner - k;",
                "left = p.inner;",
            ),
            "short channels": ("done < kWide; left = p.inner, ++c", "done < kWide; ++c"),
            "one channel to a vector": (
                "end = left < kWide - done ? done + int(left) : kWide;",
                "end = kWide;",
            ),
            "channels of the first group": ("c += channel;", ""),
            "teams without a row store": (
                "if (team.live && team.lane == 0) store_center",
                "if (team.lane == 0) store_center",
            ),
            "every lane stores": (
                "if (team.live && team.lane == 0) {\n            sums",
                "if (team.live) {\n            sums",
            ),
            "group of the row": (
                "p.batch * p.groups, quotient(team.row, each))",
                "p.batch * p.groups, quotient(team.row, p.groups))",
            ),
            "sums of one image": (
                "const i64 rows = p.batch * p.channels;",
                "const i64 rows = p.channels;",
            ),
            "weights of the first group": ("weight[channel + c]", "weight[c]"),
            "mean of a channel": (
                "Sum(sum_g / double(each * p.inner))",
                "Sum(sum_g / double(p.inner))",
            ),
            "weights by image": (
                "channel = row - quotient(row, channels) * channels;",
                "channel = row;",
            ),
            "slopes of the first image": ("means[groups + group]", "means[group]"),
            "last image": ("n < batch; ++n", "n + 1 < batch; ++n"),
            "sums of the next image": (
                "sums[(batch + n) * channels + c]",
                "sums[(n + 1) * channels + c]",
            ),
            "alignment of x": ("rows_of_packs<T>(size, x, y)", "rows_of_packs<T>(size, y)"),
            "alignment of x, backward": (
                "rows_of_packs<T>(p.inner, dy, x)",
                "rows_of_packs<T>(p.inner, dy)",
            ),
        },
    ),
    Target(
        "csrc/cuda/norm/layer.cu",
        ("test_norm_kernels.py", "-k", "layer_norm or anywhere or nan or far"),
        {
            "statistics of x alone": ("row = sum + begin;", ""),
            "residual of the first row": ("residual + begin + k", "residual + k"),
            "teams without a row store": (
                "if (team.live && team.lane == 0) store",
                "if (team.lane == 0) store",
            ),
            "one weight": ("w = load_wide<kWide>(weight + k);", "w = load_wide<kWide>(weight);"),
            "no bias": ("if (bias) {", "if (false) {"),
            "alignment of the residual": ("(p.size, x, residual,", "(p.size, x,"),
            "alignment of the bias": ("weight, bias, sum, y);", "weight, sum, y);"),
            "alignment of dy": ("(p.size, dy, x, weight, dx)", "(p.size, x, weight, dx)"),
            "root mean square with a mean": (
                "p.rms ? Sum(0) : Sum(team",
                "false ? Sum(0) : Sum(team",
            ),
            "gradient without weight": ("g.of[i] *= w.of[i];", "g.of[i] *= Sum(1);"),
            "statistics of the first row": (
                "of(stats, rows, row)(x[at])",
                "of(stats, rows, 0)(x[at])",
            ),
            "dw and db swapped": (
                "if (db) db[k] = Accumulate<T>(sum[0]);",
                "if (db) db[k] = Accumulate<T>(sum[1]);",
            ),
        },
    ),
    Target(
        "csrc/cuda/norm/batch.cu",
        ("test_norm_kernels.py", "-k", "batch or anywhere or far or nan"),
        {
            "NaN is cut": (
                "relu && value <= Sum(0) ? Sum(0) : value",
                "relu && !(value > Sum(0)) ? Sum(0) : value",
            ),
            "gradient at 0": (
                "y[at] <= Sum(0) ? Sum(0) : Sum(dy[at])",
                "y[at] < Sum(0) ? Sum(0) : Sum(dy[at])",
            ),
            "gradient of x at 0": ("out.of[i] <= Sum(0)", "out.of[i] < Sum(0)"),
            "low left out": ("(v.of[i] - center.mean - center.low)", "(v.of[i] - center.mean)"),
            "low left out of the variance": ("sum[1] / places - rest * rest", "sum[1] / places"),
            "constants in training": (
                "places > 0 ? Sum(sum[0] / places)",
                "places < 0 ? Sum(sum[0] / places)",
            ),
            "slopes of the means": ("slope = means[channels + c]", "slope = means[c]"),
            "running variance is biased": ("double(variance) * unbiased", "double(variance)"),
            "momentum the other way": (
                "(1 - momentum) * double(running_mean[c])",
                "momentum * double(running_mean[c])",
            ),
            "an empty batch counts": ("p.outer * p.inner == 0) {", "false) {"),
            "a channel too many": ("c < p.channels; c += step", "c <= p.channels; c += step"),
            "alignment of dy": ("packs = detail::whole_packs(dy) &&", "packs ="),
            "alignment of x": (
                "packs = detail::whole_packs(x) && detail::whole_packs(y);",
                "packs = detail::whole_packs(y);",
            ),
        },
        equivalent={
            "low left out": "what rounding the mean leaves over is within the tolerance",
            "low left out of the variance": "it is the square of a rounding",
        },
    ),
)
