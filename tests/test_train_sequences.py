"""`train lstm`, `rnn`, `gpt` and `translate`, then `generate` and `attention`, on small data."""

import os
import re
import signal

import numpy as np
import pytest

import fusednn as fn
from fusednn import cli, data, io, models, nn, optim
from fusednn.cli.train import loop
from fusednn.cli.train.task import Progress, Task

TEXT = "the cat sat on the mat.\nthe dog ran to the cat.\n" * 60
ENGLISH = ["the cat", "the dog", "a cat", "a dog", "cat and dog", "the cat ran"] * 100
SPANISH = ["el gato", "el perro", "un gato", "un perro", "gato y perro", "el gato corre"] * 100


@pytest.fixture(autouse=True)
def small(tmp_path, monkeypatch):
    """Data of the right kind that are there for every test."""
    monkeypatch.chdir(tmp_path)
    vocabulary = "".join(sorted(set(TEXT)))
    codes = np.array([vocabulary.index(c) for c in TEXT])
    corpus = data.Corpus(codes[:2400], codes[2400:], vocabulary)
    random = np.random.default_rng(0)

    def speakers(size):
        labels = random.integers(0, 9, size)
        found = [
            (random.standard_normal((random.integers(7, 12), 12)) + y).astype(np.float32)
            for y in labels
        ]
        return data.SequenceDataset(found, labels)

    vowels = speakers(60), speakers(30)
    months = np.datetime64("2000-01") + np.arange(60)
    stocks = {
        name: data.Series(months, np.exp(random.standard_normal(60) / 10).astype(np.float32))
        for name in ("A", "B", "C", "D", "E")
    }
    monkeypatch.setattr(data, "shakespeare", lambda: corpus)
    monkeypatch.setattr(data, "japanese_vowels", lambda: vowels)
    monkeypatch.setattr(data, "stocks", lambda: stocks)
    monkeypatch.setattr(data, "kjv_es", lambda: data.Pairs(ENGLISH, SPANISH))
    monkeypatch.setattr(data, "arabic_names", lambda: data.Pairs(ENGLISH, SPANISH))
    return tmp_path


TINY = ("--width", "16", "--layers", "1", "--batch-size", "8")
RUNS = {
    "lstm": ("lstm", "--data", "shakespeare", "--length", "12", "--limit", "40", *TINY),
    "vowels": ("lstm", "--data", "japanese-vowels", "--limit", "30", *TINY),
    "rnn": ("rnn", "--data", "stocks", "--length", "5", "--limit", "40", *TINY),
    "gpt": (
        "gpt", "--data", "shakespeare", "--length", "12", "--limit", "40", *TINY, "--heads", "2",
        "--dropout", "0.1",
    ),
    "translate": ("translate", "--data", "names", "--limit", "40", *TINY, "--heads", "2"),
}  # fmt: skip
ALL = {
    "--accumulate": "3", "--clip-grad-norm": "0.5", "--ema": "0.8", "--schedule": "inverse-sqrt",
    "--warmup": "4",
}  # fmt: skip
EVERYTHING = [word for pair in ALL.items() for word in pair]


def train(name, *arguments):
    return cli.main(["train", *RUNS[name], *map(str, arguments)])


def last(out):
    return (out / "last.safetensors").read_bytes()


# ---- runs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RUNS)
def test_a_run_learns_and_says_so(name, capsys):
    assert train(name, "--epochs", 4, "--out", "run", "--lr", 0.02) == 0
    out, err = capsys.readouterr()
    assert err == ""
    rows = [line for line in out.splitlines() if line.startswith("epoch")]
    losses = [float(re.search(r"loss (\d+\.\d{4})  validation \d+\.\d{4}", row)[1]) for row in rows]
    assert len(losses) == 4
    assert losses[-1] < losses[0]
    unit = {"lstm": " nats/char", "gpt": " nats/char", "translate": " nats/token"}.get(name, "")
    assert f"{unit}  " in rows[0]
    shown = [line for line in out.splitlines() if line.startswith("    | ")]
    assert bool(shown) == (name in ("lstm", "gpt", "translate"))
    assert sorted(os.listdir("run")) == ["best.safetensors", "last.safetensors"]


