"""Every experiment's `metrics.json`: written, read and printed here."""

import hashlib
import json
import math
import subprocess
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from relbo._machine import describe_machine
from relbo.experiments import Options, Protocol

_PACKAGES = ("relbo", "jax", "jaxlib", "equinox", "optax", "numpyro", "numpy")


class Record(NamedTuple):
    """One number, and what one must know to read it."""

    experiment: str
    protocol: Protocol
    row: str
    metric: str
    value: float | None
    """`None` where the number was not finite."""
    stderr: float | None
    """Over seeds; `None` with one seed."""
    seeds: int
    estimator: str
    valid_bound: bool | None
    """Whether the number is a lower bound; `None` where that depends, or does not apply."""
    paper: float | None
    """The figure that the paper prints, never merged with ours."""
    seconds: float


class MetricsError(ValueError):
    """A file that should be a `metrics.json` is not."""


class Metrics(NamedTuple):
    """A `metrics.json` as read."""

    head: dict[str, Any]
    """What `begin_run` wrote of the last run; `runs` has it by protocol."""
    records: list[Record]


def mean_and_stderr(values: Sequence[float]) -> tuple[float | None, float | None]:
    """The mean over seeds and its standard error."""
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
    """The record of a number that each seed has found; without any it has no value."""
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
    """What is to be known of a run, read before it: the clone may move on meanwhile."""
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
    """Whether a run would only repeat the numbers of one before it."""
    decisive = ("quick", "num_seeds", "data_dir", "source", "versions")
    return all(name in before and before[name] == now[name] for name in decisive)


def write_metrics(path: Path, records: Iterable[Record], run: dict[str, Any]) -> Metrics:
    """Writes the `records` of a `run`, keeping those of the protocols that were not run now."""
    records = list(records)
    ran = {record.protocol for record in records}
    kept, runs = [], {}
    if path.exists():
        before = read_metrics(path)
        kept = [record for record in before.records if record.protocol not in ran]
        runs = {name: old for name, old in before.head["runs"].items() if name not in ran}
    # One file may hold two protocols that ran at different commits: each keeps its own head.
    head = {**run, "runs": {**runs, **dict.fromkeys(sorted(ran), run)}}
    metrics = Metrics(head, kept + records)
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(
        {**head, "records": [record._asdict() for record in metrics.records]},
        indent=2,
        allow_nan=False,
    )
    # A run that is stopped here leaves the old file, not half of a new one.
    draft = path.with_suffix(".json.tmp")
    draft.write_text(text + "\n")
    draft.replace(path)
    return metrics


def read_metrics(path: Path) -> Metrics:
    """Reads what `write_metrics` wrote."""
    try:
        head = json.loads(path.read_text())
        records = [_checked(Record(**record)) for record in head.pop("records")]
        if not all(isinstance(run, dict) for run in head["runs"].values()):
            raise TypeError("a run is no object")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MetricsError(f"{path}: not a metrics file of relbo ({error})") from error
    return Metrics(head, records)


def _checked(record: Record) -> Record:
    """A file may come from anywhere: what is read further on must be what it says it is."""
    for number in (record.value, record.stderr, record.paper):
        if not (number is None or isinstance(number, int | float)):
            raise TypeError(f"{number!r} is no number")
    for number in (record.seconds, record.seeds):
        if not isinstance(number, int | float):
            raise TypeError(f"{number!r} is no number")
    names = (record.experiment, record.protocol, record.row, record.metric, record.estimator)
    for text in names:
        if not isinstance(text, str):
            raise TypeError(f"{text!r} is no text")
    if not (record.valid_bound is None or isinstance(record.valid_bound, bool)):
        raise TypeError(f"{record.valid_bound!r} is neither true nor false")
    return record


def markdown_table(records: Iterable[Record]) -> str:
    """The records as a Markdown table that can be read as plain text too."""
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
    """The versions that a number may depend on."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def source_fingerprint() -> str:
    """Of relbo's own files: a commit misses what is not committed, and wheels have none."""
    package = Path(__file__).resolve().parents[1]
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def source_commit() -> str | None:
    """The commit that relbo runs from, with `-dirty` after it; `None` outside its clone."""
    here = Path(__file__).resolve()
    top = _git(here.parent, "rev-parse", "--show-toplevel")
    # An environment may lie inside somebody else's repository, whose commit says nothing.
    if top is None or here.parents[3] != Path(top).resolve():
        return None
    return _git(here.parent, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*")


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
