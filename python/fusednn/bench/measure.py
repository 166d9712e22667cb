"""Timing several implementations of the same work against each other in one process."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

ROUNDS = 8


@dataclass(frozen=True)
class Timing:
    """Seconds per call, one value a round."""

    rounds: tuple[float, ...]

    @property
    def median(self) -> float:
        return float(np.median(self.rounds))

    @property
    def best(self) -> float:
        return min(self.rounds)

    @property
    def spread(self) -> float:
        """The noise gauge: the middle half of the rounds, as a share of the median."""
        low, high = np.percentile(self.rounds, [25, 75])
        return float((high - low) / self.median)


def alternate(
    calls: Mapping[str, Callable[[], object]],
    budget: float,
    rounds: int = ROUNDS,
    pause: float = 0.0,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timing]:
    """Times the calls in turn, round after round, within about `budget` seconds in all.

    What slows the machine down for a while then hits all of them alike. A call gets the same share
    of the time whatever it costs; a short one is repeated within its share and the mean counts, so
    the clock's own cost does not. Each round starts with another call than the one before.
    """
    repeats = {}
    for name, call in calls.items():
        call()  # warm: first-touch memory, packed weights, a peer's own set-up
        start = clock()
        call()
        once = max(clock() - start, 1e-7)
        repeats[name] = max(1, int(budget / rounds / len(calls) / once))
    times: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for _ in range(rounds):
        for name in order:
            call, count = calls[name], repeats[name]
            if pause:
                time.sleep(pause)
            start = clock()
            for _ in range(count):
                call()
            times[name].append((clock() - start) / count)
        order.append(order.pop(0))
    return {name: Timing(tuple(values)) for name, values in times.items()}
