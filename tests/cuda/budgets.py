"""What the machine code and the memory traffic of the kernels may be: tables for check_code.py and
test_traffic.py. The first row that fits a kernel counts; patterns are those of fnmatch.

Files are named below csrc/cuda (below tests/cuda/kernels: kernels/...), kernels with their template
arguments, "forward_kernel<float, int>".
"""

from __future__ import annotations

# ---- machine code (check_code.py) ----------------------------------------------------------------

# (file, kernel, registers): 64 K registers a multiprocessor, so with blocks of 256 threads 32 let
# eight blocks run at once, 64 four, 128 two. A kernel at its limit is no error; one beyond it has
# fewer blocks than its author counted on.
REGISTERS: tuple[tuple[str, str, int], ...] = (
    ("kernels/gemm_*.cu", "*", 128),  # 128 threads: four blocks
    ("attention/few.cu", "few_kernel*", 168),  # three blocks of 128
    ("attention/*.cu", "*_kernel<*", 255),  # two blocks of 128: a tile's sums, scores and factors
    ("conv/*.cu", "product_kernel<Exact<*", 176),  # one block of 256, 64-bit positions
    ("*", "product_kernel<Tensor<128*", 168),  # 128 threads: three blocks
    ("*", "product_kernel<Exact<float, 128*", 168),
    ("*", "product_kernel<HalfTensor<128*", 255),  # 128 threads: two blocks
    ("*", "product_kernel<*", 128),  # four blocks of 128, or two of 256
    ("conv/depthwise.cu", "*", 128),  # two blocks
    ("pool/average.cu", "*", 72),  # three blocks
    ("recurrent/sequence*.cu", "*", 128),  # two blocks
    ("recurrent/norm_cell.cu", "*<double>*", 80),
    ("loss.cu", "backward_*double>", 80),  # three blocks
    ("pool/max.cu", "*<Any>*", 96),  # two blocks, 64-bit window arithmetic
    ("*", "*", 64),
)

# (file, kernel, instructions): each must occur, or the kernel is not what it was written to be.
INSTRUCTIONS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("kernels/gemm_tf32.cu", "*", ("HMMA", "LDGSTS")),
    ("kernels/gemm_bf16.cu", "*", ("HMMA", "LDGSTS", "LDSM")),
    ("*", "product_kernel<Tensor<*", ("HMMA", "LDGSTS", "STS.64", "STG.E.128")),
    ("gemm/gemm.cu", "product_kernel<HalfTensor<*", ("HMMA", "LDGSTS", "LDSM", "STS.64")),
    ("*", "product_kernel<HalfTensor<*", ("HMMA", "LDSM", "STS.64", "STG.E.64")),
    ("*", "product_kernel<Exact<*", ("LDGSTS", "STS.128", "STG.E.128")),
    ("recurrent/sequence_half*.cu", "sequence*", ("HMMA", "LDG.E.128", "LDS.128")),
    ("attention/forward.cu", "forward_kernel<Halves<*", ("HMMA", "LDGSTS", "LDSM")),
    ("attention/backward.cu", "*_kernel<Halves<*", ("HMMA", "LDGSTS", "LDSM")),
    ("attention/*.cu", "*_kernel<Tf32<*", ("HMMA", "LDGSTS")),
    ("attention/few.cu", "few_kernel<*", ("LDG.E.128",)),
    ("activation/*.cu", "map_packs<*", ("LDG.E.128", "STG.E.128")),
    ("activation/unary.cu", "map_rings<*", ("LDG.E.128", "STG.E.128")),
    ("optim.cu", "update_arrays<*", ("LDG.E.128", "STG.E.128")),
    ("activation/*.cu", "map_halves<*", ("LDG.E.128", "STG.E.128")),
    ("cast.cu", "*", ("LDG.E.128", "STG.E.128")),
)

# (file, kernel, bytes, reason): local memory, that is spilled registers or arrays that the compiler
# could not keep in registers. None unless a row says so.
LOCAL_MEMORY: tuple[tuple[str, str, int, str], ...] = (
    ("attention/few.cu", "few_kernel<float, *BFloat16>", 16, "at 168 registers, sm_90"),
)

# ---- memory traffic (test_traffic.py) ------------------------------------------------------------

# (line's file, "global read" and so on, ratio, reason): sectors or wavefronts over the fewest
# possible, summed over the lines of that file in a run. Others may have 1.1.
TRAFFIC: tuple[tuple[str, str, float, str], ...] = (
    ("gemm_tf32.cu", "global write", 2.0, "a lane has two neighbours of C and writes them singly"),
    ("gemm_bf16.cu", "shared write", 1.4, "rows of A are 80 bytes, so that two share four banks"),
    ("math.h", "shared write", 4.0, "g++ stores sums one by one, nvcc by STS.64 and STS.128"),
    (
        "tile.h",
        "shared write",
        2.0,
        "rows of [row][depth] tiles are 80 bytes: two share four banks",
    ),
    ("arrays.h", "global read", 4.0, "g++ loads halves one by one, nvcc eight at once (LDG.E.128)"),
    ("arrays.h", "global write", 2.0, "likewise: nvcc stores eight at once (STG.E.128)"),
    ("max.cu", "global read", 2.2, "windows overlap, and with stride 2 a warp skips elements"),
)
MOST_TRAFFIC = 1.1
