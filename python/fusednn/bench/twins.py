"""Our models as PyTorch modules, with the same names of parameters: so weights move by name."""

from collections.abc import Callable, Sequence
from typing import Any


def build(torch: Any, network: str, **options: Any) -> Any:
    """The PyTorch module for one of lenet, vgg, charlstm, gpt; options as our model takes them."""
    return _NETWORKS[network](torch.nn, torch.nn.functional, **options)


def _lenet(nn: Any, F: Any, size: int, widths: Sequence[int], kernel_size: int, hidden: int) -> Any:
    layers, channels = [], 1
    for width in widths:
        conv = nn.Conv2d(channels, width, kernel_size, padding=kernel_size // 2)
        layers += [conv, nn.ReLU(), nn.MaxPool2d(2)]
        channels, size = width, size // 2
    parts = {
        "features": nn.Sequential(*layers),
        "classifier": nn.Sequential(
            nn.Flatten(),
            nn.Linear(channels * size * size, hidden),
            nn.ReLU(),
            nn.Linear(hidden, 10),
        ),
    }
    return _module(nn, parts, lambda m, x: m.classifier(m.features(x)))


def _vgg(nn: Any, F: Any, plan: Sequence[Sequence[int]]) -> Any:
    layers, channels = [], 3
    for block in plan:
        for width in block:
            conv = nn.Conv2d(channels, width, 3, padding=1)
            layers += [conv, nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2))
    parts = {
        "features": nn.Sequential(*layers),
        "classifier": nn.Sequential(nn.Linear(channels, 10)),
    }
    return _module(nn, parts, lambda m, x: m.classifier(m.features(x).mean((2, 3))))


def _charlstm(
    nn: Any, F: Any, vocab_size: int, hidden_size: int, num_layers: int, embedding_dim: int
) -> Any:
    parts = {
        "embedding": nn.Embedding(vocab_size, embedding_dim),
        "lstm": nn.LSTM(embedding_dim, hidden_size, num_layers, batch_first=True),
        "head": nn.Linear(hidden_size, vocab_size),
    }
    return _module(nn, parts, lambda m, ids: m.head(m.lstm(m.embedding(ids))[0]))


def _gpt(
    nn: Any, F: Any, vocab_size: int, block_size: int, n_layer: int, n_head: int, n_embd: int
) -> Any:
    def block() -> Any:
        parts = {
            "ln_1": nn.LayerNorm(n_embd),
            "attn": nn.ModuleDict(
                {"c_attn": nn.Linear(n_embd, 3 * n_embd), "c_proj": nn.Linear(n_embd, n_embd)}
            ),
            "ln_2": nn.LayerNorm(n_embd),
            "mlp": nn.ModuleDict(
                {"c_fc": nn.Linear(n_embd, 4 * n_embd), "c_proj": nn.Linear(4 * n_embd, n_embd)}
            ),
        }
        return _module(nn, parts, block_forward)

    def block_forward(m: Any, x: Any) -> Any:
        size, length, width = x.shape
        projected = m.attn["c_attn"](m.ln_1(x)).split(width, 2)
        q, k, v = (p.view(size, length, n_head, -1).transpose(1, 2) for p in projected)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + m.attn["c_proj"](y.transpose(1, 2).reshape(x.shape))
        return x + m.mlp["c_proj"](F.gelu(m.mlp["c_fc"](m.ln_2(x))))

    def forward(m: Any, ids: Any) -> Any:
        parts = m.transformer
        places = parts["wpe"].weight[: ids.shape[1]]
        return m.lm_head(parts["ln_f"](parts["h"](parts["wte"](ids) + places)))

    transformer = nn.ModuleDict(
        {
            "wte": nn.Embedding(vocab_size, n_embd),
            "wpe": nn.Embedding(block_size, n_embd),
            "h": nn.Sequential(*(block() for _ in range(n_layer))),
            "ln_f": nn.LayerNorm(n_embd),
        }
    )
    head = nn.Linear(n_embd, vocab_size, bias=False)
    return _module(nn, {"transformer": transformer, "lm_head": head}, forward)


_NETWORKS: dict[str, Callable[..., Any]] = {
    "lenet": _lenet,
    "vgg": _vgg,
    "charlstm": _charlstm,
    "gpt": _gpt,
}


def _module(nn: Any, parts: dict[str, Any], forward: Any) -> Any:
    """A module of these parts; torch is not imported before it is asked for, so no class of it."""
    module = type("Twin", (nn.Module,), {"forward": forward})()
    for name, part in parts.items():
        module.add_module(name, part)
    return module
