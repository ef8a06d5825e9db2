"""Draws in constrained and unconstrained space, and the seed of their noise."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from relbo.problem import Problem


@jax.jit
def unconstrained_rows(problem: Problem, values: dict[str, Array]) -> Float[Array, "n d"]:
    return jax.vmap(problem.unconstrain)(values)


@jax.jit
def constrained_rows(problem: Problem, points: Float[Array, "n d"]) -> dict[str, Array]:
    return jax.vmap(problem.constrain)(points)


@jax.jit
def logdensity_rows(problem: Problem, points: Float[Array, "n d"]) -> Float[Array, " n"]:
    return jax.vmap(problem.logdensity)(points)


def constrain(
    problem: Problem, draws: Float[np.ndarray, "draws chains d"]
) -> dict[str, np.ndarray]:
    """Returns values by site, `[num_chains, draws, ...]`."""
    points = np.swapaxes(draws, 0, 1)
    flat = points.reshape(-1, problem.size).astype(np.dtype(jnp.result_type(float)))
    values = constrained_rows(problem, flat)
    return {
        n: np.asarray(v).reshape(*points.shape[:2], *v.shape[1:]) for n, v in values.items()
    }


def by_site(
    problem: Problem, draws: Float[np.ndarray, "draws chains d"]
) -> dict[str, np.ndarray]:
    """Returns unconstrained values by site, `[num_chains, draws, ...]`."""
    by_chain = np.swapaxes(draws, 0, 1)
    ends = np.cumsum([site.size for site in problem.sites])
    parts = np.split(by_chain, ends[:-1], axis=2)
    return {
        site.name: part.reshape(*by_chain.shape[:2], *site.shape)
        for site, part in zip(problem.sites, parts, strict=True)
    }


def seed_words(key: PRNGKeyArray) -> list[int]:
    """Returns a key as a seed for NumPy."""
    return [int(word) for word in np.ravel(jr.key_data(key))]
