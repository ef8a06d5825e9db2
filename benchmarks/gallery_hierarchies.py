"""Hierarchical models in centred and non-centred form, and a random-intercept regression.

Given the scale tau all other parameters of a normal hierarchy are normal, so exact draws need
a one-dimensional grid over log tau only.
"""

from typing import Any, Literal

import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import special, stats

from gallery_truth import Case, Line, Plane, Truth, entries, of_draws

SCHOOLS_Y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
SCHOOLS_SD = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


class NormalHierarchy:
    """y_j ~ N(theta_j, sd_j), theta_j ~ N(mu, tau), mu ~ N(0, 5), and a prior on tau."""

    def __init__(self, y: np.ndarray, sd: np.ndarray, tau_prior: Literal["cauchy", "normal"]):
        self.y, self.sd, self.tau_prior = y, sd, tau_prior

    def centred(self, y: Any, sd: Any) -> None:
        mu, tau = self._top()
        theta = numpyro.sample("theta", dist.Normal(mu, tau).expand([len(y)]).to_event(1))
        numpyro.sample("y", dist.Normal(theta, sd), obs=y)

    def noncentred(self, y: Any, sd: Any) -> None:
        mu, tau = self._top()
        white = numpyro.sample("white", dist.Normal(0.0, 1.0).expand([len(y)]).to_event(1))
        theta = numpyro.deterministic("theta", mu + tau * white)
        numpyro.sample("y", dist.Normal(theta, sd), obs=y)

    def _top(self) -> tuple[Any, Any]:
        is_cauchy = self.tau_prior == "cauchy"
        prior = dist.HalfCauchy(5.0) if is_cauchy else dist.HalfNormal(1.0)
        return numpyro.sample("mu", dist.Normal(0.0, 5.0)), numpyro.sample("tau", prior)

    def draws(
        self, rng: np.random.Generator, number: int, groups: slice = slice(None)
    ) -> dict[str, np.ndarray]:
        """Draws tau from its marginal posterior, then mu given tau, then theta of groups."""
        log_tau = np.linspace(np.log(1e-5), np.log(1e4), 40_001)
        tau = np.exp(log_tau)
        if self.tau_prior == "cauchy":
            prior = stats.halfcauchy.logpdf(tau, scale=5)
        else:
            prior = stats.halfnorm.logpdf(tau)
        tau = np.exp(Line(log_tau, prior + log_tau + self._likelihood(tau)).draws(rng, number))
        mean, precision = self._given(tau)
        mu = mean + rng.standard_normal(number) / np.sqrt(precision)
        y, sd = self.y[groups], self.sd[groups]
        weight = tau[:, None] ** 2 / (tau[:, None] ** 2 + sd**2)
        loc = mu[:, None] + weight * (y - mu[:, None])
        theta = loc + np.sqrt(weight) * sd * rng.standard_normal((number, len(y)))
        white = (theta - mu[:, None]) / tau[:, None]
        return {"mu": mu, "tau": tau, "theta": theta, "white": white}

    def _given(self, tau: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the mean and precision of mu given tau."""
        precisions = 1 / (tau[:, None] ** 2 + self.sd**2)
        precision = 1 / 25 + precisions.sum(1)
        return precisions @ self.y / precision, precision

    def _likelihood(self, tau: np.ndarray) -> np.ndarray:
        """Returns log p(y | tau) by Bayes' rule at the mean of mu."""
        mean, precision = self._given(tau)
        sds = np.sqrt(tau[:, None] ** 2 + self.sd**2)
        joint = stats.norm.logpdf(self.y, mean[:, None], sds).sum(1)
        return joint + stats.norm.logpdf(mean, 0, 5) + 0.5 * np.log(2 * np.pi / precision)

    def case(self, name: str, kind: Any, form: Literal["centred", "noncentred"]) -> Case:
        model = self.centred if form == "centred" else self.noncentred
        unused = "white" if form == "centred" else "theta"

        def draws(rng: np.random.Generator, number: int) -> dict[str, np.ndarray]:
            return _without(self.draws(rng, number), unused)

        return Case(
            name,
            kind,
            lambda: (model, (self.y, self.sd), {}),
            entries("mu", "tau", "theta[0]"),
            self._truths,
            draws,
        )

    def _truths(self) -> dict[str, Truth]:
        draws = self.draws(np.random.default_rng(1), 1_000_000, slice(1))
        found = {name: of_draws(draws[name]) for name in ("mu", "tau")}
        return {**found, "theta[0]": of_draws(draws["theta"][:, 0])}


def _without(draws: dict[str, np.ndarray], name: str) -> dict[str, np.ndarray]:
    return {site: values for site, values in draws.items() if site != name}


_SCHOOLS = NormalHierarchy(SCHOOLS_Y, SCHOOLS_SD, "cauchy")
_WEAK = NormalHierarchy(np.array([0.3, -0.6, 1.1, 0.2, -0.4]), np.full(5, 1.0), "normal")
_GROUPS = NormalHierarchy(
    np.random.default_rng(31).normal(1.0, 0.8, 20), np.full(20, 0.5), "normal"
)
_PRECISE = NormalHierarchy(
    np.random.default_rng(32).normal(2.0, 1.0, 20), np.full(20, 0.05), "normal"
)


class TwoScales:
    """Two centred levels of normal effects: nested groups, or crossed rows and columns.

    The covariances of both levels share their eigenvectors, so that the likelihood of the two
    scales is a product over these.
    """

    def __init__(self, shape: tuple[int, int], noise: float, is_crossed: bool):
        rng = np.random.default_rng(sum(shape))
        rows, columns = shape
        self.noise, self.is_crossed = noise, is_crossed
        second = rng.normal(size=(1, columns) if is_crossed else shape)
        self.y = (
            0.5 * rng.normal(size=(rows, 1)) + 0.3 * second + noise * rng.normal(size=shape)
        )

    def model(self, y: Any) -> None:
        rows, columns = y.shape
        first = numpyro.sample("first", dist.HalfNormal(1.0))
        second = numpyro.sample("second", dist.HalfNormal(1.0))
        a: Any = numpyro.sample("a", dist.Normal(0.0, first).expand([rows]).to_event(1))
        if self.is_crossed:
            b: Any = numpyro.sample("b", dist.Normal(0.0, second).expand([columns]).to_event(1))
            means = a[:, None] + b
        else:
            around: Any = dist.Normal(a[:, None], second).expand([rows, columns])
            means = numpyro.sample("b", around.to_event(2))
        numpyro.sample("y", dist.Normal(means, self.noise), obs=y)

    def _plane(self) -> Plane:
        rows, columns = self.y.shape
        of_first = np.kron(np.eye(rows), np.ones((columns, columns)))
        of_second = np.eye(rows * columns)
        if self.is_crossed:
            of_second = np.kron(np.ones((rows, rows)), np.eye(columns))
        _, axes = np.linalg.eigh(of_first + np.pi * of_second)
        first, second = (np.diag(axes.T @ part @ axes) for part in (of_first, of_second))
        squares = (axes.T @ self.y.ravel()) ** 2

        def logdensity(log_a: np.ndarray, log_b: np.ndarray) -> np.ndarray:
            a, b = np.exp(2 * log_a)[:, None], np.exp(2 * log_b)[:, None]
            variance = a * first + b * second + self.noise**2
            likelihood = -0.5 * np.sum(np.log(variance) + squares / variance, 1)
            return likelihood - 0.5 * (a + b)[:, 0] + log_a + log_b

        axis = np.linspace(np.log(1e-4), np.log(8.0), 241)
        return Plane(axis, axis, logdensity)

    def draws(self, rng: np.random.Generator, number: int) -> dict[str, np.ndarray]:
        """Draws the scales from the grid, and the effects given the scales and the data."""
        rows, columns = self.y.shape
        first, second = (np.exp(part) for part in self._plane().draws(rng, number))
        of_second = np.tile(np.eye(columns), (rows, 1))
        if not self.is_crossed:
            of_second = np.eye(rows * columns)
        design = np.hstack([np.repeat(np.eye(rows), columns, 0), of_second])
        parts = [first] * rows + [second] * of_second.shape[1]
        deviations = np.stack(parts, 1)
        effects = np.concatenate(
            [self._effects(rng, design, part) for part in np.array_split(deviations, 100)]
        )
        a, b = effects[:, :rows], effects[:, rows:]
        if not self.is_crossed:
            b = a[:, :, None] + b.reshape(-1, rows, columns)
        return {"first": first, "second": second, "a": a, "b": b}

    def _effects(
        self, rng: np.random.Generator, design: np.ndarray, deviations: np.ndarray
    ) -> np.ndarray:
        """Draws effects with given prior deviations from their normal posterior."""
        # In units of the prior deviations, so that small ones do no harm.
        scaled = design * deviations[:, None] / self.noise
        precision = np.eye(design.shape[1]) + np.swapaxes(scaled, 1, 2) @ scaled
        target = np.swapaxes(scaled, 1, 2) @ self.y.ravel() / self.noise
        factor = np.linalg.cholesky(np.linalg.inv(precision))
        mean = np.linalg.solve(precision, target[..., None])[..., 0]
        noise = rng.standard_normal(mean.shape)
        return deviations * (mean + np.einsum("nij,nj->ni", factor, noise))

    def _truths(self) -> dict[str, Truth]:
        plane = self._plane()
        return {
            "first": plane.truth(lambda a, b: np.exp(a)),
            "second": plane.truth(lambda a, b: np.exp(b)),
        }

    def case(self, name: str) -> Case:
        build = lambda: (self.model, (self.y,), {})
        names = entries("first", "second")
        return Case(name, "nasty", build, names, self._truths, self.draws)


# Random intercepts: given mu and tau the groups are independent, one integral each.

_GROUP_SIZE = 10
_SUCCESSES = np.array([2, 5, 7, 4, 9, 3, 6, 8, 5, 1, 6, 4])


def _random_intercepts(k: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 2.0))
    tau = numpyro.sample("tau", dist.HalfNormal(1.0))
    white = numpyro.sample("white", dist.Normal(0.0, 1.0).expand([len(k)]).to_event(1))
    intercept = numpyro.deterministic("intercept", mu + tau * white)
    numpyro.sample("k", dist.Binomial(_GROUP_SIZE, logits=intercept), obs=k)


