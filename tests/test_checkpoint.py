"""Checkpoints: everything comes back, damage is refused, and a killed run ends in the same bits."""

import json
import os
import re
import signal
import struct
import subprocess
import sys
import time

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import io, nn, optim
from fusednn.data import ArrayDataset, DataLoader
from fusednn.optim import lr_scheduler

f32 = np.float32
SAMPLES, EPOCHS = 40, 6


class Run:
    """A small run with everything that has a state: shuffles, dropout, moments, a schedule."""

    def __init__(self, prefetch=0):
        fn.manual_seed(0)
        random = np.random.default_rng(0)
        x = random.standard_normal((SAMPLES, 6)).astype(f32)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 3))
        self.optimizer = optim.AdamW(self.model.parameters(), lr=0.02)
        self.scheduler = lr_scheduler.SequentialLR(
            self.optimizer,
            [
                lr_scheduler.LinearWarmup(self.optimizer, 5),
                lr_scheduler.CosineAnnealingLR(self.optimizer, 40),
            ],
            [5],
        )
        self.loader = DataLoader(
            ArrayDataset(x, x[:, :3].argmax(1)), 6, shuffle=True, seed=5, prefetch=prefetch
        )
        self.losses = []

    def parts(self):
        return {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "loader": self.loader,
        }

    def go(self, epochs=EPOCHS, after_step=None):
        while self.loader.epoch < epochs:
            for x, y in self.loader:
                self.optimizer.zero_grad()
                loss = F.cross_entropy(self.model(x), y)
                loss.backward()
                self.optimizer.step()
                self.scheduler.step()
                self.losses.append(loss.item())
                if after_step is not None and after_step(self):
                    return self
        return self

    def save(self, path):
        io.save_checkpoint(path, **self.parts(), metadata={"losses": self.losses})

    def load(self, path):
        self.losses = io.load_checkpoint(path, **self.parts())["losses"]
        return self

    def digest(self):
        """All of the state, to the bit."""
        moments = [
            value if isinstance(value, int) else value.tobytes()
            for entry in self.optimizer.state_dict()["state"].values()
            for value in entry.values()
        ]
        return (
            [value.tobytes() for value in self.model.state_dict().values()],
            moments,
            repr(self.optimizer),
            repr(self.scheduler.state_dict()),
            self.loader.state_dict(),
            fn.random.get_state(),
            list(self.losses),
        )


@pytest.fixture(scope="module")
def whole():
    return Run().go().digest()


# ---- there and back ------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0, 1, 6, 7, 13, 41, 42])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_resumed_run_ends_in_the_same_bits(step, prefetch, whole, tmp_path):
    path = tmp_path / "run"
    first = Run(prefetch)
    if step:
        first.go(after_step=lambda run: len(run.losses) == step)
    first.save(path)
    fn.manual_seed(99)
    assert Run(prefetch).load(path).go().digest() == whole
    assert os.listdir(tmp_path) == ["run"]


def test_a_checkpoint_is_one_safetensors_file_with_json(tmp_path):
    numpy_io = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "run.safetensors"
    run = Run().go(1)
    run.save(path)
    arrays = numpy_io.load_file(path)
    np.testing.assert_array_equal(arrays["model.0.weight"], run.model.state_dict()["0.weight"])
    assert "optimizer.state.3.bias.exp_avg" in arrays
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + size])
    assert json.loads(header["__metadata__"]["fusednn"])["dict"]["version"] == 1


def test_the_same_state_gives_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        Run().go(2).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    Run().load(tmp_path / "a").save(tmp_path / "c")
    assert (tmp_path / "c").read_bytes() == (tmp_path / "a").read_bytes()


