"""What every benchmark needs: where the data is, what the machine is, where results go."""

import argparse
import datetime
import json
import math
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import equinox
import jax
import numpy
import optax

import relbo

RESULTS_DIR = Path(__file__).parent / "results"


def argument_parser(doc: str | None) -> argparse.ArgumentParser:
    """A parser that shows a script's whole docstring as its help."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="a short, loose run; no file")
    return parser


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-dir",
        type=Path,
        default=None,
        help="folder that holds targets/ionosphere.npz, targets/seeds.json and "
        "targets/brownian.json (the data is not shipped with the package)",
    )


def data_dir(args: argparse.Namespace, parser: argparse.ArgumentParser) -> Path:
    """The folder of the option, or a clear error and the end of the program."""
    if args.data_dir is None:
        parser.error("--data-dir is needed: the data of the densities is not shipped")
    if not (args.data_dir / "targets").is_dir():
        parser.error(f"--data-dir: there is no folder 'targets' in {args.data_dir}")
    return args.data_dir


def write_results(name: str, results: Any, *, quick: bool, seconds: float) -> None:
    """Writes `results` with what is needed to judge them; a quick run leaves no file."""
    if quick:
        print("(a quick run: nothing is written)")
        return
    record = {
        "benchmark": name,
        "date": TODAY,
        "command": _command(),
        "seconds": round(seconds, 1),
        "machine": describe_machine(),
        "results": results,
    }
    RESULTS_DIR.mkdir(exist_ok=True)
    file = RESULTS_DIR / f"{name}-{TODAY}.json"
    file.write_text(json.dumps(_strict(record), indent=1, allow_nan=False) + "\n")
    print(f"wrote benchmarks/results/{file.name}")


def _strict(value: Any) -> Any:
    """JSON has no infinities: a run that failed is written as the string that says so."""
    if isinstance(value, dict):
        return {name: _strict(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_strict(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def describe_machine() -> dict[str, Any]:
    """Processor, cores, versions and commit: no path and no host name."""
    return {
        "cpu": _cpu_model(),
        "cores": len(jax.devices()) if jax.default_backend() != "cpu" else _num_cores(),
        "backend": jax.default_backend(),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "equinox": equinox.__version__,
        "optax": optax.__version__,
        "numpy": numpy.__version__,
        "relbo": relbo.__version__,
        "commit": COMMIT,
    }


def _command() -> str:
    """The command with the data folder's own name left out: it says where a disk is mounted."""
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


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _num_cores() -> int | None:
    # What this process may use, which taskset or a container makes fewer than there are.
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def _commit() -> str | None:
    """The commit of the checkout, with a mark where src/ differs from it."""
    here = Path(__file__).parent
    try:
        head = _git(here, "rev-parse", "--short", "HEAD")
        changed = _git(here, "status", "--porcelain", "--", "../src")
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{head}+changes in src" if changed else head


def _git(folder: Path, *words: str) -> str:
    done = subprocess.run(
        ["git", *words], cwd=folder, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


# Of the start of the run, when the source was read: a long run may see both change.
TODAY = datetime.date.today().isoformat()
COMMIT = _commit()
