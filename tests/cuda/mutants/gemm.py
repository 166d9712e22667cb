"""Matrix products."""

from __future__ import annotations

from .target import Target

PRODUCTS = "test_product_kernels.py"
HALF = "test_half_products.py"

TARGETS = (
    Target(
        "csrc/cuda/gemm/product.h",
        (PRODUCTS, "-k", "order or large_tiles or same_bits or empty or test_linear"),
        {
            "wrong stage multiplied": ("math.add(s.pairs.a[stage]", "math.add(s.pairs.a[0]"),
            "sums of another column": ("&s.sums[row][column]", "&s.sums[row][0]"),
            "old value added twice": ("work.out.accumulate ? to : T{}", "to"),
            "depth of the whole": ("? first + grid.split_depth : work.k;", "? work.k : work.k;"),
            "a part too few": ("split < splits; ++split", "split + 1 < splits; ++split"),
            "an item too many": ("item < items; item", "item <= items; item"),
        },
        equivalent={
            "delete copy_async_wait 2": "the groups that are left are empty",
            "weaken copy_async_wait 2": "the groups that are left are empty",
            "delete __syncthreads 5": "a block has a second item beyond 2^31 - 1 of them only",
        },
        compiled="csrc/cuda/gemm/gemm.cu",
    ),
    Target(
        "csrc/cuda/gemm/math.h",
        (PRODUCTS, HALF, "-k", "order or large_tiles and product_kernels or linear"),
        {
            "fragment rows swapped": (
                "a.at(row0 + i * 16 + 8, p + t)",
                "a.at(row0 + i * 16, p + t)",
            ),
            "fragment depth": ("b.at(column0 + j * 8, p + t + 4)", "b.at(column0 + j * 8, p + t)"),
            "halves of the sums": ("sum[i][j][2 * half],", "sum[i][j][half],"),
            "groups of the exact sums": ("(g * kDown + ty) * kRun, p", "(g + ty) * kRun, p"),
            "order of the matrices": ("row += kRowsFirst ? odd", "row += kRowsFirst ? high"),
            "not transposed": ("load_matrix_x4_transposed(r, &tile", "load_matrix_x4(r, &tile"),
            "second of a pair": ("y[j + 1][0] = r[2]", "y[j + 1][0] = r[1]"),
            "the other format": ("if (format.brain)", "if (!format.brain)"),
            "half of the depth": ("p < kDepth; p += 16", "p < kDepth - 16; p += 16"),
        },
        compiled="csrc/cuda/gemm/gemm.cu",
    ),
    Target(
        "csrc/cuda/gemm/tile.h",
        (HALF, "-k", "test_products or orders"),
        {
            "half of the elements": (
                "first += Mine::kStep * kAtOnce",
                "first += 2 * Mine::kStep * kAtOnce",
            ),
            "a row that is not there": ("r < rows ? from", "r <= rows ? from"),
            "no zeros": (
                "got[k] = from ? from->bits : std::uint16_t(0);",
                "if (from) got[k] = from->bits;",
            ),
            "beyond the depth": ("real ? edges.rows : 0});", "edges.rows});"),
        },
        compiled="csrc/cuda/gemm/gemm.cu",
    ),
    Target(
        "csrc/cuda/gemm/gemm.cu",
        (PRODUCTS, "-k", "batches or broadcast"),
        {
            "digits swapped": ("outer * this->batch + digit", "digit * this->batch + outer"),
            "inner digit left out": ("+ digit * inner_batch", "+ 0 * inner_batch"),
            "one result for all": (
                "{storage(p.c),\n                  matrix,",
                "{storage(p.c), 0,",
            ),
            "A's batches for B": (
                "p.b_col, p.b_row, inner, batches.b)",
                "p.b_col, p.b_row, inner, batches.a)",
            ),
        },
    ),
)