def test_parts_may_be_left_out(tmp_path):
    path = tmp_path / "run"
    run = Run().go(1)
    run.save(path)
    fn.manual_seed(3)
    before = fn.random.get_state()
    other = Run()
    fn.random.set_state(before)
    io.load_checkpoint(path, model=other.model, random=False)
    assert fn.random.get_state() == before
    assert other.digest()[0] == run.digest()[0]
    assert other.digest()[1] == []
    metadata = {"epoch": 1, "best": None, "history": [{"loss": 0.5}], "curve": np.arange(3)}
    io.save_checkpoint(path, metadata=metadata)
    out = io.load_checkpoint(path)
    assert out.pop("curve").tolist() == [0, 1, 2]
    assert out == {"epoch": 1, "best": None, "history": [{"loss": 0.5}]}
    io.save_checkpoint(path)
    assert io.load_checkpoint(path) == {}
    for name, part in run.parts().items():
        with pytest.raises(ValueError, match=f"load_checkpoint: .*run has no {name}"):
            io.load_checkpoint(path, **{name: part})


def test_what_has_no_state_is_refused(tmp_path):
    with pytest.raises(
        TypeError, match=r"save_checkpoint: model is a int, which has no state_dict"
    ):
        io.save_checkpoint(tmp_path / "x", model=3)
    with pytest.raises(TypeError, match=r"loader is a list, which has no load_state_dict\(\)"):
        io.load_checkpoint(tmp_path / "x", loader=[1])
    with pytest.raises(TypeError, match=r"save: metadata\.f is a builtin_function_or_method"):
        io.save_checkpoint(tmp_path / "x", metadata={"f": print})
    assert os.listdir(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        io.load_checkpoint(tmp_path / "x")


# ---- states that do not fit ----------------------------------------------------------------------


def test_another_network_is_refused_and_nothing_changes(tmp_path):
    path = tmp_path / "run"
    Run().go(1).save(path)
    other = Run()
    other.model = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Dropout(0.2), nn.Linear(9, 3))
    other.optimizer = optim.AdamW(other.model.parameters(), lr=0.02)
    other.scheduler = lr_scheduler.StepLR(other.optimizer, 5)
    before = other.digest()
    with pytest.raises(ValueError, match="StepLR: the state has"):
        io.load_checkpoint(path, **other.parts())
    assert other.digest() == before
    parts = other.parts()
    del parts["scheduler"]
    with pytest.raises(ValueError, match=r"exp_avg of 0\.weight has shape \(8, 6\)"):
        io.load_checkpoint(path, **parts)
    assert other.digest() == before
    del parts["optimizer"]
    with pytest.raises(ValueError, match=r"0\.weight has shape \(8, 6\), expected \(9, 6\)"):
        io.load_checkpoint(path, **parts)
    assert other.digest() == before


def test_a_plain_file_is_no_checkpoint(tmp_path):
    path = tmp_path / "x"
    fn.save({"w": np.ones(2)}, path)
    with pytest.raises(ValueError, match="x is not a checkpoint of version 1"):
        io.load_checkpoint(path)
    fn.save({"format": "fusednn checkpoint", "version": 2, "metadata": {}}, path)
    with pytest.raises(ValueError, match="x is not a checkpoint of version 1"):
        io.load_checkpoint(path)


