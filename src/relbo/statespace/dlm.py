"""Dynamic linear models, built from blocks."""

import equinox as eqx
import jax.numpy as jnp
import jax.scipy.linalg as jsl
import numpy as np
from jaxtyping import Array, ArrayLike, Float

from relbo.core.checks import check_integer, check_shape
from relbo.problem.arrays import DataLike, as_array
from relbo.statespace.linear_gaussian import LinearGaussian
from relbo.statespace.observations import check_values

_WIDE = 10.0
"""The default standard deviation of a first state."""

Numbers = ArrayLike | tuple[ArrayLike, ...]


class Block(eqx.Module):
    """One component of a series: some states, their transition and how they are observed.

    `local_level`, `local_linear_trend`, `autoregression`, `seasonal` and `regression` return
    blocks, and `dlm` combines them. Construct a `Block` directly for other components.
    """

    transition: Float[Array, "n n"]
    transition_covariance: Float[Array, "n n"]
    observation: Float[Array, "*t n"]
    """`[n]`, or `[t, n]` if it changes with time."""
    initial_mean: Float[Array, " n"]
    initial_covariance: Float[Array, "n n"]

    @property
    def num_states(self) -> int:
        return self.initial_mean.shape[0]


def local_level(
    scale: ArrayLike, *, initial_mean: ArrayLike = 0.0, initial_scale: ArrayLike = _WIDE
) -> Block:
    r"""Returns a random walk: $\mu_{t+1} = \mu_t + N(0, s)$ with standard deviation s.

    Args:
        scale: s.
        initial_mean: the mean of the first level.
        initial_scale: its standard deviation.
    """
    one = jnp.ones((1, 1))
    return Block(
        one,
        one * _variance("scale", scale),
        jnp.ones(1),
        jnp.asarray(initial_mean, jnp.result_type(float)).reshape(1),
        one * _variance("initial_scale", initial_scale),
    )


def local_linear_trend(
    level_scale: ArrayLike,
    slope_scale: ArrayLike,
    *,
    damping: ArrayLike = 1.0,
    initial_mean: Numbers = (0.0, 0.0),
    initial_scale: Numbers = (_WIDE, _WIDE),
) -> Block:
    r"""Returns a level with a slope that changes over time (paper, appendix).

    $$\mu_{t+1} = \mu_t + \delta_t + N(0, s_\mu), \qquad
      \delta_{t+1} = \phi \delta_t + N(0, s_\delta)$$

    Args:
        level_scale: the standard deviation of the changes of the level.
        slope_scale: that of the changes of the slope; zero for a constant slope.
        damping: phi; below one, the slope decays to zero.
        initial_mean: the means of the first level and slope.
        initial_scale: their standard deviations.
    """
    transition = jnp.array([[1.0, 1.0], [0.0, 0.0]]).at[1, 1].set(damping)
    return Block(
        transition,
        jnp.diag(
            jnp.stack(
                [_variance("level_scale", level_scale), _variance("slope_scale", slope_scale)]
            )
        ),
        jnp.array([1.0, 0.0]),
        _vector("initial_mean", initial_mean, 2),
        jnp.diag(_variance("initial_scale", _vector("initial_scale", initial_scale, 2))),
    )


def autoregression(coefficient: ArrayLike, scale: ArrayLike) -> Block:
    r"""Returns a stationary autoregression: $a_{t+1} = \phi a_t + N(0, s)$.

    Args:
        coefficient: phi, between -1 and 1.
        scale: s.
    """
    coefficient = jnp.asarray(coefficient, jnp.result_type(float))
    check_values("coefficient", coefficient, lambda x: np.abs(x) < 1, "a number in (-1, 1)")
    one = jnp.ones((1, 1))
    variance = _variance("scale", scale)
    return Block(
        one * coefficient,
        one * variance,
        jnp.ones(1),
        jnp.zeros(1),
        one * variance / (1.0 - coefficient**2),
    )


