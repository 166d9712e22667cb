"""The vector exp, log, tanh and sigmoid themselves, in units of the last place, on every ISA.

bench/lab/vmath_accuracy.cpp measures them on a sample of the float bit patterns here (by hand it
takes all of them), and on doubles.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fusednn import _core

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "bench" / "lab" / "vmath_accuracy.cpp"
COMPILER = shutil.which("g++")

pytestmark = [
    pytest.mark.skipif(COMPILER is None, reason="needs g++"),
    pytest.mark.skipif(not SOURCE.exists(), reason="needs the source tree"),
]


def _flags(isa: str) -> list[str]:
    """What the build compiles this ISA with."""
    match = re.search(rf"set\(isa_flags_{isa}([^)]*)\)", (ROOT / "CMakeLists.txt").read_text())
    assert match, f"CMakeLists.txt names no flags for {isa}"
    return match[1].split()


def _build(isa: str, source: Path, program: Path, *more: str) -> None:
    subprocess.run(
        [str(COMPILER), "-std=c++17", "-O2", *_flags(isa), "-ffp-contract=fast",
         "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi", f"-I{ROOT / 'csrc'}",
         f"-DFUSEDNN_ISA={isa}", *more, str(source), "-o", str(program)],
        check=True,
    )  # fmt: skip


def test_accuracy(isa, tmp_path):
    program = tmp_path / "vmath_accuracy"
    _build(isa, SOURCE, program)
    run = subprocess.run([program, "4099"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout
    assert len(run.stdout.splitlines()) == 8


def test_the_check_sees_an_error(tmp_path):
    """A coefficient that is off in its 13th bit must not pass."""
    header = tmp_path / "cpu" / "vmath.h"
    header.parent.mkdir()
    right = (ROOT / "csrc" / "cpu" / "vmath.h").read_text()
    wrong = right.replace("0x1.555492p-3f", "0x1.555092p-3f")
    assert wrong != right
    header.write_text(wrong)
    program = tmp_path / "vmath_accuracy"
    _build(_core.cpu_isa(), SOURCE, program, f"-iquote{tmp_path}")
    run = subprocess.run([program, "4099"], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "BEYOND" in run.stdout.splitlines()[0]
