"""Cases of Tensor's methods and operators and of the package's functions, for test_coverage.py."""

from __future__ import annotations

from typing import Any

from coverage_cases import IDS, MASK, place, positive

import fusednn as fn

SHAPE = (3, 4)


def in_place(change: Any) -> Any:
    """A function of Tensors that changes a copy of the first."""

    def function(x: Any, *others: Any) -> Any:
        copy = x * 1
        change(copy, *others)
        return copy

    return function


def item_set(x: Any, y: Any) -> None:
    x[1] = y[0]
    x[:, 0] = 2.0


def unary(*names: str) -> dict[str, list[tuple[Any, ...]]]:
    return {n: [(lambda x, n=n: getattr(x, n)(), SHAPE)] for n in names}


def of_positive(*names: str) -> dict[str, list[tuple[Any, ...]]]:
    return {n: [(lambda x, n=n: getattr(x, n)(), positive(3, 4))] for n in names}


def reductions(*names: str) -> dict[str, list[tuple[Any, ...]]]:
    return {
        n: [
            (lambda x, n=n: getattr(x, n)(), SHAPE),
            (lambda x, n=n: getattr(x, n)(1), SHAPE),
        ]
        for n in names
    }


def binary(*names: str) -> dict[str, list[tuple[Any, ...]]]:
    return {
        n: [
            (lambda x, y, n=n: getattr(x, n)(y), SHAPE, positive(3, 4)),
            (lambda x, y, n=n: getattr(x, n)(y), SHAPE, positive(4)),
            (lambda x, n=n: getattr(x, n)(2.0), SHAPE),
        ]
        for n in names
    }


def logical(*names: str) -> dict[str, list[tuple[Any, ...]]]:
    return {n: [(lambda x, n=n: getattr(x > 0, n)(x > 1), SHAPE)] for n in names}


def view(name: str, *arguments: Any) -> dict[str, list[tuple[Any, ...]]]:
    return {name: [(lambda x: getattr(x, name)(*arguments) * 2, SHAPE)]}


