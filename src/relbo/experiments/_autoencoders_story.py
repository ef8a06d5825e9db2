"""What the report says of the autoencoders."""

from relbo.experiments._story import (
    Claim,
    Numbers,
    Question,
    Story,
    Verdict,
    compare,
    not_run,
    said,
)

LOG_LIKELIHOOD = "test log-likelihood"
PAPER_ESTIMATE = "the paper's estimate"
_WORTH_IT: tuple[Question, ...] = ("Q1",)


def _surrogate(numbers: Numbers) -> Claim:
    text = "VIS-5-10, trained by the paper's recipe, has a higher log-likelihood than the VAE."
    plain = numbers.first("paper", "VAE", LOG_LIKELIHOOD)
    refined = numbers.first("paper", "VIS-5-10, particle", LOG_LIKELIHOOD)
    if plain is None or refined is None:
        return not_run(text, _WORTH_IT, "paper")
    gained = compare(refined, plain)
    verdict: Verdict = "reproduced" if gained.is_clear else "not confirmed"
    return Claim(
        text, verdict, f"{gained.words}.{_what_the_estimator_does(numbers)}", _WORTH_IT
    )


def _what_the_estimator_does(numbers: Numbers) -> str:
    estimates = [numbers.first("paper", row, PAPER_ESTIMATE) for row in ("VAE", "VIS-5-10, p")]
    if None in estimates:
        return ""
    plain, refined = (said(record) for record in estimates if record is not None)
    return (
        f" By the paper's estimator it is {refined} against {plain}; that takes a density at "
        "its own centre, and so pays for a spread that the steps have taken back."
    )


def _sound(numbers: Numbers, refined: str, baseline: str) -> Claim:
    text = f"A refined encoder under a valid account trains a better model than the {baseline}."
    ours = numbers.first("sound", refined, LOG_LIKELIHOOD)
    other = numbers.first("sound", baseline, LOG_LIKELIHOOD)
    if ours is None or other is None:
        return not_run(text, _WORTH_IT, "sound")
    gained = compare(ours, other)
    verdict: Verdict = "better" if gained.is_clear else "not confirmed"
    return Claim(text, verdict, f"{LOG_LIKELIHOOD.capitalize()}: {gained.words}.", _WORTH_IT)


def autoencoder_story(what: str) -> Story:
    """The story of one data set.

    Args:
        what: is seen in its images.
    """
    return Story(
        question=f"Does a sampler after the encoder train a better model of {what}?",
        claims=lambda numbers: (
            _surrogate(numbers),
            _sound(numbers, "VIS T=5, Gaussian", "VAE"),
            _sound(numbers, "VIS T=5, Gaussian, importance-weighted", "IWAE"),
        ),
    )
