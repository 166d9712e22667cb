"""Hostile and damaged files of torch.save: nothing is run, and all that is wrong raises."""

import io as streams
import os
import pickle
import struct
import sys
import time
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest
from torch_files import (
    MAGIC,
    Call,
    Name,
    Object,
    Stored,
    damaged,
    encoded,
    old_file,
    pickled,
    refused,
    storage,
    tensor,
    written_and_read,
    zip_file,
)

from fusednn import io, nn

f32 = np.float32


@pytest.fixture(params=[zip_file, old_file])
def write(request, tmp_path):
    return written_and_read(request.param, tmp_path)


# ---- hostile files -------------------------------------------------------------------------------


class Runs:
    """Pickles to a call of a function."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


class Tripwire:
    touched = False

    def __setstate__(self, state):
        Tripwire.touched = True


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("form", ["plain", "zip", "old"])
def test_nothing_is_run(protocol, form, tmp_path, monkeypatch):
    mark = tmp_path / "run"
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    (tmp_path / "evil_module.py").write_text(f"open({str(mark)!r}, 'w')")
    evil = [
        (Runs(os.system, f"touch {mark}"), "posix.system"),
        (Runs(eval, f"open({str(mark)!r}, 'w')"), "builtins.eval"),
        (Runs(exec, f"open({str(mark)!r}, 'w')"), "builtins.exec"),
        (Runs(getattr, "x", "y"), "builtins.getattr"),
        (Runs(__import__, "evil_module"), "builtins.__import__"),
        (Tripwire(), r"test_torch_file_refused.Tripwire|copyreg._reconstructor"),
        (nn.Linear(2, 2).weight.numpy(), r"numpy\._core\.(multiarray|numeric)\._?\w+"),
    ]
    for value, name in evil:
        content = pickle.dumps({"w": [value]}, protocol)
        path = tmp_path / "x.pt"
        if form == "zip":
            zip_file(path, content)
        elif form == "old":
            old_file(path, content)
        else:
            path.write_bytes(content)
        name = name if protocol > 2 else name.replace("builtins", "__builtin__")
        with pytest.raises(
            ValueError, match=f"asks for ({name}), which is not loaded: only tensors"
        ):
            io.load_torch(path)
    by_name = b"\x80\x02cevil_module\nx\n."  # naming it would import it
    (tmp_path / "x.pt").write_bytes(by_name)
    with pytest.raises(ValueError, match=r"asks for evil_module\.x"):
        io.load_torch(tmp_path / "x.pt")
    assert not mark.exists() and not Tripwire.touched and "evil_module" not in sys.modules


W = tensor(storage("FloatStorage", "0", 4), 0, (4,), (1,))
GOOD = {"0": np.ones(4, f32)}
ORDERED = Name("collections", "OrderedDict")


def stored_as(*identity):
    return [tensor(Stored(identity), 0, (1,), (1,))]


FLOAT = Name("torch", "FloatStorage")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (tensor(storage("FloatStorage", "0", 4), 1, (4,), (1,)), "exceeds its storage"),
        (tensor(storage("FloatStorage", "0", 4), 0, (2, 2), (3, 1)), "exceeds its storage"),
        (tensor(storage("FloatStorage", "0", 4), 0, (2**62, 2), (2, 1)), "exceeds its storage"),
        (tensor(storage("FloatStorage", "0", 4), -1, (4,), (1,)), "the offset of a tensor"),
        (tensor(storage("FloatStorage", "0", 4), 2**63, (0,), (1,)), "the offset of a tensor"),
        (tensor(storage("FloatStorage", "0", 4), 3, (2,), (-1,)), "a stride of a tensor is no"),
        (tensor(storage("FloatStorage", "0", 4), 0, (-1,), (1,)), "the shape of a tensor is no"),
        (tensor(storage("FloatStorage", "0", 4), 0, (True,), (1,)), "the shape of a tensor"),
        (tensor(storage("FloatStorage", "0", 4), 0, (1.0,), (1,)), "the shape of a tensor"),
        (tensor(storage("FloatStorage", "0", 4), 0, (2, 2), (1,)), "do not fit its shape"),
        (tensor(storage("FloatStorage", "0", 4), 0, (1,) * 65, (1,) * 65), "do not fit its shape"),
        (tensor(storage("FloatStorage", "0", 4), 0, 4, (1,)), "without a storage or a shape"),
        (tensor("0", 0, (4,), (1,)), "without a"),
        (tensor(FLOAT, 0, (4,), (1,)), "without a"),
        (tensor(storage("FloatStorage", "0", 4), 0, (2**40,) * 2, (0, 0)), "has the shape"),
        (tensor(storage("FloatStorage", "0", 4), 0, (2**62, 0, 2**62), (0,) * 3), "has the shape"),
        (tensor(storage("FloatStorage", "0", 5), 0, (4,), (1,)), "the storage 0 has"),
        (tensor(storage("DoubleStorage", "0", 2), 0, (3,), (1,)), "exceeds its storage"),
        (tensor(storage("FloatStorage", "0", -4), 0, (4,), (1,)), "the storage of a tensor"),
        (tensor(storage("FloatStorage", "0", 2**62), 0, (4,), (1,)), "the storage 0 has"),
        (tensor(storage("FloatStorage", "9", 4), 0, (4,), (1,)), "storage 9|data/9|the storage 0"),
        (tensor(storage("FloatStorage", "../0", 4), 0, (4,), (1,)), r"\.\./0|the storage 0"),
        (tensor(storage("QInt8Storage", "0", 4), 0, (4,), (1,)), "asks for torch.QInt8Storage"),
        (stored_as("storage", FLOAT, "0", "cpu"), "a whole model"),
        (stored_as("module", FLOAT, "net.py", "print()"), "a whole model"),
        (stored_as("storage", FLOAT, 0, "cpu", 4), "without a type or a name"),
        (stored_as("storage", "FloatStorage", "0", "cpu", 4), "without a type or a name"),
        (stored_as("storage", Name("torch", "float32"), "0", "cpu", 4), "no type of a storage"),
        (stored_as("storage", ORDERED, "0", "cpu", 4), "is no type of a storage"),
        ([W, storage("DoubleStorage", "0", 4)], "the storage 0 has two sizes"),
        ([W, storage("FloatStorage", "0", 4)], "a storage without a tensor, which is no plain"),
        ([W, Name("torch", "float32")], "holds torch.float32, which is no plain value"),
        ([W, Name("collections", "OrderedDict")], "holds collections.OrderedDict"),
        (Call(Name("torch._utils", "_rebuild_tensor_v2"), 1), "with other arguments than torch"),
        (Call(FLOAT, 1), "calls torch.FloatStorage, which is not loaded"),
        (Call("x", 1), "calls what is no function"),
        (Call(ORDERED, 3), "with other arguments than torch"),
        (Call(ORDERED, [[[], 1]]), "a dictionary of what are no pairs"),
        (Call(Name("torch", "Size"), 3), "with other arguments than torch"),
        (tensor(storage("UntypedStorage", "0", 4), 0, (1,), (1,)), "asks for torch.UntypedStorage"),
        (tensor(storage("UntypedStorage", "0", 16, module="torch.storage"), 0, (1,), (1,)),
         "a tensor without a dtype"),
        (tensor(storage("FloatStorage", "0", 4), 0, (1,), (1,), Name("torch", "uint16"),
                version="_v3"), "a storage with a dtype and another one"),
        (tensor(storage("UntypedStorage", "0", 16, module="torch.storage"), 0, (9,), (1,),
                Name("torch", "uint16"), version="_v3"), "exceeds its storage"),
        (Call(Name("_codecs", "encode"), "x", "rot13"), "bytes are no text of latin1"),
        (Call(Name("_codecs", "encode"), "\u0123", "latin1"), "bytes are no text of latin1"),
        (Object(w=W), "asks for __torch__.mine.Net"),
        (Name("a\nb" * 300, "c"), "asks for|damaged"),
        (Name("torch" * 300, "c"), "damaged"),
        (Name("os", "sys\x1b[2Jtem"), r"asks for 'os\.sys\\x1b\[2Jtem'"),
    ],
)  # fmt: skip
def test_impossible_values_are_refused(value, text, write):
    refused(write, text, value, GOOD)


def nested(depth, head=b"](", tail=b"e"):
    return b"\x80\x02" + head * depth + b"N" + tail * depth + b"."


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (nested(200), "nests its values more than 100 levels deep"),
        (nested(20_000), "nests its values more than 100 levels deep"),
        (nested(20_000, b"(", b"t"), "nests its values more than 100 levels deep"),
        (b"\x80\x02]q\x00h\x00a.", "or in a circle"),
        (b"\x80\x02}q\x00(K\x01h\x00u.", "or in a circle"),
        (b"\x80\x02.", "damaged"),
        (b"\x80\x02", "ends too early"),
        (b"\x80\x02N", "ends too early"),
        (b"\x80\x02h\x07.", "damaged"),
        (b"\x80\x02Ra.", "damaged"),
        (b"\x80\x02K\x01a.", "damaged"),
        (b"\x80\x02NK\x01a.", "items for what is no container"),
        (b"\x80\x02)(K\x01e.", "items for what is no container"),
        (b"\x80\x02}(K\x01u.", "a key without a value"),
        (b"\x80\x02}](K\x01eK\x01s.", "a list as a key"),
        (b"\x80\x02}(K\x01tK\x01s.", "a tuple as a key"),
        (b"\x80\x02u.", "damaged"),
        (b"\x80\x02K\x01\x87.", "the stack is empty"),
        (b"\x80\x02NNb.", "the state of what has none"),
        (b"\x80\x02N)\x81.", "makes an object of what is no class"),
        (b"\x80\x02ctorch\nFloatStorage\n)\x81.", "makes a torch.FloatStorage, which is not"),
        (b"\x80\x04NN\x93.", "a global without a name"),
        (b"\x80\x02X\xff\xff\xff\xffabc.", "ends too early"),
        (b"\x80\x04\x8d" + b"\xff" * 8 + b"abc.", "ends too early"),
        (b"\x80\x04\x8e" + b"\xff" * 7 + b"\x7fabc.", "ends too early"),
        (b"\x80\x02T\xff\xff\xff\xffabc.", "ends too early"),
        (b"\x80\x02\x8b\xff\xff\xff\x7fabc.", "an integer of 2147483647 bytes"),
        (b"\x80\x02X\x01\x00\x00\x00\xff.", "damaged"),
        (b"\x80\x02ccollections", "a name does not end"),
        (b"\x80\x02i", r"the opcode b'i', which is not read"),
        (b"\x80\x02\x82\x01.", r"the opcode b'\\x82', which is not read"),
        (b"\x80\x07N.", "protocol 7, expected 2 to 5"),
        (b"\x80\x01N.", "protocol 1, expected 2 to 5"),
        # A place in the memo of 2**32 - 1, for which a table of that length would be made.
        (b"\x80\x02Nr\xff\xff\xff\xff.", None),
    ],
)  # fmt: skip
def test_bad_pickles_are_refused(content, text, write):
    if text is None:
        assert write(content) is None
    else:
        refused(write, text, content)


def test_what_is_shared_many_times_is_read_once(write):
    """40 lists, each of the one before, twice: 2**40 values if they were copied."""
    content = (
        b"\x80\x02]q\x00" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(40)) + b"."
    )
    out = write(content)
    for _ in range(40):
        assert len(out) == 2 and out[0] is out[1]
        out = out[0]
    assert out == []


def test_what_is_shared_many_times_is_not_printed(tmp_path):
    """As text it would be terabytes."""
    many = b"]q\x000" + b"".join(b"](h%ch%ceq%c0" % (i, i, i + 1) for i in range(40)) + b"h\x28"
    path = tmp_path / "x"
    path.write_bytes(pickled(MAGIC) + b"\x80\x02" + many + b".")
    with pytest.raises(ValueError, match="has version a list, expected 1001"):
        io.load_torch(path)
    named = encoded(Name("torch._utils", "_rebuild_tensor_v2"))
    arguments = encoded(storage("FloatStorage", "0", 1)) + encoded(0) + b")" + b")" + b"NN" + many
    zip_file(path, b"\x80\x02" + named + b"(" + arguments + b"tR.")
    with pytest.raises(ValueError, match="metadata other than conj and neg"):
        io.load_torch(path)
    zip_file(path, b"\x80\x02(" + many + b"tQ.")
    with pytest.raises(ValueError, match="a whole model"):
        io.load_torch(path)


def test_many_names_in_a_script_archive(tmp_path):
    content = (
        b"\x80\x02]q\x00" + b"".join(b"](h%ch%ceq%c" % (i, i, i + 1) for i in range(40)) + b"."
    )
    path = zip_file(tmp_path / "x", content, constants_pkl=pickled(()))
    with pytest.raises(ValueError, match="has more than 100000 values"):
        io.load_torch(path)


def test_other_files(tmp_path):
    path = tmp_path / "x"
    for content in (b"", b"P", b"PK\x03\x04", b"\x80", b"hello", bytes(1000), b"\x89HDF\r\n"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match=r"load_torch: .*x (is|has a)"):
            io.load_torch(path)
    path.write_bytes(pickle.dumps({"w": 1}))
    with pytest.raises(ValueError, match="is a pickle, but not one of"):
        io.load_torch(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("weights.npy", b"")
    with pytest.raises(ValueError, match="is a zip file, but not"):
        io.load_torch(path)
    with pytest.raises(ValueError, match="has version 1002, expected 1001"):
        io.load_torch(old_file(path, {}, version=1002))
    with pytest.raises(FileNotFoundError):
        io.load_torch(tmp_path / "y")
    with pytest.raises(IsADirectoryError):
        io.load_torch(tmp_path)


def test_archives_that_would_grow_are_refused(tmp_path):
    path = tmp_path / "x"
    size = 10_000_000
    value = [tensor(storage("ByteStorage", "0", size), 0, (size,), (1,))]
    zip_file(path, value, {"0": np.zeros(size, np.uint8)}, compress=zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < size / 100
    with pytest.raises(ValueError, match="is compressed or too long"):
        io.load_torch(path)
    # Entries that are the same bytes of the file.
    stored = [storage("ByteStorage", str(i), 1000) for i in range(10)]
    value = [tensor(one, 0, (1000,), (1,)) for one in stored]
    zip_file(path, value, {str(i): np.full(1000, 7, np.uint8) for i in range(10)})
    assert len(io.load_torch(path)) == 10
    content = path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        (first, *others) = [archive.getinfo(f"archive/data/{i}") for i in range(10)]
    overlapping = bytearray(content)
    for entry in others:
        at = content.rindex(entry.filename.encode()) - 4
        overlapping[at : at + 4] = struct.pack("<I", first.header_offset)
    path.write_bytes(bytes(overlapping))
    with pytest.raises(ValueError, match="is damaged"):
        io.load_torch(path)


def test_sizes_that_are_not_there_are_refused_at_once(write):
    """Nothing is allocated for what a file merely declares."""
    tracemalloc.start()
    try:
        start = time.perf_counter()
        for size in (2**31, 2**40, 2**61):
            value = [tensor(storage("ByteStorage", "0", size), 0, (size,), (1,))]
            refused(write, "the storage 0 has", value, {"0": np.zeros(16, np.uint8)})
        assert time.perf_counter() - start < 5
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


# ---- damaged files -------------------------------------------------------------------------------


def with_right_sums(content):
    """A zip file whose check sums fit what it now has."""
    content = bytearray(content)
    with zipfile.ZipFile(streams.BytesIO(content)) as archive:
        entries = archive.infolist()
    for entry in entries:
        at = entry.header_offset
        name, extra = struct.unpack("<HH", content[at + 26 : at + 30])
        start = at + 30 + name + extra
        part = bytes(content[start : start + entry.file_size])
        central = content.rindex(entry.filename.encode()) - 46
        content[central + 16 : central + 20] = struct.pack("<I", zlib.crc32(part))
    return content


def touched(value):
    """Reads all of what a file gave; arrays may be any numbers of any shape."""
    if isinstance(value, np.ndarray):
        with np.errstate(all="ignore"):
            value[..., :2].sum() if value.ndim else value.item()
    elif isinstance(value, (dict, list, tuple)):
        for one in value.values() if isinstance(value, dict) else value:
            touched(one)


def fuzz(seed, trials, tmp_path):
    w = tensor(storage("FloatStorage", "0", 12), 0, (3, 4), (4, 1))
    value = {
        "w": w,
        "b": tensor(storage("FloatStorage", "0", 12), 2, (3,), (4,)),
        "n": tensor(storage("LongStorage", "1", 1), 0, (), ()),
        "h": [tensor(storage("BFloat16Storage", "2", 2), 0, (2, 1), (1, 1)), 1.5, "x", None],
        "p": Call(Name("torch._utils", "_rebuild_parameter"), w, True, Call(ORDERED)),
    }
    content = {"0": np.arange(12, dtype=f32), "1": np.array([3]), "2": np.ones(2, np.uint16)}
    path = tmp_path / "x"
    random = np.random.default_rng(seed)
    refusals = 0
    for form in (zip_file, old_file):
        form(path, value, content)
        good = path.read_bytes()
        for trial in range(trials):
            bad = damaged(good, random)
            if form is zip_file and trial % 2:
                try:
                    bad = with_right_sums(bad)
                except Exception:
                    continue
            path.write_bytes(bad)
            try:
                touched(io.load_torch(path))
            except ValueError as error:
                refusals += 1
                assert 10 < len(str(error)) < 800
    return refusals


def test_damaged_files_raise_value_errors(tmp_path):
    assert fuzz(0, 1500, tmp_path) > 1100


@pytest.mark.slow
def test_many_damaged_files(tmp_path):
    fuzz(1, 100_000, tmp_path)
