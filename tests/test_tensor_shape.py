"""Tensor's shapes, subscripts, and changes in place."""

import numpy as np
import pytest

import fusednn as fn

f32, f64 = np.float32, np.float64


def values(*shape, seed=0, dtype=f64):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def same(tensor, expected, tol=0.0):
    assert isinstance(tensor, fn.Tensor)
    expected = np.asarray(expected)
    assert tensor.shape == expected.shape
    np.testing.assert_allclose(tensor.numpy(), expected, rtol=tol, atol=tol)


# ---- shapes --------------------------------------------------------------------------------------


def test_views_share_memory_and_copies_do_not():
    x = fn.tensor(np.arange(24.0).reshape(2, 3, 4))
    views = [
        x.reshape(6, 4),
        x.view(-1),
        x.permute(2, 0, 1),
        x.transpose(0, 2),
        x.T,
        x.mT,
        x.flatten(1),
        x.unsqueeze(1),
        x.unsqueeze(0).squeeze(),
        x.movedim(0, 2),
        x.flip(0),
        x[1],
        x[..., ::2],
        x[:, None],
        x[0, 1, 2],
        x.detach(),
        x.unflatten(2, (2, 2)),
        *x.split(1),
        *x.chunk(2, dim=2),
        *x.unbind(1),
        x.expand(5, 2, 3, 4),
    ]
    for view in views:
        assert np.shares_memory(view.numpy(), x.numpy()), view
        assert view._memory is x._memory
    for copied in (x.clone(), x.permute(2, 0, 1).reshape(-1), x[[0, 1]], x.T.contiguous()):
        assert not np.shares_memory(copied.numpy(), x.numpy())
        assert copied._memory is not x._memory
    assert x.contiguous() is x


def test_shapes_match_numpy():
    a = values(2, 3, 4)
    x = fn.tensor(a)
    same(x.reshape(4, -1), a.reshape(4, -1))
    same(x.reshape((3, 8)), a.reshape(3, 8))
    same(x.permute(1, 2, 0), a.transpose(1, 2, 0))
    same(x.permute((1, -1, 0)), a.transpose(1, 2, 0))
    same(x.transpose(-1, 0), a.swapaxes(-1, 0))
    same(x.flatten(0, 1), a.reshape(6, 4))
    same(x.movedim(0, -1), np.moveaxis(a, 0, -1))
    same(x.flip(0, 2), a[::-1, :, ::-1])
    same(x.repeat(2, 1, 3), np.tile(a, (2, 1, 3)))
    same(x.repeat(2, 1, 1, 1), np.tile(a, (2, 1, 1, 1)))
    same(x[:, :1].expand(-1, 3, -1), np.broadcast_to(a[:, :1], a.shape))
    same(fn.tensor(a[0]).t(), a[0].T)
    assert [p.shape for p in x.split((1, 2), dim=1)] == [(2, 1, 4), (2, 2, 4)]
    assert [p.shape for p in x.split(3, dim=2)] == [(2, 3, 3), (2, 3, 1)]
    assert [p.shape for p in x.chunk(3, dim=2)] == [(2, 3, 2), (2, 3, 2)]
    assert fn.tensor(1.0).flatten().shape == (1,)
    assert fn.zeros(1, 2, 1).squeeze(0).shape == (2, 1)
    assert fn.zeros(1, 2, 1).squeeze((0, 1)).shape == (2, 1)
    assert x.size(1) == 3
    assert x.size() == x.shape == (2, 3, 4)
    assert (x.ndim, x.dim(), x.numel(), len(x), x.device) == (3, 3, 24, 2, "cpu")


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x: x.reshape(5, -1), ValueError, r"reshape: 6 elements of shape \(2, 3\) do not"),
        (lambda x: x.T.view(6), ValueError, "view: shape .* without a copy; use reshape"),
        (lambda x: x.permute(0, 0), ValueError, r"permute: dims \(0, 0\) are not an order of 2"),
        (lambda x: x.permute(0, 2), ValueError, "permute: dim=2 is out of range"),
        (lambda x: x.expand(4, 3), ValueError, r"expand: shape \(2, 3\) cannot be read as"),
        (lambda x: x.flatten(1, 0), ValueError, "start_dim=1 comes after end_dim=0"),
        (lambda x: x.split(0), ValueError, "split_size must be positive"),
        (lambda x: x.split((1, 2)), ValueError, r"sizes \[1, 2\] do not add up to 2"),
        (lambda x: x.chunk(0), ValueError, "chunks must be positive"),
        (lambda x: x.repeat(2), ValueError, "repeat: 1 repeats for a tensor of 2 axes"),
        (lambda x: x[None].t(), ValueError, "t: expected at most 2 axes"),
        (lambda x: fn.cat([]), ValueError, "cat: expected at least one tensor"),
        (lambda x: fn.cat([x, x[0]]), ValueError, r"tensors\[1\] has shape \(3,\), tensors\[0\]"),
        (lambda x: fn.cat([x, x.double()]), TypeError, r"float32, tensors\[1\] float64; nothing"),
        (
            lambda x: fn.cat([x, 3]),
            TypeError,
            r"tensors\[1\] must be a Tensor or an array, got int",
        ),
        (lambda x: fn.stack([x, x.T]), ValueError, r"stack: tensors\[1\] has shape \(3, 2\)"),
        (lambda x: x.item(), ValueError, r"item: the tensor has shape \(2, 3\), expected one"),
        (lambda x: bool(x), ValueError, r"bool: a tensor of shape \(2, 3\) has no one truth"),
        (lambda x: len(fn.tensor(1.0)), TypeError, "without axes"),
        (lambda x: iter(fn.tensor(1.0)), TypeError, "without axes"),
        (lambda x: x.to("cuda"), ValueError, "to: device 'cuda' is not available: "),
        (lambda x: x.cuda(), ValueError, "to: device 'cuda' is not available: "),
        (lambda x: x.to(np.float16), TypeError, "to: dtype float16 is not supported"),
    ],
)
def test_bad_calls_say_what_is_wrong(call, error, text):
    with pytest.raises(error, match=text):
        call(fn.zeros(2, 3))


