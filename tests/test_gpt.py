"""GPT: shapes, names, training, generation with and without a cache, sampling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import models, optim
from fusednn.models.generate import Sampler


def small(**options: Any) -> models.GPT:
    fn.manual_seed(1)
    net = models.GPT(11, 12, 2, 2, 16, **options)
    rng = np.random.default_rng(2)
    for p in net.parameters():
        p._data[...] = rng.standard_normal(p.shape) * 0.3
    return net.eval()


def test_names_and_sizes():
    net = models.GPT(65, 32, 2, 2, 16)
    names = list(net.state_dict())
    assert names[:2] == ["transformer.wte.weight", "transformer.wpe.weight"]
    assert names[2:8] == [
        "transformer.h.0.ln_1.weight", "transformer.h.0.ln_1.bias",
        "transformer.h.0.attn.c_attn.weight", "transformer.h.0.attn.c_attn.bias",
        "transformer.h.0.attn.c_proj.weight", "transformer.h.0.attn.c_proj.bias",
    ]  # fmt: skip
    assert names[-1] == "lm_head.weight"
    count = sum(p.numpy().size for p in net.parameters())
    untied = sum(p.numpy().size for p in models.GPT(65, 32, 2, 2, 16, tied=False).parameters())
    assert untied - count == 65 * 16
    assert net.lm_head.weight is net.transformer["wte"].weight
    scale = net.transformer["h"][0].mlp["c_proj"].weight.numpy().std()
    assert abs(scale - 0.02 / 2) < 0.002
    bare = models.GPT(65, 32, 1, 2, 16, bias=False)
    assert not [n for n in bare.state_dict() if n.endswith("bias")]


def test_logits_depend_on_the_past_alone():
    net = small()
    ids = np.random.default_rng(0).integers(0, 11, (2, 9))
    whole = net(ids).numpy()
    changed = ids.copy()
    changed[:, 5:] = (changed[:, 5:] + 1) % 11
    np.testing.assert_array_equal(net(changed).numpy()[:, :5], whole[:, :5])
    with pytest.raises(ValueError, match=r"GPT: ids have shape \(1, 13\), expected \(N, T\) with"):
        net(np.zeros((1, 13), np.int64))


def test_cache_equals_recomputation():
    net = small()
    ids = np.random.default_rng(0).integers(0, 11, (3, 10))
    whole = net(ids).numpy()
    cache = net.new_cache()
    with fn.no_grad():
        parts = [net(ids[:, a:b], cache=cache).numpy() for a, b in ((0, 4), (4, 5), (5, 10))]
    np.testing.assert_allclose(np.concatenate(parts, 1), whole, rtol=1e-4, atol=1e-5)


def reference(net: Any, prompt: list[int], steps: int) -> list[int]:
    """Greedy, one prompt, everything computed anew at each step."""
    text = list(prompt)
    for _ in range(steps):
        logits = net(np.array([text[-net.block_size :]])).numpy()
        text.append(int(logits[0, -1].argmax()))
    return text


@pytest.mark.parametrize("use_cache", [True, False])
def test_generation_of_ragged_prompts(use_cache):
    net = small()
    prompts = [[1, 2, 3, 4, 5], [7], [9, 8, 7]]
    for steps in (0, 1, 6, 15):  # 15: beyond block_size
        found = net.generate(prompts, steps, temperature=0, use_cache=use_cache)
        for prompt, text in zip(prompts, found, strict=True):
            assert text.tolist() == reference(net, prompt, steps)
            assert text.dtype == np.int64


def test_generation_stops_at_the_end():
    net = small()
    free = net.generate([[1, 2], [5]], 8, temperature=0)
    eos = int(free[0][4])
    ended = net.generate([[1, 2], [5]], 8, temperature=0, eos=eos)
    for text, whole, length in zip(ended, free, (2, 1), strict=True):
        new = whole[length:].tolist()
        stop = new.index(eos) + 1 if eos in new else 8
        assert text.tolist() == whole[: length + stop].tolist()
    steps = list(net.stream([[1, 2], [5]], 8, temperature=0, eos=eos))
    assert all(step.shape == (2,) for step in steps)
    assert steps[0].tolist() == [free[0][2], free[1][1]]


def test_sampling_follows_the_seed():
    net = small()
    texts = []
    for seed in (3, 3, 4):
        fn.manual_seed(seed)
        texts.append([t.tolist() for t in net.generate([[1], [2, 3]], 9, temperature=1.5)])
    assert texts[0] == texts[1] != texts[2]
    assert net.generate([], 3) == []


def test_sampler():
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05], [0.05, 0.05, 0.1, 0.8]], np.float32))
    np.testing.assert_allclose(Sampler().probabilities(logits), np.exp(logits), rtol=1e-6)
    p = Sampler(top_k=2).probabilities(logits)
    np.testing.assert_allclose(p, [[0.625, 0.375, 0, 0], [0, 0, 1 / 9, 8 / 9]], rtol=1e-6)
    p = Sampler(top_p=0.79).probabilities(logits)
    np.testing.assert_allclose(p, [[0.625, 0.375, 0, 0], [0, 0, 0, 1]], rtol=1e-6)
    p = Sampler(0.5).probabilities(logits)
    np.testing.assert_allclose(p[0, 0] / p[0, 1], (0.5 / 0.3) ** 2, rtol=1e-5)
    np.testing.assert_array_equal(
        Sampler(1e-310).probabilities(logits), [[1, 0, 0, 0], [0, 0, 0, 1]]
    )
    np.testing.assert_array_equal(Sampler(np.inf).probabilities(logits), np.full((2, 4), 0.25))
    assert Sampler(top_k=1)(logits).tolist() == Sampler(0.0)(logits).tolist() == [0, 3]
    fn.manual_seed(0)
    draws = np.array([Sampler(top_k=3)(logits) for _ in range(4000)])
    frequency = np.bincount(draws[:, 0], minlength=4) / 4000
    np.testing.assert_allclose(frequency, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0], atol=0.03)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"temperature": -1.0}, "generate: temperature=-1.0, expected at least 0"),
        ({"top_k": 0}, "generate: top_k=0, expected at least 1"),
        ({"top_p": 0.0}, r"generate: top_p=0.0, expected a number in \(0, 1\]"),
        ({"steps": -1}, "generate: max_new_tokens=-1, expected at least 0"),
        ({"steps": -1, "beams": 2}, "generate: max_new_tokens=-1, expected at least 0"),
        ({"prompts": [[1], []]}, "generate: prompt 1 has shape"),
        ({"prompts": [[11]]}, "generate: prompt 0 has tokens from 11 to 11, expected 0 to 10"),
    ],
)
def test_refused_calls(options, text):
    prompts = options.pop("prompts", [[1]])
    with pytest.raises(ValueError, match=text):
        small().generate(prompts, options.pop("steps", 2), **options)


def test_gpt_learns():
    """To count modulo 7 and to copy: both need attention to the right places."""
    fn.manual_seed(0)
    net = models.GPT(7, 16, 1, 2, 32, tied=False)
    optimizer = optim.AdamW(net.parameters(), lr=1e-2)
    rng = np.random.default_rng(0)
    for _ in range(60):
        start = rng.integers(0, 7, (16, 1))
        step = rng.integers(1, 3, (16, 1))
        text = (start + step * np.arange(13)) % 7
        optimizer.zero_grad()
        logits = net(text[:, :-1])
        loss = F.cross_entropy(logits.reshape(-1, 7), text[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.4  # the second token is a guess between two
    net.eval()
    found = net.generate([[0, 2], [3, 4]], 6, temperature=0)
    assert found[0].tolist() == [0, 2, 4, 6, 1, 3, 5, 0]
    assert found[1].tolist() == [3, 4, 5, 6, 0, 1, 2, 3]


def test_gpt_against_torch():
    """The same block in torch's functions, with our weights."""
    torch = pytest.importorskip("torch", reason="torch is not installed (extra 'peers')")
    tf = torch.nn.functional
    net = small(tied=False)
    w = {k: torch.tensor(v, requires_grad=True) for k, v in net.state_dict().items()}
    ids = np.random.default_rng(0).integers(0, 11, (2, 9))
    x = w["transformer.wte.weight"][torch.tensor(ids)] + w["transformer.wpe.weight"][:9]
    for i in range(2):
        p = f"transformer.h.{i}."
        h = tf.layer_norm(x, (16,), w[p + "ln_1.weight"], w[p + "ln_1.bias"])
        qkv = tf.linear(h, w[p + "attn.c_attn.weight"], w[p + "attn.c_attn.bias"])
        q, k, v = (one.reshape(2, 9, 2, 8).transpose(1, 2) for one in qkv.chunk(3, -1))
        a = tf.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + tf.linear(
            a.reshape(2, 9, 16), w[p + "attn.c_proj.weight"], w[p + "attn.c_proj.bias"]
        )
        h = tf.layer_norm(x, (16,), w[p + "ln_2.weight"], w[p + "ln_2.bias"])
        h = tf.gelu(tf.linear(h, w[p + "mlp.c_fc.weight"], w[p + "mlp.c_fc.bias"]))
        x = x + tf.linear(h, w[p + "mlp.c_proj.weight"], w[p + "mlp.c_proj.bias"])
    x = tf.layer_norm(x, (16,), w["transformer.ln_f.weight"], w["transformer.ln_f.bias"])
    logits = tf.linear(x, w["lm_head.weight"])
    found = net(ids)
    np.testing.assert_allclose(found.numpy(), logits.detach().numpy(), rtol=1e-4, atol=1e-5)
    tf.cross_entropy(logits.reshape(-1, 11), torch.tensor(ids).reshape(-1)).backward()
    F.cross_entropy(found.reshape(-1, 11), ids.reshape(-1)).backward()
    for name, p in net.named_parameters():
        grad = np.zeros(p.shape) if w[name].grad is None else w[name].grad.numpy()
        np.testing.assert_allclose(p.grad.numpy(), grad, rtol=1e-3, atol=1e-5, err_msg=name)
