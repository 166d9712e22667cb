"""A reader of pickles that builds plain values and never calls anything the pickle names.

Python's own unpickler is a machine whose programs may name any function and call it. This one knows
the opcodes of protocols 2 to 5 that data needs, and asks its caller about every global: what comes
back is called in place of the real one, or the pickle is refused. Memory is bounded by the file: no
size is believed before its bytes are there, and the memo is a dictionary.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_LONGEST_INTEGER = 64  # bytes; what weights come with needs 10
_MARK = object()


class Unsupported(ValueError):
    """A pickle that is damaged, or that asks for what is not loaded."""


@dataclass(frozen=True)
class Global:
    """What stands for a class or function that a pickle names."""

    name: str
    call: Callable[..., Any] | None = None  # what takes its place where the pickle calls it
    make: Callable[[], Record] | None = None  # and where it makes an object of the class


class Record:
    """An object of a class that is not there: the state that the pickle gives it, no behaviour."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: Any = None


def readable(text: str) -> str:
    """A name out of a file as it can stand in a message."""
    return text if text.isprintable() and len(text) <= 120 else repr(text[:120])


def read_pickle(
    data: bytes | memoryview,
    find_global: Callable[[str], Global],
    find_persistent: Callable[[Any], Any],
    start: int = 0,
) -> tuple[Any, int]:
    """The value of the pickle at `start`, and where it ends; Unsupported if it is refused.

    `find_global` gets "module.name" and `find_persistent` a persistent id; both raise Unsupported
    for what they do not know.
    """
    machine = _Machine(memoryview(data), start, find_global, find_persistent)
    try:
        return machine.run(), machine.at
    except (IndexError, KeyError, struct.error, UnicodeDecodeError, RecursionError):
        raise Unsupported("has a damaged pickle") from None


class _Machine:
    """The stack machine of pickle; `stack` is the part above the topmost mark."""

    def __init__(
        self,
        data: memoryview,
        at: int,
        find_global: Callable[[str], Global],
        find_persistent: Callable[[Any], Any],
    ) -> None:
        self.data = data
        self.at = at
        self.find_global = find_global
        self.find_persistent = find_persistent
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        while True:
            code = self.take(1)[0]
            if code == _STOP:
                return self.stack.pop()
            operation = _OPERATIONS.get(code)
            if operation is None:
                raise Unsupported(
                    f"has a pickle with the opcode {bytes([code])!r}, which is not read"
                )
            operation(self)

    # ---- what operations are made of ----

    def take(self, size: int) -> memoryview:
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise Unsupported("has a pickle that ends too early")
        part = self.data[self.at : end]
        self.at = end
        return part

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def line(self) -> str:
        end = self.at
        limit = min(len(self.data), self.at + 1000)
        while end < limit and self.data[end] != 10:
            end += 1
        if end == limit:
            raise Unsupported("has a damaged pickle: a name does not end")
        text = str(self.take(end - self.at), "utf-8")
        self.at += 1
        return text

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def until_mark(self) -> list[Any]:
        items, self.stack = self.stack, self.below.pop()
        return items

    def top(self, kind: type) -> Any:
        top = self.stack[-1]
        if type(top) is not kind:
            raise Unsupported("has a damaged pickle: items for what is no container")
        return top

    # ---- operations ----

    def mark(self) -> None:
        self.below.append(self.stack)
        self.stack = []

    def frame(self) -> None:
        self.take(8)

    def protocol(self) -> None:
        version = self.take(1)[0]
        if not 2 <= version <= 5:
            raise Unsupported(f"has a pickle with protocol {version}, expected 2 to 5")

    def integer(self, form: str) -> None:
        size = self.number(form)
        if not 0 <= size <= _LONGEST_INTEGER:
            raise Unsupported(f"has a pickle with an integer of {size} bytes")
        self.push(int.from_bytes(self.take(size), "little", signed=True))

    def text(self, form: str) -> None:
        self.push(str(self.take(self.number(form)), "utf-8"))

    def raw(self, form: str) -> None:
        self.push(bytes(self.take(self.number(form))))

    def tuple_of(self, size: int) -> None:
        items = tuple(self.stack[len(self.stack) - size :])
        if len(items) != size:
            raise Unsupported("has a damaged pickle: the stack is empty")
        del self.stack[len(self.stack) - size :]
        self.push(items)

    def append(self) -> None:
        item = self.stack.pop()
        self.top(list).append(item)

    def appends(self) -> None:
        items = self.until_mark()
        self.top(list).extend(items)

    def set_item(self) -> None:
        value = self.stack.pop()
        key = self.stack.pop()
        self._set([key, value])

    def _set(self, items: list[Any]) -> None:
        top = self.top(dict)
        if len(items) % 2:
            raise Unsupported("has a damaged pickle: a key without a value")
        for key, value in zip(items[::2], items[1::2], strict=True):
            if not isinstance(key, (str, int, float, bytes, type(None))):
                raise Unsupported(f"has a pickle with a {type(key).__name__} as a key")
            top[key] = value

    def global_line(self) -> None:
        module = self.line()
        self.push(self.find_global(f"{module}.{self.line()}"))

    def global_stack(self) -> None:
        name = self.stack.pop()
        module = self.stack.pop()
        if not (isinstance(name, str) and isinstance(module, str)):
            raise Unsupported("has a damaged pickle: a global without a name")
        self.push(self.find_global(f"{module}.{name}"))

    def reduce(self) -> None:
        arguments = self.stack.pop()
        function = self.stack.pop()
        if not isinstance(function, Global) or not isinstance(arguments, tuple):
            raise Unsupported("has a pickle that calls what is no function")
        if function.call is None:
            raise Unsupported(
                f"has a pickle that calls {readable(function.name)}, which is not loaded"
            )
        try:
            self.push(function.call(*arguments))
        except TypeError:
            message = (
                f"has a pickle that calls {readable(function.name)} with other arguments than torch"
            )
            raise Unsupported(message) from None

    def new_object(self) -> None:
        arguments = self.stack.pop()
        kind = self.stack.pop()
        if not isinstance(kind, Global) or not isinstance(arguments, tuple):
            raise Unsupported("has a pickle that makes an object of what is no class")
        if kind.make is None or arguments:
            raise Unsupported(
                f"has a pickle that makes a {readable(kind.name)}, which is not loaded"
            )
        self.push(kind.make())

    def build(self) -> None:
        state = self.stack.pop()
        top = self.stack[-1]
        if isinstance(top, Record):
            top.state = state
        elif type(top) is not dict:  # an OrderedDict's attributes: a state_dict's version numbers
            raise Unsupported("has a pickle that sets the state of what has none")

    def persistent(self) -> None:
        self.push(self.find_persistent(self.stack.pop()))

    def get(self, form: str) -> None:
        self.push(self.memo[self.number(form)])

    def put(self, form: str) -> None:
        self.memo[self.number(form)] = self.stack[-1]

    def memoize(self) -> None:
        self.memo[len(self.memo)] = self.stack[-1]


