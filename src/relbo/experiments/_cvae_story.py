"""What the report says of the classifier."""

from relbo.experiments._metrics import Record
from relbo.experiments._story import (
    Claim,
    Numbers,
    Question,
    Story,
    best,
    caution,
    compare,
    not_run,
)

ACCURACY, CALIBRATION = "accuracy", "calibration error"
LOG_SCORE, UTILITY, ABSTAINED = "log score", "utility", "abstained"
POOLED = ", three seeds together"
"""At the end of a row's name: several models are not held against one."""
_HELPS: tuple[Question, ...] = ("Q3",)


def _trained_with_steps(numbers: Numbers) -> Claim:
    text = "A classifier trained and tested with steps (5, 10) guesses better than one without."
    plain = numbers.first("paper", "T = 0, 0", ACCURACY)
    refined = numbers.first("paper", "T = 5, 10", ACCURACY)
    if plain is None or refined is None:
        return not_run(text, _HELPS, "paper")
    gained = compare(refined, plain)
    words = (
        f"Accuracy on true labels: {gained.words}.{caution(refined, plain)} The released "
        "loader gives every image the label 0, so that its figures cannot be held against true "
        "labels."
    )
    return Claim(text, "reproduced" if gained.is_clear else "not confirmed", words, _HELPS)


def _of_one_model(numbers: Numbers, metric: str, row: str = "") -> list[Record]:
    found = numbers.all("sound", row, metric)
    return [record for record in found if not record.row.endswith(POOLED)]


def _sound(numbers: Numbers, metric: str, text: str) -> Claim:
    ours, other = (best(_of_one_model(numbers, metric, row)) for row in ("VIS", "IWAE"))
    if ours is None or other is None:
        return not_run(text, _HELPS, "sound")
    gained = compare(ours, other)
    # A few images more of one seed are luck.
    is_shown = gained.is_clear and not caution(ours, other)
    verdict = "better" if is_shown else "not confirmed"
    words = f"{metric.capitalize()}: {gained.words}.{caution(ours, other)}"
    return Claim(text, verdict, words, _HELPS)


def _weighted(numbers: Numbers) -> Claim:
    text = "Class evidence from weighted draws is better calibrated than the printed average."
    ours = best(_of_one_model(numbers, CALIBRATION), lower_is_better=True)
    printed = best(numbers.all("paper", metric=CALIBRATION), lower_is_better=True)
    if ours is None or printed is None:
        return not_run(text, _HELPS)
    gained = compare(ours, printed, lower_is_better=True)
    words = f"Calibration error: {gained.words}.{caution(ours, printed)}"
    return Claim(text, "better" if gained.is_clear else "not confirmed", words, _HELPS)


STORY = Story(
    question="Does a sampler after the encoder make a better classifier, and better decisions?",
    claims=lambda numbers: (
        _trained_with_steps(numbers),
        _sound(numbers, ACCURACY, "Trained under a valid account, it beats IWAE."),
        _sound(numbers, UTILITY, "Free to abstain, it earns more than one trained as IWAE."),
        _weighted(numbers),
    ),
)
