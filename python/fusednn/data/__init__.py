"""Data sets, batches of them, and readers for real data that comes inside packages.

`DataLoader` makes batches of anything with a length and a subscript; `ArrayDataset` and
`SequenceDataset` hold arrays. The readers (`digits`, `fashion_mnist`, ...) find data where a
package has put it: none is shipped with this one, and a missing package is named with the command
that brings it.
"""

from . import augment
from .collate import collate, collate_ragged, pad_sequences
from .dataset import (
    ArrayDataset,
    SequenceDataset,
    Subset,
    WindowDataset,
    random_split,
    split,
)
from .images import digits, fashion_mnist, mnist5k
from .loader import DataLoader
from .series import Series, japanese_vowels, stocks, sunspots
from .sources import MissingDataError, cache_folder
from .text import Corpus, shakespeare
from .tokenizers import CharTokenizer, SubwordTokenizer, Tokenizer, tokenizer
from .translation import Pairs, arabic_names, kjv_es

__all__ = [
    "ArrayDataset",
    "CharTokenizer",
    "Corpus",
    "DataLoader",
    "MissingDataError",
    "Pairs",
    "SequenceDataset",
    "Series",
    "Subset",
    "SubwordTokenizer",
    "Tokenizer",
    "WindowDataset",
    "arabic_names",
    "augment",
    "cache_folder",
    "collate",
    "collate_ragged",
    "digits",
    "fashion_mnist",
    "japanese_vowels",
    "kjv_es",
    "mnist5k",
    "pad_sequences",
    "random_split",
    "shakespeare",
    "split",
    "stocks",
    "sunspots",
    "tokenizer",
]