_STOP = ord(".")

_Operation = Callable[[_Machine], object]

# Names of the opcodes as in Python's pickletools.
_OPERATIONS: dict[int, _Operation] = {
    0x80: _Machine.protocol,
    0x95: _Machine.frame,
    ord("("): _Machine.mark,
    ord("0"): lambda m: m.stack.pop(),  # POP
    ord("1"): _Machine.until_mark,  # POP_MARK
    ord("2"): lambda m: m.push(m.stack[-1]),  # DUP
    ord("N"): lambda m: m.push(None),
    0x88: lambda m: m.push(True),
    0x89: lambda m: m.push(False),
    ord("K"): lambda m: m.push(m.number("<B")),  # BININT1
    ord("M"): lambda m: m.push(m.number("<H")),  # BININT2
    ord("J"): lambda m: m.push(m.number("<i")),  # BININT
    0x8A: lambda m: m.integer("<B"),  # LONG1
    0x8B: lambda m: m.integer("<i"),  # LONG4
    ord("G"): lambda m: m.push(m.number(">d")),  # BINFLOAT
    ord("U"): lambda m: m.text("<B"),  # SHORT_BINSTRING: Python 2's
    ord("T"): lambda m: m.text("<i"),  # BINSTRING
    0x8C: lambda m: m.text("<B"),  # SHORT_BINUNICODE
    ord("X"): lambda m: m.text("<I"),  # BINUNICODE
    0x8D: lambda m: m.text("<Q"),  # BINUNICODE8
    ord("C"): lambda m: m.raw("<B"),  # SHORT_BINBYTES
    ord("B"): lambda m: m.raw("<I"),  # BINBYTES
    0x8E: lambda m: m.raw("<Q"),  # BINBYTES8
    ord(")"): lambda m: m.push(()),
    ord("t"): lambda m: m.push(tuple(m.until_mark())),
    0x85: lambda m: m.tuple_of(1),
    0x86: lambda m: m.tuple_of(2),
    0x87: lambda m: m.tuple_of(3),
    ord("]"): lambda m: m.push([]),
    ord("a"): _Machine.append,
    ord("e"): _Machine.appends,
    ord("}"): lambda m: m.push({}),
    ord("s"): _Machine.set_item,
    ord("u"): lambda m: m._set(m.until_mark()),
    ord("c"): _Machine.global_line,
    0x93: _Machine.global_stack,
    ord("R"): _Machine.reduce,
    0x81: _Machine.new_object,
    ord("b"): _Machine.build,
    ord("Q"): _Machine.persistent,
    ord("h"): lambda m: m.get("<B"),
    ord("j"): lambda m: m.get("<I"),
    ord("q"): lambda m: m.put("<B"),
    ord("r"): lambda m: m.put("<I"),
    0x94: _Machine.memoize,
}