def seasonal(period: int, scale: ArrayLike, *, initial_scale: ArrayLike = _WIDE) -> Block:
    r"""Returns seasonal effects that cycle through the state (paper, appendix).

    The state holds one effect per season, the current one first, and each step rotates it:
    $(a_1, a_2, \dots, a_p) \to (a_2, \dots, a_p, a_1)$. The effects always add up to zero, so
    that they cannot be confused with a level: after a season its effect changes by noise along
    $e_1 - 1/p$.

    Args:
        period: p, the number of seasons.
        scale: the standard deviation of that noise; zero for constant effects.
        initial_scale: the standard deviation of the first effects, before they are centred.
    """
    check_integer("period", period, 2)
    cycle = jnp.roll(jnp.eye(period), 1, axis=1)
    centring = jnp.eye(period) - 1.0 / period
    # The season that just ended moves to the end of the state, and its noise with it.
    noise = centring[-1]
    return Block(
        cycle,
        jnp.outer(noise, noise) * _variance("scale", scale),
        jnp.eye(period)[0],
        jnp.zeros(period),
        centring * _variance("initial_scale", initial_scale),
    )


def regression(
    covariates: DataLike, *, scale: ArrayLike = 0.0, initial_scale: ArrayLike = _WIDE
) -> Block:
    """Returns coefficients of covariates, constant or as random walks.

    Args:
        covariates: `[t, k]`, including the steps of a forecast.
        scale: the standard deviation of the changes of a coefficient.
        initial_scale: that of the first coefficients, around zero.
    """
    covariates = jnp.asarray(as_array("covariates", covariates), jnp.result_type(float))
    check_shape("covariates", covariates, "t", "k")
    check_values("covariates", covariates, np.isfinite, "finite numbers")
    number = covariates.shape[1]
    return Block(
        jnp.eye(number),
        jnp.eye(number) * _variance("scale", scale),
        covariates,
        jnp.zeros(number),
        jnp.eye(number) * _variance("initial_scale", initial_scale),
    )


def dlm(*blocks: Block, observation_scale: ArrayLike) -> LinearGaussian:
    """Combines blocks: the series is the sum of their contributions, plus noise.

    Args:
        *blocks: the components.
        observation_scale: the standard deviation of the noise.

    Returns:
        A `LinearGaussian` whose state is the concatenation of the blocks' states.

    Example:
        >>> trend = local_linear_trend(0.1, 0.01)
        >>> dlm(trend, seasonal(12, 0.0), observation_scale=0.5).num_states
        14
    """
    if not blocks:
        raise ValueError("blocks: expected at least one, got none")
    return LinearGaussian(
        jnp.concatenate([block.initial_mean for block in blocks]),
        jsl.block_diag(*(block.initial_covariance for block in blocks)),
        jsl.block_diag(*(block.transition for block in blocks)),
        jsl.block_diag(*(block.transition_covariance for block in blocks)),
        _join_observations(blocks),
        _variance("observation_scale", observation_scale).reshape(1),
    )


def _join_observations(blocks: tuple[Block, ...]) -> Float[Array, "*t 1 n"]:
    lengths = {len(block.observation) for block in blocks if block.observation.ndim == 2}
    if len(lengths) > 1:
        raise ValueError(
            f"blocks: expected one length of all that change with time, got {sorted(lengths)}"
        )
    rows = [
        jnp.broadcast_to(block.observation, (*lengths, block.num_states)) for block in blocks
    ]
    return jnp.concatenate(rows, axis=-1)[..., None, :]


def _variance(name: str, scale: ArrayLike) -> Array:
    scale = jnp.asarray(scale, jnp.result_type(float))
    check_values(name, scale, lambda x: x >= 0, "standard deviations of zero or more")
    # Inside a compiled function a negative scale must become a negative variance, for which the
    # filter returns NaN; its square would look valid.
    return scale * jnp.abs(scale)


def _vector(name: str, values: Numbers, size: int) -> Array:
    values = jnp.asarray(values, jnp.result_type(float))
    if values.shape not in ((), (size,)):
        raise ValueError(
            f"{name}: expected a number or {size} numbers, got the shape {values.shape}"
        )
    return jnp.broadcast_to(values, (size,))
