"""The claims of the funnel experiment."""

from relbo_paper.harness.claims import (
    Claim,
    ExperimentClaims,
    Numbers,
    Question,
    best,
    compare,
    format_record,
    not_run,
)

_WORTH_IT: tuple[Question, ...] = ("Q1",)


def _one_step(numbers: Numbers) -> Claim:
    text = "One SGLD step inside the guide lowers the loss at iteration 30."
    plain = numbers.first("paper", "T=0", "negative ELBO")
    refined = best(numbers.all("paper", "T=1", "negative ELBO"), lower_is_better=True)
    if plain is None or refined is None:
        return not_run(text, _WORTH_IT, "paper")
    surrogates = numbers.all("paper", "T=1", "surrogate")
    losses = "; ".join(f"{format_record(record)} ({record.row})" for record in surrogates)
    published = {record.paper for record in surrogates if record.paper is not None}
    paper = f" (paper: {max(published):g} against {plain.paper:g})" if published else ""
    bounds = compare(refined, plain, lower_is_better=True)
    why = (
        f"The loss at T = 1 is a surrogate, not a bound; its values are {losses}{paper}. "
        "With the reverse kernel, which gives a bound, the negative ELBO of the best refined "
        f"guide is {bounds.words}."
    )
    return Claim(text, "reproduced" if bounds.is_clear else "not confirmed", why, _WORTH_IT)


def _more_steps(numbers: Numbers) -> Claim:
    text = "Steps under a valid account bring the guide closer to the evidence."
    elbos = numbers.all("sound", metric="ELBO")
    plain = next((record for record in elbos if record.row == "T=0"), None)
    refined = best(r for r in elbos if r is not plain and r.valid_bound is True)
    if plain is None or refined is None:
        return not_run(text, _WORTH_IT, "sound")
    gained = compare(refined, plain)
    why = f"The best ELBO is {gained.words}. The exact log evidence is 0."
    return Claim(text, "better" if gained.is_clear else "not confirmed", why, _WORTH_IT)


CLAIMS = ExperimentClaims(
    question="Does a Gaussian guide with sampler steps inside approximate a funnel-shaped "
    "density, whose evidence is known, better than the Gaussian alone?",
    claims=lambda numbers: (_one_step(numbers), _more_steps(numbers)),
    figures={
        "paper_loss": "Loss against iteration for each guide: seeds light, their mean dark, "
        "and the paper's figures at iteration 30",
        "paper_contours": "Draws of the plain guide and of the guide with one step, over the "
        "contours of the funnel, after 30 iterations",
        "sound_contours": "Draws of the plain guide and of the guide with 32 annealed "
        "Hamiltonian steps, over the contours of the funnel, after training",
    },
)
