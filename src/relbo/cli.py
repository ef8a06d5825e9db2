"""Parses the arguments of the `relbo` command."""

import argparse
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from relbo.commands import InputError, OutputError
from relbo.commands.interrupts import interruptible as interruptible

DONE, FAILED, WRONG_INPUT = 0, 1, 2


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command and returns its exit code: 0 done, 1 failed, 2 wrong input."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        arguments = vars(_parser().parse_args(argv))
    except SystemExit as stop:
        return int(stop.code or DONE)
    command = arguments.pop("command")
    interrupted = f"interrupted; to {_go_on(arguments)}: {shlex.join(['relbo', *argv])}"
    with interruptible(f"relbo: {command}: {interrupted}"):
        return _run(command, arguments, interrupted)


def _go_on(arguments: dict[str, Any]) -> str:
    """Says what the same command does: the training of a guide continues."""
    options = ("kernel", "refine_steps", "train_steps")
    has_guide = any(arguments.get(name) is not None for name in options)
    return "continue the training" if has_guide else "run it again"


def _run(command: str, arguments: dict[str, Any], interrupted: str) -> int:
    try:
        return _fit(arguments) if command == "fit" else _doctor()
    except InputError as error:
        return _complain(str(error), WRONG_INPUT)
    except OutputError as error:
        return _complain(str(error), FAILED)
    except KeyboardInterrupt:  # where the caller handles Ctrl-C
        return _complain(f"{command}: {interrupted}", FAILED)
    except Exception:
        traceback.print_exc()
        return _complain(f"{command}: failed", FAILED)


def _fit(arguments: dict[str, Any]) -> int:
    # Imported here, because the imports take seconds.
    from relbo.commands.fit import FitRequest, run_fit

    run_fit(FitRequest(**arguments))
    return DONE


def _doctor() -> int:
    from relbo.commands.doctor import run_doctor

    return DONE if run_doctor() else FAILED


def _complain(message: str, code: int) -> int:
    print(f"relbo: {message}", file=sys.stderr)
    return code


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
        description="Infers the posterior of a NumPyro model: writes it as NetCDF (for ArviZ)\n"
        "and npz, with a summary, figures and convergence diagnostics.",
        epilog="Example:\n"
        "  relbo fit examples/eight_schools.py:model --data examples/eight_schools.json\n\n"
        "Exit codes: 0 done, 1 failed, 2 wrong input.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    fit.add_argument(
        "target", type=_name, metavar="FILE.py:MODEL", help="the model, a function in a file"
    )
    fit.add_argument(
        "--data",
        type=_path,
        metavar="FILE",
        help="the model's arguments by name: a .json object, the arrays of an .npz or the "
        "columns of a .csv or .parquet; not needed if the model takes none",
    )
    number = {"metavar": "N", "help": "default: %(default)s"}
    fit.add_argument(
        "--draws", dest="num_draws", type=_integer(at_least=1), default=4000, **number
    )
    fit.add_argument("--seed", type=_integer(at_least=0, below=2**32), default=0, **number)
    fit.add_argument(
        "--out",
        type=_path,
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
        "By default the chains start from a normal fitted to the posterior. With any\n"
        "of these options they start from a trained guide with an embedded sampler\n"
        "(relbo.AutoRefined).",
    )
    guide.add_argument(
        "--kernel",
        choices=("underdamped", "sgld", "psgld"),
        help="the embedded sampler (default: underdamped)",
    )
    guide.add_argument(
        "--refine-steps",
        type=_integer(at_least=0),
        metavar="N",
        help="number of sampler steps (default: 8)",
    )
    guide.add_argument(
        "--train-steps",
        type=_integer(at_least=1),
        metavar="N",
        help="number of training iterations",
    )


def _integer(*, at_least: int, below: int = 2**63) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = at_least - 1
        if not at_least <= number < below:
            raise argparse.ArgumentTypeError(
                f"expected a whole number from {at_least} to {below - 1}, got {text[:40]!r}"
            )
        return number

    return parse


def _name(text: str) -> str:
    if "\0" in text:
        raise argparse.ArgumentTypeError(f"expected the name of a file, got {text!r}")
    return text


def _path(text: str) -> Path:
    return Path(_name(text))


if __name__ == "__main__":
    sys.exit(main())
