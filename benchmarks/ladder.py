"""Fifteen models of 10 to 10,001 latents with simulated data, for benchmarks/rivals.py.

Each model is a function of its data alone, so that a compiled function is reused. The data are
simulated with fixed seeds, in sizes that are common for the kind of model. `truth` gives exact
moments where there is a closed form; the other models have references made by long NUTS runs
(`python benchmarks/rivals.py --make-references`).
"""

import hashlib
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import biject_to

from _moments import Moments, gaussian_moments, mixture_moments

Data = dict[str, np.ndarray]
# NumPyro's annotation includes Python scalars, which cannot be indexed.
sample: Callable[..., Any] = numpyro.sample


class Model(NamedTuple):
    """A NumPyro program with its data; `truth` returns exact moments from the data.

    Where there is no closed form, a long NUTS run gives the truth. It samples the sites
    `non_centred` in their non-centred form, which is the same posterior with better geometry.
    """

    name: str
    program: Callable[..., None]
    simulate: Callable[[np.random.Generator], Data]
    seed: int
    truth: Callable[[Data], Moments] | None = None
    non_centred: tuple[str, ...] = ()

    def data(self) -> Data:
        return self.simulate(np.random.default_rng(self.seed))

    def transforms(self, data: Data) -> dict[str, Any]:
        """Returns the map from unconstrained values to each latent site, sorted by name."""
        with numpyro.handlers.seed(rng_seed=0), numpyro.handlers.trace() as trace:
            self.program(**data)
        latent = {
            name: site["fn"].support
            for name, site in trace.items()
            if site["type"] == "sample" and not site["is_observed"]
        }
        return {name: biject_to(latent[name]) for name in sorted(latent)}

    def unconstrain(self, data: Data, chains: dict[str, Any]) -> np.ndarray:
        """Turns values by site, `[chains, draws, ...]`, into `[chains, draws, latents]`."""
        columns = []
        for name, transform in self.transforms(data).items():
            values = np.asarray(transform.inv(np.asarray(chains[name], np.float64)))
            columns.append(values.reshape(*values.shape[:2], -1))
        return np.concatenate(columns, 2)


def checksum(data: Data) -> str:
    """Identifies the data that a reference belongs to."""
    digest = hashlib.sha256()
    for name in sorted(data):
        digest.update(name.encode() + np.round(data[name], 6).astype(np.float64).tobytes())
    return digest.hexdigest()[:16]


def _normal(name: str, size: int) -> Any:
    return sample(name, dist.Normal(0.0, 1.0).expand([size]).to_event(1))


def eight_schools(y: Any, sigma: Any) -> None:
    mu = sample("mu", dist.Normal(0.0, 5.0))
    tau = sample("tau", dist.HalfCauchy(5.0))
    z = _normal("z", len(y))
    sample("y", dist.Normal(mu + tau * z, sigma), obs=y)


def _eight_schools_data(_: np.random.Generator) -> Data:
    return {
        "y": np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0]),
        "sigma": np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0]),
    }


def logistic(X: Any, y: Any) -> None:
    beta = _normal("beta", X.shape[1])
    sample("y", dist.Bernoulli(logits=X @ beta), obs=y)


def _logistic_data(num_rows: int, num_columns: int) -> Callable[[np.random.Generator], Data]:
    """Simulates an intercept and correlated columns, as in the German credit data."""

    def simulate(rng: np.random.Generator) -> Data:
        size = num_columns - 1
        common = rng.normal(size=(num_rows, 3)) @ rng.normal(size=(3, size))
        X = 0.5 * common + rng.normal(size=(num_rows, size))
        X = (X - X.mean(0)) / X.std(0)
        X = np.concatenate([np.ones((num_rows, 1)), X], 1)
        beta = 0.5 * rng.normal(size=num_columns)
        y = rng.uniform(size=num_rows) < 1 / (1 + np.exp(-X @ beta))
        return {"X": X, "y": y.astype(float)}

    return simulate


def irt(person: Any, item: Any, y: Any) -> None:
    """Two-parameter item response model of 100 persons and 20 items."""
    mu_a = sample("mu_a", dist.Normal(0.0, 1.0))
    sigma_a = sample("sigma_a", dist.HalfNormal(1.0))
    mu_b = sample("mu_b", dist.Normal(0.0, 2.0))
    sigma_b = sample("sigma_b", dist.HalfNormal(2.0))
    theta = _normal("theta", 100)
    log_a = sample("log_a", dist.Normal(mu_a, sigma_a).expand([20]).to_event(1))
    b = sample("b", dist.Normal(mu_b, sigma_b).expand([20]).to_event(1))
    logits = jnp.exp(log_a[item]) * (theta[person] - b[item])
    sample("y", dist.Bernoulli(logits=logits), obs=y)


