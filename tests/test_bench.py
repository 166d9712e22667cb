"""The benchmark: what it times, how it judges answers, and what it writes down."""

import argparse
import dataclasses
import importlib.util
import json
import math
import os
import sys
import threading

import numpy as np
import pytest

from fusednn.bench import (
    ceilings,
    compare,
    conv,
    gpu,
    machine,
    measure,
    peers,
    plot,
    pool,
    records,
    runner,
)
from fusednn.bench import table as tables
from fusednn.bench.ceilings import Ceilings
from fusednn.bench.measure import Timing
from fusednn.bench.records import Record
from fusednn.bench.work import OURS, Call, Work, WrongAnswerError, one
from fusednn.cli import bench as cli
from fusednn.testing import cases, reference_pool
from fusednn.testing.cases import CONV_TEST, POOL_TEST

ALONE = peers.load([], threads=1)
ATTENTION_TEST = cases.TEST["attention"]
TINY_CONV, TINY_POOL = cases.CONV_BENCH[13], cases.POOL_BENCH[3]
TINY_RECURRENT = cases.RecurrentCase(4, 3, 5, 8)


def parsed(*arguments):
    parser = argparse.ArgumentParser()
    cli.add_parser(parser.add_subparsers(required=True))
    return parser.parse_args(["bench", *arguments])


def record(**changes):
    fields = {
        "op": "conv", "case": "conv a", "direction": "fwd", "dtype": "float32", "device": "cpu",
        "isa": "avx2", "threads": 1, "impl": OURS, "median_us": 100.0, "best_us": 99.0,
        "gflops": 50.0, "gbps": 1.0, "max_rel_err": 1e-7, "ratio_to_best_peer": 2.0,
        "best_peer": "torch", "of_ceiling": 0.5, "ceiling": "FMA", "spread": 0.01,
    }  # fmt: skip
    return Record(**{**fields, **changes})


@pytest.fixture
def quick(monkeypatch):
    """Ceilings that are given and not measured."""
    fixed = Ceilings(100.0, {"L2": 100.0, "L3": 80.0, "DRAM": 20.0}, {"L2": 1 << 19, "L3": 1 << 24})
    monkeypatch.setattr(ceilings, "measure", lambda *args: fixed)


# ---- the arguments -------------------------------------------------------------------------------


def test_defaults_run_every_timed_shape_in_every_direction():
    args = parsed()
    options = runner.Options(args.op, args.cases, args.direction, args.threads, args.peers)
    chosen = runner.selected(options)
    expected = {
        (case.name, direction)
        for op, directions in runner.DIRECTIONS.items()
        for case in cases.BENCH[op]
        for direction in directions
    }
    assert {(case.name, direction) for case, direction in chosen} == expected
    assert len(chosen) == len(expected)
    assert options.threads == 1
    assert runner.PREPARE.keys() == cases.BENCH.keys()


def test_cases_are_matched_by_name_and_direction():
    chosen = runner.selected(runner.Options(cases="k3 s1 g1 fwd$", direction="all"))
    assert {direction for _, direction in chosen} == {"fwd"}
    assert len(chosen) == 7
    assert all("k3 s1 g1" in case.name for case, _ in chosen)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--op", "convolution"], f"'convolution' is none of {', '.join(cases.BENCH)}"),
        (["--peers", "torch,numpy"], "'numpy' is none of torch, torch-cl, ort, jax"),
        (["--cases", "("], "'(' is no regular expression"),
        (["--threads", "0"], "must be at least 1, got 0"),
        (["--device", "tpu"], "'tpu' is none of cpu, cuda"),
        (["--device", ""], "expected at least one of cpu, cuda"),
        (["--budget", "inf"], "must be a positive number of seconds, got inf"),
        (["--direction", "bwd"], "invalid choice: 'bwd'"),
        (["--plot", "f.txt"], "argument --plot: f.txt must end in .png, .pdf or .svg"),
        (["compare", "a.json"], "the following arguments are required: B.json"),
    ],
)
def test_wrong_arguments(arguments, message, capsys):
    with pytest.raises(SystemExit) as stopped:
        parsed(*arguments)
    assert stopped.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--cases", "no such shape"], "no case matches 'no such shape'"),
        (["--json", "missing/out.json"], "its folder does not exist"),
        (["--plot", "missing/out.png"], "its folder does not exist"),
        (["--threads", "100000"], "100000 threads asked for, but this process may use"),
    ],
)
def test_what_cannot_be_run_is_answered_in_one_line(arguments, message, capsys):
    assert cli.run(parsed(*arguments)) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