@pytest.mark.parametrize("name", RUNS)
@pytest.mark.parametrize(
    "options", [["--schedule", "constant"], EVERYTHING], ids=["plain", "everything"]
)
def test_resumed_runs_end_in_the_same_bits(name, options, small):
    assert train(name, "--epochs", 3, "--out", "whole", *options) == 0
    assert train(name, "--epochs", 1, "--out", "run", *options, "--threads", 2) == 0
    assert train(name, "--epochs", 3, "--out", "run", "--resume") == 0
    assert last(small / "run") == last(small / "whole")
    best = [(small / out / "best.safetensors").read_bytes() for out in ("run", "whole")]
    assert best[0] == best[1]


@pytest.mark.parametrize("updates", [1, 2, 3])
def test_ctrl_c_never_stops_half_an_update(updates, small, monkeypatch, capsys):
    """With 5 batches an epoch, updates are of 3 and 2."""
    options = (*EVERYTHING, "--epochs", 2)
    assert train("gpt", *options, "--out", "whole") == 0
    update, count = loop._update, [0]

    def counted(*arguments):
        count[0] += 1
        if count[0] == updates:
            signal.raise_signal(signal.SIGINT)
        return update(*arguments)

    monkeypatch.setattr(loop, "_update", counted)
    assert train("gpt", *options, "--out", "run") == 130
    assert "saved. Go on with" in capsys.readouterr().err
    monkeypatch.setattr(loop, "_update", update)
    assert train("gpt", "--resume", "--out", "run") == 0
    assert last(small / "run") == last(small / "whole")


def test_accumulated_gradients_are_those_of_a_large_batch():
    x = np.random.default_rng(0).standard_normal((11, 3), np.float32)

    def updated(sizes):
        fn.manual_seed(0)
        model = nn.Linear(3, 1)
        task = Task(
            "", model, optim.SGD(model.parameters(), lr=0.1), None,
            lambda batch: (model(batch[0]) ** 2).mean(), dict, "loss",
        )  # fmt: skip
        group, at = [], 0
        for size in sizes:
            group.append((x[at : at + size],))
            at += size
        progress = Progress(0, 0.0, 0, [], 0)
        loop._update(task, progress, group, None)
        return model.weight.numpy(), progress

    whole, once = updated([11])
    parts, split = updated([4, 4, 3])
    np.testing.assert_allclose(parts, whole, rtol=1e-5)
    assert split.samples == once.samples == 11
    assert split.loss_sum == pytest.approx(once.loss_sum, rel=1e-5)


def test_clipping_and_averages_reach_the_optimiser(small, monkeypatch):
    seen = []
    clip = optim.clip_grad_norm_
    monkeypatch.setattr(optim, "clip_grad_norm_", lambda p, n: seen.append(n) or clip(p, n))
    assert train("gpt", *EVERYTHING, "--epochs", 1, "--out", "run") == 0
    assert seen == [0.5] * 2  # 5 batches in updates of 3 and 2
    state = fn.load("run/last.safetensors")
    assert state["average"]["updates"] == 2
    best = fn.load("run/best.safetensors")
    for name, average in state["average"]["averages"].items():
        np.testing.assert_array_equal(best[name], average)
    assert any((best[name] != value).any() for name, value in state["model"].items())


def test_the_rate_follows_the_schedule(capsys):
    assert train("lstm", "--epochs", 2, "--out", "a", "--schedule", "cosine", "--warmup", 5) == 0
    rows = io.load_checkpoint("a/last.safetensors", random=False)["progress"]["history"]
    assert [row["lr"] for row in rows] == [pytest.approx(4e-3), pytest.approx(0, abs=1e-9)]
    assert train("lstm", "--epochs", 1, "--out", "b", "--warmup", 10) == 0
    rows = io.load_checkpoint("b/last.safetensors", random=False)["progress"]["history"]
    assert rows[0]["lr"] == pytest.approx(4e-3 * 6 / 10)


def test_early_stop_and_curves(small, capsys):
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install '.[plot]'")
    assert train("rnn", "--epochs", 9, "--lr", 1e-12, "--early-stop", 1, "--plot", "x.png") == 0
    assert "(stopped early)" in capsys.readouterr().out
    content = (small / "x.png").read_bytes()
    assert [int.from_bytes(content[at : at + 4], "big") for at in (16, 20)] == [1350, 1200]
    assert train("gpt", "--epochs", 2, "--plot", "y.png") == 0
    content = (small / "y.png").read_bytes()
    assert [int.from_bytes(content[at : at + 4], "big") for at in (16, 20)] == [1350, 600]


