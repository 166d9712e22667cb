"""`train`, `generate` and `attention` with --device cuda: the networks learn there what they learn
on the CPU, on data that is there for every test."""

from __future__ import annotations

import re

import numpy as np
import pytest

from fusednn import cli, data

TEXT = "the cat sat on the mat.\nthe dog ran to the cat.\n" * 20
TINY = ("--width", "8", "--layers", "1", "--batch-size", "8", "--limit", "8")
RUNS = {
    "cnn": ("cnn", "--data", "digits", "--batch-size", "8", "--limit", "16"),
    "symmetry": ("symmetry", "--data", "digits", "--batch-size", "4", "--limit", "4"),
    "rnn": ("rnn", "--data", "stocks", "--length", "5", *TINY),
    "lstm": ("lstm", "--data", "shakespeare", "--length", "6", *TINY),
    "vowels": ("lstm", "--data", "japanese-vowels", "--dropout", "0.0", *TINY),
    "gpt": ("gpt", "--data", "shakespeare", "--length", "6", *TINY, "--heads", "2"),
    "translate": ("translate", "--data", "names", *TINY, "--heads", "2"),
}


@pytest.fixture(autouse=True)
def small(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    vocabulary = "".join(sorted(set(TEXT)))
    codes = np.array([vocabulary.index(c) for c in TEXT])
    corpus = data.Corpus(codes[:800], codes[800:], vocabulary)
    labels = random.integers(0, 9, 16)
    sounds = [random.standard_normal((5 + y % 3, 12)).astype("float32") for y in labels]
    vowels = data.SequenceDataset(sounds, labels)
    images = data.ArrayDataset(random.random((16, 1, 8, 8), "float32"), random.integers(0, 10, 16))
    months = np.datetime64("2000-01") + np.arange(30)
    stocks = {
        name: data.Series(months, np.exp(random.standard_normal(30) / 10).astype("float32"))
        for name in "AB"
    }
    pairs = data.Pairs(["ab", "ba", "a", "b", "aab"] * 120, ["xy", "yx", "x", "y", "xxy"] * 120)
    monkeypatch.setattr(data, "digits", lambda: (images, images))
    monkeypatch.setattr(data, "shakespeare", lambda: corpus)
    monkeypatch.setattr(data, "japanese_vowels", lambda: (vowels, vowels))
    monkeypatch.setattr(data, "stocks", lambda: stocks)
    monkeypatch.setattr(data, "arabic_names", lambda: pairs)
    # As many windows and samples as show that it runs.
    for name, value in (("EPOCH", 8), ("_CHECKS", 4), ("_SAMPLE", 2)):
        monkeypatch.setattr(f"fusednn.cli.train.text.{name}", value)
    monkeypatch.setattr("fusednn.cli.train.translate._HELD_OUT", 2)
    monkeypatch.setattr("fusednn.cli.train.translate.LONGEST", 3)


def losses(capsys, name, device):
    arguments = ("--device", device, "--epochs", "1", "--out", device, "--schedule", "constant")
    assert cli.main(["train", *RUNS[name], *arguments]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return [float(n) for n in re.findall(r"loss (\d+\.\d+)  validation (\d+\.\d+)", out) for n in n]


@pytest.mark.parametrize("name", RUNS)
def test_training_takes_the_cpus_course(name, capsys):
    expected = losses(capsys, name, "cpu")
    found = losses(capsys, name, "cuda")
    assert len(found) == 2
    np.testing.assert_allclose(found, expected, rtol=2e-3, atol=2e-4)


@pytest.mark.parametrize("name", ["gpt", "lstm", "translate"])
def test_generation_says_what_the_cpu_says(name, capsys):
    losses(capsys, name, "cpu")
    said = []
    for device in ("cpu", "cuda"):
        arguments = ["generate", "--checkpoint", "cpu", "--prompt", "a", "--tokens", "3"]
        assert cli.main([*arguments, "--device", device]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