def no_gpu(monkeypatch):
    monkeypatch.setattr("fusednn.has_cuda", lambda: False)
    monkeypatch.setattr("fusednn.cuda_status", lambda: "no CUDA device: no driver")


def test_without_a_gpu_its_column_says_why(quick, monkeypatch, capsys, tmp_path):
    no_gpu(monkeypatch)
    path = tmp_path / "r.json"
    arguments = ["--device", "cpu,cuda", "--cases", "64x16x8x8.* fwd$", "--peers", "none"]
    arguments += ["--budget", "0.01", "--json", str(path)]
    assert cli.run(parsed(*arguments)) == 0
    out = capsys.readouterr().out
    assert "the cuda column stays empty: no CUDA device: no driver" in out
    run = records.load(path)
    assert {record.device for record in run.records} == {"cpu"}
    assert run.header["cuda"] == {"status": "no CUDA device: no driver"}


def test_a_gpu_alone_must_be_there(quick, monkeypatch, capsys):
    no_gpu(monkeypatch)
    assert cli.run(parsed("--device", "cuda", "--cases", "64x16x8x8")) == 2
    assert "nothing to time on: no CUDA device: no driver" in capsys.readouterr().err


def test_a_gpu_without_cupy(monkeypatch):
    monkeypatch.setattr("fusednn.has_cuda", lambda: True)
    monkeypatch.setitem(sys.modules, "cupy", None)
    assert gpu.unavailable().startswith("CuPy is missing")


# ---- a run ---------------------------------------------------------------------------------------


def test_a_run_without_peers(quick, tmp_path, capsys):
    path = tmp_path / "run.json"
    arguments = ["--cases", "1x8x16x16|16x8x8", "--peers", "none", "--budget", "0.02"]
    assert cli.run(parsed(*arguments, "--json", str(path))) == 0
    out = capsys.readouterr().out
    assert "No peer took part" in out
    assert out.count("conv 1x8x16x16") == 2
    content = json.loads(path.read_text())
    assert content["header"]["machine"]["cpu"]
    assert {"fusednn", "numpy"} <= content["header"]["versions"].keys()
    assert content["header"]["date"].startswith("20")
    assert len(content["records"]) == 4
    for item in content["records"]:
        assert item["impl"] == OURS
        assert item["ratio_to_best_peer"] is None
        assert 0 < item["best_us"] <= item["median_us"]
        flops = {"conv": 589_824, "pool": 0}[item["op"]] * (
            3 if item["direction"] == "fwdbwd" else 1
        )
        assert item["gflops"] == pytest.approx(flops / item["median_us"] / 1e3)
        assert item["max_rel_err"] < 1e-5
    again = records.load(path)
    assert again.records[0].case == TINY_CONV.name


PACKAGES = {"torch": "torch", "torch-cl": "torch", "ort": "onnxruntime", "jax": "jax"}
INSTALLED = [name for name in peers.PEERS if importlib.util.find_spec(PACKAGES[name])]
# torch takes no padding beyond half of the kernel without its dilation; jax has no gradient of a
# dilated maximum.
WIDE, DILATED = POOL_TEST[7], POOL_TEST[6]
UNABLE = {(peer, WIDE.name) for peer in ("torch", "torch-cl", "jax")} | {("jax", DILATED.name)}


@pytest.mark.parametrize("name", INSTALLED)
@pytest.mark.parametrize("direction", ["fwd", "fwdbwd"])
@pytest.mark.parametrize(
    "case",
    [TINY_CONV, TINY_POOL, *CONV_TEST[4:], *POOL_TEST[2:], *ATTENTION_TEST[1:]],
    ids=lambda case: case.name,
)
def test_peers_and_we_give_the_same_answers(case, direction, name):
    """The peers' own code is trusted, so this tests how each is called, and the oracles."""
    others = peers.load([name], threads=1)
    work = runner.PREPARE[case.op](case, direction, np.dtype(np.float32), others)
    for impl in work.calls:
        assert work.check(impl) <= work.tolerance
    offered = {*work.calls, *work.unable} - {OURS}
    assert offered == {name} or name in ("torch-cl", "ort", "jax")
    assert {(impl, case.name) for impl in work.unable} <= UNABLE


