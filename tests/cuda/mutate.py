#!/usr/bin/env python3
"""Plants bugs in kernels, one at a time, and counts those that the tests on `strict` notice.

usage: tests/cuda/mutate.py [--all] [--sample N] [--only REGEX] [--jobs N] [--list] [--json FILE]

The bugs are those of mutants/; --all also exchanges every operator in every kernel, which takes
long; --sample takes N of them, the same ones each time, from all files. Fails where less than 90 %
are caught. A mutant is compiled into the strict extension that tests/cuda/run builds; its file's
tests run once without it before, since a test that fails anyway catches nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

# For the children, which are forks of this process. Not fusednn: each has its own.
import numpy  # noqa: F401
import pytest
from mutants import ROOT, TARGETS, Mutant, Target, mutants, untargeted

HERE = Path(__file__).resolve().parent
ENOUGH = 0.9
CPU_SECONDS = 40  # of a mutant's tests; an endless loop is noticed by that


def _load_run() -> Any:
    loader = SourceFileLoader("cuda_run", str(HERE / "run"))
    spec = spec_from_loader("cuda_run", loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


RUN = _load_run()


@dataclass(frozen=True)
class Outcome:
    source: str
    line: int
    bug: str
    how: str  # "report", "wrong result", "crash", "endless", "missed", "does not compile"
    text: str

    @property
    def caught(self) -> bool:
        return self.how not in ("missed", "does not compile")


# ---- building ------------------------------------------------------------------------------------


class Build:
    """The commands by which the strict extension was built, for other sources."""

    def __init__(self) -> None:
        self.folder = RUN.BUILD
        listed = subprocess.run(
            ["ninja", "-C", self.folder, "-t", "commands", "emulated_strict"],
            capture_output=True, text=True, check=True,
        ).stdout.splitlines()  # fmt: skip
        # ninja itself says where it went, on a line of its own
        lines = [line for line in listed if not line.startswith("ninja: ")]
        self.link = lines[-1]
        self.compile = {
            Path(words[-1]).resolve(): words
            for words in map(shlex.split, lines[:-1])
            if "-DFUSEDNN_EMULATOR_STRICT=1" in words
        }

    def object_of(self, source: Path) -> str:
        words = self.compile[source]
        return words[words.index("-o") + 1]

    def mutant(self, mutant: Mutant, folder: Path) -> Path:
        """The extension with the mutant in it; CalledProcessError where it does not compile."""
        target = mutant.target
        source = ROOT / (target.compiled or target.source)
        words = list(self.compile[source])
        words[words.index("-o") + 1] = str(folder / "mutant.o")
        for flag, values in (("-MD", 0), ("-MT", 1), ("-MF", 1)):
            if flag in words:
                at = words.index(flag)
                del words[at : at + 1 + values]
        if target.compiled:  # the header, found before the real one
            header = folder / "include" / Path(target.source).relative_to("csrc")
            header.parent.mkdir(parents=True)
            header.write_text(mutant.text)
            first = next(at for at, word in enumerate(words) if word.startswith("-I"))
            words.insert(first, f"-I{folder / 'include'}")
        else:
            (folder / source.name).write_text(mutant.text)
            words[-1] = str(folder / source.name)
        subprocess.run(words, cwd=self.folder, check=True, capture_output=True, text=True)
        library = folder / "_core.so"
        # First of the objects: of functions that several of them have, the linker takes that one.
        link = self.link.replace(self.object_of(source), "")
        new = f"-o {shlex.quote(str(library))} {shlex.quote(str(folder / 'mutant.o'))}"
        link = re.sub(r"-o \S+/_core\.so", new, link)
        subprocess.run(
            link, shell=True, cwd=self.folder, check=True, capture_output=True, text=True
        )
        return library


# ---- testing -------------------------------------------------------------------------------------


class FirstFailure:
    """A plugin that keeps what the first failure says."""

    def __init__(self) -> None:
        self.text = ""
        self.ran = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.ran += report.when == "call"
        if report.failed and not self.text:
            crash = getattr(report.longrepr, "reprcrash", None)
            self.text = crash.message if crash else str(report.longrepr)


def run_tests(library: Path, tests: tuple[str, ...], folder: Path) -> Outcome | None:
    """In this process, which must not have imported fusednn; None if all passed."""
    package = RUN.run_folder("strict", folder)
    link = package / "fusednn" / "_core.so"
    link.unlink()
    link.symlink_to(library)
    paths = [str(package), str(HERE / "standin"), str(HERE)]
    os.environ |= {
        "FUSEDNN_CUDA_TESTS": "strict",
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    sys.path[:0] = paths
    sys.dont_write_bytecode = True
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))
    failure = FirstFailure()
    arguments = [str(HERE / one) if one.endswith(".py") else one for one in tests]
    arguments += [f"--rootdir={ROOT}", "-c", str(ROOT / "pyproject.toml")]
    status = pytest.main(["-x", "-p", "no:cacheprovider", *arguments], plugins=[failure])
    if status == pytest.ExitCode.OK and failure.ran:
        return None
    how = "report" if "in kernel" in failure.text else "wrong result"
    if status != pytest.ExitCode.TESTS_FAILED:
        how = "does not compile"  # nothing was tested: no catch
    return Outcome("", 0, "", how, failure.text or f"pytest: {status!r}")


def outcome_of(build: Build, mutant: Mutant, folder: Path) -> Outcome:
    def outcome(how: str, text: str) -> Outcome:
        return Outcome(mutant.target.source, mutant.line, mutant.name, how, text)

    try:
        library = build.mutant(mutant, folder)
    except subprocess.CalledProcessError as error:
        return outcome("does not compile", error.stderr[:600])
    found = run_tests(library, mutant.target.tests, folder)
    return outcome(found.how, found.text) if found else outcome("missed", "")


# ---- many at once --------------------------------------------------------------------------------


class Children:
    """Forks of this process, each with one piece of work whose result comes back as JSON."""

    def __init__(self, jobs: int, folder: Path) -> None:
        self.jobs, self.folder = jobs, folder
        self.running: dict[int, tuple[int, Path]] = {}

    def start(self, index: int, work: Any) -> None:
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        child = os.fork()
        if child:
            self.running[child] = index, folder
            return
        try:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, 1)
            os.dup2(null, 2)
            found = work(folder)
            (folder / "outcome").write_text(json.dumps(asdict(found) if found else None))
        finally:
            os._exit(0)

    def wait(self) -> tuple[int, Any, int]:
        """Of the next child that ends: its index, its result ("" if it has none), its status."""
        child, status = os.wait()
        index, folder = self.running.pop(child)
        path = folder / "outcome"
        result = json.loads(path.read_text()) if path.exists() else ""
        shutil.rmtree(folder)
        return index, result, status


def run_all(children: Children, works: list[Any]) -> Any:
    """Yields (index, result, status) in the order in which they end."""
    waiting = list(enumerate(works))[::-1]
    while waiting or children.running:
        while waiting and len(children.running) < children.jobs:
            children.start(*waiting.pop())
        yield children.wait()


def check_baseline(children: Children, targets: list[Target]) -> None:
    library = RUN.BUILD / "tests" / "cuda" / "emulated_strict" / "_core.so"
    suites = sorted({target.tests for target in targets})
    works = [lambda folder, tests=tests: run_tests(library, tests, folder) for tests in suites]
    for index, result, status in run_all(children, works):
        if result is not None:
            text = result["text"] if result else f"status {status}"
            sys.exit(f"without a mutant, {' '.join(suites[index])} fails: {text}")


def ended(mutant: Mutant, result: Any, status: int) -> Outcome:
    if result:
        return Outcome(**result)
    signal = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    how = "endless" if signal in (9, 24) else "crash"
    return Outcome(mutant.target.source, mutant.line, mutant.name, how, f"signal {signal}")


def report(outcomes: list[Outcome]) -> bool:
    kinds: dict[str, int] = {}
    for outcome in outcomes:
        kinds[outcome.how] = kinds.get(outcome.how, 0) + 1
    print("\n".join(f"{count:5} {how}" for how, count in sorted(kinds.items())))
    caught = sum(outcome.caught for outcome in outcomes)
    equivalent = sum(len(target.equivalent) for target in TARGETS)
    print(f"{caught} of {len(outcomes)} caught; {equivalent} equivalent ones left out")
    broken = [outcome for outcome in outcomes if outcome.how == "does not compile"]
    for outcome in broken:
        print(f"DOES NOT COMPILE: {outcome.source}:{outcome.line} {outcome.bug}: {outcome.text}")
    for path in untargeted():
        print(f"NOTE: {path} has no Target in mutants/")
    return not broken and caught >= ENOUGH * len(outcomes)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--all", action="store_true", help="also every operator of every kernel")
    parser.add_argument("--sample", type=int, metavar="N", help="N of them, evenly spaced")
    parser.add_argument("--only", default="", metavar="REGEX", help="of FILE:LINE NAME")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)), metavar="N")
    parser.add_argument("--list", action="store_true", help="list them and do nothing")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every outcome there")
    arguments = parser.parse_args()
    chosen = [
        mutant
        for target in TARGETS
        for mutant in mutants(target, arguments.all)
        if re.search(arguments.only, mutant.label)
    ]
    if arguments.sample and arguments.sample < len(chosen):
        count = len(chosen)
        chosen = [chosen[i * count // arguments.sample] for i in range(arguments.sample)]
    if arguments.list or not chosen:
        print("\n".join(mutant.label for mutant in chosen) or "none")
        return int(not chosen)
    RUN.build(["strict"])
    build, start = Build(), time.monotonic()
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="fusednn-mutants.") as folder:
        children = Children(arguments.jobs, Path(folder))
        check_baseline(children, [mutant.target for mutant in chosen])
        works = [
            lambda folder, mutant=mutant: outcome_of(build, mutant, folder) for mutant in chosen
        ]
        for index, result, status in run_all(children, works):
            outcome = ended(chosen[index], result, status)
            outcomes.append(outcome)
            words = " ".join(outcome.text.split())[:90] if outcome.caught else ""
            print(f"{outcome.how:>12}  {chosen[index].label}  {words}".rstrip(), flush=True)
    enough = report(outcomes)
    print(f"{time.monotonic() - start:.0f} s")
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(one) for one in outcomes], indent=1) + "\n")
    return int(not enough)


if __name__ == "__main__":
    sys.exit(main())
