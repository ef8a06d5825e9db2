"""What is said about draws: a summary of each coordinate, and whether to trust them."""

from html import escape
from typing import NamedTuple

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
