"""Files of torch.save: everything in them comes back, and nothing in them is ever run."""

import io as streams
import os
import pickle
import re
import struct
import sys
import time
import tracemalloc
import zipfile
import zlib

import numpy as np
import pytest

from fusednn import io, nn

f32 = np.float32
MAGIC = 0x1950A86A20F9469CFC6C


# ---- files made by hand --------------------------------------------------------------------------


class Name:
    """A class or function, as a pickle names it."""

    def __init__(self, module, name):
        self.parts = module, name


class Call:
    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments


class Stored:
    def __init__(self, identity):
        self.identity = identity


class Object:
    """An object of a TorchScript class."""

    def __init__(self, **state):
        self.state = state


def encoded(value):
    """The opcodes that make a value."""
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return pickle.dumps(value, 2)[2:-1]
    if isinstance(value, dict):
        return b"}(" + b"".join(encoded(k) + encoded(v) for k, v in value.items()) + b"u"
    if isinstance(value, list):
        return b"](" + b"".join(map(encoded, value)) + b"e"
    if isinstance(value, tuple):
        return b"(" + b"".join(map(encoded, value)) + b"t"
    if isinstance(value, Name):
        return b"c" + "\n".join(value.parts).encode() + b"\n"
    if isinstance(value, Call):
        return encoded(value.function) + encoded(value.arguments) + b"R"
    if isinstance(value, Stored):
        return encoded(value.identity) + b"Q"
    assert isinstance(value, Object)
    return encoded(Name("__torch__.mine", "Net")) + b")\x81" + encoded(value.state) + b"b"


def pickled(value):
    return b"\x80\x02" + encoded(value) + b"."


def storage(kind, key, size, *view, module="torch"):
    return Stored(("storage", Name(module, kind), key, "cpu", size, *view))


def tensor(stored, start, shape, strides, *more, version="_v2"):
    hooks = Call(Name("collections", "OrderedDict"))
    rebuild = Name("torch._utils", f"_rebuild_tensor{version}")
    return Call(rebuild, stored, start, shape, strides, False, hooks, *more)


def zip_file(path, value, storages=(), folder="archive", compress=zipfile.ZIP_STORED, **entries):
    with zipfile.ZipFile(path, "w", compress) as archive:
        content = value if isinstance(value, bytes) else pickled(value)
        archive.writestr(f"{folder}/data.pkl", content)
        for name, text in entries.items():
            archive.writestr(f"{folder}/{name.replace('_pkl', '.pkl')}", text)
        for key, array in dict(storages).items():
            archive.writestr(f"{folder}/data/{key}", bytes(memoryview(array).cast("B")))
    return path


def old_file(path, value, storages=(), magic=MAGIC, version=1001):
    content = pickled(magic) + pickled(version) + pickled({"little_endian": True})
    content += (value if isinstance(value, bytes) else pickled(value)) + pickled(list(storages))
    for array in dict(storages).values():
        content += struct.pack("<q", array.size) + array.tobytes()
    path.write_bytes(content)
    return path


@pytest.fixture(params=[zip_file, old_file])
def write(request, tmp_path):
    """Writes a file in one of the two forms, and reads it."""

    def write(value, storages=(), **more):
        return io.load_torch(request.param(tmp_path / "x.pt", value, storages, **more))

    return write


def refused(write, text, *arguments, **more):
    with pytest.raises(ValueError, match=text) as error:
        write(*arguments, **more)
    assert str(error.value).startswith("load_torch: ")
    assert len(str(error.value)) < 600


def test_weights(write):
    numbers = np.arange(6, dtype=f32)
    w = tensor(storage("FloatStorage", "7", 6), 0, (2, 3), (3, 1))
    out = write({"fc.weight": w, "n": 3, "text": "é", "none": None, "list": [1.5, (True, b"x")]},
                {"7": numbers})  # fmt: skip
    assert out.pop("fc.weight").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert out == {"n": 3, "text": "é", "none": None, "list": [1.5, (True, b"x")]}


