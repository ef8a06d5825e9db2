"""The `relbo` command: arguments only."""

import argparse
import importlib
import shlex
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from relbo._progress import duration
from relbo.experiments import EXPERIMENTS, InputError, Options
from relbo.experiments._metrics import MetricsError

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
    typed = shlex.join(["relbo", *argv])
    run = {
        "list": lambda: _list(),
        "fit": lambda: _fit(arguments),
        "reproduce": lambda: _reproduce(arguments, typed),
        "report": lambda: _report(arguments.directory),
        "doctor": lambda: _doctor(),
    }
    return run[arguments.command]()


def _parser() -> _Parser:
    parser = _Parser(
        prog="relbo",
        description="Variational inference with samplers inside.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong input.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("list", help="list the experiments")
    _add_fit(commands)
    _add_distributed(_add_reproduce(commands))
    _add_report(commands)
    commands.add_parser(
        "doctor",
        help="see whether everything works here",
        description="Says what is installed and whether a small compiled run works.",
        epilog="Exit codes: 0 all works, 1 something does not (and what to do).",
    )
    return parser


def _add_fit(commands: Any) -> None:
    fit = commands.add_parser(
        "fit",
        help="infer the posterior of a NumPyro model in a Python file",
        description="Infers the posterior of a NumPyro model: writes it as NetCDF (for ArviZ) "
        "and npz, with a summary and figures, and says whether to trust it.",
        epilog="Example: relbo fit examples/eight_schools.py:model "
        "--data examples/eight_schools.json. Exit codes: 0 done, 1 failed, 2 wrong input.",
    )
    fit.add_argument("target", metavar="FILE.py:MODEL", help="the model, a function in a file")
    fit.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="the model's arguments by name: a .json object, the arrays of an .npz or the "
        "columns of a .csv; not needed where the model takes none",
    )
    fit.add_argument(
        "--draws", type=_positive, default=4000, metavar="N", help="default: %(default)s"
    )
    fit.add_argument("--seed", type=_seed, default=0, metavar="N", help="default: %(default)s")
    fit.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where the results go (default: relbo-out/FILE)",
    )
    fit.add_argument(
        "--x64",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compute in float64 (default), since unscaled data lose too much in float32; "
        "--no-x64 is faster on large models",
    )
    guide = fit.add_argument_group(
        "a trained guide",
        "By default the chains start from a normal fitted to the posterior. With any of these "
        "they start from a guide with a sampler inside (relbo.AutoRefined), trained first.",
    )
    guide.add_argument(
        "--kernel",
        choices=("underdamped", "sgld", "psgld"),
        help="the sampler inside (default: underdamped)",
    )
    guide.add_argument(
        "--refine-steps", type=_not_negative, metavar="N", help="its steps (default: 8)"
    )
    guide.add_argument(
        "--train-steps", type=_positive, metavar="N", help="iterations of training"
    )


def _add_reproduce(commands: Any) -> Any:
    reproduce = commands.add_parser(
        "reproduce",
        help="run experiments of the paper and write their numbers and figures",
        description="Runs experiments; each writes DIR/NAME/metrics.json and its figures.",
        epilog="Example: relbo reproduce all --protocol both --resume. Ctrl-C stops; the same "
        "command with --resume goes on. Exit codes: 0 done, 1 failed, 2 wrong input.",
    )
    reproduce.add_argument(
        "names",
        nargs="+",
        metavar="NAME",
        help="an experiment, or all of them: " + ", ".join(["all", *EXPERIMENTS]),
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
    reproduce.add_argument(
        "--resume",
        action="store_true",
        help="keep what the same code has run in DIR with the same options and packages; the "
        "experiments on images keep every fit that is done",
    )
    reproduce.add_argument(
        "--data-dir",
        type=Path,
        metavar="DIR",
        help="idx or npz files of your own, for the experiments on images",
    )
    reproduce.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="ROW",
        help="a row of the table, for the experiments on images; may be repeated",
    )
    reproduce.add_argument(
        "--jobs",
        type=_positive,
        default=1,
        metavar="N",
        help="so many fits at once, each on a core of its own, for the experiments on images",
    )
    return reproduce


def _add_distributed(reproduce: Any) -> None:
    reproduce.add_argument(
        "--distributed",
        action="store_true",
        help="this is one of several processes of one run: started by srun or mpirun, or with "
        "JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID set for each",
    )


