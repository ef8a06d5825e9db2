"""Linear-Gaussian state-space models."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Scalar

from relbo.core.checks import check_integer, check_shape
from relbo.core.random import KeyLike, as_key
from relbo.evaluate.forecasts import NormalForecast
from relbo.problem.arrays import DataLike, as_array
from relbo.statespace.kalman import (
    LinearGaussianFiltered,
    LinearGaussianSimulated,
    LinearGaussianSmoothed,
    kalman_filter,
    kalman_forecast,
    kalman_smoother,
    log_likelihood,
    simulate,
)
from relbo.statespace.observations import (
    check_values,
    float_arrays,
    read_observations,
)
from relbo.statespace.spans import Observations, Parts
from relbo.statespace.wide_start import Moments


class LinearGaussian(eqx.Module):
    r"""A state-space model with linear transitions, linear observations and Gaussian noise.

    $$z_1 \sim N(m_1, P_1), \qquad z_{t+1} = F_t z_t + c_t + N(0, Q_t), \qquad
      x_t = H_t z_t + d_t + N(0, \operatorname{diag} R_t)$$

    with covariances as second arguments. The noise of the m observed numbers is independent;
    model correlated noise as part of the state. Any part except the first state may change with
    time, with a leading axis that has one entry per step; the transition at t leads from t to
    t + 1. A series has the shape `[t, m]`, or `[t]` if m is one. NaN, or `False` in a mask,
    marks a missing entry.

    All methods take one series; use `jax.vmap` for batches of series, of models or of both.
    Inside a compiled function, where no error can be raised, they return NaN if a variance is
    negative.

    Args:
        initial_mean: m_1, `[n]`.
        initial_covariance: P_1, `[n, n]`.
        transition: F, `[n, n]` or `[t, n, n]`.
        transition_covariance: Q, likewise.
        observation: H, `[m, n]` or `[t, m, n]`.
        observation_variance: R, `[m]` or `[t, m]`.
        transition_offset: c, `[n]` or `[t, n]`.
        observation_offset: d, `[m]` or `[t, m]`.

    Example:
        >>> import jax.numpy as jnp
        >>> one = jnp.ones((1, 1))
        >>> walk = LinearGaussian(jnp.zeros(1), one, one, 0.1 * one, one, jnp.ones(1))
        >>> walk.forecast(jnp.array([1.0, jnp.nan, 2.0]), 2).loc.shape
        (2,)
    """

    initial_mean: Float[Array, " n"]
    initial_covariance: Float[Array, "n n"]
    transition: Float[Array, "... n n"]
    transition_covariance: Float[Array, "... n n"]
    observation: Float[Array, "... m n"]
    observation_variance: Float[Array, "... m"]
    transition_offset: Float[Array, "... n"]
    observation_offset: Float[Array, "... m"]

    def __init__(
        self,
        initial_mean: ArrayLike,
        initial_covariance: ArrayLike,
        transition: ArrayLike,
        transition_covariance: ArrayLike,
        observation: ArrayLike,
        observation_variance: ArrayLike,
        transition_offset: ArrayLike | None = None,
        observation_offset: ArrayLike | None = None,
    ):
        check_shape("initial_mean", jnp.asarray(initial_mean), "n")
        if jnp.ndim(observation) not in (2, 3):
            raise ValueError(
                "observation: expected the shape [m, n] or [t, m, n], got "
                f"{jnp.shape(observation)}"
            )
        num_states, num_observed = jnp.shape(initial_mean)[0], jnp.shape(observation)[-2]
        given = float_arrays(
            initial_mean=initial_mean,
            initial_covariance=initial_covariance,
            transition=transition,
            transition_covariance=transition_covariance,
            observation=observation,
            observation_variance=observation_variance,
            transition_offset=_or_zeros(transition_offset, num_states),
            observation_offset=_or_zeros(observation_offset, num_observed),
        )
        check_shape("initial_covariance", given["initial_covariance"], num_states, num_states)
        for name, shape in _shapes_of_parts(num_states, num_observed).items():
            found, sizes = given[name].shape, ", ".join(map(str, shape))
            if shape not in (found, found[1:]):
                raise ValueError(
                    f"{name}: expected the shape [{sizes}] or [t, {sizes}], got {found}"
                )
        for name, variances in _variances(given):
            check_values(name, variances, lambda x: x >= 0, "variances of zero or more")
        for name, value in given.items():
            setattr(self, name, value)

    @property
    def num_states(self) -> int:
        return self.initial_mean.shape[-1]

    @property
    def num_observed(self) -> int:
        return self.observation.shape[-2]

    def log_likelihood(self, series: DataLike, mask: ArrayLike | None = None) -> Scalar:
        """Returns log p(series), with the path of the state integrated out exactly."""
        read, parts = self._prepare(series, mask)
        return self._nan_if_invalid(log_likelihood(self._start, parts, read))

    def filter(self, series: DataLike, mask: ArrayLike | None = None) -> LinearGaussianFiltered:
        """Returns moments of the state given the observations so far.

        It uses Joseph's form and keeps an uncertain first state apart, which keeps it accurate
        in float32.
        """
        read, parts = self._prepare(series, mask)
        return self._nan_if_invalid(kalman_filter(self._start, parts, read))

    def smooth(self, series: DataLike, mask: ArrayLike | None = None) -> LinearGaussianSmoothed:
        """Returns moments of the state given the whole series.

        The backward recursion of Bryson and Frazier inverts no matrix, so states may be known
        exactly or depend on each other. Its covariance is a difference: in float32 the first
        steps lose digits if the standard deviation of the first state is a thousand times that
        of the noise.

        References:
            Durbin and Koopman, Time series analysis by state space methods, 2012, section 4.4.
        """
        read, parts = self._prepare(series, mask)
        return self._nan_if_invalid(kalman_smoother(self._start, parts, read))

    def forecast(
        self, series: DataLike, num_steps: int, mask: ArrayLike | None = None
    ) -> NormalForecast:
        """Returns the predictive distribution of each of the next steps.

        Args:
            series: the observed series.
            num_steps: number of steps ahead; parts that change with time must cover them.
            mask: `True` where observed.

        Returns:
            A `NormalForecast` of the shape `[num_steps, m]`, or `[num_steps]` if the series has
            one axis, for the scores of `relbo.evaluate`.
        """
        check_integer("num_steps", num_steps, 1)
        read, parts = self._prepare(series, mask, num_steps)
        length = read.values.shape[0]
        before, after = (parts.at(when) for when in (slice(length), slice(length, None)))
        mean, variance = kalman_forecast(self._start, before, after, read, num_steps)
        if jnp.ndim(as_array("series", series)) == 1:
            mean, variance = mean[:, 0], variance[:, 0]
        return NormalForecast(mean, self._nan_if_invalid(jnp.sqrt(variance)))

    def simulate(self, key: KeyLike, num_steps: int) -> LinearGaussianSimulated:
        """Draws a path of the state and its observations."""
        check_integer("num_steps", num_steps, 1)
        start_key, path_key = jr.split(as_key(key))
        keys = jr.split(path_key, num_steps)
        return simulate(start_key, self._start, self._parts(num_steps), keys)

    @property
    def _start(self) -> Moments:
        return self.initial_mean, self.initial_covariance

    def _prepare(
        self, series: DataLike, mask: ArrayLike | None, num_ahead: int = 0
    ) -> tuple[Observations, Parts]:
        series, observed = read_observations(series, mask)
        if series.ndim == 1 and self.num_observed == 1:
            series, observed = series[:, None], observed[:, None]
        if series.ndim != 2 or series.shape[1] != self.num_observed:
            raise ValueError(
                f"series: expected the shape [t, {self.num_observed}]"
                f"{' or [t]' if self.num_observed == 1 else ''}, got {series.shape}"
            )
        values = series.astype(self.initial_mean.dtype)
        return Observations(values, observed), self._parts(series.shape[0] + num_ahead)

    def _parts(self, num_steps: int) -> Parts:
        constant, changing = {}, {}
        for name, shape in _shapes_of_parts(self.num_states, self.num_observed).items():
            value = getattr(self, name)
            if value.ndim == len(shape):
                constant[name] = value
                continue
            if value.shape[0] < num_steps:
                raise ValueError(
                    f"{name}: it changes with time and has {value.shape[0]} steps, but "
                    f"{num_steps} are needed (for a forecast, including the steps ahead)"
                )
            changing[name] = value[:num_steps]
        return Parts(constant, changing)

    def _nan_if_invalid(self, results: Any) -> Any:
        """Replaces all results by NaN if a variance is negative."""
        is_valid = jnp.array(True)
        for _, variances in _variances(vars(self)):
            is_valid &= jnp.all(variances >= 0)
        zero_or_nan = jnp.where(is_valid, 0.0, jnp.nan).astype(self.initial_mean.dtype)
        return jax.tree.map(lambda leaf: leaf + zero_or_nan, results)


def _or_zeros(offset: ArrayLike | None, size: int) -> ArrayLike:
    # Integers, which take the type of the other parts.
    return np.zeros(size, int) if offset is None else offset


def _shapes_of_parts(num_states: int, num_observed: int) -> dict[str, tuple[int, ...]]:
    """Returns the shape of each part that may change with time, if it does not."""
    return {
        "transition": (num_states, num_states),
        "transition_covariance": (num_states, num_states),
        "transition_offset": (num_states,),
        "observation": (num_observed, num_states),
        "observation_variance": (num_observed,),
        "observation_offset": (num_observed,),
    }


def _variances(parts: dict[str, Array]) -> list[tuple[str, Array]]:
    diagonals = [
        (name, jnp.diagonal(parts[name], axis1=-2, axis2=-1))
        for name in ("initial_covariance", "transition_covariance")
    ]
    return [*diagonals, ("observation_variance", parts["observation_variance"])]
