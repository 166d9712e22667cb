"""Scaled dot-product attention: kernels on every ISA build against the plain twin, all masks."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fusednn as fn
import fusednn.functional as F
from fusednn import _core
from fusednn.testing import reference
from fusednn.testing import reference_attention as ref

sdpa = F.scaled_dot_product_attention
NAN, INF = np.nan, np.inf
EXACT = {"float32": np.float64, "float64": np.longdouble}

# (B, H, Hkv, Tq, Tk, D, Dv): one of each, primes, around vectors, tiles (14 x 32), few queries (4),
# blocks of rows (128) and keys (128, 256), more than one block, groups of heads, Dv != D.
SHAPES = [
    (1, 1, 1, 1, 1, 1, 1),
    (2, 3, 3, 3, 5, 7, 2),
    (1, 2, 2, 4, 257, 16, 17),
    (2, 4, 2, 5, 31, 8, 9),
    (1, 2, 1, 13, 33, 15, 33),
    (1, 1, 1, 14, 32, 16, 32),
    (2, 6, 2, 15, 17, 5, 3),
    (1, 1, 1, 127, 129, 8, 8),
    (1, 2, 2, 129, 255, 9, 16),
    (1, 1, 1, 128, 128, 24, 64),
    (1, 1, 1, 40, 300, 32, 40),
    (1, 1, 1, 260, 70, 6, 4),
]
EMPTY = [
    (0, 2, 2, 3, 4, 5, 6),
    (2, 0, 0, 3, 4, 5, 6),
    (1, 2, 2, 0, 4, 5, 6),
    (1, 2, 2, 3, 0, 5, 6),
    (1, 2, 2, 9, 0, 5, 6),
    (1, 2, 2, 3, 4, 5, 0),
    (1, 2, 2, 9, 4, 5, 0),
]


def arrays(shape: tuple[int, ...], dtype: str, seed: int = 0) -> list[Any]:
    b, h, hkv, tq, tk, d, dv = shape
    rng = np.random.default_rng(seed)
    sizes = [(b, h, tq, d), (b, hkv, tk, d), (b, hkv, tk, dv), (b, h, tq, dv)]
    return [rng.standard_normal(size).astype(dtype) for size in sizes]


def options(shape: tuple[int, ...], dtype: str) -> dict[str, dict[str, Any]]:
    """Every kind of mask, by name."""
    b, h, _, tq, tk, _, _ = shape
    rng = np.random.default_rng(1)
    some = rng.random((b, 1, tq, tk)) > 0.4
    bias = rng.standard_normal((1, h, tq, tk)).astype(dtype)
    holes = np.where(rng.random((tq, tk)) > 0.3, bias[0, 0] if h else 0, -INF).astype(dtype)
    lengths = rng.integers(0, tk + 1, b)
    rows = rng.integers(0, tq + 1, b)
    starts = (
        np.array([0, tq // 3, tq // 3, tq // 2, tq]),
        np.array([0, 0, tk // 2, tk - tk // 4, tk]),
    )
    return {
        "none": {},
        "causal": {"is_causal": True},
        "lower right": {"is_causal": "lower_right"},
        "bool": {"attn_mask": some},
        "bool keys": {"attn_mask": some[:, :, :1]},
        "bool queries": {"attn_mask": some[..., :1]},
        "bias": {"attn_mask": bias},
        "bias keys": {"attn_mask": bias[:, :1, :1]},
        "bias queries": {"attn_mask": bias[:, :, :, :1]},
        "bias with holes": {"attn_mask": holes},
        "bool and causal": {"attn_mask": some, "is_causal": True},
        "window": {"window": (3, 2)},
        "window behind": {"window": (20, None), "is_causal": "lower_right"},
        "softcap": {"softcap": 1.5, "attn_mask": bias},
        "scale": {"scale": 0.3},
        "lengths": {"lengths": (None, lengths)},
        "both lengths": {"lengths": (rows, lengths), "is_causal": "lower_right"},
        "packed": {"cu_seqlens": starts, "is_causal": True},
    }


def call(kind: dict[str, Any]) -> dict[str, Any]:
    """The public arguments for those of the twin."""
    kind = dict(kind)
    if "lengths" in kind and kind["lengths"][0] is None:
        kind["lengths"] = kind["lengths"][1]
    return {"enable_gqa": True, **kind}


def references(inputs: list[Any], kind: dict[str, Any]) -> tuple[ref.Reference, ref.Reference]:
    dtype = inputs[0].dtype
    wide = EXACT[dtype.name]
    mask = kind.get("attn_mask")
    exact_kind = dict(kind)
    if mask is not None and mask.dtype != bool:
        exact_kind["attn_mask"] = mask.astype(wide)
    exact = ref.attention(*(x.astype(wide) for x in inputs), **exact_kind)
    return exact, ref.attention(*inputs, **kind, naive=True)


def check(found: Any, exact: Any, naive: Any, what: str, factor: float = 4) -> None:
    """Outputs and gradients are sums of terms of about 1: an ulp of 1 is never too much.

    Twice what a sum may be off by, because scores are rounded where the naive version's are not
    (when keys are scaled, and once more for base 2), and every weight shows it.
    """
    pad = [
        np.append(np.asarray(a).ravel(), np.ones((), np.asarray(a).dtype)) for a in (exact, naive)
    ]
    found = np.append(found.ravel(), found.dtype.type(1))
    reference.assert_accurate(found, *pad, factor=factor, what=what)


@pytest.mark.parametrize("shape", [*SHAPES, *EMPTY], ids=str)
def test_values_and_gradients(shape, dtype):
    inputs = arrays(shape, dtype)
    for name, kind in options(shape, dtype).items():
        exact, naive = references(inputs, kind)
        mask = kind.get("attn_mask")
        for isa in _core.usable_isas():
            where = f"{name} on {isa}"
            with fn.testing.isa(isa):
                out = sdpa(*inputs[:3], **call(kind))
                tensors = [fn.tensor(x, requires_grad=True) for x in inputs[:3]]
                given = call(kind)
                if mask is not None and mask.dtype != bool:
                    given["attn_mask"] = fn.tensor(mask, requires_grad=True)
                result = sdpa(*tensors, **given)
                result.backward(fn.tensor(inputs[3]))
            np.testing.assert_array_equal(result.numpy(), out)
            check(out, exact.output, naive.output, f"output, {where}")
            for tensor, part in zip(tensors, ("query", "key", "value"), strict=True):
                check(
                    tensor.grad.numpy(), getattr(exact, part), getattr(naive, part),
                    f"{part}, {where}",
                )  # fmt: skip
            if mask is not None and mask.dtype != bool:
                axes = tuple(i for i, n in enumerate((1,) * (4 - mask.ndim) + mask.shape) if n == 1)
                sums = [
                    np.sum(r.mask, axis=axes, keepdims=True).reshape(mask.shape)
                    for r in (exact, naive)
                ]
                # NumPy's own sums are pairwise.
                check(given["attn_mask"].grad.numpy(), *sums, f"mask, {where}", factor=10)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_weights(shape, dtype):
    inputs = arrays(shape, dtype)
    for name, kind in options(shape, dtype).items():
        exact, naive = references(inputs[:3], kind)
        seen = (exact.weights > 0).any(-1)
        for isa in _core.usable_isas():
            with fn.testing.isa(isa):
                weights = F.attention_weights(*inputs[:2], **call(kind))
            check(weights, exact.weights, naive.weights, f"{name} on {isa}")
            np.testing.assert_allclose(weights.sum(-1), seen, rtol=1e-5)
            assert (weights >= 0).all()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 2), st.integers(1, 3), st.integers(1, 2), st.integers(1, 150),
    st.integers(1, 300), st.integers(1, 40), st.integers(1, 40), st.integers(0, 17),
    st.sampled_from(_core.usable_isas()), st.sampled_from(["float32", "float64"]),
)  # fmt: skip
def test_any_shape(b, kv, group, tq, tk, d, dv, kind, isa, dtype):
    shape = (b, kv * group, kv, tq, tk, d, dv)
    inputs = arrays(shape, dtype, seed=tq * 1000 + tk)
    name, chosen = list(options(shape, dtype).items())[kind]
    exact, naive = references(inputs[:3], chosen)
    with fn.testing.isa(isa):
        check(sdpa(*inputs[:3], **call(chosen)), exact.output, naive.output, name)


@pytest.mark.parametrize(
    "shape", [(2, 4, 2, 140, 300, 16, 16), (1, 2, 2, 3, 300, 16, 16), (1, 1, 1, 600, 600, 16, 16)]
)
def test_the_same_bits_at_any_number_of_threads(shape, isa, dtype):
    inputs = arrays(shape, dtype)
    for name in ("none", "causal", "bias", "window", "both lengths", "packed"):
        kind = call(options(shape, dtype)[name])
        results = []
        for threads in (1, 2, 3):
            fn.set_num_threads(threads)
            tensors = [fn.tensor(x, requires_grad=True) for x in inputs[:3]]
            if name == "bias":
                kind["attn_mask"] = fn.tensor(kind["attn_mask"], requires_grad=True)
                tensors.append(kind["attn_mask"])
            out = sdpa(*tensors[:3], **kind)
            out.backward(fn.tensor(inputs[3]))
            results.append([out.numpy(), *(t.grad.numpy() for t in tensors)])
            if name == "bias":
                kind["attn_mask"] = kind["attn_mask"].numpy()
        for other in results[1:]:
            for a, b in zip(results[0], other, strict=True):
                np.testing.assert_array_equal(a, b)


def test_any_layout(isa, dtype):
    shape = (2, 4, 2, 19, 37, 16, 16)
    inputs = arrays(shape, dtype)
    mask = np.random.default_rng(3).random((2, 4, 19, 37)) > 0.3
    bias = np.random.default_rng(3).standard_normal((2, 4, 19, 37)).astype(dtype)

    def layouts(x):
        spread = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
        spread[..., ::2] = x
        apart = np.zeros((*x.shape[:-1], 1024), x.dtype)
        apart[..., : x.shape[-1]] = x
        read_only = x.copy()
        read_only.flags.writeable = False
        yield read_only
        yield spread[..., ::2]
        yield apart[..., : x.shape[-1]]
        yield np.ascontiguousarray(x[:, ::-1, ::-1])[:, ::-1, ::-1]
        yield np.ascontiguousarray(x[..., ::-1])[..., ::-1]
        yield np.asfortranarray(x)
        yield np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
        if x.dtype != bool:
            yield x.astype(np.dtype(dtype).newbyteorder(">"))

    for attn_mask in (None, mask, bias):
        expected = sdpa(*inputs[:3], attn_mask, enable_gqa=True)
        for i in range(3):
            for view in layouts(inputs[i]):
                changed = [*inputs[:3]]
                changed[i] = view
                found = sdpa(*changed, attn_mask, enable_gqa=True)
                np.testing.assert_array_equal(found, expected)
        if attn_mask is not None:
            for view in layouts(attn_mask):
                found = sdpa(*inputs[:3], view, enable_gqa=True)
                np.testing.assert_array_equal(found, expected)


def test_heads_beside_each_other_stay_so(dtype):
    q, k, v, grad = (
        np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
        for x in arrays((2, 3, 3, 9, 11, 8, 8), dtype)
    )
    out = sdpa(q, k, v)
    assert out.transpose(0, 2, 1, 3).flags.c_contiguous
    np.testing.assert_array_equal(out, sdpa(*(np.ascontiguousarray(x) for x in (q, k, v))))
    tensors = [fn.from_numpy(x.transpose(0, 2, 1, 3)).transpose(1, 2) for x in (q, k, v)]
    for tensor in tensors:
        tensor.requires_grad_(True)
    sdpa(*tensors).backward(fn.tensor(grad))
    plain = [fn.tensor(np.ascontiguousarray(x), requires_grad=True) for x in (q, k, v)]
    sdpa(*plain).backward(fn.tensor(np.ascontiguousarray(grad)))
    for a, b in zip(tensors, plain, strict=True):
        np.testing.assert_array_equal(a.grad.numpy(), b.grad.numpy())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_element_is_written_and_none_read(shape, isa, dtype):
    """Results and workspaces come in recycled memory: here all of it holds NaN."""
    inputs = arrays(shape, dtype)
    for kind in options(shape, dtype).values():
        tensors = [fn.tensor(x, requires_grad=True) for x in inputs[:3]]
        poison = [np.full(n, NAN) for n in (200, 3000, 40_000, 300_000)]
        del poison
        for _ in range(2):
            out = sdpa(*tensors, **call(kind))
            out.backward(fn.tensor(inputs[3]))
            found = [out.numpy(), *(t.grad.numpy() for t in tensors)]
            assert all(np.isfinite(x).all() for x in found)
            for tensor in tensors:
                tensor.grad = None
            for x in found:
                if x.flags.writeable:
                    x.fill(NAN)


@pytest.mark.parametrize("queries", [1, 2, 4, 5])
def test_few_queries_with_work_for_several_threads(queries, isa, dtype):
    """Their gradients are not cut into parts, unlike those of many queries."""
    inputs = arrays((1, 12, 12, queries, 400, 64, 64), dtype)
    exact, _ = references(inputs, {})
    for threads in (1, 2, 3):
        fn.set_num_threads(threads)
        tensors = [fn.tensor(x, requires_grad=True) for x in inputs[:3]]
        poison = [np.full(n, NAN) for n in (200, 3000, 40_000, 300_000)]
        del poison
        sdpa(*tensors).backward(fn.tensor(inputs[3]))
        for tensor, expected in zip(tensors, (exact.query, exact.key, exact.value), strict=True):
            assert tensor.grad is not None
            tolerance = 1e-5 if dtype == "float32" else 1e-12
            np.testing.assert_allclose(
                tensor.grad.numpy(), expected.astype(np.float64), rtol=1e-3, atol=tolerance
            )


# ---- dropout -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 2, 2, 3, 70, 8, 8), (2, 2, 1, 40, 300, 8, 8)])
@pytest.mark.parametrize("kind", [{}, {"is_causal": True}])
def test_dropout(shape, kind, isa, dtype):
    b, h, _, tq, tk, _, _ = shape
    inputs = arrays(shape, dtype)
    for p in (0.25, 1.0):
        fn.manual_seed(5)
        key = int(fn.random.next_generator().bit_generator.random_raw())
        keep = ref.dropout_factors(key, (b * h, tq, tk), p).reshape(b, h, tq, tk)
        fn.manual_seed(5)
        tensors = [fn.tensor(x, requires_grad=True) for x in inputs[:3]]
        out = sdpa(*tensors, dropout_p=p, enable_gqa=True, **kind)
        out.backward(fn.tensor(inputs[3]))
        exact, naive = references(inputs, {**kind, "keep": keep})
        check(out.numpy(), exact.output, naive.output, "output")
        for tensor, part in zip(tensors, ("query", "key", "value"), strict=True):
            check(tensor.grad.numpy(), getattr(exact, part), getattr(naive, part), part)
        if p == 1:
            assert not out.numpy().any()
        else:
            assert abs((keep == 0).mean() - p) < 0.02


def test_dropout_only_in_training_and_anew_each_time():
    q, k, v, _ = arrays((1, 2, 2, 20, 20, 8, 8), "float32")
    np.testing.assert_array_equal(sdpa(q, k, v, dropout_p=0.5, training=False), sdpa(q, k, v))
    first, second = sdpa(q, k, v, dropout_p=0.5), sdpa(q, k, v, dropout_p=0.5)
    assert (first != second).any()
    ones = np.ones((1, 1, 4, 4), np.float32)
    np.testing.assert_array_equal(sdpa(ones, ones, ones, dropout_p=1.0), np.zeros_like(ones))


# ---- gradients -----------------------------------------------------------------------------------


@pytest.mark.parametrize("queries", [2, 6])
@pytest.mark.parametrize("name", options(SHAPES[0], "float64"))
def test_gradcheck(name, queries):
    shape = (2, 2, 1, queries, 7, 3, 4)
    kind = call(options(shape, "float64")[name])
    inputs = arrays(shape, "float64")[:3]
    mask = kind.pop("attn_mask", None)
    if mask is not None and mask.dtype != bool and np.isfinite(mask).all():
        inputs.append(mask)
        assert fn.testing.gradcheck(lambda q, k, v, m: sdpa(q, k, v, m, **kind), inputs)
    else:
        assert fn.testing.gradcheck(lambda q, k, v: sdpa(q, k, v, mask, **kind), inputs)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("keys", [2, 300])
@pytest.mark.parametrize("queries", [1, 6])
def test_nearly_one_hot_rows_keep_their_digits(queries, keys, dtype, isa):
    """The difference of dP and the row's mean cancels; what is left must still be right."""
    q = np.ones((queries, 4))
    k = np.zeros((keys, 4))
    k[0] = [0, 1, 2, 3]
    k[keys - 1] = [4, 5, 6, 7]
    k[1 : keys - 1] = np.linspace(-3, -2, max(keys - 2, 0))[:, None]
    v = np.arange(1.0, 1 + 4 * keys).reshape(keys, 4) % 97
    v[0], v[keys - 1] = [1, 2, 3, 4], [5, 6, 7, 8]
    grad = np.ones((queries, 4))
    exact = ref.attention(*(x[None, None].astype(np.longdouble) for x in (q, k, v, grad)))
    tensors = [fn.tensor(x.astype(dtype), requires_grad=True) for x in (q, k, v)]
    sdpa(*tensors).sum().backward()
    for tensor, part in zip(tensors, ("query", "key", "value"), strict=True):
        expected = getattr(exact, part)[0, 0].astype(np.float64)
        scale = np.abs(expected).max()
        np.testing.assert_allclose(tensor.grad.numpy(), expected, rtol=1e-5, atol=1e-6 * scale)
    if keys == 2 and queries == 1:
        np.testing.assert_allclose(tensors[0].grad.numpy(), np.full((1, 4), 0.0107276055), 1e-5)


