"""Estimates how long a run takes, from the time of one gradient of the model."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.random as jr

from relbo._progress import duration
from relbo.problem import read
from relbo.sampling._sample import default_num_chains

LONG = 60.0
"""Seconds from which a run is called long."""
_DEFAULT_DRAWS = 4_000
_GRADIENTS = 2_000
"""Gradients of all chains together, for a few latent values and the default number of draws;
half of them for the warm-up."""
_FEW_LATENTS = 20
_GROWTH = 0.4
"""The power of the number of latent values with which the gradients grow beyond a few."""
_COMPILATIONS = 3.0
"""How many programs take as long to compile as a gradient does."""
_FIXED_SECONDS = 4.0
"""For the figures, and for programs that do not depend on the model."""


def expected_seconds(model: Any, data: dict[str, Any], num_draws: int) -> float | None:
    """Returns roughly how long `relbo.infer` takes on a posterior without difficulties.

    It compiles one gradient of all chains and times it: the number of gradients that a run
    needs is known to a factor of two, more are needed where chains mix slowly. Returns `None`
    if the model cannot be read; inference then says why.
    """
    try:
        problem = read(model, (), data)
        size = problem.size
        chains = default_num_chains(num_draws, size)
        points = 0.1 * jr.normal(jr.key(0), (chains, size))
        gradient = jax.jit(jax.vmap(jax.grad(problem.logdensity)))
        compilation, once, again = (_timed(gradient, points) for _ in range(3))
    except Exception:
        return None
    number = _GRADIENTS * max(1.0, size / _FEW_LATENTS) ** _GROWTH
    number *= 0.5 + 0.5 * num_draws / _DEFAULT_DRAWS
    return _FIXED_SECONDS + _COMPILATIONS * compilation + number * min(once, again)


def announcement(seconds: float | None) -> str:
    """Says how long a run takes."""
    if seconds is None:
        return "It is not known how long this takes."
    about = f"about {duration(_rounded(seconds))}"
    if seconds < LONG:
        return f"This takes {about}, longer if the posterior is difficult."
    return f"This is a long run: {about}, longer if the posterior is difficult."


def _timed(function: Callable[..., Any], *args: Any) -> float:
    started = time.perf_counter()
    jax.block_until_ready(function(*args))
    return time.perf_counter() - started


def _rounded(seconds: float) -> float:
    """Rounds to what an estimate deserves: seconds to fives, longer times to minutes."""
    unit = 5.0 if seconds < LONG else 60.0
    return unit * max(1, round(seconds / unit))
