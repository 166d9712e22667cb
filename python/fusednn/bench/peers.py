"""The other libraries: which are installed, held to our thread count, and how they are called."""

import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusednn.bench.work import Call, one

# Names of implementations; torch-cl is torch with 4-D arrays in its channels-last layout.
PEERS = ("torch", "torch-cl", "ort", "jax")


@dataclass
class Peers:
    """The libraries that take part; None where not asked for or not installed."""

    threads: int
    names: Sequence[str] = ()
    torch: Any = None
    ort: Any = None
    onnx: Any = None
    jax: Any = None
    versions: dict[str, str] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        """Whether the implementation of this name takes part."""
        package = {"torch": self.torch, "torch-cl": self.torch, "ort": self.ort, "jax": self.jax}
        return name in self.names and package[name] is not None

    def ort_session(
        self,
        op: str,
        inputs: Mapping[str, NDArray[Any]],
        constants: Mapping[str, NDArray[Any]],
        opset: int = 20,
        **attributes: Any,
    ) -> Call:
        """A model of one node, run by onnxruntime; constants (weights) are in the model."""
        helper = self.onnx.helper
        tensors = [self.onnx.numpy_helper.from_array(a, name) for name, a in constants.items()]
        kind = helper.np_dtype_to_tensor_dtype(next(iter(inputs.values())).dtype)
        node = helper.make_node(op, [*inputs, *constants], ["y"], **attributes)
        graph = helper.make_graph(
            [node],
            op,
            [helper.make_tensor_value_info(name, kind, a.shape) for name, a in inputs.items()],
            [helper.make_tensor_value_info("y", kind, None)],
            tensors,
        )
        opset_id = helper.make_opsetid("", opset)
        model = helper.make_model(graph, opset_imports=[opset_id], ir_version=9)
        options = self.ort.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        session = self.ort.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        feed = dict(inputs)
        return Call(lambda: session.run(None, feed)[0], one)


def load(names: Iterable[str], threads: int) -> Peers:
    """Imports the named peers that are installed; `missing` says why the others are not there."""
    peers = Peers(threads, [name for name in PEERS if name in set(names)])
    if "torch" in peers.names or "torch-cl" in peers.names:
        peers.torch = _import("torch", peers)
        if peers.torch:
            peers.torch.set_num_threads(threads)
    if "ort" in peers.names:
        peers.ort = _import("onnxruntime", peers)
        peers.onnx = _import("onnx", peers) if peers.ort else None
        if peers.ort and not peers.onnx:
            peers.ort = None
            peers.missing["onnxruntime"] = "needs the package onnx to build its models"
    if "jax" in peers.names:
        peers.jax = _import("jax", peers)
        if peers.jax:
            peers.jax.config.update("jax_platforms", "cpu")
            peers.jax.config.update("jax_enable_x64", True)  # or float64 would become float32
    return peers


def _import(package: str, peers: Peers) -> ModuleType | None:
    try:
        module = importlib.import_module(package)
    except ImportError as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == package
        peers.missing[package] = "not installed" if absent else f"does not import: {error}"
        return None
    peers.versions[package] = str(getattr(module, "__version__", "unknown"))
    return module


def large_product(peers: Peers, size: int, dtype: np.dtype[Any]) -> dict[str, Call]:
    """A matrix product in torch, for the ceiling; empty without torch."""
    if not peers.torch:
        return {}
    torch = peers.torch
    a, b = (torch.tensor(np.ones((size, size), dtype)) for _ in range(2))

    def product() -> Any:
        with torch.inference_mode():
            return a @ b

    return {"torch": Call(product, one)}
