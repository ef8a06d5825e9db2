"""A dynamic linear model, optimised (paper, section 5.2).

z_{t+1} ~ N(0.5 z_t + 1, s_tr), x_t ~ N(3 z_t + 0.5, s_em), z_0 = 0. The Kalman filter
integrates out the path, and the two standard deviations are learned on the log scale.
"""

from pathlib import Path

import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, PRNGKeyArray, Scalar

from relbo.statespace import LinearGaussian
from relbo_paper.harness.experiments import Options, Outcome
from relbo_paper.harness.protocols import settings_for
from relbo_paper.state_space.claims import optimisation_claims
from relbo_paper.state_space.optimisation import FULL, QUICK, LikelihoodProblem, run_problem

SERIES_LENGTH = 100
TRUE_SCALE = 1.0

CLAIMS = optimisation_claims("a dynamic linear model", "the Kalman filter")


def run(directory: Path, options: Options) -> Outcome:
    """Runs the requested protocols and writes their numbers and figures to `directory`."""
    settings = settings_for(options, full=FULL, quick=QUICK)
    return run_problem(problem(), settings, directory, options)


def problem() -> LikelihoodProblem:
    """Simulates a series from the paper's model and returns its likelihood."""
    truth = {name: jnp.log(jnp.array(TRUE_SCALE)) for name in ("transition", "emission")}
    series = process(truth).simulate(jr.key(2), SERIES_LENGTH).series

    def logdensity_fn(log_scales: dict[str, Array]) -> Scalar:
        return process(log_scales).log_likelihood(series)

    # With a ten times larger step, steps from a scale that is too small never recover.
    return LikelihoodProblem(
        "dlm", "Dynamic linear model", logdensity_fn, draw_log_scales, 1e-4
    )


def process(log_scales: dict[str, Array]) -> LinearGaussian:
    """Returns the paper's model; the state before the first observation is z_0 = 0."""
    moved = jnp.exp(2.0 * log_scales["transition"]).reshape(1, 1)
    return LinearGaussian(
        jnp.ones(1),
        moved,
        jnp.full((1, 1), 0.5),
        moved,
        jnp.full((1, 1), 3.0),
        jnp.exp(2.0 * log_scales["emission"]).reshape(1),
        jnp.ones(1),
        jnp.full(1, 0.5),
    )


def draw_log_scales(key: PRNGKeyArray) -> dict[str, Array]:
    """Draws initial log scales, within a factor of about ten of the true ones."""
    keys = jr.split(key)
    names = ("transition", "emission")
    return {name: jr.normal(k) for k, name in zip(keys, names, strict=True)}
