"""Judges draws of a case: are they right, and if not, by how much?

Right means, for every quantity of the case:
- the mean is within 0.1 posterior sds of the truth;
- the log of the sd is within 0.05 of the truth;
- the share of draws below the true 1, 5, 95 and 99 % quantile is within a fifth of 0.01 or
  0.05;
each plus two Monte Carlo errors, computed with the effective number of the draws themselves but
for at least 1,000 draws, so that few effective draws are no excuse.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from gallery_truth import PROBABILITIES, Case, Truth

MEAN_BAR, LOG_SD_BAR, SHARE_BAR = 0.1, 0.05, 0.2
MIN_EFFECTIVE = 1000.0


class Miss(NamedTuple):
    """An error of one statistic, with what is allowed."""

    quantity: str
    statistic: str
    error: float
    allowed: float
    monte_carlo_error: float

    @property
    def ratio(self) -> float:
        return self.error / self.allowed if np.isfinite(self.error) else np.inf

    def __str__(self) -> str:
        errors = f"{self.error / self.monte_carlo_error:.1f} Monte Carlo errors"
        sizes = f"{self.error:.3g} (allowed {self.allowed:.3g}, {errors})"
        return f"{self.quantity} {self.statistic} off by {sizes}"


def judge(
    case: Case, truths: Mapping[str, Truth], chains: Mapping[str, np.ndarray]
) -> list[Miss]:
    """Returns all errors, the worst first; those with a ratio above 1 make the result wrong.

    Args:
        case: a proper case.
        truths: the truth of each of its quantities.
        chains: draws by site, `[num_chains, length, ...]`.
    """
    shape = next(iter(chains.values())).shape[:2]
    flat = {name: value.reshape(-1, *value.shape[2:]) for name, value in chains.items()}
    errors = []
    for name, function in case.quantities.items():
        values = np.asarray(function(flat)).reshape(shape)
        errors += errors_of(name, values, truths[name])
    return sorted(errors, key=lambda miss: -miss.ratio)


def errors_of(name: str, values: np.ndarray, truth: Truth) -> list[Miss]:
    """Returns the errors of one quantity, given its draws `[num_chains, length]`."""
    rounded = np.asarray(truth.quantiles).astype(values.dtype).astype(np.float64)
    values = values.astype(np.float64)
    if not np.all(np.isfinite(values)):
        share = float(np.mean(~np.isfinite(values)))
        return [Miss(name, f"{share:.0%} of the draws not finite,", np.inf, 0.0, 1.0)]
    effective = lambda x: max(MIN_EFFECTIVE, min(values.size, effective_draws(x)))
    errors = []

    def add(statistic: str, error: float, bar: float, monte_carlo: float) -> None:
        allowed = bar + 2 * monte_carlo
        errors.append(Miss(name, statistic, float(error), float(allowed), float(monte_carlo)))

    if truth.mean is not None and truth.sd is not None:
        error = abs(values.mean() - truth.mean) / truth.sd
        add("mean (in sds)", error, MEAN_BAR, effective(values) ** -0.5)
    if truth.sd is not None and truth.kurtosis is not None:
        sd = values.std(ddof=1)
        error = abs(np.log(sd / truth.sd)) if sd > 0 else np.inf
        squares = (values - values.mean()) ** 2
        # The delta method: var(log sd) = (kurtosis - 1) / (4 n).
        add("log sd", error, LOG_SD_BAR, np.sqrt((truth.kurtosis - 1) / 4 / effective(squares)))
    for probability, quantile in zip(PROBABILITIES, rounded, strict=True):
        if np.isnan(quantile):
            continue
        below, up_to = np.mean(values < quantile), np.mean(values <= quantile)
        # Draws that equal the rounded quantile lie on either side of it.
        error = max(0.0, below - probability, probability - up_to)
        bar = SHARE_BAR * min(probability, 1 - probability)
        deviation = np.sqrt(probability * (1 - probability))
        number = effective((values <= quantile).astype(float))
        add(f"share below {probability:.0%} quantile", error, bar, deviation / number**0.5)
    return errors


def effective_draws(values: np.ndarray) -> float:
    """Estimates the effective number of draws `[num_chains, length]`; 0 if constant."""
    from numpyro.diagnostics import effective_sample_size

    if np.ptp(values) == 0:
        return 0.0
    number: Any = effective_sample_size(values)
    return float(number) if np.isfinite(number) else 0.0
