"""The explorations of networks, digits and attention: against NumPy, kept, and from threads."""

import re
import threading

import numpy as np
import pytest

import fusednn as fn
from fusednn import data, models
from fusednn.cli.saved import Saved
from fusednn.explore import attention, digits
from fusednn.explore.fields import BadRequest, Fields
from fusednn.explore.seeded import seeded


def ask(compute, **fields):
    return compute(Fields(fields))


def correlated(x, w):
    """The plain definition, with zeros around the picture."""
    x = np.pad(x, 1)
    places = np.lib.stride_tricks.sliding_window_view(x, w.shape)
    return np.einsum("ijkl,kl->ij", places, w)


# ---- digits --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    try:
        data.digits()
    except data.MissingDataError as error:
        pytest.skip(str(error))
    return digits.Digits(0, tmp_path_factory.mktemp("cache"))


def around(x, y, rx, ry, points=32):
    t = np.linspace(0, 2 * np.pi, points)
    return np.stack([x + rx * np.cos(t), y + ry * np.sin(t)], 1).tolist()


DRAWINGS = {
    0: [around(0.5, 0.5, 0.25, 0.4)],
    1: [[[0.5, 0.1], [0.5, 0.9]]],
    2: [[[0.25, 0.3], [0.35, 0.15], [0.6, 0.12], [0.75, 0.3], [0.65, 0.5], [0.2, 0.9], [0.8, 0.9]]],
    4: [[[0.6, 0.1], [0.2, 0.6], [0.8, 0.6]], [[0.6, 0.3], [0.6, 0.95]]],
    7: [[[0.2, 0.2], [0.8, 0.2], [0.4, 0.9]]],
}


@pytest.mark.parametrize("digit", DRAWINGS)
def test_drawn_digits_are_read(network, digit):
    got = ask(network.compute, strokes=DRAWINGS[digit])
    assert got["answer"] == digit
    assert got["probabilities"][digit] > 0.9
    # Where and how large one draws makes no difference.
    small = [[[0.05 + 0.5 * x, 0.3 + 0.5 * y] for x, y in line] for line in DRAWINGS[digit]]
    again = ask(network.compute, strokes=small)
    np.testing.assert_allclose(again["picture"], got["picture"], atol=1 / 16)


def test_a_drawing_fills_the_picture():
    (picture,) = digits.drawn([np.array([[0.4, 0.45], [0.4, 0.55]])])[0]
    assert picture.shape == (8, 8)
    assert (picture[:, 3:5] > 0.3).all()  # a line down the middle
    assert not picture[:, :3].any()
    assert not picture[:, 5:].any()
    assert {float(16 * level) % 1 for level in picture.ravel()} == {0}  # counts of 4 x 4
    for dot in ([[0.5, 0.5]], [[0.5, 0.5], [0.505, 0.5]]):
        with pytest.raises(BadRequest, match="the drawing is a dot"):
            digits.drawn([np.array(dot)])


