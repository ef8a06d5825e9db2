"""A hidden Markov model, optimised (paper, section 5.2).

Five hidden states and five symbols. The forward algorithm sums out the hidden path, and the
rows of both matrices are in softmax coordinates under flat Dirichlet priors.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from relbo.statespace import HiddenMarkov
from relbo_paper.harness.experiments import Options, Outcome
from relbo_paper.harness.protocols import settings_for
from relbo_paper.state_space.claims import optimisation_claims
from relbo_paper.state_space.optimisation import FULL, QUICK, LikelihoodProblem, run_problem

NUM_STATES = NUM_SYMBOLS = 5
SERIES_LENGTH = 200

Logits = dict[str, Float[Array, "..."]]

CLAIMS = optimisation_claims("a hidden Markov model", "the forward algorithm")


def run(directory: Path, options: Options) -> Outcome:
    """Runs the requested protocols and writes their numbers and figures to `directory`."""
    settings = settings_for(options, full=FULL, quick=QUICK)
    return run_problem(problem(), settings, directory, options)


def problem() -> LikelihoodProblem:
    """Simulates a series from a random hidden Markov model and returns its likelihood."""
    truth = chain(draw_logits(jr.key(1)))
    series = truth.simulate(jr.key(2), SERIES_LENGTH).series

    def logdensity_fn(logits: Logits) -> Scalar:
        return chain(logits).log_likelihood(series)

    return LikelihoodProblem("hmm", "Hidden Markov model", logdensity_fn, draw_logits, 1e-3)


def chain(logits: Logits) -> HiddenMarkov:
    """Returns the hidden Markov model with these logits and a uniform first state."""
    return HiddenMarkov(
        jnp.full(NUM_STATES, 1.0 / NUM_STATES),
        jax.nn.softmax(logits["transition"]),
        jax.nn.softmax(logits["emission"]),
    )


def draw_logits(key: PRNGKeyArray) -> Logits:
    """Draws initial matrices, with rows from a flat Dirichlet."""
    keys = jr.split(key)
    sizes = {"transition": NUM_STATES, "emission": NUM_SYMBOLS}
    return {
        name: jnp.log(jr.dirichlet(k, jnp.ones(size), (NUM_STATES,)) + 1e-6)
        for k, (name, size) in zip(keys, sizes.items(), strict=True)
    }
