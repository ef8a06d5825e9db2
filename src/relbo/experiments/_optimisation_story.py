"""What the report says of a state-space model as an optimisation problem."""

from relbo.experiments import Protocol
from relbo.experiments._metrics import Record
from relbo.experiments._story import (
    Claim,
    Comparison,
    Numbers,
    Question,
    Story,
    best,
    compare,
    figure,
    not_run,
)

_LOSS = "negative log-likelihood above the best found, after"
_WORTH_IT: tuple[Question, ...] = ("Q1",)
_SUM_PRODUCT: tuple[Question, ...] = ("Q2",)


def optimisation_story(model: str, algorithm: str) -> Story:
    """The story of one model, whose path is summed out by `algorithm`."""
    return Story(
        question=f"Does a point estimate of {model} come down faster with steps of gradient "
        "ascent inside the guide, at equal iterations, gradients and seconds?",
        claims=lambda numbers: (
            _faster(numbers, "paper"),
            _faster(numbers, "sound"),
            _compatible(numbers, algorithm),
        ),
        figures={
            f"{protocol}_loss": "Negative log-likelihood above the best found, against "
            f"iterations, gradients and seconds, for T = 0, 1 and 2 ({protocol} protocol)"
            for protocol in ("paper", "sound")
        },
    )


def _faster(numbers: Numbers, protocol: Protocol) -> Claim:
    text = {
        "paper": "With one learning rate for all, T > 0 is ahead in the same time.",
        "sound": "With the best learning rate for each, T > 0 is ahead for the same gradients.",
    }[protocol]
    price = {"paper": "seconds", "sound": "gradients"}[protocol]
    dearly = _ahead(numbers, protocol, price)
    cheaply = _ahead(numbers, protocol, "iterations")
    if dearly is None or cheaply is None:
        return not_run(text, _WORTH_IT, protocol)
    why = (
        f"Above the best found, at equal {price}: {dearly.words}. "
        f"At equal iterations, where a step inside is a second step for the price of one: "
        f"{cheaply.words}."
    )
    succeeded = "reproduced" if protocol == "paper" else "better"
    return Claim(text, succeeded if dearly.is_clear else "not confirmed", why, _WORTH_IT)


def _ahead(numbers: Numbers, protocol: Protocol, price: str) -> Comparison | None:
    """The best T > 0 against T = 0 once both have paid the same."""
    losses = [r for r in numbers.all(protocol, "T=", _LOSS) if _price(r) == price]
    plain = next((record for record in losses if record.row == "T=0"), None)
    refined = best((r for r in losses if r.row != "T=0"), lower_is_better=True)
    if plain is None or refined is None:
        return None
    return compare(refined, plain, lower_is_better=True)


def _price(record: Record) -> str:
    """What a loss was paid with."""
    paid = record.metric.removeprefix(_LOSS)
    return "seconds" if "seconds" in paid else paid.split()[-1]


def _compatible(numbers: Numbers, algorithm: str) -> Claim:
    text = f"Refinement goes together with the path summed out by {algorithm}."
    losses = [
        record
        for protocol in ("paper", "sound")
        for record in numbers.all(protocol, "T=", _LOSS)
        if record.row != "T=0" and _price(record) == "iterations"
    ]
    if not losses:
        return not_run(text, _SUM_PRODUCT)
    finite = [record.value for record in losses if record.value is not None]
    if len(finite) < len(losses):
        failed = len(losses) - len(finite)
        why = f"{failed} of {len(losses)} refined runs ended with a loss that is not finite."
        return Claim(text, "not confirmed", why, _SUM_PRODUCT)
    why = (
        f"Gradients went through {algorithm} and the steps in all {len(losses)} refined rows; "
        f"the losses ended {figure(min(finite))} to {figure(max(finite))} above the best found."
    )
    return Claim(text, "reproduced", why, _SUM_PRODUCT)
