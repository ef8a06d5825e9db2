"""A hidden Markov model, optimised (paper, section 5.2).

Five hidden states and five symbols; the path is summed out by the forward algorithm, and the
rows of both matrices are softmax coordinates under flat Dirichlet priors.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray, Scalar

from relbo.experiments import Options, Outcome
from relbo.experiments._optimisation import FULL, QUICK, Problem
from relbo.experiments._optimisation import run as run_problem
from relbo.experiments._optimisation_story import optimisation_story
from relbo.experiments._run import settings_for
from relbo.models import HiddenMarkov

NUM_STATES = NUM_SYMBOLS = 5
SERIES_LENGTH = 200

Logits = dict[str, Float[Array, "..."]]

STORY = optimisation_story("a hidden Markov model", "the forward algorithm")


def run(directory: Path, options: Options) -> Outcome:
    """Runs the protocols asked for and writes their numbers and figures to `directory`."""
    settings = settings_for(options, full=FULL, quick=QUICK)
    return run_problem(problem(), settings, directory, options)


def problem() -> Problem:
    """A series of a random hidden Markov model, and its likelihood."""
    truth = chain(draw_logits(jr.key(1)))
    series = truth.simulate(jr.key(2), SERIES_LENGTH).series

    def logdensity_fn(logits: Logits) -> Scalar:
        return chain(logits).log_likelihood(series)

    return Problem("hmm", "Hidden Markov model", logdensity_fn, draw_logits, 1e-3)


def chain(logits: Logits) -> HiddenMarkov:
    """The hidden Markov model with these logits; every first state is as probable."""
    return HiddenMarkov(
        jnp.full(NUM_STATES, 1.0 / NUM_STATES),
        jax.nn.softmax(logits["transition"]),
        jax.nn.softmax(logits["emission"]),
    )


def draw_logits(key: PRNGKeyArray) -> Logits:
    """Matrices to start from: rows from a flat Dirichlet."""
    keys = jr.split(key)
    sizes = {"transition": NUM_STATES, "emission": NUM_SYMBOLS}
    return {
        name: jnp.log(jr.dirichlet(k, jnp.ones(size), (NUM_STATES,)) + 1e-6)
        for k, (name, size) in zip(keys, sizes.items(), strict=True)
    }
