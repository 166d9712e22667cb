"""autocast: which ops run in 16 bits, what comes out, and what happens to parameters."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import models, nn

ml_dtypes = pytest.importorskip("ml_dtypes")
DTYPES = {"bfloat16": np.dtype(ml_dtypes.bfloat16), "float16": np.dtype(np.float16)}


@pytest.fixture(params=list(DTYPES))
def half(request):
    return request.param


@pytest.fixture
def x(xp):
    return fn.tensor(np.random.default_rng(0).standard_normal((4, 8)).astype("f"), device="cuda")


def test_products_are_narrow_the_rest_is_wide(xp, half, x):
    layer = nn.Linear(8, 6).cuda()
    image = fn.randn(1, 3, 6, 6, device="cuda")
    kernel = fn.randn(4, 3, 3, 3, device="cuda")
    with fn.autocast(half):
        assert fn.is_autocast_enabled()
        y = layer(x)
        narrow = [y, x @ x.T, fn.matmul(x._data, x._data.T), F.relu(y), F.gelu(y)]
        narrow += [F.conv2d(image, kernel), F.conv_transpose2d(image, kernel[:3])]
        wide = [F.softmax(y, 1), F.log_softmax(y, 1), F.layer_norm(y, (6,)), F.rms_norm(y, (6,))]
        wide += [F.group_norm(F.conv2d(image, kernel), 2), F.max_pool2d(image, 2)]
        wide += [F.batch_norm(y, None, None, training=True), F.mse_loss(y, x[:, :6])]
        wide += [F.instance_norm(F.conv2d(image, kernel)), F.prelu(y, fn.ones(6, device="cuda"))]
        wide += [F.cross_entropy(y, xp.asarray(np.zeros(4, int))), fn.cat([y, x[:, :6]])]
        image = F.conv2d(image, kernel)
        narrow += [F.max_pool2d(image, 2), F.avg_pool2d(image, 3), F.adaptive_max_pool2d(image, 3)]
        heads = x.reshape(1, 2, 4, 4)
        narrow += [F.scaled_dot_product_attention(heads, heads, heads, is_causal=True)]
        narrow += [F.dropout(y, 0.5), F.dropout(y, training=False), fn.cat([y, y])]
    assert {one.dtype for one in narrow} == {DTYPES[half]}
    assert {one.dtype for one in wide} == {np.dtype(np.float32)}
    assert not fn.is_autocast_enabled()
    assert layer(x).dtype == np.float32
    assert F.linear(x.double(), layer.weight.double()).dtype == np.float64


def test_arithmetic_of_both_is_wide(half, x):
    x.requires_grad = True
    with fn.autocast(half):
        y = x @ x.T
        for total in (x[:, :4] + y, y + x[:, :4], x[:, :4] * y, y - x[:, :4], y / (x[:, :4] + 9.0)):
            assert total.dtype == np.float32
        assert (y + y).dtype == (y * 2.0).dtype == DTYPES[half]
        (y + x[:, :4]).sum().backward()
    assert x.grad.dtype == np.float32
    with pytest.raises(TypeError, match="add: operands are"):
        y + x[:, :4]


def test_gradients_are_float32_and_near(xp, half, x):
    fn.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 3)).cuda()
    target = xp.asarray(np.array([0, 2, 1, 1]))
    F.cross_entropy(model(x), target).backward()
    exact = [p.grad.cpu().numpy() for p in model.parameters()]
    model.zero_grad()
    with fn.autocast(half):
        loss = F.cross_entropy(model(x), target)
    loss.backward()
    assert loss.dtype == np.float32
    for parameter, wanted in zip(model.parameters(), exact, strict=True):
        assert parameter.dtype == parameter.grad.dtype == np.float32
        error = abs(parameter.grad.cpu().numpy() - wanted).max()
        assert 0 < error <= 0.05 * abs(wanted).max() + 1e-3


def lenet():
    layers = [nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)]
    layers += [nn.Conv2d(4, 6, 3), nn.GELU(), nn.Dropout(0.1), nn.Flatten(), nn.Linear(24, 5)]
    return nn.Sequential(*layers)


def gpt():
    return models.GPT(vocab_size=5, block_size=8, n_layer=1, n_head=2, n_embd=16)


@pytest.mark.parametrize("network", [lenet, gpt])
def test_models(half, network):
    """Training steps in 16 bits stay near those in float32."""
    rng = np.random.default_rng(0)
    if network is lenet:
        data = fn.tensor(rng.standard_normal((6, 1, 8, 8)).astype("f"), device="cuda")
        target = fn.tensor(rng.integers(0, 5, 6), device="cuda")
    else:
        data = fn.tensor(rng.integers(0, 5, (2, 6)), device="cuda")
        target = fn.tensor(rng.integers(0, 5, 12), device="cuda")
    losses = {}
    for enabled in (False, True):
        fn.manual_seed(0)
        model = network().cuda()
        optimizer = fn.optim.AdamW(model.parameters(), lr=0.01)
        losses[enabled] = []
        for _ in range(3):
            optimizer.zero_grad()
            with fn.autocast(half, enabled=enabled):
                loss = F.cross_entropy(model(data).reshape(-1, 5), target)
            loss.backward()
            optimizer.step()
            losses[enabled].append(loss.item())
    assert losses[True] != losses[False]
    np.testing.assert_allclose(losses[True], losses[False], rtol=0.03)


def test_parameters_are_cast_once_until_they_change(half, x, monkeypatch):
    from fusednn import _core

    casts = []
    cast = _core.cast
    monkeypatch.setattr(_core, "cast", lambda a, d: casts.append(a.shape) or cast(a, d))
    layer = nn.Linear(8, 8, bias=False).cuda()
    optimizer = fn.optim.SGD(layer.parameters(), lr=0.5)
    with fn.autocast(half):
        for _ in range(3):
            y = layer(layer(x)).float().sum()
            before = y.item()
            y.backward()
        assert casts.count((8, 8)) == 1 + 6  # and six gradients
        with fn.autocast(half):  # the same block
            layer(x)
        assert casts.count((8, 8)) == 7
        optimizer.step()
        assert layer(layer(x)).float().sum().item() != before
        assert casts.count((8, 8)) == 8
    with fn.autocast(half):
        layer(x)
    assert casts.count((8, 8)) == 9


def test_blocks_nest(x):
    w = x.detach()
    with fn.autocast("bfloat16"):
        with fn.autocast("float16"):
            assert F.linear(x, w).dtype == np.float16
        with fn.autocast(enabled=False):
            assert F.linear(x, w).dtype == np.float32
            assert not fn.is_autocast_enabled()
        with pytest.raises(RuntimeError), fn.autocast("float16"):
            raise RuntimeError
        assert F.linear(x, w).dtype == DTYPES["bfloat16"]
        seen = []
        thread = threading.Thread(target=lambda: seen.append(fn.is_autocast_enabled()))
        thread.start()
        thread.join()
        assert seen == [False]

    @fn.autocast("float16")
    def product(a, b):
        """Its text."""
        return F.linear(a, b)

    assert product(x, w).dtype == np.float16 and product.__doc__ == "Its text."
    assert F.linear(x, w).dtype == np.float32


def test_refused(x):
    for dtype in ("float32", np.float64, 3):
        with pytest.raises(ValueError, match=r"autocast: dtype .*, expected 'bfloat16' or"):
            fn.autocast(dtype)
    with pytest.raises(TypeError, match="autocast: can decorate functions alone"):
        fn.autocast()(int)
    with (
        fn.autocast("float16"),
        pytest.raises(NotImplementedError, match=r"linear: autocast\('float16'\) has no kernels"),
    ):
        F.linear(np.ones((2, 3), "f"), np.ones((2, 3), "f"))
    with fn.autocast("float16", enabled=False):
        F.linear(np.ones((2, 3), "f"), np.ones((2, 3), "f"))
