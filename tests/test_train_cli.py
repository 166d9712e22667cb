"""`python -m fusednn train`: what it learns, keeps and says; stopping, killing and going on."""

import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
import termios
import time

import numpy as np
import pytest

import fusednn as fn
from fusednn import cli, data, io, models
from fusednn.cli.train import cnn, loop

QUICK = ("train", "cnn", "--data", "digits", "--limit", "200")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def digits():
    try:
        return data.digits()
    except data.MissingDataError as error:
        pytest.skip(str(error))


def train(*arguments):
    return cli.main([*QUICK, *map(str, arguments)])


def started(*arguments, **options):
    command = [sys.executable, "-m", "fusednn", *map(str, arguments)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options
    )


def last(out):
    return (out / "last.safetensors").read_bytes()


@pytest.fixture
def six_epochs(digits, folder):
    """The checkpoint of a run that nothing has disturbed."""
    assert train("--epochs", 6, "--out", folder / "whole") == 0
    return last(folder / "whole")


# ---- a whole run ---------------------------------------------------------------------------------


def test_a_run_says_and_keeps_everything(digits, folder, capsys):
    assert train("--epochs", 3, "--out", "run", "--threads", 1) == 0
    out, err = capsys.readouterr()
    assert err == ""  # no progress bar where nobody watches
    lines = out.splitlines()
    assert len(lines) == 5
    assert lines[0].startswith(
        "LeNet on digits: 200 pictures to train, 200 to validate; 6090 parameters, seed 0, 1 thread"
    )
    pattern = r"epoch (\d)/3  loss (\d\.\d{4})  validation (\d\.\d{4})  accuracy (\d\.\d{4})  \d"
    rows = [re.match(pattern, line).groups() for line in lines[1:4]]
    assert [row[0] for row in rows] == ["1", "2", "3"]
    losses = [float(row[1]) for row in rows]
    assert losses == sorted(losses, reverse=True)
    end = r"validation accuracy (\S+) after 3 epochs, best (\S+) in epoch (\d); .* in run/best\.saf"
    accuracy, best, epoch = re.match(end, lines[4]).groups()
    assert accuracy == rows[2][3]
    assert best == max(row[3] for row in rows) == rows[int(epoch) - 1][3]
    assert sorted(os.listdir("run")) == ["best.safetensors", "last.safetensors"]

    model = models.LeNet(size=8)
    model.load_state_dict(fn.load("run/best.safetensors"))
    x, y = (array[:200] for array in digits[1].arrays)
    with fn.no_grad():
        right = model.eval()(x).argmax(1).numpy() == y
    assert f"{right.mean():.4f}" == best
    metadata = io.load_checkpoint("run/last.safetensors", random=False)
    assert metadata["config"] == {
        "network": "cnn", "data": "digits", "seed": 0, "limit": 200,
        "epochs": 3, "batch_size": 64, "lr": 0.003, "accumulate": 1, "clip_grad_norm": None,
        "ema": None, "schedule": "constant", "warmup": 0,
    }  # fmt: skip
    history = metadata["progress"]["history"]
    assert [f"{row['accuracy']:.4f}" for row in history] == [row[3] for row in rows]


def test_same_seed_same_bytes_at_any_number_of_threads(six_epochs, folder):
    for threads in (1, 2, 3):
        out = folder / str(threads)
        assert train("--epochs", 6, "--out", out, "--threads", threads) == 0
        assert last(out) == six_epochs
    assert train("--epochs", 6, "--out", "other", "--seed", 1) == 0
    assert last(folder / "other") != six_epochs


def test_a_folder_of_its_own_for_every_run(digits, folder, capsys):
    for name in ("cnn-digits", "cnn-digits-2", "cnn-digits-3"):
        assert train("--epochs", 1) == 0
        assert f"in runs/{name}\n" in capsys.readouterr().out
    os.utime("runs/cnn-digits-2/last.safetensors", (2**31, 2**31))
    assert train("--resume", "--epochs", 2) == 0
    assert "in runs/cnn-digits-2\n" in capsys.readouterr().out
    assert len(os.listdir("runs")) == 3


# ---- going on ------------------------------------------------------------------------------------


