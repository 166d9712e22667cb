"""The command line: what it prints, its exit status, and how it answers wrong arguments."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest

import fusednn as fn
from fusednn import cli
from fusednn.cli import demo, kernels


def run(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "fusednn", *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


def test_info():
    result = run("info", "--threads", "1")
    assert result.returncode == 0
    for text in ("fusednn", fn.__version__, "isa", fn.cpu_isa(), "cuda", "compiler"):
        assert text in result.stdout
    assert re.search(r"threads +1 of \d+ available", result.stdout)
    assert result.stderr == ""


def test_version(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"fusednn {fn.__version__}\n"


def test_ctrl_c_before_a_command_has_begun(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_parser", interrupted)
    assert cli.main(["info"]) == 130
    assert capsys.readouterr().err == "stopped\n"


@pytest.mark.parametrize("command", [(), ("info",), ("demo",), ("bench",)])
def test_help(command, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main([*command, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: fusednn")
    assert len(out) > 300


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((), "the following arguments are required: COMMAND"),
        (("nonsense",), "invalid choice: 'nonsense'"),
        (("demo", "--threads", "0"), "argument --threads: 0 is below 1"),
        (("demo", "--threads", "9" * 30), "argument --threads: 99999999999999999999 is above"),
        (("train", "cnn", "--data", "digits", "--epochs", "9" * 30), "--epochs: 9999"),
        (("bench", "nonsense"), "argument ACTION: invalid choice: 'nonsense'"),
        (("demo", "--threads", "two"), "argument --threads: 'two' is not a whole number"),
        (("demo", "--seed", "x"), "argument --seed: 'x' is not a whole number"),
        (("demo", "--epochs", "0"), "argument --epochs: 0 is below 1"),
        (("info", "--what"), "unrecognized arguments: --what"),
    ],
)
def test_wrong_arguments_are_answered_in_one_line(arguments, text, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert text in err
    assert err.count("\n") == 1
    assert err.startswith("fusednn")


def test_demo_reports_everything():
    pytest.importorskip("sklearn", reason="scikit-learn brings the digits: pip install '.[demo]'")
    result = run("demo", "--threads", "1")
    assert result.returncode == 0, result.stderr
    accuracy = float(re.search(r"read (0\.\d+) of 360 test digits", result.stdout)[1])
    assert accuracy >= 0.98
    counts = np.array(
        [
            [int(n) if n != "." else 0 for n in line.split()[-10:]]
            for line in result.stdout.splitlines()
            if re.match(r"(      digit|           ) \d ", line)
        ]
    )
    assert counts.shape == (10, 10)
    assert counts.sum() == 360
    assert counts.trace() / 360 == pytest.approx(accuracy, abs=1e-4)
    assert re.search(rf"isa {fn.cpu_isa()}, threads 1, device cpu", result.stdout)
    rows = re.findall(r"^(\w.+?) +\S.* +(\d\.\de[-+]\d\d) +(\d+\.\d)x$", result.stdout, re.M)
    assert len(rows) == 10
    assert max(float(error) for _, error, _ in rows) < 1e-5
    assert result.stderr == ""  # no progress bar where nobody watches


def test_demo_without_scikit_learn_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    assert cli.main(["demo"]) == 2
    err = capsys.readouterr().err
    assert err == ("fusednn demo: the digits come with scikit-learn; pip install 'fusednn[demo]'\n")


def test_too_few_epochs_fail(monkeypatch, capsys):
    pytest.importorskip("sklearn", reason="scikit-learn brings the digits: pip install '.[demo]'")
    assert cli.main(["demo", "--epochs", "1", "--no-table", "--seed", "3"]) == 1
    assert "kernel" not in capsys.readouterr().out


def test_ctrl_c(monkeypatch, capsys):
    def stopped():
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "digits", stopped)
    assert cli.main(["demo"]) == 130
    assert capsys.readouterr().err == "stopped\n"


def test_the_table_measures_the_error_of_every_kernel(monkeypatch):
    rows = kernels.measure(rounds=1)
    assert len({row.kernel for row in rows}) == len(rows) == 10
    for row in rows:
        assert 0 <= row.error < 1e-5, row
        assert row.ratio > 0
    assert next(row for row in rows if row.kernel == "relu").error < 1e-7
    monkeypatch.setattr(kernels.F, "relu", lambda x: np.maximum(x, 0) * 1.01)
    wrong = next(row for row in kernels.measure(rounds=1) if row.kernel == "relu")
    assert wrong.error == pytest.approx(0.01, rel=1e-3)
