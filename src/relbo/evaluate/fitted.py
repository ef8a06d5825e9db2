"""Importance sampling for each data point, with a proposal fitted to draws of that point."""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import gammaln
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree, Scalar

from relbo._mesh import Spread, placed_arrays, spread_over
from relbo.bases import AbstractBase
from relbo.evaluate.importance import log_mean, map_batched, pareto_smoothed
from relbo.evaluate.record import PointwiseEvaluation

NUM_EM_ITERATIONS = 10
NUM_BISECTIONS = 20
MIN_SHARE = 1e-6
"""Of a component's weight: an empty one must not divide by zero."""

_LEAST = {
    "num_draws": 2,
    "num_rounds": 0,
    "num_round_draws": 2,
    "num_components": 1,
    "degrees_of_freedom": 1,
}


class Options(NamedTuple):
    """What is fixed when the sampling is compiled."""

    num_draws: int
    num_rounds: int
    num_round_draws: int
    num_components: int
    inflation: float
    degrees_of_freedom: int
    defensive_weight: float
    min_scale: float


class Mixture(NamedTuple):
    """Components with a centre, a width and a weight."""

    log_shares: Float[Array, " components"]
    locs: Float[Array, "components d"]
    scale_trils: Float[Array, "components d d"]


def fitted_importance(
    key: PRNGKeyArray,
    logdensity_fn: Callable[[Float[Array, " d"], PyTree], Scalar],
    data: PyTree,
    draws: Float[Array, "points draws d"],
    base: AbstractBase,
    *,
    num_draws: int = 1_000,
    num_rounds: int = 2,
    num_round_draws: int | None = None,
    num_components: int = 1,
    inflation: float = 1.2,
    degrees_of_freedom: int = 10,
    defensive_weight: float = 0.05,
    min_scale: float = 0.02,
    batch_size: int = 16,
    pareto: bool = True,
    mesh: Mesh | None = None,
) -> PointwiseEvaluation:
    r"""Importance sampling with a proposal fitted to each data point's own draws.

    The proposal of a point is a mixture of Student t, fitted to its draws by weighted EM and
    widened, with the base as one more component that keeps the weights bounded:

    $$q(z) = (1 - \delta) \sum_c \pi_c\, t_\nu(z; m_c, (i L_c)(i L_c)^\top) + \delta\, q_0(z)$$

    A round draws from it, weighs, and fits again to the weighted draws, which mends draws that
    are too narrow. The last draws are fresh: given the proposal their weights have the marginal
    likelihood for their mean, so that the estimate is a lower bound in expectation.

    Args:
        key: a random key.
        logdensity_fn: log p(x, z) as a function of z and one data point, such as a
            `LatentVariableModel`.
        data: the data points, along the leading axis of each leaf.
        draws: approximate posterior draws of each point, such as refined ones.
        base: $q_0$, as the prior; over a vector.
        num_draws: weighted draws of each point.
        num_rounds: how often the proposal is fitted again.
        num_round_draws: draws of each of these rounds; by default `num_draws`. Fewer are
            cheaper, but a covariance needs about as many as the square of the length of z.
        num_components: of the mixture.
        inflation: by how much it is widened, i.
        degrees_of_freedom: of the tails, $\nu$.
        defensive_weight: the share of the base, $\delta$.
        min_scale: the least standard deviation of a component, in the unit of z; draws that
            have collapsed to a point are widened to it.
        batch_size: data points at once; memory grows with it times `num_draws`.
        pareto: the Pareto k of each point (a millisecond each).
        mesh: the devices that share the data points; all by default, as for `relbo.fit`.

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
    options = Options(
        num_draws,
        num_rounds,
        num_draws if num_round_draws is None else num_round_draws,
        num_components,
        float(inflation),
        degrees_of_freedom,
        float(defensive_weight),
        float(min_scale),
    )
    _check(options, draws, jax.tree.leaves(data)[0].shape[0])
    spread = spread_over(mesh)
    given = placed_arrays(spread, (key, logdensity_fn, data, draws, base))
    key, logdensity_fn, data, draws, base = given
    log_weights = _log_weights(
        key, logdensity_fn, data, draws, base, options, batch_size, spread
    )
    value, stderr, ess = (np.asarray(leaf) for leaf in log_mean(log_weights))
    pareto_k = pareto_smoothed(np.asarray(log_weights))[1] if pareto else None
    name = "importance sampling from a fitted proposal"
    return PointwiseEvaluation(value, stderr, name, True, num_draws, ess, pareto_k)


@eqx.filter_jit
def _log_weights(
    key: PRNGKeyArray,
    logdensity_fn: Callable,
    data: PyTree,
    draws: Float[Array, "points draws d"],
    base: AbstractBase,
    options: Options,
    batch_size: int,
    spread: Spread | None,
) -> Float[Array, "points num_draws"]:
    def one(inputs: tuple[PRNGKeyArray, PyTree, Array]) -> Float[Array, " num_draws"]:
        key, point, draws = inputs
        return _weigh_point(key, lambda z: logdensity_fn(z, point), draws, base, options)

    keys = jr.split(key, draws.shape[0])
    return map_batched(one, (keys, data, draws), batch_size, spread)


def _weigh_point(
    key: PRNGKeyArray,
    logdensity_fn: Callable[[Float[Array, " d"]], Scalar],
    draws: Float[Array, "draws d"],
    base: AbstractBase,
    options: Options,
) -> Float[Array, " num_draws"]:
    """Fit, draw and weigh, as often as asked; all rounds but the last are turns of one loop."""

    def turn(state: tuple[Array, Array], key: PRNGKeyArray, number: int) -> tuple[Array, Array]:
        points, log_weights = state
        mixture = fit_mixture(points, _tempered(log_weights, points.shape[1]), options)
        points = _draw(key, mixture, base, options, number)
        log_q = jax.vmap(lambda z: _log_prob(z, mixture, base, options))(points)
        return points, jax.vmap(logdensity_fn)(points) - log_q

    # The first draws are repeated until they are as many as those of a round.
    number = options.num_round_draws
    first = draws[jnp.arange(number) % draws.shape[0]]
    start = first, jnp.zeros(number, first.dtype)
    *keys, last_key = jr.split(key, options.num_rounds + 1)
    if keys:
        again = lambda state, key: (turn(state, key, number), None)
        start, _ = jax.lax.scan(again, start, jnp.stack(keys))
    return turn(start, last_key, options.num_draws)[1]


def _tempered(log_weights: Float[Array, " draws"], dimension: int) -> Float[Array, " draws"]:
    """Shares of the weights to the largest power that leaves enough effective draws."""
    number = log_weights.shape[0]
    enough = min(20.0 * dimension, 0.25 * number)
    log_weights = jnp.where(jnp.isnan(log_weights), -jnp.inf, log_weights)
    # Without a power of infinity, which zero times is not a number.
    log_weights = jnp.maximum(log_weights - jnp.max(log_weights), -1e4)

    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        lower, upper = ends
        middle = 0.5 * (lower + upper)
        fits = log_mean(middle * log_weights).ess >= enough
        return jnp.where(fits, middle, lower), jnp.where(fits, upper, middle)

    ends = jnp.zeros((), log_weights.dtype), jnp.full((), 2.0, log_weights.dtype)
    power, _ = jax.lax.fori_loop(0, NUM_BISECTIONS, halve, ends)
    return jax.nn.softmax(jnp.minimum(power, 1.0) * log_weights)


def fit_mixture(
    points: Float[Array, "draws d"], shares: Float[Array, " draws"], options: Options
) -> Mixture:
    """A mixture of normals by weighted EM; with one component, weighted moments."""
    number = options.num_components
    loc, scale_tril = _moments(points, shares, options.min_scale)
    if number == 1:
        return Mixture(jnp.zeros(1, points.dtype), loc[None], scale_tril[None])
    white = solve_triangular(scale_tril, (points - loc[None]).T, lower=True).T
    start = Mixture(
        jnp.full(number, -jnp.log(number), points.dtype),
        points[_far_apart(white, shares, number)],
        jnp.tile(scale_tril, (number, 1, 1)),
    )

    def iterate(_: int, mixture: Mixture) -> Mixture:
        log_probs = jax.vmap(lambda z: _component_log_probs(z, mixture, _log_normal))(points)
        owned = shares[:, None] * jax.nn.softmax(log_probs, axis=1)
        totals = jnp.sum(owned, axis=0) + MIN_SHARE
        locs, trils = jax.vmap(
            lambda s: _moments(points, s, options.min_scale), in_axes=1, out_axes=0
        )(owned / jnp.sum(owned, axis=0, keepdims=True).clip(MIN_SHARE))
        return Mixture(jnp.log(totals / jnp.sum(totals)), locs, trils)

    return jax.lax.fori_loop(0, NUM_EM_ITERATIONS, iterate, start)


def _far_apart(
    points: Float[Array, "draws d"], shares: Float[Array, " draws"], number: int
) -> Int[Array, " number"]:
    """Indices of points that lie far from one another and count for much."""
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
    key: PRNGKeyArray, mixture: Mixture, base: AbstractBase, options: Options, number: int
) -> Float[Array, "number d"]:
    offset_key, noise_key, base_key = jr.split(key, 3)
    dimension = mixture.locs.shape[1]
    dtype = mixture.locs.dtype
    # Draws spread evenly over the components: no bias, and less variance than at random.
    levels = (jnp.arange(number) + jr.uniform(offset_key, (), dtype)) / number
    ends = jnp.cumsum(jnp.exp(mixture.log_shares)) * (1.0 - options.defensive_weight)
    part = jnp.searchsorted(ends, levels.astype(dtype), side="right")
    # Rounding must not draw from a component whose weight is zero.
    from_base = (part == mixture.locs.shape[0]) & (options.defensive_weight > 0.0)
    part = jnp.minimum(part, mixture.locs.shape[0] - 1)
    freedom = options.degrees_of_freedom
    # A chi-square from normals: a gamma sampler takes long to compile.
    normals = jr.normal(noise_key, (number, dimension + freedom), dtype)
    tails = jnp.sqrt(jnp.mean(jnp.square(normals[:, dimension:]), axis=1))
    noise = options.inflation * normals[:, :dimension] / tails[:, None]
    fitted = mixture.locs[part] + jnp.einsum("nij,nj->ni", mixture.scale_trils[part], noise)
    defensive = jax.vmap(lambda k: base.sample(k)[0])(jr.split(base_key, number))
    return jnp.where(from_base[:, None], defensive, fitted)


def _log_prob(
    position: Float[Array, " d"], mixture: Mixture, base: AbstractBase, options: Options
) -> Scalar:
    wide = mixture._replace(scale_trils=options.inflation * mixture.scale_trils)
    log_t = lambda noise: _log_student(noise, options.degrees_of_freedom)
    fitted = jax.nn.logsumexp(_component_log_probs(position, wide, log_t))
    delta = options.defensive_weight
    if delta == 0.0:
        return fitted
    return jnp.logaddexp(jnp.log1p(-delta) + fitted, jnp.log(delta) + base.log_prob(position))


def _component_log_probs(
    position: Float[Array, " d"], mixture: Mixture, log_white: Callable[[Array], Scalar]
) -> Float[Array, " components"]:
    """Each component's share of the density at a position."""

    def one(log_share: Scalar, loc: Array, scale_tril: Array) -> Scalar:
        noise = solve_triangular(scale_tril, position - loc, lower=True)
        log_det = jnp.sum(jnp.log(jnp.diagonal(scale_tril)))
        return log_share + log_white(noise) - log_det

    return jax.vmap(one)(*mixture)


