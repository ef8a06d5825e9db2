"""What a case of the gallery is, and how its true posterior is computed.

A `Truth` holds the exact mean, standard deviation, kurtosis and quantiles of one scalar
quantity. It comes from a closed form, exact draws, or a deterministic grid.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np

PROBABILITIES = (0.01, 0.05, 0.95, 0.99)
NUM_EXACT_DRAWS = 1_000_000
_SEED = 20261118

Draws = Mapping[str, np.ndarray]
"""Values by site, one row per draw."""


class Truth(NamedTuple):
    """The exact distribution of a scalar quantity, as far as it is judged."""

    mean: float | None
    """`None` if it does not exist or cannot be judged (the variance is infinite)."""
    sd: float | None
    """`None` if it does not exist."""
    kurtosis: float | None
    """E[(x - mean)^4] / sd^4, from which the Monte Carlo error of an sd follows; `None` if it
    does not exist, and then the sd is not judged, since draws do not estimate it."""
    quantiles: tuple[float, ...]
    """At `PROBABILITIES`; NaN where float32 cannot tell the quantile from a bound."""


@dataclass(frozen=True)
class Case:
    """A posterior with known truth.

    Args:
        name: a short name, unique in the gallery.
        kind: `"nasty"` if it has a feature that samplers are known to miss.
        build: returns the model, its args and its kwargs for `relbo.infer`.
        quantities: the scalar quantities judged, as functions of draws by site.
        truths: returns the truth of each quantity; by default it is taken from `draws`.
        draws: returns exact draws of all latent sites, given a generator and their number.
        proper: whether there is a posterior at all; if not, no answer is right.
        held_out: whether the case is kept aside and not used for tuning.
    """

    name: str
    kind: Literal["ordinary", "nasty"]
    build: Callable[[], tuple[Any, tuple, dict[str, Any]]]
    quantities: Mapping[str, Callable[[Draws], np.ndarray]]
    truths: Callable[[], dict[str, Truth]] | None = None
    draws: Callable[[np.random.Generator, int], Draws] | None = None
    proper: bool = True
    held_out: bool = False

    def truth(self) -> dict[str, Truth]:
        """Computes the truth of each quantity."""
        if not self.proper:
            return {}
        if self.truths is not None:
            return self.truths()
        assert self.draws is not None, f"{self.name}: it has neither truths nor draws"
        draws = self.draws(np.random.default_rng(_SEED), NUM_EXACT_DRAWS)
        return {name: of_draws(fn(draws)) for name, fn in self.quantities.items()}


def entries(*names: str) -> dict[str, Callable[[Draws], np.ndarray]]:
    """Returns quantities that are entries of sites, such as `tau` or `theta[0]` or `r[0,1]`."""
    return {name: partial(_entry, name) for name in names}


def _entry(name: str, draws: Draws) -> np.ndarray:
    match = re.fullmatch(r"([^\[]+)(?:\[([\d,]+)\])?", name)
    assert match, name
    site, index = match.groups()
    if index is None:
        return np.asarray(draws[site])
    return np.asarray(draws[site])[(slice(None), *map(int, index.split(",")))]


def of_distribution(distribution: Any) -> Truth:
    """Reads the truth from a distribution of `scipy.stats`."""
    mean, variance, kurtosis = (float(m) for m in distribution.stats(moments="mvk"))
    exists = np.isfinite(variance)
    return Truth(
        mean if exists else None,
        variance**0.5 if exists else None,
        kurtosis + 3.0 if np.isfinite(kurtosis) else None,
        tuple(float(q) for q in distribution.ppf(PROBABILITIES)),
    )


def of_normal(mean: float, sd: float) -> Truth:
    z = np.array([-2.3263478740408408, -1.6448536269514729])
    return Truth(
        float(mean), float(sd), 3.0, tuple(float(mean + sd * x) for x in (*z, *-z[::-1]))
    )


def of_draws(values: np.ndarray) -> Truth:
    """Estimates the truth from many exact draws."""
    values = np.asarray(values, np.float64)
    mean, sd = values.mean(), values.std()
    kurtosis = np.mean(((values - mean) / sd) ** 4)
    quantiles = np.quantile(values, PROBABILITIES)
    return Truth(float(mean), float(sd), float(kurtosis), tuple(map(float, quantiles)))


def of_weighted(values: np.ndarray, weights: np.ndarray) -> Truth:
    """Computes the truth from weighted points: a grid, or importance weights."""
    values, weights = np.ravel(values).astype(float), np.ravel(weights).astype(float)
    weights = weights / weights.sum()
    order = np.argsort(values, kind="stable")
    values, weights = values[order], weights[order]
    mean = float(weights @ values)
    sd = float(weights @ (values - mean) ** 2) ** 0.5
    kurtosis = float(weights @ ((values - mean) / sd) ** 4)
    # Equal values of a grid count as one, or the interpolation would be a step function.
    is_new = np.diff(values, prepend=-np.inf) > 1e-10 * (values[-1] - values[0])
    values, weights = values[is_new], np.add.reduceat(weights, np.flatnonzero(is_new))
    middle = np.cumsum(weights) - weights / 2
    return Truth(
        mean, sd, kurtosis, tuple(map(float, np.interp(PROBABILITIES, middle, values)))
    )


def without_moments(truth: Truth) -> Truth:
    """Removes moments that do not exist; draws and grids always have some."""
    return truth._replace(mean=None, sd=None, kurtosis=None)


class Line:
    """A density on an evenly spaced one-dimensional grid."""

    def __init__(self, points: np.ndarray, logdensity: np.ndarray):
        self.points = points
        weights = np.exp(logdensity - logdensity.max())
        self.weights = weights / weights.sum()

    def truth(self, function: Callable[[np.ndarray], np.ndarray] = lambda x: x) -> Truth:
        return of_weighted(function(self.points), self.weights)

    def draws(self, rng: np.random.Generator, number: int) -> np.ndarray:
        """Draws by the inverse of the distribution function."""
        edges = np.concatenate([[0.0], np.cumsum(self.weights)])
        step = self.points[1] - self.points[0]
        ends = np.concatenate([self.points - step / 2, [self.points[-1] + step / 2]])
        return np.interp(rng.random(number), edges / edges[-1], ends)


class Plane:
    """A density on an evenly spaced two-dimensional grid."""

    def __init__(
        self,
        x: np.ndarray,
        y: np.ndarray,
        logdensity: Callable[[np.ndarray, np.ndarray], np.ndarray],
    ):
        self.steps = (x[1] - x[0], y[1] - y[0])
        self.x, self.y = (a.ravel() for a in np.meshgrid(x, y, indexing="ij"))
        # In pieces, since a likelihood is an array over the data too.
        pieces = [
            logdensity(self.x[i : i + 4000], self.y[i : i + 4000])
            for i in range(0, len(self.x), 4000)
        ]
        values = np.concatenate(pieces)
        weights = np.exp(values - values.max())
        self.weights = weights / weights.sum()

    def truth(self, function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Truth:
        return of_weighted(function(self.x, self.y), self.weights)

    def draws(self, rng: np.random.Generator, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Draws a cell, and a point in it."""
        cells = np.searchsorted(np.cumsum(self.weights), rng.random(number))
        cells = np.minimum(cells, len(self.x) - 1)
        jitter = rng.random((2, number)) - 0.5
        return (
            self.x[cells] + jitter[0] * self.steps[0],
            self.y[cells] + jitter[1] * self.steps[1],
        )


