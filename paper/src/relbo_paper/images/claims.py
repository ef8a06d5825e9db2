"""The claims about the autoencoders, and the names of rows and metrics."""

from relbo_paper.harness.claims import (
    Claim,
    ExperimentClaims,
    Numbers,
    Question,
    Verdict,
    best,
    caution,
    compare,
    format_record,
    not_run,
)
from relbo_paper.harness.metrics import Record

LOG_LIKELIHOOD = "test log-likelihood"
PAPER_ESTIMATE = "the paper's estimate"
FOLDED = "draws whose step folds space"
_WORTH_IT: tuple[Question, ...] = ("Q1",)
_PAIRS = tuple(
    (f"VIS T=5, {account}{weights}", baseline)
    for account in ("Gaussian", "reverse kernel")
    for weights, baseline in (("", "VAE"), (", importance-weighted", "IWAE"))
)
"""Rows with steps inside the guide, each with its baseline."""
BY_ADAM, FOR_LONG, MORE_LATENTS, SMOOTH = ", Adam", ", long", ", 20 latents", ", smooth"
ONE_DRAW = ", one draw"
"""Ends of row names: trained by another optimiser, trained for longer, with more latent values
than the paper's ten, with networks without relus, and with one draw per image."""
CHANGE_OF_VARIABLES = "VIS T=1, change of variables"
_UNFOLDED = f"{ONE_DRAW}{SMOOTH}"
_PAIRS_OF = {
    BY_ADAM: _PAIRS[:2],
    MORE_LATENTS: _PAIRS[::2],
    _UNFOLDED: ((CHANGE_OF_VARIABLES, "VAE"),),
}
_WHEN = {
    "": "",
    BY_ADAM: " when both are trained with Adam",
    FOR_LONG: " when both are trained for long",
    MORE_LATENTS: " when both have 20 latent values",
    _UNFOLDED: " when both have one draw per image and no relus",
}
PUBLISHED = {
    "vae-mnist": {
        "UIVI": -94.09,
        "VCD": -95.86,
        "HMC-DLGM": -96.23,
        "SIVI": -97.77,
        "VAE": -98.29,
    },
    "vae-fashion": {
        "UIVI": -110.72,
        "VCD": -117.65,
        "HMC-DLGM": -117.74,
        "SIVI": -121.53,
        "VAE": -126.73,
    },
}
"""The log-likelihoods quoted in the paper's table, by experiment."""


def _surrogate(numbers: Numbers) -> Claim:
    text = "VIS-5-10, trained by the paper's recipe, has a higher log-likelihood than the VAE."
    plain = numbers.first("paper", "VAE", LOG_LIKELIHOOD)
    refined = numbers.first("paper", "VIS-5-10, particle", LOG_LIKELIHOOD)
    if plain is None or refined is None:
        return not_run(text, _WORTH_IT, "paper")
    gained = compare(refined, plain)
    verdict: Verdict = "reproduced" if gained.is_clear else "not confirmed"
    why = f"{gained.words}.{caution(refined, plain)}{_paper_estimates(numbers)}"
    return Claim(text, verdict, why, _WORTH_IT)


def _paper_estimates(numbers: Numbers) -> str:
    estimates = [numbers.first("paper", row, PAPER_ESTIMATE) for row in ("VAE", "VIS-5-10, p")]
    if None in estimates:
        return ""
    plain, refined = (format_record(record) for record in estimates if record is not None)
    return (
        f" The paper's estimator gives {refined} against {plain}; it evaluates a density at "
        "its own centre, and so rewards a spread of the encoder that the steps remove."
    )


def _exactly(numbers: Numbers, row: str, metric: str = LOG_LIKELIHOOD) -> Record | None:
    """Returns the record of a row of the sound protocol with exactly this name."""
    found = numbers.all("sound", row, metric)
    exact = [r for r in found if (r.row, r.metric) == (row, metric)]
    return exact[0] if exact else None


def _sound(numbers: Numbers, refined: str, baseline: str, how: str) -> Claim:
    kind = "an objective" if how == _UNFOLDED else "a bound"
    text = f"{refined}: {kind} that trains a better model than the {baseline}{_WHEN[how]}."
    ours, other = (_exactly(numbers, row + how) for row in (refined, baseline))
    if ours is None or other is None:
        return not_run(text, _WORTH_IT, "sound")
    gained = compare(ours, other)
    verdict: Verdict = "better" if gained.is_clear else "not confirmed"
    why = f"{LOG_LIKELIHOOD.capitalize()}: {gained.words}.{caution(ours, other)}"
    folded = _exactly(numbers, refined + how, FOLDED)
    if folded is not None and folded.value is not None:
        why += (
            f" It is a bound except for folds: {folded.value:.1%} of the draws fold or nearly "
            "fold."
        )
    return Claim(text, verdict, why, _WORTH_IT)


def _beats_published(numbers: Numbers) -> Claim:
    text = "The best model trained with a refined encoder beats the best published figure."
    rows = [r for r in numbers.all("sound", "VIS") if r.metric == LOG_LIKELIHOOD]
    ours = best([row for row in rows if not row.row.endswith(MORE_LATENTS)])
    larger = best([row for row in rows if row.row.endswith(MORE_LATENTS)])
    if ours is None or ours.value is None:
        return not_run(text, _WORTH_IT, "sound")
    published = max(PUBLISHED[ours.experiment].items(), key=lambda item: item[1])
    is_better = ours.value - 2.0 * (ours.stderr or 0.0) > published[1]
    why = (
        f"{LOG_LIKELIHOOD.capitalize()} {format_record(ours)} ({ours.row}), published: "
        f"{published[1]:g} ({published[0]}), which was trained about ten times longer."
        f"{caution(ours)}"
    )
    if larger is not None:
        value = format_record(larger)
        why += f" A larger model, with 20 latent values instead of ten, has {value}."
    return Claim(text, "better" if is_better else "not confirmed", why, _WORTH_IT)


def autoencoder_claims(subject: str) -> ExperimentClaims:
    """Returns the claims about one data set.

    Args:
        subject: what its images show.
    """
    return ExperimentClaims(
        question=f"Does a sampler after the encoder train a better model of {subject}?",
        claims=lambda numbers: (
            _surrogate(numbers),
            *(
                _sound(numbers, refined, baseline, how)
                for how in _WHEN
                for refined, baseline in _PAIRS_OF.get(how, _PAIRS)
            ),
            _beats_published(numbers),
        ),
    )