def test_cat_and_stack():
    a, b = values(2, 3), values(1, 3, seed=1)
    same(fn.cat([fn.tensor(a), b]), np.concatenate([a, b]))
    same(fn.cat([fn.tensor(a), fn.tensor(a)], dim=-1), np.concatenate([a, a], -1))
    same(fn.stack([fn.tensor(a), fn.tensor(a)], dim=1), np.stack([a, a], 1))
    assert isinstance(fn.cat([a, b]), np.ndarray)
    assert isinstance(fn.stack((a, a)), np.ndarray)


# ---- indexing ------------------------------------------------------------------------------------

INDICES = {
    "int": 1,
    "negative": -1,
    "all": (1, 2, 3),
    "slice": slice(0, 2),
    "step": (slice(None), slice(None, None, -2)),
    "none": (None, Ellipsis, 0),
    "array": np.array([2, 0, 2]),
    "list": [0, 1],
    "two arrays": (np.array([0, 1, 0]), np.array([3, 1, 3])),
    "grid": (np.array([[0], [2]]), slice(None), np.array([1, 1])),
    "mask": np.arange(3) % 2 == 0,
    "full mask": np.arange(60).reshape(3, 4, 5) % 7 == 0,
    "empty": np.array([], np.int64),
    "empty list": [],
    "numpy int": (np.int64(1), np.int32(0)),
}


@pytest.mark.parametrize("name", INDICES)
def test_indexing_matches_numpy(name):
    a = values(3, 4, 5)
    index = INDICES[name]
    expected = a[np.array(index, int) if name == "empty list" else index]
    same(fn.tensor(a)[index], expected)
    if isinstance(index, np.ndarray):
        same(fn.tensor(a)[fn.tensor(index)], expected)


def test_setitem_matches_numpy():
    for name, index in INDICES.items():
        if name == "empty list":
            continue
        a = values(3, 4, 5)
        x = fn.tensor(a)
        x[index] = 2.0
        a[index] = 2.0
        same(x, a)
    x = fn.zeros(2, 2)
    x[0] = np.array([1, 2], f32)
    x[1] = fn.tensor([3.0, 4.0])
    same(x, [[1, 2], [3, 4]])
    x[0] = x[1]
    x[:, 0] = x[:, 1]
    same(x, [[4, 4], [4, 4]])


def test_overlapping_setitem_reads_before_it_writes():
    x = fn.arange(5)
    x[1:] = x[:-1]
    same(x, [0, 0, 1, 2, 3])


def test_index_errors():
    x = fn.zeros(2, 3)
    with pytest.raises(IndexError, match=r"indexing a tensor of shape \(2, 3\): .*out of bounds"):
        x[2]
    with pytest.raises(IndexError, match="too many indices"):
        x[0, 0, 0]
    with pytest.raises(TypeError, match="an index has dtype float64"):
        x[np.array([0.5])]
    with pytest.raises(TypeError, match="setitem: operands are float32 and float64"):
        x[0] = np.zeros(3)
    with pytest.raises(TypeError, match="setitem: expected a Tensor, an array or a number"):
        x[0] = "a"
    with pytest.raises(ValueError, match=r"setitem on a tensor of shape \(2, 3\)"):
        x[0] = fn.zeros(2)


