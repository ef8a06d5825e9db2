"""Checks the truths of the gallery against the models, in float64.

Where exact draws exist, they are compared with the truth, then moved by Metropolis steps that
leave the model's posterior invariant, and compared again: draws that do not belong to the model
change. The proposals add differences of other exact draws, large enough to jump between modes.
Otherwise NUTS is run. Improper cases are left out: there is nothing to compare with.
"""

import time
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.flatten_util import ravel_pytree
from numpyro.infer import MCMC, NUTS
from numpyro.infer.util import initialize_model, unconstrain_fn

from gallery_judge import Miss, judge
from gallery_truth import Case

NUM_EXACT = 20_000
NUM_MOVES = 60
NUTS_CHAINS, NUTS_DRAWS = 4, 5000
MAX_ERRORS = 4.0
"""Largest number of Monte Carlo errors that a correct truth may be off."""


def verify(cases: list[Case]) -> None:
    """Prints one line per case: how it was checked, and the largest deviations."""
    jax.config.update("jax_enable_x64", True)
    doubtful = []
    for case in cases:
        if not case.proper:
            continue
        start = time.perf_counter()
        truths = case.truth()
        found = {}
        if case.draws is None:
            found["NUTS"] = _worst(judge(case, truths, _nuts(case)))
        else:
            draws = case.draws(np.random.default_rng(7), NUM_EXACT)
            before, after, accepted = _moved(case, draws)
            found["exact draws"] = _worst(judge(case, truths, before))
            found[f"moved ({accepted:.0%} accepted)"] = _worst(judge(case, truths, after))
        jax.clear_caches()
        seconds = time.perf_counter() - start
        if any(_errors(miss) > MAX_ERRORS for miss in found.values()):
            doubtful.append(case.name)
        told = "; ".join(f"{how}: {_described(miss)}" for how, miss in found.items())
        print(f"{case.name:26}{seconds:6.1f} s  {told}", flush=True)
    print(f"above {MAX_ERRORS:.0f} errors: {', '.join(doubtful) or 'none'}")


def _errors(miss: Miss) -> float:
    """Returns an error in units of its Monte Carlo error."""
    return miss.error / miss.monte_carlo_error if np.isfinite(miss.error) else np.inf


def _worst(errors: list[Miss]) -> Miss:
    return max(errors, key=_errors)


def _described(miss: Miss) -> str:
    return f"{_errors(miss):.1f} errors ({miss.quantity}, {miss.statistic})"


def _nuts(case: Case) -> dict[str, np.ndarray]:
    model, args, kwargs = case.build()
    kernel = NUTS(model, dense_mass=True, target_accept_prob=0.95)
    mcmc = MCMC(
        kernel,
        num_warmup=1000,
        num_samples=NUTS_DRAWS,
        num_chains=NUTS_CHAINS,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jr.key(0), *args, **kwargs)
    draws = mcmc.get_samples(group_by_chain=True)
    return {name: np.asarray(values) for name, values in draws.items()}


def _moved(case: Case, draws: Any) -> tuple[dict, dict, float]:
    """Returns exact draws, the same after Metropolis steps, and the share accepted.

    Every draw is a chain of length one, so that all are independent.
    """
    model, args, kwargs = case.build()
    info, energy, to_sites, _ = initialize_model(
        jr.key(0), model, model_args=args, model_kwargs=kwargs, dynamic_args=False
    )
    draws = {name: jnp.asarray(draws[name]) for name in info.z}
    to_unconstrained = lambda values: unconstrain_fn(model, args, kwargs, values)
    _, unflatten = ravel_pytree(info.z)
    points = jax.vmap(lambda values: ravel_pytree(to_unconstrained(values))[0])(draws)
    logdensity = jax.vmap(lambda point: -energy(unflatten(point)))
    constrain = jax.jit(jax.vmap(lambda point: to_sites(unflatten(point))))
    by_chain = lambda points: {
        name: np.asarray(value)[None] for name, value in constrain(points).items()
    }
    moved, accepted = _metropolis(logdensity, points)
    return by_chain(points), by_chain(moved), accepted


def _metropolis(logdensity: Any, points: jax.Array) -> tuple[jax.Array, float]:
    """Moves points by differences of two others, of sizes from small to as large as they are.

    The others come from a fixed copy of the points, so that the proposal is symmetric.
    """
    number, size = points.shape
    pool = points
    local = 2.38 / (2 * size) ** 0.5
    sizes = jnp.resize(jnp.array([1.0, local, 0.2 * local, 0.02 * local]), (NUM_MOVES,))

    def move(state: Any, key_and_size: Any) -> Any:
        points, current = state
        key, step = key_and_size
        first, second, third = jr.split(key, 3)
        pair = jr.randint(first, (2, number), 0, number)
        # The signs are random, so that the difference is symmetric whatever the pool is.
        sign = jr.rademacher(second, (number, 1), points.dtype)
        proposal = points + step * sign * (pool[pair[0]] - pool[pair[1]])
        proposed = logdensity(proposal)
        is_accepted = jnp.log(jr.uniform(third, (number,))) < proposed - current
        points = jnp.where(is_accepted[:, None], proposal, points)
        return (points, jnp.where(is_accepted, proposed, current)), is_accepted.mean()

    @jax.jit
    def run(points: jax.Array) -> Any:
        keys = jr.split(jr.key(1), NUM_MOVES)
        return jax.lax.scan(move, (points, logdensity(points)), (keys, sizes))

    (moved, _), accepted = run(points)
    return moved, float(accepted.mean())
