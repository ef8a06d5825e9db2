"""The claims about the classifier."""

from relbo_paper.harness.claims import (
    Claim,
    ExperimentClaims,
    Numbers,
    Question,
    best,
    caution,
    compare,
    not_run,
)
from relbo_paper.harness.metrics import Record

ACCURACY, CALIBRATION = "accuracy", "calibration error"
LOG_SCORE, UTILITY, ABSTAINED = "log score", "utility", "abstained"
POOLED = ", three seeds together"
"""Ends the names of rows that pool several models, which no claim compares with one model."""
_HELPS: tuple[Question, ...] = ("Q3",)


def _trained_with_steps(numbers: Numbers) -> Claim:
    text = (
        "A classifier trained and tested with steps (5, 10) is more accurate than one without."
    )
    plain = numbers.first("paper", "T = 0, 0", ACCURACY)
    refined = numbers.first("paper", "T = 5, 10", ACCURACY)
    if plain is None or refined is None:
        return not_run(text, _HELPS, "paper")
    gained = compare(refined, plain)
    why = (
        f"Accuracy on true labels: {gained.words}.{caution(refined, plain)} The released "
        "loader gives every image the label 0, so that its figures cannot be compared with "
        "accuracies on true labels."
    )
    return Claim(text, "reproduced" if gained.is_clear else "not confirmed", why, _HELPS)


def _of_one_model(numbers: Numbers, metric: str, row: str = "") -> list[Record]:
    found = numbers.all("sound", row, metric)
    return [record for record in found if not record.row.endswith(POOLED)]


def _sound(numbers: Numbers, metric: str, text: str) -> Claim:
    ours, other = (best(_of_one_model(numbers, metric, row)) for row in ("VIS", "IWAE"))
    if ours is None or other is None:
        return not_run(text, _HELPS, "sound")
    gained = compare(ours, other)
    # With one seed, a difference of a few images may be chance.
    is_shown = gained.is_clear and not caution(ours, other)
    verdict = "better" if is_shown else "not confirmed"
    why = f"{metric.capitalize()}: {gained.words}.{caution(ours, other)}"
    return Claim(text, verdict, why, _HELPS)


def _weighted(numbers: Numbers) -> Claim:
    text = "Class evidence from weighted draws is better calibrated than the paper's average."
    ours = best(_of_one_model(numbers, CALIBRATION), lower_is_better=True)
    printed = best(numbers.all("paper", metric=CALIBRATION), lower_is_better=True)
    if ours is None or printed is None:
        return not_run(text, _HELPS)
    gained = compare(ours, printed, lower_is_better=True)
    why = f"Calibration error: {gained.words}.{caution(ours, printed)}"
    return Claim(text, "better" if gained.is_clear else "not confirmed", why, _HELPS)


CLAIMS = ExperimentClaims(
    question="Does a sampler after the encoder improve the classifier and its decisions?",
    claims=lambda numbers: (
        _trained_with_steps(numbers),
        _sound(
            numbers, ACCURACY, "Trained under a valid account, it is more accurate than IWAE."
        ),
        _sound(numbers, UTILITY, "If it may abstain, its utility is higher than that of IWAE."),
        _weighted(numbers),
    ),
)
