"""`python -m fusednn generate`: a trained network writes on, or translates."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from .options import (
    add_device,
    add_seed,
    add_threads,
    positive,
    printable,
    use_device,
    use_threads,
)
from .saved import Saved, add_checkpoint, encoded, saved
from .train.options import Refused

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

NETWORKS = ("gpt", "lstm", "translate")

_DESCRIPTION = """\
Lets a network that `train gpt` or `train lstm` has saved write on behind a prompt, token by token
as they come; one of `train translate` translates the prompt. Text networks draw from what they find
likely, with --temperature 0.8 unless said otherwise; translators take the likeliest.

Exit status: 0 done, 1 failed, 2 wrong arguments, 130 stopped by Ctrl-C.
"""
_EXAMPLES = """
examples:
  python -m fusednn generate --checkpoint runs/gpt-shakespeare --prompt 'ROMEO.' --top-p 0.9
  python -m fusednn generate --checkpoint runs/gpt-shakespeare --greedy --tokens 80
  python -m fusednn generate --checkpoint runs/translate-kjv-es --prompt 'and god spake.' --beams 4
"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """The arguments of `generate`."""
    parser = subparsers.add_parser(
        "generate",
        help="let a trained network write or translate",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_checkpoint(parser)
    parser.add_argument(
        "--prompt", default="\n", metavar="TEXT", help="what it goes on from (default: a new line)"
    )
    parser.add_argument(
        "--tokens", type=positive, metavar="N", help="how many at most (default: 300)"
    )
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--greedy", action="store_true", help="always the likeliest token")
    how.add_argument(
        "--temperature", type=_temperature, metavar="T", help="above 1 bolder, below 1 safer"
    )
    how.add_argument(
        "--beams", type=positive, metavar="N", help="the likeliest text sought among N at a time"
    )
    parser.add_argument("--top-k", type=positive, metavar="N", help="only of the N likeliest")
    parser.add_argument(
        "--top-p",
        type=_probability,
        metavar="P",
        help="only of the fewest that have a probability of P together",
    )
    add_seed(parser)
    add_threads(parser)
    add_device(parser)
    return parser


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None


def _temperature(text: str) -> float:
    value = _number(text)
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a number of at least 0")
    return value


def _probability(text: str) -> float:
    value = _number(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is not a number in (0, 1]")
    return value


def run(arguments: argparse.Namespace) -> int:
    """0 when written, 2 for arguments that cannot be."""
    from .. import no_grad, random

    use_threads(arguments)
    try:
        use_device(arguments)
    except ValueError as error:
        print(f"fusednn generate: {error}", file=sys.stderr)
        return 2
    try:
        network = saved(arguments.checkpoint, NETWORKS, arguments.device)
        prompt = encoded(network, "--prompt", arguments.prompt)
        if arguments.beams is not None and network.network == "lstm":
            raise Refused("--beams: an LSTM has none")
    except Refused as error:
        print(f"fusednn generate: {error}", file=sys.stderr)
        return 2
    random.manual_seed(arguments.seed)
    with no_grad():
        if network.target is not None:
            print(printable(_translated(network, prompt, arguments)))
            return 0
        print(printable(arguments.prompt), end="", flush=True)
        for text in _pieces(network, prompt, arguments):
            print(printable(text), end="", flush=True)
    print()
    return 0


def _sampling(arguments: argparse.Namespace, usual: float) -> dict[str, Any]:
    temperature = usual if arguments.temperature is None else arguments.temperature
    return {
        "temperature": 0.0 if arguments.greedy else temperature,
        "top_k": arguments.top_k,
        "top_p": arguments.top_p,
    }


def _translated(network: Saved, prompt: Any, arguments: argparse.Namespace) -> str:
    from .train.translate import BOS, EOS

    assert network.target is not None
    # The first position is that of <bos>.
    steps = min(arguments.tokens or 300, network.model.max_len)
    options = _sampling(arguments, 0.0)
    (ids,) = network.model.generate([prompt], steps, BOS, EOS, beams=arguments.beams, **options)
    return network.target.decode(ids)


def _pieces(network: Saved, prompt: Any, arguments: argparse.Namespace) -> Iterator[str]:
    """The text behind the prompt, piece by piece."""
    steps, model, tokens = arguments.tokens or 300, network.model, network.tokens
    if arguments.beams is not None:
        (ids,) = model.generate([prompt], steps, beams=arguments.beams)
        yield tokens.decode(ids[len(prompt) :])
        return
    waiting: list[int] = []
    for step in model.stream([prompt], steps, **_sampling(arguments, 0.8)):
        waiting.append(int(step[0]))
        text = tokens.decode(waiting)
        # A character of several bytes may be a token or two away from its end.
        if not text.endswith("\N{REPLACEMENT CHARACTER}") or len(waiting) > 3:
            yield text
            waiting = []
    yield tokens.decode(waiting)
