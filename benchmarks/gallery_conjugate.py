"""Ordinary cases with closed forms: conjugate models, normals, and common distributions."""

from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.distributions import constraints
from scipy import stats

import relbo
from gallery_truth import Case, Draws, Line, Truth, entries, of_distribution, of_normal


def _data(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def normal_truths(site: str, mean: np.ndarray, covariance: np.ndarray, which: list[int]) -> Any:
    """Returns a function that gives the truths of entries of a normal vector."""
    sds = np.sqrt(np.diag(covariance))
    return lambda: {f"{site}[{i}]": of_normal(mean[i], sds[i]) for i in which}


# One normal mean with known noise.

_MEAN_Y = _data(1).normal(3.0, 2.0, 10)


def _mean_model(y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    numpyro.sample("y", dist.Normal(mean, 2.0), obs=y)


def _mean_truth() -> dict[str, Truth]:
    precision = 1 / 100 + len(_MEAN_Y) / 4
    return {"mean": of_normal(_MEAN_Y.sum() / 4 / precision, precision**-0.5)}


# Normal mean and variance with the normal-inverse-gamma prior, as a regression on a constant.


class NormalInverseGamma:
    """Regression y ~ N(X b, s2), b ~ N(0, s2 * scale^2), s2 ~ InverseGamma(a, rate)."""

    def __init__(self, X: np.ndarray, y: np.ndarray, scale: float, a: float, rate: float):
        precision = X.T @ X + np.eye(X.shape[1]) / scale**2
        self.X, self.y, self.scale, self.prior = X, y, scale, (a, rate)
        self.covariance = np.linalg.inv(precision)
        self.loc = self.covariance @ X.T @ y
        self.a = a + len(y) / 2
        self.rate = rate + 0.5 * (y @ y - self.loc @ precision @ self.loc)

    def model(self, X: Any, y: Any) -> None:
        variance = numpyro.sample("variance", dist.InverseGamma(*self.prior))
        size = X.shape[1]
        scale = self.scale * jnp.sqrt(variance)
        b = numpyro.sample("b", dist.Normal(0.0, scale).expand([size]).to_event(1))
        numpyro.sample("y", dist.Normal(X @ b, jnp.sqrt(variance)), obs=y)

    def truths(self, which: tuple[int, ...]) -> dict[str, Truth]:
        scales = np.sqrt(self.rate / self.a * np.diag(self.covariance))
        of_b = lambda i: of_distribution(stats.t(2 * self.a, self.loc[i], scales[i]))
        found = {f"b[{i}]": of_b(i) for i in which}
        return {**found, "variance": of_distribution(stats.invgamma(self.a, scale=self.rate))}

    def draws(self, rng: np.random.Generator, number: int) -> dict[str, np.ndarray]:
        variance = self.rate / rng.gamma(self.a, size=number)
        white = rng.standard_normal((number, len(self.loc)))
        noise = white @ np.linalg.cholesky(self.covariance).T
        return {"b": self.loc + np.sqrt(variance)[:, None] * noise, "variance": variance}

    def case(self, name: str, which: tuple[int, ...]) -> Case:
        return Case(
            name,
            "ordinary",
            lambda: (self.model, (self.X, self.y), {}),
            entries(*(f"b[{i}]" for i in which), "variance"),
            lambda: self.truths(which),
            self.draws,
        )


def _regression(n: int, d: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = _data(seed)
    X = np.concatenate([np.ones((n, 1)), rng.normal(size=(n, d - 1))], 1)
    return X, X @ np.linspace(-1.0, 1.5, d) + noise * rng.normal(size=n)


def _autoregression() -> tuple[np.ndarray, np.ndarray]:
    rng, y = _data(4), [0.0]
    for _ in range(80):
        y.append(0.5 + 0.8 * y[-1] + rng.normal())
    y = np.array(y)
    return np.stack([np.ones(80), y[:-1]], 1), y[1:]


# Regression with known noise.

_X, _Y = _regression(30, 5, 1.0, 2)


def _known_noise_model(X: Any, y: Any) -> None:
    b = numpyro.sample("b", dist.Normal(0.0, 3.0).expand([5]).to_event(1))
    numpyro.sample("y", dist.Normal(X @ b, 1.0), obs=y)


_KNOWN_COVARIANCE = np.linalg.inv(_X.T @ _X + np.eye(5) / 9)
_KNOWN_MEAN = _KNOWN_COVARIANCE @ _X.T @ _Y


# Flat priors whose posterior is proper.

_FLAT_Y = _data(6).normal(-1.0, 0.7, 15)


def _flat_model(y: Any) -> None:
    mean = numpyro.sample("mean", dist.ImproperUniform(constraints.real, (), ()))
    log_sd = numpyro.sample("log_sd", dist.ImproperUniform(constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(mean, jnp.exp(jnp.asarray(log_sd))), obs=y)


def jeffreys_truths(y: np.ndarray) -> dict[str, Truth]:
    """Truths of a normal mean and variance under a flat prior on the mean and the log sd."""
    n, s = len(y), y.std(ddof=1)
    mean = stats.t(n - 1, y.mean(), s / n**0.5)
    variance = stats.invgamma((n - 1) / 2, scale=(n - 1) / 2 * s**2)
    return {"mean": of_distribution(mean), "variance": of_distribution(variance)}


def jeffreys_draws(y: np.ndarray, rng: np.random.Generator, number: int) -> Draws:
    """Draws from the same posterior."""
    n, s = len(y), y.std(ddof=1)
    sd = s * np.sqrt((n - 1) / rng.chisquare(n - 1, number))
    mean = y.mean() + sd / n**0.5 * rng.standard_normal(number)
    return {"mean": mean, "log_sd": np.log(sd)}


def _variance(draws: Any) -> np.ndarray:
    return np.exp(2 * draws["log_sd"])


# Counts and shares.


def _beta_binomial(k: Any) -> None:
    p = numpyro.sample("p", dist.Beta(2.0, 2.0))
    numpyro.sample("k", dist.Binomial(50, p), obs=k)


_COUNTS = np.array([3, 5, 2, 4, 7, 1, 3, 6, 4, 2, 5, 3])


def _gamma_poisson(counts: Any) -> None:
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0))
    numpyro.sample("counts", dist.Poisson(rate), obs=counts)


def _dirichlet_multinomial(counts: Any) -> None:
    p = numpyro.sample("p", dist.Dirichlet(jnp.ones(4)))
    numpyro.sample("counts", dist.Multinomial(int(counts.sum()), p), obs=counts)


_FOUR = np.array([3, 12, 0, 25])


def _four_truths() -> dict[str, Truth]:
    total = _FOUR.sum() + 4
    marginal = lambda i: stats.beta(_FOUR[i] + 1, total - _FOUR[i] - 1)
    return {f"p[{i}]": of_distribution(marginal(i)) for i in (0, 2, 3)}


_WAITS = _data(7).exponential(3.0, 6)


def _exponential(waits: Any) -> None:
    rate = numpyro.sample("rate", dist.Gamma(1.0, 1.0))
    numpyro.sample("waits", dist.Exponential(rate), obs=waits)


# Prior-only models: the posterior is a named distribution.


def one_site(distribution: Any, name: str = "x") -> Any:
    """Returns a `build` of a model with one site and no data."""

    def model() -> None:
        numpyro.sample(name, distribution())

    return lambda: (model, (), {})


def _von_mises_line() -> Line:
    x = np.linspace(-np.pi, np.pi, 40_001)
    return Line(x, 6.0 * np.cos(x - 0.5))


def _flat_simplex_truths() -> dict[str, Truth]:
    return {f"x[{i}]": of_distribution(stats.beta(1, 9)) for i in (0, 5, 9)}


def _correlations() -> Any:
    def model() -> None:
        factor = numpyro.sample("factor", dist.LKJCholesky(3, 2.0))
        numpyro.deterministic("r", factor @ jnp.swapaxes(factor, -1, -2))

    return model, (), {}


def _ordered() -> Any:
    def model() -> None:
        flat = dist.ImproperUniform(constraints.ordered_vector, (), (3,))
        x = numpyro.sample("x", flat)
        numpyro.factor("prior", dist.Normal(0.0, 1.0).log_prob(x).sum())

    return model, (), {}


# Normals with condition number 1e4.


class CorrelatedNormal:
    """A normal with eigenvalues from 1 to 1e-4 in a random basis, and a mean."""

    def __init__(self, size: int):
        rng = _data(size)
        basis = np.linalg.qr(rng.normal(size=(size, size)))[0]
        self.sds = np.logspace(0, -2, size)
        self.basis, self.mean = basis, rng.normal(size=size)
        self.covariance = (basis * self.sds**2) @ basis.T

    def build(self) -> Any:
        mean, whiten = jnp.asarray(self.mean), jnp.asarray(self.basis / self.sds)
        logdensity = lambda z: -0.5 * jnp.sum(((z["x"] - mean) @ whiten) ** 2)
        return relbo.model_from_logdensity(logdensity, {"x": jnp.zeros(len(mean))}), (), {}

    def case(self, kind: Any) -> Case:
        size = len(self.mean)
        which = sorted({0, size // 2, size - 1})
        narrow = self.basis[:, -1]
        names = [f"x[{i}]" for i in which]

        def truths() -> dict[str, Truth]:
            found = normal_truths("x", self.mean, self.covariance, which)()
            return {**found, "narrow": of_normal(float(narrow @ self.mean), self.sds[-1])}

        def draws(rng: np.random.Generator, number: int) -> dict[str, np.ndarray]:
            white = rng.standard_normal((number, size))
            return {"x": self.mean + (white * self.sds) @ self.basis.T}

        quantities = {**entries(*names), "narrow": lambda draws: draws["x"] @ narrow}
        return Case(f"normal_{size}", kind, self.build, quantities, truths, draws)


def simple(name: str, build: Any, kind: Any = "ordinary", **distributions: Any) -> Case:
    """Makes a case whose sites are independent with distributions of `scipy.stats`."""
    return Case(
        name,
        kind,
        build,
        entries(*distributions),
        lambda: {site: of_distribution(d) for site, d in distributions.items()},
        lambda rng, number: {
            site: d.rvs(number, random_state=rng) for site, d in distributions.items()
        },
    )


CASES = [
    Case(
        "normal_mean",
        "ordinary",
        lambda: (_mean_model, (_MEAN_Y,), {}),
        entries("mean"),
        _mean_truth,
    ),
    NormalInverseGamma(np.ones((20, 1)), _data(3).normal(2.0, 1.5, 20), 3.0, 3.0, 2.0).case(
        "normal_mean_variance", (0,)
    ),
    NormalInverseGamma(*_regression(40, 4, 0.5, 5), 5.0, 2.0, 1.0).case(
        "regression_unknown_noise", (0, 3)
    ),
    NormalInverseGamma(*_autoregression(), 3.0, 2.0, 1.0).case("autoregression", (0, 1)),
    Case(
        "regression_known_noise",
        "ordinary",
        lambda: (_known_noise_model, (_X, _Y), {}),
        entries("b[0]", "b[2]", "b[4]"),
        normal_truths("b", _KNOWN_MEAN, _KNOWN_COVARIANCE, [0, 2, 4]),
    ),
    Case(
        "flat_priors_proper",
        "ordinary",
        lambda: (_flat_model, (_FLAT_Y,), {}),
        {**entries("mean"), "variance": _variance},
        lambda: jeffreys_truths(_FLAT_Y),
        partial(jeffreys_draws, _FLAT_Y),
    ),
    simple("beta_binomial", lambda: (_beta_binomial, (17,), {}), p=stats.beta(19, 35)),
    simple(
        "gamma_poisson",
        lambda: (_gamma_poisson, (_COUNTS,), {}),
        rate=stats.gamma(2 + _COUNTS.sum(), scale=1 / (1 + len(_COUNTS))),
    ),
    Case(
        "dirichlet_multinomial",
        "ordinary",
        lambda: (_dirichlet_multinomial, (_FOUR,), {}),
        entries("p[0]", "p[2]", "p[3]"),
        _four_truths,
        lambda rng, number: {"p": rng.dirichlet(_FOUR + 1, number)},
    ),
    simple(
        "exponential_waits",
        lambda: (_exponential, (_WAITS,), {}),
        rate=stats.gamma(1 + len(_WAITS), scale=1 / (1 + _WAITS.sum())),
    ),
    simple("gamma_2", one_site(lambda: dist.Gamma(2.0, 1.0)), x=stats.gamma(2)),
    simple(
        "weibull", one_site(lambda: dist.Weibull(2.0, 0.7)), x=stats.weibull_min(0.7, scale=2)
    ),
    simple(
        "lognormal_mild",
        one_site(lambda: dist.LogNormal(1.0, 0.5)),
        x=stats.lognorm(0.5, scale=np.e),
    ),
    Case(
        "lognormals_sd_2",
        "ordinary",
        one_site(lambda: dist.LogNormal(0.0, 2.0).expand([5]).to_event(1)),
        entries("x[0]", "x[4]"),
        lambda: {name: of_distribution(stats.lognorm(2)) for name in ("x[0]", "x[4]")},
        lambda rng, number: {"x": rng.lognormal(0.0, 2.0, (number, 5))},
    ),
    simple(
        "truncated_normal",
        one_site(lambda: dist.TruncatedNormal(0.5, 1.0, low=0.0, high=3.0)),
        x=stats.truncnorm(-0.5, 2.5, loc=0.5),
    ),
    Case(
        "von_mises",
        "ordinary",
        one_site(lambda: dist.VonMises(0.5, 6.0)),
        entries("x"),
        lambda: {"x": _von_mises_line().truth()},
        lambda rng, number: {"x": stats.vonmises(6.0, 0.5).rvs(number, random_state=rng)},
    ),
    Case(
        "flat_simplex_10",
        "ordinary",
        one_site(lambda: dist.Dirichlet(jnp.ones(10))),
        entries("x[0]", "x[5]", "x[9]"),
        _flat_simplex_truths,
        lambda rng, number: {"x": rng.dirichlet(np.ones(10), number)},
    ),
    Case(
        "lkj_correlations",
        "ordinary",
        _correlations,
        entries("r[0,1]", "r[0,2]", "r[1,2]"),
        lambda: {
            name: of_distribution(stats.beta(2.5, 2.5, loc=-1, scale=2))
            for name in ("r[0,1]", "r[0,2]", "r[1,2]")
        },
    ),
    Case(
        "ordered_normals",
        "ordinary",
        _ordered,
        entries("x[0]", "x[1]", "x[2]"),
        None,
        lambda rng, number: {"x": np.sort(rng.standard_normal((number, 3)), 1)},
    ),
    CorrelatedNormal(2).case("ordinary"),
    CorrelatedNormal(20).case("ordinary"),
    CorrelatedNormal(100).case("ordinary"),
    CorrelatedNormal(250).case("nasty"),
]
