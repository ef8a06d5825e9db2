"""Nasty cases at extremes: tails, boundaries, scales, float32, improper posteriors."""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints
from scipy import stats

from gallery_conjugate import jeffreys_draws, jeffreys_truths, one_site, simple
from gallery_hierarchies import SCHOOLS_SD, SCHOOLS_Y
from gallery_shapes import density
from gallery_truth import Case, Draws, Truth, entries, of_distribution, of_normal

# Heavy tails.


def _pareto_edge(x: Any) -> Any:
    return jnp.where(x[0] > 1.0, -3.5 * jnp.log(jnp.maximum(x[0], 1.0)), -jnp.inf)


def _start_at_2() -> Any:
    import relbo

    position = {"x": jnp.full(1, 2.0)}
    return relbo.model_from_logdensity(lambda z: _pareto_edge(z["x"]), position), (), {}


def _iid(name: str, build: Any, size: int, distribution: Any) -> Case:
    """Makes a case of independent entries with one distribution."""
    names = ("x[0]", f"x[{size - 1}]")
    return Case(
        name,
        "nasty",
        build,
        entries(*dict.fromkeys(names)),
        lambda: {name: of_distribution(distribution) for name in names},
        lambda rng, number: {"x": distribution.rvs((number, size), random_state=rng)},
    )


HEAVY_TAILS = [
    simple(
        "student_t_2",
        one_site(lambda: dist.StudentT(2.0, 1.0, 3.0)),
        "nasty",
        x=stats.t(2, 1, 3),
    ),
    simple("cauchy", one_site(lambda: dist.Cauchy(0.0, 1.0)), "nasty", x=stats.cauchy()),
    _iid(
        "cauchy_10",
        one_site(lambda: dist.Cauchy(0.0, 1.0).expand([10]).to_event(1)),
        10,
        stats.cauchy(),
    ),
    simple(
        "half_cauchy",
        one_site(lambda: dist.HalfCauchy(2.0)),
        "nasty",
        x=stats.halfcauchy(scale=2),
    ),
    simple("pareto", one_site(lambda: dist.Pareto(1.0, 2.25)), "nasty", x=stats.pareto(2.25)),
    _iid("pareto_edge", _start_at_2, 1, stats.pareto(2.5)),
]


# Boundaries.


def _at_edge(y: Any) -> None:
    p = numpyro.sample("p", dist.Uniform(0.0, 1.0))
    numpyro.sample("y", dist.Normal(p, 0.1), obs=y)


def _upper_end(y: Any) -> None:
    end = numpyro.sample("end", dist.Gamma(1.0, 0.1))
    numpyro.factor("y", jnp.where(end > jnp.max(y), -len(y) * jnp.log(end), -jnp.inf))


_BELOW_END = np.array([1.2, 3.4, 2.2, 0.3, 2.9])


def _upper_end_line() -> Any:
    from gallery_truth import Line

    x = 3.4 + (np.arange(400_000) + 0.5) * 1e-3
    return Line(x, -5 * np.log(x) - 0.1 * x)


def _beta_truths() -> dict[str, Truth]:
    truth = of_distribution(stats.beta(0.05, 0.05))
    # Values closer to 1 than 1e-7 are 1 in float32. In float64 too NumPyro clips values at the
    # rounding error, which cuts a tail: NUTS in --verify is off by several errors.
    return {"x": truth._replace(quantiles=(*truth.quantiles[:2], np.nan, np.nan))}


BOUNDARIES = [
    Case(
        "beta_0.05",
        "nasty",
        one_site(lambda: dist.Beta(0.05, 0.05)),
        entries("x"),
        _beta_truths,
    ),
    simple(
        "uniform_at_edge",
        lambda: (_at_edge, (1.5,), {}),
        "nasty",
        p=stats.truncnorm(-15, -5, 1.5, 0.1),
    ),
    simple("gamma_0.1", one_site(lambda: dist.Gamma(0.1, 1.0)), "nasty", x=stats.gamma(0.1)),
    simple(
        "truncated_tail",
        one_site(lambda: dist.TruncatedNormal(-5.0, 1.0, low=0.0)),
        "nasty",
        x=stats.truncnorm(5, np.inf, -5),
    ),
    # Not even float64 resolves what the sticks leave of the last entry.
    Case(
        "dirichlet_0.1",
        "nasty",
        one_site(lambda: dist.Dirichlet(jnp.full(5, 0.1))),
        entries("x[0]", "x[1]", "x[4]"),
        lambda: {f"x[{i}]": of_distribution(stats.beta(0.1, 0.4)) for i in (0, 1, 4)},
    ),
    Case(
        "uniform_upper_end",
        "nasty",
        lambda: (_upper_end, (_BELOW_END,), {}),
        entries("end"),
        lambda: {"end": _upper_end_line().truth()},
        lambda rng, number: {"end": _upper_end_line().draws(rng, number)},
    ),
]


# Bad scales.

_SCALES = np.logspace(-6, 6, 13)


def _scales() -> None:
    numpyro.sample("x", dist.Normal(0.0, jnp.asarray(_SCALES)).to_event(1))


_COLUMNS = np.array([1e-4, 1.0, 1e4])
_SCALED_X = np.random.default_rng(51).normal(size=(50, 3)) * _COLUMNS
_SCALED_Y = _SCALED_X @ (np.array([1.0, -1.0, 0.5]) / _COLUMNS) + np.random.default_rng(
    52
).normal(size=50)


