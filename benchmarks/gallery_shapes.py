"""Nasty shapes: funnels, bananas, ridges, rings, kinks and steps."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import stats

import relbo
from gallery_truth import (
    Case,
    Draws,
    Line,
    Plane,
    Truth,
    entries,
    of_distribution,
    of_draws,
    of_normal,
    of_weighted,
    without_moments,
)


def density(logdensity_fn: Any, size: int) -> Any:
    """Returns a `build` of a plain log density over a vector `x`."""
    return lambda: (
        relbo.model_from_logdensity(lambda z: logdensity_fn(z["x"]), {"x": jnp.zeros(size)}),
        (),
        {},
    )


# Funnels.


def _small_funnel() -> None:
    z1 = numpyro.sample("z1", dist.Normal(0.0, 1.35))
    numpyro.sample("z2", dist.Normal(0.0, jnp.exp(jnp.asarray(z1))))


def _small_funnel_draws(rng: np.random.Generator, number: int) -> Draws:
    z1 = 1.35 * rng.standard_normal(number)
    return {"z1": z1, "z2": np.exp(z1) * rng.standard_normal(number)}


def _neal(size: int) -> Any:
    def model() -> None:
        v = numpyro.sample("v", dist.Normal(0.0, 3.0))
        scale = jnp.exp(jnp.asarray(v) / 2)
        numpyro.sample("x", dist.Normal(0.0, scale).expand([size - 1]).to_event(1))

    return model


def _neal_case(size: int) -> Case:
    def draws(rng: np.random.Generator, number: int) -> Draws:
        v = 3.0 * rng.standard_normal(number)
        x = np.exp(v / 2)[:, None] * rng.standard_normal((number, size - 1))
        return {"v": v, "x": x}

    def truths() -> dict[str, Truth]:
        # One entry of x is enough for the truth, whatever the size.
        rng = np.random.default_rng(2)
        scale = np.exp(1.5 * rng.standard_normal(1_000_000))
        x = of_draws(scale * rng.standard_normal(1_000_000))
        # The variance of x is exp(9 / 2), and its kurtosis 3 exp(9).
        x = x._replace(mean=0.0, sd=float(np.exp(9 / 4)), kurtosis=float(3 * np.exp(9)))
        return {"v": of_normal(0.0, 3.0), "x[0]": x}

    build = lambda: (_neal(size), (), {})
    return Case(f"funnel_{size}", "nasty", build, entries("v", "x[0]"), truths, draws)


def _horseshoe() -> None:
    tau = numpyro.sample("tau", dist.HalfCauchy(1.0))
    lam = numpyro.sample("lam", dist.HalfCauchy(1.0).expand([5]).to_event(1))
    numpyro.sample("beta", dist.Normal(0.0, tau * lam).to_event(1))


def _horseshoe_draws(rng: np.random.Generator, number: int) -> Draws:
    tau = np.abs(rng.standard_cauchy(number))
    lam = np.abs(rng.standard_cauchy((number, 5)))
    beta = tau[:, None] * lam * rng.standard_normal((number, 5))
    return {"tau": tau, "lam": lam, "beta": beta}


def _horseshoe_truths() -> dict[str, Truth]:
    draws = _horseshoe_draws(np.random.default_rng(3), 1_000_000)
    return {
        "tau": of_distribution(stats.halfcauchy()),
        "lam[0]": of_distribution(stats.halfcauchy()),
        "beta[0]": without_moments(of_draws(draws["beta"][:, 0])),
    }


# Bananas.


def _banana(x: Any) -> Any:
    return -0.5 * (x[0] / 10) ** 2 - 0.5 * (x[1] - 0.03 * (x[0] ** 2 - 100)) ** 2


def _banana_draws(rng: np.random.Generator, number: int) -> Draws:
    first = 10 * rng.standard_normal(number)
    second = 0.03 * (first**2 - 100) + rng.standard_normal(number)
    return {"x": np.stack([first, second], 1)}


def _rosenbrock() -> None:
    a = numpyro.sample("a", dist.Normal(1.0, 1.0))
    numpyro.sample("b", dist.Normal(jnp.asarray(a) ** 2, 0.1))


def _rosenbrock_draws(rng: np.random.Generator, number: int) -> Draws:
    a = 1 + rng.standard_normal(number)
    return {"a": a, "b": a**2 + 0.1 * rng.standard_normal(number)}


# Ridges.


def _product(y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 100.0))
    b = numpyro.sample("b", dist.Normal(0.0, 100.0))
    numpyro.sample("y", dist.Normal(a * b, 0.1), obs=y)


def _product_draws(rng: np.random.Generator, number: int) -> Draws:
    # The marginal of a is exact: y given a is N(0, 0.1^2 + 100^2 a^2). On log |a|, by sign.
    log_a = np.linspace(np.log(1e-7), np.log(1000.0), 40_001)
    a = np.exp(log_a)
    variance = 0.01 + (100 * a) ** 2
    log_weights = log_a - 0.5 * (a / 100) ** 2 - 0.5 * np.log(variance) - 0.5 / variance
    size = np.exp(Line(log_a, log_weights).draws(rng, number))
    a = size * rng.choice([-1.0, 1.0], number)
    precision = 1e-4 + a**2 / 0.01
    b = a / 0.01 / precision + rng.standard_normal(number) / np.sqrt(precision)
    return {"a": a, "b": b}


_SUM_Y = np.array([1.3, 2.1, 0.4, 1.9, 1.1, 0.6, 1.4, 2.3, 1.0, 1.5])


def _sum(y: Any) -> None:
    a = numpyro.sample("a", dist.Normal(0.0, 100.0))
    b = numpyro.sample("b", dist.Normal(0.0, 100.0))
    numpyro.sample("y", dist.Normal(a + b, 1.0), obs=y)


_SUM_COVARIANCE = np.linalg.inv(np.eye(2) / 1e4 + 10 * np.ones((2, 2)))
_SUM_MEAN = _SUM_COVARIANCE @ np.full(2, _SUM_Y.sum())


def _sum_truths() -> dict[str, Truth]:
    sd = _SUM_COVARIANCE[0, 0] ** 0.5
    both = of_normal(_SUM_MEAN.sum(), _SUM_COVARIANCE.sum() ** 0.5)
    return {"a": of_normal(_SUM_MEAN[0], sd), "b": of_normal(_SUM_MEAN[1], sd), "a + b": both}


def _sum_draws(rng: np.random.Generator, number: int) -> Draws:
    draws = rng.multivariate_normal(_SUM_MEAN, _SUM_COVARIANCE, number)
    return {"a": draws[:, 0], "b": draws[:, 1]}


# Rings: the radius has a density of its own, the direction is uniform.


def _ring(x: Any) -> Any:
    return -0.5 * ((jnp.sqrt(jnp.sum(x**2) + 1e-12) - 5.0) / 0.2) ** 2


def _ring_draws(rng: np.random.Generator, number: int) -> Draws:
    r = np.linspace(1e-6, 8.0, 40_001)
    radius = Line(r, np.log(r) - 0.5 * ((r - 5) / 0.2) ** 2).draws(rng, number)
    return {"x": _around(rng, radius)}


def _around(rng: np.random.Generator, radius: np.ndarray) -> np.ndarray:
    angle = 2 * np.pi * rng.random(len(radius))
    return radius[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)


def _power(y: Any) -> None:
    x = numpyro.sample("x", dist.Normal(0.0, 3.0).expand([2]).to_event(1))
    numpyro.sample("y", dist.Normal(jnp.sum(x**2), 0.5), obs=y)


def _power_draws(rng: np.random.Generator, number: int) -> Draws:
    square = np.linspace(1e-6, 16.0, 40_001)
    line = Line(square, -0.5 * square / 9 - 0.5 * ((square - 9) / 0.5) ** 2)
    return {"x": _around(rng, np.sqrt(line.draws(rng, number)))}


_RADIUS = {"radius": lambda draws: np.sqrt((draws["x"].astype(float) ** 2).sum(1))}


# Kinks and steps.


def _laplace(x: Any) -> Any:
    return -jnp.sum(jnp.abs(x) / jnp.array([1.0, 0.1, 10.0, 1.0, 1.0]))


def _laplace_truths() -> dict[str, Truth]:
    scales = {"x[0]": 1.0, "x[1]": 0.1, "x[2]": 10.0}
    return {name: of_distribution(stats.laplace(scale=s)) for name, s in scales.items()}


def _step(x: Any) -> Any:
    return -0.5 * jnp.sum(x**2) + jnp.where(x[0] > 0.5, jnp.log(8.0), 0.0)


def _step_draws(rng: np.random.Generator, number: int) -> Draws:
    low, high = stats.norm.cdf(0.5), 8 * stats.norm.sf(0.5)
    is_high = rng.random(number) < high / (low + high)
    below = stats.truncnorm.rvs(-np.inf, 0.5, size=number, random_state=rng)
    above = stats.truncnorm.rvs(0.5, np.inf, size=number, random_state=rng)
    return {"x": np.stack([np.where(is_high, above, below), rng.standard_normal(number)], 1)}


def _step_truths() -> dict[str, Truth]:
    x = np.linspace(-8, 8, 160_000)  # 0.5 lies between two points
    weights = stats.norm.pdf(x) * np.where(x > 0.5, 8.0, 1.0)
    return {"x[0]": of_weighted(x, weights), "x[1]": of_normal(0.0, 1.0)}


def _box(x: Any) -> Any:
    inside = jnp.all(jnp.abs(x) < 1.0)
    return jnp.where(inside, 0.0, -jnp.inf) - 0.5 * jnp.sum(x) ** 2


def _box_plane() -> Plane:
    axis = (np.arange(1000) + 0.5) / 500 - 1
    return Plane(axis, axis, lambda a, b: -0.5 * (a + b) ** 2)


def _box_truths() -> dict[str, Truth]:
    plane = _box_plane()
    return {"x[0]": plane.truth(lambda a, b: a), "x[0] + x[1]": plane.truth(lambda a, b: a + b)}


CASES = [
    Case(
        "funnel_2",
        "nasty",
        lambda: (_small_funnel, (), {}),
        entries("z1", "z2"),
        None,
        _small_funnel_draws,
    ),
    _neal_case(10),
    _neal_case(100),
    Case(
        "horseshoe_5",
        "nasty",
        lambda: (_horseshoe, (), {}),
        entries("tau", "lam[0]", "beta[0]"),
        _horseshoe_truths,
        _horseshoe_draws,
    ),
    Case(
        "banana_2", "nasty", density(_banana, 2), entries("x[0]", "x[1]"), None, _banana_draws
    ),
    Case(
        "rosenbrock",
        "nasty",
        lambda: (_rosenbrock, (), {}),
        entries("a", "b"),
        None,
        _rosenbrock_draws,
    ),
    Case(
        "product_ridge",
        "nasty",
        lambda: (_product, (1.0,), {}),
        {**entries("a"), "|a|": lambda d: np.abs(d["a"]), "a b": lambda d: d["a"] * d["b"]},
        None,
        _product_draws,
    ),
    Case(
        "sum_ridge_proper",
        "nasty",
        lambda: (_sum, (_SUM_Y,), {}),
        {**entries("a", "b"), "a + b": lambda draws: draws["a"] + draws["b"]},
        _sum_truths,
        _sum_draws,
    ),
    Case("ring", "nasty", density(_ring, 2), {**entries("x[0]"), **_RADIUS}, None, _ring_draws),
    Case(
        "power_ring",
        "nasty",
        lambda: (_power, (9.0,), {}),
        {**entries("x[0]", "x[1]"), **_RADIUS},
        None,
        _power_draws,
    ),
    Case(
        "laplace_5",
        "nasty",
        density(_laplace, 5),
        entries("x[0]", "x[1]", "x[2]"),
        _laplace_truths,
        lambda rng, number: {
            "x": rng.laplace(size=(number, 5)) * np.array([1.0, 0.1, 10.0, 1.0, 1.0])
        },
    ),
    Case(
        "step", "nasty", density(_step, 2), entries("x[0]", "x[1]"), _step_truths, _step_draws
    ),
    Case(
        "box",
        "nasty",
        density(_box, 2),
        {**entries("x[0]"), "x[0] + x[1]": lambda draws: draws["x"].sum(1)},
        _box_truths,
        lambda rng, number: {"x": np.stack(_box_plane().draws(rng, number), 1)},
    ),
]
