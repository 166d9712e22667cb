"""A step of generation: one query against a cache of keys and values, in float32 and in bfloat16.

usage: python bench/decode.py [T ...]     (needs ml_dtypes)

Alternating in one process, one thread, minimum of many calls by the thread's own clock.
"""

from __future__ import annotations

import sys
import time

import ml_dtypes
import numpy as np

import fusednn as fn
import fusednn.functional as F

DIM = 64


def seconds(calls: list, rounds: int) -> list[float]:
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for i, call in enumerate(calls):
            for _ in range(4):
                start = time.thread_time()
                call()
                best[i] = min(best[i], time.thread_time() - start)
    return best


def main() -> None:
    fn.set_num_threads(1)
    random = np.random.default_rng(0)
    for heads in (8, 32):
        for length in [int(one) for one in sys.argv[1:]] or [4096, 8192, 16384, 32768]:
            q = random.standard_normal((1, heads, 1, DIM), np.float32)
            k, v = (random.standard_normal((1, heads, length, DIM), np.float32) for _ in "kv")
            half = [x.astype(ml_dtypes.bfloat16) for x in (k, v)]
            calls = [
                lambda q=q, k=k, v=v: F.scaled_dot_product_attention(q, k, v),
                lambda q=q, half=half: F.scaled_dot_product_attention(q, *half),
            ]
            error = np.abs(calls[0]() - calls[1]()).max()
            wide, narrow = seconds(calls, 8)
            size = 2 * k.nbytes
            print(
                f"H{heads} T{length}: float32 {wide * 1e6:.0f} us {size / wide / 1e9:.1f} GB/s, "
                f"bfloat16 {narrow * 1e6:.0f} us {size / 2 / narrow / 1e9:.1f} GB/s, "
                f"{wide / narrow:.2f} times as fast, differences up to {error:.1g}"
            )


if __name__ == "__main__":
    main()
