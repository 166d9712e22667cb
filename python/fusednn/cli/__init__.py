"""The command line: `python -m fusednn ...`, installed as `fusednn` as well.

One file per command, each with `add_parser(subparsers)` and `run(arguments) -> exit status`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

_DESCRIPTION = """\
fusednn: fast neural-network kernels for Python, in one small wheel.

Every command has its own --help.
"""
_EXAMPLES = """\
examples:
  python -m fusednn info
  python -m fusednn demo --threads 1
  python -m fusednn explore
  python -m fusednn train cnn --data digits
  python -m fusednn train gpt --data shakespeare
  python -m fusednn generate --checkpoint runs/gpt-shakespeare --prompt 'ROMEO.'
  python -m fusednn bench --op conv
"""


class _Parser(argparse.ArgumentParser):
    """Answers wrong arguments in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _parser() -> argparse.ArgumentParser:
    from .. import __version__
    from . import attention, bench, demo, explore, generate, info, train

    parser = _Parser(
        prog="fusednn",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"fusednn {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (info, demo, explore, train, generate, attention, bench):
        module.add_parser(commands).set_defaults(run=module.run)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit status: 0 done, 1 failed, 2 wrong arguments, 130 stopped
    by Ctrl-C."""
    try:
        parsed = _parser().parse_args(arguments)
        status: int = parsed.run(parsed)
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # Whoever read the output has gone (`| head`); Python would write the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return status
