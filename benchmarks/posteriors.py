"""Ten posteriors of posteriordb as NumPyro models, with their reference moments.

The data and the references are read from a folder; see `--data-dir` of benchmarks/infer.py.
Each model is a function of its data alone, so that a compiled function is reused for data of
the same shape.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from numpyro.distributions import constraints


class Posterior(NamedTuple):
    """A model, its data and the reference means and standard deviations of its parameters."""

    name: str
    model: Callable[..., None]
    data: dict[str, Any]
    parameters: list[str]
    means: np.ndarray
    sds: np.ndarray

    def errors(self, draws: dict[str, Any]) -> tuple[float, float]:
        """Returns the largest error of a mean, in reference sds, and of a log sd."""
        columns = np.stack([_column(draws, name) for name in self.parameters])
        mean_errors = np.abs(columns.mean(1) - self.means) / self.sds
        sd_errors = np.abs(np.log(columns.std(1, ddof=1) / self.sds))
        return _largest(mean_errors), _largest(sd_errors)


def _largest(errors: np.ndarray) -> float:
    return float(np.max(np.where(np.isnan(errors), np.inf, errors)))


def _column(draws: dict[str, Any], name: str) -> np.ndarray:
    """Returns the draws of a parameter by its name in the reference, such as `theta[3]`."""
    site, _, index = name.partition("[")
    values = np.asarray(draws[site], np.float64)
    if not index:
        return values
    return values[:, int(index.rstrip("]")) - 1]


def load(folder: Path) -> list[Posterior]:
    """Loads all ten from a folder of JSON files."""
    return [_load(folder, *entry) for entry in _FILES]


def _load(folder: Path, name: str, file: str, model: Any, prepare: Any) -> Posterior:
    content = json.loads((folder / f"{file}.json").read_text())
    reference = content["reference"]
    return Posterior(
        name,
        model,
        prepare(content["data"]),
        list(reference),
        np.array([entry["mean"] for entry in reference.values()]),
        np.array([entry["sd"] for entry in reference.values()]),
    )


def _arrays(*names: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda data: {name: np.asarray(data[name], float) for name in names}


def _flat(name: str, support: Any = constraints.real, shape: tuple[int, ...] = ()) -> Any:
    """Samples a parameter with a flat prior on its support."""
    return numpyro.sample(name, dist.ImproperUniform(support, shape, ()))


def eight_schools(y: Any, sigma: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", len(y)):
        t = numpyro.sample("theta_trans", dist.Normal(0.0, 1.0))
        theta = numpyro.deterministic("theta", mu + tau * t)
        numpyro.sample("y", dist.Normal(theta, sigma), obs=y)


def kidscore(mom_hs: Any, mom_iq: Any, kid_score: Any) -> None:
    beta = _flat("beta", shape=(4,))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    mean = beta[0] + beta[1] * mom_hs + beta[2] * mom_iq + beta[3] * mom_hs * mom_iq
    numpyro.sample("kid_score", dist.Normal(mean, sigma), obs=kid_score)


def nes(X: Any, partyid7: Any) -> None:
    beta = _flat("beta", shape=(9,))
    sigma = _flat("sigma", constraints.positive)
    numpyro.sample("partyid7", dist.Normal(X @ beta, sigma), obs=partyid7)


def _nes_data(data: dict[str, Any]) -> dict[str, Any]:
    column = {name: np.asarray(values, float) for name, values in data.items() if name != "N"}
    age = column["age_discrete"]
    columns = [
        np.ones_like(age),
        column["real_ideo"],
        column["race_adj"],
        *(np.where(age == group, 1.0, 0.0) for group in (2, 3, 4)),
        column["educ1"],
        column["gender"],
        column["income"],
    ]
    return {"X": np.stack(columns, 1), "partyid7": column["partyid7"]}


def _squared_exponential(x: Any, rho: Any, alpha: Any) -> Any:
    return alpha**2 * jnp.exp(-0.5 * ((x[:, None] - x[None, :]) / rho) ** 2)


def gp_regression(x: Any, y: Any) -> None:
    rho = numpyro.sample("rho", dist.Gamma(25.0, 4.0))
    alpha = numpyro.sample("alpha", dist.HalfNormal(2.0))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1.0))
    covariance = _squared_exponential(x, rho, alpha) + sigma * jnp.eye(len(x))
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(len(x)), covariance), obs=y)


def gp_poisson(x: Any, k: Any) -> None:
    rho = numpyro.sample("rho", dist.Gamma(25.0, 4.0))
    alpha = numpyro.sample("alpha", dist.HalfNormal(2.0))
    f_tilde = numpyro.sample("f_tilde", dist.Normal(0.0, 1.0).expand([len(x)]).to_event(1))
    covariance = _squared_exponential(x, rho, alpha) + 1e-10 * jnp.eye(len(x))
    f = numpyro.deterministic("f", jnp.linalg.cholesky(covariance) @ f_tilde)
    numpyro.sample("k", dist.Poisson(jnp.exp(f)), obs=k)


def garch(y: Any, sigma1: Any) -> None:
    mu = _flat("mu")
    alpha0 = _flat("alpha0", constraints.positive)
    alpha1 = jnp.asarray(numpyro.sample("alpha1", dist.Uniform(0.0, 1.0)))
    share = numpyro.sample("share", dist.Uniform(0.0, 1.0))
    beta1 = numpyro.deterministic("beta1", share * (1.0 - alpha1))
    numpyro.factor("jacobian", jnp.log1p(-alpha1))

    def step(variance: Any, y_before: Any) -> tuple[Any, Any]:
        variance = alpha0 + alpha1 * (y_before - mu) ** 2 + beta1 * variance
        return variance, variance

    start = jnp.asarray(sigma1) ** 2
    _, later = jax.lax.scan(step, start, y[:-1])
    variances = jnp.concatenate([start[None], later])
    numpyro.sample("y", dist.Normal(mu, jnp.sqrt(variances)), obs=y)


def hmm(y: Any) -> None:
    theta1 = numpyro.sample("theta1", dist.Dirichlet(jnp.ones(2)))
    theta2 = numpyro.sample("theta2", dist.Dirichlet(jnp.ones(2)))
    mu = _flat_ordered_positive()
    numpyro.factor("mu_prior", jnp.sum(dist.Normal(jnp.array([3.0, 10.0]), 1.0).log_prob(mu)))
    log_transition = jnp.log(jnp.stack([theta1, theta2]))
    log_emission = jnp.asarray(dist.Normal(mu, 1.0).log_prob(y[:, None]))

    def step(log_alpha: Any, log_b: Any) -> tuple[Any, None]:
        return logsumexp(log_alpha[:, None] + log_transition, 0) + log_b, None

    log_alpha, _ = jax.lax.scan(step, log_emission[0], log_emission[1:])
    numpyro.factor("y", logsumexp(log_alpha))


def _flat_ordered_positive() -> Any:
    """Samples 0 < mu_1 < mu_2 with a flat prior."""
    return numpyro.sample(
        "mu", dist.ImproperUniform(constraints.positive_ordered_vector, (), (2,))
    )


def gauss_mixture(y: Any) -> None:
    mu = numpyro.sample("mu", dist.ImproperUniform(constraints.ordered_vector, (), (2,)))
    numpyro.factor("mu_prior", jnp.sum(dist.Normal(0.0, 2.0).log_prob(mu)))
    sigma = numpyro.sample("sigma", dist.HalfNormal(2.0).expand([2]).to_event(1))
    theta = numpyro.sample("theta", dist.Beta(5.0, 5.0))
    weights = jnp.log(jnp.stack([theta, 1.0 - theta]))
    parts = weights + dist.Normal(mu, sigma).log_prob(y[:, None])
    numpyro.factor("y", jnp.sum(logsumexp(parts, 1)))


def autoregression(y: Any, lags: Any) -> None:
    alpha = numpyro.sample("alpha", dist.Normal(0.0, 10.0))
    beta = numpyro.sample("beta", dist.Normal(0.0, 10.0).expand([5]).to_event(1))
    sigma = numpyro.sample("sigma", dist.HalfCauchy(2.5))
    numpyro.sample("y", dist.Normal(alpha + lags @ beta, sigma), obs=y)


def _lags(data: dict[str, Any]) -> dict[str, Any]:
    y, order = np.asarray(data["y"]), data["K"]
    lags = np.stack([y[order - k : len(y) - k] for k in range(1, order + 1)], 1)
    return {"y": y[order:], "lags": lags}


def diamonds(X: Any, Y: Any) -> None:
    means = jnp.mean(X, 0)
    b = numpyro.sample("b", dist.Normal(0.0, 1.0).expand([X.shape[1]]).to_event(1))
    intercept = numpyro.sample("Intercept", dist.StudentT(3.0, 8.0, 10.0))
    sigma = numpyro.sample("sigma", dist.ImproperUniform(constraints.positive, (), ()))
    numpyro.factor("sigma_prior", dist.StudentT(3.0, 0.0, 10.0).log_prob(sigma))
    numpyro.deterministic("b_Intercept", intercept - means @ b)
    numpyro.sample("Y", dist.Normal(intercept + (X - means) @ b, sigma), obs=Y)


def _diamonds_data(data: dict[str, Any]) -> dict[str, Any]:
    return {"X": np.asarray(data["X"])[:, 1:], "Y": np.asarray(data["Y"])}


_FILES = [
    (
        "eight_schools_noncentered",
        "eight_schools-eight_schools_noncentered",
        eight_schools,
        _arrays("y", "sigma"),
    ),
    (
        "kidscore_interaction",
        "kidiq-kidscore_interaction",
        kidscore,
        _arrays("mom_hs", "mom_iq", "kid_score"),
    ),
    ("nes1980-nes", "nes1980-nes", nes, _nes_data),
    ("gp_regr", "gp_pois_regr-gp_regr", gp_regression, _arrays("x", "y")),
    ("gp_pois_regr", "gp_pois_regr-gp_pois_regr", gp_poisson, _arrays("x", "k")),
    ("garch11", "garch-garch11", garch, _arrays("y", "sigma1")),
    ("hmm_example", "hmm_example-hmm_example", hmm, _arrays("y")),
    (
        "low_dim_gauss_mix",
        "low_dim_gauss_mix-low_dim_gauss_mix",
        gauss_mixture,
        _arrays("y"),
    ),
    ("arK", "arK-arK", autoregression, _lags),
    ("diamonds", "diamonds-diamonds", diamonds, _diamonds_data),
]
