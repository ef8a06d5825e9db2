"""Parses the arguments of the `relbo` command."""

import argparse
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

DONE, FAILED, WRONG_INPUT = 0, 1, 2


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code: 0 done, 1 failed, 2 wrong input."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        arguments = _parser().parse_args(argv)
    except SystemExit as stop:
        return int(stop.code or DONE)
    return _fit(arguments) if arguments.command == "fit" else _doctor()


def _parser() -> _Parser:
    parser = _Parser(
        prog="relbo",
        description="Variational inference with samplers inside.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong input.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_fit(commands)
    commands.add_parser(
        "doctor",
        help="check the installation",
        description="Prints the installed versions and checks that a small compiled run works.",
        epilog="Exit codes: 0 everything works, 1 a check fails (with advice).",
    )
    return parser


def _add_fit(commands: Any) -> None:
    fit = commands.add_parser(
        "fit",
        help="infer the posterior of a NumPyro model in a Python file",
        description="Infers the posterior of a NumPyro model: writes it as NetCDF (for ArviZ) "
        "and npz, with a summary, figures and convergence diagnostics.",
        epilog="Example: relbo fit examples/eight_schools.py:model "
        "--data examples/eight_schools.json. Exit codes: 0 done, 1 failed, 2 wrong input.",
    )
    fit.add_argument("target", metavar="FILE.py:MODEL", help="the model, a function in a file")
    fit.add_argument(
        "--data",
        type=Path,
        metavar="FILE",
        help="the model's arguments by name: a .json object, the arrays of an .npz or the "
        "columns of a .csv; not needed if the model takes none",
    )
    fit.add_argument(
        "--draws", type=_positive, default=4000, metavar="N", help="default: %(default)s"
    )
    fit.add_argument("--seed", type=_seed, default=0, metavar="N", help="default: %(default)s")
    fit.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="directory for the results (default: relbo-out/FILE)",
    )
    fit.add_argument(
        "--x64",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="compute in float64 (default), since unscaled data lose precision in float32; "
        "--no-x64 is faster on large models",
    )
    guide = fit.add_argument_group(
        "a trained guide",
        "By default the chains start from a normal fitted to the posterior. With any of these "
        "options they start from a trained guide with an embedded sampler (relbo.AutoRefined).",
    )
    guide.add_argument(
        "--kernel",
        choices=("underdamped", "sgld", "psgld"),
        help="the embedded sampler (default: underdamped)",
    )
    guide.add_argument(
        "--refine-steps",
        type=_not_negative,
        metavar="N",
        help="number of sampler steps (default: 8)",
    )
    guide.add_argument(
        "--train-steps", type=_positive, metavar="N", help="number of training iterations"
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


def _fit(arguments: argparse.Namespace) -> int:
    # Imported here, because the imports take seconds.
    from relbo.commands import InputError
    from relbo.commands.fit import FitRequest, run_fit

    name = Path(arguments.target.rpartition(":")[0]).stem
    request = FitRequest(
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
        run_fit(request)
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


def _doctor() -> int:
    from relbo.commands.doctor import run_doctor

    return DONE if run_doctor() else FAILED


def _complain(message: str) -> int:
    print(f"relbo: {message}", file=sys.stderr)
    return WRONG_INPUT


if __name__ == "__main__":
    sys.exit(main())
