"""A source file with the bugs to plant in it, and the bugs that are made from its text.

Deleted barriers and weakened waits come by themselves (`synchronisation`), and with `--all` every
comparison, sum and logical operator of the device functions (`operators`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


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
