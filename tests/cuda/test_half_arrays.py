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


def test_losses_without_a_kernel_say_so(xp, values, half):
    x = fn.tensor(values, dtype=half, device="cuda")
    with pytest.raises(NotImplementedError, match=rf"mse_loss: no CUDA kernel for {half} \(input"):
        F.mse_loss(x, x)
