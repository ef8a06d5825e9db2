"""Runs an experiment one protocol at a time, so that an interrupted run can be resumed."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from relbo_paper.harness.experiments import Options, Outcome, Protocol
from relbo_paper.harness.metrics import (
    Record,
    begin_run,
    is_same_run,
    markdown_table,
    over_seeds,
    read_metrics,
    write_metrics,
)
from relbo_paper.harness.progress import Done, counted

S = TypeVar("S", bound=Any)

RunProtocol = Callable[[Protocol], tuple[Iterable[Record], list[Path]]]
"""Runs one protocol and returns its records and the figures that it wrote."""


def settings_for(options: Options, *, full: S, quick: S) -> S:
    """Returns the settings that the options choose; settings have a field `num_seeds`."""
    settings = quick if options.quick else full
    if options.num_seeds is None:
        return settings
    return settings._replace(num_seeds=options.num_seeds)


def run_protocols(directory: Path, options: Options, run_protocol: RunProtocol) -> Outcome:
    """Runs the requested protocols and writes the numbers of each as soon as it is done.

    Args:
        directory: the directory of `metrics.json`; created if it does not exist.
        options: with `resume`, protocols that the same code ran with the same options are kept.
        run_protocol: called once for each protocol that is not kept.
    """
    directory.mkdir(parents=True, exist_ok=True)
    metrics = directory / "metrics.json"
    # Read before the work, so that a broken file is reported now and not after hours.
    earlier = read_metrics(metrics).head["runs"] if metrics.exists() else {}
    this_run = begin_run(options)
    kept = {p for p, run in earlier.items() if options.resume and is_same_run(run, this_run)}
    figures: list[Path] = []
    for protocol in options.protocols:
        if protocol in kept:
            print(f"{directory.name}, {protocol}: kept from an earlier run", flush=True)
            figures += sorted(directory.glob(f"{protocol}_*.png"))
            continue
        records, new_figures = run_protocol(protocol)
        written = write_metrics(metrics, records, this_run).records
        print(markdown_table(record for record in written if record.protocol == protocol))
        figures += new_figures
    return Outcome(metrics, tuple(figures))


class ScoredRow(NamedTuple):
    """A row of a table with several metrics."""

    row: str
    scores: dict[str, list[float]]
    """The values of each metric, one per seed or per window."""
    estimator: str
    seconds: float
    paper: dict[str, float]
    """The paper's figures by metric."""


RunScored = Callable[[Done], tuple[list[ScoredRow], list[Path]]]
"""Runs one protocol and returns its rows and the figures that it wrote."""


def run_scored(
    experiment: str,
    directory: Path,
    options: Options,
    runs: Mapping[Protocol, RunScored],
    num_rows: Mapping[Protocol, int],
) -> Outcome:
    """Runs the requested protocols with a progress bar over their rows."""

    def run_protocol(protocol: Protocol) -> tuple[list[Record], list[Path]]:
        with counted(f"{experiment}, {protocol}", num_rows[protocol]) as done:
            rows, figures = runs[protocol](done)
        return [r for row in rows for r in records_of(experiment, protocol, row)], figures

    return run_protocols(directory, options, run_protocol)


def records_of(experiment: str, protocol: Protocol, row: ScoredRow) -> list[Record]:
    """Returns one record for each metric of a row."""
    return [
        over_seeds(
            values,
            experiment=experiment,
            protocol=protocol,
            row=row.row,
            metric=metric,
            estimator=row.estimator,
            seconds=row.seconds,
            paper=row.paper.get(metric),
        )
        for metric, values in row.scores.items()
    ]