def test_feature_maps_of_a_digit(network):
    images, labels = data.digits()[1].arrays
    got = ask(network.compute, sample=6, number=1)
    picture = images[labels == 6][1, 0]
    np.testing.assert_array_equal(got["picture"], picture)
    weights = network._model.state_dict()

    def convolved(maps, name):
        weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return np.array(
            [
                bias[o] + sum(correlated(x, w) for x, w in zip(maps, weight[o], strict=True))
                for o in range(len(weight))
            ]
        )

    def pooled(maps):
        c, h, w = maps.shape
        return maps.reshape(c, h // 2, 2, w // 2, 2).max((2, 4))

    first = convolved(picture[None].astype(float), "0")
    rectified = np.maximum(first, 0)
    second = convolved(pooled(rectified), "3")
    last = pooled(np.maximum(second, 0))
    expected = [first, rectified, pooled(rectified), second, np.maximum(second, 0), last]
    for layer, maps in zip(got["layers"], expected, strict=True):
        np.testing.assert_allclose(layer["maps"], maps, rtol=1e-4, atol=1e-5)
        assert layer["limit"] == pytest.approx(np.abs(maps).max(), rel=1e-4)
    np.testing.assert_array_equal(got["kernels"], weights["0.weight"][:, 0])
    scores = weights["7.weight"] @ last.ravel() + weights["7.bias"]
    np.testing.assert_allclose(got["scores"], scores, rtol=1e-4, atol=1e-4)
    shares = np.exp(scores - scores.max())
    np.testing.assert_allclose(got["probabilities"], shares / shares.sum(), atol=1e-5)
    assert got["answer"] == 6
    assert got["accuracy"] > 0.97
    wrapped = ask(network.compute, sample=6, number=1 + int((labels == 6).sum()))
    assert wrapped["picture"] == got["picture"]


def test_the_network_is_kept_and_found_again(network, tmp_path, capsys):
    ask(network.compute, sample=0, number=0)
    kept = network.path.read_bytes()
    again = digits.Digits(0, network.path.parent)
    assert ask(again.compute, sample=0, number=0) == ask(network.compute, sample=0, number=0)
    # The same seed gives the same bits; whatever else draws random numbers meanwhile.
    fn.rand(5)
    same = digits.Digits(0, tmp_path / "new" / "folder")
    ask(same.compute, sample=0, number=0)
    assert same.path.read_bytes() == kept
    assert {path.name for path in same.path.parent.iterdir()} == {same.path.name}
    for damage in (b"", b"nonsense", kept[: len(kept) // 2]):
        same.path.write_bytes(damage)
        ask(digits.Digits(0, same.path.parent).compute, sample=0, number=0)
        assert same.path.read_bytes() == kept
    fn.save({"other": np.zeros(3)}, same.path)
    ask(digits.Digits(0, same.path.parent).compute, sample=0, number=0)
    assert same.path.read_bytes() == kept
    assert capsys.readouterr() == ("", "")


def test_a_cache_that_cannot_be_written_is_said_once(network, tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    other = digits.Digits(1, tmp_path / "file")
    for _ in range(2):
        assert ask(other.compute, sample=2, number=0)["answer"] == 2
    err = capsys.readouterr().err
    assert err.startswith("the trained network is not kept: ")
    assert err.count("\n") == 1


def test_without_scikit_learn_digits_say_what_to_install(monkeypatch, tmp_path):
    def missing():
        raise data.MissingDataError("digits")

    monkeypatch.setattr(digits, "digits", missing)
    with pytest.raises(digits.Unavailable, match=re.escape("pip install 'fusednn[demo]'")):
        ask(digits.Digits(0, tmp_path).compute, sample=0, number=0)


def test_threads_may_ask_a_network_at_once(tmp_path, network):
    fresh = digits.Digits(0, tmp_path)
    expected = [ask(network.compute, sample=digit, number=0) for digit in range(10)]
    found = [None] * 10

    def work(digit):
        found[digit] = ask(fresh.compute, sample=digit, number=0)

    threads = [threading.Thread(target=work, args=(digit,)) for digit in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


# ---- attention -----------------------------------------------------------------------------------

TEXT = "The dog bites the man, and the man runs."
WORDS = ["the", "dog", "bites", "the", "man", ",", "and", "the", "man", "runs", "."]


def softmax(scores):
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    return shares / shares.sum(-1, keepdims=True)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("positions", [False, True])
def test_attention_of_random_heads(causal, positions):
    heads = attention.Attention(5)
    got = ask(heads.compute, text=f"  {TEXT}\n", causal=causal, positions=positions)
    assert got["tokens"] == WORDS
    x = np.stack([attention.embedding(word, 5) for word in WORDS]).astype(float)
    width = attention.WIDTH
    if positions:
        place, pair = np.arange(len(WORDS))[:, None], np.arange(width // 2)
        angle = place / 10000 ** (2 * pair / width)
        x[:, 0::2] += np.sin(angle)
        x[:, 1::2] += np.cos(angle)
    state = heads._layer.state_dict()
    q, k, _ = np.split(x @ state["in_proj_weight"].T + state["in_proj_bias"], 3, 1)
    parts = [one.reshape(len(WORDS), attention.HEADS, -1).transpose(1, 0, 2) for one in (q, k)]
    scores = parts[0] @ parts[1].transpose(0, 2, 1) / np.sqrt(width // attention.HEADS)
    if causal:
        scores[:, np.triu(np.ones(scores.shape[1:], bool), 1)] = -np.inf
    np.testing.assert_allclose(got["weights"], softmax(scores), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(got["sums"], 1, atol=1e-6)
    assert got["causal"] is causal
    rows = np.array(got["weights"])
    # Without positions the three "the" look alike, unless order decides what they may see.
    assert np.allclose(rows[:, 0], rows[:, 3], atol=1e-6) == (not positions and not causal)


def test_a_word_has_one_vector_per_seed():
    first = attention.embedding("dog", 0)
    assert first.dtype == np.float32
    assert (first == attention.embedding("dog", 0)).all()
    assert not np.allclose(first, attention.embedding("dog", 1))
    assert not np.allclose(first, attention.embedding("dogs", 0))
    one, two = (attention.Attention(seed) for seed in (0, 1))
    fields = {"text": "a b", "causal": False, "positions": True}
    assert ask(one.compute, **fields) == ask(attention.Attention(0).compute, **fields)
    assert ask(one.compute, **fields) != ask(two.compute, **fields)


def test_attention_of_a_trained_network():
    fn.manual_seed(0)
    gpt = models.GPT(vocab_size=6, block_size=8, n_layer=2, n_head=3, n_embd=12).eval()
    run = Saved("gpt", "letters", gpt, data.CharTokenizer("abc \n\t"), None)
    explored = attention.Attention(0, run)
    assert explored.about() == {
        "text": "a GPT trained on letters, 2 layers", "trained": True, "layers": 2, "example": ""
    }  # fmt: skip
    run.tokens = data.CharTokenizer("The dogbi")
    assert explored.about()["example"] == "The dog"
    run.tokens = data.CharTokenizer("abc \n\t")
    ids = run.tokens.encode("ab c")
    for layer, (_, weights) in enumerate(fn.analysis.attention_maps(gpt, ids[None]).items()):
        got = ask(explored.compute, text=" ab c ", layer=layer + 1)
        np.testing.assert_array_equal(np.float32(got["weights"]), weights[0])
        np.testing.assert_allclose(got["sums"], 1, atol=1e-6)
        assert got["tokens"] == ["a", "b", "\N{OPEN BOX}", "c"]
        assert got["causal"] is True
    for text, reason in (
        ("abd", "'d'"),
        ("a" * 9, "text: 9 tokens, expected at most 8"),
        (" ", "no word"),
    ):
        with pytest.raises(BadRequest, match=re.escape(reason)):
            ask(explored.compute, text=text, layer=1)
    assert ask(explored.compute, text="a\nb\tc", layer=1)["tokens"][1::2] == [
        "\N{RETURN SYMBOL}", "\N{REPLACEMENT CHARACTER}"
    ]  # fmt: skip


def test_what_attention_refuses():
    explored = attention.Attention(0)
    for text, reason in (
        ("", "text: there is no word in it"),
        ("a " * 41, "text: 41 tokens, expected at most 40"),
        ("a" * 401, "text has 401 characters, expected at most 400"),
        ("\ud800", "half of a surrogate pair"),
        (3, "text is a number, expected text"),
    ):
        with pytest.raises(BadRequest, match=reason):
            ask(explored.compute, text=text, causal=False, positions=True)


def test_seeded_leaves_the_generator_as_it_was():
    fn.manual_seed(11)
    fn.rand(2)
    state = fn.random.get_state()
    with pytest.raises(RuntimeError), seeded(3):
        fn.rand(4)
        raise RuntimeError
    assert fn.random.get_state() == state