def test_more_epochs_later_are_the_same_as_at_once(six_epochs, folder, capsys):
    assert train("--epochs", 2, "--out", "run") == 0
    assert train("--epochs", 3, "--out", "run", "--resume") == 0
    assert train("--epochs", 6, "--out", "run", "--resume") == 0
    assert last(folder / "run") == six_epochs
    out = capsys.readouterr().out.splitlines()
    assert [line[:9] for line in out[-4:-1]] == ["epoch 4/6", "epoch 5/6", "epoch 6/6"]
    assert train("--out", "run", "--resume") == 0  # nothing is left to do
    assert capsys.readouterr().out.splitlines()[1].startswith("validation accuracy")
    assert last(folder / "run") == six_epochs


def stop_after(monkeypatch, batches, number=signal.SIGINT):
    """Sends a signal in the middle of batch number `batches`."""
    prepare, count = cnn.prepare, [0]

    def prepared(config):
        task = prepare(config)
        inner = task.loss

        def loss(batch):
            count[0] += 1
            if count[0] == batches:
                signal.raise_signal(number)
            return inner(batch)

        task.loss = loss
        return task

    monkeypatch.setattr(cnn, "prepare", prepared)


@pytest.mark.parametrize("batches", [1, 4, 5, 23])
def test_ctrl_c_saves_between_batches_and_says_how_to_go_on(
    batches, six_epochs, folder, monkeypatch, capsys
):
    before = signal.getsignal(signal.SIGINT)
    stop_after(monkeypatch, batches)
    assert train("--epochs", 6, "--out", "my run", "--early-stop", 9) == 130
    assert signal.getsignal(signal.SIGINT) is before
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    err = capsys.readouterr().err.splitlines()
    assert len(err) == 2
    assert err[0] == f"stopped in epoch {(batches - 1) // 4 + 1}; saved. Go on with"
    words = shlex.split(err[1])
    assert words[:3] == ["python", "-m", "fusednn"]
    assert words[-4:] == ["--epochs", "6", "--early-stop", "9"]
    assert cli.main(words[3:]) == 0
    assert last(folder / "my run") == six_epochs


def test_sigterm_saves_too(digits, monkeypatch, capsys):
    stop_after(monkeypatch, 3, signal.SIGTERM)
    assert train("--epochs", 6, "--out", "run") == 128 + signal.SIGTERM
    assert "--resume" in capsys.readouterr().err


def test_a_second_ctrl_c_stops_at_once(digits, folder, monkeypatch, capsys):
    stop_after(monkeypatch, 2)
    monkeypatch.setattr(loop, "_stop", lambda *_: signal.raise_signal(signal.SIGINT))
    assert train("--epochs", 6, "--out", "run") == 130
    assert capsys.readouterr().err == "stopped\n"
    assert io.load_checkpoint("run/last.safetensors")["progress"]["epoch"] == 0


def test_ctrl_c_from_outside(six_epochs, folder):
    process = started(*QUICK, "--epochs", 5000, "--out", "run")
    assert process.stdout is not None
    while not process.stdout.readline().startswith("epoch    2/5000"):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "saved. Go on with\n  python -m fusednn train cnn --data digits --out run" in err


def killed_until_done(kills, epochs, longest, folder):
    """A run that is killed at random moments, and resumed each time."""
    random, run = np.random.default_rng(0), folder / "run"
    done = []
    for start in range(kills + 1):
        resume = ["--resume"] if (run / "last.safetensors").exists() else []
        process = started(*QUICK, "--epochs", epochs, "--out", run, *resume)
        if start < kills:
            assert process.stdout is not None
            process.stdout.readline()  # it is about to train
            time.sleep(float(random.uniform(0, longest)))
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=120)
        done.append(io.load_checkpoint(run / "last.safetensors")["progress"]["epoch"])
    assert process.returncode == 0
    assert done == sorted(done)
    assert done[-1] == epochs
    return done


def test_a_killed_run_ends_in_the_same_bits(six_epochs, folder):
    killed_until_done(3, 6, 0.05, folder)
    assert last(folder / "run") == six_epochs


@pytest.mark.slow
def test_30_kills(digits, folder):
    done = killed_until_done(30, 300, 0.2, folder)
    assert len(set(done)) > 10
    assert train("--epochs", 300, "--out", "whole") == 0
    for name in ("last.safetensors", "best.safetensors"):
        assert (folder / "run" / name).read_bytes() == (folder / "whole" / name).read_bytes()


