"""PyMC models of the kind that its documentation shows, with their exact posteriors."""

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import stats

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # ArviZ announces its successor
    import pymc as pm

RNG = np.random.default_rng(3)
X = np.column_stack([np.ones(20), RNG.normal(1.0, 1.0, 20)])
Y = X @ [0.5, -1.0] + 0.7 * RNG.normal(size=20)
COUNTS = np.array([3, 1, 6, 2])
SCHOOLS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


class Moments(NamedTuple):
    """The exact mean and standard deviation of a variable."""

    mean: Any
    sd: Any


def regression() -> tuple[pm.Model, dict[str, Moments]]:
    """A linear regression with named coordinates, mutable data and a deterministic variable."""
    with pm.Model(coords={"term": ["intercept", "slope"], "row": np.arange(20)}) as model:
        x = pm.Data("x", X, dims=("row", "term"))
        weights = pm.Normal("weights", 0.0, 2.0, dims="term")
        mean = pm.Deterministic("mean", pm.math.dot(x, weights), dims="row")
        pm.Normal("y", mean, 0.7, observed=Y, dims="row")
    covariance = np.linalg.inv(np.eye(2) / 4 + X.T @ X / 0.49)
    mean = covariance @ X.T @ Y / 0.49
    predicted = np.sqrt(np.diagonal(X @ covariance @ X.T))
    return model, {
        "weights": Moments(mean, np.sqrt(np.diagonal(covariance))),
        "mean": Moments(X @ mean, predicted),
    }


def proportion() -> tuple[pm.Model, dict[str, Moments]]:
    """A log-odds transform."""
    with pm.Model() as model:
        p = pm.Beta("p", 2.0, 2.0)
        pm.Binomial("heads", 10, p, observed=7)
    exact = stats.beta(9, 5)
    return model, {"p": Moments(exact.mean(), exact.std())}


def rate() -> tuple[pm.Model, dict[str, Moments]]:
    """A log transform."""
    with pm.Model() as model:
        rate = pm.Gamma("rate", 2.0, 1.0)
        pm.Poisson("count", rate, observed=COUNTS)
    exact = stats.gamma(2 + COUNTS.sum(), scale=1 / 5)
    return model, {"rate": Moments(exact.mean(), exact.std())}


def shares() -> tuple[pm.Model, dict[str, Moments]]:
    """A simplex, which has one unconstrained value less than entries."""
    with pm.Model(coords={"party": list("abcd")}) as model:
        shares = pm.Dirichlet("shares", np.ones(4), dims="party")
        pm.Multinomial("votes", COUNTS.sum(), shares, observed=COUNTS)
    exact = stats.dirichlet(1 + COUNTS)
    return model, {"shares": Moments(exact.mean(), np.sqrt(exact.var()))}


def stick() -> tuple[pm.Model, dict[str, Moments]]:
    """An interval that depends on another variable, and a potential.

    The density is proportional to first on 0 < second < first < 1.
    """
    with pm.Model() as model:
        first = pm.Uniform("first", 0.0, 1.0)
        pm.Uniform("second", 0.0, first)
        pm.Potential("weight", pm.math.log(first))
    first, ratio = stats.beta(2, 1), stats.uniform()
    squares = (first.var() + first.mean() ** 2) * (ratio.var() + 0.25)
    return model, {
        "first": Moments(first.mean(), first.std()),
        "second": Moments(1 / 3, np.sqrt(squares - 1 / 9)),
    }


def random_walk() -> tuple[pm.Model, dict[str, Moments]]:
    """A time series."""
    y = Y[:8]
    with pm.Model() as model:
        walk = pm.GaussianRandomWalk(
            "walk", 0.0, 0.5, init_dist=pm.Normal.dist(0.0, 1.0), shape=8
        )
        pm.Normal("y", walk, 0.7, observed=y)
    times = np.arange(8)
    prior = 1.0 + 0.25 * np.minimum(times[:, None], times)
    covariance = np.linalg.inv(np.linalg.inv(prior) + np.eye(8) / 0.49)
    return model, {"walk": Moments(covariance @ y / 0.49, np.sqrt(np.diagonal(covariance)))}


def missing() -> tuple[pm.Model, dict[str, Moments]]:
    """A missing observation, which PyMC imputes."""
    y = np.ma.masked_invalid([1.0, np.nan, 2.0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyMC announces the imputation
        with pm.Model() as model:
            mean = pm.Normal("mean", 0.0, 1.0)
            pm.Normal("y", mean, 1.0, observed=y)
    return model, {
        "mean": Moments(1.0, 3**-0.5),
        "y_unobserved": Moments([1.0], [(4 / 3) ** 0.5]),
    }


def censored() -> tuple[pm.Model, dict[str, Moments]]:
    """A density that PyTensor 2 cannot write in JAX."""
    limit = 1.0
    y = np.minimum(Y, limit)
    with pm.Model() as model:
        mean = pm.Normal("mean", 0.0, 5.0)
        normal = pm.Normal.dist(mean, 1.0)
        pm.Censored("y", normal, lower=None, upper=limit, observed=y)
    grid = np.linspace(-3.0, 3.0, 4001)
    at_limit = np.sum(y == limit)
    log_density = stats.norm(0.0, 5.0).logpdf(grid) + at_limit * stats.norm(grid).logsf(limit)
    log_density += stats.norm(grid[:, None]).logpdf(y[y < limit]).sum(1)
    weights = np.exp(log_density - log_density.max())
    mean, square = (np.average(values, weights=weights) for values in (grid, grid**2))
    return model, {"mean": Moments(mean, (square - mean**2) ** 0.5)}


EXACT: list[Callable[[], tuple[pm.Model, dict[str, Moments]]]] = [
    regression,
    proportion,
    rate,
    shares,
    stick,
    random_walk,
    missing,
    censored,
]


def schools() -> pm.Model:
    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        mu = pm.Normal("mu", 0.0, 5.0)
        tau = pm.HalfCauchy("tau", 5.0)
        z = pm.Normal("z", 0.0, 1.0, dims="school")
        theta = pm.Deterministic("theta", mu + tau * z, dims="school")
        pm.Normal("effect", theta, ERRORS, observed=SCHOOLS, dims="school")
    return model


def correlated() -> pm.Model:
    """A covariance by its Cholesky root, and ordered means."""
    y = RNG.normal(size=(20, 2)) @ np.array([[1.0, 0.8], [0.0, 0.6]])
    with pm.Model() as model:
        root, _, _ = pm.LKJCholeskyCov("root", n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(2.0))
        ordered = pm.distributions.transforms.ordered
        mean = pm.Normal(
            "mean", 0.0, 2.0, shape=2, transform=ordered, initval=np.array([-1.0, 1.0])
        )
        pm.MvNormal("y", mean, chol=root, observed=y)
    return model
