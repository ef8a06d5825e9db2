"""The claims about the forecasts of the hidden Markov model."""

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

_TASK: tuple[Question, ...] = ("Q1", "Q3")


def _equal_time(numbers: Numbers) -> Claim:
    text = "After equal time, a model trained with one step forecasts better than without."
    plain = numbers.first("paper", "T=0", "log score")
    refined = best(numbers.all("paper", "T=1", "log score"))
    if plain is None or refined is None:
        return not_run(text, _TASK, "paper")
    scored = compare(refined, plain)
    why = (
        f"The best log score with a step is {scored.words}. Neither has converged by then, so "
        "the scores measure progress."
    )
    return Claim(text, "reproduced" if scored.is_clear else "not confirmed", why, _TASK)


def _converged(numbers: Numbers) -> Claim:
    text = "Trained until converged, the model forecasts better than the paper reports."
    found = numbers.all("sound", "T=", "log score")
    top = best(found)
    published = best(
        r._replace(value=r.paper)
        for r in numbers.all("paper", metric="log score")
        if r.paper is not None
    )
    if top is None or top.value is None:
        return not_run(text, ("Q2",), "sound")
    if published is None or published.value is None:
        return not_run(text, ("Q2",), "paper")
    accuracy = numbers.first("sound", top.row, "accuracy")
    right = f", accuracy {format_record(accuracy)}" if accuracy is not None else ""
    why = (
        f"Log score {format_record(top)}{right} ({top.row}), where the paper's best is "
        f"{published.value:.3f}; with and without steps: "
        + "; ".join(f"{format_record(record)} ({record.row})" for record in found)
        + ". The forward algorithm sums out the path."
    )
    clear = top.value - 2.0 * (top.stderr or 0.0) > published.value
    return Claim(text, "better" if clear else "not confirmed", why, ("Q2",))


CLAIMS = ExperimentClaims(
    question="Does a hidden Markov model forecast the series 0, 1, 0, 1, ... better if it was "
    "trained with a step inside the guide?",
    claims=lambda numbers: (_equal_time(numbers), _converged(numbers)),
    figures={
        "paper_loss": "Negative log-likelihood over the first 50 epochs, with and without a "
        "step inside the guide",
        "sound_loss": "Negative log-likelihood until convergence, with and without a step",
        "sound_forecast": "Forecast probability of each symbol at each of five steps for each "
        "method; the observed symbols are circled",
    },
)
