"""What a network computes on its way: feature maps, and weights of attention."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .. import functional as F
from .. import nn
from .._tensor.mode import no_grad
from .._tensor.tape import Array, TensorBase, raw
from ..models.gpt import CausalSelfAttention
from .trace import evaluating, first, inputs, named, watching


def feature_maps(model: nn.Module, x: Any, layers: Iterable[str] | None = None) -> dict[str, Array]:
    """The outputs of a model's layers for an input, by the layer's name, in the order they ran.

    x: an array, or a list of arrays for several arguments. layers: names (as `named_modules` has
    them) to keep; by default those whose outputs have positions, (N, C, ...). A layer that runs
    again is "name#2". ValueError for a name that is no layer's.

    >>> import numpy as np
    >>> from fusednn import nn
    >>> from fusednn.analysis import feature_maps
    >>> net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten())
    >>> maps = feature_maps(net, np.ones((1, 1, 5, 5), np.float32))
    >>> {name: map.shape for name, map in maps.items()}
    {'0': (1, 2, 3, 3), '1': (1, 2, 3, 3)}
    """
    wanted = None if layers is None else list(layers)
    if wanted is not None:
        names = dict(model.named_modules())
        unknown = [name for name in wanted if name not in names]
        if unknown:
            raise ValueError(f"feature_maps: no layer is called {', '.join(map(repr, unknown))}")
    with no_grad(), evaluating(model), watching(model) as calls:
        model(*inputs("feature_maps", x))
    out: dict[str, Array] = {}
    for name, call in named(calls):
        value = first(call.output)
        if isinstance(value, TensorBase) and (
            value._data.ndim >= 3 if wanted is None else call.name in wanted
        ):
            out[name] = value._data.copy()  # later layers may write into it
    return out


def attention_maps(model: nn.Module, x: Any) -> dict[str, Array]:
    """The weights of every attention layer for an input: (N, heads, queries, keys) by name.

    model: one with `nn.MultiheadAttention` (the Transformers have it) or the attention of
    `models.GPT`. x: an array (token ids too), or a list of arrays for several arguments. Rows add
    up to 1, or are 0 where a query may see no key. A layer that runs again is "name#2".

    >>> import numpy as np
    >>> from fusednn import nn
    >>> from fusednn.analysis import attention_maps
    >>> layer = nn.TransformerEncoderLayer(8, 2, batch_first=True)
    >>> attention_maps(layer, np.ones((1, 3, 8), np.float32))["self_attn"].shape
    (1, 2, 3, 3)
    """
    found: list[tuple[str, Array]] = []
    changed: list[nn.Module] = []
    try:
        for name, module in model.named_modules():
            if isinstance(module, nn.MultiheadAttention):
                watched = _watched_heads(module, name or "attention", found)
            elif isinstance(module, CausalSelfAttention):
                watched = _watched_gpt(module, name or "attention", found)
            else:
                continue
            module.__dict__["forward"] = watched
            changed.append(module)
        if not changed:
            raise ValueError(f"attention_maps: {type(model).__name__} has no attention layer")
        with no_grad(), evaluating(model):
            model(*inputs("attention_maps", x))
    finally:
        for module in changed:
            del module.__dict__["forward"]
    out: dict[str, Array] = {}
    count: dict[str, int] = {}
    for name, weights in found:
        count[name] = count.get(name, 0) + 1
        out[name if count[name] == 1 else f"{name}#{count[name]}"] = weights
    return out


def _watched_heads(module: nn.MultiheadAttention, name: str, found: list[Any]) -> Any:
    def forward(
        query: Any,
        key: Any,
        value: Any,
        key_padding_mask: Any = None,
        need_weights: bool = True,
        *args: Any,
        **options: Any,
    ) -> tuple[Any, Any]:
        options["average_attn_weights"] = False
        out, weights = nn.MultiheadAttention.forward(
            module, query, key, value, key_padding_mask, True, *args, **options
        )
        single = weights.ndim == 3
        found.append((name, raw(weights)[None] if single else raw(weights)))
        return out, weights.mean(-3) if need_weights else None

    return forward


def _watched_gpt(module: CausalSelfAttention, name: str, found: list[Any]) -> Any:
    def forward(x: Any, mask: Any = None, cache: Any = None) -> Any:
        part = (module.heads, x.shape[2] // module.heads)
        q, k, _ = F.split_heads(module.c_attn(x), [part] * 3)
        found.append((name, raw(F.attention_weights(q, k, mask, True))))
        return CausalSelfAttention.forward(module, x, mask, cache)

    return forward


__all__ = ["attention_maps", "feature_maps"]
