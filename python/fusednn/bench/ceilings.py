"""What this machine can do at best: multiply-adds per second, and bytes moved per second.

Measured and not looked up, in the same process and with the same threads as the cases.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from fusednn.bench import machine
from fusednn.bench.peers import Peers, large_product

# 768 x 768 float32 is 2.3 MB a matrix: far more work than overhead, and small enough for a shared
# L3, so that the product runs at the speed of the multipliers.
PRODUCT_SIZE = 768


@dataclass(frozen=True)
class Ceilings:
    """gflops: the best large matrix product. gbps: copy bandwidth (read + written) by level.

    limits: the largest working set in bytes that still counts as living in a level.
    """

    gflops: float
    gbps: dict[str, float]
    limits: dict[str, int]

    def level(self, working_set: int) -> str:
        """The memory level that a working set of so many bytes lives in."""
        for level, limit in self.limits.items():
            if working_set <= limit:
                return level
        return "DRAM"

    def least_seconds(self, flops: int, moved: int) -> tuple[float, str]:
        """The roofline: no faster than the multipliers and no faster than memory, and which."""
        level = self.level(moved)
        compute, memory = flops / self.gflops / 1e9, moved / self.gbps[level] / 1e9
        return (compute, "FMA") if compute >= memory else (memory, level)


def measure(threads: int, dtype: np.dtype[Any], peers: Peers, seconds: float = 0.3) -> Ceilings:
    """Takes about four times `seconds`; fusednn's thread count must be set already."""
    caches = machine.cache_sizes()
    limits = {"L2": caches["L2"] // 2, "L3": caches["L3"] // 2}
    if limits["L3"] <= 2 * limits["L2"]:
        del limits["L3"]
    # Beyond every cache, and within 256 MB; 128 MB at least for a last level that is not reported.
    beyond = min(max(4 * caches["L3"], 128 << 20), 256 << 20)
    gbps = {"L2": threads * copy_bandwidth(limits["L2"], 1, seconds)}  # every core has its own
    if "L3" in limits:
        gbps["L3"] = copy_bandwidth(limits["L3"], threads, seconds)
    gbps["DRAM"] = copy_bandwidth(beyond, threads, seconds)
    return Ceilings(_product_rate(dtype, peers, seconds), gbps, limits)


def _product_rate(dtype: np.dtype[Any], peers: Peers, seconds: float) -> float:
    from fusednn import _core

    size = PRODUCT_SIZE
    a = np.ones((size, size), dtype)
    products: list[Callable[[], Any]] = [lambda: _core.matmul(a, a, False, False)]
    products += [call.run for call in large_product(peers, size, dtype).values()]
    best = min(_best_time(product, seconds / len(products)) for product in products)
    return 2 * size**3 / best / 1e9


def _best_time(call: Callable[[], Any], seconds: float) -> float:
    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def copy_bandwidth(working_set: int, threads: int, seconds: float) -> float:
    """GB/s of copying, counting what is read and what is written; each thread its own part."""
    part = max(working_set // 2 // threads, 1)
    buffers = [(np.zeros(part, np.uint8), np.ones(part, np.uint8)) for _ in range(threads)]
    # About 20 microseconds a round, so that neither the clock nor the loop counts.
    repeats = max(1, (1 << 20) // part)

    def rate(pair: tuple[Any, Any]) -> float:
        target, source = pair

        def copies() -> None:
            for _ in range(repeats):
                np.copyto(target, source)

        return 2 * part * repeats / _best_time(copies, seconds) / 1e9

    if threads == 1:
        return rate(buffers[0])
    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(rate, buffers))
