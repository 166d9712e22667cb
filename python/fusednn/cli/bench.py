"""`python -m fusednn bench`: our speed beside that of the libraries installed here."""

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fusednn.bench.peers import PEERS
from fusednn.cli.options import figure
from fusednn.testing.cases import BENCH

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]

OPS = tuple(BENCH)
DEVICES = ("cpu", "cuda")

DESCRIPTION = """\
Times named shapes of each op, ours and every installed peer in turn in one process with the same
threads, after checking each answer against float64. "of ceiling" is the share of what this machine
can do at best (multiply-adds or memory, measured first); Winograd's convolution does less work
than the rate counts and may pass 100 %.
"""
EXAMPLES = """\
examples:
  python -m fusednn bench --op conv --direction fwd
  python -m fusednn bench --cases '56x56.*k3' --threads 2 --json after.json --plot after.png
  python -m fusednn bench --device cpu,cuda --op pool
  python -m fusednn bench compare before.json after.json
"""


def _list_of(choices: tuple[str, ...], text: str) -> list[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in choices:
            raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(choices)}")
    return names


def _ops(text: str) -> list[str]:
    return _list_of(OPS, text)


def _peers(text: str) -> list[str]:
    return [] if text == "none" else _list_of(PEERS, text)


def _devices(text: str) -> list[str]:
    names = _list_of(DEVICES, text)
    if not names:
        raise argparse.ArgumentTypeError(f"expected at least one of {', '.join(DEVICES)}")
    return names


def _regex(text: str) -> str:
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no regular expression: {error}") from error
    return text


def _at_least_one(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number of seconds, got {text}")
    return value


def add_parser(subparsers: "Subparsers") -> argparse.ArgumentParser:
    parser = subparsers.add_parser(
        "bench",
        help="time the kernels beside the libraries installed here",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--op",
        type=_ops,
        default=list(OPS),
        metavar="LIST",
        help=f"of {','.join(OPS)}; all if left out",
    )
    parser.add_argument(
        "--cases",
        type=_regex,
        default="",
        metavar="REGEX",
        help='only cases whose name matches, e.g. "k3 s1" or "fwdbwd"',
    )
    parser.add_argument(
        "--direction",
        choices=("fwd", "fwdbwd", "step", "all"),
        default="all",
        help="forward, with backward, or whole training steps (op train)",
    )
    parser.add_argument("--threads", type=_at_least_one, default=1, metavar="N", help="default 1")
    parser.add_argument(
        "--device",
        type=_devices,
        default=["cpu"],
        metavar="LIST",
        help="of cpu,cuda: on a GPU also, beside it or alone (default cpu)",
    )
    parser.add_argument(
        "--peers",
        type=_peers,
        default=list(PEERS),
        metavar="LIST",
        help=f"of {','.join(PEERS)}, or none; default: whatever is installed",
    )
    parser.add_argument(
        "--dtype",
        choices=("float32", "float64", "bfloat16", "float16"),
        default="float32",
        help="16-bit floats are for --device cuda alone",
    )
    parser.add_argument(
        "--budget", type=_seconds, default=1.2, metavar="S", help="seconds of timing a case (1.2)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument(
        "--plot", type=figure, metavar="F.png", help="draw the ratios there (needs matplotlib)"
    )
    actions = parser.add_subparsers(
        dest="bench_action", metavar="ACTION", title="comparing two runs"
    )
    compare = actions.add_parser(
        "compare",
        help="A.json B.json: the ratio per case, and what is outside the noise",
        description="Sets two files of `bench --json` side by side. Where both have peers, "
        "what the peers changed is taken for the machine's drift and divided out (net).",
    )
    compare.add_argument("a", type=Path, metavar="A.json")
    compare.add_argument("b", type=Path, metavar="B.json")
    return parser


def run(args: argparse.Namespace) -> int:
    """0 if everything asked for was measured, 1 if an answer was wrong, 2 for bad arguments."""
    if args.bench_action == "compare":
        return _compare(args.a, args.b)
    from fusednn.bench import plot, runner, table

    if args.json and not args.json.absolute().parent.is_dir():
        return _refuse(f"--json {args.json}: its folder does not exist")
    options = runner.Options(
        args.op,
        args.cases,
        args.direction,
        args.threads,
        args.peers,
        args.dtype,
        args.budget,
        args.device,
    )
    if not runner.selected(options):
        return _refuse(f"no case matches {args.cases!r}")
    try:
        if args.plot:
            plot.check(args.plot)
        result, wrong = runner.run(options)
    except ValueError as error:
        return _refuse(str(error))
    if result.records:
        print(table.summary(result.records))
    if args.json:
        result.save(args.json)
    if args.plot and result.records:
        plot.draw(args.plot, result)
    return 130 if "interrupted" in wrong else int(bool(wrong))


def _compare(a: Path, b: Path) -> int:
    from fusednn.bench import compare, records

    try:
        print(compare.report(records.load(a), records.load(b), a.name, b.name))
    except (OSError, records.NotABenchFileError) as error:
        return _refuse(str(error))
    return 0


def _refuse(message: str) -> int:
    print(f"fusednn bench: {message}", file=sys.stderr)
    return 2
