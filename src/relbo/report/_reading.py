"""What a directory of results holds."""

import importlib
from pathlib import Path
from typing import NamedTuple

from relbo.experiments import EXPERIMENTS
from relbo.experiments._metrics import Metrics, MetricsError, read_metrics
from relbo.experiments._story import Claim, Numbers, Story


class ReportError(ValueError):
    """There is nothing to report, or it cannot be read."""


class Figure(NamedTuple):
    """An SVG file and what is to be seen in it."""

    path: Path
    text: str


class Ran(NamedTuple):
    """An experiment that was run."""

    name: str
    summary: str
    metrics: Metrics
    story: Story | None
    figures: list[Figure]

    @property
    def claims(self) -> list[Claim]:
        if self.story is None:
            return []
        return list(self.story.claims(Numbers(self.metrics.records)))


class Missing(NamedTuple):
    """An experiment that was not run."""

    name: str
    summary: str
    claims: list[Claim]


class Fitted(NamedTuple):
    """What `relbo fit` left."""

    name: str
    summary: str
    figures: list[Figure]


class Results(NamedTuple):
    """Everything in a directory."""

    directory: Path
    ran: list[Ran]
    missing: list[Missing]
    fitted: list[Fitted]


_FIT_FIGURES = {
    "trace": "Each parameter's draws: histogram, median and 90 % interval, and the chains",
    "rank": "How the ranks of the draws spread over groups of chains; even if these agree",
    "pair": "Scatter plots and correlations of pairs of parameters",
}


def read_results(directory: Path) -> Results:
    """Reads every experiment and every fit in `directory`.

    Raises:
        ReportError: where there is no such directory, nothing in it, or a broken file.
    """
    if not directory.is_dir():
        raise ReportError(f"{directory}: no such directory")
    ran = [_read_experiment(path.parent) for path in sorted(directory.glob("*/metrics.json"))]
    fitted = [_read_fit(path.parent) for path in sorted(directory.glob("*/summary.txt"))]
    if not ran and not fitted:
        raise ReportError(f"{directory}: {_why_nothing(directory)}")
    order = list(EXPERIMENTS)
    ran.sort(key=lambda each: order.index(each.name) if each.name in order else len(order))
    present = {each.name for each in ran}
    missing = [_missing(name) for name in EXPERIMENTS if name not in present]
    return Results(directory, ran, missing, fitted)


def _why_nothing(directory: Path) -> str:
    if (directory / "metrics.json").exists() or (directory / "summary.txt").exists():
        return "the results of one run: give the directory above it"
    return "no results (no */metrics.json of relbo reproduce, no */summary.txt of relbo fit)"


def _read_experiment(directory: Path) -> Ran:
    try:
        metrics = read_metrics(directory / "metrics.json")
    except MetricsError as error:
        raise ReportError(str(error)) from error
    name = metrics.records[0].experiment if metrics.records else directory.name
    story = _story(name)
    texts = {} if story is None else story.figures
    figures = [
        Figure(path, texts.get(path.stem, path.stem.replace("_", " ")))
        for path in sorted(directory.glob("*.svg"))
    ]
    summary = EXPERIMENTS[name].summary if name in EXPERIMENTS else ""
    return Ran(name, summary, metrics, story, figures)


def _read_fit(directory: Path) -> Fitted:
    try:
        summary = (directory / "summary.txt").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ReportError(f"{directory / 'summary.txt'}: cannot be read ({error})") from error
    paths = {stem: directory / f"{stem}.svg" for stem in _FIT_FIGURES}
    figures = [Figure(path, _FIT_FIGURES[s]) for s, path in paths.items() if path.exists()]
    return Fitted(directory.name, summary, figures)


def _missing(name: str) -> Missing:
    story = _story(name)
    claims = [] if story is None else list(story.claims(Numbers([])))
    return Missing(name, EXPERIMENTS[name].summary, claims)


def _story(name: str) -> Story | None:
    """The story beside an experiment; results of one that is not known here have none."""
    if name not in EXPERIMENTS:
        return None
    return getattr(importlib.import_module(EXPERIMENTS[name].module), "STORY", None)
