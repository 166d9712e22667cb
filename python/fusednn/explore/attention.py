"""What the heads of an attention layer look at in a sentence."""

from __future__ import annotations

import hashlib
import re
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import nn
from .._tensor.creation import from_numpy
from .._tensor.mode import no_grad
from .._tensor.tape import Array
from ..analysis import attention_maps
from .fields import BadRequest, Fields, limit, plain
from .seeded import seeded

if TYPE_CHECKING:
    from ..cli.saved import Saved

CHARACTERS, TOKENS = 400, 40
WIDTH, HEADS = 32, 4
EXAMPLE = "The dog bites the man, and the man runs."
_SHORT = EXAMPLE[:21]
# Without training all scores are near 0 and all weights alike: embeddings this large spread them.
_SCALE = 1.8


class Attention:
    """The exploration: one `nn.MultiheadAttention` with weights of a seed, over words; or, with
    `run`, the layers of a trained GPT over its own tokens.

    Calls may come from several threads.
    """

    def __init__(self, seed: int = 0, run: Saved | None = None) -> None:
        self.seed, self.run = seed, run
        self._lock = threading.Lock()
        if run is None:
            with seeded(seed):
                self._layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).eval()
            self._places = nn.SinusoidalPositionalEncoding(WIDTH)

    def about(self) -> dict[str, Any]:
        """What is looked at: text, whether trained, number of layers, and what to begin with."""
        if self.run is None:
            text = f"{HEADS} heads of a layer that nobody has trained (seed {self.seed})"
            return {"text": text, "trained": False, "layers": 1, "example": EXAMPLE}
        layers = len(self.run.model.transformer["h"])
        text = f"a GPT trained on {self.run.data}, {layers} layers"
        return {"text": text, "trained": True, "layers": layers, "example": self._beginning()}

    def compute(self, fields: Fields) -> dict[str, Any]:
        """Fields text, and causal and positions (flags), or layer (from 1) of a trained network.

        Weights (heads, T, T): row i is how much token i reads of each. sums: of the rows.
        """
        text = fields.text("text", CHARACTERS)
        if self.run is None:
            causal, positions = fields.flag("causal"), fields.flag("positions")
            fields.done()
            tokens = _words(text)
            weights = self._untrained(tokens, causal, positions)
        else:
            causal, layers = True, len(self.run.model.transformer["h"])
            layer = fields.integer("layer", 1, layers)
            fields.done()
            ids = self._ids(text)
            tokens = [_visible(label) for label in self.run.tokens.labels(ids)]
            with self._lock, no_grad():  # looking replaces the layers' forward for a moment
                found = attention_maps(self.run.model, ids[None])
            weights = list(found.values())[layer - 1][0]
        return {
            "tokens": tokens,
            "causal": causal,
            "weights": plain(weights),
            "sums": plain(from_numpy(np.ascontiguousarray(weights)).sum(-1).numpy()),
            "limit": limit(weights),
        }

    def _beginning(self) -> str:
        """As much of a short example as the trained network can read: it may know letters alone."""
        for length in range(len(_SHORT), 0, -1):
            text = _SHORT[:length].strip()
            try:
                self._ids(text)
            except BadRequest:
                continue
            return text
        return ""

    def _untrained(self, tokens: list[str], causal: bool, positions: bool) -> Array:
        x = np.stack([embedding(token, self.seed) for token in tokens])[None]
        with no_grad():
            if positions:
                x = self._places(x)
            _, weights = self._layer(x, x, x, average_attn_weights=False, is_causal=causal)
        found: Array = weights.numpy()[0]
        return found

    def _ids(self, text: str) -> Array:
        assert self.run is not None
        try:
            ids = self.run.tokens.encode(text)
        except ValueError as error:
            raise BadRequest(f"text: {error}") from None
        most = min(TOKENS, self.run.model.block_size)
        _check(len(ids), most)
        return ids


def embedding(token: str, seed: int) -> Array:
    """The vector (WIDTH,) that stands for a word: random numbers that its letters and the seed
    decide, so that a word has the same one wherever it stands."""
    digest = hashlib.sha256(f"{seed} {token}".encode()).digest()
    generator = np.random.Generator(np.random.Philox(key=int.from_bytes(digest[:16], "little")))
    return (_SCALE * generator.standard_normal(WIDTH)).astype(np.float32)


def _words(text: str) -> list[str]:
    tokens = re.findall(r"\w+|[^\w\s]", text.lower())
    _check(len(tokens), TOKENS)
    return tokens


def _check(count: int, most: int) -> None:
    if count == 0:
        raise BadRequest("text: there is no word in it")
    if count > most:
        raise BadRequest(f"text: {count} tokens, expected at most {most}")


def _visible(token: str) -> str:
    shown = token.replace("\n", "\N{RETURN SYMBOL}").replace(" ", "\N{OPEN BOX}")
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in shown)


__all__ = ["CHARACTERS", "HEADS", "TOKENS", "WIDTH", "Attention", "embedding"]
