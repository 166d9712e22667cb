"""The tools of tests/cuda that need no build: tables of mutants and budgets, and their readers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def tools(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "tests/cuda"))
    import check_code
    import mutants

    yield check_code, mutants
    for name in [*sys.modules]:
        if name.partition(".")[0] in ("check_code", "mutants", "budgets"):
            del sys.modules[name]


def test_every_mutant_can_be_made(tools):
    _, mutants = tools
    made = [mutant for target in mutants.TARGETS for mutant in mutants.mutants(target)]
    assert len(made) >= 80
    for mutant in made:
        assert mutant.text != (ROOT / mutant.target.source).read_text()
    labels = [mutant.label for mutant in made]
    assert len(set(labels)) == len(labels)


def test_mutants_of_a_text(tools):
    _, mutants = tools
    text = """
    // if (a < b) __syncthreads();
    FUSEDNN_DEVICE int f(int a) { return a < 3 ? a : 0; }
    void host() { copy_async_wait<1>(); g(a < b); }
    """
    made = [(name, new) for name, _, _, new in mutants.synchronisation(text)]
    assert ("delete copy_async_wait 1", ";") in made
    assert ("weaken copy_async_wait 1", "copy_async_wait<1 + 1>();") in made
    (exchanged,) = mutants.operators(text)
    assert exchanged[0].endswith("< -> <=")


USAGE = """
arch = sm_80
Resource usage:
 Function _Zone:
  REG:40 STACK:0 SHARED:0 LOCAL:0
 Function _Ztwo:
  REG:200 STACK:8 SHARED:0 LOCAL:0
"""
CODE = """
arch = sm_80
\t\tFunction : _Zone
        /*0000*/                   MOV R1, c[0x0][0x28] ;
        /*0010*/              @!P0 LDG.E.128 R8, [R10.64] ;
        /*0020*/                   STG.E.128 [R10.64], R8 ;
\t\tFunction : _Ztwo
        /*0000*/                   STL [R1], R0 ;
        /*0010*/                   LDL.LU R0, [R1] ;
"""


def test_machine_code(tools):
    check_code, _ = tools
    one, two = check_code.parse("activation/relu.cu", USAGE, CODE)
    one.name = two.name = "map_packs<float>"
    assert (one.registers, one.count("LDG"), one.count("LDG.E"), one.count("LD")) == (40, 1, 1, 0)
    assert list(check_code.complaints(one)) == []
    texts = list(check_code.complaints(two))
    assert any("200 registers" in text for text in texts)
    assert any("8 bytes of local memory (1 STL, 1 LDL)" in text for text in texts)
    assert any("no LDG.E.128" in text for text in texts)


def test_names_of_kernels(tools):
    check_code, _ = tools
    name = "void fusednn::cuda::(anonymous namespace)::forward<float, f<int (int)>>(float const*)"
    assert check_code.short_name(name) == "forward<float, f<int (int)>>"
    assert check_code.source_of(Path("/b/csrc/cuda/pool/max.cu.o")) == "pool/max.cu"
    assert check_code.source_of(Path("/b/tests/cuda/kernels/probe.cu.o")) == "kernels/probe.cu"


def test_the_check_of_a_gpu_says_what_is_missing():
    script = str(ROOT / "bench/gpu_check.sh")
    dry = subprocess.run([script, "--dry-run"], capture_output=True, text=True, check=False)
    assert dry.returncode == 0, dry.stderr
    assert [line.split()[1] for line in dry.stdout.splitlines() if line.startswith("-- ")] == [
        "build", "probes", "tests", "memcheck", "racecheck", "bench",
    ]  # fmt: skip
    if "missing here" in dry.stdout:
        real = subprocess.run([script], capture_output=True, text=True, check=False)
        assert real.returncode == 1
        assert real.stderr.startswith("gpu_check: missing here: ")
    wrong = subprocess.run([script, "--what"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "usage: bench/gpu_check.sh" in wrong.stderr