def test_peers_that_are_missing_are_named(monkeypatch, quick, capsys):
    def nothing(package):
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr(peers.importlib, "import_module", nothing)
    assert cli.run(parsed("--cases", TINY_POOL.name + " fwd$", "--budget", "0.01")) == 0
    out = capsys.readouterr().out
    for package in ("torch", "onnxruntime", "jax"):
        assert f"{package} takes no part: not installed" in out


def test_a_peer_that_has_no_such_op_is_left_out_with_its_own_words(monkeypatch, quick):
    class Unable(peers.Peers):
        def __contains__(self, name):
            return name == "ort"

        def ort_session(self, *args, **kwargs):
            raise RuntimeError("NOT_IMPLEMENTED: Conv(11)\nmore lines")

    monkeypatch.setattr(peers, "load", lambda names, threads: Unable(threads, ["ort"]))
    said = []
    options = runner.Options(["conv"], "1x8x16x16", "fwd", budget=0.01)
    result, wrong = runner.run(options, said.append)
    assert [r.impl for r in result.records] == [OURS]
    assert not wrong
    assert f"ort cannot run {TINY_CONV.name} fwd: NOT_IMPLEMENTED: Conv(11)" in said


@pytest.mark.parametrize("impl", [OURS, "torch"])
def test_a_wrong_answer_is_reported_and_not_timed(impl, monkeypatch, quick, capsys):
    """Ours wrong: no line for the case at all. A peer's: it is left out. Both fail the run."""
    right = np.ones((2, 3), np.float32)

    def prepare(case, direction, dtype, others):
        work = Work(case, direction, dtype, [right.astype(np.float64)], 1)
        for name in (OURS, "torch", "ort"):
            value = right * 1.01 if name == impl else right
            work.calls[name] = Call(lambda value=value: value, one)
        return work

    monkeypatch.setitem(runner.PREPARE, "conv", prepare)
    assert cli.run(parsed("--op", "conv", "--cases", "1x8x16x16.*fwd$", "--budget", "0.01")) == 1
    out = capsys.readouterr().out
    assert f"WRONG: {impl}, {TINY_CONV.name} fwd: relative error 1.0e-02" in out
    assert ("2x3" in out, "x ort" in out) == (False, impl != OURS)


def test_an_interrupt_keeps_what_is_done(monkeypatch, quick, tmp_path):
    prepared = []

    def prepare(case, direction, dtype, others):
        if prepared:
            raise KeyboardInterrupt
        prepared.append(case)
        return pool.prepare(TINY_POOL, direction, dtype, others)

    monkeypatch.setitem(runner.PREPARE, "pool", prepare)
    path = tmp_path / "part.json"
    arguments = ["--op", "pool", "--peers", "none", "--budget", "0.01", "--json", str(path)]
    assert cli.run(parsed(*arguments)) == 130
    assert len(records.load(path).records) == 1


@pytest.mark.parametrize("peer", ["numpy", None])
def test_a_picture_of_a_run(peer, quick, tmp_path):
    svg = tmp_path / "run.svg"
    result, _ = runner.run(runner.Options(["pool"], "64x16x8x8", "all", 1, [], budget=0.01))
    if peer:
        result.records = [
            dataclasses.replace(record, ratio_to_best_peer=0.5 + 2 * place, best_peer=peer)
            for place, record in enumerate(result.records)
        ]
    plot.draw(svg, result)
    text = svg.read_text()
    assert text.count("<!-- maxpool 64x16x8x8") == 2
    assert ("<!-- 0.50x numpy -->" in text) == (peer is not None)
    assert ("<!-- 2.50x numpy -->" in text) == (peer is not None)
    assert ("share of what" in text) == (peer is None)