def test_gather_and_index_select():
    a = values(3, 4)
    i = np.array([[0, 3], [1, 1], [2, 0]])
    same(fn.tensor(a).gather(1, i), np.take_along_axis(a, i, 1))
    same(fn.tensor(a).index_select(-1, np.array([3, 0])), a[:, [3, 0]])
    with pytest.raises(ValueError, match="gather: index has 1 axes, expected 2"):
        fn.tensor(a).gather(1, np.array([0]))


@pytest.mark.parametrize("dim", [2, 5, -3, -7])
def test_picking_along_an_axis_that_is_not_there(dim):
    x = fn.tensor(values(3, 4))
    with pytest.raises(ValueError, match=f"index_select: dim={dim} is out of range"):
        x.index_select(dim, np.array([0]))
    with pytest.raises(ValueError, match=f"gather: dim={dim} is out of range"):
        x.gather(dim, np.array([[0]]))


def test_picking_with_lists():
    data = values(3, 4)
    x = fn.tensor(data)
    same(x.index_select(-1, [0, 2]), data[:, [0, 2]])
    same(x.index_select(0, 1), data[1:2])
    same(x.index_select(0, []), data[:0])
    same(x.gather(1, [[3], [0], [1]]), data[[0, 1, 2], [3, 0, 1]][:, None])
    with pytest.raises(ValueError, match=r"index_select: index has shape \(1, 2\), expected a vec"):
        x.index_select(0, [[0, 1]])
    with pytest.raises(ValueError, match=r"repeat: repeats \(-1, 2\) must not be negative"):
        x.repeat(-1, 2)


def test_iteration_and_numbers():
    x = fn.tensor([1.0, 2.0])
    assert [t.item() for t in x] == [1, 2]
    assert float(x[1]) == 2.0
    assert int(x[1]) == 2
    assert [10, 20, 30][fn.tensor(2)] == 30
    assert bool(x[0] == 1)
    assert 2.0 in x
    with pytest.raises(TypeError, match="integer tensors"):
        [1][x[0]]


# ---- in place ------------------------------------------------------------------------------------


def test_in_place_ops_change_the_memory_and_give_back_the_tensor():
    a = values(2, 3)
    x = fn.tensor(a)
    view, kept = x[0], x
    x += 1
    x -= np.ones(3)
    x *= 2.0
    x /= fn.tensor(np.full((2, 3), 4.0))
    assert x is kept
    same(x, a / 2, 1e-15)
    same(view, a[0] / 2, 1e-15)
    assert x.add_(1).mul_(2).sub_(2).div_(2) is x
    same(x, a / 2, 1e-15)
    same(x.fill_(3.5), np.full((2, 3), 3.5))
    same(x.clamp_(max=1), np.ones((2, 3)))
    same(x.copy_(a.astype(f32)), a.astype(f32))
    same(x.copy_(np.ones(3)), np.ones((2, 3)))
    same(x.zero_(), np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (
            lambda x: x.add_(np.ones((4, 2, 3), f32)),
            ValueError,
            "does not broadcast to .* in place",
        ),
        (lambda x: x.mul_(np.ones((2, 3))), TypeError, "mul_: operands are float32 and float64"),
        (lambda x: x.add_("a"), TypeError, "add_: expected a Tensor"),
        (
            lambda x: x.copy_(np.ones(2, f32)),
            ValueError,
            r"source has shape \(2,\), expected \(2, 3",
        ),
        (
            lambda x: x.copy_(np.ones(3, int)),
            TypeError,
            "source has dtype int64, the tensor float32",
        ),
        (lambda x: x.copy_([1.0]), TypeError, "source must be a Tensor or an array, got list"),
        (lambda x: x.fill_(np.ones(3, f32)), TypeError, "fill_: value must be a number"),
    ],
)
def test_refused_changes_change_nothing(change, error, text):
    x = fn.ones(2, 3)
    version = x._memory[0]
    with pytest.raises(error, match=text):
        change(x)
    same(x, np.ones((2, 3)))
    assert x._memory[0] == version


def test_integers_change_in_place_as_integers():
    x = fn.arange(3)
    x += 1
    same(x, [1, 2, 3])
    with pytest.raises(TypeError, match="div_: input has dtype int64"):
        x /= 2
    with pytest.raises(TypeError, match="uniform_: the tensor has dtype int64"):
        x.uniform_()