def test_gradients_of_broadcast_arrays():
    rng = np.random.default_rng(0)
    sizes = [(3, 2, 5, 4), (1, 1, 6, 4), (3, 1, 6, 3)]
    inputs = [rng.standard_normal(size) for size in sizes]
    full = [np.broadcast_to(x, (3, 2, *x.shape[2:])) for x in inputs]
    np.testing.assert_allclose(sdpa(*inputs), sdpa(*full), rtol=1e-14)
    assert fn.testing.gradcheck(sdpa, inputs)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 2, 3)])
def test_any_number_of_axes(lead):
    rng = np.random.default_rng(0)
    sizes = [(*lead, 5, 4), (*lead, 6, 4), (*lead, 6, 3)]
    inputs = [rng.standard_normal(size) for size in sizes]
    out = sdpa(*inputs, is_causal=True)
    assert out.shape == (*lead, 5, 3)
    four = [x.reshape(-1, 1, *x.shape[-2:]) for x in inputs]
    np.testing.assert_array_equal(out.reshape(-1, 1, 5, 3), sdpa(*four, is_causal=True))
    assert fn.testing.gradcheck(lambda q, k, v: sdpa(q, k, v, is_causal=True), inputs)


def test_only_what_needs_a_gradient_gets_one():
    q, k, v, _ = arrays((1, 2, 2, 5, 6, 4, 4), "float64")
    key = fn.tensor(k, requires_grad=True)
    out = sdpa(q, key, v)
    out.sum().backward()
    assert key.grad is not None
    with fn.no_grad():
        assert not sdpa(q, key, v).requires_grad
    assert isinstance(sdpa(q, k, v), np.ndarray)
    assert not sdpa(fn.tensor(q), k, v).requires_grad