def test_a_picture_needs_matplotlib(monkeypatch, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'fusednn\[plot\]'"):
        plot.check(tmp_path / "a.png")


@pytest.mark.parametrize(("load", "warned"), [(0.2, False), (3.5, True)])
def test_a_busy_machine_is_mentioned(load, warned, quick, monkeypatch):
    monkeypatch.setattr(machine, "load", lambda: load)
    said = []
    runner.run(runner.Options(["pool"], "64x16x8x8", "fwd", 1, [], budget=0.01), said.append)
    assert any("busy (load 3.5)" in line for line in said) == warned


def test_a_run_leaves_threads_and_affinity_as_they_were(quick):
    import fusednn as fn

    before = fn.get_num_threads(), machine.available_cpus()
    seen = []
    options = runner.Options(["pool"], "64x16x8x8", "fwd", 1, [], budget=0.01)
    runner.run(options, lambda line: seen.append((fn.get_num_threads(), machine.available_cpus())))
    assert {(threads, len(cpus)) for threads, cpus in seen} == {(1, 1)}
    assert (fn.get_num_threads(), machine.available_cpus()) == before


# ---- answers -------------------------------------------------------------------------------------


def work_on(found, expected, terms=1, dtype=np.float32):
    work = Work(TINY_CONV, "fwd", np.dtype(dtype), [np.asarray(expected, np.float64)], terms)
    work.calls["x"] = Call(lambda: np.asarray(found, dtype), one)
    return work


def test_rounding_passes_and_nothing_else():
    eps = float(np.finfo(np.float32).eps)
    assert work_on([4.0, 4.0 + 64 * eps], [4, 4]).check("x") == 16 * eps
    with pytest.raises(WrongAnswerError, match="rounding explains"):
        work_on([4.0, 4.0 + 256 * eps], [4, 4]).check("x")
    assert work_on([4.0, 4.0 + 256 * eps], [4, 4], terms=9).check("x") > 0
    with pytest.raises(WrongAnswerError, match="relative error nan"):
        work_on([np.nan], [1]).check("x")
    with pytest.raises(WrongAnswerError, match=r"shapes \[\(2,\)\], expected \[\(1,\)\]"):
        work_on([1, 1], [1]).check("x")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_16_bits_on_the_cpu_are_refused(dtype):
    for devices in (("cpu",), ("cpu", "cuda")):
        with pytest.raises(
            ValueError, match=f"--dtype {dtype}: 16-bit floats are computed on GPUs"
        ):
            runner.run(runner.Options(["pool"], dtype=dtype, devices=devices))


def test_rows_name_the_dtype():
    options = runner.Options(
        ["pool"], "1x64x112x112", "fwd", peers=[], dtype="float64", budget=0.01
    )
    said = []
    runner.run(options, said.append)
    assert any("112x112" in line and " fwd float64 " in line for line in said)


@pytest.mark.parametrize("op", cases.BENCH)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_shifted_result_is_no_rounding(op, dtype):
    """The tolerance must tell a misplaced element from rounding on every timed shape's kind."""
    case = min(cases.BENCH[op], key=lambda case: case.bytes("fwd"))
    for direction in runner.DIRECTIONS[op]:
        work = runner.PREPARE[op](case, direction, np.dtype(dtype), ALONE)
        call = work.calls[OURS]
        work.calls["shifted"] = Call(
            call.run, lambda result, call=call: [np.roll(a, 1) for a in call.arrays(result)]
        )
        assert work.check(OURS) <= work.tolerance
        with pytest.raises(WrongAnswerError):
            work.check("shifted")


@pytest.mark.parametrize("case", POOL_TEST, ids=lambda case: case.name)
def test_pooling_oracle_agrees_with_the_windows_one_by_one(case):
    arrays = case.arrays(np.float64)
    window = case.kernel, case.stride, case.padding, case.dilation, case.ceil_mode
    exact, _, at = reference_pool.max_pool(arrays["input"], *window, spatial=case.spatial)
    assert np.array_equal(pool.forward(case, arrays["input"]), exact)
    gradient = reference_pool.max_pool_backward(
        arrays["grad"], at, case.input, spatial=case.spatial
    )
    found = pool.backward(case, arrays["input"], arrays["grad"])
    np.testing.assert_allclose(found, gradient, atol=1e-12)


def test_more_terms_for_the_weights_gradient():
    case = cases.CONV_BENCH[7]
    small = dataclasses.replace(case, input=(16, 2, 56, 56), out_channels=2)
    assert conv.prepare(small, "fwdbwd", np.dtype(np.float32), ALONE).terms == 16 * 56 * 56
    assert conv.prepare(small, "fwd", np.dtype(np.float32), ALONE).terms == 2 * 9


# ---- timing --------------------------------------------------------------------------------------


class Clock:
    """Time that only the calls themselves let pass."""

    def __init__(self):
        self.now = 0.0
        self.order = []

    def call(self, name, seconds):
        def run():
            self.order.append(name)
            self.now += seconds

        return run


def test_calls_alternate_and_share_the_budget():
    clock = Clock()
    calls = {"slow": clock.call("slow", 0.5), "fast": clock.call("fast", 0.001)}
    timings = measure.alternate(calls, budget=4.0, rounds=8, clock=lambda: clock.now)
    assert timings["slow"].median == pytest.approx(0.5)
    assert timings["fast"].best == pytest.approx(0.001)
    assert clock.order.count("slow") == 2 + 8  # one call more than fits: never none
    assert clock.order.count("fast") == 2 + 8 * 250
    timed = [
        name for name, after in zip(clock.order[4:], clock.order[5:], strict=False) if name != after
    ]
    # Every round has both, and each starts where the one before ended.
    assert timed[:6] == ["slow", "fast", "slow", "fast", "slow", "fast"]


def test_timing_figures():
    timing = Timing((2.0, 1.0, 3.0, 4.0, 5.0))
    assert (timing.median, timing.best) == (3.0, 1.0)
    assert timing.spread == pytest.approx(2 / 3)


# ---- ceilings ------------------------------------------------------------------------------------


def test_roofline():
    ceiling = Ceilings(100.0, {"L2": 200.0, "L3": 50.0, "DRAM": 10.0}, {"L2": 1000, "L3": 10_000})
    assert [ceiling.level(n) for n in (1000, 1001, 10_000, 10_001)] == ["L2", "L3", "L3", "DRAM"]
    assert ceiling.least_seconds(2_000, 1_000) == (pytest.approx(2e-8), "FMA")
    assert ceiling.least_seconds(0, 1_000) == (pytest.approx(5e-9), "L2")
    assert ceiling.least_seconds(0, 20_000) == (pytest.approx(2e-6), "DRAM")


@pytest.mark.parametrize("threads", [1, 2])
def test_measured_ceilings_are_plausible(threads):
    found = ceilings.measure(threads, np.dtype(np.float32), ALONE, seconds=0.02)
    assert 1 < found.gflops < 10_000
    assert list(found.gbps) == [*found.limits, "DRAM"]
    assert all(0.5 < value < 10_000 for value in found.gbps.values())


def test_copying_counts_bytes_read_and_written(monkeypatch):
    monkeypatch.setattr(ceilings, "_best_time", lambda call, seconds: 1.0)
    copied = 2 * (1 << 20)
    assert ceilings.copy_bandwidth(1 << 21, 1, 1.0) == pytest.approx(copied / 1e9)
    assert ceilings.copy_bandwidth(1 << 22, 2, 1.0) == pytest.approx(2 * copied / 1e9)


def test_cache_sizes(tmp_path):
    for index, (level, kind, size) in enumerate(
        [
            ("1", "Data", "48K"),
            ("1", "Instruction", "32K"),
            ("2", "Unified", "2048K"),
            ("3", "Unified", "36M"),
        ]
    ):
        folder = tmp_path / f"index{index}"
        folder.mkdir()
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(text + "\n")
    assert machine.cache_sizes(tmp_path) == {"L1": 48 << 10, "L2": 2 << 20, "L3": 36 << 20}
    assert machine.cache_sizes(tmp_path / "none").keys() == {"L1", "L2", "L3"}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no CPU affinity here")
def test_only_some_cpus_also_for_new_threads():
    before = machine.available_cpus()
    seen = []
    with machine.only_cpus(1):
        thread = threading.Thread(target=lambda: seen.append(machine.available_cpus()))
        thread.start()
        thread.join()
    assert seen == [before[:1]]
    assert machine.available_cpus() == before


# ---- records and tables --------------------------------------------------------------------------


def test_records_are_written_and_read_back(tmp_path):
    path = tmp_path / "r.json"
    run = records.Run({"isa": "avx2"}, [record(), record(impl="torch", ratio_to_best_peer=None)])
    run.save(path)
    assert records.load(path) == run
    assert [p.name for p in tmp_path.iterdir()] == ["r.json"]


def test_files_from_before_there_were_gpus_are_read(tmp_path):
    path = tmp_path / "old.json"
    old = dataclasses.asdict(record())
    del old["kernel_us"], old["transfer_us"]
    path.write_text(json.dumps({"format": records.FORMAT, "header": {}, "records": [old]}))
    assert records.load(path).records == [record()]


def test_table_line_of_a_gpu():
    lines = tables.Table(["conv a fwd"], ["torch"])
    ours = record(device="cuda", median_us=10.0, kernel_us=8.0, transfer_us=500.0, gflops=5000.0)
    theirs = record(device="cuda", impl="torch", kernel_us=16.0)
    text = lines.gpu_line([ours, theirs], [record()])
    assert text.split() == [
        "on", "cuda", "10.0", "99.0", "5.00", "TF/s", "50%", "FMA", "1e-07", "kernels", "8.00,",
        "transfer", "500,", "torch", "16.0", "(2.00x);", "10.0x", "the", "CPU",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "\x00", '{"format": "other"}', '{"format": "fusednn-bench-1"}',
             '{"format": "fusednn-bench-1", "header": {}, "records": [{"op": "conv"}]}'],
)  # fmt: skip
def test_other_files_are_refused(text, tmp_path, capsys):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(records.NotABenchFileError, match=r"bad\.json"):
        records.load(path)
    assert cli.run(parsed("compare", str(path), str(path))) == 2
    assert "bad.json" in capsys.readouterr().err


