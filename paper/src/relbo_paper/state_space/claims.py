"""The claims about state-space models as optimisation problems."""

from relbo_paper.harness.claims import (
    Claim,
    Comparison,
    ExperimentClaims,
    Numbers,
    Question,
    best,
    compare,
    format_number,
    not_run,
)
from relbo_paper.harness.experiments import Protocol
from relbo_paper.harness.metrics import Record

_LOSS = "negative log-likelihood above the best found, after"
_WORTH_IT: tuple[Question, ...] = ("Q1",)
_SUM_PRODUCT: tuple[Question, ...] = ("Q2",)


def optimisation_claims(model: str, algorithm: str) -> ExperimentClaims:
    """Returns the claims about one model, whose path is summed out by `algorithm`."""
    return ExperimentClaims(
        question=f"Does a point estimate of {model} converge faster with steps of gradient "
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
        "paper": "With one learning rate for all T, T > 0 is ahead after the same time.",
        "sound": "With the best learning rate for each T, T > 0 is ahead after the same number "
        "of gradients.",
    }[protocol]
    unit = {"paper": "seconds", "sound": "gradients"}[protocol]
    at_equal_cost = _ahead(numbers, protocol, unit)
    at_equal_iterations = _ahead(numbers, protocol, "iterations")
    if at_equal_cost is None or at_equal_iterations is None:
        return not_run(text, _WORTH_IT, protocol)
    why = (
        f"Loss above the best found, at equal {unit}: {at_equal_cost.words}. "
        f"At equal iterations, where the steps inside the guide are not counted: "
        f"{at_equal_iterations.words}."
    )
    succeeded = "reproduced" if protocol == "paper" else "better"
    return Claim(text, succeeded if at_equal_cost.is_clear else "not confirmed", why, _WORTH_IT)


def _ahead(numbers: Numbers, protocol: Protocol, unit: str) -> Comparison | None:
    """Compares the best T > 0 with T = 0 at equal cost."""
    losses = [r for r in numbers.all(protocol, "T=", _LOSS) if _unit(r) == unit]
    plain = next((record for record in losses if record.row == "T=0"), None)
    refined = best((r for r in losses if r.row != "T=0"), lower_is_better=True)
    if plain is None or refined is None:
        return None
    return compare(refined, plain, lower_is_better=True)


def _unit(record: Record) -> str:
    """Returns the unit of the cost after which a loss was taken."""
    cost = record.metric.removeprefix(_LOSS)
    return "seconds" if "seconds" in cost else cost.split()[-1]


def _compatible(numbers: Numbers, algorithm: str) -> Claim:
    text = f"Refinement works together with {algorithm}, which sums out the path."
    losses = [
        record
        for protocol in ("paper", "sound")
        for record in numbers.all(protocol, "T=", _LOSS)
        if record.row != "T=0" and _unit(record) == "iterations"
    ]
    if not losses:
        return not_run(text, _SUM_PRODUCT)
    finite = [record.value for record in losses if record.value is not None]
    if len(finite) < len(losses):
        failed = len(losses) - len(finite)
        why = f"{failed} of {len(losses)} refined rows ended with a non-finite loss."
        return Claim(text, "not confirmed", why, _SUM_PRODUCT)
    why = (
        f"All {len(losses)} refined rows were differentiated through {algorithm} and the "
        f"steps; the final losses are {format_number(min(finite))} to "
        f"{format_number(max(finite))} above the best found."
    )
    return Claim(text, "reproduced", why, _SUM_PRODUCT)