KINDS = {
    "Float": np.float32, "Double": np.float64, "Half": np.float16, "ComplexFloat": np.complex64,
    "ComplexDouble": np.complex128, "Char": np.int8, "Short": np.int16, "Int": np.int32,
    "Long": np.int64, "Byte": np.uint8,
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_dtypes(kind, write):
    values = (np.arange(5) * 25).astype(KINDS[kind])
    out = write([tensor(storage(f"{kind}Storage", "0", 5), 1, (4,), (1,))], {"0": values})[0]
    assert out.dtype == KINDS[kind] and out.dtype.isnative
    assert out.tolist() == values[1:].tolist()
    assert out.flags.writeable and out.flags.aligned


def test_bool_is_never_anything_but_false_and_true(write):
    values = np.array([0, 1, 2, 255], np.uint8)
    out = write([tensor(storage("BoolStorage", "0", 4), 0, (4,), (1,))], {"0": values})[0]
    assert out.dtype == bool and out.view(np.uint8).tolist() == [0, 1, 1, 1]


def test_bfloat16_is_widened_exactly(write):
    bits = np.arange(2**16).astype(np.uint16)
    out = write([tensor(storage("BFloat16Storage", "0", 2**16), 0, (2**16,), (1,))], {"0": bits})[0]
    assert out.dtype == f32
    assert (out.view(np.uint32) == bits.astype(np.uint32) << 16).all()


def test_big_endian(tmp_path):
    w = tensor(storage("FloatStorage", "0", 3), 0, (3,), (1,))
    half = tensor(storage("BFloat16Storage", "1", 1), 0, (), ())
    content = {"0": np.array([1, 2, 3], ">f4"), "1": np.array([0x4049], ">u2")}
    a, b = io.load_torch(zip_file(tmp_path / "x", [w, half], content, byteorder="big"))
    assert a.dtype.isnative and a.tolist() == [1, 2, 3]
    assert b == 3.140625


def test_views_share_their_storage(write):
    """Also those that take no memory whatever their shape."""
    stored = storage("DoubleStorage", "0", 6)
    values = {"0": np.arange(6.0)}
    whole = tensor(stored, 0, (2, 3), (3, 1))
    turned = tensor(stored, 0, (3, 2), (1, 3))
    row = tensor(stored, 3, (3,), (1,))
    spread = tensor(stored, 2, (1000, 1000, 1000, 1000), (0, 0, 0, 0))
    scalar = tensor(stored, 5, (), ())
    nothing = tensor(stored, 99, (0, 5), (5, 1))
    odd = tensor(stored, 1, (2, 1), (4, 2**40))  # the step of an axis of one element
    a, b, c, d, e, f, g = write([whole, turned, row, spread, scalar, nothing, odd], values)
    assert (b == a.T).all() and c.tolist() == [3, 4, 5] and d.shape == (1000,) * 4
    assert d[3, 4, 5, 6] == 2 and e.shape == () and e == 5 and f.shape == (0, 5)
    assert g.tolist() == [[1], [5]]
    a[1, 2] = 7
    assert b[2, 1] == c[2] == e == g[1, 0] == 7


def test_parameters_sizes_and_ordered_dictionaries(write):
    w = tensor(storage("FloatStorage", "0", 1), 0, (1,), (1,))
    hooks = Call(Name("collections", "OrderedDict"))
    parameter = Call(Name("torch._utils", "_rebuild_parameter"), w, True, hooks)
    stateful = Call(Name("torch._utils", "_rebuild_parameter_with_state"), w, True, hooks, {})
    pairs = Call(Name("collections", "OrderedDict"), [["a", 1], ["b", w]])
    size = Call(Name("torch", "Size"), [2, 3])
    old = Call(Name("torch._utils", "_rebuild_tensor"),
               storage("FloatStorage", "0", 1), 0, (1,), (1,))  # fmt: skip
    out = write([parameter, stateful, pairs, size, old], {"0": np.ones(1, f32)})
    assert [a.tolist() for a in (out[0], out[1], out[2]["b"], out[4])] == [[1]] * 4
    assert type(out[2]) is dict and out[2]["a"] == 1 and out[3] == (2, 3)


def test_tensors_of_bytes_with_a_dtype(write):
    stored = storage("UntypedStorage", "0", 8, module="torch.storage")
    kinds = [("uint16", (4,)), ("uint32", (2,)), ("uint64", ())]
    values = [
        tensor(stored, 0, shape, (1,) * len(shape), Name("torch", kind), version="_v3")
        for kind, shape in kinds
    ]
    content = np.array([1, 0, 2, 0, 3, 0, 4, 0], np.uint8)
    out = write(values, {"0": content})
    assert [(a.dtype.name, a.shape) for a in out] == kinds
    assert out[0].tolist() == [1, 2, 3, 4]
    assert out[2] == int.from_bytes(content.tobytes(), "little")


def test_conjugates_and_negatives(write):
    content = np.array([1 + 2j, 3 - 1j], np.complex64)
    stored = storage("ComplexFloatStorage", "0", 2)
    flags = ({}, None, {"conj": True}, {"neg": True}, {"conj": True, "neg": True})
    values = [tensor(stored, 0, (2,), (1,), one) for one in flags]
    out = write(values, {"0": content})
    expected = content, content, content.conj(), -content, -content.conj()
    for a, b in zip(out, expected, strict=True):
        assert (a == b).all()
    lazy = tensor(stored, 0, (2,), (1,), {"lazy": True})
    refused(write, "metadata other than conj and neg", [lazy], {"0": content})


def test_views_of_storages_in_old_files(tmp_path):
    """Files before torch 0.4 name a part of another storage."""
    part = storage("FloatStorage", "0", 6, ("1", 2, 3))
    values = {"0": np.arange(6, dtype=f32)}
    out = io.load_torch(old_file(tmp_path / "x", [tensor(part, 1, (2,), (1,))], values))
    assert out[0].tolist() == [3, 4]
    for view, text in [
        (("1", 4, 3), "a view exceeds"),
        (("1", -1, 3), "no count"),
        ((1, 2), "with"),
    ]:
        part = storage("FloatStorage", "0", 6, view)
        with pytest.raises(ValueError, match=text):
            io.load_torch(old_file(tmp_path / "x", [tensor(part, 0, (1,), (1,))], values))
    part = storage("FloatStorage", "0", 6, ("1", 2, 3))
    with pytest.raises(ValueError, match=r"a tensor of shape \(4,\) exceeds its storage"):
        io.load_torch(old_file(tmp_path / "x", [tensor(part, 0, (4,), (1,))], values))


def test_a_script_archive_gives_its_tensors_by_name(tmp_path):
    w = tensor(storage("FloatStorage", "0", 4), 0, (2, 2), (2, 1))
    sizes = Call(Name("torch.jit._pickle", "build_intlist"), [1, 2])
    tagged = Call(Name("torch.jit._pickle", "restore_type_tag"), {"k": w}, "Dict[str, Tensor]")
    inner = Object(weight=w, stride=sizes, training=False, more=[w, 3], map=tagged)
    value = Object(fc=inner, scale=w, name="net")
    path = zip_file(tmp_path / "x", value, {"0": np.ones(4, f32)}, constants_pkl=pickled(()))
    out = io.load_torch(path)
    assert list(out) == ["fc.weight", "fc.more.0", "fc.map.k", "scale"]
    assert np.shares_memory(out["scale"], out["fc.weight"])
    # In any other file such an object is refused.
    with pytest.raises(ValueError, match=r"asks for __torch__\.mine\.Net, which is not loaded"):
        io.load_torch(zip_file(tmp_path / "y", value, {"0": np.ones(4, f32)}))


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
        (Tripwire(), r"test_torch_file.Tripwire|copyreg._reconstructor"),
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


def damaged(good, random):
    kind = random.integers(0, 5)
    bad = bytearray(good)
    if kind == 0:
        return bad[: random.integers(0, len(bad))]
    if kind == 1:
        for at in random.integers(0, len(bad), random.integers(1, 9)):
            bad[at] ^= 1 << random.integers(0, 8)
        return bad
    if kind == 2:
        at = random.integers(0, len(bad) - 8)
        bad[at : at + 8] = struct.pack("<Q", int(random.integers(0, 2**63)) >> random.integers(63))
        return bad
    if kind == 3:
        for at in random.integers(0, len(bad), random.integers(1, 4)):
            bad[at] = (0, 255, 127, 128)[random.integers(0, 4)]
        return bad
    start, end = sorted(random.integers(0, len(bad), 2))
    return bad[:start] + bad[end:]


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


# ---- against torch -------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


FORMS = [{"_use_new_zipfile_serialization": form} for form in (True, False)]


def same(ours, theirs):
    theirs = theirs.detach()
    if theirs.dtype.is_floating_point and theirs.dtype.itemsize == 2 and ours.dtype == f32:
        theirs = theirs.float()
    theirs = theirs.resolve_conj().resolve_neg().numpy()
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and (ours == theirs).all()


@pytest.mark.parametrize("form", FORMS, ids=["zip", "old"])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_all_that_torch_writes(torch, form, protocol, tmp_path):
    path = tmp_path / "x.pt"
    base = torch.arange(24.0).reshape(2, 3, 4)
    names = (
        "float32 float64 float16 bfloat16 complex64 complex128 int8 int16 int32 int64 uint8 bool"
    )
    tensors = {name: (base * 3).to(getattr(torch, name)) for name in names.split()}
    tensors |= {name: base.to(getattr(torch, name)) for name in ("uint16", "uint32", "uint64")}
    tensors |= {
        "turned": base.permute(2, 0, 1),
        "part": base[:, 1:, ::2],
        "spread": torch.tensor([1.0, 2.0]).expand(3, 2),
        "scalar": torch.tensor(7),
        "empty": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(base[0]),
        "conjugate": (base + 1j * base).conj(),
        "negative": (base + 1j * base).conj().imag,
        "channels last": torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    }
    extra = {"epoch": 3, "lr": [0.1, (1, "x", None)], "size": torch.Size([1, 2]), "big": 2**70}
    torch.save({"tensors": tensors, **extra}, path, pickle_protocol=protocol, **form)
    out = io.load_torch(path)
    ours = out.pop("tensors")
    assert out == extra
    assert list(ours) == list(tensors)
    for name, tensor in tensors.items():
        assert same(ours[name], tensor), name
    assert np.shares_memory(ours["turned"], ours["part"])


@pytest.mark.parametrize("form", FORMS, ids=["zip", "old"])
def test_a_network_moves_over(torch, form, tmp_path):
    theirs = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3)).eval()
    torch.save(theirs.state_dict(), tmp_path / "x.pt", **form)
    ours = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).eval()
    ours.load_state_dict(io.load_torch(tmp_path / "x.pt"))
    x = np.random.default_rng(0).standard_normal((2, 2, 7, 7)).astype(f32)
    expected = theirs(torch.from_numpy(x)).detach().numpy()
    assert np.allclose(ours(x), expected, atol=1e-6)


