"""Checkpoints: everything a training run needs to go on, in one safetensors file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from .. import random as generator
from .safetensors import load, save

_FORMAT = "fusednn checkpoint"
_VERSION = 1
_PARTS = ("scheduler", "loader", "average", "optimizer", "model")


def save_checkpoint(
    path: str | os.PathLike[str],
    *,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    loader: Any = None,
    average: Any = None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Writes the state of a training run, and that of the random generator, to one file.

    Each part is anything with `state_dict()` (average: an `optim.EMA`); metadata is any mapping
    that `save` takes: numbers, strings, None, lists, dictionaries and arrays. The file appears
    complete or not at all.

    >>> import os, tempfile
    >>> from fusednn import io, nn, optim
    >>> model = nn.Linear(2, 1)
    >>> optimizer = optim.AdamW(model.parameters())
    >>> path = os.path.join(tempfile.mkdtemp(), "run.safetensors")
    >>> io.save_checkpoint(path, model=model, optimizer=optimizer, metadata={"epoch": 3})
    >>> io.load_checkpoint(path, model=model, optimizer=optimizer)
    {'epoch': 3}
    """
    given = {
        "model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader,
        "average": average,
    }  # fmt: skip
    state: dict[str, Any] = {"format": _FORMAT, "version": _VERSION}
    for name, part in given.items():
        if part is not None:
            state[name] = _method("save_checkpoint", name, part, "state_dict")()
    state["random"] = generator.get_state()
    state["metadata"] = dict(metadata or {})
    save(state, path)


def load_checkpoint(
    path: str | os.PathLike[str],
    *,
    model: Any = None,
    optimizer: Any = None,
    scheduler: Any = None,
    loader: Any = None,
    average: Any = None,
    random: bool = True,
) -> dict[str, Any]:
    """Takes over what `save_checkpoint` wrote, and returns its metadata.

    Parts that are not asked for are left alone; random=False leaves the random generator alone, for
    loading a model to use it. ValueError if the file is damaged, is no checkpoint, lacks a part, or
    holds the state of another model, optimiser, schedule or loader; then nothing has changed.
    OSError if it cannot be read. Nothing in the file is ever executed.
    """
    given = {
        "model": model, "optimizer": optimizer, "scheduler": scheduler, "loader": loader,
        "average": average,
    }  # fmt: skip
    wanted = {name: given[name] for name in _PARTS if given[name] is not None}
    loaders = {
        name: _method("load_checkpoint", name, part, "load_state_dict")
        for name, part in wanted.items()
    }
    state = load(path)
    place = f"load_checkpoint: {os.fspath(path)}"
    if state.get("format") != _FORMAT or state.get("version") != _VERSION:
        raise ValueError(f"{place} is not a checkpoint of version {_VERSION}")
    metadata = state.get("metadata")
    if not isinstance(metadata, dict):
        raise ValueError(f"{place} has no metadata")
    for name in [*wanted, *["random"] * random]:
        if name not in state:
            raise ValueError(f"{place} has no {name}")
        if not isinstance(state[name], dict):
            raise ValueError(f"{place} is damaged: {name} is a {type(state[name]).__name__}")
    with ExitStack() as undo:
        if random:
            undo.callback(generator.set_state, generator.get_state())
            generator.set_state(state["random"])
        for name, load_state in loaders.items():
            if name != "model":  # the last one, and it changes nothing if it fails
                undo.callback(_restorer(wanted[name]))
            load_state(state[name])
        undo.pop_all()
    return metadata


def _method(op: str, name: str, part: Any, method: str) -> Callable[..., Any]:
    found = getattr(part, method, None)
    if not callable(found):
        raise TypeError(f"{op}: {name} is a {type(part).__name__}, which has no {method}()")
    return found  # type: ignore[no-any-return]


def _restorer(part: Any) -> Callable[[], None]:
    """What brings back the present state of an optimiser, schedule or loader."""
    state = part.state_dict()
    return lambda: part.load_state_dict(state)