def test_a_missing_file_is_one_line(tmp_path, capsys):
    assert cli.run(parsed("compare", str(tmp_path / "a"), str(tmp_path / "b"))) == 2
    assert "No such file" in capsys.readouterr().err


def test_a_failed_write_leaves_nothing(tmp_path):
    with pytest.raises(TypeError):
        records.Run({"bad": object()}).save(tmp_path / "r.json")
    assert list(tmp_path.iterdir()) == []


def test_table_line():
    lines = tables.Table(["conv a fwd"], ["torch", "ort"])
    text = lines.line([record(), record(impl="torch", median_us=200.0)])
    assert text.split() == [
        "conv", "a", "fwd", "float32", "100", "99.0", "50.0", "GF/s", "50%", "FMA", "1e-07", "200",
        "-", "2.00x", "torch",
    ]  # fmt: skip
    assert len(lines.heading()) <= 140


@pytest.mark.parametrize(
    ("value", "text"), [(1234567.8, "1234568"), (123.4, "123"), (12.34, "12.3"), (0.123, "0.12")]
)
def test_numbers(value, text):
    assert tables.number(value) == text


def test_summary():
    text = tables.summary([record(), record(case="conv b", ratio_to_best_peer=0.5)])
    assert text == "1.00x the best peer (geometric mean of 2); worst 0.50x: conv b fwd"