def _irt_data(rng: np.random.Generator) -> Data:
    theta, a, b = rng.normal(size=100), np.exp(0.4 * rng.normal(size=20)), rng.normal(size=20)
    person, item = (index.ravel() for index in np.indices((100, 20)))
    logits = a[item] * (theta[person] - b[item])
    y = rng.uniform(size=logits.shape) < 1 / (1 + np.exp(-logits))
    return {"person": person, "item": item, "y": y.astype(float)}


def random_walk(y: Any) -> None:
    """Local level model, non-centred."""
    step = sample("step", dist.HalfNormal(1.0))
    noise = sample("noise", dist.HalfNormal(1.0))
    z = _normal("z", len(y))
    sample("y", dist.Normal(step * jnp.cumsum(z), noise), obs=y)


def _random_walk_data(rng: np.random.Generator) -> Data:
    level = 0.2 * np.cumsum(rng.normal(size=1000))
    return {"y": level + 0.5 * rng.normal(size=1000)}


def _random_walk_truth(data: Data) -> Moments:
    """Integrates over log step and log noise on a grid; given both, z is normal."""
    y = data["y"]
    size = len(y)
    vectors, singular, right = np.linalg.svd(np.tri(size))
    projected = vectors.T @ y
    grid = [
        np.linspace(np.log(0.05), np.log(0.7), 61),
        np.linspace(np.log(0.4), np.log(0.6), 61),
    ]
    points = np.stack(np.meshgrid(*grid, indexing="ij"), -1).reshape(-1, 2)
    step, noise = np.exp(points).T[..., None]
    total = noise**2 + (step * singular) ** 2
    log_weights = -0.5 * np.sum(np.log(total) + projected**2 / total, 1)
    log_weights += np.sum(points - 0.5 * np.exp(points) ** 2, 1)
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    means = (step * singular * projected / total) @ right
    variances = (noise**2 / total) @ right**2
    # The sites are sorted by name: noise, step, z.
    points = points[:, ::-1]
    return mixture_moments(
        weights, np.hstack([points, means]), np.hstack([0 * points, variances])
    )


def lkj(X: Any, group: Any, y: Any) -> None:
    """Logistic regression whose four coefficients vary over 40 groups, with an LKJ prior."""
    mean = sample("mean", dist.Normal(0.0, 2.0).expand([4]).to_event(1))
    scale = sample("scale", dist.HalfNormal(1.0).expand([4]).to_event(1))
    root = sample("root", dist.LKJCholesky(4, 2.0))
    z = sample("z", dist.Normal(0.0, 1.0).expand([40, 4]).to_event(2))
    beta = mean + z @ (scale[:, None] * root).T
    sample("y", dist.Bernoulli(logits=jnp.sum(X * beta[group], 1)), obs=y)


def _lkj_data(rng: np.random.Generator) -> Data:
    group = np.repeat(np.arange(40), 50)
    X = np.concatenate([np.ones((2000, 1)), rng.normal(size=(2000, 3))], 1)
    covariance = 0.5 * np.eye(4) + 0.3
    beta = np.array([0.3, 1.0, -0.5, 0.0]) + rng.multivariate_normal(
        np.zeros(4), covariance, 40
    )
    y = rng.uniform(size=2000) < 1 / (1 + np.exp(-np.sum(X * beta[group], 1)))
    return {"X": X, "group": group, "y": y.astype(float)}


def radon(floor: Any, county: Any, y: Any) -> None:
    """Varying intercepts and slopes of 85 counties, centred."""
    mu_a = sample("mu_a", dist.Normal(0.0, 5.0))
    mu_b = sample("mu_b", dist.Normal(0.0, 5.0))
    sigma_a = sample("sigma_a", dist.HalfNormal(1.0))
    sigma_b = sample("sigma_b", dist.HalfNormal(1.0))
    sigma = sample("sigma", dist.HalfNormal(1.0))
    a = sample("a", dist.Normal(mu_a, sigma_a).expand([85]).to_event(1))
    b = sample("b", dist.Normal(mu_b, sigma_b).expand([85]).to_event(1))
    sample("y", dist.Normal(a[county] + b[county] * floor, sigma), obs=y)


def _radon_data(rng: np.random.Generator) -> Data:
    share = rng.gamma(0.6, size=85) + 0.1
    county = np.concatenate([np.arange(85), rng.choice(85, 834, p=share / share.sum())])
    floor = (rng.uniform(size=919) < 0.3).astype(float)
    a, b = 1.5 + 0.33 * rng.normal(size=85), -0.7 + 0.5 * rng.normal(size=85)
    y = a[county] + b[county] * floor + 0.75 * rng.normal(size=919)
    return {"floor": floor, "county": county, "y": y}


