"""Writes, reads and prints the `metrics.json` of every experiment."""

import hashlib
import json
import math
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from relbo_paper.harness.experiments import Options, Protocol
from relbo_paper.harness.machine import describe_machine

_PACKAGES = ("relbo", "relbo-paper", "jax", "jaxlib", "equinox", "optax", "numpyro", "numpy")


class Record(NamedTuple):
    """A number with everything that is needed to interpret it."""

    experiment: str
    protocol: Protocol
    row: str
    metric: str
    value: float | None
    """`None` if the number is not finite."""
    stderr: float | None
    """The standard error over seeds; `None` with one seed."""
    seeds: int
    estimator: str
    valid_bound: bool | None
    """Whether the number is a lower bound; `None` if unknown or not applicable."""
    paper: float | None
    """The paper's figure, which is never merged with ours."""
    seconds: float


class MetricsError(ValueError):
    """A file that is not a valid `metrics.json`."""


class Metrics(NamedTuple):
    """The content of a `metrics.json`."""

    head: dict[str, Any]
    """The description of the last run by `begin_run`; `runs` has one per protocol."""
    records: list[Record]


def mean_and_stderr(values: Sequence[float]) -> tuple[float | None, float | None]:
    """Returns the mean over seeds and its standard error; `None` if not finite."""
    number = len(values)
    mean = math.fsum(values) / number if all(map(math.isfinite, values)) else math.nan
    if not math.isfinite(mean):
        return None, None
    if number == 1:
        return mean, None
    variance = math.fsum((value - mean) ** 2 for value in values) / (number - 1)
    return mean, math.sqrt(variance / number)


def over_seeds(
    values: Iterable[float],
    *,
    experiment: str,
    protocol: Protocol,
    row: str,
    metric: str,
    estimator: str,
    seconds: float,
    valid_bound: bool | None = None,
    paper: float | None = None,
) -> Record:
    """Returns the record of the mean over seeds; without values it has no value."""
    values = [float(each) for each in values]
    value, stderr = mean_and_stderr(values) if values else (None, None)
    return Record(
        experiment=experiment,
        protocol=protocol,
        row=row,
        metric=metric,
        value=value,
        stderr=stderr,
        seeds=len(values),
        estimator=estimator,
        valid_bound=valid_bound,
        paper=paper,
        seconds=round(seconds, 2),
    )


def begin_run(options: Options) -> dict[str, Any]:
    """Describes a run at its beginning, because the clone may change during the run."""
    return {
        "command": options.command,
        "commit": source_commit(),
        "versions": package_versions(),
        "machine": describe_machine(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "quick": options.quick,
        "num_seeds": options.num_seeds,
        "data_dir": None if options.data_dir is None else str(options.data_dir),
        "source": source_fingerprint(),
    }


def is_same_run(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Returns whether a run would only repeat the numbers of an earlier one."""
    decisive = ("quick", "num_seeds", "data_dir", "source", "versions")
    return all(name in before and before[name] == now[name] for name in decisive)


def write_metrics(path: Path, records: Iterable[Record], run: dict[str, Any]) -> Metrics:
    """Writes the records of a run, keeping the records of the other protocols."""
    records = list(records)
    ran = {record.protocol for record in records}
    kept, runs = [], {}
    if path.exists():
        before = read_metrics(path)
        kept = [record for record in before.records if record.protocol not in ran]
        runs = {name: old for name, old in before.head["runs"].items() if name not in ran}
    # The protocols of one file may have run at different commits: each keeps its own head.
    head = {**run, "runs": {**runs, **dict.fromkeys(sorted(ran), run)}}
    metrics = Metrics(head, kept + records)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(
        {**head, "records": [record._asdict() for record in metrics.records]},
        indent=2,
        allow_nan=False,
    )
    # An interrupt leaves the old file, not half of a new one.
    draft = path.with_suffix(".json.tmp")
    draft.write_text(text + "\n")
    draft.replace(path)
    return metrics


def read_metrics(path: Path) -> Metrics:
    """Reads a file that `write_metrics` wrote."""
    try:
        head = json.loads(path.read_text())
        records = [_checked(Record(**record)) for record in head.pop("records")]
        if not all(isinstance(run, dict) for run in head["runs"].values()):
            raise TypeError("a run is not an object")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetricsError(f"{path}: not a metrics file of relbo-paper ({error})") from error
    return Metrics(head, records)


def _checked(record: Record) -> Record:
    """Checks the types of the fields, because a file may come from anywhere."""
    for number in (record.value, record.stderr, record.paper):
        if not (number is None or isinstance(number, int | float)):
            raise TypeError(f"{number!r} is not a number")
    for number in (record.seconds, record.seeds):
        if not isinstance(number, int | float):
            raise TypeError(f"{number!r} is not a number")
    names = (record.experiment, record.protocol, record.row, record.metric, record.estimator)
    for text in names:
        if not isinstance(text, str):
            raise TypeError(f"{text!r} is not a text")
    if not (record.valid_bound is None or isinstance(record.valid_bound, bool)):
        raise TypeError(f"{record.valid_bound!r} is neither true nor false")
    return record


def markdown_table(records: Iterable[Record]) -> str:
    """Formats the records as an aligned Markdown table."""
    header = ("protocol", "row", "metric", "value", "paper", "lower bound?")
    rows = [header] + [
        (
            record.protocol,
            record.row,
            record.metric,
            _value(record),
            "" if record.paper is None else f"{record.paper:.3f}",
            {True: "yes", False: "no", None: "-"}[record.valid_bound],
        )
        for record in records
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header))]
    lines = [_line(row, widths) for row in rows]
    return "\n".join([lines[0], _line(["-" * width for width in widths], widths), *lines[1:]])


def package_versions() -> dict[str, str]:
    """Returns the versions of the packages that a number may depend on."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def source_fingerprint() -> str:
    """Returns a hash of the source files of relbo and relbo_paper.

    A commit does not show uncommitted changes, and a wheel has no commit.
    """
    digest = hashlib.sha256()
    for package in (_package("relbo"), _package("relbo_paper")):
        for path in sorted(package.rglob("*.py")):
            digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def source_commit() -> str | None:
    """Returns the commit of the clone, with `-dirty` if changed; `None` outside a clone."""
    package = _package("relbo_paper")
    top = _git(package, "rev-parse", "--show-toplevel")
    # An environment may lie inside another repository, whose commit says nothing about ours.
    if top is None or package != Path(top).resolve() / "paper" / "src" / "relbo_paper":
        return None
    return _git(package, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


def _package(name: str) -> Path:
    (location,) = import_module(name).__path__
    return Path(location).resolve()


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *arguments],
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _value(record: Record) -> str:
    if record.value is None:
        return "not finite"
    if record.stderr is None:
        return f"{record.value:.3f}"
    return f"{record.value:.3f} ± {record.stderr:.3f}"


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = (cell.ljust(width) for cell, width in zip(cells, widths, strict=True))
    return "| " + " | ".join(padded) + " |"
