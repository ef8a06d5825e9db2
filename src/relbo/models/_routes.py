r"""Products with a transition matrix that is mostly zeros.

A transition that moves states about, such as seasons that come round, is a sum of few
permutations, each with a factor for every state:

$$(F z)_i = \sum_q F_{i r_q(i)}\, z_{r_q(i)}$$

The permutations r_q, its *routes*, are known before anything is computed. A product then costs
one multiplication for each of them, where a matrix product takes as many as there are states.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

Routes = tuple[tuple[int, ...], ...]

MOST_ROUTES = 4
"""With more of them the matrix product is as fast."""


def all_routes(size: int) -> Routes:
    """Routes of a matrix without zeros: the cyclic shifts."""
    return tuple(
        tuple((state + shift) % size for state in range(size)) for shift in range(size)
    )


def join_routes(blocks: list[Routes]) -> Routes | None:
    """Routes of a matrix of blocks, `None` where there would be too many."""
    number = max(map(len, blocks))
    if number > MOST_ROUTES:
        return None
    joined: list[tuple[int, ...]] = [()] * number
    for routes in blocks:
        first = len(joined[0])
        # A route that is taken twice counts once: see `_factors`.
        padded = [*routes, *[routes[0]] * (number - len(routes))]
        joined = [
            (*before, *(first + state for state in route))
            for before, route in zip(joined, padded, strict=True)
        ]
    return tuple(joined)


def push(
    transition: Float[Array, "n n"], routes: Routes | None, right: Float[Array, "n m"]
) -> Float[Array, "n m"]:
    """F times `right`."""
    if routes is None:
        return transition @ right
    factors = _factors(transition, routes)
    return sum(
        (factor[:, None] * _taken(right, route) for factor, route in factors),
        start=jnp.zeros_like(right),
    )


def pull(
    transition: Float[Array, "n n"], routes: Routes | None, right: Float[Array, "n m"]
) -> Float[Array, "n m"]:
    """F' times `right`."""
    if routes is None:
        return transition.T @ right
    factors = _factors(transition, routes)
    return sum(
        (_taken(factor[:, None] * right, np.argsort(route)) for factor, route in factors),
        start=jnp.zeros_like(right),
    )


def _factors(transition: Array, routes: Routes) -> list[tuple[Array, tuple[int, ...]]]:
    """What each state takes along each route; an entry that two routes share counts once."""
    states = np.arange(len(routes[0]))
    pairs, seen = [], np.zeros((len(states), len(states)), bool)
    for route in routes:
        is_new = ~seen[states, route]
        seen[states, route] = True
        pairs.append((jnp.where(is_new, transition[states, np.array(route)], 0.0), route))
    return pairs


def _taken(values: Float[Array, "n m"], route: tuple[int, ...] | np.ndarray) -> Array:
    """`values[route]` by slices, which compile to copies where indices would be looked up."""
    route = np.asarray(route)
    ends = np.flatnonzero(np.diff(route) != 1) + 1
    runs = np.split(route, ends)
    return jnp.concatenate([values[run[0] : run[-1] + 1] for run in runs])
