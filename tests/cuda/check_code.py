#!/usr/bin/env python3
"""Checks the machine code of the kernels against budgets.py: registers, no local memory, and the
instructions that must be there, for every kernel and architecture. Needs no GPU.

usage: tests/cuda/check_code.py FOLDER_OR_OBJECT... [--compile SOURCE...]

A FOLDER is searched for the objects of csrc/cuda/*.cu, those of a build (`pip wheel` with
--config-settings=build-dir=FOLDER). SOURCES are compiled first, with nvcc. cuobjdump and nvdisasm
are those in PATH or of the packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from budgets import INSTRUCTIONS, LOCAL_MEMORY, REGISTERS

ROOT = Path(__file__).resolve().parents[2]
ARCHITECTURES = ("80", "90")


@dataclass
class Kernel:
    """One kernel's machine code for one architecture."""

    source: str  # "pool/max.cu"
    name: str  # "forward_kernel<float, int>"
    architecture: str
    registers: int = 0
    stack: int = 0
    instructions: Counter[str] = field(default_factory=Counter)

    @property
    def label(self) -> str:
        return f"{self.source} {self.name} {self.architecture}"

    def count(self, prefix: str) -> int:
        """Instructions of this name, whatever modifiers follow."""
        return sum(
            count
            for name, count in self.instructions.items()
            if name == prefix or name.startswith(prefix + ".")
        )


# ---- reading ------------------------------------------------------------------------------------


def tools() -> dict[str, str]:
    """The environment in which cuobjdump is found, and nvdisasm by it."""
    path = os.environ.get("PATH", "")
    if not shutil.which("cuobjdump"):
        spec = importlib.util.find_spec("nvidia")
        for place in spec.submodule_search_locations or () if spec else ():
            path = os.pathsep.join([str(Path(place) / "cu13" / "bin"), path])
    if not shutil.which("cuobjdump", path=path):
        sys.exit("cuobjdump is missing: pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm")
    return {**os.environ, "PATH": path}


def output(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}: {done.stderr or done.stdout}")
    return done.stdout


