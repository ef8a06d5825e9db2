"""The claims about the forecasts of carbon dioxide."""

from relbo_paper.harness.claims import (
    Claim,
    Comparison,
    ExperimentClaims,
    Numbers,
    Question,
    compare,
    format_record,
    not_run,
)
from relbo_paper.harness.experiments import Protocol

PAPER_UNIT = 25.6
"""The standard deviation in ppm of the paper's whole series, in whose units it reports."""

_TASK: tuple[Question, ...] = ("Q1", "Q3")
_SCORES = ("MAE", "interval score")


def _equal_time(numbers: Numbers) -> Claim:
    text = "After equal time, a model trained with one step forecasts better than without."
    found = _scores(numbers, "paper", "T=1", "T=0")
    if not found:
        return not_run(text, _TASK, "paper")
    holds = all(score.is_clear for score in found.values())
    why = f"In units of {PAPER_UNIT} ppm: {_words(found)}. Neither has converged by then."
    return Claim(text, "reproduced" if holds else "not confirmed", why, _TASK)


def _in_ppm(numbers: Numbers) -> Claim:
    text = (
        "With the scales integrated out, the forecast of this window beats the published one."
    )
    ours = numbers.first("sound", "posterior, paper's window", "MAE")
    published = [r.paper for r in numbers.all("paper", metric="MAE") if r.paper is not None]
    if ours is None or ours.value is None:
        return not_run(text, protocol="sound")
    if not published:
        return not_run(text, protocol="paper")
    theirs = min(published) * PAPER_UNIT
    why = (
        f"MAE {format_record(ours)} ppm; the paper's best is {min(published)} units, "
        f"{theirs:.1f} ppm."
    )
    return Claim(text, "better" if ours.value < theirs else "not confirmed", why)


def _against_statsmodels(numbers: Numbers) -> Claim:
    text = "The posterior forecasts better than statsmodels' UnobservedComponents."
    peer = "statsmodels UnobservedComponents, rolling"
    found = _scores(numbers, "sound", "posterior, rolling", peer)
    if not found:
        return not_run(text)
    holds = all(score.is_clear for score in found.values())
    why = (
        f"Over {found['MAE'].ours.seeds} windows, in ppm: {_words(found)}. The standard error "
        "treats the two as independent, which is conservative, because both forecast the same "
        "windows."
    )
    return Claim(text, "better" if holds else "not confirmed", why)


def _scores(
    numbers: Numbers, protocol: Protocol, ours: str, other: str
) -> dict[str, Comparison]:
    """Compares every score of two rows; empty if one is missing."""
    found = {}
    for metric in _SCORES:
        rows = [numbers.first(protocol, row, metric) for row in (ours, other)]
        if rows[0] is None or rows[1] is None:
            return {}
        found[metric] = compare(rows[0], rows[1], lower_is_better=True)
    return found


def _words(scores: dict[str, Comparison]) -> str:
    return "; ".join(f"{metric} {score.words}" for metric, score in scores.items())


CLAIMS = ExperimentClaims(
    question="How well can two years of carbon dioxide at Mauna Loa be forecast from the ten "
    "years before, with a step inside the guide, without one, and by other methods?",
    claims=lambda numbers: (
        _equal_time(numbers),
        _in_ppm(numbers),
        _against_statsmodels(numbers),
    ),
    figures={
        "paper_fan": "Observed months and the forecast's median, 50 and 95 % intervals in the "
        "paper's protocol, without a step and with one",
        "sound_fan": "Observed months and the forecast's median, 50 and 95 % intervals of the "
        "posterior and of statsmodels",
        "sound_rolling": "Scores of the posterior and of statsmodels on each rolling window",
        "sound_states": "Level, slope and season over the ten years, filtered and smoothed, "
        "with two standard deviations",
    },
)