def gp_classification(x: Any, y: Any) -> None:
    """Squared-exponential Gaussian process with both hyperparameters unknown, non-centred."""
    length = sample("length", dist.InverseGamma(5.0, 2.0))
    amplitude = sample("amplitude", dist.HalfNormal(2.0))
    z = _normal("z", len(x))
    covariance = jnp.exp(-0.5 * ((x[:, None] - x) / length) ** 2) + 1e-6 * jnp.eye(len(x))
    f = amplitude * (jnp.linalg.cholesky(covariance) @ z)
    sample("y", dist.Bernoulli(logits=f), obs=y)


def _gp_classification_data(rng: np.random.Generator) -> Data:
    x = np.sort(rng.uniform(-2.0, 2.0, size=148))
    f = 2.0 * np.sin(3.0 * x) + x
    return {"x": x, "y": (rng.uniform(size=148) < 1 / (1 + np.exp(-f))).astype(float)}


def horseshoe(X: Any, y: Any) -> None:
    """Regression with the regularised horseshoe: few of 98 coefficients matter."""
    intercept = sample("intercept", dist.Normal(0.0, 2.0))
    sigma = sample("sigma", dist.HalfNormal(2.0))
    tau = sample("tau", dist.HalfCauchy(0.05))
    slab = sample("slab", dist.InverseGamma(2.0, 8.0))
    local = sample("local", dist.HalfCauchy(1.0).expand([98]).to_event(1))
    z = _normal("z", 98)
    scale = tau * local * jnp.sqrt(slab / (slab + (tau * local) ** 2))
    sample("y", dist.Normal(intercept + X @ (scale * z), sigma), obs=y)


def _horseshoe_data(rng: np.random.Generator) -> Data:
    X = rng.normal(size=(200, 98)) + 0.5 * rng.normal(size=(200, 1))
    beta = np.zeros(98)
    beta[:6] = [3.0, -2.0, 1.5, 1.0, -1.0, 0.5]
    return {"X": X, "y": 1.0 + X @ beta + rng.normal(size=200)}


def stochastic_volatility(y: Any) -> None:
    """Log volatility as a stationary autoregression of 500 days, non-centred."""
    mu = sample("mu", dist.Normal(-9.0, 2.0))
    phi = sample("phi", dist.Beta(20.0, 1.5))
    sigma = sample("sigma", dist.HalfNormal(0.5))
    z = _normal("z", len(y))

    def step(h: Any, noise: Any) -> tuple[Any, Any]:
        h = phi * h + sigma * noise
        return h, h

    start = sigma * z[0] / jnp.sqrt(1.0 - phi**2)
    _, rest = jax.lax.scan(step, start, z[1:])
    h = jnp.concatenate([start[None], rest])
    sample("y", dist.Normal(0.0, jnp.exp(0.5 * (mu + h))), obs=y)


def _stochastic_volatility_data(rng: np.random.Generator) -> Data:
    h = np.zeros(500)
    h[0] = 0.25 / np.sqrt(1 - 0.95**2) * rng.normal()
    for t in range(1, 500):
        h[t] = 0.95 * h[t - 1] + 0.25 * rng.normal()
    return {"y": np.exp(0.5 * (-9.0 + h)) * rng.normal(size=500)}


def cox_process(root: Any, counts: Any) -> None:
    """Log-Gaussian Cox process on a grid of 20 by 20 cells, non-centred."""
    mean = sample("mean", dist.Normal(0.0, 2.0))
    amplitude = sample("amplitude", dist.HalfNormal(2.0))
    z = _normal("z", len(counts))
    sample("counts", dist.Poisson(jnp.exp(mean + amplitude * (root @ z))), obs=counts)


def _cox_process_data(rng: np.random.Generator) -> Data:
    cells = np.indices((20, 20)).reshape(2, 400).T / 20
    distance = np.linalg.norm(cells[:, None] - cells, axis=-1)
    root = np.linalg.cholesky(np.exp(-distance / 0.2) + 1e-9 * np.eye(400))
    counts = rng.poisson(np.exp(0.5 + 1.2 * root @ rng.normal(size=400)))
    return {"root": root, "counts": counts}


def crossed_poisson(X: Any, subject: Any, item: Any, y: Any) -> None:
    """Poisson regression with crossed effects of 195 subjects and 97 items, centred."""
    beta = _normal("beta", 6)
    sd_subject = sample("sd_subject", dist.HalfNormal(1.0))
    sd_item = sample("sd_item", dist.HalfNormal(1.0))
    u = sample("u", dist.Normal(0.0, sd_subject).expand([195]).to_event(1))
    v = sample("v", dist.Normal(0.0, sd_item).expand([97]).to_event(1))
    sample("y", dist.Poisson(jnp.exp(X @ beta + u[subject] + v[item])), obs=y)


