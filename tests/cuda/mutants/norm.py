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
)
