"""The models of benchmarks/ladder.py in PyMC, with the same names, for nutpie.

`python benchmarks/rivals.py --verify` compares their log densities with those in NumPyro.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor

pt: Any = pytensor.tensor  # its functions are annotated too loosely to compute with


def eight_schools(y: Any, sigma: Any) -> pm.Model:
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 5.0)
        tau = pm.HalfCauchy("tau", 5.0)
        z = pm.Normal("z", 0.0, 1.0, shape=len(y))
        pm.Normal("y", mu + tau * z, sigma, observed=y)
    return model


def logistic(X: Any, y: Any) -> pm.Model:
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 1.0, shape=X.shape[1])
        pm.Bernoulli("y", logit_p=pm.math.dot(X, beta), observed=y)
    return model


def irt(person: Any, item: Any, y: Any) -> pm.Model:
    with pm.Model() as model:
        mu_a = pm.Normal("mu_a", 0.0, 1.0)
        sigma_a = pm.HalfNormal("sigma_a", 1.0)
        mu_b = pm.Normal("mu_b", 0.0, 2.0)
        sigma_b = pm.HalfNormal("sigma_b", 2.0)
        theta = pm.Normal("theta", 0.0, 1.0, shape=100)
        log_a = pm.Normal("log_a", mu_a, sigma_a, shape=20)
        b = pm.Normal("b", mu_b, sigma_b, shape=20)
        logits = pm.math.exp(log_a[item]) * (theta[person] - b[item])
        pm.Bernoulli("y", logit_p=logits, observed=y)
    return model


def gp_classification(x: Any, y: Any) -> pm.Model:
    with pm.Model() as model:
        length = pm.InverseGamma("length", 5.0, 2.0)
        amplitude = pm.HalfNormal("amplitude", 2.0)
        z = pm.Normal("z", 0.0, 1.0, shape=len(x))
        covariance = pt.exp(-0.5 * ((x[:, None] - x) / length) ** 2) + 1e-6 * np.eye(len(x))
        root = pt.linalg.cholesky(covariance)
        pm.Bernoulli("y", logit_p=amplitude * pm.math.dot(root, z), observed=y)
    return model


def lkj(X: Any, group: Any, y: Any) -> pm.Model:
    with pm.Model() as model:
        mean = pm.Normal("mean", 0.0, 2.0, shape=4)
        scale = pm.HalfNormal("scale", 1.0, shape=4)
        root = _lkj_cholesky("root", 4, 2.0)
        z = pm.Normal("z", 0.0, 1.0, shape=(40, 4))
        beta = mean + pm.math.dot(z, (scale[:, None] * root).T)
        pm.Bernoulli("y", logit_p=(X * beta[group]).sum(1), observed=y)
    return model


def _lkj_cholesky(name: str, size: int, concentration: float) -> Any:
    """Builds the Cholesky root of a correlation matrix from its partial correlations.

    PyMC's own distribution includes the scales, with another transform than NumPyro's.
    """
    free = pm.Flat(f"{name}_free", shape=size * (size - 1) // 2)
    rows, columns = np.tril_indices(size, -1)
    partial = pt.zeros((size, size))[rows, columns].set(pt.tanh(free))
    remaining = pt.concatenate(
        [pt.ones((size, 1)), pt.cumprod(1.0 - partial**2, axis=1)[:, :-1]], axis=1
    )
    root = pm.Deterministic(name, (partial + np.eye(size)) * pt.sqrt(remaining))
    exponents = concentration + 0.5 * (size - 2 - columns)
    pm.Potential(f"{name}_prior", pt.sum(exponents * pt.log1p(-(pt.tanh(free) ** 2))))
    return root


def radon(floor: Any, county: Any, y: Any) -> pm.Model:
    with pm.Model() as model:
        mu_a = pm.Normal("mu_a", 0.0, 5.0)
        mu_b = pm.Normal("mu_b", 0.0, 5.0)
        sigma_a = pm.HalfNormal("sigma_a", 1.0)
        sigma_b = pm.HalfNormal("sigma_b", 1.0)
        sigma = pm.HalfNormal("sigma", 1.0)
        a = pm.Normal("a", mu_a, sigma_a, shape=85)
        b = pm.Normal("b", mu_b, sigma_b, shape=85)
        pm.Normal("y", a[county] + b[county] * floor, sigma, observed=y)
    return model


def horseshoe(X: Any, y: Any) -> pm.Model:
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0.0, 2.0)
        sigma = pm.HalfNormal("sigma", 2.0)
        tau = pm.HalfCauchy("tau", 0.05)
        slab = pm.InverseGamma("slab", 2.0, 8.0)
        local = pm.HalfCauchy("local", 1.0, shape=98)
        z = pm.Normal("z", 0.0, 1.0, shape=98)
        scale = tau * local * pt.sqrt(slab / (slab + (tau * local) ** 2))
        pm.Normal("y", intercept + pm.math.dot(X, scale * z), sigma, observed=y)
    return model


def stochastic_volatility(y: Any) -> pm.Model:
    with pm.Model() as model:
        mu = pm.Normal("mu", -9.0, 2.0)
        phi = pm.Beta("phi", 20.0, 1.5)
        sigma = pm.HalfNormal("sigma", 0.5)
        z = pm.Normal("z", 0.0, 1.0, shape=len(y))
        start = sigma * z[0] / pt.sqrt(1.0 - phi**2)
        rest = pytensor.scan(
            lambda noise, h, phi, sigma: phi * h + sigma * noise,
            sequences=z[1:],
            outputs_info=start,
            non_sequences=[phi, sigma],
            strict=True,
            return_updates=False,
        )
        h = pt.concatenate([start[None], rest])
        pm.Normal("y", 0.0, pt.exp(0.5 * (mu + h)), observed=y)
    return model


def random_walk(y: Any) -> pm.Model:
    with pm.Model() as model:
        step = pm.HalfNormal("step", 1.0)
        noise = pm.HalfNormal("noise", 1.0)
        z = pm.Normal("z", 0.0, 1.0, shape=len(y))
        pm.Normal("y", step * z.cumsum(), noise, observed=y)
    return model


def crossed_poisson(X: Any, subject: Any, item: Any, y: Any) -> pm.Model:
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 1.0, shape=6)
        sd_subject = pm.HalfNormal("sd_subject", 1.0)
        sd_item = pm.HalfNormal("sd_item", 1.0)
        u = pm.Normal("u", 0.0, sd_subject, shape=195)
        v = pm.Normal("v", 0.0, sd_item, shape=97)
        rate = pm.math.exp(pm.math.dot(X, beta) + u[subject] + v[item])
        pm.Poisson("y", rate, observed=y)
    return model


def cox_process(root: Any, counts: Any) -> pm.Model:
    with pm.Model() as model:
        mean = pm.Normal("mean", 0.0, 2.0)
        amplitude = pm.HalfNormal("amplitude", 2.0)
        z = pm.Normal("z", 0.0, 1.0, shape=len(counts))
        rate = pm.math.exp(mean + amplitude * pm.math.dot(root, z))
        pm.Poisson("counts", rate, observed=counts)
    return model


def inverse_problem(A: Any, scale: Any, y: Any) -> pm.Model:
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, scale, shape=len(scale))
        pm.Normal("y", pm.math.dot(A, x), 1.0, observed=y)
    return model


def normal_groups(y: Any, error: Any) -> pm.Model:
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 10.0)
        theta = pm.Normal("theta", mu, 1.0, shape=len(y))
        pm.Normal("y", theta, error, observed=y)
    return model


MODELS: dict[str, Callable[..., pm.Model]] = {
    "eight_schools": eight_schools,
    "logistic": logistic,
    "tall_logistic": logistic,
    "irt": irt,
    "gp_classification": gp_classification,
    "lkj": lkj,
    "radon": radon,
    "horseshoe": horseshoe,
    "crossed_poisson": crossed_poisson,
    "cox_process": cox_process,
    "stochastic_volatility": stochastic_volatility,
    "random_walk": random_walk,
    "gaussian_2000": inverse_problem,
    "normal_groups": normal_groups,
    "gaussian_10000": inverse_problem,
}
