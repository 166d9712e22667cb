"""Files of torch.save: everything in them comes back."""

import re

import numpy as np
import pytest
from torch_files import (
    Call,
    Name,
    Object,
    damaged,
    old_file,
    pickled,
    refused,
    storage,
    tensor,
    written_and_read,
    zip_file,
)

from fusednn import io, nn

f32 = np.float32


@pytest.fixture(params=[zip_file, old_file])
def write(request, tmp_path):
    return written_and_read(request.param, tmp_path)


def test_weights(write):
    numbers = np.arange(6, dtype=f32)
    w = tensor(storage("FloatStorage", "7", 6), 0, (2, 3), (3, 1))
    out = write({"fc.weight": w, "n": 3, "text": "é", "none": None, "list": [1.5, (True, b"x")]},
                {"7": numbers})  # fmt: skip
    assert out.pop("fc.weight").tolist() == [[0, 1, 2], [3, 4, 5]]
    assert out == {"n": 3, "text": "é", "none": None, "list": [1.5, (True, b"x")]}


KINDS = {
    "Float": np.float32, "Double": np.float64, "Half": np.float16, "ComplexFloat": np.complex64,
    "ComplexDouble": np.complex128, "Char": np.int8, "Short": np.int16, "Int": np.int32,
    "Long": np.int64, "Byte": np.uint8,
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_dtypes(kind, write):
    values = (np.arange(5) * 25).astype(KINDS[kind])
    out = write([tensor(storage(f"{kind}Storage", "0", 5), 1, (4,), (1,))], {"0": values})[0]
    assert out.dtype == KINDS[kind] and out.dtype.isnative
    assert out.tolist() == values[1:].tolist()
    assert out.flags.writeable and out.flags.aligned


def test_bool_is_never_anything_but_false_and_true(write):
    values = np.array([0, 1, 2, 255], np.uint8)
    out = write([tensor(storage("BoolStorage", "0", 4), 0, (4,), (1,))], {"0": values})[0]
    assert out.dtype == bool and out.view(np.uint8).tolist() == [0, 1, 1, 1]


def test_bfloat16_is_widened_exactly(write):
    bits = np.arange(2**16).astype(np.uint16)
    out = write([tensor(storage("BFloat16Storage", "0", 2**16), 0, (2**16,), (1,))], {"0": bits})[0]
    assert out.dtype == f32
    assert (out.view(np.uint32) == bits.astype(np.uint32) << 16).all()


def test_big_endian(tmp_path):
    w = tensor(storage("FloatStorage", "0", 3), 0, (3,), (1,))
    half = tensor(storage("BFloat16Storage", "1", 1), 0, (), ())
    content = {"0": np.array([1, 2, 3], ">f4"), "1": np.array([0x4049], ">u2")}
    a, b = io.load_torch(zip_file(tmp_path / "x", [w, half], content, byteorder="big"))
    assert a.dtype.isnative and a.tolist() == [1, 2, 3]
    assert b == 3.140625


def test_views_share_their_storage(write):
    """Also those that take no memory whatever their shape."""
    stored = storage("DoubleStorage", "0", 6)
    values = {"0": np.arange(6.0)}
    whole = tensor(stored, 0, (2, 3), (3, 1))
    turned = tensor(stored, 0, (3, 2), (1, 3))
    row = tensor(stored, 3, (3,), (1,))
    spread = tensor(stored, 2, (1000, 1000, 1000, 1000), (0, 0, 0, 0))
    scalar = tensor(stored, 5, (), ())
    nothing = tensor(stored, 99, (0, 5), (5, 1))
    odd = tensor(stored, 1, (2, 1), (4, 2**40))  # the step of an axis of one element
    a, b, c, d, e, f, g = write([whole, turned, row, spread, scalar, nothing, odd], values)
    assert (b == a.T).all() and c.tolist() == [3, 4, 5] and d.shape == (1000,) * 4
    assert d[3, 4, 5, 6] == 2 and e.shape == () and e == 5 and f.shape == (0, 5)
    assert g.tolist() == [[1], [5]]
    a[1, 2] = 7
    assert b[2, 1] == c[2] == e == g[1, 0] == 7


def test_parameters_sizes_and_ordered_dictionaries(write):
    w = tensor(storage("FloatStorage", "0", 1), 0, (1,), (1,))
    hooks = Call(Name("collections", "OrderedDict"))
    parameter = Call(Name("torch._utils", "_rebuild_parameter"), w, True, hooks)
    stateful = Call(Name("torch._utils", "_rebuild_parameter_with_state"), w, True, hooks, {})
    pairs = Call(Name("collections", "OrderedDict"), [["a", 1], ["b", w]])
    size = Call(Name("torch", "Size"), [2, 3])
    old = Call(Name("torch._utils", "_rebuild_tensor"),
               storage("FloatStorage", "0", 1), 0, (1,), (1,))  # fmt: skip
    out = write([parameter, stateful, pairs, size, old], {"0": np.ones(1, f32)})
    assert [a.tolist() for a in (out[0], out[1], out[2]["b"], out[4])] == [[1]] * 4
    assert type(out[2]) is dict and out[2]["a"] == 1 and out[3] == (2, 3)


def test_tensors_of_bytes_with_a_dtype(write):
    stored = storage("UntypedStorage", "0", 8, module="torch.storage")
    kinds = [("uint16", (4,)), ("uint32", (2,)), ("uint64", ())]
    values = [
        tensor(stored, 0, shape, (1,) * len(shape), Name("torch", kind), version="_v3")
        for kind, shape in kinds
    ]
    content = np.array([1, 0, 2, 0, 3, 0, 4, 0], np.uint8)
    out = write(values, {"0": content})
    assert [(a.dtype.name, a.shape) for a in out] == kinds
    assert out[0].tolist() == [1, 2, 3, 4]
    assert out[2] == int.from_bytes(content.tobytes(), "little")


def test_conjugates_and_negatives(write):
    content = np.array([1 + 2j, 3 - 1j], np.complex64)
    stored = storage("ComplexFloatStorage", "0", 2)
    flags = ({}, None, {"conj": True}, {"neg": True}, {"conj": True, "neg": True})
    values = [tensor(stored, 0, (2,), (1,), one) for one in flags]
    out = write(values, {"0": content})
    expected = content, content, content.conj(), -content, -content.conj()
    for a, b in zip(out, expected, strict=True):
        assert (a == b).all()
    lazy = tensor(stored, 0, (2,), (1,), {"lazy": True})
    refused(write, "metadata other than conj and neg", [lazy], {"0": content})


def test_views_of_storages_in_old_files(tmp_path):
    """Files before torch 0.4 name a part of another storage."""
    part = storage("FloatStorage", "0", 6, ("1", 2, 3))
    values = {"0": np.arange(6, dtype=f32)}
    out = io.load_torch(old_file(tmp_path / "x", [tensor(part, 1, (2,), (1,))], values))
    assert out[0].tolist() == [3, 4]
    for view, text in [
        (("1", 4, 3), "a view exceeds"),
        (("1", -1, 3), "no count"),
        ((1, 2), "with"),
    ]:
        part = storage("FloatStorage", "0", 6, view)
        with pytest.raises(ValueError, match=text):
            io.load_torch(old_file(tmp_path / "x", [tensor(part, 0, (1,), (1,))], values))
    part = storage("FloatStorage", "0", 6, ("1", 2, 3))
    with pytest.raises(ValueError, match=r"a tensor of shape \(4,\) exceeds its storage"):
        io.load_torch(old_file(tmp_path / "x", [tensor(part, 0, (4,), (1,))], values))


def test_a_script_archive_gives_its_tensors_by_name(tmp_path):
    w = tensor(storage("FloatStorage", "0", 4), 0, (2, 2), (2, 1))
    sizes = Call(Name("torch.jit._pickle", "build_intlist"), [1, 2])
    tagged = Call(Name("torch.jit._pickle", "restore_type_tag"), {"k": w}, "Dict[str, Tensor]")
    inner = Object(weight=w, stride=sizes, training=False, more=[w, 3], map=tagged)
    value = Object(fc=inner, scale=w, name="net")
    path = zip_file(tmp_path / "x", value, {"0": np.ones(4, f32)}, constants_pkl=pickled(()))
    out = io.load_torch(path)
    assert list(out) == ["fc.weight", "fc.more.0", "fc.map.k", "scale"]
    assert np.shares_memory(out["scale"], out["fc.weight"])
    # In any other file such an object is refused.
    with pytest.raises(ValueError, match=r"asks for __torch__\.mine\.Net, which is not loaded"):
        io.load_torch(zip_file(tmp_path / "y", value, {"0": np.ones(4, f32)}))


# ---- against torch -------------------------------------------------------------------------------


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


FORMS = [{"_use_new_zipfile_serialization": form} for form in (True, False)]


def same(ours, theirs):
    theirs = theirs.detach()
    if theirs.dtype.is_floating_point and theirs.dtype.itemsize == 2 and ours.dtype == f32:
        theirs = theirs.float()
    theirs = theirs.resolve_conj().resolve_neg().numpy()
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and (ours == theirs).all()


@pytest.mark.parametrize("form", FORMS, ids=["zip", "old"])
@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_all_that_torch_writes(torch, form, protocol, tmp_path):
    path = tmp_path / "x.pt"
    base = torch.arange(24.0).reshape(2, 3, 4)
    names = (
        "float32 float64 float16 bfloat16 complex64 complex128 int8 int16 int32 int64 uint8 bool"
    )
    tensors = {name: (base * 3).to(getattr(torch, name)) for name in names.split()}
    tensors |= {name: base.to(getattr(torch, name)) for name in ("uint16", "uint32", "uint64")}
    tensors |= {
        "turned": base.permute(2, 0, 1),
        "part": base[:, 1:, ::2],
        "spread": torch.tensor([1.0, 2.0]).expand(3, 2),
        "scalar": torch.tensor(7),
        "empty": torch.empty(0, 3),
        "parameter": torch.nn.Parameter(base[0]),
        "conjugate": (base + 1j * base).conj(),
        "negative": (base + 1j * base).conj().imag,
        "channels last": torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    }
    extra = {"epoch": 3, "lr": [0.1, (1, "x", None)], "size": torch.Size([1, 2]), "big": 2**70}
    torch.save({"tensors": tensors, **extra}, path, pickle_protocol=protocol, **form)
    out = io.load_torch(path)
    ours = out.pop("tensors")
    assert out == extra
    assert list(ours) == list(tensors)
    for name, theirs in tensors.items():
        assert same(ours[name], theirs), name
    assert np.shares_memory(ours["turned"], ours["part"])


@pytest.mark.parametrize("form", FORMS, ids=["zip", "old"])
def test_a_network_moves_over(torch, form, tmp_path):
    theirs = torch.nn.Sequential(torch.nn.Conv2d(2, 3, 3), torch.nn.BatchNorm2d(3)).eval()
    torch.save(theirs.state_dict(), tmp_path / "x.pt", **form)
    ours = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).eval()
    ours.load_state_dict(io.load_torch(tmp_path / "x.pt"))
    x = np.random.default_rng(0).standard_normal((2, 2, 7, 7)).astype(f32)
    expected = theirs(torch.from_numpy(x)).detach().numpy()
    assert np.allclose(ours(x), expected, atol=1e-6)