METHODS: dict[str, list[tuple[Any, ...]]] = {
    **unary(
        "abs", "ceil", "cos", "exp", "expm1", "floor", "isfinite", "isinf", "isnan", "neg", "relu",
        "round", "sigmoid", "sign", "sin", "square", "tanh", "trunc", "nonzero", "clone",
        "contiguous", "detach", "ravel", "flatten", "bool", "int", "long", "float", "double",
        "__abs__", "__neg__", "__pos__", "argsort", "tril", "triu", "t", "reciprocal", "squeeze",
        "norm",
    ),
    **of_positive("log", "log10", "log1p", "log2", "rsqrt", "sqrt"),
    **reductions(
        "all", "any", "amax", "amin", "argmax", "argmin", "max", "mean", "min", "prod", "std",
        "sum", "var",
    ),
    **binary(
        "add", "sub", "mul", "div", "eq", "ge", "gt", "le", "lt", "ne", "maximum",
        "minimum", "__add__", "__sub__", "__mul__", "__truediv__", "__radd__", "__rsub__",
        "__rmul__", "__rtruediv__", "__floordiv__", "__mod__", "__eq__",
    ),
    "pow": [(lambda x, y: x.pow(y), positive(3, 4), SHAPE)],
    "__pow__": [(lambda x: x**2 + x**3, SHAPE)],
    "__rpow__": [(lambda x: 2.0**x, SHAPE)],
    "__rfloordiv__": [(lambda x: 7.0 // x, positive(3, 4))],
    "__rmod__": [(lambda x: 7.0 % x, positive(3, 4))],
    **logical("__and__", "__or__", "__xor__", "__rand__", "__ror__", "__rxor__"),
    "__invert__": [(lambda x: ~(x > 0), SHAPE)],
    "__round__": [(lambda x: place([round(x[0, 0].detach(), 1)], x), SHAPE)],
    "__iter__": [(lambda x: list(x), SHAPE)],
    "__getitem__": [
        (lambda x: x[1:, ::2] * 3, SHAPE),
        (lambda x: x[[2, 0, 2]], SHAPE),
        (lambda x: x[x > 0], SHAPE),
        (lambda x: x[None, ..., 1], SHAPE),
    ],
    "__setitem__": [(in_place(item_set), SHAPE, SHAPE)],
    "__iadd__": [(in_place(lambda x, y: x.__iadd__(y)), SHAPE, SHAPE)],
    "__isub__": [(in_place(lambda x, y: x.__isub__(y)), SHAPE, SHAPE)],
    "__imul__": [(in_place(lambda x, y: x.__imul__(y)), SHAPE, SHAPE)],
    "__itruediv__": [(in_place(lambda x, y: x.__itruediv__(y)), SHAPE, positive(3, 4))],
    "add_": [(in_place(lambda x, y: x.add_(y)), SHAPE, SHAPE)],
    "sub_": [(in_place(lambda x, y: x.sub_(y)), SHAPE, SHAPE)],
    "mul_": [(in_place(lambda x, y: x.mul_(y)), SHAPE, SHAPE)],
    "div_": [(in_place(lambda x, y: x.div_(y)), SHAPE, positive(3, 4))],
    "clamp_": [(in_place(lambda x: x.clamp_(-0.5, 0.5)), SHAPE)],
    "copy_": [(in_place(lambda x, y: x.copy_(y)), SHAPE, SHAPE)],
    "fill_": [(in_place(lambda x: x.fill_(3.0)), SHAPE)],
    "zero_": [(in_place(lambda x: x.zero_()), SHAPE)],
    "normal_": [(in_place(lambda x: x.detach().normal_()), SHAPE)],
    "uniform_": [(lambda x: x.detach().clone().uniform_(), SHAPE)],
    "T": [(lambda x: x.T * 2, SHAPE)],
    "mT": [(lambda x: x.mT * 2, (2, 3, 4))],
    **view("transpose", 0, 1), **view("swapaxes", 0, 1), **view("permute", 1, 0),
    **view("movedim", 0, 1), **view("reshape", 2, 6), **view("view", 4, 3), **view("flip", 0),
    **view("unsqueeze", 1), **view("unflatten", 1, (2, 2)), **view("expand", 2, 3, 4),
    **view("broadcast_to", (2, 3, 4)), **view("repeat", 2, 1), **view("to", "float32"),
    "expand_as": [(lambda x, y: x.expand_as(y), (1, 4), SHAPE)],
    "chunk": [(lambda x: x.chunk(2, 1), SHAPE)],
    "split": [(lambda x: x.split(2, 1), SHAPE)],
    "unbind": [(lambda x: x.unbind(0), SHAPE)],
    "clamp": [(lambda x: x.clamp(-0.5, 0.5), SHAPE)],
    "clip": [(lambda x: x.clip(max=0.5), SHAPE)],
    "cumsum": [(lambda x: x.cumsum(1), SHAPE)],
    "gather": [(lambda x: x.gather(1, place(IDS, x)), (2, 4))],
    "index_select": [(lambda x: x.index_select(0, place(IDS[0] % 3, x)), SHAPE)],
    "log_softmax": [(lambda x: x.log_softmax(1), SHAPE)],
    "softmax": [(lambda x: x.softmax(0), SHAPE)],
    "logsumexp": [(lambda x: x.logsumexp(1), SHAPE)],
    "masked_fill": [(lambda x: x.masked_fill(place(MASK, x), 3.0), SHAPE)],
    "masked_select": [(lambda x: x.masked_select(place(MASK, x)), SHAPE)],
    "sort": [(lambda x: tuple(x.sort(1, descending=True)), SHAPE)],
    "topk": [(lambda x: tuple(x.topk(2)), SHAPE)],
    "where": [(lambda x, y: x.where(place(MASK, x), y), SHAPE, SHAPE),
              (lambda x, y: fn.where(x > 0, x, y), SHAPE, SHAPE)],
    "mm": [(lambda x, y: x.mm(y), SHAPE, (4, 5))],
    "bmm": [(lambda x, y: x.bmm(y), (5, 3, 4), (5, 4, 2))],
    "matmul": [
        (lambda x, y: x.matmul(y), (2, 1, 3, 4), (5, 4, 2)),
        (lambda x, y: fn.matmul(x, y), (4,), (2, 3, 4, 2)),
        (lambda x, y: x @ y.swapaxes(-1, -2), (2, 1, 3, 4), (2, 2, 5, 4)),
        (lambda x, y: x @ y, (2, 1, 2, 3, 4), (3, 1, 4, 2)),
        (lambda x, y: x @ y, (3, 4), (2, 4, 5)),
    ],
    "__matmul__": [(lambda x, y: x @ y, (2, 3, 4), (4, 5))],
    "__rmatmul__": [(lambda x, y: y.__rmatmul__(x), (2, 3, 4), (4, 5))],
    "register_hook": [(lambda x: hooked(x * 2), SHAPE)],
    "__copy__": [(lambda x: x.__copy__() * 2, SHAPE)],
    "__deepcopy__": [(lambda x: x.detach().__deepcopy__({}) * 2, SHAPE)],
    "arange": [(lambda x: fn.arange(5, device=x.device), (1,))],
    "cat": [(lambda x, y: fn.cat([x, y], 1), SHAPE, (3, 2))],
    "stack": [(lambda x, y: fn.stack([x, y], 1), SHAPE, SHAPE)],
    "full": [(lambda x: fn.full((2,), 3.0, device=x.device), (1,))],
    "ones": [(lambda x: fn.ones(2, device=x.device), (1,))],
    "zeros": [(lambda x: fn.zeros(2, device=x.device), (1,))],
    "rand": [(lambda x: fn.rand(4, device=x.device), (1,))],
    "randn": [(lambda x: fn.randn(4, device=x.device), (1,))],
    "ones_like": [(lambda x: fn.ones_like(x), SHAPE)],
    "zeros_like": [(lambda x: fn.zeros_like(x), SHAPE)],
    "tensor": [(lambda x: fn.tensor([1.0, 2.0], device=x.device), (1,))],
}  # fmt: skip


def hooked(x: Any) -> Any:
    x.register_hook(lambda grad: grad * 3)
    return x * x


# Give no Tensor, or are about the device itself: test_device.py has them.
NO_ARRAYS = {
    "backward", "cpu", "cuda", "data", "device", "dim", "dtype", "grad", "grad_fn",
    "is_contiguous", "is_cuda", "is_floating_point", "is_leaf", "item", "ndim", "numel", "numpy",
    "requires_grad", "requires_grad_", "retain_grad", "shape", "size", "tolist", "__annotations__",
    "__array__", "__array_priority__", "__array_ufunc__", "__bool__", "__dlpack__",
    "__dlpack_device__", "__float__", "__index__", "__int__", "__len__", "__module__", "__slots__",
    "__weakref__",
}  # fmt: skip
WITHOUT_DEVICE = {
    "Tensor", "config", "conv_matrix", "cpu_isa", "cuda_status", "enable_grad", "from_dlpack",
    "from_numpy", "get_float32_precision", "get_num_threads", "has_cuda", "is_grad_enabled",
    "load", "manual_seed", "no_grad", "save", "set_float32_precision", "set_grad_enabled",
    "set_num_threads", "show_config",
}  # fmt: skip