def _random_intercepts_truths() -> dict[str, Truth]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(100)

    def logdensity(mu: np.ndarray, tau: np.ndarray) -> np.ndarray:
        logits = mu[:, None, None] + tau[:, None, None] * nodes[:, None]
        parts = _SUCCESSES * logits - _GROUP_SIZE * np.logaddexp(0, logits)
        likelihood = special.logsumexp(parts, axis=1, b=weights[:, None]).sum(1)
        return likelihood - 0.5 * (mu / 2) ** 2 - 0.5 * tau**2

    # Midpoints, since tau has a bound at 0.
    tau = (np.arange(160) + 0.5) * 0.025
    plane = Plane(np.linspace(-3, 3, 201), tau, logdensity)
    return {"mu": plane.truth(lambda m, t: m), "tau": plane.truth(lambda m, t: t)}


CASES = [
    _SCHOOLS.case("eight_schools_noncentred", "ordinary", "noncentred"),
    _SCHOOLS.case("eight_schools_centred", "nasty", "centred"),
    _WEAK.case("weak_hierarchy_centred", "nasty", "centred"),
    _GROUPS.case("twenty_groups_noncentred", "ordinary", "noncentred"),
    _GROUPS.case("twenty_groups_centred", "ordinary", "centred"),
    TwoScales((5, 4), 0.7, is_crossed=True).case("crossed_centred"),
    TwoScales((6, 3), 0.8, is_crossed=False).case("nested_centred"),
    _PRECISE.case("precise_groups_noncentred", "nasty", "noncentred"),
    Case(
        "random_intercepts",
        "ordinary",
        lambda: (_random_intercepts, (_SUCCESSES,), {}),
        entries("mu", "tau"),
        _random_intercepts_truths,
    ),
]
