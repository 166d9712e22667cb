"""Activations, and the elementwise loop under them."""

from __future__ import annotations

from .target import Target

TARGETS = (
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
        "csrc/cuda/activation/prelu.cu",
        ("test_activation_kernels.py", "-k", "prelu"),
        {
            "slope at 0": (
                "in.of[i] > Value(0) ? v.of[i]",
                "in.of[i] >= Value(0) ? v.of[i]",
            ),
            "the first channel's slope": ("slope[channel];", "slope[0];"),
            "NaN is left out": (
                "in > Value(0) ? Value(0) : product;",
                "in <= Value(0) ? product : Value(0);",
            ),
            "all of x counts": ("v[0] = in > Value(0) ? Value(0) : product;", "v[0] = product;"),
            "gradient of the input": (
                "reading(x), reading(dy), reading(slope)",
                "reading(x), reading(x), reading(slope)",
            ),
            "alignment of dy": ("detail::whole_packs(dy) && ", ""),
            "alignment of x": (
                "bool packs = detail::whole_packs(x) && detail::whole_packs(y);",
                "bool packs = detail::whole_packs(y);",
            ),
        },
    ),
)