# ---- what cannot be ------------------------------------------------------------------------------


def refused(capsys, command, *arguments):
    capsys.readouterr()
    assert cli.main([command, *map(str, arguments)]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"fusednn {command}")
    assert err.count("\n") == 1, err
    return err


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("gpt", ["--heads", 3], "--width 16 is not a multiple of --heads 3"),
        ("translate", ["--heads", 5], "--width 16 is not a multiple of --heads 5"),
        ("lstm", ["--length", 5000, "--limit", 1], "--length 5000: "),
        ("rnn", ["--length", 48], "--length 48: expected 1 to 46 months"),
        (
            "lstm",
            ["--schedule", "cosine", "--warmup", 10, "--epochs", 1],
            "--warmup 10: the run has 5 updates in all",
        ),
    ],
)
def test_arguments_that_cannot_be(name, options, text, small, capsys):
    assert text in refused(capsys, "train", *RUNS[name], *options)
    assert os.listdir(small) == []


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--ema", "1"], "argument --ema: 1 is not a number in [0, 1)"),
        (["--dropout", "x"], "argument --dropout: 'x' is not a number"),
        (["--clip-grad-norm", "0"], "argument --clip-grad-norm: 0 is not a positive number"),
        (["--accumulate", "0"], "argument --accumulate: 0 is below 1"),
        (["--warmup", "-1"], "argument --warmup: -1 is below 1"),
        (["--schedule", "step"], "argument --schedule: invalid choice: 'step'"),
        (["--tokens", "words"], "argument --tokens: invalid choice: 'words'"),
    ],
)
def test_wrong_arguments_are_answered_in_one_line(options, text, capsys):
    with pytest.raises(SystemExit) as stop:
        train("gpt", *options)
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert text in err
    assert err.count("\n") == 1


def test_runs_are_resumed_as_they_were(capsys):
    options = ("--schedule", "cosine", "--epochs", 2, "--ema", 0.5)
    assert train("gpt", *options, "--out", "run") == 0
    resume = ("train", *RUNS["gpt"], "--out", "run", "--resume")
    assert "--epochs 3: the cosine of the run" in refused(capsys, *resume, "--epochs", 3)
    assert "--ema 0.25: the run that is resumed has 0.5" in refused(capsys, *resume, "--ema", 0.25)
    again = [word if word != "12" else "13" for word in resume]
    assert "--length 13: the run that is resumed has 12" in refused(capsys, *again)
    other = ("train", *RUNS["lstm"], "--out", "run", "--resume")
    assert "is not one of this command" in refused(capsys, *other)
    state = fn.load("run/last.safetensors")
    for part, name, value, text in (
        ("config", "tokens", "words", "is not one of this command"),
        ("config", "dropout", 2.0, "is not one of this command"),
        ("config", "warmup", -3, "is not one of this command"),
        ("about", "model", {}, "of another network or vocabulary"),
    ):
        metadata = {**state["metadata"], part: {**state["metadata"][part], name: value}}
        fn.save({**state, "metadata": metadata}, "run/last.safetensors")
        assert text in refused(capsys, *resume)


# ---- generate ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return tmp_path_factory.mktemp("trained")


def run_of(name, trained):
    """The folder of a run that is made once."""
    out = trained / name
    if not out.exists():
        assert train(name, "--epochs", 2, "--out", out) == 0
    return out


