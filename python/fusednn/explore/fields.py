"""Reading what a browser sends, field by field; whatever is wrong is said in one line."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np

from .._tensor.tape import Array

LARGEST = 1e6  # of numbers; sums of a few hundred products of them are still exact enough to show


class BadRequest(ValueError):
    """A request that cannot be answered; the text is one line that says why."""


class Fields:
    """The fields of a request's JSON object. Each is read once; `done` refuses what is left over.

    >>> fields = Fields({"stride": 2, "flip": True})
    >>> fields.integer("stride", 1, 4), fields.flag("flip")
    (2, True)
    >>> fields.done()
    """

    def __init__(self, content: Any) -> None:
        if not isinstance(content, dict):
            raise BadRequest(f"the request is {_kind(content)}, expected an object of named fields")
        self._rest = dict(content)

    def done(self) -> None:
        """BadRequest if the request has fields that nobody has asked for."""
        if self._rest:
            raise BadRequest(f"unknown field {_quoted(min(self._rest))}")

    def has(self, name: str) -> bool:
        """Whether a field that may be left out is there."""
        return name in self._rest

    def _take(self, name: str) -> Any:
        if name not in self._rest:
            raise BadRequest(f"{name} is missing")
        return self._rest.pop(name)

    def integer(self, name: str, low: int, high: int) -> int:
        """A whole number from low to high."""
        value = self._take(name)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise BadRequest(
                f"{name} is {_shown(value)}, expected a whole number from {low} to {high}"
            )
        return value

    def flag(self, name: str) -> bool:
        """true or false."""
        value = self._take(name)
        if not isinstance(value, bool):
            raise BadRequest(f"{name} is {_shown(value)}, expected true or false")
        return value

    def choice(self, name: str, options: Sequence[str]) -> str:
        """One of some words."""
        value = self._take(name)
        if not isinstance(value, str) or value not in options:
            raise BadRequest(f"{name} is {_shown(value)}, expected one of {', '.join(options)}")
        return value

    def text(self, name: str, most: int) -> str:
        """Text of at most so many characters, white space at its ends left out."""
        value = self._take(name)
        if not isinstance(value, str):
            raise BadRequest(f"{name} is {_kind(value)}, expected text")
        if len(value) > most:
            raise BadRequest(f"{name} has {len(value)} characters, expected at most {most}")
        if any(unicodedata.category(c) == "Cs" for c in value):
            raise BadRequest(f"{name} has half of a surrogate pair in it, which is no character")
        return value.strip()

    def numbers(self, name: str, axes: int, most: int) -> Array:
        """A list (axes = 1) or a list of rows of one length (2), at most `most` along each axis."""
        value = self._take(name)
        if axes == 1:
            return np.array(self._row(name, value, most))
        rows = self._list(name, value, most)
        found = [self._row(f"{name}[{i}]", row, most) for i, row in enumerate(rows)]
        for i, row in enumerate(found):
            if len(row) != len(found[0]):
                raise BadRequest(
                    f"{name}[{i}] has {len(row)} numbers, expected {len(found[0])} as in the first "
                    "row"
                )
        return np.array(found)

    def strokes(self, name: str, most: int) -> list[Array]:
        """Lines as lists of points [x, y] in [0, 1]; at most `most` points in all."""
        lines, count = [], 0
        for i, line in enumerate(self._list(name, self._take(name), most)):
            points = [
                self._row(f"{name}[{i}][{j}]", point, 2)
                for j, point in enumerate(self._list(f"{name}[{i}]", line, most))
            ]
            count += len(points)
            if count > most:
                raise BadRequest(f"{name} has more than {most} points")
            for j, point in enumerate(points):
                if len(point) != 2 or not all(0 <= v <= 1 for v in point):
                    raise BadRequest(
                        f"{name}[{i}][{j}] is {point}, expected [x, y], both from 0 to 1"
                    )
            lines.append(np.array(points))
        return lines

    def _list(self, name: str, value: Any, most: int) -> list[Any]:
        if not isinstance(value, list):
            raise BadRequest(f"{name} is {_kind(value)}, expected a list")
        if not 1 <= len(value) <= most:
            raise BadRequest(f"{name} has {len(value)} entries, expected 1 to {most}")
        return value

    def _row(self, name: str, value: Any, most: int) -> list[float]:
        found = []
        for i, entry in enumerate(self._list(name, value, most)):
            number = isinstance(entry, (int, float)) and not isinstance(entry, bool)
            if not number or not abs(entry) <= LARGEST:
                raise BadRequest(
                    f"{name}[{i}] is {_shown(entry)}, expected a number of at most {LARGEST:.0f}"
                )
            found.append(float(entry))
        return found


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "text", bool: "true or false"}
    return "null" if value is None else names.get(type(value), "a number")


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return _kind(value)
    if isinstance(value, str):
        return _quoted(value) if value else "empty"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and value.bit_length() > 64:
        return "too large"
    if isinstance(value, float) and not math.isfinite(value):
        return "too large"
    return "empty" if value is None else str(value)


def _quoted(text: str) -> str:
    """Text from outside, as one short line of ASCII."""
    return ascii(text if len(text) <= 40 else text[:40] + "...")


def plain(array: Any) -> Any:
    """An array as nested lists of numbers, without negative zeros."""
    return (np.asarray(array) + 0.0).tolist()


def limit(*arrays: Any) -> float:
    """The largest magnitude in some arrays, where colours reach their end; 1 if there is none."""
    return max((float(np.abs(a).max()) for a in arrays if np.size(a)), default=0.0) or 1.0


__all__ = ["LARGEST", "BadRequest", "Fields", "limit", "plain"]
