"""Gradients through attention's weights, of the function and of the module."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import _core, nn
from fusednn.testing import reference
from fusednn.testing import reference_attention as ref

# (B, H, Hkv, Tq, Tk, D): few queries and many, around tiles and blocks, groups of heads.
SHAPES = [
    (1, 1, 1, 1, 1, 1),
    (2, 3, 3, 3, 5, 7),
    (1, 4, 2, 4, 257, 16),
    (2, 4, 2, 5, 31, 9),
    (1, 2, 1, 15, 33, 17),
    (1, 1, 1, 130, 131, 8),
    (0, 2, 2, 3, 4, 5),
    (1, 2, 2, 0, 4, 5),
    (1, 2, 2, 3, 0, 5),
    (1, 2, 2, 9, 0, 5),
]
EXACT = {"float32": np.float64, "float64": np.longdouble}


def arrays(shape: tuple[int, ...], dtype: str) -> list[Any]:
    b, h, hkv, tq, tk, d = shape
    rng = np.random.default_rng(0)
    sizes = [(b, h, tq, d), (b, hkv, tk, d), (b, h, tq, tk)]
    return [rng.standard_normal(size).astype(dtype) for size in sizes]


def options(shape: tuple[int, ...], dtype: str) -> dict[str, dict[str, Any]]:
    b, h, _, tq, tk, _ = shape
    rng = np.random.default_rng(1)
    bias = rng.standard_normal((1, h, tq, tk)).astype(dtype)
    return {
        "none": {},
        "causal": {"is_causal": True},
        "lower right": {"is_causal": "lower_right"},
        "bool": {"attn_mask": rng.random((b, 1, tq, tk)) > 0.4},
        "bias": {"attn_mask": bias},
        "bias keys": {"attn_mask": bias[:, :1, :1]},
        "softcap": {"softcap": 1.5, "attn_mask": bias},
        "window": {"window": (3, 2), "scale": 0.7},
        "lengths": {"lengths": (rng.integers(0, tq + 1, b), rng.integers(0, tk + 1, b))},
        "packed": {
            "cu_seqlens": (np.array([0, tq // 3, tq]), np.array([0, tk // 2, tk])),
            "is_causal": True,
        },
    }


def twin(inputs: list[Any], kind: dict[str, Any], naive: bool = False) -> ref.Reference:
    """The weights are what attention gives where every value is a row of the identity."""
    q, k, grad = inputs
    b, hkv, tk, _ = k.shape
    value = np.broadcast_to(np.eye(tk, dtype=k.dtype), (b, hkv, tk, tk))
    return ref.attention(q, k, value, grad, naive=naive, **kind)


def check(found: Any, exact: Any, naive: Any, what: str, factor: float = 4) -> None:
    pad = [
        np.append(np.asarray(a).ravel(), np.ones((), np.asarray(a).dtype)) for a in (exact, naive)
    ]
    found = np.append(found.ravel(), found.dtype.type(1))
    reference.assert_accurate(found, *pad, factor=factor, what=what)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients(shape, dtype):
    inputs = arrays(shape, dtype)
    for name, kind in options(shape, dtype).items():
        mask = kind.get("attn_mask")
        additive = mask is not None and mask.dtype != bool
        exact_kind = {**kind, "attn_mask": mask.astype(EXACT[dtype])} if additive else kind
        exact = twin([x.astype(EXACT[dtype]) for x in inputs], exact_kind)
        naive = twin(inputs, kind, naive=True)
        for isa in _core.usable_isas():
            where = f"{name} on {isa}"
            with fn.testing.isa(isa):
                q, k = (fn.tensor(x, requires_grad=True) for x in inputs[:2])
                given = {"enable_gqa": True, **kind}
                if additive:
                    given["attn_mask"] = fn.tensor(mask, requires_grad=True)
                weights = F.attention_weights(q, k, **given)
                weights.backward(fn.tensor(inputs[2]))
            check(weights.numpy(), exact.weights, naive.weights, f"weights, {where}")
            check(q.grad.numpy(), exact.query, naive.query, f"query, {where}")
            check(k.grad.numpy(), exact.key, naive.key, f"key, {where}")
            if additive:
                axes = tuple(i for i, n in enumerate(mask.shape) if n == 1)
                sums = [np.sum(r.mask, axis=axes, keepdims=True) for r in (exact, naive)]
                check(given["attn_mask"].grad.numpy(), *sums, f"mask, {where}", factor=10)


@pytest.mark.parametrize("queries", [2, 6])
@pytest.mark.parametrize("name", options(SHAPES[0], "float64"))
def test_gradcheck(name, queries):
    shape = (2, 2, 1, queries, 7, 3)
    kind = {"enable_gqa": True, **options(shape, "float64")[name]}
    inputs = arrays(shape, "float64")[:2]
    mask = kind.pop("attn_mask", None)
    if mask is not None and mask.dtype != bool:
        assert fn.testing.gradcheck(
            lambda q, k, m: F.attention_weights(q, k, m, **kind), [*inputs, mask]
        )
    else:
        assert fn.testing.gradcheck(lambda q, k: F.attention_weights(q, k, mask, **kind), inputs)


@pytest.mark.parametrize("shape", [(1, 4, 2, 140, 300, 16), (1, 2, 2, 3, 300, 64)])
def test_the_same_bits_at_any_number_of_threads(shape, isa, dtype):
    inputs = arrays(shape, dtype)
    results = []
    for threads in (1, 2, 3):
        fn.set_num_threads(threads)
        q, k = (fn.tensor(x, requires_grad=True) for x in inputs[:2])
        F.attention_weights(q, k, enable_gqa=True).backward(fn.tensor(inputs[2]))
        results.append((q.grad.numpy(), k.grad.numpy()))
    for other in results[1:]:
        for a, b in zip(results[0], other, strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("queries", [3, 20])
def test_hidden_places_take_no_part(queries, isa, dtype):
    """An entropy's gradient is infinite where a weight is 0; a hidden key may hold NaN."""
    q, k, _ = arrays((1, 2, 2, queries, 20, 8), dtype)
    mask = np.ones((queries, 20), bool)
    mask[:, 3] = False
    mask[0] = False
    found = []
    for dirty in (False, True):
        if dirty:
            k[:, :, 3] = np.nan
        query, key = fn.tensor(q, requires_grad=True), fn.tensor(k, requires_grad=True)
        weights = F.attention_weights(query, key, mask)
        with np.errstate(divide="ignore"):
            grad = -np.log(weights.numpy()) - 1
        assert np.isinf(grad).any()
        weights.backward(fn.tensor(grad))
        found.append((query.grad.numpy(), key.grad.numpy()))
    for clean, other in zip(*found, strict=True):
        assert np.isfinite(clean).all()
        np.testing.assert_allclose(other, clean, rtol=1e-4, atol=1e-6)
    assert not found[0][0][:, :, 0].any()
    assert not found[1][1][:, :, 3].any()