def written(capsys, *arguments):
    capsys.readouterr()
    assert cli.main(["generate", *map(str, arguments)]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


@pytest.mark.parametrize("name", ["lstm", "gpt"])
def test_text_goes_on_behind_a_prompt(name, trained, capsys):
    out = run_of(name, trained)
    greedy = written(capsys, "--checkpoint", out, "--prompt", "the c", "--greedy", "--tokens", 9)
    assert greedy.startswith("the c")
    assert len(greedy) == 5 + 9 + 1
    kind = models.GPT if name == "gpt" else models.CharLSTM
    about = io.load_checkpoint(out / "last.safetensors", random=False)["about"]
    model = kind(**about["model"])
    model.load_state_dict(fn.load(out / "best.safetensors"))
    tokens = data.tokenizer(about["tokenizer"])
    (ids,) = model.eval().generate([tokens.encode("the c")], 9, temperature=0)
    assert greedy == tokens.decode(ids) + "\n"
    options = ("--checkpoint", out, "--prompt", "the c", "--tokens", 20)
    drawn = written(capsys, *options, "--seed", 1)
    assert written(capsys, *options, "--seed", 1) == drawn
    assert written(capsys, *options, "--seed", 2) != drawn
    assert written(capsys, *options, "--top-k", 1) == written(capsys, *options, "--greedy")
    assert written(capsys, *options, "--top-p", 1e-9) == written(capsys, *options, "--greedy")
    for path in (out / "last.safetensors", out / "best.safetensors"):
        assert written(capsys, "--checkpoint", path, "--tokens", 3)
    if name == "gpt":
        assert len(written(capsys, *options, "--beams", 2)) == 5 + 20 + 1


def test_prompts_are_translated(trained, capsys):
    out = run_of("translate", trained)
    once = written(capsys, "--checkpoint", out, "--prompt", "the cat")
    assert written(capsys, "--checkpoint", out, "--prompt", "the cat", "--top-k", 1) == once
    assert written(capsys, "--checkpoint", out, "--prompt", "the cat", "--beams", 3)


def test_byte_pairs_and_words(small, capsys):
    pytest.importorskip("tokenizers", reason="needs tokenizers: pip install '.[train]'")
    options = ("--tokens", "bpe", "--vocabulary", 280, "--epochs", 1, "--out", "bpe")
    assert train("gpt", *options) == 0
    assert " nats/token " in capsys.readouterr().out
    assert written(capsys, "--checkpoint", "bpe", "--prompt", "the é", "--tokens", 5)
    before = last(small / "bpe")
    assert train("gpt", "--resume", "--out", "bpe") == 0
    assert last(small / "bpe") == before
    words = [word if word != "names" else "kjv-es" for word in RUNS["translate"]]
    assert cli.main(["train", *words, "--epochs", "1", "--out", "words"]) == 0
    assert written(capsys, "--checkpoint", "words", "--prompt", "A cat RAN, unheard of")


def test_without_tokenizers_their_extra_is_named(monkeypatch, capsys):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    for words in (
        [*RUNS["gpt"], "--tokens", "bpe"],
        [word if word != "names" else "kjv-es" for word in RUNS["translate"]],
    ):
        assert "pip install 'fusednn[train]'" in refused(capsys, "train", *words)


def test_prompts_and_checkpoints_that_cannot_be(trained, capsys, small):
    lstm, vowels = run_of("lstm", trained), run_of("vowels", trained)

    def answer(*arguments):
        return refused(capsys, "generate", "--checkpoint", *arguments)

    assert "--prompt: encode: ['X'] are not in the vocabulary" in answer(lstm, "--prompt", "X")
    assert "--prompt: there is no token in it" in answer(lstm, "--prompt", "")
    assert "--beams: an LSTM has none" in answer(lstm, "--beams", 2)
    assert "--checkpoint nowhere: there is no such file" in answer("nowhere")
    assert "a lstm on japanese-vowels" in answer(vowels)
    assert "[Errno 2]" in answer(small)
    (small / "last.safetensors").write_bytes(b"no")
    assert "is not a readable safetensors file" in answer(small)
    fn.save({"metadata": {"config": {}}, "x": 3}, small / "last.safetensors")
    assert "it is not of a run of `train`" in answer(small)
    state = fn.load(lstm / "last.safetensors")
    about = {**state["metadata"]["about"], "model": {"vocab_size": 3}}
    fn.save({**state, "metadata": {**state["metadata"], "about": about}}, "last.safetensors")
    assert "does not fit CharLSTM" in answer(small)
    long = "the cat " * 20
    assert "tokens, expected at most 64" in answer(
        run_of("translate", trained), "--prompt", long.strip()
    )


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--temperature", "-1"], "-1 is not a number of at least 0"),
        (["--top-p", "0"], "0 is not a number in (0, 1]"),
        (["--top-k", "0"], "0 is below 1"),
        (["--greedy", "--temperature", "1"], "not allowed with argument --greedy"),
    ],
)
def test_wrong_options_of_generate(options, text, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["generate", "--checkpoint", "x", *options])
    assert stop.value.code == 2
    err = capsys.readouterr().err
    assert text in err
    assert err.count("\n") == 1


