"""The `relbo` command: arguments only."""

import argparse
import importlib
import shlex
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from relbo.experiments import EXPERIMENTS, Options

DONE, FAILED, WRONG_INPUT = 0, 1, 2


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; `--help` has the rest."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code: 0 done, 1 failed, 2 wrong input."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or DONE)
    if arguments.command == "list":
        return _list()
    return _reproduce(arguments, shlex.join(["relbo", *argv]))


def _parser() -> _Parser:
    parser = _Parser(
        prog="relbo",
        description="Variational inference with samplers inside.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong input.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("list", help="list the experiments")
    reproduce = commands.add_parser(
        "reproduce",
        help="run experiments of the paper and write their numbers and figures",
        description="Runs experiments; each writes DIR/NAME/metrics.json and its figures.",
    )
    reproduce.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help="an experiment: " + ", ".join(EXPERIMENTS),
    )
    reproduce.add_argument(
        "--protocol",
        choices=("sound", "paper", "both"),
        default="sound",
        help="'paper' as published, 'sound' without its flaws (default: sound)",
    )
    reproduce.add_argument(
        "--quick", action="store_true", help="fewer seeds and iterations: to look at only"
    )
    reproduce.add_argument(
        "--seeds", type=_positive, metavar="N", help="default: the experiment's own number"
    )
    reproduce.add_argument(
        "--out",
        type=Path,
        default=Path("relbo-out"),
        metavar="DIR",
        help="where the results go (default: %(default)s)",
    )
    return parser


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return number


def _list() -> int:
    width = max(map(len, EXPERIMENTS))
    for name, experiment in EXPERIMENTS.items():
        print(f"{name:<{width}}  {experiment.summary}")
    return DONE


def _reproduce(arguments: argparse.Namespace, command: str) -> int:
    unknown = [name for name in arguments.names if name not in EXPERIMENTS]
    if unknown:
        return _complain(
            f"no experiment called {', '.join(unknown)}: there is {', '.join(EXPERIMENTS)}"
        )
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return _complain(f"--out {arguments.out}: cannot be written to ({error.strerror})")
    protocol = arguments.protocol
    options = Options(
        protocols=("paper", "sound") if protocol == "both" else (protocol,),
        quick=arguments.quick,
        num_seeds=arguments.seeds,
        command=command,
    )
    codes = [
        _run(name, arguments.out / name, options) for name in dict.fromkeys(arguments.names)
    ]
    return max(codes)


def _run(name: str, directory: Path, options: Options) -> int:
    start = time.perf_counter()
    try:
        outcome = importlib.import_module(EXPERIMENTS[name].module).run(directory, options)
    except KeyboardInterrupt:
        print(f"relbo: {name}: interrupted", file=sys.stderr)
        return FAILED
    except Exception:
        traceback.print_exc()
        print(f"relbo: {name}: failed", file=sys.stderr)
        return FAILED
    print(f"\n{name}: done in {time.perf_counter() - start:.0f} s")
    print(f"numbers: {outcome.metrics}")
    for figure in outcome.figures:
        if figure.suffix == ".png":
            print(f"picture: {figure} (and .svg)")
    return DONE


def _complain(message: str) -> int:
    print(f"relbo: {message}", file=sys.stderr)
    return WRONG_INPUT


if __name__ == "__main__":
    sys.exit(main())