def test_early_stop(digits, capsys):
    assert train("--epochs", 9, "--lr", 1e-12, "--early-stop", 2, "--out", "run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 + 3 + 1
    assert "after 3 epochs (stopped early), best" in lines[-1]
    assert "in epoch 1;" in lines[-1]
    assert train("--resume", "--out", "run", "--early-stop", 2) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert train("--resume", "--out", "run", "--early-stop", 3) == 0
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_a_loss_that_is_not_finite_ends_the_run(digits, capsys):
    assert train("--epochs", 1, "--out", "run", "--lr", 3e30) == 1
    err = capsys.readouterr().err
    assert err == ("fusednn train cnn: the loss is not finite in epoch 1; try a smaller --lr\n")
    assert io.load_checkpoint("run/last.safetensors")["progress"]["epoch"] == 0


# ---- what cannot be ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("train",), "the following arguments are required: NETWORK"),
        (("train", "xyz"), "invalid choice: 'xyz'"),
        (("train", "cnn"), "the following arguments are required: --data"),
        (("train", "cnn", "--data", "cifar"), "argument --data: invalid choice: 'cifar'"),
        ((*QUICK, "--epochs", "0"), "argument --epochs: 0 is below 1"),
        ((*QUICK, "--batch-size", "x"), "argument --batch-size: 'x' is not a whole number"),
        ((*QUICK, "--lr", "0"), "argument --lr: 0 is not a positive number"),
        ((*QUICK, "--lr", "nan"), "argument --lr: nan is not a positive number"),
        ((*QUICK, "--lr", "fast"), "argument --lr: 'fast' is not a number"),
        ((*QUICK, "--early-stop", "-1"), "argument --early-stop: -1 is below 1"),
        ((*QUICK, "--seed", "x"), "argument --seed: 'x' is not a whole number"),
        ((*QUICK, "--device", "tpu"), "argument --device: invalid choice: 'tpu'"),
        ((*QUICK, "--plot", "f.txt"), "argument --plot: f.txt must end in .png, .pdf or .svg"),
        ((*QUICK, "more"), "unrecognized arguments: more"),
    ],
)
def test_wrong_arguments_are_answered_in_one_line(arguments, text, folder, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(list(arguments))
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert text in err
    assert err.count("\n") == 1
    assert err.startswith("fusednn")
    assert os.listdir(folder) == []


def refused(capsys, *arguments):
    capsys.readouterr()
    assert train(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fusednn train cnn: ")
    assert err.count("\n") == 1
    return err


def test_arguments_that_cannot_be(digits, folder, capsys):
    assert "--resume: there is no run of digits in runs/" in refused(capsys, "--resume")
    assert "--resume: there is no run/last.safe" in refused(capsys, "--resume", "--out", "run")
    assert "--device cuda: " in refused(capsys, "--device", "cuda")
    assert os.listdir(folder) == []
    assert train("--epochs", 1, "--out", "run") == 0
    before = last(folder / "run")
    assert "run/last.safetensors is of an earlier run" in refused(capsys, "--out", "run")
    for name, value, has in (("--lr", 0.5, 0.003), ("--batch-size", 3, 64), ("--seed", 2, 0)):
        text = refused(capsys, "--out", "run", "--resume", name, value)
        assert f"{name} {value}: the run that is resumed has {has}" in text
    other = ["--out", "run", "--resume"]
    assert cli.main(["train", "cnn", "--data", "mnist5k", *other]) == 2
    assert "the run is one of digits, not of mnist5k" in capsys.readouterr().err
    (folder / "file").write_text("")
    assert "--out file/run: Not a directory" in refused(capsys, "--out", "file/run")
    assert last(folder / "run") == before


def test_damaged_checkpoints_are_answered_in_one_line(digits, folder, capsys):
    assert train("--epochs", 1, "--out", "run") == 0
    path = folder / "run" / "last.safetensors"
    good = path.read_bytes()
    resume = ("--out", "run", "--resume")
    path.write_bytes(good[:-5])
    assert "is not a readable safetensors file" in refused(capsys, *resume)
    fn.save({"a": np.ones(1)}, path)
    assert "is not a checkpoint" in refused(capsys, *resume)
    path.write_bytes(good)
    state = fn.load(path)

    def changed(part, name, value):
        metadata = {**state["metadata"], part: {**state["metadata"][part], name: value}}
        fn.save({**state, "metadata": metadata}, path)
        return refused(capsys, *resume)

    for name, value in (("epochs", "x"), ("batch_size", 0), ("lr", float("nan")), ("limit", -1)):
        assert "the checkpoint is not one of this command" in changed("config", name, value)
    for name, value in (
        ("epoch", 7), ("epoch", "x"), ("history", 3), ("history", [{}]), ("history", [3]),
        ("best_epoch", 2), ("best_epoch", -1), ("loss_sum", None), ("samples", float("inf")),
    ):  # fmt: skip
        assert "last.safetensors does not fit" in changed("progress", name, value)
    random = np.random.default_rng(0)
    for _ in range(25):
        bad = bytearray(good)
        for at in random.integers(0, len(bad), 3):
            bad[at] ^= 1 << random.integers(0, 8)
        path.write_bytes(bytes(bad))
        status = train(*resume)
        text = capsys.readouterr()
        assert (status, text.err.count("\n")) in ((0, 0), (2, 1))


def test_missing_data_is_named_with_its_command(folder, monkeypatch, capsys):
    monkeypatch.setenv("FUSEDNN_DATA", str(folder / "none"))
    monkeypatch.setattr("fusednn.data.sources._installed", lambda *_: None)
    assert "digits: not on this machine; pip install scikit-learn\n" in refused(capsys)
    assert os.listdir(folder) == []


def test_a_full_disk_is_answered_in_one_line(digits, monkeypatch, capsys):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert train("--epochs", 1, "--out", "run") == 1
    assert capsys.readouterr().err == "fusednn train cnn: [Errno 28] No space left on device\n"


# ---- the picture and the bar ---------------------------------------------------------------------


def test_learning_curves(digits, folder, capsys):
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install '.[plot]'")
    assert train("--epochs", 2, "--out", "run", "--plot", "run/curve.png") == 0
    content = (folder / "run" / "curve.png").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = (int.from_bytes(content[at : at + 4], "big") for at in (16, 20))
    assert (width, height) == (1350, 600)
    assert capsys.readouterr().out.splitlines()[-1] == "learning curves in run/curve.png"
    assert train("--resume", "--out", "run", "--plot", "curve.svg") == 0
    text = (folder / "curve.svg").read_text()
    assert "#0072b2" in text
    assert "#d55e00" in text
    assert "its folder does not exist" in refused(capsys, "--plot", "none/x.png")


def test_plotting_needs_matplotlib(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = refused(capsys, "--plot", "x.png")
    assert "--plot needs matplotlib: pip install 'fusednn[plot]'" in text


def test_a_terminal_sees_rate_and_time_left(digits):
    pytest.importorskip("tqdm", reason="needs tqdm: pip install '.[train]'")
    reader, writer = pty.openpty()
    termios.tcsetwinsize(writer, (30, 120))
    command = [sys.executable, "-m", "fusednn", *QUICK, "--epochs", "60", "--out", "run"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=writer)
    os.close(writer)
    text = b""
    while select.select([reader], [], [], 60)[0]:
        try:
            chunk = os.read(reader, 4096)
        except OSError:
            break
        if not chunk:
            break
        text += chunk
    os.close(reader)
    assert process.wait() == 0
    shown = text.decode()
    assert re.search(
        r"epoch \d+: .*\d+/240 \[\d\d:\d\d<\d\d:\d\d, .*(batch/s|s/batch), loss \d", shown
    )


# ---- as good as it should be ---------------------------------------------------------------------


def best(capsys):
    return float(re.search(r"best (\d\.\d+) in epoch", capsys.readouterr().out)[1])


@pytest.mark.training
@pytest.mark.parametrize(("name", "goal"), [("digits", 0.98), ("mnist5k", 0.95)])
def test_recipes_reach_their_goal(name, goal, capsys):
    try:
        {"digits": data.digits, "mnist5k": data.mnist5k}[name]()
    except data.MissingDataError as error:
        pytest.skip(str(error))
    for seed in range(3):
        assert cli.main(["train", "cnn", "--data", name, "--seed", str(seed)]) == 0
        accuracy = float(re.search(r"validation accuracy (\d\.\d+)", capsys.readouterr().out)[1])
        assert accuracy >= goal, seed


@pytest.mark.training
def test_fashion_mnist_reaches_its_goal(capsys):
    try:
        data.fashion_mnist()
    except data.MissingDataError as error:
        pytest.skip(str(error))
    assert cli.main(["train", "cnn", "--data", "fashion-mnist"]) == 0
    assert best(capsys) >= 0.87
