"""Hidden Markov models of a categorical series."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray, Scalar

from relbo.core.checks import check_integer, check_shape
from relbo.core.random import KeyLike, as_key
from relbo.evaluate.forecasts import CategoricalForecast
from relbo.problem.arrays import DataLike
from relbo.statespace.decoding import DecodedStates, decode
from relbo.statespace.forward import (
    filter_states,
    forecast_symbols,
    log_likelihood,
    safe_log,
    smooth_states,
)
from relbo.statespace.observations import (
    check_values,
    float_arrays,
    read_observations,
)


class HiddenMarkovFiltered(NamedTuple):
    """Probabilities of the hidden state at each step, given the observations so far."""

    log_probs: Float[Array, "t k"]
    """log p(z_t | x_1..x_t)."""
    predicted_log_probs: Float[Array, "t k"]
    """log p(z_t | x_1..x_{t-1})."""
    log_likelihoods: Float[Array, " t"]
    """log p(x_t | x_1..x_{t-1}); zero where nothing was observed."""

    @property
    def log_likelihood(self) -> Scalar:
        return jnp.sum(self.log_likelihoods)


class HiddenMarkovSimulated(NamedTuple):
    """A path of the hidden state that was drawn from the model, and its symbols."""

    states: Int[Array, " t"]
    series: Int[Array, " t"]


class HiddenMarkov(eqx.Module):
    r"""A hidden Markov chain with k states that emits one of s symbols at each step.

    $$z_1 \sim \pi, \qquad z_{t+1} \sim A_{z_t}, \qquad x_t \sim B_{z_t}$$

    A series consists of whole numbers from 0 to s - 1, as integers or as floats. NaN, or
    `False` in a mask, marks a missing entry. All methods take one series; use `jax.vmap` for
    batches.

    Args:
        initial: pi, the probabilities of the first state, `[k]`.
        transition: A, one row of probabilities per state, `[k, k]`. Zeros are allowed.
        emission: B, one row per state, `[k, s]`.

    Example:
        >>> import jax.numpy as jnp
        >>> swap = jnp.array([[0.1, 0.9], [0.9, 0.1]])
        >>> chain = HiddenMarkov(jnp.array([0.5, 0.5]), swap, jnp.eye(2))
        >>> chain.forecast(jnp.array([0, 1, 0]), 2).mode.tolist()
        [1, 0]
    """

    log_initial: Float[Array, " k"]
    log_transition: Float[Array, "k k"]
    log_emission: Float[Array, "k s"]

    def __init__(self, initial: ArrayLike, transition: ArrayLike, emission: ArrayLike):
        given = float_arrays(initial=initial, transition=transition, emission=emission)
        check_shape("initial", given["initial"], "k")
        number = len(given["initial"])
        check_shape("transition", given["transition"], number, number)
        check_shape("emission", given["emission"], number, "s")
        adds_up = lambda x: np.abs(x.sum(axis=-1) - 1.0) < 1e-3
        for name, value in given.items():
            check_values(name, value, lambda x: x >= 0, "probabilities of zero or more")
            check_values(name, value, adds_up, "rows that add up to 1")
        self.log_initial = safe_log(given["initial"])
        self.log_transition = safe_log(given["transition"])
        self.log_emission = safe_log(given["emission"])

    @property
    def num_states(self) -> int:
        return self.log_initial.shape[-1]

    @property
    def num_symbols(self) -> int:
        return self.log_emission.shape[-1]

    def log_likelihood(self, series: DataLike, mask: ArrayLike | None = None) -> Scalar:
        """Returns log p(series), summed over all paths of the hidden state.

        It is NaN if a symbol is out of range inside a compiled function, where no error can be
        raised.
        """
        return log_likelihood(*self._log_probs(series, mask))

    def filter(self, series: DataLike, mask: ArrayLike | None = None) -> HiddenMarkovFiltered:
        """Returns probabilities of the hidden state given the observations so far."""
        return HiddenMarkovFiltered(*filter_states(*self._log_probs(series, mask))[1])

    def smooth(self, series: DataLike, mask: ArrayLike | None = None) -> Float[Array, "t k"]:
        """Returns log p(z_t | the whole series)."""
        return smooth_states(*self._log_probs(series, mask))

    def decode(self, series: DataLike, mask: ArrayLike | None = None) -> DecodedStates:
        """Returns the most probable path (Viterbi) and the probability of each state.

        `decode_states` does the same for other observations than symbols.
        """
        return decode(*self._log_probs(series, mask))

    def forecast(
        self, series: DataLike, num_steps: int, mask: ArrayLike | None = None
    ) -> CategoricalForecast:
        """Returns the probabilities of the symbols at each of the next steps.

        Args:
            series: the observed symbols.
            num_steps: number of steps ahead.
            mask: `True` where observed.

        Returns:
            A `CategoricalForecast` with `num_steps` entries, for the scores of
            `relbo.evaluate`.
        """
        check_integer("num_steps", num_steps, 1)
        predicted, _ = filter_states(*self._log_probs(series, mask))
        return CategoricalForecast(
            forecast_symbols(predicted, self.log_transition, self.log_emission, num_steps)
        )

    def simulate(self, key: KeyLike, num_steps: int) -> HiddenMarkovSimulated:
        """Draws a path of the hidden state and its symbols."""
        check_integer("num_steps", num_steps, 1)
        start_key, path_key = jr.split(as_key(key))
        return _simulate(self, start_key, jr.split(path_key, num_steps))

    def _log_probs(
        self, series: DataLike, mask: ArrayLike | None
    ) -> tuple[Array, Array, Array]:
        """Returns log p(z_1), log p(z_{t+1} | z_t) and log p(x_t | z_t) of a series.

        The last one is zero where nothing was observed.
        """
        symbols, observed = read_observations(series, mask)
        check_shape("series", symbols, "t")
        is_symbol = lambda x: (x >= 0) & (x < self.num_symbols) & (x == x.round())
        expected = f"whole numbers from 0 to {self.num_symbols - 1}"
        check_values("series", symbols, is_symbol, expected)
        index = symbols.astype(int)
        # JAX would clip an index that is out of range.
        emitted = jnp.where(is_symbol(symbols)[:, None], self.log_emission.T[index], jnp.nan)
        emitted = jnp.where(observed[:, None], emitted, 0.0)
        return self.log_initial, self.log_transition, emitted


@jax.jit
def _simulate(chain: HiddenMarkov, key: PRNGKeyArray, keys: Array) -> HiddenMarkovSimulated:
    def step(state: Array, key: PRNGKeyArray) -> tuple[Array, HiddenMarkovSimulated]:
        symbol_key, state_key = jr.split(key)
        symbol = jr.categorical(symbol_key, chain.log_emission[state])
        following = jr.categorical(state_key, chain.log_transition[state])
        return following, HiddenMarkovSimulated(state, symbol)

    return jax.lax.scan(step, jr.categorical(key, chain.log_initial), keys)[1]
