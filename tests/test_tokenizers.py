"""Tokenizers, windows of token ids, and loaders that draw or sort by length."""

import zlib

import numpy as np
import pytest

from fusednn import data
from fusednn.data import CharTokenizer, DataLoader, SubwordTokenizer, WindowDataset, tokenizer
from fusednn.data.translation import _plain

TEXTS = ["A rose is a rose.", "a Rose, is: é rose"]


def test_characters_and_specials():
    tokens = CharTokenizer("abc", ["<pad>", "<bos>"])
    assert len(tokens) == 5
    ids = tokens.encode("cab")
    assert (ids.dtype, ids.tolist()) == (np.int64, [4, 2, 3])
    assert tokens.decode([1, *ids, 0]) == "cab"
    assert tokens.labels([1, 4]) == ["<bos>", "c"]
    assert tokens.encode("").shape == (0,)
    assert tokens.decode([]) == ""
    again = tokenizer(tokens.describe())
    assert again.encode("abc").tolist() == [2, 3, 4]


def test_characters_are_refused_by_name():
    tokens = CharTokenizer("ab")
    with pytest.raises(ValueError, match=r"encode: \['x', 'y'\] are not in the vocabulary"):
        tokens.encode("axby")
    with pytest.raises(ValueError, match="decode: ids from -1 to 1, expected 0 to 1"):
        tokens.decode([1, -1])
    with pytest.raises(ValueError, match="labels: ids from 0 to 2"):
        tokens.labels([2, 0])
    with pytest.raises(TypeError, match="decode: ids must be integers, got float64"):
        tokens.decode([0.5])
    with pytest.raises(ValueError, match="given twice"):
        CharTokenizer("aba")


@pytest.mark.parametrize(
    "description",
    [{}, {"kind": "x", "specials": []}, {"kind": "characters", "specials": []}, {"kind": 3}],
)
def test_descriptions_of_nothing_are_refused(description):
    with pytest.raises(ValueError, match="tokenizer: not the description of one"):
        tokenizer(description)


def test_words():
    pytest.importorskip("tokenizers", reason="needs tokenizers: pip install '.[train]'")
    tokens = SubwordTokenizer.learn(TEXTS, "words", min_count=2, specials=["<pad>"])
    assert tokens.labels([0, 1]) == ["<pad>", "<unk>"]
    assert tokens.decode(tokens.encode("A ROSE is a tulip.")) == "a rose is a <unk> <unk>"
    again = tokenizer(tokens.describe())
    assert again.encode("is a rose").tolist() == tokens.encode("is a rose").tolist()
    assert len(again) == len(tokens) == 5
    with pytest.raises(ValueError, match="decode: ids from 9 to 9"):
        tokens.decode([9])


def test_byte_pairs_make_any_text():
    pytest.importorskip("tokenizers", reason="needs tokenizers: pip install '.[train]'")
    tokens = SubwordTokenizer.learn(TEXTS * 5, "bpe", size=262, specials=["<eos>"])
    assert len(tokens) <= 262
    for text in (*TEXTS, "日本 ☃\n", ""):
        assert tokens.decode(tokens.encode(text)) == text
    assert len(tokens.encode("rose rose")) < 9
    assert tokens.labels([0]) == ["<eos>"]
    assert tokens.decode([0, *tokens.encode("x")]) in ("x", "<eos>x")
    again = tokenizer(tokens.describe())
    assert again.encode(TEXTS[1]).tolist() == tokens.encode(TEXTS[1]).tolist()
    broken = {**tokens.describe(), "json": "{"}
    with pytest.raises(ValueError, match="tokenizer: not the description of one"):
        tokenizer(broken)


def test_without_the_package_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"pip install 'fusednn\[train\]'"):
        SubwordTokenizer.learn(TEXTS)
    with pytest.raises(ValueError, match="kind='letters', expected 'words' or 'bpe'"):
        SubwordTokenizer.learn(TEXTS, "letters")


# ---- windows -------------------------------------------------------------------------------------


def test_windows_are_inputs_and_what_follows():
    windows = WindowDataset(np.arange(10, dtype=np.uint8), 3)
    assert len(windows) == 7
    x, y = windows.take([6, 0])
    assert (x.dtype, x.tolist()) == (np.int64, [[6, 7, 8], [0, 1, 2]])
    assert y.tolist() == [[7, 8, 9], [1, 2, 3]]
    assert windows[-1][1].tolist() == [7, 8, 9]
    assert len(WindowDataset(np.arange(2), 1)) == 1
    with pytest.raises(IndexError):
        windows.take([7])
    with pytest.raises(IndexError):
        windows[7]


