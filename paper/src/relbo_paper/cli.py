"""The `relbo-paper` command: parses the arguments and runs the experiments."""

import argparse
import importlib
import shlex
import sys
import textwrap
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from relbo.cli import interruptible
from relbo_paper.harness.experiments import EXPERIMENTS, InputError, Options
from relbo_paper.harness.progress import duration

DONE, FAILED, WRONG_INPUT = 0, 1, 2


class _Parser(argparse.ArgumentParser):
    """A parser that reports errors in one line and refers to `--help`."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code: 0 done, 1 failed, 2 wrong input."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or DONE)
    command = shlex.join(["relbo-paper", *argv])
    with interruptible(f"relbo-paper: {_how_to_continue(arguments, command)}"):
        if arguments.command == "list":
            return _list()
        if arguments.command == "report":
            return _report(arguments.directory)
        return _run_all(arguments, command)


def _how_to_continue(arguments: argparse.Namespace, command: str) -> str:
    resumes = arguments.command == "run" and not arguments.resume
    return f"interrupted; to continue: {command}{' --resume' if resumes else ''}"


def _parser() -> _Parser:
    parser = _Parser(
        prog="relbo-paper",
        description="Runs the experiments of the paper behind relbo.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong input.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("list", help="list the experiments")
    _add_distributed(_add_run(commands))
    _add_report(commands)
    return parser


def _add_run(commands: Any) -> Any:
    run_parser = commands.add_parser(
        "run",
        help="run experiments and write their numbers and figures",
        description="Runs experiments; each writes DIR/NAME/metrics.json and its figures.",
        epilog="Example:\n  relbo-paper run all --protocol both --resume\n\n"
        "Ctrl-C stops a run; the same command with --resume continues it.\n"
        "Exit codes: 0 done, 1 failed, 2 wrong input.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    run_parser.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help="an experiment, or all: " + ", ".join(["all", *EXPERIMENTS]),
    )
    run_parser.add_argument(
        "--protocol",
        choices=("sound", "paper", "both"),
        default="sound",
        help="'paper' as published, 'sound' without the published flaws (default: sound)",
    )
    run_parser.add_argument(
        "--quick", action="store_true", help="fewer seeds and iterations: for a first look"
    )
    run_parser.add_argument(
        "--seeds",
        type=_positive,
        metavar="N",
        help="number of seeds (default: the experiment's own number)",
    )
    run_parser.add_argument(
        "--out",
        type=Path,
        default=Path("relbo-out"),
        metavar="DIR",
        help="the directory of the results (default: %(default)s)",
    )
    run_parser.add_argument(
        "--resume",
        action="store_true",
        help="keep the protocols in DIR that the same code has run with the same options and "
        "packages; the image experiments keep every finished fit",
    )
    run_parser.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="your own idx or npz files, for the image experiments",
    )
    run_parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="ROW",
        help="a row of the table, for the image experiments; may be repeated",
    )
    run_parser.add_argument(
        "--jobs",
        type=_positive,
        default=1,
        metavar="N",
        help="number of fits at a time, each on its own core, for the image experiments",
    )
    return run_parser


def _add_distributed(run_parser: Any) -> None:
    run_parser.add_argument(
        "--distributed",
        action="store_true",
        help="this is one of several processes of one run, started by srun or mpirun, or with "
        "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID set for each",
    )


def _add_report(commands: Any) -> None:
    report = commands.add_parser(
        "report",
        help="write a report of the results in a directory",
        description="Reads every DIR/NAME/metrics.json with its figures, and the output of\n"
        "`relbo fit` in DIR, and writes DIR/report.html, a page without further files.",
        epilog="Example:\n  relbo-paper report relbo-out\n\n"
        "Exit codes: 0 done, 1 failed, 2 wrong input.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    report.add_argument(
        "directory",
        type=Path,
        metavar="DIR",
        help="the directory of the results: the --out of relbo-paper run",
    )


def _positive(text: str) -> int:
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return number


def _list() -> int:
    begins = [f"{name:<14}{experiment.time:<8}" for name, experiment in EXPERIMENTS.items()]
    for begin, experiment in zip(begins, EXPERIMENTS.values(), strict=True):
        print(
            textwrap.fill(
                experiment.summary,
                width=80,
                initial_indent=begin,
                subsequent_indent=" " * len(begin),
                break_on_hyphens=False,
            )
        )
    print("\nTimes are for both protocols on two cores; with --quick it is minutes.")
    return DONE


def _run_all(arguments: argparse.Namespace, command: str) -> int:
    names = list(EXPERIMENTS) if "all" in arguments.names else arguments.names
    unknown = [name for name in arguments.names if name not in ("all", *EXPERIMENTS)]
    if unknown:
        return _complain(
            f"no experiment called {', '.join(unknown)}: expected one of "
            f"{', '.join(EXPERIMENTS)}"
        )
    given = {
        "--only": arguments.only,
        "--data-dir": arguments.data_dir,
        "--jobs": arguments.jobs > 1,
    }
    asked = [option for option, value in given.items() if value]
    plain = [name for name in names if not EXPERIMENTS[name].has_images]
    if asked and plain:
        return _complain(
            f"{asked[0]}: only for the image experiments, and {plain[0]} is not one of them"
        )
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return _complain(f"--out {arguments.out}: cannot be written to ({error.strerror})")
    if arguments.distributed and arguments.jobs > 1:
        return _complain(
            "--jobs: cannot be used with --distributed, where all processes work on one fit"
        )
    if arguments.distributed:
        from relbo.distributed import initialize

        try:
            initialize()
        except (ValueError, RuntimeError) as error:
            return _complain(f"--distributed: {error}")
    protocol = arguments.protocol
    options = Options(
        protocols=("paper", "sound") if protocol == "both" else (protocol,),
        quick=arguments.quick,
        num_seeds=arguments.seeds,
        command=command,
        resume=arguments.resume,
        data_dir=arguments.data_dir,
        only=tuple(arguments.only),
        num_jobs=arguments.jobs,
    )
    try:
        run = _run_together if arguments.distributed else _run
        return max([run(name, arguments.out / name, options) for name in dict.fromkeys(names)])
    except KeyboardInterrupt:
        print(f"relbo-paper: {_how_to_continue(arguments, command)}", file=sys.stderr)
        return FAILED


def _run_together(name: str, directory: Path, options: Options) -> int:
    """Runs an experiment as one of several processes."""
    from relbo_paper.harness.processes import leave, quiet_unless_first

    with quiet_unless_first(directory) as place:
        code = _run(name, place, options)
        if code == FAILED:
            leave()  # the other processes cannot continue without this one
        return code


def _run(name: str, directory: Path, options: Options) -> int:
    # Imported here, because it takes a moment in which Ctrl-C would show a traceback.
    from relbo_paper.harness.metrics import MetricsError

    start = time.perf_counter()
    expected = "minutes" if options.quick else EXPERIMENTS[name].time
    print(f"{name}: expect {expected}; Ctrl-C stops it, --resume continues", flush=True)
    try:
        outcome = importlib.import_module(EXPERIMENTS[name].module).run(directory, options)
    except MetricsError as error:
        return _complain(f"{error}; move the file, or choose another --out")
    except InputError as error:
        return _complain(f"{name}: {error}")
    except Exception:
        # A failed experiment does not stop the others.
        traceback.print_exc()
        print(f"relbo-paper: {name}: failed", file=sys.stderr)
        return FAILED
    print(f"\n{name}: done in {duration(time.perf_counter() - start)}")
    print(f"numbers: {outcome.metrics}")
    for figure in outcome.figures:
        if figure.suffix == ".png":
            print(f"figure: {figure} (and .svg)")
    print(f"a page of all results: relbo-paper report {shlex.quote(str(directory.parent))}")
    return DONE


def _report(directory: Path) -> int:
    from relbo_paper.report import ReportError, write_report

    try:
        page = write_report(directory)
    except ReportError as error:
        return _complain(f"report: {error}")
    except OSError as error:
        return _complain(f"report: {directory}: cannot be written to ({error.strerror})")
    print(f"report: {page}")
    return DONE


def _complain(message: str) -> int:
    print(f"relbo-paper: {message}", file=sys.stderr)
    return WRONG_INPUT


if __name__ == "__main__":
    sys.exit(main())