def _set(*keys):
    *front, last, value = keys

    def change(state):
        for key in front:
            state = state[key]
        state[last] = value

    return change


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (_set("metadata", [1]), "has no metadata"),
        (_set("model", 3), "is damaged: model is a int"),
        (_set("model", "0.weight", 3), "0.weight is a int, expected an array"),
        (_set("model", "0.weight", np.ones((8, 6), int)), "0.weight has dtype int64, expected"),
        (_set("model", "0.bias", np.ones(9)), r"0.bias has shape \(9,\), expected \(8,\)"),
        (_set("model", "more", np.ones(9)), "unexpected: more"),
        (_set("optimizer", {}), "load_state_dict expects what state_dict"),
        (_set("optimizer", "state", 3), "load_state_dict expects what state_dict"),
        (_set("optimizer", "state", "0.bias", "step", -1), "step of 0.bias is -1"),
        (_set("optimizer", "state", "0.bias", "step", 2**60), "expected a count"),
        (_set("optimizer", "state", "0.bias", "step", 1.5), "step of 0.bias is 1.5"),
        (_set("optimizer", "state", "0.bias", "exp_avg", np.ones(8, int)), "not an array of float"),
        (_set("optimizer", "state", "0.bias", "exp_avg", "x"), "not an array of floats"),
        (_set("optimizer", "state", "0.bias", "other", np.ones(8)), "'other', which is not mine"),
        (_set("optimizer", "param_groups", 0, "lr", "x"), "the option lr of the state is 'x'"),
        (_set("optimizer", "param_groups", 0, "lr", float("nan")), "option lr of the state is nan"),
        (_set("optimizer", "param_groups", 0, "lr", 10**400), "the option lr of the state is 1000"),
        (
            _set("optimizer", "param_groups", 0, "lr", -1.0),
            "lr=-1.0, expected a finite",
        ),
        (_set("optimizer", "param_groups", 0, "lr", [0.1]), "the option lr of the state is"),
        (_set("optimizer", "param_groups", 0, "betas", 0.9), "the option betas of the state is"),
        (_set("optimizer", "param_groups", 0, "betas", [0.9]), "the option betas of the state"),
        (_set("optimizer", "param_groups", 0, "betas", [0.9, 2]), "expected two numbers in"),
        (_set("optimizer", "param_groups", 0, "amsgrad", 1), "the option amsgrad of the state"),
        (_set("optimizer", "param_groups", 0, "initial_lr", None), "the option initial_lr of the"),
        (_set("optimizer", "param_groups", 0, "more", 1), "the options more do not fit"),
        (_set("optimizer", "param_groups", 0, "params", [1]), "unexpected: 1"),
        (_set("optimizer", "param_groups", []), "the state has 0 groups, expected 1"),
        (_set("scheduler", "last_epoch", "x"), "last_epoch of the state is 'x', expected a count"),
        (_set("scheduler", "last_epoch", 2**63), "expected a count"),
        (_set("scheduler", "base_lrs", [float("inf")]), "base_lrs of the state is"),
        (_set("scheduler", "base_lrs", [0.1, 0.1]), "base_lrs of the state is"),
        (_set("scheduler", "_last_lr", [10**400]), "_last_lr of the state is"),
        (_set("scheduler", "milestones", [6]), r"milestones of the state is \[6\], here it is \[5"),
        (_set("scheduler", "milestones", [np.ones(2)]), "milestones of the state"),
        (_set("scheduler", "schedulers", []), "the state is of other schedulers"),
        (_set("scheduler", "schedulers", 1, "T_max", 0), "T_max of the state is 0, here it is 40"),
        (_set("scheduler", "schedulers", 1, 3), "CosineAnnealingLR: the state has"),
        (_set("loader", "batch", 10**9), "the state is at batch"),
        (_set("random", "seed", -1), "set_state: seed -1"),
        (_set("random", "draws", float("inf")), "expected the result of get_state"),
        (_set("random", "seed", "x"), "expected the result of get_state"),
    ],
)
def test_impossible_states_are_refused_and_nothing_changes(change, text, tmp_path):
    path = tmp_path / "run"
    Run().go(1).save(path)
    state = fn.load(path)
    try:
        change(state)
    except TypeError:
        pytest.fail("the change does not fit the structure")
    fn.save(state, path)
    run = Run().go(2)
    before = run.digest()
    try:
        io.load_checkpoint(path, **run.parts())
    except ValueError as error:
        assert re.search(text, str(error)), error
    else:
        pytest.fail("loaded")
    assert run.digest() == before
    run.go(3)  # and it is fit to go on


# ---- damaged and hostile files -------------------------------------------------------------------

HOSTILE = [b"0", b"-1", b"1e400", b"NaN", b'"x"', b"null", b"[]", b"{}", b"true", b"9" * 400,
           b"18446744073709551615", b"[1]", b"1.5", b'"F16"', b'"BF16"', b'"F8_E4M3"', b'"I64"',
           b'"BOOL"', b'"C64"']  # fmt: skip


