"""Runs an experiment protocol by protocol, so that one that is stopped can be resumed."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from relbo.experiments import Options, Outcome, Protocol
from relbo.experiments._metrics import (
    Record,
    begin_run,
    is_same_run,
    markdown_table,
    read_metrics,
    write_metrics,
)

S = TypeVar("S", bound=Any)

RunProtocol = Callable[[Protocol], tuple[Iterable[Record], list[Path]]]
"""Runs one protocol: its records, and the figures that it wrote."""


def settings_for(options: Options, *, full: S, quick: S) -> S:
    """How much work is asked for; settings have a `num_seeds`."""
    settings = quick if options.quick else full
    if options.num_seeds is None:
        return settings
    return settings._replace(num_seeds=options.num_seeds)


def run_protocols(directory: Path, options: Options, run_protocol: RunProtocol) -> Outcome:
    """Runs the protocols asked for; the numbers of each are written as soon as they are there.

    Args:
        directory: where `metrics.json` goes; made if it is not there.
        options: with `resume`, protocols that the same code ran with the same options are kept.
        run_protocol: called once for each protocol that is not kept.
    """
    directory.mkdir(parents=True, exist_ok=True)
    metrics = directory / "metrics.json"
    # Read before the work: a file that is broken is better known now than when it is written.
    earlier = read_metrics(metrics).head["runs"] if metrics.exists() else {}
    this_run = begin_run(options)
    kept = {p for p, run in earlier.items() if options.resume and is_same_run(run, this_run)}
    figures: list[Path] = []
    for protocol in options.protocols:
        if protocol in kept:
            print(f"{directory.name}, {protocol}: done before, kept", flush=True)
            figures += _figures_of(directory, protocol)
            continue
        records, new_figures = run_protocol(protocol)
        written = write_metrics(metrics, records, this_run).records
        print(markdown_table(record for record in written if record.protocol == protocol))
        figures += new_figures
    return Outcome(metrics, tuple(figures))


def _figures_of(directory: Path, protocol: Protocol) -> list[Path]:
    return sorted(directory.glob(f"{protocol}_*.png"))
