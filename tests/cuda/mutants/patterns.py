"""Whole kernels of tests/cuda/kernels: what csrc/cuda is made of."""

from __future__ import annotations

from .target import Target

PATTERNS = "test_patterns.py"

TARGETS = (
    Target(
        "tests/cuda/kernels/gemm_tf32.cu",
        (PATTERNS, "-k", "tf32 or row"),
        {
            "load row bound": ("row < p.m ?", "row <= p.m ?"),
            "load k bound": ("row < p.k ?", "row <= p.k ?"),
            "store row bound": ("if (r >= p.m) continue;", "if (r > p.m) continue;"),
            "store column bound": ("if (c < p.n)", "if (c <= p.n)"),
            "second column without bound": ("if (c + 1 < p.n)", "if (c < p.n)"),
            "whole vector at the edge": ("left >= 4 ? 16 : left * 4", "16"),
            "no zero fill": (
                "row) * p.k + col : p.a, bytes);",
                "row) * p.k + col : p.a, 16);",
            ),
            "wrong stage loaded": ("(step + 1) % kStages, p", "step % kStages, p"),
            "wrong stage read": ("st = step % kStages", "st = (step + 1) % kStages"),
            "one stage of memory": ("float a[kStages]", "float a[kStages - 1]"),
            "A registers swapped": ("s.a[st][r + 8][kk + t])", "s.a[st][r][kk + t + 4])"),
            "B register's k off by one": ("[kk + t + 4][c]", "[kk + t + 3][c]"),
            "groups of eight lanes": ("g = lane / 4, t = lane % 4", "g = lane % 8, t = lane / 8"),
            "row of shared memory past the end": ("wm + i * 16 + g;", "wm + i * 16 + g + 1;"),
            "not rounded to tf32": (
                "a[i][0] = to_tf32(s.a[st][r][kk + t])",
                "a[i][0] = __float_as_uint(s.a[st][r][kk + t] * 1.01f)",
            ),
            "misaligned copy": ("&s.a[stage][r][c]", "&s.a[stage][r][c + 1]"),
            "too little shared memory": ("sizeof(Tiles)}", "sizeof(Tiles) - 64}"),
            "a warp too few": ("{grid, kThreads, sizeof", "{grid, kThreads - 32, sizeof"),
            "a block too few": ("blocks_for(m, kM)", "blocks_for(m - 1, kM)"),
            "product by half a warp": ("mma_tf32(acc", "if (lane < 16) mma_tf32(acc"),
            "barrier in a branch": (
                "        __syncthreads();\n    }",
                "        if (warp) __syncthreads();\n    }",
            ),
            "return before a barrier": (
                "    const int steps",
                "    if (m0 + wm >= p.m) return;\n    const int steps",
            ),
            "one step too few": ("(p.k + kK - 1) / kK", "p.k / kK"),
            "one step too many": ("step < steps; ++step", "step <= steps; ++step"),
        },
        equivalent={
            "whole vector at the edge": "k and n are multiples of 4: no vector crosses an edge",
            "one step too many": "the tile beyond the last is filled with zeros",
            "second column without bound": "n is even, and so is the first column",
        },
    ),
    Target(
        "tests/cuda/kernels/gemm_bf16.cu",
        (PATTERNS, "-k", "bf16"),
        {
            "load row bound": ("row < p.m &&", "row <= p.m &&"),
            "load column bound": ("col < p.k;", "col <= p.k;"),
            "store bound": ("if (r < p.m &&", "if (r <= p.m &&"),
            "B not transposed": ("load_matrix_x4_transposed(r", "load_matrix_x4(r"),
            "A transposed": ("load_matrix_x4(a", "load_matrix_x4_transposed(a"),
            "halves of B swapped": ("left_b[2] = {r[0], r[1]}", "left_b[2] = {r[0], r[2]}"),
            "matrices in the wrong order": (
                "row = lane % 16, right = lane / 16 * 8",
                "row = lane % 8 + lane / 16 * 8, right = lane / 8 % 2 * 8",
            ),
            "rows of A unaligned": ("kPad = 8", "kPad = 4"),
            "wrong stage loaded": ("next % kStages, p", "step % kStages, p"),
            "wrong stage read": ("st = step % kStages", "st = (step + 1) % kStages"),
            "two stages of memory": ("bf16 b[kStages]", "bf16 b[kStages - 1]"),
            "loads before the barrier": (
                "        copy_async_wait<kStages - 2>();\n        __syncthreads();",
                "        copy_async_wait<kStages - 2>();",
            ),
            "commit only where there is a load": (
                "kK);\n        copy_async_commit();\n        const",
                "kK), copy_async_commit();\n        const",
            ),
            "wrong half of the accumulators": ("acc[j][2 * h],", "acc[j][h],"),
            "load of half a warp": (
                "load_matrix_x4(a,",
                "if (lane < 16) load_matrix_x4(a,",
            ),
        },
        equivalent={
            "delete copy_async_wait 2": "the last step has waited for every group with data",
            "weaken copy_async_wait 2": "the last step has waited for every group with data",
        },
    ),
    Target(
        "tests/cuda/kernels/blocks.cu",
        (PATTERNS, "-k", "softmax or transpose or histogram"),
        {
            "a partial too many": ("lane < warps ?", "lane <= warps ?"),
            "every lane writes the partial": ("if (lane == 0) partial", "partial"),
            "shuffle of 16 lanes": ("d = 16; d; d /= 2", "d = 8; d; d /= 2"),
            "shuffle mask too small": ("__shfl_xor_sync(kAllLanes, v", "__shfl_xor_sync(0xffff, v"),
            "columns from the second": ("fmaxf(m, x[c]);", "fmaxf(m, x[c + 1]);"),
            "column loop past the end": (
                "c < cols; c += kThreads) m",
                "c <= cols; c += kThreads) m",
            ),
            "rows of the wrong length": ("x += i64(blockIdx.x) * cols", "x += i64(blockIdx.x)"),
            "tile without its row": ("tile[x][j];", "tile[x][j + 2];"),
            "tile not turned": ("tile[x][j];", "tile[j][x];"),
            "transpose bound": ("if (y0 + j < n &&", "if (y0 + j <= n &&"),
            "histogram without atomics": (
                "atomicAdd(&bins[min(kBins - 1, int(in[i] * kBins))], 1u);",
                "bins[min(kBins - 1, int(in[i] * kBins))] += 1u;",
            ),
            "sum of blocks without atomics": (
                "atomicAdd(&out[thread], bins[thread]);",
                "out[thread] += bins[thread];",
            ),
            "bins past the end": ("if (thread < kBins) bins", "if (thread <= kBins) bins"),
            "the last bin past the end": ("min(kBins - 1,", "min(kBins,"),
            "bins not cleared": ("bins[thread] = 0;", ";"),
            "blocks count the same": ("i = int(blockIdx.x) * kThreads + thread", "i = thread"),
        },
    ),
    Target(
        "tests/cuda/kernels/meetings.cu",
        (PATTERNS, "-k", "votes or barriers or grid"),
        {
            "ballot by some lanes": (
                "const unsigned voters = __ballot_sync",
                "unsigned voters = 0;\n    if (lane < 20) voters = __ballot_sync",
            ),
            "shuffle from an absent lane": (
                "__reduce_max_sync(0x0000ffffu, int(in[lane] * 100))",
                "__shfl_sync(0x0000ffffu, int(in[lane] * 100), 20)",
            ),
            "the lane itself is counted": ("(1u << lane) - 1", "(2u << lane) - 1"),
            "the neighbour's row": ("buffer[warp][31 - lane]", "buffer[warp][32 - lane]"),
            "warps share a row": ("buffer[warp][lane] = v;", "buffer[warp / 2][lane] = v;"),
            "barrier of three warps": (
                "named_barrier_sync(full, all)",
                "named_barrier_sync(full, 96)",
            ),
            "wrong barrier": ("named_barrier_arrive(full", "named_barrier_arrive(empty"),
            "no wait in the second round": ("if (r > 0)", "if (r > 1)"),
            "the grid reads what it writes": (
                "state + (t % 2) * n;\n        float* out",
                "state + ((t + 1) % 2) * n;\n        float* out",
            ),
            "only some blocks meet": (
                "grid_sync(counter",
                "if (blockIdx.x) grid_sync(counter",
            ),
        },
    ),
)
