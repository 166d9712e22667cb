"""Files of torch.save, read without torch and without running anything that they say.

Both forms are read: zip files (torch 1.6 and later; TorchScript archives are a kind of them) and
the older sequence of pickles with the storages behind. First the pickle is turned into plain values
and descriptions of tensors (`torch_pickle`), then those become arrays of the storages they name.
Files may come from strangers: every size is compared with what the file has before memory is taken
for it.
"""

from __future__ import annotations

import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np

from .._tensor.tape import Array
from .plain_pickle import Global, Record, Unsupported, readable
from .torch_pickle import DTYPES, Described, Storage, read_values

_ZIP = b"PK\x03\x04"
_MAGIC = 0x1950A86A20F9469CFC6C  # the first value of a file older than zip files
_VERSION = 1001  # and the second
_DEEPEST = 100  # levels of nesting
_MOST_NAMES = 100_000


def load_torch(path: str | os.PathLike[str]) -> Any:
    """What torch.save wrote, with arrays in place of tensors: usually a dictionary of weights.

    Dictionaries, lists, tuples, numbers, strings and None come as they are, tensors and Parameters
    as NumPy arrays of their shape and dtype (0-d for scalars); bfloat16, which NumPy lacks, is
    widened to float32, which changes no value. Tensors that share memory in the file share it here.
    Of a TorchScript archive all tensors are returned, by their qualified names.

    The file is never trusted: no function and no class that it names is called, imported or even
    looked up. It may hold tensors and plain values alone; ValueError names anything else, such as a
    whole pickled model, and is raised for a damaged file too. OSError if the file cannot be read.

    >>> import os, pickle, tempfile
    >>> from fusednn import io
    >>> path = os.path.join(tempfile.mkdtemp(), "weights.pt")
    >>> with open(path, "wb") as file:
    ...     pickle.dump(print, file)
    >>> try:
    ...     io.load_torch(path)
    ... except ValueError as error:
    ...     print(str(error).partition("weights.pt ")[2].partition(":")[0])
    asks for builtins.print, which is not loaded
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            start = file.read(len(_ZIP))
            file.seek(0)
            if start == _ZIP:
                return _load_zip(file, os.fstat(file.fileno()).st_size)
            if start[:1] == b"\x80":
                return _load_sequence(file.read())
        raise Unsupported("is not a file of torch.save")
    except Unsupported as error:
        raise ValueError(f"load_torch: {name} {error}") from None
    except _DAMAGE as error:
        raise ValueError(f"load_torch: {name} is damaged: {readable(str(error))}") from None


# What zipfile raises for damaged archives.
_DAMAGE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    RuntimeError,
    OverflowError,
    ValueError,
)


def _load_zip(file: IO[bytes], size: int) -> Any:
    with zipfile.ZipFile(file) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
        found = [name for name in entries if name.count("/") == 1 and name.endswith("/data.pkl")]
        if len(found) != 1:
            raise Unsupported("is a zip file, but not one of torch.save")
        folder = found[0].removesuffix("data.pkl")
        left = size

        def read(name: str) -> bytes:
            """An entry; none is compressed, which bounds what all of them can take."""
            nonlocal left
            entry = entries.get(name)
            if entry is None:
                raise Unsupported(f"is damaged: it has no {readable(name)}")
            left -= entry.file_size
            if entry.compress_type or entry.file_size != entry.compress_size or left < 0:
                raise Unsupported(f"is damaged: {readable(name)} is compressed or too long")
            if not 0 <= entry.header_offset < size:
                raise Unsupported(f"is damaged: {readable(name)} lies outside")
            return archive.read(entry)

        def raw(storage: Storage) -> bytes:
            content = read(f"{folder}data/{storage.key}")
            if len(content) != storage.nbytes:
                raise Unsupported(
                    f"is damaged: the storage {readable(storage.key)} has {len(content)} bytes, "
                    f"expected {storage.nbytes}"
                )
            return content

        big = f"{folder}byteorder" in entries and read(f"{folder}byteorder") == b"big"
        script = f"{folder}constants.pkl" in entries
        value, _ = read_values(read(found[0]), {}, script=script)
        value = _Values(raw, ">" if big else "<").of(value)
        return dict(_named_arrays(value, "", [0])) if script else value


def _load_sequence(data: bytes) -> Any:
    """A file older than zip files: five pickles, then the size and content of each storage."""
    magic, at = read_values(data, {})
    if magic != _MAGIC:
        raise Unsupported("is a pickle, but not one of torch.save")
    version, at = read_values(data, {}, start=at)
    if version != _VERSION:
        found = version if isinstance(version, int) else f"a {type(version).__name__}"
        raise Unsupported(f"has version {found}, expected {_VERSION}")
    _, at = read_values(data, {}, start=at)  # about the machine that wrote it; nothing is needed
    storages: dict[str, Storage] = {}
    value, at = read_values(data, storages, start=at)
    keys, at = read_values(data, {}, start=at)
    if not isinstance(keys, list) or not all(isinstance(key, str) for key in keys):
        raise Unsupported("is damaged: it has no list of its storages")
    places = {}
    for key in keys:
        if key not in storages:
            raise Unsupported(f"is damaged: nothing uses the storage {readable(key)}")
        if int.from_bytes(data[at : at + 8], "little", signed=True) != storages[key].size:
            raise Unsupported(f"is damaged: the storage {readable(key)} has another size")
        places[key] = at + 8
        at += 8 + storages[key].nbytes
        if at > len(data):
            raise Unsupported(f"is damaged: it ends within the storage {readable(key)}")

    def raw(storage: Storage) -> memoryview:
        if storage.key not in places:
            raise Unsupported(f"is damaged: it has no storage {readable(storage.key)}")
        start = places[storage.key]
        return memoryview(data)[start : start + storage.nbytes]

    return _Values(raw, "<").of(value)


class _Values:
    """Values with arrays in place of descriptions of tensors; each storage is loaded once."""

    def __init__(self, raw: Callable[[Storage], bytes | memoryview], order: str) -> None:
        self._raw = raw
        self._order = order
        self._bytes: dict[str, Array] = {}
        self._elements: dict[tuple[str, str, bool, bool], Array] = {}
        self._done: dict[int, Any] = {}  # by identity: what is shared stays shared

    def of(self, value: Any, depth: int = 0) -> Any:
        if value is None or isinstance(value, (bool, int, float, str, bytes)):
            return value
        if depth > _DEEPEST:
            raise Unsupported(f"nests its values more than {_DEEPEST} levels deep, or in a circle")
        if id(value) not in self._done:
            self._done[id(value)] = self._made(value, depth + 1)
        return self._done[id(value)]

    def _made(self, value: Any, depth: int) -> Any:
        if isinstance(value, Described):
            return self._array(value)
        if isinstance(value, dict):
            return {key: self.of(item, depth) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return type(value)(self.of(item, depth) for item in value)
        if isinstance(value, Record):
            return self.of(value.state, depth)
        what = readable(value.name) if isinstance(value, Global) else "a storage without a tensor"
        raise Unsupported(f"holds {what}, which is no plain value")

    def _array(self, tensor: Described) -> Array:
        shape = tensor.shape
        flat = self._flat(tensor)
        if math.prod(n for n in shape if n) * flat.itemsize >= 2**63:
            raise Unsupported(f"is damaged: a tensor has the shape {shape}")
        if 0 in shape:
            return np.empty(shape, flat.dtype)
        # A view takes no memory, whatever its shape; steps along axes of one element mean nothing.
        strides = [
            step * flat.itemsize if n > 1 else flat.itemsize
            for n, step in zip(shape, tensor.strides, strict=True)
        ]
        start = (tensor.storage.start + tensor.start) * flat.itemsize
        return np.ndarray(shape, flat.dtype, flat.data, start, strides)

    def _flat(self, tensor: Described) -> Array:
        """All elements of the storage that a tensor lies in."""
        key = tensor.storage.key
        place = key, tensor.dtype, tensor.conjugated, tensor.negated
        if place not in self._elements:
            if key not in self._bytes:
                # A copy: aligned, and the caller's to change.
                self._bytes[key] = np.frombuffer(self._raw(tensor.storage), np.uint8).copy()
            flat = self._typed(self._bytes[key], tensor.dtype)
            flat = np.conj(flat) if tensor.conjugated else flat
            self._elements[place] = -flat if tensor.negated else flat
        return self._elements[place]

    def _typed(self, content: Array, dtype: str) -> Array:
        stored = np.dtype(self._order + DTYPES[dtype])
        items: Array = content[: content.size // stored.itemsize * stored.itemsize].view(stored)
        if dtype == "bool":
            return np.not_equal(items, 0)
        if dtype == "bfloat16":
            return np.left_shift(items, 16, dtype=np.uint32).view(np.float32)
        return np.asarray(items, stored.newbyteorder("="))


def _named_arrays(value: Any, name: str, seen: list[int]) -> Iterator[tuple[str, Array]]:
    """The arrays within the attributes of a TorchScript module."""
    seen[0] += 1
    if seen[0] > _MOST_NAMES:
        raise Unsupported(f"has more than {_MOST_NAMES} values")
    if isinstance(value, np.ndarray):
        yield name, value
    elif isinstance(value, (dict, list, tuple)):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, item in items:
            yield from _named_arrays(item, f"{name}.{key}" if name else str(key), seen)