# ---- attention -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gpt", "translate"])
def test_heads_are_drawn(name, trained, small, capsys):
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install '.[plot]'")
    options = ("--checkpoint", str(run_of(name, trained)), "--text", "the cat")
    capsys.readouterr()
    assert cli.main(["attention", *options]) == 0
    assert re.match(r"2 heads, \d+ x 7 tokens, in attention.png\n", capsys.readouterr().out)
    assert (small / "attention.png").read_bytes()[:4] == b"\x89PNG"
    assert cli.main(["attention", *options, "--plot", "x.svg", "--layer", "1"]) == 0
    assert (small / "x.svg").stat().st_size > 1000


def test_drawn_weights_are_those_of_the_network(trained):
    from fusednn.cli import attention, saved

    network = saved.saved(run_of("gpt", trained), ("gpt",))
    ids = network.tokens.encode("the cat")
    with fn.no_grad():
        weights, rows, _ = attention._weights(network, ids, None)
    assert rows == list("the cat")
    np.testing.assert_allclose(weights.sum(2), 1, rtol=1e-5)
    assert not np.triu(weights, 1).any()
    model = network.model
    with fn.no_grad():
        x = model.transformer["wte"](ids[None]) + model.transformer["wpe"](np.arange(7))
        block = model.transformer["h"][0]
        q, k, _ = np.split(block.attn.c_attn(block.ln_1(x)).numpy()[0], 3, 1)
    for head in range(2):
        part = slice(8 * head, 8 * head + 8)
        scores = q[:, part] @ k[:, part].T / np.sqrt(8)
        scores[np.triu_indices(7, 1)] = -np.inf
        e = np.exp(scores - scores.max(1, keepdims=True))
        np.testing.assert_allclose(weights[head], e / e.sum(1, keepdims=True), atol=1e-5)


def test_texts_that_cannot_be_drawn(trained, small, capsys):
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install '.[plot]'")
    out = run_of("gpt", trained)

    def answer(*arguments):
        return refused(capsys, "attention", "--checkpoint", *arguments)

    assert "--text: 13 tokens, expected at most 12" in answer(out, "--text", "the cat the c")
    assert "--layer 2: the network has 1" in answer(out, "--text", "cat", "--layer", 2)
    assert "its folder does not exist" in answer(out, "--text", "cat", "--plot", "no/x.png")
    lstm = run_of("lstm", trained)
    assert "a lstm on shakespeare; expected one of gpt, translate" in answer(lstm, "--text", "cat")
    assert "--text: encode: ['$'] are not" in answer(out, "--text", "$")


def test_labels_can_be_seen():
    from fusednn.cli.attention import _label

    assert [_label(t) for t in ("a", " b", "\n", "\x05", "$x$")] == [
        "a", "␣b", "⏎", "�", r"\$x\$",
    ]  # fmt: skip


# ---- as good as they should be -------------------------------------------------------------------


def real(read):
    """Skips unless the real data are here."""
    try:
        read()
    except data.MissingDataError as error:
        pytest.skip(str(error))


def reached(capsys, word, *arguments):
    assert cli.main(["train", *arguments]) == 0
    return float(re.search(rf"validation {word} (\d+\.\d+)", capsys.readouterr().out)[1])


@pytest.mark.training
class TestRecipes:
    @pytest.fixture(autouse=True)
    def real_data(self, small, monkeypatch):
        monkeypatch.undo()
        monkeypatch.chdir(small)

    @pytest.mark.parametrize("seed", range(3))
    def test_speakers(self, seed, capsys):
        real(data.japanese_vowels)
        options = ("lstm", "--data", "japanese-vowels", "--seed", str(seed))
        assert reached(capsys, "accuracy", *options) >= 0.95

    @pytest.mark.parametrize(("network", "goal"), [("lstm", 1.71), ("gpt", 1.90)])
    def test_shakespeare(self, network, goal, capsys):
        real(data.shakespeare)
        assert reached(capsys, "loss", network, "--data", "shakespeare") <= goal

    def test_translation(self, capsys):
        pytest.importorskip("tokenizers", reason="needs tokenizers: pip install '.[train]'")
        real(data.kjv_es)
        assert reached(capsys, "loss", "translate", "--data", "kjv-es") <= 3.05

    def test_stocks(self, capsys):
        real(data.stocks)
        assert reached(capsys, "loss", "rnn", "--data", "stocks") < 0.6