def importance_truths(
    logdensity: Callable[[np.ndarray], np.ndarray],
    start: np.ndarray,
    functions: Mapping[str, Callable[[np.ndarray], np.ndarray]],
    number: int = 400_000,
) -> dict[str, Truth]:
    """Computes truths by importance sampling from a Student t at the mode.

    Args:
        logdensity: the log density of each row of an array of points.
        start: a point to search the mode from.
        functions: scalar quantities of the rows.
        number: the number of points; three quarters of them must be effective for a posterior
            that is close to normal, and a quarter at least for any.
    """
    from scipy.optimize import minimize

    size = len(start)
    loss = lambda point: -float(logdensity(point[None])[0])
    mode = minimize(loss, start, method="BFGS", options={"gtol": 1e-6}).x
    covariance = np.linalg.inv(_hessian(loss, mode))
    factor = np.linalg.cholesky(covariance) * 1.05
    rng, degrees = np.random.default_rng(_SEED), 12.0
    normal = rng.standard_normal((number, size))
    scale = np.sqrt(rng.chisquare(degrees, number) / degrees)
    white = normal / scale[:, None]
    points = mode + white @ factor.T
    log_proposal = -0.5 * (degrees + size) * np.log1p((white**2).sum(1) / degrees)
    pieces = [logdensity(points[i : i + 20_000]) for i in range(0, number, 20_000)]
    log_weights = np.concatenate(pieces) - log_proposal
    weights = np.exp(log_weights - log_weights.max())
    effective = weights.sum() ** 2 / (weights**2).sum()
    assert effective > number / 4, f"only {effective:.0f} of {number} points are effective"
    return {name: of_weighted(fn(points), weights) for name, fn in functions.items()}


def _hessian(function: Callable[[np.ndarray], float], point: np.ndarray) -> np.ndarray:
    """Computes a Hessian by central differences."""
    size, step = len(point), 1e-3
    shifts = step * np.eye(size)
    result = np.empty((size, size))
    for i in range(size):
        for j in range(i, size):
            corners = (
                function(point + si * shifts[i] + sj * shifts[j]) * si * sj
                for si in (1, -1)
                for sj in (1, -1)
            )
            result[i, j] = result[j, i] = sum(corners) / (4 * step**2)
    return result
