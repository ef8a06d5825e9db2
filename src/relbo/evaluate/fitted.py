"""Importance sampling of each data point, with a proposal fitted to draws of that point."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, Scalar

from relbo.core.bases import AbstractBase
from relbo.core.checks import check_integer, check_positive, check_shape
from relbo.core.random import KeyLike
from relbo.evaluate.batches import map_with_keys
from relbo.evaluate.bisection import bisect
from relbo.evaluate.importance import log_mean, pointwise
from relbo.evaluate.pareto import pareto_smoothed
from relbo.evaluate.record import PointwiseEvaluation

NUM_EM_ITERATIONS = 10
NUM_HALVINGS = 20
MIN_SHARE = 1e-6
"""The smallest share of a component: an empty one must not cause a division by zero."""


@dataclass(frozen=True)
class FittedProposal:
    r"""How `fitted_importance` fits the proposal of a data point to its draws.

    The proposal is a mixture of Student t distributions, fitted by weighted EM and widened,
    with the base as one more component that keeps the weights bounded:

    $$q(z) = (1 - \delta) \sum_c \pi_c\, t_\nu(z; m_c, (i L_c)(i L_c)^\top) + \delta\, q_0(z)$$

    Args:
        num_components: number of Student t components.
        num_rounds: number of times that the proposal is fitted again, to weighted draws.
        num_round_draws: number of draws in each of these rounds; by default that of the final
            draws. Fewer are cheaper, but a covariance needs about the square of the dimension.
        inflation: the factor i by which the fitted scales are widened.
        degrees_of_freedom: $\nu$.
        defensive_weight: $\delta$, the weight of the base.
        min_scale: the smallest standard deviation of a component, in the unit of z, for draws
            that have collapsed to a point.
    """

    num_components: int = 1
    num_rounds: int = 2
    num_round_draws: int | None = None
    inflation: float = 1.2
    degrees_of_freedom: int = 10
    defensive_weight: float = 0.05
    min_scale: float = 0.02

    def __post_init__(self) -> None:
        check_integer("num_components", self.num_components, 1)
        check_integer("num_rounds", self.num_rounds, 0)
        check_integer("degrees_of_freedom", self.degrees_of_freedom, 1)
        check_integer("num_round_draws", self.num_round_draws, 2, optional=True)
        check_positive("inflation", self.inflation)
        check_positive("min_scale", self.min_scale)
        if not 0.0 <= self.defensive_weight < 1.0:
            raise ValueError(
                f"defensive_weight: expected a number in [0, 1), got {self.defensive_weight}"
            )


class StudentMixture(NamedTuple):
    """The fitted components: the logarithms of their shares, locations and scales."""

    log_shares: Float[Array, " components"]
    locs: Float[Array, "components d"]
    scale_trils: Float[Array, "components d d"]


def fitted_importance(
    key: KeyLike,
    logdensity_fn: Callable[[Float[Array, " d"], PyTree], Scalar],
    data: PyTree,
    draws: Float[Array, "points draws d"],
    base: AbstractBase,
    *,
    num_draws: int = 1_000,
    proposal: FittedProposal = FittedProposal(),
    batch_size: int = 16,
    pareto: bool = True,
    mesh: Mesh | None = None,
) -> PointwiseEvaluation:
    """Estimates log p(x) of each data point with a proposal fitted to draws of that point.

    The proposal (see `FittedProposal`) is fitted to the given draws. Each round draws from it,
    computes weights and fits it again to the weighted draws, which corrects draws that are too
    narrow. The final draws are independent of the fit: given the proposal, their weights have
    the marginal likelihood as their mean, so that the estimate is a lower bound in expectation.

    Args:
        key: a random key or an integer seed.
        logdensity_fn: log p(x, z) as a function of z and one data point, for example a
            `LatentVariableModel`.
        data: the data points, along the leading axis of each leaf.
        draws: approximate posterior draws of each point, for example refined ones.
        base: $q_0$, for example the prior; over a vector.
        num_draws: number of weighted draws of each point.
        proposal: how the proposal is fitted.
        batch_size: number of data points at a time; memory grows with it times `num_draws`.
        pareto: whether to compute the Pareto k of each point (about a millisecond each).
        mesh: the devices that share the data points; by default all, as in `relbo.fit`.

    Returns:
        A `PointwiseEvaluation`; its `mean()` is the test log-likelihood.

    Example:
        >>> import jax.numpy as jnp, jax.random as jr
        >>> model = LatentVariableModel(lambda z, x: -jnp.sum((x - z) ** 2))
        >>> data, draws = jnp.ones((10, 2)), jr.normal(jr.key(0), (10, 50, 2))
        >>> base = StandardNormal(jnp.zeros(2))
        >>> estimate = fitted_importance(jr.key(1), model, data, draws, base)
        >>> estimate.values.shape
        (10,)
    """
    draws = jnp.asarray(draws, jnp.result_type(float, draws))
    check_integer("num_draws", num_draws, 2)
    num_points = jax.tree.leaves(data)[0].shape[0]
    check_shape("draws", draws, num_points, "draws", "d")
    log_weights = map_with_keys(
        key,
        eqx.Partial(weigh_point, logdensity_fn, base, num_draws, proposal),
        num_points,
        data,
        draws,
        batch_size=batch_size,
        mesh=mesh,
    )
    pareto_k = pareto_smoothed(np.asarray(log_weights))[1] if pareto else None
    name = "importance sampling from a fitted proposal"
    return pointwise(log_mean(log_weights), name, num_draws, pareto_k=pareto_k)


def weigh_point(
    logdensity_fn: Callable[[Float[Array, " d"], PyTree], Scalar],
    base: AbstractBase,
    num_draws: int,
    proposal: FittedProposal,
    key: PRNGKeyArray,
    point: PyTree,
    draws: Float[Array, "draws d"],
) -> Float[Array, " num_draws"]:
    """Fits the proposal in rounds; returns the log weights of the final draws."""

    def fit_and_draw(
        state: tuple[Array, Array], key: PRNGKeyArray, number: int
    ) -> tuple[Array, Array]:
        found, log_weights = state
        mixture = fit_mixture(found, tempered_shares(log_weights, found.shape[1]), proposal)
        found = _draw(key, mixture, base, proposal, number)
        log_q = jax.vmap(lambda z: _log_prob(z, mixture, base, proposal))(found)
        return found, jax.vmap(lambda z: logdensity_fn(z, point))(found) - log_q

    # The given draws are repeated up to the number of draws in a round.
    number = num_draws if proposal.num_round_draws is None else proposal.num_round_draws
    first = draws[jnp.arange(number) % draws.shape[0]]
    state = first, jnp.zeros(number, first.dtype)
    *keys, last_key = jr.split(key, proposal.num_rounds + 1)
    if keys:
        one_round = lambda state, key: (fit_and_draw(state, key, number), None)
        state, _ = jax.lax.scan(one_round, state, jnp.stack(keys))
    return fit_and_draw(state, last_key, num_draws)[1]


def tempered_shares(
    log_weights: Float[Array, " draws"], dimension: int
) -> Float[Array, " draws"]:
    """Normalises the weights to the largest power with a sufficient effective sample size."""
    number = log_weights.shape[0]
    enough = min(20.0 * dimension, 0.25 * number)
    log_weights = jnp.where(jnp.isnan(log_weights), -jnp.inf, log_weights)
    # Bounded below, because zero times minus infinity is NaN.
    log_weights = jnp.maximum(log_weights - jnp.max(log_weights), -1e4)
    power, _ = bisect(
        lambda power: log_mean(power * log_weights).ess >= enough,
        jnp.zeros((), log_weights.dtype),
        jnp.full((), 2.0, log_weights.dtype),
        NUM_HALVINGS,
    )
    return jax.nn.softmax(jnp.minimum(power, 1.0) * log_weights)


def fit_mixture(
    points: Float[Array, "draws d"], shares: Float[Array, " draws"], proposal: FittedProposal
) -> StudentMixture:
    """Fits a mixture of normals by weighted EM; for one component, by weighted moments."""
    number = proposal.num_components
    loc, scale_tril = _moments(points, shares, proposal.min_scale)
    if number == 1:
        return StudentMixture(jnp.zeros(1, points.dtype), loc[None], scale_tril[None])
    white = solve_triangular(scale_tril, (points - loc[None]).T, lower=True).T
    start = StudentMixture(
        jnp.full(number, -jnp.log(number), points.dtype),
        points[_far_apart(white, shares, number)],
        jnp.tile(scale_tril, (number, 1, 1)),
    )

    def iterate(_: Scalar, mixture: StudentMixture) -> StudentMixture:
        log_probs = lambda z: component_log_probs(z, mixture, dist.MultivariateNormal)
        owned = shares[:, None] * jax.nn.softmax(jax.vmap(log_probs)(points), axis=1)
        totals = jnp.sum(owned, axis=0) + MIN_SHARE
        locs, trils = jax.vmap(
            lambda s: _moments(points, s, proposal.min_scale), in_axes=1, out_axes=0
        )(owned / jnp.sum(owned, axis=0, keepdims=True).clip(MIN_SHARE))
        return StudentMixture(jnp.log(totals / jnp.sum(totals)), locs, trils)

    return jax.lax.fori_loop(0, NUM_EM_ITERATIONS, iterate, start)


def _far_apart(
    points: Float[Array, "draws d"], shares: Float[Array, " draws"], number: int
) -> Int[Array, " number"]:
    """Returns indices of points that are far from one another and have large shares."""
    distances = jnp.sum(jnp.square(points), axis=1)
    chosen = []
    for _ in range(number):
        chosen.append(jnp.argmax(shares * distances))
        to_chosen = jnp.sum(jnp.square(points - points[chosen[-1]][None]), axis=1)
        distances = jnp.minimum(distances, to_chosen)
    return jnp.stack(chosen)


def _moments(
    points: Float[Array, "draws d"], shares: Float[Array, " draws"], min_scale: float
) -> tuple[Float[Array, " d"], Float[Array, "d d"]]:
    loc = shares @ points
    centred = points - loc[None]
    covariance = (shares[:, None] * centred).T @ centred
    eye = jnp.eye(loc.shape[0], dtype=loc.dtype)
    return loc, jnp.linalg.cholesky(covariance + min_scale**2 * eye)


def _draw(
    key: PRNGKeyArray,
    mixture: StudentMixture,
    base: AbstractBase,
    proposal: FittedProposal,
    number: int,
) -> Float[Array, "number d"]:
    offset_key, noise_key, base_key = jr.split(key, 3)
    dimension = mixture.locs.shape[1]
    dtype = mixture.locs.dtype
    # Stratified over the components: unbiased, with less variance than at random.
    levels = (jnp.arange(number) + jr.uniform(offset_key, (), dtype)) / number
    ends = jnp.cumsum(jnp.exp(mixture.log_shares)) * (1.0 - proposal.defensive_weight)
    part = jnp.searchsorted(ends, levels.astype(dtype), side="right")
    # Rounding must not select the base if its weight is zero.
    from_base = (part == mixture.locs.shape[0]) & (proposal.defensive_weight > 0.0)
    part = jnp.minimum(part, mixture.locs.shape[0] - 1)
    freedom = proposal.degrees_of_freedom
    # A chi-square variable from normals, because a gamma sampler takes long to compile.
    normals = jr.normal(noise_key, (number, dimension + freedom), dtype)
    tails = jnp.sqrt(jnp.mean(jnp.square(normals[:, dimension:]), axis=1))
    noise = proposal.inflation * normals[:, :dimension] / tails[:, None]
    fitted = mixture.locs[part] + jnp.einsum("nij,nj->ni", mixture.scale_trils[part], noise)
    defensive = jax.vmap(lambda k: base.sample(k)[0])(jr.split(base_key, number))
    return jnp.where(from_base[:, None], defensive, fitted)


def _log_prob(
    position: Float[Array, " d"],
    mixture: StudentMixture,
    base: AbstractBase,
    proposal: FittedProposal,
) -> Scalar:
    wide = mixture._replace(scale_trils=proposal.inflation * mixture.scale_trils)
    student = partial(dist.MultivariateStudentT, proposal.degrees_of_freedom)
    fitted = jax.nn.logsumexp(component_log_probs(position, wide, student))
    delta = proposal.defensive_weight
    if delta == 0.0:
        return fitted
    return jnp.logaddexp(jnp.log1p(-delta) + fitted, jnp.log(delta) + base.log_prob(position))


def component_log_probs(
    position: Float[Array, " d"],
    mixture: StudentMixture,
    distribution: Callable[..., dist.Distribution],
) -> Float[Array, " components"]:
    """Returns the log density of each component, times its share, at a position."""
    components = distribution(loc=mixture.locs, scale_tril=mixture.scale_trils)
    return mixture.log_shares + components.log_prob(position[None])
