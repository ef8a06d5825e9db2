"""The natural-gradient fit that a guide starts from."""

import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import norm

from relbo import model_from_logdensity
from relbo.gaussian import compiled_evaluate, continued_fit, narrow_normal
from relbo.problem import read

NUM_EFFECTS, NUM_POINTS = 20, 64
OBSERVED = 0.5 * np.random.default_rng(0).standard_normal(NUM_EFFECTS)


def effects(z):
    """Effects with an unknown precision: steps towards a lower precision are short."""
    log_precision, values = z[0], z[1:]
    prior = norm.logpdf(log_precision, 0.0, 5.0)
    prior += jnp.sum(norm.logpdf(values, 0.0, jnp.exp(-0.5 * log_precision)))
    return prior + jnp.sum(norm.logpdf(jnp.asarray(OBSERVED), values, 0.3))


def normal(z):
    return jnp.sum(norm.logpdf(z, 3.0, 0.01))


def evaluation(logdensity_fn, size):
    model = model_from_logdensity(logdensity_fn, jnp.zeros(size))
    return compiled_evaluate(read(model), NUM_POINTS)


def elbo(evaluate, normal):
    white = np.random.default_rng(1).standard_normal((64 * NUM_POINTS, len(normal.loc)))
    log_q = norm.logpdf(white).sum(1)
    return np.mean(evaluate(normal, white).logdensity - log_q) + normal.log_det


def test_a_fit_is_continued_to_the_top_of_a_ridge():
    evaluate, elbos = evaluation(effects, NUM_EFFECTS + 1), []
    for log_precision in (5.0, 2.0):
        start = narrow_normal(np.concatenate([[log_precision], np.zeros(NUM_EFFECTS)]))
        end = continued_fit(np.random.default_rng(0), evaluate, NUM_POINTS, start)
        elbos.append(elbo(evaluate, end))
    np.testing.assert_allclose(elbos[0], elbos[1], atol=0.05)


def test_a_continued_fit_ends_where_nothing_can_be_gained():
    evaluate, calls = evaluation(normal, 2), []

    def counted(*args):
        calls.append(args)
        return evaluate(*args)

    end = continued_fit(
        np.random.default_rng(0), counted, NUM_POINTS, narrow_normal(np.zeros(2))
    )
    np.testing.assert_allclose(end.loc, 3.0, atol=0.01)
    np.testing.assert_allclose(elbo(evaluate, end), 0.0, atol=0.01)
    assert len(calls) < 80


def test_a_continued_fit_keeps_its_time():
    evaluate, calls = evaluation(effects, NUM_EFFECTS + 1), []

    def counted(*args):
        calls.append(args)
        return evaluate(*args)

    start = narrow_normal(np.full(NUM_EFFECTS + 1, 3.0))
    continued_fit(np.random.default_rng(0), counted, NUM_POINTS, start, is_late=lambda: True)
    assert len(calls) < 30
