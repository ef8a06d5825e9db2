"""What is said about draws: a summary of each coordinate, and whether to trust them."""

from html import escape
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

MAX_ROWS = 50
"""The largest number of coordinates that a notebook shows."""


class Check(NamedTuple):
    """The verdict on a posterior, with the numbers behind it."""

    trustworthy: bool
    rhat: float
    """The largest nested R-hat."""
    worst_site: str
    """The site with the largest R-hat."""
    ess: float
    """The smallest effective sample size."""
    acceptance: float | None
    """The mean acceptance rate; `None` for chains without a Metropolis test."""
    bad_chains: list[int]
    pareto_k: float | None
    """Pareto k of the weights behind the evidence; they are reliable below 0.7."""
    evidence_is_known: bool | None
    """Whether the estimates of the evidence from both sides agree; `None` without them."""
    advice: list[str]
    """What is wrong and what to try, in plain words."""
    procedure: str = ""
    """How the draws were made, in plain words."""

    def __str__(self) -> str:
        verdict = (
            "Trust it, for the modes found." if self.trustworthy else "Do not trust it yet."
        )
        numbers = [
            f"R-hat {self.rhat:.3f} (worst: {self.worst_site})",
            f"effective draws {self.ess:.0f}",
        ]
        if self.acceptance is not None:
            numbers.append(f"acceptance {self.acceptance:.2f}")
        if self.pareto_k is not None:
            numbers.append(f"Pareto k of the evidence {self.pareto_k:.2f}")
        lines = [f"{verdict} {', '.join(numbers)}.", self.procedure, *self.advice]
        return "\n".join(filter(None, lines))

    def _repr_html_(self) -> str:
        return "".join(f"<p>{escape(line)}</p>" for line in str(self).splitlines())


class Summary(NamedTuple):
    """Means, standard deviations, quantiles and diagnostics by coordinate."""

    names: list[str]
    columns: dict[str, Float[np.ndarray, " n"]]

    def __str__(self) -> str:
        width = max(map(len, self.names), default=0)
        lines = [" " * width + "".join(f"{name:>10}" for name in self.columns)]
        for row, name in enumerate(self.names):
            cells = (_cell(column, values[row]) for column, values in self.columns.items())
            lines.append(f"{name:{width}}" + "".join(f"{cell:>10}" for cell in cells))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        def row(tag: str, *cells: str) -> str:
            return "<tr>" + "".join(f"<{tag}>{escape(c)}</{tag}>" for c in cells) + "</tr>"

        rows = [
            row("td", name, *(_cell(column, v[k]) for column, v in self.columns.items()))
            for k, name in enumerate(self.names[:MAX_ROWS])
        ]
        if len(self.names) > MAX_ROWS:
            rows.append(row("td", f"and {len(self.names) - MAX_ROWS} more"))
        return f"<table>{row('th', '', *self.columns)}{''.join(rows)}</table>"


def _cell(column: str, value: float) -> str:
    if column == "ess":
        return f"{value:.0f}"
    return f"{value:.3f}" if column == "rhat" else f"{value:.3g}"


def check_draws(posterior: Any) -> Check:
    """Returns the verdict on a `Posterior`."""
    summary = posterior.summary()
    rhat, ess = summary.columns["rhat"], summary.columns["ess"]
    worst = int(np.argmax(rhat))
    bad = np.flatnonzero(posterior.bad_chains).tolist()
    rate = posterior.sample_stats.get("acceptance_rate")
    acceptance = None if rate is None else float(rate.mean())
    weights, pareto_k = posterior.log_weights, posterior.pareto_k
    # A constant has no effective sample size.
    smallest = float(np.nanmin(ess)) if np.any(np.isfinite(ess)) else float("nan")
    advice = _advice_on_chains(summary.names[worst], float(rhat[worst]), smallest, bad)
    advice += _advice_on_acceptance(acceptance, is_weighed=posterior.increment is not None)
    trustworthy = bool(
        rhat[worst] <= 1.02
        and smallest >= 100
        and not bad
        and (acceptance is None or acceptance >= 0.4)
        and not any(finding.is_fatal for finding in posterior.findings)
    )
    advice = [*posterior.notes, *advice]
    has_met = weights is not None and weights.has_met and (pareto_k or 0.0) <= 0.7
    is_known = has_met and trustworthy
    if weights is not None and not has_met:
        advice.append(
            f"The evidence is uncertain: {weights.lower[0]:.2f} from below and "
            f"{weights.upper[0]:.2f} from above (Pareto k {pareto_k:.2f}). Estimate it "
            "with relbo.evaluate.log_evidence; this says nothing about the draws."
        )
    return Check(
        trustworthy,
        float(rhat[worst]),
        summary.names[worst],
        smallest,
        acceptance,
        bad,
        pareto_k,
        is_known if weights is not None else None,
        advice,
        posterior.procedure,
    )


def _advice_on_chains(worst: str, rhat: float, ess: float, bad_chains: list[int]) -> list[str]:
    """Says what is wrong with the chains, and what to try."""
    advice = []
    if rhat > 1.02:
        advice.append(
            f"The chains have not converged (R-hat {rhat:.3f} at {worst}). Run them longer "
            "(more seconds, more draws), or write the model so that scales and what they scale "
            "are independent (non-centred)."
        )
    if ess < 400:
        advice.append(f"The draws are worth only {ess:.0f} independent ones: draw more.")
    if bad_chains:
        advice.append(
            f"Chains {bad_chains} are stuck or far from the others: look at them, or leave "
            "them out with without_bad_chains()."
        )
    return advice


def _advice_on_acceptance(acceptance: float | None, *, is_weighed: bool) -> list[str]:
    if acceptance is None and not is_weighed:
        return [
            "The chains were not Metropolis-adjusted, so their draws have the bias of a finite "
            'step, which no diagnostic here detects: compare with method="hmc".'
        ]
    if acceptance is not None and acceptance < 0.4:
        return [
            f"Only {acceptance:.0%} of the proposals were accepted: the posterior has narrow "
            "necks or edges; a non-centred form often removes them."
        ]
    return []
