"""Convolutions."""

from __future__ import annotations

from .target import Target

CONV = "test_conv_kernels.py"
HALF = "test_half_products.py"

TARGETS = (
    Target(
        "csrc/cuda/conv/depthwise.cu",
        (CONV, "-k", "depthwise"),
        {
            "bound of the outputs": ("at < outputs; at", "at <= outputs; at"),
            "bound of the inputs": ("at < inputs; at", "at <= inputs; at"),
            "channel of the input": ("plane % (p.groups * p.multiplier)", "plane % p.groups"),
            "dilation ignored": ("from[i64(tw) * p.w.dilation]", "from[i64(tw)]"),
            "a window from the end on": ("if (start >= in) return 0;", "if (start > in) return 0;"),
            "planes before the first": ("* p.d.stride - p.d.pad;", "* p.d.stride;"),
            "planes of one image": ("plane = slice / p.d.in;", "plane = slice % p.d.in;"),
        },
        equivalent={
            "delete __syncthreads 3": "sums[0] is thread 0's own, the rest was read a barrier ago",
        },
    ),
    Target(
        "csrc/cuda/conv/conv.cu",
        (CONV, "-k", "forward or beside or large_tiles"),
        {
            "images of one group": (
                "windows<I>(p, p.in_channels * plane)",
                "windows<I>(p, channels * plane)",
            ),
            "the first group's input": (
                "storage(x), channels * plane, p.in_size",
                "storage(x), 0, p.in_size",
            ),
            "the first group's weights": ("outs * depth, depth, 1", "0, depth, 1"),
            "the first group's bias": ("storage(bias), outs, nullptr", "storage(bias), 0, nullptr"),
            "one image": ("p.batch * pixels,", "pixels,"),
            "wide weights": ("wide_lines(w, depth)", "true"),
            "wide results": ("wide_lines(y, pixels)", "true"),
            "taps by the input's channels": (
                "taps<I>(p, plane)",
                "taps<I>(p, p.in_channels * plane)",
            ),
        },
    ),
    Target(
        "csrc/cuda/conv/input_grad.cu",
        (CONV, "-k", "backward or transposed"),
        {
            "no padding": ("1, p.pad[a]);", "1, 0);"),
            "taps forwards": ("-p.dilation[a], 0)", "p.dilation[a], 0)"),
            "images of one group": (
                "positions.outer_stride = I(p.out_channels * pixels)",
                "positions.outer_stride = I(outs * pixels)",
            ),
            "weights of the next group": (
                "gather<true>(w, outs * channels * taps",
                "gather<true>(w, channels * taps",
            ),
            "a class without inputs": (
                "classes = stride < p.in_size[a] ? stride : p.in_size[a];",
                "classes = stride;",
            ),
            "inverse left out": ("* axis.inverse % axis.tap_step", "% axis.tap_step"),
            "negative inverse": ("return x < 0 ? x + m : x;", "return x;"),
            "positions between the classes": ("rest % divisor ?", "false ?"),
            "a tap too many": (
                "(axis.kernel - first - 1) / axis.tap_step + 1",
                "(axis.kernel - first) / axis.tap_step + 1",
            ),
            "a tap too few": (
                "(axis.kernel - first - 1) / axis.tap_step + 1",
                "(axis.kernel - first - 1) / axis.tap_step",
            ),
            "an input too many": (
                "(axis.in - x - 1) / axis.stride + 1;",
                "(axis.in - x) / axis.stride + 1;",
            ),
            "the first group's bias": (
                "if (one.out.row_bias) one.out.row_bias += left * work.out.bias_batch;",
                "",
            ),
            "the first group's weights": ("one.a.data += left * work.a.batch;", ""),
            "wide results in classes": ("problem.work.out.wide = false;", ""),
            "largest class of the last": (
                "(p.in_size[a] - 1) / p.stride[a] + 1;",
                "p.in_size[a] / p.stride[a];",
            ),
        },
        equivalent={
            "negative inverse": "it is one more tap, before the kernel, where weights count as 0",
            "a tap too many": "it lies behind the kernel, where weights count as 0",
        },
    ),
    Target(
        "csrc/cuda/conv/weight_grad.cu",
        (
            CONV,
            HALF,
            "-k",
            "test_backward or long_weight or bias_gradient or empty or half and (conv or bias)",
        ),
        {
            "sums of 16 bits in place": (
                "count == 1 && std::is_same_v<T, Sum>;",
                "count == 1;",
            ),
            "narrowed to nothing": ("db[c] = format.narrow(sum);", "db[c] = {};"),
            "the first group's gradient": (
                "gather<true>(storage(dy), outs * pixels,",
                "gather<true>(storage(dy), 0,",
            ),
            "images of one group": (
                "elements<I>(p.out_size, p.out_channels * pixels)",
                "elements<I>(p.out_size, outs * pixels)",
            ),
            "one image": ("p.batch * pixels,", "pixels,"),
            "wide lines": ("wide_lines(dw, columns)", "true"),
            "a channel too many": ("if (channel < channels) {", "if (channel <= channels) {"),
            "one line at a time": ("o += i / inner;", "o += 1;"),
            "part past the end": ("v < last && v < values", "v < last"),
            "parts overlap": ("v < last && v < values", "v < values"),
            "tree one level short": ("half > 0; half /= 2", "half > 1; half /= 2"),
            "parts in one place": ("parts[part * channels + channel] =", "parts[channel] ="),
            "part left out": ("part < count; ++part) sum", "part + 1 < count; ++part) sum"),
            "rows of another width": (
                "sums[threadIdx.x + half * kAcross]",
                "sums[threadIdx.x + half]",
            ),
            "no channel": ("if (channels == 0) return;", ""),
            "lines of nothing": ("inner > 0 ? outer : 0", "outer"),
        },
        equivalent={
            "delete __syncthreads 3": "a block has a second part beyond 2^31 - 1 of them only",
        },
    ),
    Target(
        "csrc/cuda/gemm/tile.h",
        (CONV, "-k", "test_forward or beside"),
        {
            "beyond the last line": ("row.h + depth.h < image[1]", "row.h + depth.h <= image[1]"),
            "before the line": ("row.w + depth.w >= 0", "row.w + depth.w >= -1"),
            "lines do not carry": ("at.h += hop.h + I(carry_w);", "at.h += hop.h;"),
            "planes do not carry": ("at.d += hop.d + I(carry_h);", "at.d += hop.d;"),
            "channels do not carry": (
                "at.outer += hop.outer + I(carry_d);",
                "at.outer += hop.outer;",
            ),
            "always the first taps": ("depths.advance(state);", ""),
            "a tap too near": (
                "depths.hop = depths.digits(depth);",
                "depths.hop = depths.digits(depth - 1);",
            ),
            "a window that is not there": (
                "bool take = real && r < edges.rows;",
                "bool take = real;",
            ),
            "a tap that is not there": (
                "bool take = real && r < edges.rows;",
                "bool take = r < edges.rows;",
            ),
            "images in one place": ("U(at.outer) * U(outer_stride) + plane", "U(at.outer) + plane"),
        },
        compiled="csrc/cuda/conv/conv.cu",
    ),
)
