"""Whole runs: learning real digits, the same bits again, saving, loading and going on."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import nn, optim
from fusednn.optim import lr_scheduler

f32, f64 = np.float32, np.float64


def mlp():
    fn.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4))


def data(size=64):
    random = np.random.default_rng(0)
    x = random.standard_normal((size, 8)).astype(f32)
    return x, (x[:, :4] + x[:, 4:]).argmax(1)


class Run:
    """A small training run whose whole state fits a file."""

    def __init__(self):
        self.model = mlp()
        self.optimizer = optim.AdamW(self.model.parameters(), lr=0.01)
        self.schedule = lr_scheduler.SequentialLR(
            self.optimizer,
            [
                lr_scheduler.LinearWarmup(self.optimizer, 5),
                lr_scheduler.CosineAnnealingLR(self.optimizer, 30),
            ],
            [5],
        )
        self.steps = 0
        self.losses = []

    def go(self, steps):
        x, y = data()
        for _ in range(steps):
            rows = fn.random.next_generator().permutation(len(x))[:16]
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x[rows]), y[rows], label_smoothing=0.1)
            loss.backward()
            optim.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.schedule.step()
            self.losses.append(loss.item())
            self.steps += 1
        return self

    def save(self, path):
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "generator": fn.random.get_state(),
            "steps": self.steps,
        }
        fn.save(state, path)

    def load(self, path):
        state = fn.load(path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        fn.random.set_state(state["generator"])
        self.steps = state["steps"]
        return self

    def digest(self):
        return b"".join(value.tobytes() for value in self.model.state_dict().values())


# ---- learning ------------------------------------------------------------------------------------


def test_a_cnn_learns_digits():
    pytest.importorskip("sklearn", reason="scikit-learn brings the digits: pip install '.[demo]'")
    from fusednn.cli import demo

    x, y, test_x, test_y = demo.digits()
    assert x.shape == (1437, 1, 8, 8)
    assert (x.sum() + test_x.sum()) * 16 == 561718
    fn.manual_seed(0)
    model = demo.network()
    demo.train(model, x, y, 20)
    with fn.no_grad():
        right = model(test_x).argmax(1).numpy() == test_y
    assert right.mean() >= 0.98


def test_the_first_steps_match_torch():
    torch = pytest.importorskip("torch")

    def build(m):
        return m.Sequential(
            m.Conv2d(1, 4, 3, padding=1),
            m.ReLU(),
            m.MaxPool2d(2),
            m.Flatten(),
            m.Linear(64, 10),
        ).to(f64 if m is nn else torch.float64)

    ours, theirs = build(nn), build(torch.nn)
    ours.load_state_dict({k: v.numpy() for k, v in theirs.state_dict().items()})
    a = optim.AdamW(ours.parameters(), lr=1e-2)
    b = torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    random = np.random.default_rng(0)
    for _ in range(10):
        x, y = random.standard_normal((8, 1, 8, 8)), random.integers(0, 10, 8)
        a.zero_grad()
        b.zero_grad()
        mine = F.cross_entropy(ours(x), y)
        other = torch.nn.functional.cross_entropy(theirs(torch.tensor(x)), torch.tensor(y))
        mine.backward()
        other.backward()
        norm = optim.clip_grad_norm_(ours.parameters(), 1.0)
        assert norm == pytest.approx(
            torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0).item(), rel=1e-9
        )
        a.step()
        b.step()
        assert mine.item() == pytest.approx(other.item(), rel=1e-9)


def test_same_seed_same_bits_at_any_number_of_threads():
    digests = []
    for threads in (1, 2, 3, 1):
        fn.set_num_threads(threads)
        digests.append(Run().go(20).digest())
    assert len(set(digests)) == 1


def test_memory_does_not_grow_while_training():
    import tracemalloc

    run = Run().go(5)
    tracemalloc.start()
    try:
        run.go(20)
        before = tracemalloc.get_traced_memory()[0]
        run.go(100)
        assert tracemalloc.get_traced_memory()[0] - before < 20_000
    finally:
        tracemalloc.stop()


# ---- saving --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6.0).reshape(2, 3),
        np.arange(6, dtype=f32).reshape(2, 3).T,
        np.arange(6.0)[::-2],
        np.arange(6.0).astype(">f8"),
        np.broadcast_to(f32(3), (2, 2)),
        np.array(5.0),
        np.zeros((0, 3), f32),
        np.arange(3),
        np.arange(3, dtype=np.uint8),
        np.array([True, False]),
    ],
    ids=["plain", "transposed", "reversed", "big", "stride0", "0-d", "empty", "i8", "u1", "bool"],
)
def test_any_layout_is_saved(array, tmp_path):
    path = tmp_path / "a.safetensors"
    before = array.copy()
    fn.save({"x": array, "t": fn.tensor(array)}, path)
    out = fn.load(path)
    assert sorted(out) == ["t", "x"]
    for value in out.values():
        np.testing.assert_array_equal(value, before)
        assert value.dtype == array.dtype.newbyteorder("=")
        assert value.shape == array.shape
        assert value.flags.writeable
    np.testing.assert_array_equal(array, before)


def test_flat_files_are_plain_safetensors(tmp_path):
    numpy_io = pytest.importorskip("safetensors.numpy")
    path = str(tmp_path / "m.safetensors")
    state = nn.Linear(2, 3).state_dict()
    fn.save(state, path)
    for name, value in numpy_io.load_file(path).items():
        np.testing.assert_array_equal(value, state[name])
    numpy_io.save_file({"w": np.ones(3)}, path)
    assert fn.load(path)["w"].tolist() == [1, 1, 1]


def test_nested_values_come_back(tmp_path):
    value = {
        "a": {"b": np.arange(3), "a.b": np.arange(2), "": np.arange(1)},
        "a.b": np.arange(4),
        "list": [1, 2.5, None, True, "x", {"y": (np.ones(1), -1)}],
        "numbers": {"inf": float("inf"), "np": np.float32(0.5), "int": np.int64(7)},
        "array": {"array": "not one"},
        "empty": {},
    }
    fn.save(value, tmp_path / "n")
    out = fn.load(tmp_path / "n")
    assert out["a"]["b"].tolist() == [0, 1, 2]
    assert out["a"]["a.b"].tolist() == [0, 1]
    assert out["a"][""].tolist() == [0]
    assert out["a.b"].tolist() == [0, 1, 2, 3]
    assert out["list"][:5] == [1, 2.5, None, True, "x"]
    assert out["list"][5]["y"][0].tolist() == [1]
    assert isinstance(out["list"][5]["y"], tuple)
    assert out["numbers"] == {"inf": float("inf"), "np": 0.5, "int": 7}
    assert out["array"] == {"array": "not one"}
    assert out["empty"] == {}


def test_what_cannot_be_saved_is_named(tmp_path):
    path = tmp_path / "x"
    for value, text in (
        ([1], "save: expected a mapping, got list"),
        ({"a": {"b": object()}}, r"save: a\.b is a object, which cannot be stored"),
        ({"a": {1: 2}}, "save: a has the key 1, not a string"),
        ({1: np.zeros(1)}, "save: names must be strings, got 1"),
        ({"a": np.zeros(1, complex)}, "save: a has dtype complex128"),
        ({"a": np.array(["x"])}, "save: a has dtype <U1"),
    ):
        with pytest.raises(TypeError, match=text):
            fn.save(value, path)
    assert os.listdir(tmp_path) == []


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "x"
    fn.save({"a": np.ones(2)}, path)

    def full_disk(handle):
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="no space"):
        fn.save({"a": np.zeros(2)}, path)
    monkeypatch.undo()
    assert fn.load(path)["a"].tolist() == [1, 1]
    assert os.listdir(tmp_path) == ["x"]


def test_leftovers_of_killed_saves_are_cleaned_up(tmp_path):
    for name, age in ((".x.1.aa.fusednn-tmp", 3600), (".x.2.bb.fusednn-tmp", 0), (".y", 3600)):
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (time.time() - age,) * 2)
    fn.save({"a": np.ones(2)}, tmp_path / "x")
    assert sorted(os.listdir(tmp_path)) == [".x.2.bb.fusednn-tmp", ".y", "x"]


def test_damaged_files_raise(tmp_path):
    path = tmp_path / "x"
    with pytest.raises(FileNotFoundError):
        fn.load(path)
    fn.save({"a": np.arange(100.0), "n": {"b": 1}}, path)
    good = path.read_bytes()
    random = np.random.default_rng(0)
    for trial in range(200):
        bad = bytearray(good)
        if trial % 2:
            bad = bad[: random.integers(0, len(bad))]
        else:
            for at in random.integers(0, min(len(bad), 400), 3):
                bad[at] = random.integers(0, 256)
        path.write_bytes(bytes(bad))
        try:
            fn.load(path)
        except ValueError as error:
            assert str(error).startswith("load: ")
    for text in ("[]", "3", '{"dict": 3}', '{"array": "zz"}', '{"x": 1}', '{"dict": {"a": []}}',
                 '{"list": []}', "{", '{"dict": {"a": ' * 3000):  # fmt: skip
        from safetensors.numpy import save_file

        save_file({"a": np.zeros(1)}, str(path), {"fusednn": text})
        with pytest.raises(ValueError, match="load: the structure stored in"):
            fn.load(path)


def test_a_resumed_run_ends_in_the_same_bits(tmp_path):
    whole = Run().go(30)
    first = Run().go(12)
    first.save(tmp_path / "run")
    fn.manual_seed(99)
    resumed = Run().load(tmp_path / "run").go(18)
    assert resumed.digest() == whole.digest()
    assert resumed.losses == whole.losses[12:]


KILLED = """
import sys
sys.path.insert(0, sys.argv[2])
from test_training import Run
run = Run()
run.save(sys.argv[1])
print("ready", flush=True)
while True:
    run.go(1).save(sys.argv[1])
"""


def test_a_killed_run_leaves_a_file_that_loads(tmp_path):
    path = tmp_path / "run"
    here = os.path.dirname(os.path.abspath(__file__))
    random = np.random.default_rng(0)
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(path), here], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(float(random.uniform(0.02, 0.2)))
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        resumed = Run().load(path)
        assert resumed.steps >= 0
        total = resumed.steps + 3
        assert resumed.go(3).digest() == Run().go(total).digest()
