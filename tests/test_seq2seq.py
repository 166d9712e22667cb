"""The encoder-decoder network: padding, training, greedy decoding and beams."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import models, optim
from fusednn.models.generate import beam_search

BOS, EOS = 1, 2


def small(**options: Any) -> models.Seq2SeqTransformer:
    fn.manual_seed(0)
    size = {"d_model": 16, "nhead": 2, "num_layers": (1, 2), "dim_feedforward": 32, "dropout": 0.0}
    net = models.Seq2SeqTransformer(11, 9, **(size | options))
    rng = np.random.default_rng(1)
    for p in net.parameters():
        p._data[...] += rng.standard_normal(p.shape) * 0.2
    return net.eval()


@pytest.mark.parametrize("options", [{}, {"norm_first": True}, {"positions": "learned"},
                                     {"tied": True}])  # fmt: skip
def test_padding_does_not_matter(options):
    net = small(**options)
    src, tgt = np.array([[3, 4, 5, 6]]), np.array([[BOS, 5, 7]])
    y = net(src, tgt).numpy()
    longer = net(
        np.pad(src, ((0, 1), (0, 2)), constant_values=0), np.pad(tgt, ((0, 1), (0, 1)))
    ).numpy()
    np.testing.assert_allclose(longer[0, :3], y[0], rtol=1e-4, atol=1e-5)
    changed = net(src, np.array([[BOS, 5, 8]])).numpy()
    np.testing.assert_array_equal(changed[0, :2], y[0, :2])
    assert np.isfinite(longer).all()


def greedy(net: Any, src: Any, steps: int) -> list[int]:
    text = [BOS]
    for _ in range(steps):
        logits = net(np.array([src]), np.array([text])).numpy()[0, -1]
        text.append(int(logits[1:].argmax()) + 1)  # 0 is padding
        if text[-1] == EOS:
            break
    return text[1:]


@pytest.mark.parametrize("options", [{}, {"positions": "learned", "norm_first": True}])
def test_greedy_decoding_of_ragged_sources(options):
    net = small(**options)
    sources = [[3, 4, 5, 6, 7], [8, 9], [10, 3, 3]]
    found = net.generate(sources, 8, BOS, EOS)
    for src, text in zip(sources, found, strict=True):
        assert text.tolist() == greedy(net, src, 8)
    alone = net.generate(np.array([sources[0]]), 8, BOS, EOS)
    assert alone[0].tolist() == found[0].tolist()
    one_beam = net.generate(sources, 8, BOS, EOS, beams=1)
    assert [t.tolist() for t in one_beam] == [t.tolist() for t in found]


def log_probability(net: Any, src: list[int], text: tuple[int, ...]) -> float:
    logits = net(np.array([src]), np.array([[BOS, *text[:-1]]])).numpy()[0].astype(np.float64)
    log_p = logits - np.log(np.exp(logits[:, 1:]).sum(1, keepdims=True))
    return float(log_p[np.arange(len(text)), list(text)].sum())


def test_many_beams_find_the_likeliest_text():
    """With as many beams as there are texts the search is complete."""
    net = small()
    steps, vocabulary = 3, 9
    sources = [[3, 4, 5], [8, 9, 10, 4]]
    found = net.generate(sources, steps, BOS, EOS, beams=vocabulary**2)
    for src, text in zip(sources, found, strict=True):
        texts = [
            t
            for n in range(1, steps + 1)
            for t in itertools.product(range(1, vocabulary), repeat=n)
            if EOS not in t[:-1] and (n == steps or t[-1] == EOS)
        ]
        best = max(texts, key=lambda t: log_probability(net, src, t))
        assert tuple(text.tolist()) == best


def test_gpt_beams():
    fn.manual_seed(0)
    net = models.GPT(7, 16, 1, 2, 16).eval()
    rng = np.random.default_rng(1)
    for p in net.parameters():
        p._data[...] = rng.standard_normal(p.shape) * 0.4
    prompts = [[1, 2, 3], [4]]
    plain = net.generate(prompts, 4, temperature=0)
    single = net.generate(prompts, 4, beams=1)
    assert [t.tolist() for t in single] == [t.tolist() for t in plain]
    for use_cache in (True, False):
        found = net.generate(prompts, 3, beams=49, use_cache=use_cache)
        for prompt, text in zip(prompts, found, strict=True):
            scores = {}
            for t in itertools.product(range(7), repeat=3):
                logits = net(np.array([[*prompt, *t[:-1]]])).numpy()[0, -3:].astype(np.float64)
                log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
                scores[t] = log_p[np.arange(3), list(t)].sum()
            assert tuple(text[len(prompt) :].tolist()) == max(scores, key=lambda t: scores[t])
    with pytest.raises(ValueError, match="generate: beams=0, expected at least 1"):
        net.generate(prompts, 3, beams=0)


def test_length_penalty_prefers_longer_texts():
    """Ending at once costs log 0.6; going on log 0.4, and then next to nothing."""

    def decoding(tokens: Any, parents: Any) -> Any:
        going = tokens is not None and tokens[0] == 3
        p = [1e-9, 1e-9, 0.01, 0.99] if going else [1e-9, 1e-9, 0.6, 0.4]
        if tokens is None:
            return np.log(np.tile(p, (2, 1)))
        rows = [[1e-9, 1e-9, 0.01, 0.99] if t == 3 else p for t in tokens]
        return np.log(np.array(rows))

    short = beam_search(decoding, 1, 2, 5, 2, 0.0)
    long = beam_search(decoding, 1, 2, 5, 2, 1.0)
    assert short[0].tolist() == [2]
    assert long[0].tolist() == [3, 3, 3, 3, 3]


def test_it_learns_to_reverse():
    fn.manual_seed(0)
    net = models.Seq2SeqTransformer(
        11, 11, 32, 4, 1, 64, dropout=0.0, norm_first=True, positions="learned"
    )
    optimizer = optim.Adam(net.parameters(), lr=1e-2)
    rng = np.random.default_rng(0)
    steps = 250
    for step in range(steps):
        # Warm-up, then down to 0: the end does not depend on the last few batches.
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * min(1, (step + 1) / 20) * (1 - step / steps)
        src = rng.integers(3, 11, (32, int(rng.integers(2, 4))))
        ones = np.ones((32, 1), np.int64)
        text = np.concatenate([ones * BOS, src[:, ::-1], ones * EOS], 1)
        optimizer.zero_grad()
        logits = net(src, text[:, :-1])
        F.cross_entropy(logits.reshape(-1, 11), text[:, 1:].reshape(-1)).backward()
        optimizer.step()
    net.eval()
    sources = rng.integers(3, 11, (40, 3))
    found = net.generate(sources, 6, BOS, EOS)
    right = sum(
        text.tolist() == [*src[::-1].tolist(), EOS]
        for src, text in zip(sources, found, strict=True)
    )
    assert right >= 30


def test_refused_calls():
    with pytest.raises(ValueError, match="positions='none', expected 'sinusoidal' or 'learned'"):
        small(positions="none")
    net = small(positions="learned", max_len=4)
    with pytest.raises(ValueError, match="positions 0 to 4 go beyond max_len=4"):
        net(np.ones((1, 5), np.int64), np.ones((1, 2), np.int64))
