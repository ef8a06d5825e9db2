"""Hidden Markov models of a categorical series, by the forward algorithm."""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, ArrayLike, Bool, Float, Int, PRNGKeyArray, Scalar

from relbo.evaluate.scores import CategoricalForecast
from relbo.models._distributions import HiddenMarkovSeries
from relbo.models._forward import finite_or_zero, forward_step, log_likelihood, log_sum_exp
from relbo.models._scan import scan_over_time
from relbo.models._series import check_length, check_values, observed_entries


class FilteredStates(NamedTuple):
    """What the past says about the hidden state at each step."""

    log_probs: Float[Array, "t k"]
    """log p(z_t | x_1..x_t)."""
    predicted_log_probs: Float[Array, "t k"]
    """log p(z_t | x_1..x_{t-1})."""
    log_likelihoods: Float[Array, " t"]
    """log p(x_t | x_1..x_{t-1}); zero where nothing was observed."""

    @property
    def log_likelihood(self) -> Scalar:
        return jnp.sum(self.log_likelihoods)


class SimulatedStates(NamedTuple):
    """A path that the model drew."""

    states: Int[Array, " t"]
    series: Int[Array, " t"]


class HiddenMarkov(eqx.Module):
    r"""A hidden Markov chain with k states that emits one of s symbols a step.

    $$z_1 \sim \pi, \qquad z_{t+1} \sim A_{z_t}, \qquad x_t \sim B_{z_t}$$

    A series is whole numbers from 0 to s - 1, as integers or as floats, where NaN says that an
    entry is missing; `False` in a mask says it too. All methods are for one series: `jax.vmap`
    makes a batch.

    Args:
        initial: pi, the probabilities of the first state, `[k]`.
        transition: A, one row of probabilities a state, `[k, k]`. Zeros are allowed.
        emission: B, one row a state, `[k, s]`.

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
        given = {"initial": initial, "transition": transition, "emission": emission}
        dtype = jnp.result_type(float, *given.values())
        given = {name: jnp.asarray(value, dtype) for name, value in given.items()}
        _check_shapes(given)
        for name, value in given.items():
            _check_probabilities(name, value)
        self.log_initial = _safe_log(given["initial"])
        self.log_transition = _safe_log(given["transition"])
        self.log_emission = _safe_log(given["emission"])

    @property
    def num_states(self) -> int:
        return self.log_initial.shape[-1]

    @property
    def num_symbols(self) -> int:
        return self.log_emission.shape[-1]

    def log_likelihood(self, series: Array, mask: Array | None = None) -> Scalar:
        """log p(series), summed over all paths of the hidden state.

        NaN where a symbol is outside the range and could not be looked at beforehand: inside a
        compiled function nothing can be raised.
        """
        return jax.jit(log_likelihood)(
            self.log_initial, self.log_transition, self._evidence(series, mask)
        )

    def filter(self, series: Array, mask: Array | None = None) -> FilteredStates:
        """Probabilities of the hidden state given the past."""
        return _filter(self, self._evidence(series, mask))

    def smooth(self, series: Array, mask: Array | None = None) -> Float[Array, "t k"]:
        """log p(z_t | the whole series)."""
        return _smooth(self, self._evidence(series, mask))

    def forecast(
        self, series: Array, num_steps: int, mask: Array | None = None
    ) -> CategoricalForecast:
        """The probabilities of the symbols at each of the next steps, given the series.

        Returns:
            A `CategoricalForecast` of `num_steps` entries, which the scores of
            `relbo.evaluate` take as it is.
        """
        if num_steps < 1:
            raise ValueError(f"num_steps: expected at least 1, got {num_steps}")
        now = _predict_next(self, self._evidence(series, mask))
        return CategoricalForecast(_symbols_ahead(self, now, num_steps))

    def simulate(self, key: PRNGKeyArray, num_steps: int) -> SimulatedStates:
        """Draws a path of the hidden state and what it emits."""
        if num_steps < 1:
            raise ValueError(f"num_steps: expected at least 1, got {num_steps}")
        start_key, path_key = jr.split(key)
        return _simulate(self, start_key, jr.split(path_key, num_steps))

    def _evidence(self, series: Array, mask: Array | None) -> Float[Array, "t k"]:
        """log p(x_t | z_t) for every state; zero where nothing was observed."""
        series = jnp.asarray(series)
        check_length(series)
        if series.ndim != 1:
            raise ValueError(f"series: expected the shape [t], got {series.shape}")
        observed = observed_entries(series, mask)
        symbols = jnp.where(observed, series, 0)
        check_symbols(symbols, self.num_symbols)
        index = symbols.astype(int)
        is_symbol = (index == symbols) & (index >= 0) & (index < self.num_symbols)
        # An index outside would be clipped without a word.
        evidence = jnp.where(is_symbol[:, None], self.log_emission.T[index], jnp.nan)
        return jnp.where(observed[:, None], evidence, 0.0)


def hidden_markov_model(
    series: Array | None = None,
    *,
    num_states: int,
    num_symbols: int,
    concentration: float = 1.0,
    mask: Bool[Array, " t"] | None = None,
    num_steps: int | None = None,
) -> None:
    """A NumPyro program: a hidden Markov model whose path is summed out (paper, section 5.2).

    The rows of both matrices have Dirichlet priors, and the first state is any with equal
    probability. Its sites are `transition`, `emission` and the observed `series`.

    Args:
        series: symbols, `[t]`; `None` to draw it from the prior.
        num_states: k.
        num_symbols: s.
        concentration: of the Dirichlet priors; 1 is flat.
        mask: `True` where the series was observed.
        num_steps: the length of the series where it is `None`.
    """
    rows = lambda size: dist.Dirichlet(jnp.full((num_states, size), concentration)).to_event(1)
    transition = numpyro.sample("transition", rows(num_states))
    emission = numpyro.sample("emission", rows(num_symbols))
    chain = HiddenMarkov(jnp.full(num_states, 1.0 / num_states), transition, emission)
    length = num_steps if series is None else len(series)
    if length is None:
        raise ValueError("num_steps: expected the length of the series where none is given")
    numpyro.sample("series", HiddenMarkovSeries(chain, length, mask), obs=series)


def check_symbols(symbols: Array, num_symbols: int) -> None:
    """Raises where a symbol that can be looked at is outside the range."""
    is_symbol = lambda values: (
        (values >= 0) & (values < num_symbols) & (values == np.floor(values))
    )
    check_values("series", symbols, is_symbol, f"whole numbers from 0 to {num_symbols - 1}")


# Compiled here, since a scan that is called as it stands is traced anew at every call.
@jax.jit
def _filter(chain: HiddenMarkov, evidence: Float[Array, "t k"]) -> FilteredStates:
    def step(predicted: Array, evidence: Array) -> tuple[Array, FilteredStates]:
        filtered, term, following = forward_step(predicted, evidence, chain.log_transition)
        return following, FilteredStates(filtered, predicted, term)

    return scan_over_time(step, chain.log_initial, evidence)[1]


@jax.jit
def _smooth(chain: HiddenMarkov, evidence: Float[Array, "t k"]) -> Float[Array, "t k"]:
    def step(later: Array, evidence: Array) -> tuple[Array, Array]:
        message = log_sum_exp(chain.log_transition + (later + evidence)[None], axis=1)
        # Only ratios matter, and without this a long series would eat the digits.
        message = message - finite_or_zero(log_sum_exp(message))
        return message, message

    last = jnp.zeros_like(chain.log_initial)
    _, messages = jax.lax.scan(step, last, evidence[1:], reverse=True)
    joint = _filter(chain, evidence).log_probs + jnp.concatenate([messages, last[None]])
    return joint - finite_or_zero(log_sum_exp(joint, axis=1))[:, None]


@jax.jit
def _predict_next(chain: HiddenMarkov, evidence: Float[Array, "t k"]) -> Float[Array, " k"]:
    step = lambda predicted, evidence: (
        forward_step(predicted, evidence, chain.log_transition)[2],
        None,
    )
    return scan_over_time(step, chain.log_initial, evidence)[0]


@partial(jax.jit, static_argnums=2)
def _symbols_ahead(
    chain: HiddenMarkov, predicted: Float[Array, " k"], num_steps: int
) -> Float[Array, "h s"]:
    def look(predicted: Array, _: None) -> tuple[Array, Array]:
        symbols = log_sum_exp(predicted[:, None] + chain.log_emission)
        return log_sum_exp(predicted[:, None] + chain.log_transition), symbols

    return jax.lax.scan(look, predicted, None, length=num_steps)[1]


@jax.jit
def _simulate(chain: HiddenMarkov, key: PRNGKeyArray, keys: Array) -> SimulatedStates:
    def step(state: Array, key: PRNGKeyArray) -> tuple[Array, SimulatedStates]:
        symbol_key, state_key = jr.split(key)
        symbol = jr.categorical(symbol_key, chain.log_emission[state])
        following = jr.categorical(state_key, chain.log_transition[state])
        return following, SimulatedStates(state, symbol)

    return jax.lax.scan(step, jr.categorical(key, chain.log_initial), keys)[1]


def _safe_log(probabilities: Array) -> Array:
    is_possible = probabilities != 0
    logs = jnp.log(jnp.where(is_possible, probabilities, 1.0))
    return jnp.where(is_possible, logs, -jnp.inf)


def _check_shapes(given: dict[str, Array]) -> None:
    if given["initial"].ndim != 1 or given["initial"].shape[0] == 0:
        raise ValueError(f"initial: expected a vector, got the shape {given['initial'].shape}")
    number = given["initial"].shape[0]
    if given["transition"].shape != (number, number):
        raise ValueError(
            f"transition: expected the shape {(number, number)}, got "
            f"{given['transition'].shape}"
        )
    emission = given["emission"]
    if emission.ndim != 2 or emission.shape[0] != number or emission.shape[1] == 0:
        raise ValueError(f"emission: expected the shape [{number}, s], got {emission.shape}")


def _check_probabilities(name: str, value: Array) -> None:
    check_values(name, value, lambda x: x >= 0, "probabilities of zero or more")
    adds_up = lambda x: np.abs(x.sum(axis=-1) - 1.0) < 1e-3
    check_values(name, value, adds_up, "rows that add up to 1")
