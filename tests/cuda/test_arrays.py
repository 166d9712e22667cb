"""Arrays on a GPU, through the interfaces that libraries share: accepted, refused, ordered."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import fusednn as fn
import fusednn.functional as F
from fusednn import _core


class Foreign:
    """Another library's array: an interface around CuPy's memory."""

    def __init__(self, array, **changes):
        self.array = array
        interface = {**array.__cuda_array_interface__, **changes}
        self.__cuda_array_interface__ = interface


class ByDlpack:
    """One that has DLPack only, or an old interface besides."""

    def __init__(self, array):
        self.array, self.streams = array, []

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        return self.array


class OldInterface(ByDlpack):
    @property
    def __cuda_array_interface__(self):
        interface = {**self.array.__cuda_array_interface__, "version": 2}
        del interface["stream"]
        return interface


@pytest.fixture
def values():
    return np.random.default_rng(0).standard_normal((3, 4, 5))


def test_status(xp):
    assert fn.has_cuda()
    assert "CUDA device" in fn.cuda_status()


def test_cupy_in_cupy_out(xp, values):
    out = F.relu(xp.asarray(values))
    assert isinstance(out, xp.ndarray)
    assert out.dtype == np.float64 and out.shape == values.shape
    np.testing.assert_array_equal(xp.asnumpy(out), np.maximum(values, 0))


def test_numpy_stays_numpy(values):
    assert type(F.relu(values)) is np.ndarray


@pytest.mark.emulated
@pytest.mark.parametrize("kind", [Foreign, ByDlpack, OldInterface])
def test_any_library(xp, values, kind):
    for function in (F.relu, F.silu):
        out = function(kind(xp.asarray(values)))
        assert isinstance(out, xp.ndarray)
        np.testing.assert_allclose(xp.asnumpy(out), function(values), rtol=1e-14)


def views(xp, values):
    whole = xp.asarray(values)
    return {
        "transposed": (whole.T, values.T),
        "reversed": (whole[:, ::-1], values[:, ::-1]),
        "every other": (whole[..., ::2], values[..., ::2]),
        "middle": (whole[1:2, 1:3, 2:4], values[1:2, 1:3, 2:4]),
        "off 16 bytes": (whole.ravel()[1:], values.ravel()[1:]),
        "one element": (whole[1, 2, 3], values[1, 2, 3]),
        "empty": (whole[:, :0], values[:, :0]),
        "unit axis": (whole[:, None], values[:, None]),
    }


@pytest.mark.parametrize("kind", ["transposed", "reversed", "every other", "middle"])
def test_strides(xp, values, kind):
    device, host = views(xp, values)[kind]
    np.testing.assert_array_equal(xp.asnumpy(F.relu(device)), np.maximum(host, 0))


@pytest.mark.parametrize("kind", ["off 16 bytes", "one element", "empty", "unit axis"])
def test_places(xp, values, kind, order):
    device, host = views(xp, values)[kind]
    out = F.relu(device)
    assert out.shape == np.shape(host)
    np.testing.assert_array_equal(xp.asnumpy(out), np.maximum(host, 0))


# ---- refused -------------------------------------------------------------------------------------


def test_numpy_and_gpu_do_not_mix(xp, values):
    with pytest.raises(
        ValueError, match="relu: output is on the CPU, expected on cuda:0 like grad"
    ):
        _core.relu_backward(xp.asarray(values), values)
    with pytest.raises(
        ValueError, match="relu: output is on cuda:0, expected on the CPU like grad"
    ):
        _core.relu_backward(values, xp.asarray(values))


@pytest.mark.emulated
def test_two_devices_do_not_mix(xp, values):
    first = xp.asarray(values)
    with xp.cuda.Device(1):
        second = xp.asarray(values)
    with pytest.raises(ValueError, match="output is on cuda:1, expected on cuda:0 like grad"):
        _core.relu_backward(first, second)


@pytest.mark.emulated
def test_results_are_made_beside_the_arguments(xp, values):
    with xp.cuda.Device(1):
        second = xp.asarray(values)
    out = F.relu(second)
    assert out.device.id == 1
    assert xp.cuda.Device().id == 0
    np.testing.assert_array_equal(xp.asnumpy(out), np.maximum(values, 0))


@pytest.mark.parametrize("dtype", ["complex64", "int32", "bool"])
def test_dtypes(xp, dtype):
    with pytest.raises(TypeError, match=f"relu: input has dtype {dtype}, expected float32 or"):
        F.relu(xp.zeros(3, dtype))
    with pytest.raises(TypeError, match=f"silu: input has dtype {dtype}, expected float32 or"):
        F.silu(xp.zeros(3, dtype))


def test_dtypes_do_not_mix(xp):
    with pytest.raises(TypeError, match="output has dtype float32, expected float64 like input"):
        _core.relu_backward(xp.zeros(3), xp.zeros(3, "float32"))


def test_shapes_are_checked(xp):
    with pytest.raises(ValueError, match="relu: grad has shape"):
        _core.relu_backward(xp.zeros(3), xp.zeros(4))
    with pytest.raises(ValueError, match="max_pool2d: input has shape"):
        F.max_pool2d(xp.zeros((2, 2)), 2)


def test_no_kernel(xp):
    x = xp.zeros((1, 2, 4, 8))
    try:
        F.scaled_dot_product_attention(x, x, x)
    except NotImplementedError as error:
        assert "no CUDA kernel" in str(error)


TRANSPOSED = (
    ((1, 1), (1, 0)),
    ((33, 65), (1, 0)),
    ((3, 31, 97), (0, 2, 1)),
    ((2, 5, 6, 7), (0, 3, 1, 2)),
    ((2, 5, 6, 7), (2, 3, 0, 1)),
    ((2, 3, 40), (1, 0, 2)),  # no transposed matrix: CuPy's copy
)


@pytest.mark.parametrize(("shape", "axes"), TRANSPOSED, ids=str)
def test_transposed_arrays(xp, dtype, shape, axes, order):
    values = np.random.default_rng(1).standard_normal(shape).astype(dtype)
    got = F.relu(xp.asarray(values).transpose(*axes))
    np.testing.assert_array_equal(xp.asnumpy(got), np.maximum(values.transpose(axes), 0))


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"mask": 0}, TypeError, "relu: input is a masked array"),
        ({"stream": 0}, ValueError, "stream 0"),
        ({"typestr": ">f8"}, TypeError, "input has dtype >f8"),
        ({"shape": (1,) * 9, "strides": None}, ValueError, "9 dimensions, expected at most 8"),
    ],
)
def test_interfaces_are_checked(xp, changes, error, text):
    with pytest.raises(error, match=text):
        F.relu(Foreign(xp.zeros((3, 4)), **changes))


def test_host_memory_is_no_gpu(xp):
    host = np.zeros(4)
    with pytest.raises(ValueError, match="its data is not on a GPU"):
        F.relu(Foreign(xp.zeros(4), data=(host.ctypes.data, False)))


# ---- streams -------------------------------------------------------------------------------------


@pytest.mark.emulated
@pytest.mark.parametrize(("stream", "waits"), [(None, 0), (1, 0), (2, 1), (0x7000, 1)])
def test_the_stream_of_the_array_is_waited_for(xp, stream, waits):
    from emulated import take_counts

    array = Foreign(xp.zeros(4), stream=stream)
    take_counts()
    F.relu(array)
    assert take_counts()["stream_waits"] == waits


@pytest.mark.emulated
def test_kernels_run_in_the_current_stream(xp):
    from emulated import take_counts

    array = xp.zeros(4)
    with xp.cuda.Stream():
        take_counts()
        F.relu(array)  # which says that it was made in this stream
        F.relu(Foreign(array, stream=1))
        assert take_counts()["stream_waits"] == 1


def test_dlpack_is_told_the_stream(xp):
    array = ByDlpack(xp.zeros(4))
    if not hasattr(xp, "cuda") or xp.__version__ != "emulated":
        pytest.skip("CuPy's own from_dlpack takes capsules only")
    with xp.cuda.Stream() as stream:
        F.relu(array)
    assert array.streams == [stream.ptr]


# ---- without CuPy --------------------------------------------------------------------------------


@pytest.mark.emulated
def test_cupy_is_imported_when_it_is_needed(tmp_path):
    (tmp_path / "cupy.py").write_text("raise ImportError('not here')\n")
    code = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import numpy as np, fusednn.functional as F
F.relu(np.zeros(3))
assert "cupy" not in sys.modules
class Array:
    __cuda_array_interface__ = dict(version=3, shape=(0,), typestr="<f4", data=(0, False))
try:
    F.relu(Array())
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("relu: arrays on a GPU need CuPy; pip install 'fusednn[cuda]'")
