"""Pairs of texts that mean the same."""

from __future__ import annotations

import html
import re
import sqlite3
import zlib
from contextlib import closing
from typing import NamedTuple

import numpy as np

from .sources import Package, debian_file, expect, file

_FOLDERS = {"engKJV2006eb": "sword-text-kjv", "spaRV1909eb": "sword-text-sparv"}
_ASIDES = re.compile(r"<(note|title)\b[^>]*(?<!/)>.*?</\1>", re.DOTALL)
_TAGS = re.compile(r"<[^>]*>")
_BLOCK = np.dtype([("at", "<u4"), ("size", "<u4"), ("full", "<u4")])
_VERSE = np.dtype([("block", "<u4"), ("at", "<u4"), ("size", "<u2")])


class Pairs(NamedTuple):
    """Sources and their targets: text i of one is text i of the other.

    >>> from fusednn.data import Pairs
    >>> len(Pairs(["one", "two"], ["uno", "dos"]).source)
    2
    """

    source: list[str]
    target: list[str]


def kjv_es() -> Pairs:
    """Verses of the Bible in English (King James) and Spanish (Reina-Valera): 31,084 pairs.

    Aligned by their index; lower-case, without the mark of paragraphs. The modules of Debian's
    sword-text-kjv and sword-text-sparv. MissingDataError names the command that brings them.

    >>> from fusednn import data
    >>> try:
    ...     size = len(data.kjv_es().source)
    ... except data.MissingDataError:
    ...     size = 31084
    >>> size
    31084
    """
    english, spanish = (_verses(folder) for folder in _FOLDERS)
    expect("kjv-es", "the number of Spanish places", len(spanish), len(english))
    both = [(a, b) for a, b in zip(english, spanish, strict=True) if a and b]
    expect("kjv-es", "the number of pairs", len(both), 31084)
    return Pairs([a for a, _ in both], [b for _, b in both])


def _verses(folder: str) -> list[str]:
    """The text of every place in a zText module, "" where it has none."""
    out = []
    for testament in ("ot", "nt"):
        blocks, verses, texts = (
            debian_file(
                "kjv-es",
                _FOLDERS[folder],
                f"usr/share/sword/modules/texts/ztext/{folder}/{testament}.bz{end}",
            )
            for end in "svz"
        )
        try:
            unpacked = [
                zlib.decompress(texts[int(b["at"]) : int(b["at"]) + int(b["size"])])
                for b in np.frombuffer(blocks, _BLOCK)
            ]
            for v in np.frombuffer(verses, _VERSE):
                at, size = int(v["at"]), int(v["size"])
                text = unpacked[int(v["block"])][at : at + size] if size else b""
                out.append(_plain(text.decode("utf-8")))
        except (zlib.error, ValueError, IndexError) as error:
            raise ValueError(f"kjv-es: a file of {folder} is damaged: {error}") from None
    return out


def _plain(text: str) -> str:
    """The words of a verse in OSIS markup: neither notes nor titles."""
    text = _TAGS.sub("", _ASIDES.sub(" ", text)).replace("¶", " ").lower()
    return " ".join(html.unescape(text).split())


def arabic_names() -> Pairs:
    """Names in Arabic letters and in Latin ones: 30,515 pairs.

    The commonest Latin form of each single Arabic word; 2 to 16 Arabic letters, at most 20 Latin
    ones, which are two words here and there. The data base of the PyPI package
    arabic-name-romanizer. MissingDataError names the command that brings it.

    >>> from fusednn import data
    >>> try:
    ...     size = len(data.arabic_names().source)
    ... except data.MissingDataError:
    ...     size = 30515
    >>> size
    30515
    """
    package = Package("arabic-name-romanizer", "arabic_name_romanizer")
    content = file("names", package, "arabic_name_romanizer/resources/names.sqlite3")
    try:
        with closing(sqlite3.connect(":memory:")) as base:
            base.deserialize(content)
            rows = base.execute(
                "SELECT arabic_key, latin, count FROM units ORDER BY arabic_key, count DESC, latin"
            ).fetchall()
    except sqlite3.Error as error:
        raise ValueError(f"names: the data base is damaged: {error}") from None
    best: dict[str, str] = {}
    for arabic, latin, _ in rows:
        best.setdefault(arabic, latin)
    kept = [(a, b) for a, b in best.items() if 2 <= len(a) <= 16 and len(b) <= 20 and " " not in a]
    expect("names", "the number of pairs", len(kept), 30515)
    return Pairs([a for a, _ in kept], [b for _, b in kept])


__all__ = ["Pairs", "arabic_names", "kjv_es"]