# ---- comparing runs ------------------------------------------------------------------------------


def two_runs(ours=(100.0, 80.0), theirs=None, spread=0.01):
    runs = []
    for side in range(2):
        found = [record(median_us=ours[side], spread=spread)]
        if theirs:
            found.append(record(impl="torch", median_us=theirs[side], spread=spread))
        runs.append(records.Run({"isa": "avx2"}, found))
    return runs


@pytest.mark.parametrize(
    ("ours", "theirs", "spread", "net", "verdict"),
    [
        ((100.0, 80.0), None, 0.01, 1.25, "faster"),
        ((80.0, 100.0), None, 0.01, 0.8, "slower"),
        ((100.0, 98.5), None, 0.0, 1.015, ""),  # two runs of one build differ by as much
        ((100.0, 80.0), None, 0.2, 1.25, ""),  # noisy rounds
        ((100.0, 80.0), (50.0, 40.0), 0.01, 1.0, ""),  # the machine became faster
        ((100.0, 100.0), (50.0, 40.0), 0.01, 0.8, "slower"),
    ],
)
def test_verdicts(ours, theirs, spread, net, verdict):
    (change,) = compare.changes(*two_runs(ours, theirs, spread))
    assert change.net == pytest.approx(net, rel=1e-3)
    assert change.verdict == verdict


def test_noise_counts_both_runs_and_the_peers():
    (change,) = compare.changes(*two_runs(theirs=(50.0, 50.0), spread=0.03))
    assert change.noise == pytest.approx(2 * 0.03)  # four independent errors
    assert math.log(change.net) > change.noise
    assert change.verdict == "faster"


def test_report_says_what_differs_and_what_is_left_out():
    a, b = two_runs()
    a.records.append(record(case="conv only here"))
    a.header = {"isa": "avx2", "versions": {"torch": "2.12"}, "machine": {"cpu": "one"}}
    b.header = {"isa": "avx512", "versions": {"torch": "2.13"}, "machine": {"cpu": "two"}}
    text = compare.report(a, b, "a.json", "b.json")
    for line in (
        "isa: avx2 -> avx512",
        "torch: 2.12 -> 2.13",
        "cpu: one -> two",
        "1 cases only in A, 0 only in B",
        "1 faster, 0 slower",
        "1.25x over 1 cases",
    ):
        assert line in text
    assert "no case in common" in compare.report(a, records.Run({}), "a", "b")


def test_other_threads_or_dtypes_are_not_compared():
    a, b = two_runs()
    b.records = [dataclasses.replace(b.records[0], threads=2)]
    assert compare.changes(a, b) == []