@pytest.mark.parametrize("form", FORMS, ids=["zip", "old"])
def test_whole_models_and_other_objects_are_refused(torch, form, tmp_path):
    path = tmp_path / "x.pt"
    for value, name in [
        (torch.nn.Linear(2, 2), r"torch\.nn\.modules\.linear\.Linear|is damaged or a whole model"),
        ({"a": torch.device("cpu")}, r"torch\.device"),
        ({"a": np.ones(2)}, r"numpy\._core"),
        (torch.eye(2).to_sparse(), r"torch\._utils\._rebuild_sparse_tensor"),
        (torch.ones(2).to(torch.float8_e4m3fn), r"torch\."),
        ({1, 2}, "opcode|__builtin__.set"),
    ]:
        torch.save(value, path, **form)
        with pytest.raises(ValueError, match=name):
            io.load_torch(path)


def test_script_archives_of_torch(torch, tmp_path):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.LSTM(4, 2))
    with pytest.warns(DeprecationWarning):
        torch.jit.save(torch.jit.script(net), tmp_path / "x.pt")
    out = io.load_torch(tmp_path / "x.pt")
    state = net.state_dict()
    assert state.keys() <= out.keys()
    for name, theirs in state.items():
        assert same(out[name], theirs), name


def test_random_files_are_read_as_torch_reads_them(torch, tmp_path):
    """Damaged files too: what both take is the same."""
    path = tmp_path / "x.pt"
    value = {"w": torch.arange(6.0).reshape(2, 3), "n": 3, "t": (1, [2.5, "x"])}
    random = np.random.default_rng(2)
    both = 0
    for form in FORMS:
        torch.save(value, path, **form)
        good = path.read_bytes()
        for _ in range(100):
            path.write_bytes(damaged(good, random))
            try:
                ours = io.load_torch(path)
            except ValueError:
                continue
            try:
                theirs = torch.load(path, weights_only=True)
            except Exception:
                continue
            both += 1
            assert repr(type(ours)) == repr(type(theirs))
            if isinstance(theirs, dict):
                assert list(ours) == list(theirs)
                for key, tensor in theirs.items():
                    if isinstance(tensor, torch.Tensor):
                        a, b = ours[key], tensor.detach().numpy()
                        assert a.tobytes() == b.tobytes() and a.shape == b.shape
                    else:
                        assert ours[key] == tensor or re.search("nan", repr(tensor))
    assert both > 10
