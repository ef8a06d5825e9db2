"""NumPyro distributions of series, with the hidden path summed or integrated out."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import ArrayLike
from numpyro.distributions import Distribution, constraints

from relbo.statespace.hidden_markov import HiddenMarkov
from relbo.statespace.linear_gaussian import LinearGaussian


class AbstractSeries(Distribution):
    """The distribution of a series of a process with a hidden path."""

    pytree_data_fields = ("process", "series_mask")
    pytree_aux_fields = ("num_steps",)

    process: Any
    series_mask: ArrayLike | None
    num_steps: int

    def _set_up(
        self,
        process: HiddenMarkov | LinearGaussian,
        num_steps: int,
        mask: ArrayLike | None,
        event_shape: tuple[int, ...],
    ) -> None:
        self.process, self.num_steps, self.series_mask = process, num_steps, mask
        # Missing entries are NaN, which is not a value of the support.
        super().__init__(event_shape=event_shape, validate_args=False)

    def sample(self, key: Any, sample_shape: tuple[int, ...] = ()) -> Any:
        draw = lambda key: self.process.simulate(key, self.num_steps).series
        draws = jax.vmap(draw)(jr.split(key, math.prod(sample_shape)))
        return jnp.reshape(draws, sample_shape + self.event_shape)

    def log_prob(self, value: Any, intermediates: Any = None) -> Any:
        log_prob = lambda series: self.process.log_likelihood(series, self.series_mask)
        for _ in range(jnp.ndim(value) - self.event_dim):
            log_prob = jax.vmap(log_prob)
        return log_prob(value)


class LinearGaussianSeries(AbstractSeries):
    """The distribution of a `LinearGaussian` series, for `numpyro.sample(..., obs=series)`.

    Args:
        process: the state-space model.
        num_steps: the length of a series.
        mask: `True` where the series is observed; NaN marks a missing entry as well.

    Its event has the shape `[t]` if one number is observed per step and `[t, m]` otherwise.
    """

    def __init__(self, process: LinearGaussian, num_steps: int, mask: ArrayLike | None = None):
        number = process.num_observed
        shape = (num_steps,) if number == 1 else (num_steps, number)
        self._set_up(process, num_steps, mask, shape)

    @property
    def support(self) -> Any:
        return constraints.independent(constraints.real, self.event_dim)


class HiddenMarkovSeries(AbstractSeries):
    """The distribution of a `HiddenMarkov` series, for `numpyro.sample(..., obs=series)`.

    Args:
        process: the hidden Markov model.
        num_steps: the length of a series.
        mask: `True` where the series is observed; NaN marks a missing entry as well.
    """

    def __init__(self, process: HiddenMarkov, num_steps: int, mask: ArrayLike | None = None):
        self._set_up(process, num_steps, mask, (num_steps,))

    @property
    def support(self) -> Any:
        symbols = constraints.integer_interval(0, self.process.num_symbols - 1)
        return constraints.independent(symbols, 1)
