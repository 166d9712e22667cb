"""What mutate.py breaks: source files, the tests that must notice, and bugs planted by hand.

A new kernel file gets a Target. Deleted barriers and weakened waits come by themselves
(`synchronisation`), and with `--all` every comparison, sum and logical operator of its device
functions (`operators`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Target:
    """A source file below the repository's root.

    tests: pytest's arguments, file names below tests/cuda. planted: name -> (old, new); the first
    `old` in the file, whatever its white space, becomes `new`. equivalent: name of a mutant -> why
    no test can notice it; these are left out. compiled: for a header, a file that includes it.
    """

    source: str
    tests: tuple[str, ...]
    planted: dict[str, tuple[str, str]] = field(default_factory=dict)
    equivalent: dict[str, str] = field(default_factory=dict)
    compiled: str = ""


@dataclass(frozen=True)
class Mutant:
    target: Target
    name: str
    text: str  # of the whole file
    line: int

    @property
    def label(self) -> str:
        return f"{self.target.source}:{self.line} {self.name}"


PATTERNS = "test_patterns.py"
RECURRENT = "test_recurrent_kernels.py"
ATTENTION = "test_attention_kernels.py"


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
    Target(
        "csrc/cuda/unfold.cu",
        ("test_unfold_kernels.py",),
        {
            "bound of the columns": ("at >= size) return", "at > size) return"),
            "beyond the last line": ("place[1] < p.in[1]", "place[1] <= p.in[1]"),
            "between the strides": ("if (out_h % p.stride[1]) continue;", ""),
            "dilation ignored": (
                "places.next(p.kernel[a]) * p.dilation[a]",
                "places.next(p.kernel[a])",
            ),
            "a tap too many": (
                "taps < kernel ? taps : kernel",
                "taps <= kernel ? taps : kernel + 1",
            ),
        },
    ),
    Target(
        "csrc/cuda/elementwise.h",
        ("test_activation_kernels.py", "-k", "relu or begin"),
        {
            "one vector too many": ("i < whole; i", "i <= whole; i"),
            "no tail": ("whole * n + thread; i < size", "whole * n + thread; i < whole * n"),
            "tail past the end": ("whole * n + thread; i < size", "whole * n + thread; i <= size"),
            "tail not from the vectors' end": ("i = whole * n + thread", "i = whole + thread"),
            "one block's step": ("step = i64(gridDim.x) * blockDim.x;", "step = blockDim.x;"),
            "all blocks the same": ("thread = i64(blockIdx.x) * blockDim.x +", "thread ="),
            "alignment not looked at": ("% 16 == 0", "% 4 == 0"),
            "second input twice": ("(va.of[k], vb.of[k])", "(va.of[k], va.of[k])"),
            "part of the vector": (
                "k < n; ++k) result.of[k] = fn(va.of[k]);",
                "k < n - 1; ++k) result.of[k] = fn(va.of[k]);",
            ),
        },
        compiled="csrc/cuda/activation/relu.cu",
    ),
    Target(
        "csrc/cuda/activation/relu.cu",
        ("test_activation_kernels.py", "-k", "relu"),
        {
            "NaN becomes 0": ("x < T(0) ? T(0) : x", "x > T(0) ? x : T(0)"),
            "-0 becomes 0": ("x < T(0) ? T(0)", "x <= T(0) ? T(0)"),
            "slope at 0": ("y <= T(0) ? T(0)", "y < T(0) ? T(0)"),
            "arguments swapped": ("size, dy, y, dx", "size, y, dy, dx"),
        },
    ),
    Target(
        "csrc/cuda/activation/unary.cu",
        ("test_activation_kernels.py", "-k", "unary"),
        {
            "tail of the wrong side": ("in * normal_tail(-in);\n", "in * normal_tail(in);\n"),
            "no limit at -infinity": ("at_least(x, kNothing<T>) * L", "x * L"),
            "slope of tanh": ("(T(1) - v) * (T(1) + v)", "(T(1) - v) * (T(1) - v)"),
            "a piece too few": ("vector ? pieces : 1;", "vector ? pieces - 1 : 1;"),
            "a single one of another piece": ("ring.of[pieces - 1].get", "ring.of[0].get"),
            "the rest begins too late": ("item + whole * (n - 1)", "item + whole * n"),
            "factors do not turn": ("turn(factors, result);", ""),
        },
    ),
    Target(
        "csrc/cuda/gemm/product.h",
        ("test_product_kernels.py", "-k", "order or large_tiles or same_bits or empty"),
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
        ("test_product_kernels.py", "-k", "order or large_tiles"),
        {
            "fragment rows swapped": (
                "a.at(row0 + i * 16 + 8, p + t)",
                "a.at(row0 + i * 16, p + t)",
            ),
            "fragment depth": ("b.at(column0 + j * 8, p + t + 4)", "b.at(column0 + j * 8, p + t)"),
            "halves of the sums": ("sum[i][j][2 * half],", "sum[i][j][half],"),
            "groups of the exact sums": ("(g * kDown + ty) * kRun, p", "(g + ty) * kRun, p"),
        },
        compiled="csrc/cuda/gemm/gemm.cu",
    ),
    Target(
        "csrc/cuda/gemm/math.h",
        ("test_half_products.py", "-k", "orders or linear"),
        {
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
        ("test_half_products.py", "-k", "test_products or orders"),
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
        "csrc/cuda/cast.cu",
        ("test_half_kernels.py", "-k", "test_casts"),
        {
            "tail too short": (
                "i = whole * kHalves + thread; i < size",
                "i = whole * kHalves + thread; i + 1 < size",
            ),
            "vectors beyond the end": ("packs ? size / kHalves", "packs ? size / kHalves + 1"),
            "half of the floats": ("part += kFloats", "part += 2 * kFloats"),
            "the other format": ("{to == DType::bf16}", "{to != DType::bf16}"),
            "one alignment": ("whole_packs(x) && detail::whole_packs(y)", "whole_packs(y)"),
        },
    ),
    Target(
        "csrc/cuda/arrays.h",
        ("test_half_kernels.py", "-k", "test_softmax"),
        {
            "the first of each vector": ("widen(held.of[i])", "widen(held.of[0])"),
            "not narrowed": (
                "value.of[2 * i], value.of[2 * i + 1]",
                "value.of[2 * i], value.of[2 * i]",
            ),
            "no step to the row": ("return {data + n, format};", "return {data, format};"),
        },
        compiled="csrc/cuda/softmax.cu",
    ),
    Target(
        "csrc/cuda/gemm/gemm.cu",
        ("test_product_kernels.py", "-k", "batches or broadcast"),
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
    Target(
        "csrc/cuda/transpose.cu",
        ("test_arrays.py", "-k", "transposed"),
        {
            "row past the end": ("row0 + i < rows && column0", "row0 + i <= rows && column0"),
            "tile's sides swapped": ("= tile[lane][i]", "= tile[i][lane]"),
            "first matrix for all": ("to = y + matrix * rows * columns", "to = y"),
            "columns for rows": ("(column0 + i) * rows + row0", "(column0 + i) * columns + row0"),
        },
        equivalent={
            "delete __syncthreads 2": "a block has a second tile beyond 2^31 - 1 of them only",
        },
    ),
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
        "csrc/cuda/conv/depthwise.cu",
        ("test_conv_kernels.py", "-k", "depthwise"),
        {
            "bound of the outputs": ("at < outputs; at", "at <= outputs; at"),
            "bound of the inputs": ("at < inputs; at", "at <= inputs; at"),
            "channel of the input": ("plane % (p.groups * p.multiplier)", "plane % p.groups"),
            "dilation ignored": ("from[i64(tw) * p.w.dilation]", "from[i64(tw)]"),
        },
        equivalent={
            "delete __syncthreads 3": "sums[0] is thread 0's own, the rest was read a barrier ago",
        },
    ),
    Target(
        "csrc/cuda/recurrent/rows.cu",
        (RECURRENT, "-k", "values and (lengths or batch or directions or checkpoints)"),
        {
            "bound of the elements": ("if (at >= size) return;", "if (at > size) return;"),
            "sequences as they come": ("view.sequence_of(p.i) * row", "p.i * row"),
            "ended rows count": ("active = i < view.active(t);", "active = i <= view.active(t);"),
            "no zeros behind the end": ("move == Move::put || ", ""),
            "no sum": ("if (move == Move::add) value +=", "if (move == Move::add) value ="),
            "rows from the first": ("- view.row0 + i", "+ i"),
        },
    ),
    Target(
        "csrc/cuda/recurrent/forward.cu",
        (RECURRENT, "-k", "(values or projection) and not norm"),
        {
            "bias of n joined": ("p.cell == Cell::gru ? 2 * p.hidden : width", "width"),
            "a product of nothing": ("if (n == 0 && !p_.h0) return false;", ""),
            "gates of the wrong step": ("(rows_.start(rows_.time(n)) - row0)", "(n)"),
            "ended outputs left": ("if (to && to->out && p_.active)", "if (false)"),
            "the other parity": ("padded.get() + n % 2 * size", "padded.get()"),
            "state of the mask lost": (
                "if (c) copy_bytes(c_.get()",
                "if (!c) copy_bytes(c_.get()",
            ),
        },
        equivalent={"a product of nothing": "zeros add nothing but to infinite weights"},
    ),
    Target(
        "csrc/cuda/recurrent/sequence.cu",
        (RECURRENT, "-k", "launch or values"),
        {
            "weights past the unit": (
                "unit < hidden && k < hidden",
                "unit <= hidden && k < hidden",
            ),
            "depth not ended": ("&& k < hidden ?", "?"),
            "gates in another order": ("c * hidden + unit", "unit * columns + c"),
            "rows past the last": ("r < last ? r : last", "r"),
            "one buffer": ("T* to = s.h + next;", "T* to = s.h + here;"),
            "a unit too many": ("unit < hidden && column", "unit <= hidden && column"),
            "ended states lost": ("row >= active && row < batch", "false"),
            "no meeting": ("if (n + 1 < s.end) grid_sync(counter, phase);", ""),
            "a block too few": (
                "/ (tiling.tiles * each);",
                "/ (tiling.tiles * each) - (hidden > 4);",
            ),
        },
    ),
    Target(
        "csrc/cuda/recurrent/half_tile.h",
        ("test_half_recurrent.py", "-k", "large or launch or cells"),
        {
            "rows past the last": ("if (first + r >= rows) return words;", ""),
            "depth not ended": ("k + e < depth ? from[e].bits : 0", "from[e].bits"),
            "the other format": ("if (brain) {", "if (!brain) {"),
            "lower rows twice": ("{upper.of[2], lower.of[2],", "{upper.of[2], upper.of[2],"),
            "a block too few": ("(hidden + units - 1) / units;", "hidden / units;"),
        },
        compiled="csrc/cuda/recurrent/sequence_half_back.cu",
    ),
    Target(
        "csrc/cuda/recurrent/sequence_half.cu",
        ("test_half_recurrent.py", "-k", "large or launch or cells"),
        {
            "weights past the unit": ("gate < gates && unit < s.hidden", "gate < gates"),
            "another unit's gate": (
                "(gate * s.hidden + unit) * s.hidden",
                "(gate * s.hidden + unit0) * s.hidden",
            ),
            "one buffer": ("to = s.h + (n + 1) % 2 * size", "to = s.h + n % 2 * size"),
            "ended states lost": ("to.data[state] = from.data[state];", ""),
            "no meeting": ("if (n + 1 < s.end) grid_sync(counter, phase);", ""),
        },
    ),
    Target(
        "csrc/cuda/recurrent/sequence_half_back.cu",
        ("test_half_recurrent.py", "-k", "large or launch or cells"),
        {
            "n's rows of x": ("(s.cell == Cell::gru ? s.hidden : 0));", "0);"),
            "a part left out": (
                "for (int w = 1; w < kWarps; ++w)",
                "for (int w = 2; w < kWarps; ++w)",
            ),
            "mask ignored": ("sum * factor[e] : 0.0f", "sum : 0.0f"),
            "wide where it is not": ("s.d_row % 8 == 0 && first", "first"),
            "functions of the gates": ("gates_from_before(s.cell, in.kept);", ""),
        },
    ),
    Target(
        "csrc/cuda/recurrent/sequence_back.cu",
        (RECURRENT, "-k", "launch or values"),
        {
            "depth of one gate": ("values = gates * int(s.hidden)", "values = int(s.hidden)"),
            "n's rows of x": ("s.cell == Cell::gru ? s.hidden : 0);", "0);"),
            "a part left out": (
                "for (int w = 1; w < kWarps; ++w)",
                "for (int w = 2; w < kWarps; ++w)",
            ),
            "mask ignored": ("sum * factor : T(0)", "sum : T(0)"),
            "no meeting": ("            grid_sync(counter, phase);", ""),
            "ended rows too": ("if (cell && mine && row < active)", "if (cell && mine)"),
            "wide where it is not": ("s.hidden * gates_of(s.cell) % n == 0;", "true;"),
        },
    ),
    Target(
        "csrc/cuda/recurrent/backward.cu",
        (RECURRENT, "-k", "values or projection"),
        {
            "bound of the units": ("if (at >= size) return;", "if (at > size) return;"),
            "outer without output": ("outer[at] = dh[at] = d;", "dh[at] = d;"),
            "forward run again too late": (
                "n <= p_.segments[segment_]",
                "n < p_.segments[segment_]",
            ),
            "blocks not added": ("block.add = !first;", "block.add = false;"),
            "unmasked h": ("block.h_before = masked_h_.get();", ""),
        },
    ),
    Target(
        "csrc/cuda/recurrent/gradients.cu",
        (RECURRENT, "-k", "values"),
        {
            "columns past the end": ("column >= end", "column > end"),
            "n's bias as r's": ("n, 0, hidden", "n, hidden, 2 * hidden"),
            "n's rows as the others'": (
                "weight_grad(rows, hidden, block.d_by_x,",
                "weight_grad(rows, hidden, block.d_by_x + hidden,",
            ),
            "gains swapped": ("x.put(column, T(sum[0]), add);", "x.put(column, T(sum[1]), add);"),
        },
    ),
    Target(
        "csrc/cuda/recurrent/norm_cell.cu",
        (RECURRENT, "-k", "norm"),
        {
            "low forgotten": ("((v - mean) - low) * scale", "(v - mean) * (scale + low)"),
            "o of the gates": ("o[unit] = gate[3];", "o[unit] = gate[2];"),
            "scales swapped": (
                "s.scale[2 * row + 1] = of_h.scale;",
                "s.scale[2 * row + 1] = of_x.scale;",
            ),
            "mean of the cell": ("mean_c = sum_c / T(hidden)", "mean_c = sum_c"),
            "no output's gradient": ("d_out ? dh[u] + d_out[u] : dh[u]", "dh[u]"),
        },
        equivalent={"low forgotten": "what rounding the mean leaves over is within the tolerance"},
    ),
    Target(
        "csrc/cuda/recurrent/cells.h",
        (RECURRENT, "-k", "step_by_step or projection"),
        {
            "sigmoid's other branch": ("x < T(0) ? e * r : r", "x < T(0) ? r : e * r"),
            "no b_hn": ("in.u[2] + in.b_hn", "in.u[2]"),
            "z the other way": ("n + z * (in.h - n)", "in.h + z * (n - in.h)"),
            "i and f swapped": ("f * in.c + i * g", "i * in.c + f * g"),
        },
        compiled="csrc/cuda/recurrent/forward.cu",
    ),
    Target(
        "csrc/cuda/recurrent/cells.h",
        (RECURRENT, "-k", "step_by_step"),
        {
            "relu's gradient at 0": ("in.kept[0] <= T(0)", "in.kept[0] < T(0)"),
            "the gate before": ("dc * in.before, f", "dc * in.before, i"),
        },
        compiled="csrc/cuda/recurrent/backward.cu",
    ),
    Target(
        "csrc/cuda/attention/forward.cu",
        (ATTENTION, "-k", "forward or order or hidden"),
        {
            "a row too many": ("row >= row1_) continue", "row > row1_) continue"),
            "keys beyond the range": ("key0 < end;", "key0 <= end;"),
            "tiles in the middle of a group": ("begin / Math::kColumns * Math::kColumns", "begin"),
            "inner too early": ("key0 >= inner_begin &&", ""),
            "decay of nothing": ("out_[i][m] *= decay;", ";"),
            "sums forget": ("sum_[i] = sum_[i] * decay + sum", "sum_[i] = sum_[i] + sum"),
            "chunk's stats": ("item_.chunk > 0 ||", "item_.chunk == 0 ||"),
            "never careful": ("careful < 2", "careful < 1"),
            "nothing cleared": (
                "clear_heads(output, p.batch",
                "if (false) clear_heads(output, p.batch",
            ),
        },
        equivalent={
            "keys beyond the range": "a tile of which no row sees a key adds 0",
            "chunk's stats": "equal in all chunks of the tests' cases",
        },
    ),
    Target(
        "csrc/cuda/attention/backward.cu",
        (ATTENTION, "-k", "gradients or order or hidden or one_key"),
        {
            "full tiles only": ("walk_.row0 + Math::kRows <= s_.queries &&", ""),
            "peaks counted twice": ("w == Sum(0) || peak ?", "w == Sum(0) ?"),
            "no peaks": ("heavy && w > Sum(0.5)", "heavy && w > Sum(2)"),
            "another row's peak": (
                "d = key == known.peak.key ?",
                "d = key == known.peak.key + 1 ?",
            ),
            "without scale": ("d * Sum(p_.scale) * slope;", "d * slope;"),
            "dropout of dP": ("ds[i][0] * factor)", "ds[i][0])"),
            "no rest": ("rest_[i] += heavy ? d", "rest_[i] += peak ? d"),
            "the first row's peak": ("turn(peaks_, mine);", ""),
            "scores do not go round": ("turn(x[i], score);", ""),
            "keys alone are stored": ("values ? call_.g.value : call_.g.key", "call_.g.key"),
            "one head of a group": ("first_head() + heads_of_group(p_)", "first_head() + 1"),
            "queries beyond the range": ("s_.queries_of(last).end", "s_.queries_of(last).end - 1"),
        },
        equivalent={
            "delete __syncthreads 4": "it only keeps addresses from being computed ahead",
        },
    ),
    Target(
        "csrc/cuda/attention/few.cu",
        (ATTENTION, "-k", "forward or weights or none"),
        {
            "parts overlap": ("item_.tile * int(call_.part_keys)", "item_.tile * kTile"),
            "a row too many": ("row < rows() && d", "row <= rows() && d"),
            "hidden values": ("if (call_.masked && weight == Sum(0)) continue;", ""),
            "parts of one maximum": ("power_of_2((stats.maximum - top) * to_base_2)", "Sum(1)"),
            "shares of one thread": ("j += sharers()", "j += 1"),
        },
    ),
    Target(
        "csrc/cuda/attention/weights.cu",
        (ATTENTION, "-k", "weights"),
        {
            "a key too many": ("key < s.keys)", "key <= s.keys)"),
            "a row too many": ("row >= row1) continue", "row > row1) continue"),
            "first tile only": ("key0 < end;", "key0 < begin + 1;"),
        },
    ),
    Target(
        "csrc/cuda/attention/bias_gradient.cu",
        (ATTENTION, "-k", "gradients and bias"),
        {
            "first head only": ("head < range.head1", "head < range.head0 + 1"),
            "one warp's sums": ("other < Math::kWarps", "other < 1"),
            "one lane's sums": ("step >= 4", "step >= 8"),
            "tiles of other rows": ("row0 - s.query0,", "row0,"),
            "peaks as the rest": ("key == peak.key ? peak.ds :", ""),
        },
        equivalent={
            "delete __syncthreads 3": "no tile is read behind the last products",
        },
    ),
)


def synchronisation(text: str) -> Iterator[tuple[str, int, int, str]]:
    """Every barrier, commit and wait deleted, every wait weakened: (name, start, end, new)."""
    deleted = "__syncthreads|__syncwarp|copy_async_commit|grid_sync|named_barrier_sync"
    deleted += "|named_barrier_arrive|copy_async_wait<[^>]*>"
    count: dict[str, int] = {}
    for match in re.finditer(rf"\b({deleted})\(([^;]*)\);", text):
        name = match[1].split("<")[0]
        count[name] = count.get(name, 0) + 1
        yield f"delete {name} {count[name]}", match.start(), match.end(), ";"
        if name == "copy_async_wait":
            kept = match[1][len(name) + 1 : -1]
            weaker = f"copy_async_wait<{kept} + 1>();"
            yield f"weaken {name} {count[name]}", match.start(), match.end(), weaker


SWAPS = {
    " < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == ",
    " && ": " || ", " || ": " && ", " + ": " - ", " - ": " + ", " * ": " + ", " / ": " * ",
    " % ": " / ", " += ": " -= ", "min(": "max(", "max(": "min(",
}  # fmt: skip


def operators(text: str) -> Iterator[tuple[str, int, int, str]]:
    """Every operator of the device functions exchanged, one at a time."""
    pattern = "|".join(re.escape(operator) for operator in SWAPS)
    code = _without_comments(text)
    for first, last in _device_functions(code):
        for match in re.finditer(pattern, code[first:last]):
            new = SWAPS[match[0]]
            start = first + match.start()
            column = start - text.rfind("\n", 0, start)
            name = f"column {column}: {match[0].strip()} -> {new.strip()}"
            yield name, start, first + match.end(), new


def _without_comments(text: str) -> str:
    """Spaces in their place."""
    return re.sub(r"//[^\n]*", lambda match: " " * len(match[0]), text)


def _device_functions(code: str) -> Iterator[tuple[int, int]]:
    """Where the bodies of kernels and device functions begin and end."""
    for match in re.finditer(r"(__global__|FUSEDNN_DEVICE)[^{};]*\{", code):
        depth, end = 1, match.end()
        while depth:
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            end += 1
        yield match.end(), end


def mutants(target: Target, everything: bool = False) -> list[Mutant]:
    """The target's mutants but for the equivalent ones; `everything`: with `operators`."""
    text = (ROOT / target.source).read_text()
    code = _without_comments(text)
    found = list(synchronisation(code))
    for name, (old, new) in target.planted.items():
        match = re.search(r"\s+".join(map(re.escape, old.split())), code)
        if not match:
            raise ValueError(f"{target.source} has no {old!r} for mutant {name!r}")
        found.append((name, match.start(), match.end(), new))
    unknown = target.equivalent.keys() - {name for name, *_ in found}
    if unknown:
        raise ValueError(f"{target.source}: no mutant named {', '.join(sorted(unknown))}")
    if everything:
        found += operators(text)
    return [
        Mutant(target, name, text[:start] + new + text[end:], text.count("\n", 0, start) + 1)
        for name, start, end, new in found
        if name not in target.equivalent
    ]


NO_KERNELS = ("device", "memory", "table")


def untargeted() -> list[str]:
    """Kernel files without a Target."""
    kernels = {str(path.relative_to(ROOT)) for path in (ROOT / "csrc/cuda").rglob("*.cu")}
    broken = {name for target in TARGETS for name in (target.source, target.compiled)}
    return sorted(kernels - broken - {f"csrc/cuda/{name}.cu" for name in NO_KERNELS})
