"""A score in one orientation against its mean and maximum over four."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import functional as F
from .. import nn
from .._tensor.mode import no_grad
from .._tensor.tape import Array
from .fields import BadRequest, Fields, limit, plain
from .seeded import seeded

MOST = 9
ANGLES = range(0, 360, 45)


def compute(fields: Fields) -> dict[str, Any]:
    """Fields image (n x n), angle (a multiple of 45 degrees), network: "filter" (with kernel 3 x 3:
    convolution, ReLU, the largest response) or "random" (with weights: a seed; two layers).

    views: the turned image in its four orientations, with their scores, mean and max; turns: the
    same three numbers (score of the first orientation, mean, maximum) for every angle.
    """
    image = fields.numbers("image", 2, MOST)
    angle = fields.integer("angle", 0, 315)
    name = fields.choice("network", ("filter", "random"))
    size = len(image)
    if image.shape != (size, size) or size < 3:
        raise BadRequest(
            f"image is {image.shape[0]} x {image.shape[1]}, expected a square, at least 3 x 3"
        )
    if angle not in ANGLES:
        raise BadRequest(f"angle is {angle}, expected a multiple of 45")
    if name == "filter":
        kernel = fields.numbers("kernel", 2, 3)
        if kernel.shape != (3, 3):
            raise BadRequest(
                f"kernel is {kernel.shape[0]} x {kernel.shape[1]}, expected 3 x 3 numbers"
            )
        network = _filter(kernel)
    else:
        network = _random(size, fields.integer("weights", 0, 9999))
    fields.done()
    mean, largest = (nn.GroupPool(network, "c4", reduce) for reduce in ("mean", "max"))
    turned = np.stack([_turned(image, one) for one in ANGLES])[:, None]
    chosen = turned[angle // 45]
    views = np.stack([np.rot90(chosen, k, (1, 2)) for k in range(4)])
    with no_grad():
        scores, singles, means, maxima = (
            net(np.ascontiguousarray(batch)).numpy()[:, 0]
            for net, batch in (
                (network, views), (network, turned), (mean, turned), (largest, turned)
            )
        )  # fmt: skip
    rows = zip(ANGLES, plain(singles), plain(means), plain(maxima), strict=True)
    return {
        "views": [plain(view[0]) for view in views],
        "scores": plain(scores),
        "mean": float(means[angle // 45]),
        "max": float(maxima[angle // 45]),
        "turns": [
            {"angle": one, "score": score, "mean": middle, "max": top}
            for one, score, middle, top in rows
        ],
        "limits": {"image": limit(image), "score": limit(singles, scores, means, maxima)},
    }


def _filter(kernel: Array) -> nn.Module:
    with seeded(0):  # its random weights are replaced
        net = nn.Sequential(
            nn.Conv2d(1, 1, 3, padding=1, bias=False), nn.ReLU(), nn.GlobalPool("max")
        ).to(np.float64)
    net.load_state_dict({"0.weight": kernel[None, None]})
    return net.eval()


def _random(size: int, seed: int) -> nn.Module:
    with seeded(seed):
        net = nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(4 * size**2, 1)
        )
    return net.to(np.float64).eval()


def _turned(image: Array, angle: int) -> Array:
    """The image turned counter-clockwise: exactly by quarter turns, and by another 45 degrees with
    pixels mixed from their four neighbours, as no grid has one in that place."""
    turned = np.ascontiguousarray(np.rot90(image, angle // 90))
    if angle % 90 == 0:
        return turned
    return np.asarray(F.linear(turned.reshape(1, -1), _mixing(len(image)))).reshape(image.shape)


def _mixing(size: int) -> Array:
    """The matrix (pixels, pixels) of a turn by 45 degrees with bilinear weights."""
    centre, root = (size - 1) / 2, np.sqrt(0.5)
    row, column = np.divmod(np.arange(size**2), size)
    # Where each new pixel was before: the inverse turn of its place.
    y, x = row - centre, column - centre
    old_y, old_x = centre + root * (y + x), centre + root * (x - y)
    weight_y = np.maximum(0, 1 - np.abs(old_y[:, None] - row))
    weight_x = np.maximum(0, 1 - np.abs(old_x[:, None] - column))
    return np.asarray(weight_y * weight_x)
