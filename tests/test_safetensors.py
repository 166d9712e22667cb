"""Files of `save`: which values go in and come back, and where they are written."""

import os
import threading

import numpy as np
import pytest

import fusednn as fn
from fusednn import nn

f32 = np.float32


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "x.safetensors")


def back(value, path):
    fn.save({"x": value}, path)
    return fn.load(path)["x"]


@pytest.mark.parametrize(
    "value",
    [
        np.ones(3, np.float16),
        np.array([True, False]),
        np.arange(3, dtype=np.uint8),
        np.array([2**64 - 1], np.uint64),
        np.arange(-2, 2, dtype=np.int16),
        np.array(2.5),
        np.zeros((0, 3)),
        np.zeros((3, 0, 2), f32),
        np.arange(12.0).reshape(3, 4)[::2, ::-1],
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(3, dtype=">f4"),
        np.arange(3, dtype=">i2"),
        np.broadcast_to(f32(2), (3, 4)),
        np.array([1 + 2j, 3j], np.complex64),
        np.array([0.0, -0.0, np.inf, np.nan, 1e-45], f32),
    ],
    ids=lambda value: f"{value.dtype}{value.shape}",
)
def test_arrays_of_any_layout_and_dtype_come_back(value, path):
    out = back(value, path)
    assert out.dtype == value.dtype.newbyteorder("=")
    assert out.shape == value.shape
    assert out.flags.writeable
    assert out.tobytes() == value.astype(out.dtype).tobytes()


def test_bfloat16_comes_back(path):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for value in (np.array([1.5, -2, np.inf], ml_dtypes.bfloat16), np.array(3, ml_dtypes.bfloat16)):
        out = back(value, path)
        assert out.dtype == value.dtype
        assert out.shape == value.shape
        assert out.tobytes() == value.tobytes()
    fn.save({"n": 1, "w": value}, path)
    assert fn.load(path)["w"].dtype == value.dtype


@pytest.mark.parametrize("dtype", [complex, object, "U1", "M8[D]", np.longdouble, [("a", "f4")]])
def test_other_dtypes_are_refused(dtype, path):
    with pytest.raises(TypeError, match=r"save: x has dtype .*, which safetensors cannot store"):
        back(np.zeros(2, dtype), path)
    assert not os.path.exists(path)


def test_the_formats_own_name(path):
    with pytest.raises(ValueError, match="the name '__metadata__' is the file format's own"):
        fn.save({"__metadata__": np.zeros(1)}, path)
    fn.save({"__metadata__": np.ones(2), "n": 1}, path)
    assert fn.load(path)["__metadata__"].tolist() == [1, 1]


def test_nesting_without_end_is_refused(path):
    fn.save({"a": np.zeros(1)}, path)
    endless = {}
    endless["again"] = endless
    deep = {}
    inner = deep
    for _ in range(101):
        inner["a"] = inner = {}
    for value in (endless, {"list": [endless]}, deep):
        with pytest.raises(ValueError, match="more than 100 levels of nesting, at "):
            fn.save(value, path)
    assert list(fn.load(path)) == ["a"]
    allowed = {"x": 1}
    for _ in range(99):
        allowed = {"a": allowed}
    fn.save(allowed, path)
    assert fn.load(path) == allowed


def test_links_are_followed_and_access_rights_stay(path, tmp_path):
    fn.save({"a": np.zeros(1)}, path)
    os.chmod(path, 0o640)
    link = tmp_path / "link"
    os.symlink(path, link)
    fn.save({"b": np.zeros(1)}, link)
    assert link.is_symlink()
    assert list(fn.load(path)) == ["b"]
    assert os.stat(path).st_mode & 0o777 == 0o640
    assert sorted(os.listdir(tmp_path)) == ["link", "x.safetensors"]


def test_saves_at_once_leave_one_of_them(path, tmp_path):
    fn.save({"w": np.zeros(1000)}, path)

    def write(number):
        for _ in range(20):
            fn.save({"w": np.full(1000, number)}, path)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert len(set(fn.load(path)["w"].tolist())) == 1
    assert os.listdir(tmp_path) == ["x.safetensors"]


def test_parameters_are_arrays(path):
    assert back(nn.Parameter(np.ones(2)), path).tolist() == [1, 1]
    assert back(fn.ones(2, requires_grad=True) * 2, path).tolist() == [2, 2]
