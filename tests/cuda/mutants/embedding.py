"""Embedding and rotary embedding."""

from __future__ import annotations

from .target import Target

EMBEDDING = "test_embedding_kernels.py"

TARGETS = (
    Target(
        "csrc/cuda/embedding/embedding.cu",
        (EMBEDDING, "-k", "embedding or table"),
        {
            "an element too many": ("if (at >= size) return;", "if (at > size) return;"),
            "a gradient too many": (
                "if (at >= size) return; const i64 row",
                "if (at > size) return; const i64 row",
            ),
            "place for the id": ("table + ids[place] * width", "table + place * width"),
            "ends of one place": ("starts[row + 1];", "starts[row] + 1;"),
            "places as they come": ("dy + order[i] * width + k", "dy + i * width + k"),
            "-0 becomes 0": ("i == first ? v.of[j] : sum.of[j] + v.of[j]", "sum.of[j] + v.of[j]"),
            "scale of the first row": ("scale[row];", "scale[0];"),
            "padding counts": ("ids[i] == skipped ? rows : ids[i]", "ids[i]"),
            "a key too many": ("if (i < count) keys", "if (i <= count) keys"),
            "no end of the last row": ("if (r > rows) return;", "if (r >= rows) return;"),
            "a start too many": ("if (r > rows) return;", "if (r > rows + 1) return;"),
            "upper bounds": ("keys[order[middle]] < row", "keys[order[middle]] <= row"),
            "keys as they come": ("keys[order[middle]]", "keys[middle]"),
            "uses of the next row": ("below(r + 1) - start;", "below(r + 1);"),
            "a block too few": ("blocks_for(rows + 1, kThreads)", "blocks_for(rows, kThreads)"),
            "half of the blocks": (
                "blocks_for(size, kThreads * wide)",
                "blocks_for(size, kThreads * wide * 2)",
            ),
            "vectors across rows": (
                "rows_of_packs<T>(width, table, y)",
                "rows_of_packs<T>(size, table, y)",
            ),
            "alignment of the table": (
                "rows_of_packs<T>(width, table, y)",
                "rows_of_packs<T>(width, y)",
            ),
            "alignment of dy": (
                "rows_of_packs<T>(width, dy, dtable)",
                "rows_of_packs<T>(width, dtable)",
            ),
        },
    ),
    Target(
        "csrc/cuda/embedding/rotary.cu",
        (EMBEDDING, "-k", "rotary"),
        {
            "a pair too many": ("if (at < all) {", "if (at <= all) {"),
            "odd widths": ("pairs = (p.width + 1) / 2;", "pairs = p.width / 2;"),
            "behind the head": ("i < 2 * k + 2 && i < p.width", "i < 2 * k + 2"),
            "one of two is copied": ("i < 2 * k + 2 &&", "i < 2 * k + 1 &&"),
            "all are turned": ("if (k >= half) {", "if (k > half) {"),
            "positions of the first sequence": ("rows ? rows[place]", "rows ? rows[t]"),
            "angles of the first sequence": (": place) * half", ": t) * half"),
            "angles by width": (": place) * half + k", ": place) * pairs + k"),
            "strides swapped": (
                "head * p.head_stride + t * p.position_stride",
                "head * p.position_stride + t * p.head_stride",
            ),
            "neighbours as halves": ("p.interleaved ? first + 1 :", ""),
            "halves of the width": ("first + 1 : first + half", "first + 1 : first + pairs"),
            "never back": ("p.inverse ? -sin[angle] : sin[angle]", "sin[angle]"),
            "blocks of the same pairs": (
                "at = i64(blockIdx.x) * kThreads + threadIdx.x",
                "at = threadIdx.x",
            ),
            "a block too few": (
                "blocks_for(all, kThreads)",
                "blocks_for(all - 1, kThreads) - (all > 1024)",
            ),
        },
    ),
)