def test_windows_that_cannot_be():
    for length in (0, 10, 11):
        with pytest.raises(ValueError, match=f"length={length}, expected 1 to 9"):
            WindowDataset(np.arange(10), length)
    with pytest.raises(TypeError, match="expected integers along one axis"):
        WindowDataset(np.zeros(5), 2)


# ---- loaders -------------------------------------------------------------------------------------


def drawn(loader):
    return [batch[0].tolist() for batch in loader]


def test_draws_are_an_epoch_and_resume():
    numbers = data.ArrayDataset(np.arange(1000))

    def made():
        return DataLoader(numbers, 4, shuffle=True, seed=3, draws=10)

    loader = made()
    assert len(loader) == 3
    epochs = [drawn(loader) for _ in range(3)]
    assert [len(batch) for batch in epochs[0]] == [4, 4, 2]
    assert epochs[0] != epochs[1]
    half = made()
    it = iter(half)
    assert next(it)[0].tolist() == epochs[0][0]
    state = half.state_dict()
    resumed = made()
    resumed.load_state_dict(state)
    assert drawn(resumed) == epochs[0][1:]
    assert drawn(resumed) == epochs[1]


@pytest.mark.parametrize("size", [1, 7, 8, 1003])
def test_lengths_sort_every_sample_into_one_batch(size):
    lengths = np.random.default_rng(0).integers(1, 100, size)
    dataset = data.ArrayDataset(np.arange(size))
    loader = DataLoader(dataset, 8, shuffle=True, seed=1, lengths=lengths)
    batches = drawn(loader)
    assert sorted(np.concatenate(batches)) == list(range(size))
    assert len(batches) == len(loader)
    assert all(len(batch) == 8 for batch in batches[:-1])
    assert drawn(loader) != batches or size <= 8
    if size > 1000:
        spread = np.mean([np.ptp(lengths[batch]) for batch in batches])
        assert spread < 10  # of 99, without sorting nearly 80


def test_sampling_that_cannot_be():
    numbers = data.ArrayDataset(np.arange(5))
    with pytest.raises(ValueError, match="draws needs shuffle=True"):
        DataLoader(numbers, draws=3)
    with pytest.raises(ValueError, match="lengths needs shuffle=True"):
        DataLoader(numbers, lengths=np.ones(5))
    with pytest.raises(ValueError, match=r"lengths have shape \(4,\), expected one for each of 5"):
        DataLoader(numbers, shuffle=True, lengths=np.ones(4))
    with pytest.raises(ValueError, match="do not go together"):
        DataLoader(numbers, shuffle=True, draws=3, lengths=np.ones(5))
    with pytest.raises(ValueError, match="draws=0, expected at least 1"):
        DataLoader(numbers, shuffle=True, draws=0)
    with pytest.raises(ValueError, match="nothing to draw"):
        DataLoader(data.ArrayDataset(np.arange(0)), shuffle=True, draws=3)


# ---- translations --------------------------------------------------------------------------------


def test_verses_without_their_markup():
    text = (
        '<title>The Fall</title> <w x="1">And</w> ¶ God<note a="b">or: <i>x</i></note> said &amp;c.'
    )
    assert _plain(text) == "and god said &c."
    assert _plain('<title level="1"/>kept <chapter n="1"/>') == "kept"


@pytest.mark.parametrize(("read", "size"), [(data.kjv_es, 31084), (data.arabic_names, 30515)])
def test_pairs_are_complete(read, size):
    try:
        pairs = read()
    except data.MissingDataError as error:
        pytest.skip(str(error))
    assert len(pairs.source) == len(pairs.target) == size
    if read is data.kjv_es:
        assert pairs.source[0] == "in the beginning god created the heaven and the earth."
        assert pairs.target[0] == "en el principio crió dios los cielos y la tierra."
        assert not any("<" in text for side in pairs for text in side)


def test_damaged_modules_are_named(tmp_path, monkeypatch):
    monkeypatch.setenv("FUSEDNN_DATA", str(tmp_path))
    folder = tmp_path / "usr/share/sword/modules/texts/ztext/engKJV2006eb"
    folder.mkdir(parents=True)
    with pytest.raises(data.MissingDataError, match="sword-text-kjv"):
        data.kjv_es()
    packed = zlib.compress(b"text")
    for testament in ("ot", "nt"):
        (folder / f"{testament}.bzs").write_bytes(np.array([0, len(packed), 4], "<u4").tobytes())
        (folder / f"{testament}.bzv").write_bytes(b"\0" * 10)
        (folder / f"{testament}.bzz").write_bytes(packed[:-3])
    with pytest.raises(ValueError, match="kjv-es: a file of engKJV2006eb is damaged"):
        data.kjv_es()
