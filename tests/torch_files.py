"""Files of torch.save made by hand, for the tests that read them."""

import pickle
import struct
import zipfile

import numpy as np
import pytest

from fusednn import io

f32 = np.float32
MAGIC = 0x1950A86A20F9469CFC6C


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


def written_and_read(form, folder):
    """Writes a file in one of the two forms, and reads it."""

    def write(value, storages=(), **more):
        return io.load_torch(form(folder / "x.pt", value, storages, **more))

    return write


def refused(write, text, *arguments, **more):
    with pytest.raises(ValueError, match=text) as error:
        write(*arguments, **more)
    assert str(error.value).startswith("load_torch: ")
    assert len(str(error.value)) < 600


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
