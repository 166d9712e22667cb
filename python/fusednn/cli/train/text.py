"""What networks that write text share: Shakespeare as windows of tokens, and samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from .options import Refused
from .task import Task, placed

if TYPE_CHECKING:
    from ...data import Tokenizer

EPOCH = 1600  # windows between two validations
_CHECKS = 256  # windows to validate, always the same ones
_SAMPLE = 100  # tokens


def shakespeare(config: dict[str, Any]) -> tuple[Tokenizer, np.ndarray, np.ndarray]:
    """The tokenizer and the ids of both parts; with --limit N those of about N windows."""
    from ... import data

    corpus = data.shakespeare()
    train, test = corpus.train, corpus.test
    if config["limit"] is not None:
        most = config["limit"] * config["length"] + 1
        train, test = train[:most], test[:most]
    if config.get("tokens", "characters") == "characters":
        return data.CharTokenizer(corpus.vocabulary), train, test
    texts = [corpus.decode(train), corpus.decode(test)]
    try:
        tokens = data.SubwordTokenizer.learn(texts[:1], "bpe", size=config["vocabulary"])
    except ImportError as error:
        raise Refused(f"--tokens bpe: {error}") from None
    return tokens, tokens.encode(texts[0]), tokens.encode(texts[1])


def windows(ids: np.ndarray, config: dict[str, Any], draws: int, seed: int) -> Any:
    """A loader of windows, drawn anew in every epoch; at most --limit of them."""
    from ... import data

    try:
        dataset = data.WindowDataset(ids, config["length"])
    except ValueError as error:
        raise Refused(f"--length {config['length']}: {error}") from None
    draws = draws if config["limit"] is None else min(config["limit"], draws)
    return data.DataLoader(
        dataset, config["batch_size"], shuffle=True, seed=seed, prefetch=2, draws=draws
    )


def task(
    config: dict[str, Any],
    model: Any,
    logits: Callable[[Any], Any],
    tokens: Tokenizer,
    ids: tuple[np.ndarray, np.ndarray],
    arguments: dict[str, Any],
) -> Task:
    """The task of a network that predicts the next token; logits: of ids (N, T)."""
    from ... import functional as F
    from ... import optim

    size, smoothing = len(tokens), config.get("label_smoothing", 0.0)

    def loss(batch: Any, smoothing: float = smoothing, reduction: str = "mean") -> Any:
        x, y = placed(model, *batch)
        scores = logits(x).reshape(-1, size)
        return F.cross_entropy(
            scores, y.reshape(-1), label_smoothing=smoothing, reduction=reduction
        )

    held_out = list(windows(ids[1], config, _CHECKS, 0))

    def validate() -> dict[str, float]:
        total = sum(loss(batch, 0.0, "sum").item() for batch in held_out)
        count = sum(batch[1].size for batch in held_out)
        return {"loss": total / count, "perplexity": float(np.exp(min(total / count, 700)))}

    def sample() -> str:
        start = tokens.encode("\n")
        (text,) = model.generate([start], _SAMPLE, temperature=0.8)
        return tokens.decode(text[len(start) :])

    kind = "character" if config.get("tokens", "characters") == "characters" else "token"
    return Task(
        title=(
            f"{type(model).__name__} on {config['data']}: {len(ids[0])} {kind}s to train, "
            f"{len(ids[1])} to validate"
        ),
        model=model,
        optimizer=optim.AdamW(model.parameters(), lr=config["lr"]),
        loader=windows(ids[0], config, EPOCH, config["seed"]),
        loss=loss,
        validate=validate,
        metric="loss",
        higher_is_better=False,
        unit=f"nats/{'char' if kind == 'character' else 'token'}",
        sample=sample,
        held_out=held_out,
        about={"tokenizer": tokens.describe(), "model": arguments},
    )