def _scaled_columns(X: Any, y: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0.0, 1e5).expand([3]).to_event(1))
    numpyro.sample("y", dist.Normal(X @ b, 1.0), obs=y)


def _scaled_posterior() -> tuple[np.ndarray, np.ndarray]:
    """Returns the mean and the covariance for columns of scale 1."""
    X, prior = _SCALED_X / _COLUMNS, np.diag(_COLUMNS**-2.0) * 1e-10
    covariance = np.linalg.inv(X.T @ X + prior)
    return covariance @ X.T @ _SCALED_Y, covariance


def _scaled_truths() -> dict[str, Truth]:
    mean, covariance = _scaled_posterior()
    sds = np.sqrt(np.diag(covariance))
    return {f"b[{i}]": of_normal(mean[i] / _COLUMNS[i], sds[i] / _COLUMNS[i]) for i in range(3)}


def _scaled_draws(rng: np.random.Generator, number: int) -> Draws:
    return {"b": rng.multivariate_normal(*_scaled_posterior(), number) / _COLUMNS}


# What float32 cannot resolve: a spacing of 8 at 1e8, of 0.06 at 1e6, of 0.001 at 1e4.


def _location(y: Any, prior_sd: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, prior_sd))
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)


def _location_case(name: str, y: np.ndarray, prior_sd: float) -> Case:
    precision = prior_sd**-2 + len(y)
    loc, sd = y.sum() / precision, precision**-0.5
    truths = lambda: {"mean": of_normal(loc, sd)}
    draws = lambda rng, number: {"mean": rng.normal(loc, sd, number)}
    build = lambda: (_location, (y, prior_sd), {})
    return Case(name, "nasty", build, entries("mean"), truths, draws)


def _offset(x: Any) -> Any:
    return 1e7 - 0.5 * jnp.sum(x**2)


_TIGHT_Y = 1e4 + 0.01 * np.random.default_rng(53).normal(size=50)


def _tight(y: Any) -> None:
    mean = numpyro.sample("mean", dist.ImproperUniform(constraints.real, (), ()))
    log_sd = numpyro.sample("log_sd", dist.ImproperUniform(constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(mean, jnp.exp(jnp.asarray(log_sd))), obs=y)


SCALES = [
    Case(
        "scales_1e-6_to_1e6",
        "nasty",
        lambda: (_scales, (), {}),
        entries("x[0]", "x[6]", "x[12]"),
        lambda: {f"x[{i}]": of_normal(0.0, _SCALES[i]) for i in (0, 6, 12)},
        lambda rng, number: {"x": _SCALES * rng.standard_normal((number, 13))},
    ),
    Case(
        "columns_1e-4_to_1e4",
        "nasty",
        lambda: (_scaled_columns, (_SCALED_X, _SCALED_Y), {}),
        entries("b[0]", "b[1]", "b[2]"),
        _scaled_truths,
        _scaled_draws,
    ),
    _location_case("location_1e8", 1e8 + np.array([-0.4, 0.1, 0.9]), 1e9),
    _location_case("location_1e6", 1e6 + np.array([-0.5, 0.25, 1.0]), 1e7),
    _iid("offset_1e7", density(_offset, 3), 3, stats.norm()),
    Case(
        "tight_data_at_1e4",
        "nasty",
        lambda: (_tight, (_TIGHT_Y,), {}),
        {**entries("mean"), "variance": lambda draws: np.exp(2 * draws["log_sd"])},
        lambda: jeffreys_truths(_TIGHT_Y),
        partial(jeffreys_draws, _TIGHT_Y),
    ),
]


# Improper posteriors: no answer is right.


def _flat(name: str, support: Any = constraints.real) -> Any:
    return numpyro.sample(name, dist.ImproperUniform(support, (), ()))


def _no_data() -> None:
    _flat("x")


def _separable(x: Any, y: Any) -> None:
    numpyro.sample("y", dist.Bernoulli(logits=_flat("b") * x), obs=y)


def _one_observation(y: Any) -> None:
    numpyro.sample("y", dist.Normal(0.0, _flat("s", constraints.positive)), obs=y)


def _flat_sum(y: Any) -> None:
    numpyro.sample("y", dist.Normal(_flat("a") + _flat("b"), 1.0), obs=y)


def _all_successes(k: Any) -> None:
    numpyro.sample("k", dist.Binomial(5, logits=_flat("logit")), obs=k)


def _flat_log_tau(y: Any, sd: Any) -> None:
    """Eight schools with a flat prior on log tau, which has infinite mass at tau = 0."""
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = jnp.exp(_flat("log_tau"))
    white = numpyro.sample("white", dist.Normal(0.0, 1.0).expand([len(y)]).to_event(1))
    numpyro.sample("y", dist.Normal(mu + tau * white, sd), obs=y)


def _improper(name: str, model: Any, *args: Any) -> Case:
    return Case(f"improper_{name}", "nasty", lambda: (model, args, {}), {}, proper=False)


IMPROPER = [
    _improper("no_data", _no_data),
    _improper(
        "separable",
        _separable,
        np.array([-2.0, -1.0, 1.0, 2.0]),
        np.array([0, 0, 1, 1]),
    ),
    _improper("one_observation", _one_observation, 1.5),
    _improper("sum", _flat_sum, np.array([1.3, 2.1, 0.4])),
    _improper("all_successes", _all_successes, 5),
    _improper("flat_log_tau", _flat_log_tau, SCHOOLS_Y, SCHOOLS_SD),
]

CASES = [*HEAVY_TAILS, *BOUNDARIES, *SCALES, *IMPROPER]
