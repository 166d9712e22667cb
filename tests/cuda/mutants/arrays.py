"""What moves, casts and checks arrays."""

from __future__ import annotations

from .target import Target

TARGETS = (
    Target(
        "csrc/cuda/unfold.cu",
        ("test_unfold_kernels.py", "test_half_columns.py"),
        {
            "as many as are read": ("count * to_each,", "count * from_each,"),
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
        "csrc/cuda/ids.cu",
        ("test_embedding_kernels.py", "test_softmax_kernels.py", "-k", "checked"),
        {
            "an id too many": ("id < rows", "id <= rows"),
            "negative ids": ("id >= 0 && ", ""),
            "one id is always allowed": ("(has_allowed && id == allowed)", "id == allowed"),
            "nothing is allowed": (" || (has_allowed && id == allowed)", ""),
            "the last, not the first": ("atomicMin(first", "atomicMax(first"),
            "minimum without atomics": (
                "atomicMin(first, (unsigned long long)(i))",
                "*first = (unsigned long long)(i)",
            ),
            "blocks look at the same": (
                "i = i64(blockIdx.x) * blockDim.x + threadIdx.x;",
                "i = threadIdx.x;",
            ),
            "first not cleared": ("0xff, 8,", "0xff, 4,"),
            "an id past the end": ("i < count; i += step", "i <= count; i += step"),
            "the first id's value": ("fetch(value, ids + found, 8)", "fetch(value, ids, 8)"),
        },
    ),
)