def test_strided_gradients_and_broadcast_inputs(isa):
    q, k, grad = arrays((3, 2, 2, 5, 6, 4), "float64")
    k = k[:1, :1]
    one = fn.tensor(q, requires_grad=True)
    shared = fn.tensor(k, requires_grad=True)
    F.attention_weights(one, shared).backward(fn.tensor(grad))
    exact = twin([q, np.broadcast_to(k, (3, 2, 6, 4)), grad], {})
    np.testing.assert_allclose(shared.grad.numpy(), exact.key.sum((0, 1), keepdims=True), 1e-10)
    turned = fn.tensor(q, requires_grad=True)
    weights = F.attention_weights(turned, k)
    (weights.transpose(2, 3) * fn.tensor(grad.swapaxes(2, 3).copy())).sum().backward()
    np.testing.assert_allclose(turned.grad.numpy(), one.grad.numpy(), rtol=1e-10)


def test_arrays_give_arrays_and_nothing_is_kept_without_need():
    q, k, _ = arrays((1, 1, 1, 3, 4, 5), "float64")
    assert isinstance(F.attention_weights(q, k), np.ndarray)
    assert not F.attention_weights(fn.tensor(q), k).requires_grad
    with fn.no_grad():
        assert not F.attention_weights(fn.tensor(q, requires_grad=True), k).requires_grad
    query, key = fn.tensor(q, requires_grad=True), fn.tensor(k)
    F.attention_weights(query, key).sum().backward()
    np.testing.assert_allclose(query.grad.numpy(), 0, atol=1e-15)
    assert key.grad is None


# ---- the module ----------------------------------------------------------------------------------


def layers(**given: Any) -> nn.MultiheadAttention:
    fn.manual_seed(0)
    return nn.MultiheadAttention(8, 2, batch_first=True, dtype="float64", **given)


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize(
    "given", [{}, {"num_kv_heads": 1}, {"rotary_dim": 4}, {"add_bias_kv": True}], ids=str
)
def test_modules_give_weights_with_a_gradient(given, average):
    layer = layers(**given)
    x = np.random.default_rng(0).standard_normal((2, 5, 8))
    padding = np.zeros((2, 5), bool)
    padding[1, 3:] = True

    def both(x):
        return layer(
            x, x, x, key_padding_mask=padding, is_causal=True, average_attn_weights=average
        )

    assert fn.testing.gradcheck(lambda x: both(x)[1], [x])
    assert fn.testing.gradcheck(lambda x: both(x), [x])


@pytest.mark.parametrize("average", [False, True])
def test_the_gradients_are_torchs(average):
    torch = pytest.importorskip("torch", reason="torch is not installed (extra 'peers')")
    layer = layers()
    peer = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    peer.load_state_dict({k: torch.tensor(v) for k, v in layer.state_dict().items()})
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 5, 8)), rng.standard_normal((2, 7, 8))
    blocked = np.triu(np.ones((5, 7), bool), 3)
    target = rng.standard_normal((2, 5, 7) if average else (2, 2, 5, 7))
    ours = [fn.tensor(a, requires_grad=True) for a in (q, k)]
    theirs = [torch.tensor(a, requires_grad=True) for a in (q, k)]
    _, weights = layer(ours[0], ours[1], ours[1], attn_mask=blocked, average_attn_weights=average)
    ((weights - target) ** 2).sum().backward()
    _, expected = peer(
        theirs[0], theirs[1], theirs[1], attn_mask=torch.tensor(blocked),
        average_attn_weights=average,
    )  # fmt: skip
    ((expected - torch.tensor(target)) ** 2).sum().backward()
    np.testing.assert_allclose(weights.numpy(), expected.detach().numpy(), rtol=1e-10)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.grad.numpy(), b.grad.numpy(), rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(
        layer.in_proj_weight.grad.numpy(), peer.in_proj_weight.grad.numpy(), rtol=1e-8, atol=1e-12
    )
    assert layer.out_proj.weight.grad is None
