"""Pictures for a lecture; each function returns a matplotlib Figure, to be shown or saved.

Needs matplotlib: `pip install 'fusednn[plot]'`. Lines have Okabe and Ito's colours and a mark each,
maps are in viridis or from orange to purple: colour-blind readers can tell them apart.

>>> import numpy as np
>>> from fusednn.analysis import plot
>>> figure = plot.attention(np.eye(2)[None], ["good", "day"])
>>> figure.savefig("heads.png")  # doctest: +SKIP
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .._tensor.mode import no_grad
from .._tensor.tape import Array, raw
from ..functional import conv1d, conv2d
from .reach import Field
from .trace import evaluating

_BLUE, _VERMILION, _GREEN, _GREY = "#0072B2", "#D55E00", "#009E73", "#666666"
_LINES = ((_BLUE, "o"), (_VERMILION, "s"), (_GREEN, "^"), ("#CC79A7", "D"), (_GREY, "v"))
_SIGNED, _PLAIN = "PuOr", "viridis"


def _figure(width: float, height: float) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("plot: needs matplotlib: pip install 'fusednn[plot]'") from error
    return Figure(figsize=(width, height), dpi=150, layout="constrained")


def _array(name: str, value: Any, axes: int) -> Array:
    array = np.asarray(raw(value))
    if array.ndim != axes:
        raise ValueError(f"plot: {name} has shape {array.shape}, expected {axes} axes")
    return array


def _tiles(images: Sequence[Array], titles: Sequence[str], signed: bool, columns: int) -> Any:
    """Pictures side by side on one scale of colours."""
    columns = max(1, min(columns, len(images)))
    rows = math.ceil(len(images) / columns)
    figure = _figure(1.35 * columns + 0.9, 1.55 * rows + 0.2)
    grid = np.atleast_1d(figure.subplots(rows, columns, squeeze=False)).ravel()
    low, high = min(a.min() for a in images), max(a.max() for a in images)
    if signed:
        high = max(abs(low), abs(high), 1e-12)
        low = -high
    for axes, image, title in zip(grid, images, titles, strict=False):
        shown = axes.imshow(image, vmin=low, vmax=high, cmap=_SIGNED if signed else _PLAIN)
        axes.set_title(title, fontsize="small")
    for axes in grid:
        axes.set_axis_off()
    bar = figure.colorbar(shown, ax=list(grid), shrink=0.8, aspect=25)
    bar.ax.tick_params(labelsize="x-small")
    return figure


def feature_maps(maps: Any, columns: int = 8) -> Any:
    """The channels of one picture's maps (C, H, W), as `analysis.feature_maps` gives them for each
    picture, on one scale."""
    channels = _array("maps", maps, 3)
    return _tiles(list(channels), [f"map {i}" for i in range(len(channels))], False, columns)


def filters(weight: Any, columns: int = 8) -> Any:
    """Kernels (O, C, KH, KW) of a convolution, the mean over input channels; zero is white."""
    kernels = _array("weight", weight, 4).mean(1)
    return _tiles(list(kernels), [f"kernel {i}" for i in range(len(kernels))], True, columns)


# ---- convolution ---------------------------------------------------------------------------------


def _cells(axes: Any, values: Array, marked: Sequence[tuple[int, int]], colour: str) -> None:
    """A table of numbers; some of the cells are framed and tinted."""
    from matplotlib.patches import Rectangle

    rows, columns = values.shape
    for r in range(rows):
        for c in range(columns):
            hit = (r, c) in marked
            axes.add_patch(
                Rectangle((c, r), 1, 1, facecolor=colour if hit else "white",
                          alpha=0.35 if hit else 1, edgecolor="none")
            )  # fmt: skip
            axes.add_patch(Rectangle((c, r), 1, 1, fill=False, edgecolor="#999999", linewidth=0.6))
            value = values[r, c]
            text = "" if np.isnan(value) else f"{value:g}"
            axes.text(c + 0.5, r + 0.5, text, ha="center", va="center", fontsize="small")
    if marked:
        top, left = min(marked)
        bottom, right = max(marked)
        axes.add_patch(
            Rectangle((left, top), right - left + 1, bottom - top + 1, fill=False,
                      edgecolor=colour, linewidth=2, zorder=3)
        )  # fmt: skip
    axes.set_xlim(-0.1, columns + 0.1)
    axes.set_ylim(rows + 0.1, -0.1)
    axes.set_aspect("equal")
    axes.set_axis_off()


def convolution(x: Any, kernel: Any, position: int = 0) -> Any:
    """One step of a convolution (stride 1, no padding): the window on the input, the kernel, and
    the output up to this position.

    x (L,) and kernel (K,), or (H, W) and (KH, KW); position counts the outputs row by row.
    """
    source, taps = np.asarray(raw(x), float), np.asarray(raw(kernel), float)
    if source.ndim != taps.ndim or source.ndim not in (1, 2):
        raise ValueError(
            f"plot: x has shape {source.shape} and kernel {taps.shape}, expected both (L,) and "
            "(K,) or both (H, W) and (KH, KW)"
        )
    conv = conv1d if source.ndim == 1 else conv2d
    out = np.atleast_2d(conv(source[None, None], taps[None, None])[0, 0])
    source, taps = np.atleast_2d(source), np.atleast_2d(taps)
    if not 0 <= position < out.size:
        raise ValueError(f"plot: position={position}, expected 0 to {out.size - 1}")
    r, c = divmod(position, out.shape[1])
    window = [(r + i, c + j) for i in range(taps.shape[0]) for j in range(taps.shape[1])]
    so_far = np.where(np.arange(out.size).reshape(out.shape) <= position, out, np.nan)
    tables = [(source, window, _BLUE, "input"),
              (taps, [(i, j) for i, j in np.ndindex(*taps.shape)], _GREEN, "kernel"),
              (so_far, [(r, c)], _VERMILION, "output")]  # fmt: skip
    wide = [table.shape[1] for table, *_ in tables]
    if source.shape[0] == 1:
        figure = _figure(0.45 * source.shape[1] + 0.6, 2.9)
        panels = figure.subplots(3, 1)
    else:
        figure = _figure(0.45 * sum(wide) + 1.2, 0.45 * source.shape[0] + 1.2)
        panels = figure.subplots(1, 3, width_ratios=wide)
    for axes, (table, marked, colour, name) in zip(panels, tables, strict=True):
        _cells(axes, table, marked, colour)
        axes.set_title(name, fontsize="medium", color=colour, loc="left")
        if source.shape[0] == 1:
            left = c if name == "kernel" else 0  # the kernel stands below its window
            axes.set_xlim(-0.1 - left, source.shape[1] + 0.1 - left)
    patch = source[r : r + taps.shape[0], c : c + taps.shape[1]]
    products = " + ".join(
        "·".join(f"{v:g}" if v >= 0 else f"({v:g})" for v in (a, b))
        for a, b in zip(taps.ravel(), patch.ravel(), strict=True)
        if taps.size <= 5 or a != 0
    )
    figure.suptitle(f"{products or '0'} = {out[r, c]:g}", fontsize="medium")
    return figure


def mirror_patches(x: Any, kernel: Any, position: int) -> Any:
    """A patch, and where its mirror image is in the reversed input: both with the responses of the
    kernel and of its reverse, of which the larger (and the sum) is the same.

    x (L,), kernel (K,); position is the patch's first element.
    """
    source, taps = _array("x", x, 1).astype(float), _array("kernel", kernel, 1).astype(float)
    places = len(source) - len(taps) + 1
    if not 0 <= position < places:
        raise ValueError(f"plot: position={position}, expected 0 to {places - 1}")
    figure = _figure(0.5 * len(source) + 2.6, 3.0)
    panels = figure.subplots(2, 1)
    for axes, line, at, colour, name in (
        (panels[0], source, position, _BLUE, "input"),
        (panels[1], source[::-1], places - 1 - position, _VERMILION, "reversed input"),
    ):
        _cells(axes, line[None], [(0, at + j) for j in range(len(taps))], colour)
        patch = line[at : at + len(taps)]
        a, b = float(taps @ patch), float(taps[::-1] @ patch)
        forms = [" ".join(f"{w:g}" for w in one) for one in (taps, taps[::-1])]
        axes.set_title(
            f"{name}, patch {at + 1}:  [{forms[0]}] gives {a:g}, [{forms[1]}] gives {b:g};  "
            f"max {max(a, b):g}, sum {a + b:g}",
            fontsize="small", color=colour,
        )  # fmt: skip
    return figure


# ---- receptive fields ----------------------------------------------------------------------------


def receptive_field(fields: Sequence[Field], image: Any, position: tuple[int, int] = (0, 0)) -> Any:
    """What one position of each layer sees, framed on the image (H, W): the layers in the order of
    `fields` (of `analysis.receptive_field`), equal frames once; position of the last one."""
    from matplotlib.patches import Rectangle

    picture = _array("image", image, 2)
    windows = {f.size: f for f in reversed(fields) if f.size is not None and len(f.size) == 2}
    if not windows:
        raise ValueError("plot: fields has no layer with windows on two axes")
    figure = _figure(7.2, 4.2)
    figure.set_layout_engine("compressed")  # for axes of a fixed shape
    axes = figure.subplots()
    axes.imshow(picture, cmap="gray_r", alpha=0.6)
    low, high = [-0.5, -0.5], [picture.shape[0] - 0.5, picture.shape[1] - 0.5]
    at, centre = list(position), [0.0, 0.0]
    for drawn, (size, field) in enumerate(windows.items()):  # from the last layer on
        stride: Any = field.stride
        offset: Any = field.offset
        start = []
        for i in (0, 1):
            if drawn:  # the window whose middle is nearest to that of the one around it
                at[i] = round((centre[i] - (size[i] - 1) / 2 - offset[i]) / stride[i])
            start.append(offset[i] + at[i] * stride[i] - 0.5)
            centre[i] = start[i] + size[i] / 2 - 0.5
            low[i], high[i] = min(low[i], start[i]), max(high[i], start[i] + size[i])
        colour, _ = _LINES[drawn % len(_LINES)]
        # Edges may coincide: outer frames are drawn first, and wider.
        width = max(1.5, 4 - 0.8 * drawn)
        label = f"{field.name} {field.kind}: {size[0]} x {size[1]}"
        axes.add_patch(
            Rectangle((start[1], start[0]), size[1], size[0], fill=False, edgecolor=colour,
                      linewidth=width, label=label)
        )  # fmt: skip
    axes.set_xlim(low[1] - 0.5, high[1] + 0.5)
    axes.set_ylim(high[0] + 0.5, low[0] - 0.5)
    figure.legend(loc="outside right center", frameon=False, fontsize="small")
    axes.set_xlabel("column of the input")
    axes.set_ylabel("row of the input")
    return figure


# ---- time, heads, turns --------------------------------------------------------------------------


def gradient_norms(steps: Mapping[str, Any]) -> Any:
    """Norms of gradients by time step, a line for each network, on a logarithmic scale; `steps` are
    the arrays of `GradientFlow.steps`."""
    figure = _figure(6.4, 3.8)
    axes = figure.subplots()
    for i, (name, values) in enumerate(steps.items()):
        norms = _array(name, values, 1).astype(float)
        colour, mark = _LINES[i % len(_LINES)]
        shown = np.where(norms > 0, norms, np.nan)
        axes.plot(shown, color=colour, marker=mark, markevery=max(1, len(norms) // 12), label=name)
    axes.set_yscale("log")
    axes.set_xlabel("time step t")
    axes.set_ylabel("norm of the gradient of the state at t")
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure


def attention(weights: Any, tokens: Sequence[str], keys: Sequence[str] | None = None) -> Any:
    """The weights of each head (heads, T, S) over words: rows are queries, columns keys."""
    heads = _array("weights", weights, 3)
    columns = tokens if keys is None else keys
    if heads.shape[1:] != (len(tokens), len(columns)):
        raise ValueError(
            f"plot: weights have shape {heads.shape}, expected (heads, {len(tokens)}, "
            f"{len(columns)}) for the tokens given"
        )
    across = min(len(heads), 4)
    down = math.ceil(len(heads) / across)
    longest = max(map(len, [*tokens, *columns]))
    side = 0.32 * max(len(tokens), len(columns)) + 0.09 * longest
    figure = _figure(across * side + 1.2, down * (side + 0.35) + 0.3)
    grid = figure.subplots(down, across, squeeze=False).ravel()
    for i, axes in enumerate(grid):
        if i >= len(heads):
            axes.set_axis_off()
            continue
        shown = axes.imshow(heads[i], vmin=0, vmax=1, cmap=_PLAIN)
        axes.set_xticks(range(len(columns)), columns, rotation=90, fontsize="small")
        axes.set_yticks(range(len(tokens)), tokens, fontsize="small")
        axes.set_title(f"head {i}", fontsize="medium")
    figure.colorbar(shown, ax=list(grid), shrink=0.7, label="weight")
    return figure


def rotation_scores(model: Callable[[Any], Any], image: Any, index: int = 0) -> Any:
    """A model's score number `index` for an image (C, H, W) in its four orientations, and their
    mean and maximum, which no quarter turn of the image changes."""
    picture = _array("image", image, 3)
    turned = [np.ascontiguousarray(np.rot90(picture, k, (1, 2))) for k in range(4)]
    with no_grad(), evaluating(model):
        scores = np.asarray(raw(model(np.stack(turned))))[:, index]
    figure = _figure(7, 4.2)
    top, bottom = figure.subfigures(2, 1, height_ratios=(1, 2))
    for k, axes in enumerate(top.subplots(1, 4)):
        axes.imshow(turned[k].mean(0), cmap="gray_r")
        axes.set_title(f"{90 * k}°", fontsize="medium")
        axes.set_axis_off()
    axes = bottom.subplots()
    axes.bar(range(4), scores, color=_BLUE, width=0.6, label="each orientation")
    axes.axhline(scores.mean(), color=_VERMILION, label=f"mean {scores.mean():.3g}")
    axes.axhline(scores.max(), color=_GREEN, linestyle="--", label=f"maximum {scores.max():.3g}")
    axes.axhline(0, color="#333333", linewidth=0.8)
    axes.set_xticks(range(4), [f"{90 * k}°" for k in range(4)])
    axes.set_ylabel(f"score {index}")
    axes.set_xlabel("turned by")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="center left", bbox_to_anchor=(1.01, 0.5))
    return figure


__all__ = [
    "attention",
    "convolution",
    "feature_maps",
    "filters",
    "gradient_norms",
    "mirror_patches",
    "receptive_field",
    "rotation_scores",
]
