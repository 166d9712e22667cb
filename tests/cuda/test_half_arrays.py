"""16-bit floats on the GPU: how arrays and tensors of them are made, read, moved and refused."""

from __future__ import annotations

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import nn

ml_dtypes = pytest.importorskip("ml_dtypes")
DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}


@pytest.fixture(params=list(DTYPES))
def half(request):
    return request.param


@pytest.fixture
def values():
    return np.random.default_rng(0).standard_normal((3, 5)).astype(np.float32)


def test_tensors(xp, values, half):
    x = fn.tensor(values, dtype=half, device="cuda")
    assert x.dtype == DTYPES[half] and x.device == "cuda:0" and x.is_floating_point()
    expected = values.astype(DTYPES[half])
    np.testing.assert_array_equal(x.cpu()._data, expected)
    assert fn.tensor(x).dtype == fn.zeros_like(x).dtype == fn.from_dlpack(x._data).dtype == x.dtype
    assert fn.zeros(2, 3, dtype=half, device="cuda").dtype == x.dtype
    assert half in repr(x) and "device='cuda:0'" in repr(x)


def test_casts_have_gradients(xp, values, half):
    x = fn.tensor(values, requires_grad=True, device="cuda")
    y = x.to(half)
    assert y.dtype == DTYPES[half] and y.requires_grad and y.to(half) is y
    (y.float() * 3.0).sum().backward()
    assert x.grad.dtype == np.float32
    np.testing.assert_array_equal(x.grad.cpu().numpy(), np.full((3, 5), 3, np.float32))


def test_python_numbers_leave_the_dtype_alone(xp, values, half):
    x = fn.tensor(values, dtype=half, device="cuda", requires_grad=True)
    for y in (x * 2.0, 2 * x, x + 1, 1 - x, x / 3.0):
        assert y.dtype == x.dtype
    ((x * 2.0) * x).sum().backward()
    assert x.grad.dtype == x.dtype


def test_dtypes_do_not_mix(xp, values, half):
    x = fn.tensor(values, dtype=half, device="cuda")
    with pytest.raises(TypeError, match=f"mul: operands are {half} and float32"):
        x * fn.tensor(values, device="cuda")


def test_the_cpu_has_none(xp, values, half):
    for make in (
        lambda: fn.tensor(values, dtype=half),
        lambda: fn.tensor(values).to(half),
        lambda: fn.zeros(2, dtype=half),
        lambda: nn.Linear(2, 3).to(dtype=half),
    ):
        with pytest.raises(TypeError, match=f"dtype {half} is not supported, expected float32"):
            make()
    x = fn.tensor(values, dtype=half, device="cuda").cpu()
    with pytest.raises(TypeError, match=f"relu: input has dtype {half}, expected float32 or"):
        F.relu(x)


def test_modules(xp, half):
    layer = nn.Linear(2, 3).to("cuda").to(dtype=half)
    assert layer.weight.dtype == layer.bias.dtype == DTYPES[half]
    assert nn.Parameter(layer.weight).dtype == DTYPES[half]
    assert layer.float().weight.dtype == np.float32
    assert nn.Linear(2, 3).to("cuda", half).weight.dtype == DTYPES[half]


@pytest.mark.emulated
@pytest.mark.parametrize("typestr", ["<V2", "|V2"])
def test_bfloat16_of_other_libraries(xp, values, typestr):
    """PyTorch's interface says "<V2"; only the array's own dtype says what that is."""

    class Foreign:
        def __init__(self, array, dtype):
            self.array, self.dtype = array, dtype
            self.__cuda_array_interface__ = {**array.__cuda_array_interface__, "typestr": typestr}

    held = xp.asarray(values.astype(DTYPES["bfloat16"]))
    for name in ("bfloat16", "torch.bfloat16"):
        assert F.max_pool1d(Foreign(held[None], name), 2).dtype == DTYPES["bfloat16"]
    with pytest.raises(TypeError, match=r"void16|V2"):
        F.max_pool1d(Foreign(held[None], "int16"), 2)


def test_states(xp, half, tmp_path):
    """16-bit states are saved and loaded, and go into modules of any float dtype."""
    layer = nn.Linear(2, 3).to("cuda", half)
    state = layer.state_dict()
    assert {one.dtype for one in state.values()} == {DTYPES[half]}
    fn.save(state, tmp_path / "state.safetensors")
    state = fn.load(tmp_path / "state.safetensors")
    wide, narrow = nn.Linear(2, 3), nn.Linear(2, 3).to("cuda", half)
    wide.load_state_dict(state)
    narrow.load_state_dict(wide.state_dict())
    for name, value in narrow.state_dict().items():
        np.testing.assert_array_equal(value.astype("f"), layer.state_dict()[name].astype("f"))
    if half == "float16":
        state["bias"] = np.full(3, 1e6, np.float32)
        with pytest.raises(ValueError, match="bias has values of float32 that float16 has not"):
            narrow.load_state_dict(state)


