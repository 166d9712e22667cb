"""Safetensors files: a flat mapping of arrays as it is; anything nested with JSON beside it.

In a nested mapping (dictionaries, lists, tuples, numbers, strings, None and arrays, as the
state_dict of optimisers and schedules gives) the arrays are stored under names made from their
place, and the structure as JSON in the file's metadata. Nothing is ever executed on loading.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from numpy import ndarray

from .._tensor.tape import Array, raw

_KEY = "fusednn"
_RESERVED = "__metadata__"  # what the format itself uses
_DEEPEST = 100  # levels of nesting; JSON's own readers give up a little later
_SUFFIX = ".fusednn-tmp"
_ABANDONED = 600  # seconds; no save that is still alive stays without a write for so long


def save(mapping: Mapping[str, Any], path: str | os.PathLike[str]) -> None:
    """Writes a mapping of names to arrays or Tensors (any layout), possibly nested, to one file.

    The file appears complete or not at all: it is written beside its place, flushed to the disk and
    renamed; the access rights of a file in that place stay. A link is followed. TypeError names
    what cannot be stored.

    >>> import os, tempfile, numpy as np, fusednn as fn
    >>> path = os.path.join(tempfile.mkdtemp(), "weights.safetensors")
    >>> fn.save({"w": np.zeros((2, 3))}, path)
    >>> fn.load(path)["w"].shape
    (2, 3)
    """
    if not isinstance(mapping, Mapping):
        raise TypeError(f"save: expected a mapping, got {type(mapping).__name__}")
    arrays: dict[str, Array] = {}
    metadata = None
    if all(isinstance(raw(value), ndarray) for value in mapping.values()):
        for name, value in mapping.items():
            if not isinstance(name, str):
                raise TypeError(f"save: names must be strings, got {name!r}")
            if name == _RESERVED:
                raise ValueError(f"save: the name {name!r} is the file format's own")
            arrays[name] = _storable(name, raw(value))
    else:
        metadata = {_KEY: json.dumps(_described(mapping, "", arrays))}
    _write(arrays, metadata, os.fspath(path))


def _storable(name: str, array: Array) -> Array:
    kind, size = array.dtype.kind, array.dtype.itemsize
    if array.dtype.name == "bfloat16" or (kind, size) == ("c", 8):
        return np.ascontiguousarray(array).reshape(array.shape)
    if kind not in "fiub" or size > 8:
        raise TypeError(f"save: {name} has dtype {array.dtype}, which safetensors cannot store")
    return np.asarray(array, array.dtype.newbyteorder("<"), order="C")


def _described(value: Any, place: str, arrays: dict[str, Array], depth: int = 0) -> Any:
    """value as JSON; arrays go into `arrays` and leave their name."""
    value = raw(value)
    if depth > _DEEPEST:
        raise ValueError(f"save: more than {_DEEPEST} levels of nesting, at {place[:60]}...")
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, ndarray):
        name = place
        while name in arrays or name == _RESERVED:
            name += "'"
        arrays[name] = _storable(place, value)
        return {"array": name}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"save: {place or 'the mapping'} has the key {key!r}, not a string")
        return {
            "dict": {key: _described(v, f"{place}.{key}".lstrip("."), arrays, depth + 1)
                     for key, v in value.items()}
        }  # fmt: skip
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        items = enumerate(value)
        return {kind: [_described(v, f"{place}.{i}", arrays, depth + 1) for i, v in items]}
    raise TypeError(f"save: {place} is a {type(value).__name__}, which cannot be stored")


def _write(arrays: dict[str, Array], metadata: dict[str, str] | None, path: str) -> None:
    from safetensors.numpy import save as to_bytes

    content = to_bytes(arrays, metadata)
    path = os.path.realpath(path)
    folder, name = os.path.split(path)
    _remove_leftovers(folder, name)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}.{os.urandom(4).hex()}{_SUFFIX}")
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            with suppress(OSError):  # there is none yet, or it is another user's
                os.fchmod(file.fileno(), os.stat(path).st_mode & 0o777)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)  # the new name itself
    finally:
        os.close(handle)


def _remove_leftovers(folder: str, name: str) -> None:
    """Deletes what saves of this file left that were killed a while ago."""
    oldest = time.time() - _ABANDONED
    for other in os.listdir(folder):
        if other.startswith(f".{name}.") and other.endswith(_SUFFIX):
            place = os.path.join(folder, other)
            with suppress(OSError):
                if os.path.getmtime(place) < oldest:
                    os.unlink(place)


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `save` wrote (or any safetensors file of NumPy's dtypes): names to new arrays.

    ValueError if the file is damaged or not a safetensors file; OSError if it cannot be read.

    >>> import os, tempfile, numpy as np, fusednn as fn
    >>> path = os.path.join(tempfile.mkdtemp(), "run.safetensors")
    >>> fn.save({"epoch": 3, "model": {"w": np.zeros(2)}}, path)
    >>> fn.load(path)
    {'epoch': 3, 'model': {'w': array([0., 0.])}}
    """
    from safetensors import SafetensorError, safe_open

    name = os.fspath(path)
    with open(name, "rb"):
        pass  # an OSError of the usual kind if there is no such file
    try:
        with safe_open(name, framework="numpy") as file:
            arrays = {key: np.array(file.get_tensor(key)) for key in file.keys()}  # noqa: SIM118
            metadata = file.metadata() or {}
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"load: {name} is not a readable safetensors file: {error}") from None
    if _KEY not in metadata:
        return arrays
    try:
        out = _restored(json.loads(metadata[_KEY]), arrays)
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError) as error:
        raise ValueError(f"load: the structure stored in {name} is damaged: {error!r}") from None
    if not isinstance(out, dict):
        raise ValueError(f"load: the structure stored in {name} is not a mapping")
    return out


def _restored(value: Any, arrays: dict[str, Array]) -> Any:
    if not isinstance(value, dict):
        if isinstance(value, list):
            raise ValueError("a bare list")
        return value
    ((kind, content),) = value.items()
    if kind == "array":
        return arrays[content]
    if kind == "dict":
        return {key: _restored(v, arrays) for key, v in content.items()}
    if kind in ("list", "tuple"):
        items = [_restored(v, arrays) for v in content]
        return items if kind == "list" else tuple(items)
    raise ValueError(f"an unknown kind {kind!r}")
