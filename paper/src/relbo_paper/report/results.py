"""Reads a directory of results: experiments of the paper and posteriors of `relbo fit`."""

import base64
import importlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from relbo_paper.harness.claims import Claim, ExperimentClaims, Numbers
from relbo_paper.harness.experiments import EXPERIMENTS
from relbo_paper.harness.metrics import MetricsError, Record, read_metrics

_PROTOCOL_TITLES = {
    "sound": "Sound protocol: without the flaws of the published procedure",
    "paper": "Protocol of the paper: as published",
}
_FIT_CAPTIONS = {
    "trace": "Marginal distributions and traces of a few parameters, for up to four chains",
    "rank": "Ranks of the draws in groups of chains; uniform in every group after convergence",
    "pair": "Scatter plots of pairs of parameters",
}
_PIXELS_PER_POINT = 4 / 3


class ReportError(ValueError):
    """The directory has no results, or a file in it cannot be read."""


class ReportedFigure(NamedTuple):
    """An SVG file as a data URI."""

    stem: str
    caption: str
    source: str
    width: int | None
    """In pixels; lets the browser reserve the space before it has decoded the image."""
    height: int | None


class ReportedProtocol(NamedTuple):
    """The numbers and figures of one protocol of an experiment."""

    name: str
    title: str
    is_quick: bool
    records: list[Record]
    figures: list[ReportedFigure]

    @property
    def estimators(self) -> list[str]:
        """Distinct estimators. They are long and shared, so the table refers to them."""
        return list(dict.fromkeys(record.estimator for record in self.records))


class ReportedExperiment(NamedTuple):
    """An experiment with its claims; without protocols if it was not run."""

    name: str
    question: str
    claims: list[Claim]
    protocols: Sequence[ReportedProtocol] = ()
    figures: Sequence[ReportedFigure] = ()
    """Figures that belong to no single protocol."""
    runs: Mapping[str, dict[str, Any]] = MappingProxyType({})
    """The head of `metrics.json`, by protocol."""


class ReportedFit(NamedTuple):
    """The summary and the figures of a posterior written by `relbo fit`."""

    name: str
    summary: str
    figures: list[ReportedFigure]


class Results(NamedTuple):
    """Everything in a directory, and the experiments that are not in it."""

    fits: list[ReportedFit]
    experiments: list[ReportedExperiment]
    not_run: list[ReportedExperiment]


def read_results(directory: Path) -> Results:
    """Reads every experiment and every fit in `directory`.

    Raises:
        ReportError: if the directory does not exist, has no results, or a file is broken.
    """
    if not directory.is_dir():
        raise ReportError(f"{directory}: no such directory")
    found = [_read_experiment(path.parent) for path in directory.glob("*/metrics.json")]
    fits = [_read_fit(path.parent) for path in sorted(directory.glob("*/summary.txt"))]
    if not found and not fits:
        raise ReportError(f"{directory}: {_why_nothing(directory)}")
    order = {name: place for place, name in enumerate(EXPERIMENTS)}
    found.sort(key=lambda each: (order.get(each.name, len(order)), each.name))
    names = {each.name for each in found}
    not_run = [_without_results(name) for name in EXPERIMENTS if name not in names]
    return Results(fits, found, not_run)


def is_quick(run: dict[str, Any]) -> bool:
    return bool(run.get("quick", "--quick" in str(run.get("command", "")).split()))


def _why_nothing(directory: Path) -> str:
    if (directory / "metrics.json").exists() or (directory / "summary.txt").exists():
        return "holds the results of one run: give the directory above it"
    return "no results (no */metrics.json of relbo-paper run, no */summary.txt of relbo fit)"


def _read_experiment(directory: Path) -> ReportedExperiment:
    try:
        metrics = read_metrics(directory / "metrics.json")
    except MetricsError as error:
        raise ReportError(str(error)) from error
    records, runs = metrics.records, metrics.head["runs"]
    name = records[0].experiment if records else directory.name
    claims = _claims_of(name)
    captions = {} if claims is None else claims.figures
    figures = [_read_figure(path, captions) for path in sorted(directory.glob("*.svg"))]
    present = dict.fromkeys(record.protocol for record in records)
    known = [protocol for protocol in _PROTOCOL_TITLES if protocol in present]
    protocols = [
        ReportedProtocol(
            protocol,
            _PROTOCOL_TITLES.get(protocol, protocol),
            is_quick(runs.get(protocol, {})),
            [record for record in records if record.protocol == protocol],
            [figure for figure in figures if figure.stem.startswith(f"{protocol}_")],
        )
        for protocol in dict.fromkeys([*known, *present])
    ]
    shared = [f for f in figures if not f.stem.startswith(tuple(f"{p}_" for p in present))]
    return ReportedExperiment(
        name, _question(name, claims), _claims(claims, records), protocols, shared, runs
    )


def _without_results(name: str) -> ReportedExperiment:
    claims = _claims_of(name)
    return ReportedExperiment(name, _question(name, claims), _claims(claims, []))


def _claims_of(name: str) -> ExperimentClaims | None:
    """The claims of an experiment; `None` for results of an unknown experiment."""
    if name not in EXPERIMENTS:
        return None
    return getattr(importlib.import_module(EXPERIMENTS[name].module), "CLAIMS", None)


def _question(name: str, claims: ExperimentClaims | None) -> str:
    if claims is not None:
        return claims.question
    return EXPERIMENTS[name].summary if name in EXPERIMENTS else ""


def _claims(claims: ExperimentClaims | None, records: list[Record]) -> list[Claim]:
    return [] if claims is None else list(claims.claims(Numbers(records)))


def _read_fit(directory: Path) -> ReportedFit:
    paths = [directory / f"{stem}.svg" for stem in _FIT_CAPTIONS]
    figures = [_read_figure(path, _FIT_CAPTIONS) for path in paths if path.exists()]
    return ReportedFit(directory.name, _read_text(directory / "summary.txt"), figures)


def _read_figure(path: Path, captions: Any) -> ReportedFigure:
    """Reads a figure as an image of its own, not as part of the page.

    matplotlib uses the same identifiers in every file, and an image runs no script.
    """
    svg = _read_text(path)
    encoded = base64.b64encode(svg.encode()).decode()
    box = re.search(r'viewBox="[\d.\-]+ [\d.\-]+ ([\d.]+) ([\d.]+)"', svg[:2000])
    width, height = (
        (None, None)
        if box is None
        else (round(float(side) * _PIXELS_PER_POINT) for side in box.groups())
    )
    caption = captions.get(path.stem, path.stem.replace("_", " "))
    return ReportedFigure(
        path.stem, caption, f"data:image/svg+xml;base64,{encoded}", width, height
    )


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{path}: cannot be read ({error})") from error
