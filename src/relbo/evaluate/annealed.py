"""Annealed importance sampling with Hamiltonian moves."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from jax.flatten_util import ravel_pytree
from jax.sharding import Mesh
from jaxtyping import Array, Float, PRNGKeyArray, PyTree, Scalar

from relbo._devices import Spread, placed_arrays, spread_over
from relbo.core.bases import AbstractBase, standard_normal_logdensity
from relbo.core.checks import check_integer
from relbo.core.random import KeyLike, as_key
from relbo.evaluate.annealed_path import AnnealedPath, path_between
from relbo.evaluate.annealing import AnnealingSettings, anneal
from relbo.evaluate.batches import map_with_keys
from relbo.evaluate.importance import LogMean, importance_estimate, log_mean, pointwise
from relbo.evaluate.record import Evaluation, PointwiseEvaluation

ANNEALED = "annealed importance sampling"


class LatentVariableModel(eqx.Module):
    """log p(x, z) of a decoder under a standard normal prior on z.

    Args:
        loglikelihood_fn: maps (z, x) to log p(x | z). The weights of an `equinox.Module` are
            arguments of the compiled program, so that other weights need no new compilation.
    """

    loglikelihood_fn: Callable[[PyTree, PyTree], Scalar]

    def __call__(self, position: PyTree, data: PyTree) -> Scalar:
        return standard_normal_logdensity(position) + self.loglikelihood_fn(position, data)


def annealed_importance(
    key: KeyLike,
    logdensity_fn: Callable[[PyTree], Scalar],
    base: AbstractBase,
    *,
    settings: AnnealingSettings = AnnealingSettings(),
    mesh: Mesh | None = None,
) -> Evaluation:
    r"""Estimates $\log Z$ of a log density by annealed importance sampling.

    Chains start from the base and move along $\beta \log p + (1 - \beta) \log q_0$ from
    $\beta = 0$ to 1, with one Metropolis-corrected Hamiltonian move at each temperature; their
    weights average to Z whatever the moves do, so that the logarithm is a lower bound in
    expectation. Two short unweighted runs choose the temperatures, step sizes and widths of the
    weighted run. The path from a normal base is walked in the base's whitened coordinates.

    Args:
        key: a random key, or an integer seed.
        logdensity_fn: log p(x, z). The arrays of an `equinox.Module` (or `equinox.Partial`) are
            arguments of the compiled program, so that others need no new compilation.
        base: $q_0$, any base with a density.
        settings: the numbers of temperatures, chains and leapfrogs.
        mesh: the devices that share the chains; all by default, as for `relbo.fit`.

    Returns:
        An `Evaluation`.

    Example:
        >>> import jax.numpy as jnp, jax.random as jr
        >>> base = DiagonalNormal(jnp.zeros(2))
        >>> estimate = annealed_importance(jr.key(0), lambda z: -jnp.sum(z**2), base)

    References:
        Neal, Annealed importance sampling, 2001.
    """
    path_fn = eqx.Partial(path_between, base, logdensity_fn, whiten=True)
    log_weights = annealed_log_weights(key, path_fn, settings, mesh)
    return importance_estimate(log_weights, estimator=ANNEALED)


def annealed_log_weights(
    key: KeyLike,
    path_fn: Callable[[], AnnealedPath],
    settings: AnnealingSettings,
    mesh: Mesh | None,
) -> Float[Array, " chains"]:
    """Anneals along a path that is made by a compiled `equinox.Partial`, over devices."""
    spread = spread_over(mesh)
    typed_key, path_fn = placed_arrays(spread, (as_key(key), path_fn))
    return _log_weights(typed_key, path_fn, settings, spread)


@eqx.filter_jit
def _log_weights(
    key: PRNGKeyArray,
    path_fn: Callable[[], AnnealedPath],
    settings: AnnealingSettings,
    spread: Spread | None,
) -> Float[Array, " chains"]:
    return anneal(key, path_fn(), settings, spread=spread).forward


def annealed_pointwise(
    key: KeyLike,
    logdensity_fn: Callable[[PyTree, PyTree], Scalar],
    data: PyTree,
    base: AbstractBase,
    *,
    settings: AnnealingSettings = AnnealingSettings(num_chains=16),
    batch_size: int = 64,
    mesh: Mesh | None = None,
) -> PointwiseEvaluation:
    """Runs annealed importance sampling for each data point of a latent-variable model.

    Args:
        key: a random key, or an integer seed.
        logdensity_fn: log p(x, z) as a function of z and one data point, such as a
            `LatentVariableModel`.
        data: the data points, along the leading axis of each leaf.
        base: where all chains start: the prior, as `StandardNormal`, or any base with a
            density.
        settings: as for `annealed_importance`, for each data point.
        batch_size: number of data points at a time; memory grows with it.
        mesh: the devices that share the data points; all by default, as for `relbo.fit`.

    Returns:
        A `PointwiseEvaluation`; its `mean()` is the test log-likelihood.

    Example:
        >>> import jax.numpy as jnp, jax.random as jr
        >>> model = LatentVariableModel(lambda z, x: -jnp.sum((x - z) ** 2))
        >>> data = jnp.ones((10, 2))
        >>> estimate = annealed_pointwise(jr.key(0), model, data, StandardNormal(jnp.zeros(2)))
        >>> estimate.values.shape
        (10,)
    """
    means = map_with_keys(
        key,
        eqx.Partial(_anneal_point, logdensity_fn, base, settings),
        jax.tree.leaves(data)[0].shape[0],
        data,
        batch_size=batch_size,
        mesh=mesh,
    )
    return pointwise(means, ANNEALED, settings.num_chains)


def _anneal_point(
    logdensity_fn: Callable[[PyTree, PyTree], Scalar],
    base: AbstractBase,
    settings: AnnealingSettings,
    key: PRNGKeyArray,
    point: PyTree,
) -> LogMean:
    path = path_between(base, lambda z: logdensity_fn(z, point), whiten=True)
    return log_mean(anneal(key, path, settings).forward)


class Bidirectional(NamedTuple):
    """Bounds on the log marginal likelihood from both sides, for simulated data."""

    lower: PointwiseEvaluation
    upper: PointwiseEvaluation
    """An upper bound in expectation, so its `valid_bound` as a lower one is false."""
    gap: Evaluation
    """The mean of upper - lower over simulations: the error that annealing may have."""


def bidirectional(
    key: KeyLike,
    simulate_fn: Callable[[PRNGKeyArray], tuple[PyTree, PyTree]],
    logdensity_fn: Callable[[PyTree, PyTree], Scalar],
    base: AbstractBase,
    *,
    num_simulations: int = 16,
    settings: AnnealingSettings = AnnealingSettings(num_chains=16),
    batch_size: int = 16,
    mesh: Mesh | None = None,
) -> Bidirectional:
    r"""Encloses the log marginal likelihood of simulated data from both sides.

    For data x simulated together with z, that z is an exact draw of the posterior. Annealing
    from it back to the base estimates 1 / Z without bias, and so bounds $\log p(x)$ from
    above, as annealing forward does from below. The gap shows how accurate the same settings
    are on similar real data.

    Args:
        key: a random key, or an integer seed.
        simulate_fn: maps a key to (z, x) drawn from the model.
        logdensity_fn: log p(x, z) as a function of z and x, normalised in both.
        base: where the forward chains start; its density must be known everywhere.
        num_simulations: number of data sets, or of data points of a latent-variable model.
        settings: as for `annealed_importance`, for each simulation.
        batch_size: number of simulations at a time.
        mesh: the devices that share the simulations; all by default, as for `relbo.fit`.

    Returns:
        A `Bidirectional`.

    References:
        Grosse, Ghahramani and Adams, Sandwiching the marginal likelihood using bidirectional
        Monte Carlo, 2015.
    """
    check_integer("num_simulations", num_simulations, 2)
    lower, upper = map_with_keys(
        key,
        eqx.Partial(_simulate_and_anneal, simulate_fn, logdensity_fn, base, settings),
        num_simulations,
        batch_size=batch_size,
        mesh=mesh,
    )
    upper = upper._replace(value=-upper.value)
    below = pointwise(lower, ANNEALED, settings.num_chains)
    above = pointwise(upper, f"reverse {ANNEALED}", settings.num_chains, valid_bound=False)
    difference = below._replace(
        values=above.values - below.values,
        estimator=f"bidirectional {ANNEALED}",
        valid_bound=None,
        ess=np.minimum(below.ess, above.ess),
    )
    return Bidirectional(below, above, difference.mean())


def _simulate_and_anneal(
    simulate_fn: Callable[[PRNGKeyArray], tuple[PyTree, PyTree]],
    logdensity_fn: Callable[[PyTree, PyTree], Scalar],
    base: AbstractBase,
    settings: AnnealingSettings,
    key: PRNGKeyArray,
) -> tuple[LogMean, LogMean]:
    simulate_key, anneal_key = jr.split(key)
    position, data = simulate_fn(simulate_key)
    # Whitened coordinates of an exact draw would need the inverse of the transform.
    path = path_between(base, lambda z: logdensity_fn(z, data), whiten=False)
    run = anneal(anneal_key, path, settings, ravel_pytree(position)[0])
    assert run.reverse is not None
    return log_mean(run.forward), log_mean(run.reverse)
