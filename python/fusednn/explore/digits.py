"""What a small CNN computes for a digit that somebody draws."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from .. import functional as F
from .. import nn, optim
from .._tensor.mode import no_grad
from .._tensor.tape import Array
from ..analysis import feature_maps
from ..data import DataLoader, MissingDataError, cache_folder, digits
from ..io import load, save
from .fields import BadRequest, Fields, limit, plain
from .seeded import seeded

LAYERS = (
    ("0", "convolution 3 x 3, 8 kernels"),
    ("1", "ReLU"),
    ("2", "largest of each 2 x 2"),
    ("3", "convolution 3 x 3 x 8, 16 kernels"),
    ("4", "ReLU"),
    ("5", "largest of each 2 x 2"),
)
POINTS = 2000
_EPOCHS, _BATCH = 30, 64
_SIDE, _PEN = 32, 2.4  # of the bitmap that a drawing becomes, and the pen's radius in it
_VERSION = 1  # of the recipe: files of another one are not read


class Unavailable(RuntimeError):
    """Something that the exploration needs is not on this machine."""


class Digits:
    """The exploration, with its network: trained when it is first asked, then kept in a file of the
    user's cache folder; a file that cannot be read or written costs a second of training again.

    Calls may come from several threads.
    """

    def __init__(self, seed: int = 0, folder: Path | None = None) -> None:
        self.seed = seed
        self.path = (folder or cache_folder()) / f"explore-digits-{_VERSION}-seed{seed}.safetensors"
        self._lock = threading.Lock()
        self._model: nn.Module | None = None
        self._test: tuple[Array, ...] = ()
        self._accuracy = 0.0

    def compute(self, fields: Fields) -> dict[str, Any]:
        """Either strokes (lines of points [x, y] in [0, 1], y downwards), or sample (a class) and
        number (which test image of that class).

        The picture 8 x 8 that the network sees, all feature maps by layer, the scores (logits) and
        probabilities of the ten classes.
        """
        strokes, digit, number = None, 0, 0
        if fields.has("strokes"):
            strokes = fields.strokes("strokes", POINTS)
        else:
            digit, number = fields.integer("sample", 0, 9), fields.integer("number", 0, 9999)
        fields.done()
        with self._lock:  # looking at feature maps hooks into the model
            model = self._ready()
            if strokes is not None:
                picture = drawn(strokes)
            else:
                images, labels = self._test
                members = images[labels == digit]
                picture = members[number % len(members)][None]
            maps = feature_maps(model, picture, [name for name, _ in LAYERS])
            with no_grad():
                scores = model(picture).numpy()[0]
        kernels = model.get_parameter("0.weight").numpy()[:, 0]
        return {
            "picture": plain(picture[0, 0]),
            "layers": [
                {"name": title, "maps": plain(maps[name][0]), "limit": limit(maps[name])}
                for name, title in LAYERS
            ],
            "kernels": plain(kernels),
            "scores": plain(scores),
            "probabilities": plain(F.softmax(scores[None], 1)[0]),
            "answer": int(scores.argmax()),
            "accuracy": self._accuracy,
            "limits": {"kernels": limit(kernels)},
        }

    def _ready(self) -> nn.Module:
        """The trained network; the caller holds the lock."""
        if self._model is not None:
            return self._model
        try:
            train, test = digits()
        except MissingDataError:
            raise Unavailable(
                "the digits come with scikit-learn; pip install 'fusednn[demo]'"
            ) from None
        with seeded(self.seed):
            model = _network()
        if not _restored(model, self.path):
            _fit(model, train, self.seed)
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                save(model.state_dict(), self.path)
            except OSError as error:
                print(f"the trained network is not kept: {error}", file=sys.stderr)
        images, labels = test.arrays
        with no_grad():
            answers = model.eval()(images).argmax(1).numpy()
        self._accuracy = float((answers == labels).mean())
        self._test = (images, labels)
        self._model = model
        return model


def _network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64, 10),
    )


def _fit(model: nn.Module, train: Any, seed: int) -> None:
    optimizer = optim.AdamW(model.parameters(), lr=5e-3)
    loader = DataLoader(train, _BATCH, shuffle=True, seed=seed % (1 << 63))
    for _ in range(_EPOCHS):
        for images, labels in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()


def _restored(model: nn.Module, path: Path) -> bool:
    """Whether the file was there and is of such a network."""
    try:
        model.load_state_dict(load(path))
    except (OSError, ValueError, KeyError, TypeError):
        return False
    return all(np.isfinite(p.numpy()).all() for p in model.parameters())


# ---- from a drawing to a picture -----------------------------------------------------------------


def drawn(strokes: list[Array]) -> Array:
    """Lines drawn anywhere at any size -> a picture (1, 1, 8, 8) as the data set's are made.

    Those were bitmaps of 32 x 32 that the digit fills, of which blocks of 4 x 4 were counted. So
    the drawing is moved and scaled to fill the bitmap, drawn with a pen of the width that is usual
    there, and averaged by blocks. BadRequest without a line to see.
    """
    points = np.concatenate(strokes)
    low, high = points.min(0), points.max(0)
    extent = float((high - low).max())
    if extent < 0.02:
        raise BadRequest("the drawing is a dot; draw a digit")
    inner = _SIDE - 2 * _PEN
    middle = (low + high) / 2
    bitmap = np.zeros((_SIDE, _SIDE), bool)
    places = np.stack(np.meshgrid(*[np.arange(_SIDE) + 0.5] * 2), -1)  # (row, column, (x, y))
    for line in strokes:
        scaled = (line - middle) / extent * inner + _SIDE / 2
        for a, b in zip(scaled, scaled[1:] if len(scaled) > 1 else scaled, strict=False):
            bitmap |= _distance(places, a, b) <= _PEN
    out: Array = F.avg_pool2d(bitmap[None, None].astype(np.float32), 4)
    return out


def _distance(places: Array, a: Array, b: Array) -> Array:
    """From each place to the segment from a to b."""
    along = b - a
    length = float(along @ along)
    offsets = places - a
    share = np.clip(offsets @ along / length, 0, 1) if length else np.zeros(places.shape[:2])
    return np.asarray(np.hypot(*np.moveaxis(offsets - share[..., None] * along, -1, 0)))


__all__ = ["LAYERS", "Digits", "Unavailable", "drawn"]
