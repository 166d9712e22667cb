"""`python -m fusednn attention`: what the heads of a trained Transformer look at."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .options import (
    add_device,
    add_threads,
    figure,
    positive,
    printable,
    use_device,
    use_threads,
)
from .saved import Saved, add_checkpoint, encoded, saved
from .train.options import Refused

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

NETWORKS = ("gpt", "translate")
_MOST = 64  # tokens whose labels can still be read

_DESCRIPTION = """\
Draws the attention weights of every head in one layer, with the tokens as labels: a row is the
token that looks, a column what it looks at. For a network of `train gpt`, the text looks at itself;
for one of `train translate`, the translation that it makes looks at the text. Needs matplotlib.

Exit status: 0 done, 1 failed, 2 wrong arguments, 130 stopped by Ctrl-C.
"""
_EXAMPLES = """
examples:
  python -m fusednn attention --checkpoint runs/gpt-shakespeare --text 'To be, or not to be'
  python -m fusednn attention --checkpoint runs/translate-kjv-es --text 'and god saw the light.'
"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """The arguments of `attention`."""
    parser = subparsers.add_parser(
        "attention",
        help="draw what a trained Transformer looks at",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_checkpoint(parser)
    parser.add_argument("--text", required=True, metavar="TEXT", help="what it reads")
    parser.add_argument(
        "--layer", type=positive, metavar="N", help="which one, from 1 (default: the last)"
    )
    parser.add_argument(
        "--plot",
        type=figure,
        default=Path("attention.png"),
        metavar="F.png",
        help="where to draw (default: attention.png)",
    )
    add_threads(parser)
    add_device(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """0 when drawn, 1 if the picture cannot be written, 2 for arguments that cannot be."""
    from .. import no_grad
    from .train import plot

    use_threads(arguments)
    try:
        use_device(arguments)
    except ValueError as error:
        print(f"fusednn attention: {error}", file=sys.stderr)
        return 2
    try:
        plot.check(arguments.plot, None)
        network = saved(arguments.checkpoint, NETWORKS, arguments.device)
        ids = encoded(network, "--text", arguments.text)
        with no_grad():
            weights, rows, columns = _weights(network, ids, arguments.layer)
        title = f"{network.network} on {network.data}: layer {_layer(network, arguments.layer)}"
        _draw(arguments.plot, title, weights, rows, columns)
    except Refused as error:
        print(f"fusednn attention: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"fusednn attention: {error}", file=sys.stderr)
        return 1
    print(f"{len(weights)} heads, {len(rows)} x {len(columns)} tokens, in {arguments.plot}")
    return 0


def _layers(network: Saved) -> list[Any]:
    model = network.model
    if network.network == "gpt":
        return list(model.transformer["h"])
    return list(model.transformer.decoder.layers)


def _layer(network: Saved, chosen: int | None) -> int:
    count = len(_layers(network))
    if chosen is not None and chosen > count:
        raise Refused(f"--layer {chosen}: the network has {count}")
    return chosen or count


def _weights(
    network: Saved, ids: np.ndarray, chosen: int | None
) -> tuple[np.ndarray, list[str], list[str]]:
    """Weights (heads, rows, columns), and the labels of both."""
    layer = _layers(network)[_layer(network, chosen) - 1]
    most = _MOST if network.target is not None else min(_MOST, network.model.block_size)
    if len(ids) > most:
        raise Refused(f"--text: {len(ids)} tokens, expected at most {most}")
    labels = network.tokens.labels(ids)
    if network.target is None:
        return _own(network.model, layer.attn, ids), labels, labels
    from .train.translate import BOS, EOS

    (found,) = network.model.generate([ids], min(_MOST, network.model.max_len), BOS, EOS)
    read = np.concatenate([[BOS], found[:-1]])
    return (
        _crossing(network.model, layer.multihead_attn, ids, read),
        network.target.labels(found),
        labels,
    )


def _own(model: Any, attention: Any, ids: np.ndarray) -> np.ndarray:
    from .. import functional as F

    seen: list[Any] = []
    handle = attention.c_attn.register_forward_hook(lambda module, args, out: seen.append(out))
    try:
        model(ids[None])
    finally:
        handle.remove()
    out = seen[0]
    part = (attention.heads, out.shape[2] // 3 // attention.heads)
    q, k, _ = F.split_heads(out, [part] * 3)
    weights: np.ndarray = F.attention_weights(q.numpy(), k.numpy(), is_causal=True)[0]
    return weights


def _crossing(model: Any, attention: Any, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    seen: list[Any] = []
    handle = attention.register_forward_hook(lambda module, args, out: seen.append(args))
    try:
        model(source[None], target[None])
    finally:
        handle.remove()
    weights: np.ndarray = attention.forward(*seen[0], average_attn_weights=False)[1].numpy()[0]
    return weights


# ---- the picture ---------------------------------------------------------------------------------


def _label(token: str) -> str:
    """A token that can be seen, and that matplotlib does not take for mathematics."""
    shown = token.replace("\n", "\N{RETURN SYMBOL}").replace(" ", "\N{OPEN BOX}")
    return printable(shown).replace("$", r"\$")


def _draw(path: Path, title: str, weights: np.ndarray, rows: list[str], columns: list[str]) -> None:
    from matplotlib.figure import Figure

    across = min(len(weights), 4 if len(columns) <= 24 else 2)
    down = math.ceil(len(weights) / across)
    width, height = (max(2.2, 0.16 * len(labels) + 0.7) for labels in (columns, rows))
    picture = Figure((across * width + 1, down * height + 0.6), dpi=150, layout="constrained")
    grid = picture.subplots(down, across, squeeze=False)
    image = None
    for head, axes in enumerate(grid.ravel()):
        if head >= len(weights):
            axes.set_visible(False)
            continue
        image = axes.imshow(
            weights[head], cmap="Blues", vmin=0, vmax=float(weights.max()), aspect="auto"
        )
        axes.set_xticks(range(len(columns)), [_label(t) for t in columns], fontsize=7, rotation=90)
        axes.set_yticks(range(len(rows)), [_label(t) for t in rows], fontsize=7)
        axes.tick_params(length=0)
        axes.set_title(f"head {head + 1}", fontsize="small")
    assert image is not None
    picture.colorbar(image, ax=grid, label="weight", shrink=0.8)
    picture.suptitle(title, fontsize="medium")
    picture.savefig(path)