def read(path: Path, source: str, environment: dict[str, str]) -> list[Kernel]:
    usage = output(["cuobjdump", "-res-usage", str(path)], environment)
    code = output(["cuobjdump", "-sass", str(path)], environment)
    kernels = parse(source, usage, code)
    demangled = subprocess.run(
        ["c++filt"],
        input="\n".join(kernel.name for kernel in kernels),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    for kernel, name in zip(kernels, demangled, strict=True):
        kernel.name = short_name(name)
    return kernels


def parse(source: str, usage: str, code: str) -> list[Kernel]:
    """Of cuobjdump's two listings, with mangled names."""
    kernels: dict[tuple[str, str], Kernel] = {}
    architecture, name = "", ""
    for line in usage.splitlines():
        if match := re.match(r"arch = (sm_\w+)", line):
            architecture = match[1]
        elif match := re.match(r"\s*Function (\S+):", line):
            name = match[1]
        elif match := re.match(r"\s*REG:(\d+) STACK:(\d+)", line):
            kernel = Kernel(source, name, architecture, int(match[1]), int(match[2]))
            kernels[architecture, name] = kernel
    counts: Counter[str] = Counter()
    for line in code.splitlines():
        if match := re.match(r"\s+/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", line):
            counts[match[1]] += 1
        elif match := re.match(r"arch = (sm_\w+)", line):
            architecture = match[1]
        elif match := re.match(r"\s*Function : (\S+)", line):
            counts = kernels[architecture, match[1]].instructions
    return list(kernels.values())


def short_name(demangled: str) -> str:
    """ "forward_kernel<float, int>" of the whole signature."""
    name = demangled.replace("(anonymous namespace)::", "").replace("fusednn::cuda::", "")
    name = re.sub(r"^void ", "", name)
    depth = 0
    for at, letter in enumerate(name):
        depth += {"<": 1, ">": -1}.get(letter, 0)
        if letter == "(" and depth == 0:
            return name[:at]
    return name


# ---- judging ------------------------------------------------------------------------------------


def fits(kernel: Kernel, source: str, name: str) -> bool:
    return fnmatchcase(kernel.source, source) and fnmatchcase(kernel.name, name)


def complaints(kernel: Kernel) -> Iterable[str]:
    budget = next(most for source, name, most in REGISTERS if fits(kernel, source, name))
    if kernel.registers > budget:
        yield f"{kernel.label}: {kernel.registers} registers, the budget is {budget}"
    allowed = next((most for s, n, most, _ in LOCAL_MEMORY if fits(kernel, s, n)), 0)
    loads, stores = kernel.count("LDL"), kernel.count("STL")
    if kernel.stack > allowed or ((loads or stores) and not allowed):
        yield (
            f"{kernel.label}: {kernel.stack} bytes of local memory ({stores} STL, {loads} LDL), "
            f"allowed are {allowed}: spilled registers, or an array that is indexed at run time"
        )
    for source, name, needed in INSTRUCTIONS:
        if fits(kernel, source, name):
            yield from (f"{kernel.label}: no {one}" for one in needed if not kernel.count(one))


def summary(kernels: list[Kernel]) -> str:
    """A line for each file: kernels, and most registers of each architecture."""
    lines = [f"{'':32} {'kernels':>8} {'registers (most)':>20}"]
    for source in sorted({kernel.source for kernel in kernels}):
        own = [kernel for kernel in kernels if kernel.source == source]
        most: dict[str, int] = {}
        for kernel in own:
            most[kernel.architecture] = max(most.get(kernel.architecture, 0), kernel.registers)
        text = ", ".join(f"{architecture} {count}" for architecture, count in sorted(most.items()))
        lines.append(f"{source:32} {len(own) // len(most):>8} {text:>20}")
    return "\n".join(lines)


# ---- objects ------------------------------------------------------------------------------------


def source_of(path: Path) -> str:
    """pool/max.cu of .../csrc/cuda/pool/max.cu.o, kernels/probe.cu of the tests' own."""
    text = path.as_posix().removesuffix(".o")
    for folder in ("csrc/cuda/", "tests/cuda/"):
        if folder in text:
            return text.rpartition(folder)[2]
    return path.name.removesuffix(".o")


def objects_of(paths: list[Path]) -> list[Path]:
    found = [one for path in paths if path.is_dir() for one in sorted(path.rglob("*.cu.o"))]
    return found + [path for path in paths if not path.is_dir()]


def compiled(sources: list[Path], folder: Path) -> list[Path]:
    objects = []
    targets = [f"-gencode=arch=compute_{one},code=sm_{one}" for one in ARCHITECTURES]
    for source in sources:
        target = folder / (str(source.resolve().relative_to(ROOT)) + ".o")
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [os.environ.get("CUDACXX", "nvcc"), "-std=c++17", "-O3", *targets, "-c"]
        command += [f"-I{ROOT / 'csrc'}", f"-I{ROOT / 'tests/cuda'}", str(source), "-o"]
        output([*command, str(target)], dict(os.environ))
        objects.append(target)
    return objects


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("paths", nargs="*", type=Path)
    parser.add_argument("--compile", nargs="+", default=[], type=Path, metavar="SOURCE")
    arguments = parser.parse_args()
    environment = tools()
    with tempfile.TemporaryDirectory(prefix="fusednn-code.") as folder:
        objects = objects_of(arguments.paths) + compiled(arguments.compile, Path(folder))
        with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            places = [source_of(path) for path in objects]
            lists = pool.map(read, objects, places, [environment] * len(objects))
            kernels = [kernel for found in lists for kernel in found]
    if not kernels:
        print("no kernels there: was it built with CUDA?", file=sys.stderr)
        return 2
    print(summary(kernels))
    wrong = [text for kernel in kernels for text in complaints(kernel)]
    print("\n".join(wrong) or f"{len(kernels)} kernels within their budgets")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