def _crossed_poisson_data(rng: np.random.Generator) -> Data:
    subject, item = rng.integers(195, size=2500), rng.integers(97, size=2500)
    X = np.concatenate([np.ones((2500, 1)), 0.5 * rng.normal(size=(2500, 5))], 1)
    beta = np.array([0.5, 0.4, -0.3, 0.2, 0.0, 0.1])
    u, v = 0.5 * rng.normal(size=195), 0.4 * rng.normal(size=97)
    y = rng.poisson(np.exp(X @ beta + u[subject] + v[item]))
    return {"X": X, "subject": subject, "item": item, "y": y}


def inverse_problem(A: Any, scale: Any, y: Any) -> None:
    """Few precise measurements of many coefficients, whose scales span four decades."""
    x = sample("x", dist.Normal(0.0, scale).to_event(1))
    sample("y", dist.Normal(A @ x, 1.0), obs=y)


def _inverse_problem_data(size: int, rank: int) -> Callable[[np.random.Generator], Data]:
    def simulate(rng: np.random.Generator) -> Data:
        scale = 10.0 ** rng.uniform(-2.0, 2.0, size=size)
        # Lognormal sizes: some coefficients are measured well and strongly correlated.
        rows = rng.normal(size=(rank, size)) * np.exp(rng.normal(size=(rank, size)))
        rows *= np.geomspace(3.0, 30.0, rank)[:, None] / np.linalg.norm(rows, axis=1)[:, None]
        A = rows / scale
        return {"A": A, "scale": scale, "y": A @ (scale * rng.normal(size=size))}

    return simulate


def _inverse_problem_truth(data: Data) -> Moments:
    A, prior = data["A"], data["scale"] ** 2
    gain = np.linalg.solve(np.eye(len(A)) + (A * prior) @ A.T, A * prior).T
    return gaussian_moments(gain @ data["y"], prior - np.sum(gain * (A * prior).T, 1))


def normal_groups(y: Any, error: Any) -> None:
    """Means of 5,000 groups around a common mean, with known variances, centred."""
    mu = sample("mu", dist.Normal(0.0, 10.0))
    theta = sample("theta", dist.Normal(mu, 1.0).expand([len(y)]).to_event(1))
    sample("y", dist.Normal(theta, error), obs=y)


def _normal_groups_data(rng: np.random.Generator) -> Data:
    error = 3.0 / np.sqrt(rng.integers(1, 31, size=5000))
    return {"y": 2.0 + rng.normal(size=5000) + error * rng.normal(size=5000), "error": error}


def _normal_groups_truth(data: Data) -> Moments:
    y, variance = data["y"], data["error"] ** 2
    precision = 1.0 / (1.0 + variance)
    mu_variance = 1.0 / (0.01 + precision.sum())
    mu = mu_variance * np.sum(precision * y)
    # Given mu, theta has mean share * y + (1 - share) * mu and variance share * variance.
    share = precision
    means = share * y + (1 - share) * mu
    variances = share * variance + (1 - share) ** 2 * mu_variance
    return gaussian_moments(np.r_[mu, means], np.r_[mu_variance, variances])


MODELS = {
    model.name: model
    for model in (
        Model("eight_schools", eight_schools, _eight_schools_data, 0),
        Model("logistic", logistic, _logistic_data(1000, 25), 1),
        Model("tall_logistic", logistic, _logistic_data(100_000, 20), 2),
        Model("irt", irt, _irt_data, 3),
        Model("gp_classification", gp_classification, _gp_classification_data, 4),
        Model("lkj", lkj, _lkj_data, 5),
        Model("radon", radon, _radon_data, 6, non_centred=("b",)),
        Model("horseshoe", horseshoe, _horseshoe_data, 7),
        Model("crossed_poisson", crossed_poisson, _crossed_poisson_data, 8),
        Model("cox_process", cox_process, _cox_process_data, 9),
        Model("stochastic_volatility", stochastic_volatility, _stochastic_volatility_data, 10),
        Model("random_walk", random_walk, _random_walk_data, 11, _random_walk_truth),
        Model(
            "gaussian_2000",
            inverse_problem,
            _inverse_problem_data(2000, 20),
            12,
            _inverse_problem_truth,
        ),
        Model("normal_groups", normal_groups, _normal_groups_data, 13, _normal_groups_truth),
        Model(
            "gaussian_10000",
            inverse_problem,
            _inverse_problem_data(10_000, 30),
            14,
            _inverse_problem_truth,
        ),
    )
}
