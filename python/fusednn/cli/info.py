"""`python -m fusednn info`: what was built and what runs here."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from .options import add_threads, use_threads

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """The arguments of `info`."""
    parser = subparsers.add_parser(
        "info",
        help="what was built and what runs here",
        description="Prints the version, the instruction set the kernels use (FUSEDNN_ISA forces "
        "another), the number of threads, whether there is a GPU, and how the library was built.",
    )
    add_threads(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Prints the configuration."""
    from .._config import show_config

    use_threads(arguments)
    show_config()
    return 0
