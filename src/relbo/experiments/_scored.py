"""Forecasts that are scored: rows of several metrics, each with a number a seed or a window."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from relbo._progress import Done, counted
from relbo.experiments import Options, Outcome, Protocol
from relbo.experiments._metrics import Record, over_seeds
from relbo.experiments._run import run_protocols


class Scored(NamedTuple):
    """One row of the table."""

    row: str
    scores: dict[str, list[float]]
    """One a seed or a window."""
    estimator: str
    seconds: float
    paper: dict[str, float]


Run = Callable[[Done], tuple[list[Scored], list[Path]]]
"""Runs a protocol: its rows, and the figures that it wrote."""


def run_scored(
    experiment: str,
    directory: Path,
    options: Options,
    runs: Mapping[Protocol, Run],
    num_rows: Mapping[Protocol, int],
) -> Outcome:
    """Runs the protocols asked for, with a bar that counts their rows."""

    def run_protocol(protocol: Protocol) -> tuple[list[Record], list[Path]]:
        with counted(f"{experiment}, {protocol}", num_rows[protocol]) as done:
            scored, figures = runs[protocol](done)
        return [r for each in scored for r in records_of(experiment, protocol, each)], figures

    return run_protocols(directory, options, run_protocol)


def records_of(experiment: str, protocol: Protocol, scored: Scored) -> list[Record]:
    return [
        over_seeds(
            values,
            experiment=experiment,
            protocol=protocol,
            row=scored.row,
            metric=metric,
            estimator=scored.estimator,
            seconds=scored.seconds,
            paper=scored.paper.get(metric),
        )
        for metric, values in scored.scores.items()
    ]
