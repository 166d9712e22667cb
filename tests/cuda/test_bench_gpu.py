"""The benchmark on a GPU. Times mean nothing on the emulator; what is written down does."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from fusednn.bench import ceilings, compare, gpu, records, runner, table
from fusednn.bench.ceilings import Ceilings
from fusednn.bench.work import OURS, Work
from fusednn.testing import cases

FIXED = Ceilings(100.0, {"L2": 100.0, "L3": 80.0, "DRAM": 20.0}, {"L2": 1 << 19, "L3": 1 << 24})


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(ceilings, "measure", lambda *args: FIXED)
    monkeypatch.setattr(gpu, "COPY_BYTES", 1 << 20)
    monkeypatch.setattr(gpu, "PRODUCT_SIZE", 64)


def run(devices, ops=("pool",), direction="fwd", cases="64x16x8x8"):
    said = []
    options = runner.Options(
        ops, cases, direction, peers=[], budget=0.02, devices=devices, threads=1
    )
    result, wrong = runner.run(options, said.append)
    assert wrong == []
    return result, said


def test_both_columns(tmp_path):
    result, said = run(("cpu", "cuda"))
    on_cpu, on_gpu = result.records
    assert (on_cpu.device, on_gpu.device) == ("cpu", "cuda")
    assert on_cpu.kernel_us is None and on_cpu.transfer_us is None
    assert on_gpu.kernel_us > 0 and on_gpu.transfer_us > 0 and on_gpu.median_us > 0
    assert on_gpu.max_rel_err == 0
    assert result.header["cuda"]["ceilings"]["gflops"] > 0
    line = next(line for line in said if "on cuda" in line)
    assert "kernels" in line and "transfer" in line and line.endswith("x the CPU")
    text = table.summary(result.records)
    assert "cuda is " in text and "x the CPU (1 cases)" in text
    path = tmp_path / "both.json"
    result.save(path)
    assert records.load(path) == result
    assert len(compare.changes(result, records.load(path))) == 2


def test_one_column():
    result, _ = run(("cuda",))
    assert [record.device for record in result.records] == ["cuda"]


def test_what_is_not_timed_there_says_so(monkeypatch):
    def prepare(case, direction, dtype, others):
        return Work(case, direction, dtype, [], 1)

    monkeypatch.setitem(runner.PREPARE, "pool", prepare)
    result, said = run(("cuda",))
    assert result.records == []
    assert any("on cuda: cases of pool are not timed on a GPU" in line for line in said)


def test_a_wrong_answer_is_not_timed(monkeypatch):
    real = gpu.moved
    monkeypatch.setattr(
        gpu, "moved", lambda cupy, arrays: real(cupy, {k: a + 1 for k, a in arrays.items()})
    )
    options = runner.Options(["pool"], "64x16x8x8", "fwd", peers=[], devices=("cuda",))
    said = []
    result, wrong = runner.run(options, said.append)
    assert result.records == []
    assert len(wrong) == 1 and f"{OURS} on cuda" in wrong[0]


def test_ceilings(xp):
    found = gpu.measure_ceilings(xp, np.dtype("float32"))
    assert found.gflops > 0 and found.gbps["DRAM"] > 0
    assert dataclasses.asdict(found)["limits"] == {}


@pytest.mark.parametrize("op", ["function", "train"])
def test_functions_and_training_steps(op, monkeypatch):
    """The answers are those that are expected of the CPU."""
    # Of training steps one network's: an emulated step takes seconds, and there are dozens.
    chosen = [case for case in cases.TEST[op] if op == "function" or "charlstm" in case.name]
    monkeypatch.setitem(runner.BENCH, op, chosen)
    monkeypatch.setattr(gpu, "ROUNDS", 1)
    monkeypatch.setattr(gpu, "TRANSFERS", 1)
    result, said = run(("cuda",), (op,), "all", "")
    assert not [line for line in said if "cannot run" in line]
    assert len(result.records) == len(chosen) * len(runner.DIRECTIONS[op]) > 0


# Of one unit nothing averages out: a gradient of it may be all rounding.
FEW = {
    "pool": slice(4, 6), "recurrent": slice(4, 5), "function": slice(4, 9, 4), "conv": slice(8, 9),
    "attention": slice(2, 3), "train": slice(2, 3),
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits(dtype, monkeypatch):
    """The answers are those of rounded inputs, rows name the dtype; what has no kernel says so."""
    pytest.importorskip("ml_dtypes")
    for op, few in FEW.items():
        monkeypatch.setitem(runner.BENCH, op, cases.TEST[op][few])
    monkeypatch.setattr(gpu, "ROUNDS", 1)
    monkeypatch.setattr(gpu, "TRANSFERS", 1)
    said = []
    options = runner.Options(peers=[], budget=1e-6, devices=("cuda",), dtype=dtype)
    result, wrong = runner.run(options, said.append)
    assert wrong == []
    assert {record.dtype for record in result.records} == {dtype}
    assert {record.op for record in result.records} == set(runner.PREPARE)
    assert all("no CUDA kernel" in line for line in said if "cannot run" in line)
    assert sum(f" {dtype} " in line and "on cuda: kernels" in line for line in said) == len(
        result.records
    )
