"""Sequences and time series."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .._tensor.tape import Array
from .dataset import SequenceDataset
from .sources import Package, expect, file

_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class Series(NamedTuple):
    """Values at months (datetime64[M]) or years (datetime64[Y])."""

    time: Array
    values: Array


def japanese_vowels() -> tuple[SequenceDataset, SequenceDataset]:
    """Utterances of nine speakers: 270 to train and 370 to test, (T, 12) float32 with T 7 ... 29.

    The label (int64, 0 ... 8) is the speaker. Kudo, Toyama, Shimbo, "Multidimensional curve
    classification using passing-through regions", 1999; the files that sktime has.
    MissingDataError names the command that brings them.

    >>> from fusednn import data
    >>> try:
    ...     train, test = data.japanese_vowels()
    ...     sizes = len(train), len(test)
    ... except data.MissingDataError:
    ...     sizes = 270, 370
    >>> sizes
    (270, 370)
    """
    return _vowels("TRAIN", 270), _vowels("TEST", 370)


def _vowels(part: str, size: int) -> SequenceDataset:
    data = "japanese-vowels"
    path = f"sktime/datasets/data/JapaneseVowels/JapaneseVowels_{part}.ts"
    text = file(data, Package("sktime", "sktime"), path).decode("latin-1")
    lines = text.partition("@data")[2].split()
    expect(data, "the number of utterances", len(lines), size)
    sequences, labels = [], []
    for line in lines:
        *channels, label = line.split(":")
        try:
            sequence = np.array([channel.split(",") for channel in channels], np.float32).T
            labels.append(int(label) - 1)
        except ValueError as error:
            raise ValueError(f"{data}: a line is damaged: {error}") from None
        expect(data, "the number of channels", len(channels), 12)
        sequences.append(np.ascontiguousarray(sequence))
    lengths = [len(sequence) for sequence in sequences]
    expect(data, "lengths outside 7 ... 29", [n for n in lengths if not 7 <= n <= 29], [])
    expect(data, "the set of speakers", sorted(set(labels)), list(range(9)))
    return SequenceDataset(sequences, np.array(labels, np.int64))


def sunspots(yearly: bool = False) -> Series:
    """Sunspot numbers as float32: 3126 monthly means from January 1749 on, or 309 yearly ones from
    1700 on.

    SIDC, Royal Observatory of Belgium; the files that statsmodels has. MissingDataError names the
    command that brings them.

    >>> from fusednn import data
    >>> try:
    ...     size = len(data.sunspots().values)
    ... except data.MissingDataError:
    ...     size = 3126
    >>> size
    3126
    """
    data, package = "sunspots", Package("statsmodels", "statsmodels")
    if yearly:
        text = file(data, package, "statsmodels/datasets/sunspots/sunspots.csv").decode("latin-1")
        rows = [line.split(",") for line in text.split()[1:]]
        start, size = np.datetime64("1700", "Y"), 309
    else:
        path = "statsmodels/datasets/sunspots/src/sunspots_monthly.dat"
        text = file(data, package, path).decode("latin-1")
        table = [line.split() for line in text.splitlines()]
        rows = [[row[0], value] for row in table if row and row[0].isdigit() for value in row[1:]]
        start, size = np.datetime64("1749-01", "M"), 3126
    try:
        values = np.array([row[1] for row in rows], np.float32)
    except (ValueError, IndexError) as error:
        raise ValueError(f"{data}: a line is damaged: {error}") from None
    expect(data, "the number of values", len(values), size)
    time = start + np.arange(size)
    years = [str(row[0]) for row in rows]
    expect(data, "the order of the years", years, [str(t)[:4] for t in time])
    return Series(time, values)


def stocks() -> dict[str, Series]:
    """Monthly prices (float32, dollars) of five companies by symbol, January 2000 to March 2010.

    560 prices in all. The file that vega-datasets has; MissingDataError names the command that
    brings it.

    >>> from fusednn import data
    >>> try:
    ...     symbols = list(data.stocks())
    ... except data.MissingDataError:
    ...     symbols = ["MSFT", "AMZN", "IBM", "GOOG", "AAPL"]
    >>> symbols
    ['MSFT', 'AMZN', 'IBM', 'GOOG', 'AAPL']
    """
    data, package = "stocks", Package("vega-datasets", "vega_datasets")
    text = file(data, package, "vega_datasets/_data/stocks.csv").decode("latin-1")
    rows = [line.split(",") for line in text.splitlines()[1:] if line]
    expect(data, "the number of prices", len(rows), 560)
    found: dict[str, list[tuple[np.datetime64, float]]] = {}
    try:
        for symbol, date, price in rows:
            found.setdefault(symbol, []).append((_month(date), float(price)))
    except ValueError as error:
        raise ValueError(f"{data}: a line is damaged: {error}") from None
    expect(data, "the number of companies", len(found), 5)
    return {
        symbol: Series(np.array([t for t, _ in pairs]), np.array([v for _, v in pairs], np.float32))
        for symbol, pairs in found.items()
    }


def _month(text: str) -> np.datetime64:
    """The month of "Jan 1 2000"."""
    month, _, year = text.split()
    return np.datetime64(f"{int(year)}-{_MONTHS.index(month) + 1:02}", "M")
