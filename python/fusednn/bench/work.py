"""What an op's benchmark file hands to the runner."""

import math
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fusednn.testing.case_types import Arrays, Case, Direction
from fusednn.testing.reference import relative_error

Results = list[NDArray[Any]]
OURS = "fusednn"
HALVES = ("bfloat16", "float16")
# The 16-bit dtype in which torch's tensors are made, where one is timed.
torch_half: ContextVar[str | None] = ContextVar("torch_half", default=None)


class WrongAnswerError(Exception):
    """An implementation computed something else than the op."""


@dataclass(frozen=True)
class Call:
    """One implementation: what is timed, and how its result becomes NumPy arrays."""

    run: Callable[[], Any]
    arrays: Callable[[Any], Results]


class Rounded:
    """A case whose floats are those of a 16-bit dtype, in the dtype that is asked for."""

    def __init__(self, case: Any, half: np.dtype[Any]) -> None:
        self._case, self._half = case, half

    def __getattr__(self, name: str) -> Any:
        return getattr(self._case, name)

    def arrays(self, dtype: Any = np.float32, seed: int = 0) -> Arrays:
        arrays: Arrays = self._case.arrays(dtype, seed)
        return {
            name: a.astype(self._half).astype(a.dtype) if a.dtype.kind == "f" else a
            for name, a in arrays.items()
        }


@dataclass
class Work:
    """One case in one direction, ready to be checked and timed.

    expected holds float64 results: the output (fwd) or every gradient (fwdbwd). `terms` is how many
    products the longest sum among them has: rounding errors grow with its square root.
    """

    case: Case
    direction: Direction
    dtype: np.dtype[Any]
    expected: Results
    terms: int
    calls: dict[str, Call] = field(default_factory=dict)
    # How they are made, for making them again on a GPU (gpu.py): the peers' by name, and ours of
    # the arrays it works on, None for ops that are not timed there.
    builders: dict[str, Callable[[], Call]] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)
    build_ours: Callable[[Arrays], Call] | None = None
    # Peers that have no such op (or not for this dtype), with their own words for it.
    unable: dict[str, str] = field(default_factory=dict)

    def ours(self, build: Callable[[Arrays], Call], arrays: Arrays) -> None:
        """Adds our call, made of these arrays."""
        self.calls[OURS] = build(arrays)
        self.arrays, self.build_ours = arrays, build

    def peer(self, name: str, build: Callable[[], Call]) -> None:
        """Adds a peer's call, unless it fails to build or to run."""
        try:
            call = build()
            call.run()
            self.calls[name] = call
            self.builders[name] = build
        except Exception as error:
            self.unable[name] = str(error).splitlines()[0]

    @property
    def tolerance(self) -> float:
        """The largest relative error that can still be rounding.

        32 roundings of random sign per term; exact results for ops that only move values. A wrong
        tap, stride or channel shows as 0.01 to 1.
        """
        eps = 2.0**-7 if self.dtype.name == "bfloat16" else float(np.finfo(self.dtype).eps)
        return 32 * eps * math.sqrt(self.terms)

    def check(self, name: str) -> float:
        """The largest relative error of a call's results; WrongAnswerError beyond the tolerance."""
        return self.check_call(name, self.calls[name])

    def check_call(self, name: str, call: Call) -> float:
        """The same of any call that does this work."""
        found = call.arrays(call.run())
        shapes = [array.shape for array in found]
        expected = [array.shape for array in self.expected]
        where = f"{name}, {self.case.name} {self.direction}"
        if shapes != expected:
            raise WrongAnswerError(f"{where}: shapes {shapes}, expected {expected}")
        error = max(map(relative_error, found, self.expected))
        if not error <= self.tolerance:
            raise WrongAnswerError(
                f"{where}: relative error {error:.1e}, rounding explains {self.tolerance:.1e}"
            )
        return error


def numpy_of(result: Any) -> NDArray[Any]:
    """A NumPy array of our Tensor, a torch tensor, a jax array, a CuPy array, or an array."""
    if hasattr(result, "detach"):
        result = result.detach()
    if hasattr(result, "cpu"):  # from a GPU
        result = result.cpu()
    if hasattr(result, "__cuda_array_interface__") and hasattr(result, "get"):
        result = result.get()
    return result.numpy() if hasattr(result, "numpy") else np.asarray(result)


def one(result: Any) -> Results:
    return [numpy_of(result)]


def many(results: Sequence[Any]) -> Results:
    return [numpy_of(result) for result in results]


def ours_forward_backward(
    function: Callable[..., Any], leaves: Sequence[NDArray[Any]], grad: NDArray[Any]
) -> Call:
    """Our forward and backward through the tape; results are the leaves' gradients."""
    import fusednn as fn

    tensors = [fn.tensor(leaf, requires_grad=True) for leaf in leaves]
    seed = fn.tensor(grad)
    if seed.dtype.name in HALVES:  # losses are float32
        seed = seed.to(function(*tensors).dtype)

    def run() -> list[Any]:
        for tensor in tensors:
            tensor.grad = None
        function(*tensors).backward(seed)
        return [tensor.grad for tensor in tensors]

    return Call(run, many)


def torch_call(
    torch: Any,
    function: Callable[..., Any],
    leaves: Sequence[Any],
    grad: Any | None,
) -> Call:
    """torch's forward in inference mode, or, given grad, forward and backward for the leaves."""
    if grad is None:

        def forward() -> Any:
            with torch.inference_mode():
                return function(*leaves)

        return Call(forward, one)
    for leaf in leaves:
        leaf.requires_grad_(True)
    return Call(lambda: torch.autograd.grad(function(*leaves), leaves, grad), many)


def jax_call(
    jax: Any,
    function: Callable[..., Any],
    leaves: Sequence[NDArray[Any]],
    grad: NDArray[Any] | None,
) -> Call:
    """jax's compiled forward, or, given grad, forward and backward for the leaves."""
    inputs = [jax.numpy.asarray(leaf) for leaf in leaves]
    if grad is None:
        compiled = jax.jit(function)
        return Call(lambda: jax.block_until_ready(compiled(*inputs)), one)
    seed = jax.numpy.asarray(grad)

    def both(*arguments: Any) -> Any:
        output, pullback = jax.vjp(function, *arguments)
        return output, pullback(seed)  # the output too, or the compiler would leave forward out

    compiled = jax.jit(both)
    return Call(lambda: jax.block_until_ready(compiled(*inputs))[1], many)


def tensors_of(torch: Any, arrays: Arrays, channels_last: bool) -> dict[str, Any]:
    """Fresh torch tensors; 4-D ones in the channels-last layout if asked."""
    tensors = {name: torch.tensor(array) for name, array in arrays.items()}
    if half := torch_half.get():
        kind = getattr(torch, half)
        for name, tensor in tensors.items():
            if tensor.is_floating_point():
                tensors[name] = tensor.to(kind)
    if channels_last:
        for name, tensor in tensors.items():
            if tensor.ndim == 4:
                tensors[name] = tensor.to(memory_format=torch.channels_last)
    return tensors