def _log_normal(noise: Float[Array, " d"]) -> Scalar:
    return -0.5 * jnp.sum(jnp.square(noise) + jnp.log(2.0 * jnp.pi))


def _log_student(noise: Float[Array, " d"], freedom: int) -> Scalar:
    dimension = noise.shape[0]
    constant = gammaln(0.5 * (freedom + dimension)) - gammaln(0.5 * freedom)
    constant = constant - 0.5 * dimension * jnp.log(freedom * jnp.pi)
    square = jnp.sum(jnp.square(noise))
    return constant - 0.5 * (freedom + dimension) * jnp.log1p(square / freedom)


def _check(options: Options, draws: Array, num_points: int) -> None:
    if draws.ndim != 3 or draws.shape[0] != num_points or draws.shape[1] < 1:
        raise ValueError(
            f"draws: expected the shape ({num_points}, draws, d), one row of draws for each "
            f"data point, got {draws.shape}"
        )
    for name, least in _LEAST.items():
        if getattr(options, name) < least:
            raise ValueError(f"{name}: expected at least {least}, got {getattr(options, name)}")
    for name in ("inflation", "min_scale"):
        if not getattr(options, name) > 0:
            raise ValueError(f"{name}: expected more than 0, got {getattr(options, name)}")
    if not 0.0 <= options.defensive_weight < 1.0:
        raise ValueError(
            "defensive_weight: expected a number from 0 to below 1, got "
            f"{options.defensive_weight}"
        )
