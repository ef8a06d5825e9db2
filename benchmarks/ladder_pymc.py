"""Some models of benchmarks/ladder.py in PyMC, with the same names, for nutpie."""

from collections.abc import Callable
from typing import Any

import pymc as pm


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
    "radon": radon,
    "crossed_poisson": crossed_poisson,
    "cox_process": cox_process,
    "random_walk": random_walk,
    "gaussian_2000": inverse_problem,
    "normal_groups": normal_groups,
    "gaussian_10000": inverse_problem,
}