def damaged(good, random):
    """A checkpoint with something wrong in it, most likely."""
    (size,) = struct.unpack("<Q", good[:8])
    bad = bytearray(good)
    kind = random.integers(0, 6)
    if kind == 0:
        return bad[: random.integers(0, len(bad))]
    if kind == 1:
        for at in random.integers(0, len(bad), random.integers(1, 9)):
            bad[at] ^= 1 << random.integers(0, 8)
        return bad
    if kind == 2:
        for at in random.integers(8, 8 + size, random.integers(1, 4)):
            bad[at] = random.integers(32, 127)
        return bad
    if kind == 3:  # a number or a word of the header becomes another one
        header = good[8 : 8 + size]
        pattern = rb'-?\d+(?:\.\d+)?(?:e-?\d+)?|"F32"|\\"[a-z_A-Z.0-9]+\\"'
        places = [match.span() for match in re.finditer(pattern, header)]
        start, end = places[random.integers(0, len(places))]
        token = HOSTILE[random.integers(0, len(HOSTILE))]
        header = header[:start] + token + header[end:]
        return struct.pack("<Q", len(header)) + header + good[8 + size :]
    if kind == 4:  # a huge header is declared
        bad[:8] = struct.pack("<Q", int(random.integers(0, 2**63)) >> int(random.integers(0, 63)))
        return bad
    start, end = sorted(random.integers(8, len(bad), 2))
    return bad[:start] + bad[end:]


def fuzz(seed, trials, tmp_path):
    path = tmp_path / "run"
    Run().go(1).save(path)
    good = path.read_bytes()
    random = np.random.default_rng(seed)
    run = Run().go(2)
    before, refused = run.digest(), 0
    for trial in range(trials):
        content = bytes(damaged(good, random))
        path.write_bytes(content)
        try:
            io.load_checkpoint(path, **run.parts())
        except ValueError as error:
            refused += 1
            assert len(str(error)) > 10
            if trial % 10 == 0 or trial == trials - 1:
                assert run.digest() == before, content
        else:
            run.digest()
            run = Run().go(2)  # what was loaded may be any numbers, but fits
    assert refused > 0.9 * trials


def test_damaged_checkpoints_raise_and_change_nothing(tmp_path):
    fuzz(0, 1500, tmp_path)


@pytest.mark.slow
def test_many_damaged_checkpoints(tmp_path):
    fuzz(1, 60_000, tmp_path)


def test_sizes_that_are_not_there_are_refused_at_once(tmp_path):
    """Nothing is allocated for what a file merely declares."""
    path = tmp_path / "x"
    for shape, offsets in (([2**40], [0, 2**42]), ([2**62, 4], [0, 2**66]), ([2**30], [0, 4])):
        header = json.dumps({"w": {"dtype": "F32", "shape": shape, "data_offsets": offsets}})
        path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + b"\0" * 16)
        start = time.perf_counter()
        with pytest.raises(ValueError, match="is not a readable safetensors file"):
            io.load_checkpoint(path)
        assert time.perf_counter() - start < 5


# ---- killed runs ---------------------------------------------------------------------------------

KILLED = """
import sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from test_checkpoint import Run
path, run = Path(sys.argv[1]), Run(prefetch=1)
if path.exists():
    run.load(path)
else:
    run.save(path)
print("ready", flush=True)
run.go(int(sys.argv[3]), after_step=lambda run: run.save(path))
print("done", flush=True)
"""


def kill_until_done(kills, epochs, tmp_path):
    """Starts the run again and again, killed at a random moment each time but the last."""
    path, here = tmp_path / "run", os.path.dirname(os.path.abspath(__file__))
    random = np.random.default_rng(0)
    steps = []
    for start in range(kills + 1):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(path), here, str(epochs)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if start == kills:
            assert process.stdout.readline() == "done\n"
        else:
            time.sleep(float(random.uniform(0, 0.02)))
            process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        steps.append(len(Run().load(path).losses))  # whatever happened, the file loads
    assert steps == sorted(steps)
    assert Run().load(path).go(epochs).digest() == Run().go(epochs).digest()
    return steps


def test_a_killed_run_ends_in_the_same_bits(tmp_path):
    kill_until_done(4, EPOCHS, tmp_path)


@pytest.mark.slow
def test_30_kills(tmp_path):
    steps = kill_until_done(30, 60, tmp_path)
    assert len(set(steps)) > 8  # it was killed at different moments