def _add_report(commands: Any) -> None:
    report = commands.add_parser(
        "report",
        help="make one page of the results in a directory",
        description="Reads every DIR/NAME/metrics.json, the figures beside it and what `relbo "
        "fit` left in DIR, and writes DIR/report.html: one page that needs nothing else.",
        epilog="Example: relbo report relbo-out. Exit codes: 0 done, 1 failed, 2 wrong input.",
    )
    report.add_argument(
        "directory",
        type=Path,
        metavar="DIR",
        help="where the results are: the --out of relbo reproduce",
    )


def _positive(text: str) -> int:
    return _at_least(1, text)


def _not_negative(text: str) -> int:
    return _at_least(0, text)


def _seed(text: str) -> int:
    number = _not_negative(text)
    if number >= 2**32:
        raise argparse.ArgumentTypeError(f"expected a number below 2^32, got {text!r}")
    return number


def _at_least(least: int, text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = least - 1
    if number < least:
        raise argparse.ArgumentTypeError(
            f"expected a whole number of at least {least}, got {text!r}"
        )
    return number


def _list() -> int:
    width = max(map(len, EXPERIMENTS))
    for name, experiment in EXPERIMENTS.items():
        print(f"{name:<{width}}  {experiment.summary}")
    return DONE


def _fit(arguments: argparse.Namespace) -> int:
    # Only those who fit wait for its imports.
    from relbo.commands import InputError
    from relbo.commands.fit import Request, run

    name = Path(arguments.target.rpartition(":")[0]).stem
    request = Request(
        target=arguments.target,
        data=arguments.data,
        out=arguments.out or Path("relbo-out") / name,
        kernel=arguments.kernel,
        refine_steps=arguments.refine_steps,
        train_steps=arguments.train_steps,
        num_draws=arguments.draws,
        seed=arguments.seed,
        x64=arguments.x64,
    )
    try:
        run(request)
    except InputError as error:
        return _complain(str(error))
    except KeyboardInterrupt:
        print("relbo: fit: interrupted", file=sys.stderr)
        return FAILED
    except Exception:
        traceback.print_exc()
        print("relbo: fit: failed", file=sys.stderr)
        return FAILED
    return DONE


def _reproduce(arguments: argparse.Namespace, command: str) -> int:
    names = list(EXPERIMENTS) if "all" in arguments.names else arguments.names
    unknown = [name for name in arguments.names if name not in ("all", *EXPERIMENTS)]
    if unknown:
        return _complain(
            f"no experiment called {', '.join(unknown)}: there is {', '.join(EXPERIMENTS)}"
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
            f"{asked[0]}: it is for the experiments on images, and {plain[0]} is none of them"
        )
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        return _complain(f"--out {arguments.out}: cannot be written to ({error.strerror})")
    if arguments.distributed and arguments.jobs > 1:
        return _complain("--jobs: with --distributed all processes work on one fit")
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
        again = command if arguments.resume else f"{command} --resume"
        print(f"relbo: interrupted; to go on: {again}", file=sys.stderr)
        return FAILED


def _run_together(name: str, directory: Path, options: Options) -> int:
    """Runs an experiment as one of several processes."""
    from relbo.distributed import leave, quiet_unless_first

    with quiet_unless_first(directory) as place:
        code = _run(name, place, options)
        if code == FAILED:
            leave()  # the others cannot go on to the next one without this one
        return code


def _run(name: str, directory: Path, options: Options) -> int:
    start = time.perf_counter()
    try:
        outcome = importlib.import_module(EXPERIMENTS[name].module).run(directory, options)
    except MetricsError as error:
        return _complain(f"{error}; move it away, or give another --out")
    except InputError as error:
        return _complain(f"{name}: {error}")
    except Exception:
        # One experiment that fails must not take the others of a long night with it.
        traceback.print_exc()
        print(f"relbo: {name}: failed", file=sys.stderr)
        return FAILED
    print(f"\n{name}: done in {duration(time.perf_counter() - start)}")
    print(f"numbers: {outcome.metrics}")
    for figure in outcome.figures:
        if figure.suffix == ".png":
            print(f"picture: {figure} (and .svg)")
    return DONE


def _report(directory: Path) -> int:
    from relbo.report import ReportError, write_report

    try:
        page = write_report(directory)
    except ReportError as error:
        return _complain(f"report: {error}")
    except OSError as error:
        return _complain(f"report: {directory}: cannot be written to ({error.strerror})")
    print(f"report: {page}")
    return DONE


def _doctor() -> int:
    from relbo.commands.doctor import run

    return DONE if run() else FAILED


def _complain(message: str) -> int:
    print(f"relbo: {message}", file=sys.stderr)
    return WRONG_INPUT


if __name__ == "__main__":
    sys.exit(main())
