"""The values in a pickle of torch.save, with descriptions of its tensors in place of tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .plain_pickle import Global, Record, Unsupported, read_pickle, readable

# How elements are stored. bfloat16 is the upper half of a float32.
DTYPES = {
    "float32": "f4", "float64": "f8", "float16": "f2", "bfloat16": "u2", "complex64": "c8",
    "complex128": "c16", "int8": "i1", "int16": "i2", "int32": "i4", "int64": "i8", "uint8": "u1",
    "uint16": "u2", "uint32": "u4", "uint64": "u8", "bool": "u1",
}  # fmt: skip
_STORAGES = {
    "Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16",
    "ComplexFloat": "complex64", "ComplexDouble": "complex128", "Char": "int8", "Short": "int16",
    "Int": "int32", "Long": "int64", "Byte": "uint8", "Bool": "bool",
}  # fmt: skip
_BYTES = "torch.storage.UntypedStorage"


@dataclass(frozen=True)
class Storage:
    """A part of a storage of the file, as a persistent id describes it."""

    key: str
    dtype: str  # "" for bytes
    size: int  # elements of the whole storage
    start: int  # elements in front of this part
    count: int  # elements of this part

    @property
    def itemsize(self) -> int:
        return np.dtype(DTYPES[self.dtype]).itemsize if self.dtype else 1

    @property
    def nbytes(self) -> int:
        """Of the whole storage."""
        return self.size * self.itemsize


@dataclass(frozen=True, eq=False)
class Described:
    """A tensor: its place in a storage, which it does not exceed."""

    storage: Storage
    dtype: str
    start: int  # elements in front of it, in the part of the storage
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in elements
    conjugated: bool = False
    negated: bool = False


def _counts(values: Iterable[object], what: str) -> tuple[int, ...]:
    out = tuple(values)
    if any(type(value) is not int or not 0 <= value < 2**63 for value in out):
        raise Unsupported(f"is damaged: {what} of a tensor is no count")
    return out  # type: ignore[return-value]


def _tensor(
    storage: object,
    start: object,
    shape: object,
    strides: object,
    dtype: str,
    metadata: object = None,
) -> Described:
    """The description of a tensor, which lies within its storage."""
    if not (isinstance(storage, Storage) and isinstance(shape, tuple)):
        raise Unsupported("is damaged: a tensor without a storage or a shape")
    if not isinstance(strides, tuple) or len(strides) != len(shape) or len(shape) > 64:
        raise Unsupported("is damaged: the strides of a tensor do not fit its shape")
    flags = metadata or {}
    if not isinstance(flags, dict) or not flags.keys() <= {"conj", "neg"}:
        raise Unsupported("has a tensor with metadata other than conj and neg")
    (start,) = _counts([start], "the offset")
    shape, strides = _counts(shape, "the shape"), _counts(strides, "a stride")
    count = storage.count
    if not storage.dtype:
        count //= np.dtype(DTYPES[dtype]).itemsize
    if 0 not in shape:
        last = start + sum((n - 1) * step for n, step in zip(shape, strides, strict=True))
        if last >= count:
            raise Unsupported(f"is damaged: a tensor of shape {shape} exceeds its storage")
    return Described(
        storage, dtype, start, shape, strides, bool(flags.get("conj")), bool(flags.get("neg"))
    )


def _rebuild(
    storage: object,
    start: object,
    shape: object,
    strides: object,
    requires_grad: object = None,
    hooks: object = None,
    metadata: object = None,
) -> Described:
    dtype = storage.dtype if isinstance(storage, Storage) else ""
    if not dtype:
        raise Unsupported("is damaged: a tensor without a dtype")
    return _tensor(storage, start, shape, strides, dtype, metadata)


def _rebuild_typed(
    storage: object,
    start: object,
    shape: object,
    strides: object,
    requires_grad: object,
    hooks: object,
    dtype: object,
    metadata: object = None,
) -> Described:
    if not isinstance(dtype, Global) or dtype.name[6:] not in DTYPES:
        raise Unsupported("is damaged: a tensor without a dtype")
    if not isinstance(storage, Storage) or storage.dtype:
        raise Unsupported("is damaged: a storage with a dtype and another one")
    return _tensor(storage, start, shape, strides, dtype.name[6:], metadata)


def _rebuild_parameter(data: object, *ignored: object) -> object:
    return data


def _ordered(items: Iterable[object] = ()) -> dict[Any, Any]:
    """An OrderedDict; those of Python 2 come with a list of pairs."""
    out = {}
    for pair in items:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or not isinstance(pair[0], str):
            raise Unsupported("is damaged: a dictionary of what are no pairs")
        out[pair[0]] = pair[1]
    return out


def _bytes(text: object, encoding: object) -> bytes:
    """How protocol 2, which has no bytes, writes them."""
    if not isinstance(text, str) or encoding != "latin1":
        raise Unsupported("is damaged: bytes are no text of latin1")
    try:
        return text.encode("latin1")
    except UnicodeEncodeError:
        raise Unsupported("is damaged: bytes are no text of latin1") from None


_CALLED: dict[str, Callable[..., Any]] = {
    "collections.OrderedDict": _ordered,
    "torch._utils._rebuild_tensor": _rebuild,
    "torch._utils._rebuild_tensor_v2": _rebuild,
    "torch._utils._rebuild_tensor_v3": _rebuild_typed,
    "torch._utils._rebuild_parameter": _rebuild_parameter,
    "torch._utils._rebuild_parameter_with_state": _rebuild_parameter,
    "_codecs.encode": _bytes,
    "torch.Size": lambda items: tuple(items),
}
_NAMED = (
    {f"torch.{kind}Storage" for kind in _STORAGES} | {f"torch.{name}" for name in DTYPES} | {_BYTES}
)
_SCRIPT_CALLED: dict[str, Callable[..., Any]] = {
    **{
        f"torch.jit._pickle.build_{kind}list": lambda items: list(items)
        for kind in ("int", "double", "bool", "tensor")
    },
    "torch.jit._pickle.restore_type_tag": lambda value, kind: value,
}


def _plain_global(name: str) -> Global:
    if name in _CALLED:
        return Global(name, call=_CALLED[name])
    if name in _NAMED:
        return Global(name)
    raise Unsupported(
        f"asks for {readable(name)}, which is not loaded: only tensors and plain values are "
        "(what state_dict() gives), and nothing of the file was executed"
    )


def _script_global(name: str) -> Global:
    if name.startswith("__torch__."):
        return Global(name, make=Record)
    if name in _SCRIPT_CALLED:
        return Global(name, call=_SCRIPT_CALLED[name])
    return _plain_global(name)


def _storage(identity: object) -> Storage:
    """The storage that a persistent id describes."""
    if not isinstance(identity, tuple) or not 5 <= len(identity) <= 6 or identity[0] != "storage":
        raise Unsupported(
            "is damaged or a whole model, of which no class is loaded: save state_dict()"
        )
    kind, key, _, size = identity[1:5]
    if not isinstance(kind, Global) or not isinstance(key, str):
        raise Unsupported("is damaged: a storage without a type or a name")
    if kind.name == _BYTES:
        dtype = ""
    elif kind.name in _NAMED and kind.name.endswith("Storage"):
        dtype = _STORAGES[kind.name[6:-7]]
    else:
        raise Unsupported(f"is damaged: {readable(kind.name)} is no type of a storage")
    (size,) = _counts([size], "the storage")
    view = identity[5] if len(identity) == 6 else None
    if view is None:
        return Storage(key, dtype, size, 0, size)
    if not isinstance(view, tuple) or len(view) != 3:
        raise Unsupported("is damaged: a view of a storage without an offset or a size")
    start, count = _counts(view[1:], "a view")
    if start + count > size:
        raise Unsupported("is damaged: a view exceeds its storage")
    return Storage(key, dtype, size, start, count)


def read_values(
    data: bytes, storages: dict[str, Storage], *, start: int = 0, script: bool = False
) -> tuple[Any, int]:
    """The value of the pickle at `start`, and where it ends; Unsupported if it is refused.

    The value has Described in place of tensors, and, if script, a Record in place of each object of
    a TorchScript class. `storages` gets every storage that the pickle names.
    """

    def find_persistent(identity: object) -> Storage:
        found = _storage(identity)
        first = storages.setdefault(found.key, found)
        if first.nbytes != found.nbytes:
            raise Unsupported(f"is damaged: the storage {readable(found.key)} has two sizes")
        return found

    return read_pickle(data, _script_global if script else _plain_global, find_persistent, start)
