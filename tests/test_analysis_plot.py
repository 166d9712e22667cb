"""Pictures of analysis: they are drawn, say the right numbers, and nothing of them is cut off."""

from __future__ import annotations

import importlib.util
import io

import numpy as np
import pytest

from fusednn import analysis, models, nn
from fusednn.analysis import plot

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed"
)


def not_drawn(figure):
    """Labels of ticks beyond an axis's limits, which exist as well, and of axes that are off."""
    from matplotlib.axis import Tick, XTick

    hidden = set()
    for tick in figure.findobj(Tick):
        axes = tick.axes
        axis = axes.xaxis if isinstance(tick, XTick) else axes.yaxis
        low, high = sorted(axis.get_view_interval())
        if not (axes.axison and low <= tick.get_loc() <= high):
            hidden |= {tick.label1, tick.label2}
    return hidden


def texts(figure):
    """All that is written in a picture; every word must lie inside of it."""
    from matplotlib.text import Text

    figure.savefig(io.BytesIO())  # the layout is made while drawing
    found, limits, hidden = [], figure.bbox, not_drawn(figure)
    for text in figure.findobj(Text):
        if text in hidden or not text.get_text() or not text.get_visible():
            continue
        box = text.get_window_extent()
        inside = (box.x0 >= -1, box.y0 >= -1, box.x1 <= limits.x1 + 1, box.y1 <= limits.y1 + 1)
        assert all(inside), (text.get_text(), box, limits.bounds)
        found.append(text.get_text())
    return found


X, W = [0, 0, 0, 1, 0, 1, 1, 1, 0, 0], [1, -1, 1]


def test_steps_of_a_convolution():
    words = texts(plot.convolution(X, W, 7))
    assert "1·1 + (-1)·0 + 1·0 = 1" in words
    assert words.count("-1") == 2  # of the kernel, and one output
    words = texts(plot.convolution(X, W, 2))
    assert "1·0 + (-1)·1 + 1·0 = -1" in words
    image = np.eye(5)
    words = texts(plot.convolution(image, np.eye(3), 4))
    assert "1·1 + 1·1 + 1·1 = 3" in words
    assert {"input", "kernel", "output"} <= set(words)
    assert "0 = 0" in texts(plot.convolution(image, np.zeros((3, 3)), 0))


def test_mirror_patches():
    words = texts(plot.mirror_patches([1, 2, 3, 4, 5, 6], [1, 2], 1))
    assert any("input, patch 2:  [1 2] gives 8, [2 1] gives 7;  max 8, sum 15" in w for w in words)
    assert any("reversed input, patch 4:  [1 2] gives 7, [2 1] gives 8" in w for w in words)


def test_maps_and_filters():
    net = models.LeNet(size=8)
    maps = analysis.feature_maps(net, np.ones((2, 1, 8, 8), np.float32))
    words = texts(plot.feature_maps(maps["features.1"][0]))
    assert "map 15" in words
    assert "kernel 31" in texts(plot.filters(net.features[3].weight, columns=6))
    assert "map 0" in texts(plot.feature_maps(np.zeros((1, 4, 4))))


def test_receptive_field():
    fields = analysis.receptive_field(models.LeNet(), (1, 1, 28, 28))
    words = texts(plot.receptive_field(fields, np.ones((28, 28)), (3, 3)))
    assert "features.5 MaxPool2d: 10 x 10" in words
    assert "features.0 Conv2d: 3 x 3" in words
    texts(plot.receptive_field(fields, np.ones((28, 28))))  # reaches over the edge


def test_gradients_heads_and_turns():
    words = texts(plot.gradient_norms({"RNN": 0.5 ** np.arange(40.0), "LSTM": np.ones(40)}))
    assert {"RNN", "LSTM", "time step t"} <= set(words)
    words = texts(plot.attention(np.ones((5, 3, 4)) / 4, ["a", "long-winded", "c"], list("wxyz")))
    assert "head 4" in words
    assert words.count("long-winded") == 5
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 2))
    image = np.arange(9, dtype=np.float32).reshape(1, 3, 3)
    words = texts(plot.rotation_scores(model, image, 1))
    scores = [model(np.rot90(image, k, (1, 2))[None]).numpy()[0, 1] for k in range(4)]
    assert f"mean {np.mean(scores):.3g}" in words
    assert f"maximum {max(scores):.3g}" in words


@pytest.mark.parametrize(
    ("draw", "text"),
    [
        (lambda: plot.convolution(X, [[1]]), r"x has shape \(10,\) and kernel \(1, 1\), expected"),
        (lambda: plot.convolution(X, W, 8), "position=8, expected 0 to 7"),
        (lambda: plot.mirror_patches(X, W, -1), "position=-1, expected 0 to 7"),
        (lambda: plot.feature_maps(np.ones((2, 2))), r"maps has shape \(2, 2\), expected 3 axes"),
        (lambda: plot.attention(np.ones((1, 2, 2)), ["a"]), r"expected \(heads, 1, 1\)"),
        (lambda: plot.receptive_field([], np.ones((2, 2))), "no layer with windows on two axes"),
    ],
)
def test_what_plots_refuse(draw, text):
    with pytest.raises(ValueError, match=text):
        draw()
