"""Text into token ids and back: characters here; words and byte pairs by the package tokenizers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from .._tensor.tape import Array, raw

_WORD = r"\w+|[^\w\s]"
UNKNOWN = "<unk>"


class Tokenizer(Protocol):
    """What `CharTokenizer` and `SubwordTokenizer` have in common."""

    def __len__(self) -> int: ...

    def encode(self, text: str) -> Array:
        """Ids (int64) of a text."""

    def decode(self, ids: Any) -> str:
        """The text of ids; special ones are left out."""

    def labels(self, ids: Any) -> list[str]:
        """The text of each id, special ones by their name."""

    def describe(self) -> dict[str, Any]:
        """What `tokenizer` makes an equal one of: strings and lists."""


def _ids(op: str, ids: Any, size: int) -> list[int]:
    array = np.asarray(raw(ids))
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{op}: ids must be integers, got {array.dtype}")
    found: list[int] = array.astype(np.int64).ravel().tolist()
    if found and not 0 <= min(found) <= max(found) < size:
        raise ValueError(f"{op}: ids from {min(found)} to {max(found)}, expected 0 to {size - 1}")
    return found


class CharTokenizer:
    """One id per character: specials first, then the characters in the order given.

    ValueError for a text with a character it does not have, and for characters given twice.

    >>> from fusednn.data import CharTokenizer
    >>> tokens = CharTokenizer("abc", specials=["<pad>"])
    >>> tokens.encode("cab").tolist(), tokens.decode([0, 3, 1])
    ([3, 1, 2], 'ca')
    """

    def __init__(self, characters: str, specials: Sequence[str] = ()) -> None:
        if len(set(characters)) != len(characters):
            raise ValueError("CharTokenizer: a character was given twice")
        self.characters, self.specials = characters, list(specials)
        first = len(self.specials)
        self._places = {character: first + i for i, character in enumerate(characters)}

    def __len__(self) -> int:
        return len(self.specials) + len(self.characters)

    def encode(self, text: str) -> Array:
        unknown = sorted(set(text) - set(self._places))
        if unknown:
            raise ValueError(f"encode: {unknown} are not in the vocabulary")
        return np.array([self._places[character] for character in text], np.int64)

    def labels(self, ids: Any) -> list[str]:
        members = [*self.specials, *self.characters]
        return [members[i] for i in _ids("labels", ids, len(self))]

    def decode(self, ids: Any) -> str:
        first = len(self.specials)
        found = _ids("decode", ids, len(self))
        return "".join(self.characters[i - first] for i in found if i >= first)

    def describe(self) -> dict[str, Any]:
        return {"kind": "characters", "characters": self.characters, "specials": self.specials}


class SubwordTokenizer:
    """Words or byte pairs, learnt from texts; needs the package tokenizers (extra `train`).

    kind "words": lower-case words and single marks that occur at least min_count times; all others
    are `<unk>`. kind "bpe": byte pairs, `size` tokens in all, of which any text can be made.
    Sennrich, Haddow, Birch, "Neural machine translation of rare words with subword units", ACL
    2016. ImportError names the extra if the package is missing, ValueError refuses another kind.

    >>> from fusednn.data import SubwordTokenizer
    >>> try:
    ...     tokens = SubwordTokenizer.learn(["a rose is a rose."], "words", specials=["<pad>"])
    ...     text = tokens.decode(tokens.encode("A rose."))
    ... except ImportError:
    ...     text = "a rose ."
    >>> text
    'a rose .'
    """

    def __init__(self, inner: Any, kind: str, specials: Sequence[str]) -> None:
        self._inner, self.kind, self.specials = inner, kind, list(specials)

    @classmethod
    def learn(
        cls,
        texts: Iterable[str],
        kind: str = "bpe",
        *,
        size: int = 1000,
        min_count: int = 1,
        specials: Sequence[str] = (),
    ) -> SubwordTokenizer:
        """Learns from texts; specials get the first ids."""
        if kind not in ("words", "bpe"):
            raise ValueError(f"SubwordTokenizer: kind={kind!r}, expected 'words' or 'bpe'")
        package = _package()
        from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

        trainer: Any
        if kind == "words":
            specials = [*specials, UNKNOWN]
            inner = package.Tokenizer(models.WordLevel(unk_token=UNKNOWN))
            inner.normalizer = normalizers.Lowercase()
            pattern = package.Regex(_WORD)
            inner.pre_tokenizer = pre_tokenizers.Split(pattern, "removed", invert=True)
            trainer = trainers.WordLevelTrainer(
                vocab_size=1 << 30, min_frequency=min_count, special_tokens=list(specials),
                show_progress=False,
            )  # fmt: skip
        else:
            inner = package.Tokenizer(models.BPE())
            inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            inner.decoder = decoders.ByteLevel()
            trainer = trainers.BpeTrainer(
                vocab_size=size, special_tokens=list(specials), show_progress=False,
                initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            )  # fmt: skip
        inner.train_from_iterator(texts, trainer)
        return cls(inner, kind, specials)

    def __len__(self) -> int:
        size: int = self._inner.get_vocab_size()
        return size

    def encode(self, text: str) -> Array:
        return np.array(self._inner.encode(text).ids, np.int64)

    def labels(self, ids: Any) -> list[str]:
        found = _ids("labels", ids, len(self))
        if self.kind == "words":
            return [self._inner.id_to_token(i) for i in found]
        special = len(self.specials)
        return [self.specials[i] if i < special else self._inner.decode([i]) for i in found]

    def decode(self, ids: Any) -> str:
        found = _ids("decode", ids, len(self))
        if self.kind == "words":
            hidden = len(self.specials) - 1  # the unknown word is shown
            return " ".join(self._inner.id_to_token(i) for i in found if i >= hidden)
        text: str = self._inner.decode(found)
        return text

    def describe(self) -> dict[str, Any]:
        return {"kind": self.kind, "specials": self.specials, "json": self._inner.to_str()}


def _package() -> Any:
    try:
        import tokenizers
    except ImportError:
        raise ImportError(
            "words and byte pairs need the package tokenizers: pip install 'fusednn[train]'"
        ) from None
    return tokenizers


def tokenizer(description: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a description; ValueError if it is not one.

    >>> from fusednn.data import CharTokenizer, tokenizer
    >>> tokenizer(CharTokenizer("ab").describe()).encode("ba").tolist()
    [1, 0]
    """
    try:
        kind, specials = description["kind"], list(description["specials"])
        if kind == "characters":
            return CharTokenizer(description["characters"], specials)
        if kind not in ("words", "bpe"):
            raise ValueError(f"kind {kind!r}")
        content = str(description["json"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"tokenizer: not the description of one: {error}") from None
    package = _package()
    try:
        inner = package.Tokenizer.from_str(content)
    except Exception as error:  # the package raises Exception itself
        raise ValueError(f"tokenizer: not the description of one: {error}") from None
    return SubwordTokenizer(inner, kind, specials)


__all__ = ["CharTokenizer", "SubwordTokenizer", "Tokenizer", "tokenizer"]
