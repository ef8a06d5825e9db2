"""Ordinary cases whose truth is computed: regressions, scales, small Gaussian processes.

Truth comes from deterministic grids in one or two dimensions and, for the regressions with
three or more coefficients, from importance sampling at the mode.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from scipy import special, stats

from gallery_truth import (
    Case,
    Line,
    Plane,
    Truth,
    entries,
    importance_truths,
    of_normal,
)


def _data(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def _design(n: int, d: int, seed: int) -> np.ndarray:
    return np.concatenate([np.ones((n, 1)), _data(seed).normal(size=(n, d - 1))], 1)


def _coefficients(size: int, scale: float = 2.0) -> Any:
    return numpyro.sample("b", dist.Normal(0.0, scale).expand([size]).to_event(1))


def _log_normal(points: np.ndarray, scale: float) -> np.ndarray:
    return -0.5 * (points**2).sum(1) / scale**2


def _by_importance(logdensity: Any, size: int, which: dict[str, int]) -> Any:
    functions = {name: lambda points, i=i: points[:, i] for name, i in which.items()}
    return lambda: importance_truths(logdensity, np.zeros(size), functions)


# Logistic regression with two and with eight coefficients.

_X2, _X8 = _design(50, 2, 11), _design(200, 8, 12)
_K2 = _data(13).random(50) < special.expit(_X2 @ [0.5, 1.0])
_K8 = _data(14).random(200) < special.expit(_X8 @ np.linspace(-1, 1, 8))


def _logistic(X: Any, k: Any) -> None:
    b = _coefficients(X.shape[1])
    numpyro.sample("k", dist.Bernoulli(logits=X @ b), obs=k)


def _log_logistic(X: np.ndarray, k: np.ndarray) -> Any:
    signs = np.where(k, 1.0, -1.0)
    return lambda b: _log_normal(b, 2.0) - np.logaddexp(0, -(b @ X.T) * signs).sum(1)


def _logistic_2_truths() -> dict[str, Truth]:
    axis = np.linspace(-6, 6, 601)
    logdensity = _log_logistic(_X2, _K2)
    plane = Plane(axis, axis, lambda a, b: logdensity(np.stack([a, b], 1)))
    return {"b[0]": plane.truth(lambda a, b: a), "b[1]": plane.truth(lambda a, b: b)}


# Poisson, probit and negative binomial regression.

_XP = _design(60, 4, 15)
_KP = _data(16).poisson(np.exp(_XP @ [0.7, 0.5, -0.4, 0.1]))


def _poisson(X: Any, k: Any) -> None:
    numpyro.sample("k", dist.Poisson(jnp.exp(X @ _coefficients(4))), obs=k)


def _log_poisson(b: np.ndarray) -> np.ndarray:
    logits = b @ _XP.T
    return _log_normal(b, 2.0) + (_KP * logits - np.exp(logits)).sum(1)


_XB = _design(80, 3, 17)
_KB = _data(18).random(80) < special.ndtr(_XB @ [-0.3, 0.8, 0.4])


def _probit(X: Any, k: Any) -> None:
    p = jax.scipy.special.ndtr(X @ _coefficients(3))
    numpyro.sample("k", dist.Bernoulli(probs=jnp.clip(p, 1e-6, 1 - 1e-6)), obs=k)


def _log_probit(b: np.ndarray) -> np.ndarray:
    signs = np.where(_KB, 1.0, -1.0)
    return _log_normal(b, 2.0) + special.log_ndtr((b @ _XB.T) * signs).sum(1)


_XN = _design(70, 3, 19)
_MN = np.exp(_XN @ [1.0, 0.5, -0.3])
_KN = _data(20).poisson(_MN * _data(21).gamma(2.0, 0.5, 70))


def _negative_binomial(X: Any, k: Any) -> None:
    b = _coefficients(3)
    size = numpyro.sample("size", dist.LogNormal(0.0, 1.0))
    numpyro.sample("k", dist.NegativeBinomial2(jnp.exp(X @ b), size), obs=k)


def _log_negative_binomial(points: np.ndarray) -> np.ndarray:
    b, log_size = points[:, :3], points[:, 3:]
    logits, size = b @ _XN.T, np.exp(log_size)
    total = np.log(size + np.exp(logits))
    counts = special.gammaln(_KN + size) - special.gammaln(size)
    likelihood = counts + size * (log_size - total) + _KN * (logits - total)
    return _log_normal(b, 2.0) - 0.5 * log_size[:, 0] ** 2 + likelihood.sum(1)


def _negative_binomial_truths() -> dict[str, Truth]:
    return importance_truths(
        _log_negative_binomial,
        np.zeros(4),
        {
            "b[0]": lambda p: p[:, 0],
            "b[1]": lambda p: p[:, 1],
            "size": lambda p: np.exp(p[:, 3]),
        },
    )


# One parameter: robust location, a rare event, a scale, the weight of a mixture.

_TY = np.concatenate([_data(22).normal(1.0, 1.0, 18), [9.0, -14.0]])


def _robust(y: Any) -> None:
    mean = numpyro.sample("mean", dist.Normal(0.0, 5.0))
    numpyro.sample("y", dist.StudentT(4.0, mean, 1.0), obs=y)


def _robust_line() -> Line:
    x = np.linspace(-4, 6, 20_001)
    likelihood = stats.t.logpdf(_TY[:, None] - x, 4).sum(0)
    return Line(x, likelihood - 0.5 * (x / 5) ** 2)


def _rare(k: Any) -> None:
    logit = numpyro.sample("logit", dist.Normal(0.0, 5.0))
    numpyro.sample("k", dist.Binomial(100, logits=logit), obs=k)


def _rare_line() -> Line:
    x = np.linspace(-40, 20, 60_001)
    return Line(x, -0.5 * (x / 5) ** 2 - 100 * np.logaddexp(0, x))


_SY = _data(23).normal(0.0, 0.8, 8)


def _scale(y: Any) -> None:
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.sample("y", dist.Normal(0.0, scale), obs=y)


def _scale_line() -> Line:
    x = np.linspace(1e-4, 6, 40_000)
    return Line(x, -0.5 * x**2 - 8 * np.log(x) - 0.5 * (_SY @ _SY) / x**2)


_WY = np.concatenate([_data(24).normal(-1, 1, 9), _data(25).normal(1.5, 0.7, 21)])


def _weight(y: Any) -> None:
    weight = jnp.asarray(numpyro.sample("weight", dist.Beta(1.0, 1.0)))
    parts = jnp.stack([dist.Normal(-1.0, 1.0).log_prob(y), dist.Normal(1.5, 0.7).log_prob(y)])
    weights = jnp.stack([jnp.log(weight), jnp.log1p(-weight)])
    numpyro.factor("y", jnp.logaddexp(weights[0] + parts[0], weights[1] + parts[1]).sum())


def _weight_line() -> Line:
    x = (np.arange(20_000) + 0.5) / 20_000
    parts = stats.norm.pdf(_WY, -1, 1), stats.norm.pdf(_WY, 1.5, 0.7)
    density = x[:, None] * parts[0] + (1 - x[:, None]) * parts[1]
    return Line(x, np.log(density).sum(1))


def _line_case(name: str, model: Any, y: Any, site: str, line: Any) -> Case:
    return Case(
        name,
        "ordinary",
        lambda: (model, (y,), {}),
        entries(site),
        lambda: {site: line().truth()},
        lambda rng, number: {site: line().draws(rng, number)},
    )


# A Gaussian process with known kernel, and with unknown scales.

_GX = np.linspace(0, 4, 15)
_GY = np.sin(1.5 * _GX) + 0.3 * _data(26).normal(size=15)


def _kernel(x: Any, rho: Any, xp: Any) -> Any:
    return xp.exp(-0.5 * ((x[:, None] - x[None, :]) / rho) ** 2)


def _gp_latent(x: Any, y: Any) -> None:
    covariance = _kernel(x, 1.0, jnp) + 1e-4 * jnp.eye(len(x))
    f = numpyro.sample("f", dist.MultivariateNormal(jnp.zeros(len(x)), covariance))
    numpyro.sample("y", dist.Normal(f, 0.3), obs=y)


def _gp_latent_truths() -> dict[str, Truth]:
    prior = _kernel(_GX, 1.0, np) + 1e-4 * np.eye(15)
    gain = prior @ np.linalg.inv(prior + 0.09 * np.eye(15))
    mean, covariance = gain @ _GY, prior - gain @ prior
    return {f"f[{i}]": of_normal(mean[i], covariance[i, i] ** 0.5) for i in (0, 7, 14)}


def _gp_scales(x: Any, y: Any) -> None:
    rho = numpyro.sample("rho", dist.LogNormal(0.0, 0.7))
    alpha = numpyro.sample("alpha", dist.LogNormal(0.0, 0.7))
    covariance = alpha**2 * _kernel(x, rho, jnp) + 0.09 * jnp.eye(len(x))
    numpyro.sample("y", dist.MultivariateNormal(jnp.zeros(len(x)), covariance), obs=y)


def _gp_scales_truths() -> dict[str, Truth]:
    def logdensity(log_rho: np.ndarray, log_alpha: np.ndarray) -> np.ndarray:
        distance = (_GX[:, None] - _GX) ** 2
        kernel = np.exp(-0.5 * distance / np.exp(2 * log_rho)[:, None, None])
        covariance = np.exp(2 * log_alpha)[:, None, None] * kernel + 0.09 * np.eye(15)
        _, log_determinant = np.linalg.slogdet(covariance)
        solved = np.linalg.solve(
            covariance, np.broadcast_to(_GY[:, None], (len(log_rho), 15, 1))
        )
        quadratic = solved[..., 0] @ _GY
        prior = -0.5 * (log_rho**2 + log_alpha**2) / 0.49
        return prior - 0.5 * (log_determinant + quadratic)

    axis = np.linspace(-3.2, 3.2, 257)
    plane = Plane(axis, axis, logdensity)
    return {
        "rho": plane.truth(lambda r, a: np.exp(r)),
        "alpha": plane.truth(lambda r, a: np.exp(a)),
    }


# Local levels: known scales (a normal posterior) and unknown ones.

_LY = np.cumsum(0.5 * _data(27).normal(size=30)) + _data(28).normal(size=30)


def _walk_covariance(size: int) -> np.ndarray:
    steps = np.arange(1, size + 1)
    return np.minimum(steps[:, None], steps).astype(float)


def _local_level(y: Any) -> None:
    level = numpyro.sample("level", dist.GaussianRandomWalk(0.5, num_steps=len(y)))
    numpyro.sample("y", dist.Normal(level, 1.0), obs=y)


def _local_level_truths() -> dict[str, Truth]:
    prior = 0.25 * _walk_covariance(30)
    gain = prior @ np.linalg.inv(prior + np.eye(30))
    mean, covariance = gain @ _LY, prior - gain @ prior
    return {f"level[{i}]": of_normal(mean[i], covariance[i, i] ** 0.5) for i in (0, 15, 29)}


def _level_scales(y: Any) -> None:
    step = numpyro.sample("step", dist.LogNormal(-1.0, 0.7))
    noise = numpyro.sample("noise", dist.LogNormal(0.0, 0.7))
    white = numpyro.sample("white", dist.Normal(0.0, 1.0).expand([len(y)]).to_event(1))
    numpyro.sample("y", dist.Normal(step * jnp.cumsum(white), noise), obs=y)


def _level_scales_truths() -> dict[str, Truth]:
    values, vectors = np.linalg.eigh(_walk_covariance(30))
    squares = (_LY @ vectors) ** 2

    def logdensity(log_step: np.ndarray, log_noise: np.ndarray) -> np.ndarray:
        spectrum = np.exp(2 * log_step)[:, None] * values + np.exp(2 * log_noise)[:, None]
        likelihood = -0.5 * (np.log(spectrum) + squares / spectrum).sum(1)
        return likelihood - 0.5 * ((log_step + 1) ** 2 + log_noise**2) / 0.49

    plane = Plane(np.linspace(-5, 2, 701), np.linspace(-3, 2, 501), logdensity)
    return {
        "step": plane.truth(lambda s, n: np.exp(s)),
        "noise": plane.truth(lambda s, n: np.exp(n)),
    }


def _ordinary(name: str, model: Any, args: tuple, names: list[str], truths: Any) -> Case:
    return Case(name, "ordinary", lambda: (model, args, {}), entries(*names), truths)


CASES = [
    _ordinary("logistic_2", _logistic, (_X2, _K2), ["b[0]", "b[1]"], _logistic_2_truths),
    _ordinary(
        "logistic_8",
        _logistic,
        (_X8, _K8),
        ["b[0]", "b[3]", "b[7]"],
        _by_importance(_log_logistic(_X8, _K8), 8, {"b[0]": 0, "b[3]": 3, "b[7]": 7}),
    ),
    _ordinary(
        "poisson_regression",
        _poisson,
        (_XP, _KP),
        ["b[0]", "b[1]", "b[3]"],
        _by_importance(_log_poisson, 4, {"b[0]": 0, "b[1]": 1, "b[3]": 3}),
    ),
    _ordinary(
        "probit_regression",
        _probit,
        (_XB, _KB),
        ["b[0]", "b[1]"],
        _by_importance(_log_probit, 3, {"b[0]": 0, "b[1]": 1}),
    ),
    _ordinary(
        "negative_binomial",
        _negative_binomial,
        (_XN, _KN),
        ["b[0]", "b[1]", "size"],
        _negative_binomial_truths,
    ),
    _line_case("robust_location", _robust, _TY, "mean", _robust_line),
    _line_case("no_events_in_100", _rare, 0, "logit", _rare_line),
    _line_case("scale_of_8", _scale, _SY, "scale", _scale_line),
    _line_case("mixture_weight", _weight, _WY, "weight", _weight_line),
    _ordinary(
        "gp_latent", _gp_latent, (_GX, _GY), ["f[0]", "f[7]", "f[14]"], _gp_latent_truths
    ),
    _ordinary("gp_scales", _gp_scales, (_GX, _GY), ["rho", "alpha"], _gp_scales_truths),
    _ordinary(
        "local_level",
        _local_level,
        (_LY,),
        ["level[0]", "level[15]", "level[29]"],
        _local_level_truths,
    ),
    _ordinary(
        "local_level_scales", _level_scales, (_LY,), ["step", "noise"], _level_scales_truths
    ),
]
