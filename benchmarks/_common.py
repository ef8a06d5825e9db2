"""What the benchmarks share: options, the folder of data, and files of results."""

import argparse
import datetime
import json
import math
import sys
from pathlib import Path
from typing import Any

import jax

from relbo_paper.harness.machine import describe_machine
from relbo_paper.harness.metrics import package_versions, source_commit

RESULTS_DIR = Path(__file__).parent / "results"


def argument_parser(doc: str | None) -> argparse.ArgumentParser:
    """Returns a parser that shows the docstring of a script as its help."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="a short, rough run that writes no file"
    )
    return parser


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=None,
        help="folder with targets/ionosphere.npz, targets/seeds.json and "
        "targets/brownian.json (the data are not part of the package)",
    )


def data_dir(args: argparse.Namespace, parser: argparse.ArgumentParser) -> Path:
    """Returns the folder of the option; without it, exits with an error message."""
    if args.data_dir is None:
        parser.error("--data-dir is needed: the data of the densities are not in the package")
    if not (args.data_dir / "targets").is_dir():
        parser.error(f"--data-dir: there is no folder 'targets' in {args.data_dir}")
    return args.data_dir


def write_results(name: str, results: Any, *, quick: bool, seconds: float) -> None:
    """Writes `results` with a description of the run; a quick run writes no file."""
    if quick:
        print("(a quick run writes no file)")
        return
    record = {
        "benchmark": name,
        "date": TODAY,
        "command": _command(),
        "seconds": round(seconds, 1),
        "commit": COMMIT,
        "versions": package_versions(),
        "machine": {**describe_machine(), "backend": jax.default_backend()},
        "results": results,
    }
    RESULTS_DIR.mkdir(exist_ok=True)
    file = RESULTS_DIR / f"{name}-{TODAY}.json"
    file.write_text(json.dumps(_strict(record), indent=1, allow_nan=False) + "\n")
    print(f"wrote benchmarks/results/{file.name}")


def _strict(value: Any) -> Any:
    """Replaces numbers that are not finite, which JSON does not have, by strings."""
    if isinstance(value, dict):
        return {name: _strict(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def _command() -> str:
    """Returns the command, without the path of the data folder."""
    words = ["python", f"benchmarks/{Path(sys.argv[0]).name}"]
    hide_next = False
    for word in sys.argv[1:]:
        name, equals, _ = word.partition("=")
        if hide_next:
            words.append("DIR")
        elif name == "--data-dir" and equals:
            words.append("--data-dir=DIR")
        else:
            words.append(word)
        hide_next = word == "--data-dir"
    return " ".join(words)


# Read at the start of a run, because both may change during a long one.
TODAY = datetime.date.today().isoformat()
COMMIT = source_commit()
