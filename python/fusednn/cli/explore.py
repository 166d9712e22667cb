"""`python -m fusednn explore`: a page to try convolutions, symmetry and attention."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from .options import add_seed, add_threads, use_threads

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

PORT = 8765

_DESCRIPTION = """\
Serves one page to the browser on this machine, to try what networks compute:

  convolution  step a kernel over a sequence or a picture; edit both, padding and stride
  mirror       a kernel and its reverse; a combined map that flips with its input
  rotation     one score against the mean and the maximum over four orientations
  digits       draw a digit, and see the feature maps of a small CNN that reads it
  attention    type a sentence, and see what each head looks at

Every number on the page is computed by this library. The page needs no network, and no other
machine or website can use it. The digits need scikit-learn (the extra `demo`): their network learns
on first use, in about a second, and is kept in the user's cache folder. Ctrl-C ends it.

Exit status: 0 ended by Ctrl-C, 1 the port cannot be used, 2 wrong arguments.
"""
_EXAMPLES = """
examples:
  python -m fusednn explore
  python -m fusednn explore --port 0 --no-browser
  python -m fusednn explore --checkpoint runs/gpt-shakespeare
"""


def _port(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{value} is not a port, expected 0 to 65535")
    return value


def add_parser(subparsers: Subparsers) -> argparse.ArgumentParser:
    """The arguments of `explore`."""
    parser = subparsers.add_parser(
        "explore",
        help="try convolutions, symmetry and attention in the browser",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--port",
        type=_port,
        default=PORT,
        metavar="N",
        help=f"where to listen, 0 for any free port (default: {PORT})",
    )
    browser = parser.add_mutually_exclusive_group()
    browser.add_argument(
        "--open",
        action="store_true",
        default=None,
        dest="open",
        help="open the page in a browser (default: if there is a desktop)",
    )
    browser.add_argument(
        "--no-browser", action="store_false", dest="open", help="only print the address"
    )
    parser.add_argument(
        "--checkpoint",
        type=Path,
        metavar="PATH",
        help="a run of `train gpt`, whose attention then takes the place of random weights",
    )
    add_threads(parser)
    add_seed(parser)
    return parser


def run(arguments: argparse.Namespace) -> int:
    """Serves until Ctrl-C; 1 if the port cannot be used, 2 for arguments that cannot be."""
    from ..explore.attention import Attention
    from ..explore.digits import Digits
    from ..explore.server import Server
    from .saved import saved
    from .train.options import Refused

    use_threads(arguments)
    try:
        network = None if arguments.checkpoint is None else saved(arguments.checkpoint, ("gpt",))
    except Refused as error:
        print(f"fusednn explore: {error}", file=sys.stderr)
        return 2
    seed = arguments.seed
    try:
        server = Server(arguments.port, Digits(seed), Attention(seed, network))
    except OSError as error:
        reason = error.strerror or str(error)
        print(
            f"fusednn explore: --port {arguments.port}: {reason} (--port 0 takes a free one)",
            file=sys.stderr,
        )
        return 1
    with server:
        print(f"{server.url}  (Ctrl-C ends)", flush=True)
        if arguments.open or (arguments.open is None and _has_desktop()):
            _open(server.url)
        try:
            server.serve_forever(poll_interval=0.1)
        except KeyboardInterrupt:
            print()
    return 0


def _has_desktop() -> bool:
    """Whether a browser would have a window, and somebody sits in front of it."""
    return sys.stdout.isatty() and bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )


def _open(url: str) -> None:
    import webbrowser

    if not webbrowser.open(url):
        print("there is no browser to open; the address above is the page", file=sys.stderr)