LOSSES = {
    "mse": F.mse_loss,
    "l1": lambda x, t: F.l1_loss(x, t, "sum"),
    "huber": lambda x, t: F.huber_loss(x, target=t, delta=0.3),
    "smooth": lambda x, t: F.smooth_l1_loss(input=x, target=t, reduction="none"),
    "logits": F.binary_cross_entropy_with_logits,
    "probabilities": F.binary_cross_entropy,
    "kl": lambda x, t: F.kl_div(x, t, reduction="batchmean"),
    "soft": F.cross_entropy,
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses(xp, half, name):
    """float32 throughout: only gradients are rounded."""
    rng = np.random.default_rng(1)
    arrays = [rng.uniform(0.1, 0.9, (3, 5)).astype(DTYPES[half]) for _ in range(2)]
    found = []
    for dtype, device in (("float64", "cpu"), (half, "cuda")):
        x, t = (
            fn.tensor(one.astype("d"), dtype=dtype, device=device, requires_grad=True)
            for one in arrays
        )
        loss = LOSSES[name](x, t)
        loss.sum().backward()
        assert x.grad.dtype == x.dtype and loss.dtype == ("float32" if device == "cuda" else "d")
        found.append([one.detach().cpu()._data.astype("d") for one in (loss, x.grad, t.grad)])
        if device == "cuda":
            plain = LOSSES[name](x._data, t._data)
            assert plain.dtype == np.float32
    exact, got = found
    np.testing.assert_allclose(got[0], exact[0], rtol=1e-5, atol=1e-6)
    eps = float(ml_dtypes.finfo(DTYPES[half]).eps)
    for one, value in zip(got[1:], exact[1:], strict=True):
        np.testing.assert_allclose(one, value, rtol=eps, atol=1e-6)


ROUNDED = {
    "softsign": F.softsign,
    "glu": F.glu,
    "normalize": lambda x: F.normalize(x, dim=-1),
    "cosine": lambda x: F.cosine_similarity(x, x[1:2], dim=-1),
    "var": lambda x: x.var(0) if isinstance(x, fn.Tensor) else fn.tensor(x).var(0)._data,
    "std": lambda x: x.std(1) if isinstance(x, fn.Tensor) else fn.tensor(x).std(1)._data,
}


@pytest.mark.parametrize("name", ROUNDED)
def test_rounded_once(xp, half, name):
    """Computed in float32 from 16 bits to 16 bits."""
    x = np.random.default_rng(2).standard_normal((40, 6)).astype(DTYPES[half])
    exact = ROUNDED[name](x.astype("d"))
    got = ROUNDED[name](xp.asarray(x))
    assert got.dtype == DTYPES[half]
    eps = float(ml_dtypes.finfo(DTYPES[half]).eps)
    np.testing.assert_allclose(xp.asnumpy(got).astype("d"), exact, rtol=0.51 * eps, atol=1e-7)
    leaf = fn.tensor(xp.asarray(x), requires_grad=True)
    assert ROUNDED[name](leaf).dtype == leaf.dtype
    ROUNDED[name](leaf).float().sum().backward()
    assert leaf.grad.dtype == leaf.dtype


def test_autocast_widens_losses(xp, half):
    """And products take locally connected layers."""
    x = fn.rand(2, 3, 5, device="cuda", requires_grad=True)
    narrow = x.to(half)
    with fn.autocast(half):
        for loss in (F.kl_div, F.mse_loss, F.binary_cross_entropy):
            assert loss(narrow, x.detach()).dtype == np.float32
        assert F.cosine_similarity(narrow, x).dtype == np.float32
        layer = nn.LocallyConnected1d(3, 2, 5, 3, padding=1).to("cuda")
        y = layer(x)
        assert y.dtype == DTYPES[half]
        y.float().sum().backward()
    assert layer.weight.grad.dtype == layer.bias.grad.dtype == x.grad.dtype == np.float32


def test_two_dtypes_are_refused(xp, half):
    x = fn.ones(2, 3, dtype=half, device="cuda")
    wide = x.float()
    with pytest.raises(TypeError, match=f"mse_loss: target has dtype float32, expected {half}"):
        F.mse_loss(x, wide)
    with pytest.raises(TypeError, match=f"mse_loss: target has dtype {half}, expected float32"):
        F.mse_loss(wide, x)
    with pytest.raises(TypeError, match=f"weight has dtype {half}, expected float32"):
        F.binary_cross_entropy(x, x, x)
    with pytest.raises(TypeError, match=f"weight has dtype {half}, expected float32"):
        F.cross_entropy(x, x, x[0])
    with pytest.raises(
        TypeError, match=f"cross_entropy: target has dtype float32, expected {half}"
    ):
        F.cross_entropy(x, wide)
    with pytest.raises(TypeError, match=f"operands are {half} and float32"):
        F.cosine_similarity(x, wide)
    with pytest.raises(TypeError, match=f"weight has dtype float32, expected {half} like input"):
        F.locally_connected1d(fn.ones(1, 2, 3, dtype=half, device="cuda"),
                              fn.ones(3, 1, 2, 1, device="cuda"))  # fmt: skip


def test_clamp(xp, half):
    x = fn.tensor([-2.0, 0.5, 3.0], dtype=half, device="cuda", requires_grad=True)
    y = x.clamp(-1, 1.0)
    y.sum().backward()
    np.testing.assert_array_equal(y.float().detach().cpu().numpy(), [-1, 0.5, 1])
    np.testing.assert_array_equal(x.grad.float().cpu().numpy(), [0, 1, 0])
    assert y.dtype == x.grad.dtype == DTYPES[half]
