"""How far a forecast can be trusted."""

from html import escape
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float

from relbo.evaluate.forecasts import AbstractRealForecast
from relbo.evaluate.record import Evaluation

MIN_EFFECTIVE = 100
MAX_PARETO_K = 0.7
MIN_COVERED = 0.5
"""The least share of held-out values within the 95 % intervals. The errors of one forecast are
correlated, so a share below 95 % is not surprising, but less than half is."""


class HeldOut(NamedTuple):
    """How a forecast of the last known values compares with them."""

    number: int
    covered: float
    """The share of values within the central 95 % intervals."""
    mae: float
    """The mean absolute error of the medians."""
    naive_mae: float
    """That of repeating the last season (the last value, without seasons)."""


class ForecastCheck(NamedTuple):
    """The verdict on a forecast, with the numbers behind it."""

    trustworthy: bool
    ess: float
    """The effective number of draws of the scales."""
    pareto_k: float
    """The tail index of their weights; reliable below 0.7."""
    held_out: HeldOut | None
    """`None` if the series is too short to hold anything out."""
    advice: list[str]

    @classmethod
    def of(cls, weights: Evaluation, held_out: HeldOut | None) -> "ForecastCheck":
        """Judges weights and held-out values."""
        ess, pareto_k = weights.ess or 0.0, float(weights.pareto_k or 0.0)
        advice = []
        if ess < MIN_EFFECTIVE or pareto_k > MAX_PARETO_K:
            advice.append(
                "The posterior of the scales was hard to sample: use relbo.infer with "
                "StructuralModel, whose check() says more."
            )
        if held_out is not None and held_out.covered < MIN_COVERED:
            advice.append(
                "The intervals are too narrow: the series may have changed its behaviour. "
                "Forecast from the part after the change, or give covariates to "
                "StructuralModel."
            )
        is_bad = bool(advice)
        if held_out is None:
            advice.append("The series is too short to test the forecast on its last values.")
        elif held_out.mae > held_out.naive_mae:
            advice.append("Repeating the last season would have been closer.")
        return cls(not is_bad, ess, pareto_k, held_out, advice)

    def __str__(self) -> str:
        verdict = "Trust it, as far as the future is like the past."
        lines = [
            f"{verdict if self.trustworthy else 'Do not trust it.'} "
            f"Effective draws {self.ess:.0f}, Pareto k {self.pareto_k:.2f}."
        ]
        if self.held_out is not None:
            held = self.held_out
            lines.append(
                f"The last {held.number} values, forecast from those before: "
                f"{held.covered:.0%} within 95 % intervals, mean absolute error {held.mae:.3g} "
                f"(repeating the last season: {held.naive_mae:.3g})."
            )
        return "\n".join([*lines, *self.advice])

    def _repr_html_(self) -> str:
        return "".join(f"<p>{escape(line)}</p>" for line in str(self).splitlines())


def compare_with_held_out(
    forecast: AbstractRealForecast,
    before: Float[np.ndarray, " n"],
    observed: Float[np.ndarray, " h"],
    cycle: int,
) -> HeldOut:
    """Compares a forecast with what was observed; missing values are left out.

    Args:
        forecast: the forecast of the observed values, and perhaps of further ones.
        before: the series that was used for it.
        observed: the values after it.
        cycle: number of steps in a cycle of seasons.
    """
    number = len(observed)
    lower, middle, upper = (
        np.asarray(forecast.quantile(level))[:number] for level in (0.025, 0.5, 0.975)
    )
    # Missing values are replaced by those of the cycle before.
    filled = pd.Series(before).groupby(np.arange(len(before)) % cycle).ffill()
    naive = np.resize(filled.to_numpy()[-cycle:], number)
    known = np.isfinite(observed) & np.isfinite(naive)
    seen = observed[known]
    return HeldOut(
        len(seen),
        float(np.mean((seen >= lower[known]) & (seen <= upper[known]))),
        float(np.mean(np.abs(seen - middle[known]))),
        float(np.mean(np.abs(seen - naive[known]))),
    )
