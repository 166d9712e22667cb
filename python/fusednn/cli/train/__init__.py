"""`python -m fusednn train NAME`: networks that learn from real data.

One file per network, each with `add_parser(subparsers)` and `prepare(config) -> Task`;
`options` has the arguments that all share, `loop` trains, saves and resumes, `plot` draws, `text`
has what networks that write text share.
"""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from . import cnn, gpt, lstm, rnn, symmetry, translate
from .options import Refused

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

_DESCRIPTION = """\
Trains a network on real data, checks it on held-out data after every epoch, and keeps in its folder
  last.safetensors   a checkpoint after every epoch, from which --resume goes on to the same bits
  best.safetensors   the weights of the best epoch
Ctrl-C saves in the middle of an epoch and prints the command that goes on.
"""


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """The networks."""
    parser = subparsers.add_parser(
        "train",
        help="train a network on real data, with checkpoints",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    networks = parser.add_subparsers(dest="network", metavar="NETWORK", required=True)
    for module in (cnn, rnn, lstm, gpt, translate, symmetry):
        module.add_parser(networks).set_defaults(prepare=module.prepare, recipes=module.RECIPES)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """0 when trained, 1 if it failed, 2 for arguments that cannot be, 130 after Ctrl-C."""
    from . import loop

    try:
        return loop.run(arguments)
    except Refused as error:
        print(f"fusednn train {arguments.network}: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:
        raise
    except OSError as error:
        print(f"fusednn train {arguments.network}: {error}", file=sys.stderr)
        return 1