@pytest.mark.parametrize("form", FORMS, ids=["zip", "old"])
def test_whole_models_and_other_objects_are_refused(torch, form, tmp_path):
    path = tmp_path / "x.pt"
    for value, name in [
        (torch.nn.Linear(2, 2), r"torch\.nn\.modules\.linear\.Linear|is damaged or a whole model"),
        ({"a": torch.device("cpu")}, r"torch\.device"),
        ({"a": np.ones(2)}, r"numpy\._core"),
        (torch.eye(2).to_sparse(), r"torch\._utils\._rebuild_sparse_tensor"),
        (torch.ones(2).to(torch.float8_e4m3fn), r"torch\."),
        ({1, 2}, "opcode|__builtin__.set"),
    ]:
        torch.save(value, path, **form)
        with pytest.raises(ValueError, match=name):
            io.load_torch(path)


def test_script_archives_of_torch(torch, tmp_path):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.LSTM(4, 2))
    with pytest.warns(DeprecationWarning):
        torch.jit.save(torch.jit.script(net), tmp_path / "x.pt")
    out = io.load_torch(tmp_path / "x.pt")
    state = net.state_dict()
    assert state.keys() <= out.keys()
    for name, tensor in state.items():
        assert same(out[name], tensor), name


def test_random_files_are_read_as_torch_reads_them(torch, tmp_path):
    """Damaged files too: what both take is the same."""
    path = tmp_path / "x.pt"
    value = {"w": torch.arange(6.0).reshape(2, 3), "n": 3, "t": (1, [2.5, "x"])}
    random = np.random.default_rng(2)
    both = 0
    for form in FORMS:
        torch.save(value, path, **form)
        good = path.read_bytes()
        for _ in range(100):
            path.write_bytes(damaged(good, random))
            try:
                ours = io.load_torch(path)
            except ValueError:
                continue
            try:
                theirs = torch.load(path, weights_only=True)
            except Exception:
                continue
            both += 1
            assert repr(type(ours)) == repr(type(theirs))
            if isinstance(theirs, dict):
                assert list(ours) == list(theirs)
                for key, tensor in theirs.items():
                    if isinstance(tensor, torch.Tensor):
                        a, b = ours[key], tensor.detach().numpy()
                        assert a.tobytes() == b.tobytes() and a.shape == b.shape
                    else:
                        assert ours[key] == tensor or re.search("nan", repr(tensor))
    assert both > 10