@pytest.mark.parametrize(("tq", "tk"), list(itertools.product([1, 5, 60], [1, 6, 70])))
def test_against_torch(tq, tk):
    torch = pytest.importorskip("torch")
    inputs = arrays((2, 4, 2, tq, tk, 8, 8), "float32")
    mask = np.random.default_rng(0).random((2, 1, tq, tk)) > 0.3
    bias = np.random.default_rng(0).standard_normal((4, tq, tk)).astype(np.float32)
    for kind in ({}, {"is_causal": True}, {"attn_mask": mask}, {"attn_mask": bias}, {"scale": 0.2}):
        theirs = [torch.tensor(x, requires_grad=True) for x in inputs[:3]]
        given = {**kind}
        if "attn_mask" in kind:
            given["attn_mask"] = torch.tensor(kind["attn_mask"])
        expected = torch.nn.functional.scaled_dot_product_attention(
            *theirs, enable_gqa=True, **given
        )
        grads = torch.autograd.grad(expected, theirs, torch.tensor(inputs[3]))
        ours = [fn.tensor(x, requires_grad=True) for x in inputs[:3]]
        out = sdpa(*ours, enable_gqa=True, **kind)
        out.backward(fn.tensor(inputs[3]))
        np.testing.assert_allclose(out.numpy(), expected.detach().numpy(), rtol=0, atol=3e-6)
        for tensor, grad in zip(ours, grads, strict=True):
            np.testing.assert_allclose(tensor.grad.numpy(), grad.numpy(), rtol=0, atol=2e-5)
