"""Hidden Markov models of a categorical series, by the forward algorithm."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

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
        return jax.jit(_forward)(
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


def _step(
    predicted: Float[Array, " k"],
    evidence: Float[Array, " k"],
    log_transition: Float[Array, "k k"],
) -> tuple[Float[Array, " k"], Scalar, Float[Array, " k"]]:
    """Filtered states, log p of what was observed, and the states predicted next."""
    joint = predicted + evidence
    term = _log_sum_exp(joint)
    # Normalised at every step, or a long series would eat the digits.
    filtered = joint - _finite_or_zero(term)
    return filtered, term, _log_sum_exp(filtered[:, None] + log_transition)


# Compiled here, since a scan that is called as it stands is traced anew at every call.
@jax.jit
def _filter(chain: HiddenMarkov, evidence: Float[Array, "t k"]) -> FilteredStates:
    def step(predicted: Array, evidence: Array) -> tuple[Array, FilteredStates]:
        filtered, term, following = _step(predicted, evidence, chain.log_transition)
        return following, FilteredStates(filtered, predicted, term)

    return scan_over_time(step, chain.log_initial, evidence)[1]


@jax.jit
def _smooth(chain: HiddenMarkov, evidence: Float[Array, "t k"]) -> Float[Array, "t k"]:
    def step(later: Array, evidence: Array) -> tuple[Array, Array]:
        message = _log_sum_exp(chain.log_transition + (later + evidence)[None], axis=1)
        # Only ratios matter, and without this a long series would eat the digits.
        message = message - _finite_or_zero(_log_sum_exp(message))
        return message, message

    last = jnp.zeros_like(chain.log_initial)
    _, messages = jax.lax.scan(step, last, evidence[1:], reverse=True)
    joint = _filter(chain, evidence).log_probs + jnp.concatenate([messages, last[None]])
    return joint - _finite_or_zero(_log_sum_exp(joint, axis=1))[:, None]


@jax.jit
def _predict_next(chain: HiddenMarkov, evidence: Float[Array, "t k"]) -> Float[Array, " k"]:
    step = lambda predicted, evidence: (
        _step(predicted, evidence, chain.log_transition)[2],
        None,
    )
    return scan_over_time(step, chain.log_initial, evidence)[0]


@partial(jax.jit, static_argnums=2)
def _symbols_ahead(
    chain: HiddenMarkov, predicted: Float[Array, " k"], num_steps: int
) -> Float[Array, "h s"]:
    def look(predicted: Array, _: None) -> tuple[Array, Array]:
        symbols = _log_sum_exp(predicted[:, None] + chain.log_emission)
        return _log_sum_exp(predicted[:, None] + chain.log_transition), symbols

    return jax.lax.scan(look, predicted, None, length=num_steps)[1]


@jax.jit
def _simulate(chain: HiddenMarkov, key: PRNGKeyArray, keys: Array) -> SimulatedStates:
    def step(state: Array, key: PRNGKeyArray) -> tuple[Array, SimulatedStates]:
        symbol_key, state_key = jr.split(key)
        symbol = jr.categorical(symbol_key, chain.log_emission[state])
        following = jr.categorical(state_key, chain.log_transition[state])
        return following, SimulatedStates(state, symbol)

    return jax.lax.scan(step, jr.categorical(key, chain.log_initial), keys)[1]


class _Expected(NamedTuple):
    """What the whole series says about the hidden states: the slopes of its likelihood."""

    initial: Float[Array, " k"]
    """p(z_1 | series)."""
    transitions: Float[Array, "k k"]
    """How often each transition is expected to have been taken."""
    states: Float[Array, "t k"]
    """p(z_t | series)."""


@jax.custom_jvp
def _forward(
    log_initial: Float[Array, " k"],
    log_transition: Float[Array, "k k"],
    evidence: Float[Array, "t k"],
) -> Scalar:
    """log p of a series; its derivative is the usual one, by expected counts."""
    return _either(_scaled_forward, _log_forward)(log_initial, log_transition, evidence)


@_forward.defjvp
def _forward_jvp(primals: tuple, tangents: tuple) -> tuple[Scalar, Scalar]:
    value, expected = _expect(*primals)
    parts = zip(expected, tangents, strict=True)
    return value, sum((jnp.sum(slope * change) for slope, change in parts), start=jnp.zeros(()))


@jax.custom_jvp
def _expect(
    log_initial: Float[Array, " k"],
    log_transition: Float[Array, "k k"],
    evidence: Float[Array, "t k"],
) -> tuple[Scalar, _Expected]:
    """log p of a series, and what it says about the states."""
    return _either(_scaled_expect, _log_expect)(log_initial, log_transition, evidence)


@_expect.defjvp
def _expect_jvp(primals: tuple, tangents: tuple) -> tuple:
    return jax.jvp(_log_expect, primals, tangents)


def _either(scaled: Callable, in_logs: Callable) -> Callable:
    """Probabilities as they are where that is safe, which is ten times faster, or their logs.

    Where no transition is nearly impossible no predicted state can underflow, so the state that
    explains a symbol best is always there. Otherwise one may be lost that later turns out to be
    the only one left.
    """

    @jax.custom_batching.custom_vmap
    def choose(log_initial: Array, log_transition: Array, evidence: Array) -> Any:
        rarest = 0.6 * np.log(np.finfo(log_transition.dtype).tiny)
        is_safe = jnp.min(log_transition) > rarest
        return jax.lax.cond(is_safe, scaled, in_logs, log_initial, log_transition, evidence)

    # A batch chooses as one: if each chain did, both would be computed for all of them.
    @choose.def_vmap
    def choose_for_all(size: int, is_batched: Any, *arguments: Array) -> tuple[Any, Any]:
        together = [
            value if batched else jnp.broadcast_to(value, (size, *value.shape))
            for value, batched in zip(arguments, is_batched, strict=True)
        ]
        out = _either(jax.vmap(scaled), jax.vmap(in_logs))(*together)
        return out, jax.tree.map(lambda _: True, out)

    return choose


def _scaled_filter(
    log_initial: Array, log_transition: Array, evidence: Array
) -> tuple[Scalar, Float[Array, "t k"]]:
    """log p of a series, and p(z_t | x_1..x_t)."""
    transition = jnp.exp(log_transition)
    top = _finite_or_zero(jnp.max(evidence, axis=1))

    # The loop is kept this small on purpose: XLA compiles such a one without a call a step.
    def step(predicted: Array, weights: Array) -> tuple[Array, Array]:
        joint = predicted * weights
        return (joint / _or_one(jnp.sum(joint))) @ transition, joint

    _, joint = jax.lax.scan(step, jnp.exp(log_initial), jnp.exp(evidence - top[:, None]))
    total = jnp.sum(joint, axis=1)
    return jnp.sum(jnp.log(total) + top), joint / _or_one(total)[:, None]


def _scaled_forward(log_initial: Array, log_transition: Array, evidence: Array) -> Scalar:
    return _scaled_filter(log_initial, log_transition, evidence)[0]


def _scaled_expect(
    log_initial: Array, log_transition: Array, evidence: Array
) -> tuple[Scalar, _Expected]:
    value, filtered = _scaled_filter(log_initial, log_transition, evidence)
    transition = jnp.exp(log_transition)
    predicted = _or_one(filtered[:-1] @ transition)

    def step(following: Array, inputs: tuple) -> tuple[Array, Array]:
        filtered, predicted = inputs
        # p(z_t | z_{t+1}, past) shares out the probability of each next state.
        states = filtered * (transition @ (following / predicted))
        return states, states

    last = filtered[-1]
    _, states = jax.lax.scan(step, last, (filtered[:-1], predicted), reverse=True)
    states = jnp.concatenate([states, last[None]])
    transitions = transition * (filtered[:-1].T @ (states[1:] / predicted))
    return value, _Expected(states[0], transitions, states)


def _log_forward(log_initial: Array, log_transition: Array, evidence: Array) -> Scalar:
    def step(predicted: Array, evidence: Array) -> tuple[Array, Scalar]:
        _, term, following = _step(predicted, evidence, log_transition)
        return following, term

    return jnp.sum(jax.lax.scan(step, log_initial, evidence)[1])


def _log_expect(
    log_initial: Array, log_transition: Array, evidence: Array
) -> tuple[Scalar, _Expected]:
    def forth(predicted: Array, evidence: Array) -> tuple[Array, tuple]:
        filtered, term, following = _step(predicted, evidence, log_transition)
        return following, (term, filtered, following)

    def back(carry: tuple[Array, Array], inputs: tuple) -> tuple[tuple, Array]:
        onward, counts = carry
        filtered, following = inputs
        share = filtered[:, None] + log_transition - _finite_or_zero(following)[None]
        flow = jnp.exp(share) * onward[None]
        out = jnp.sum(flow, axis=1)
        here = out + jnp.exp(filtered) * (1.0 - jnp.sum(out))
        return (here, counts + flow), here

    _, (terms, filtered, following) = jax.lax.scan(forth, log_initial, evidence)
    nothing = (jnp.zeros_like(log_initial), jnp.zeros_like(log_transition))
    (first, counts), states = jax.lax.scan(back, nothing, (filtered, following), reverse=True)
    return jnp.sum(terms), _Expected(first, counts, states)


def _or_one(values: Array) -> Array:
    """What can be divided by; a NaN stays one."""
    return jnp.where(values == 0, 1.0, values)


def _log_sum_exp(values: Array, axis: int = 0) -> Array:
    """log sum exp, minus infinity and without a gradient where all are minus infinity."""
    top = jax.lax.stop_gradient(_finite_or_zero(jnp.max(values, axis=axis)))
    total = jnp.sum(jnp.exp(values - jnp.expand_dims(top, axis)), axis=axis)
    is_possible = total != 0  # not "> 0", which would hide a NaN
    return jnp.where(is_possible, jnp.log(jnp.where(is_possible, total, 1.0)) + top, -jnp.inf)


def _finite_or_zero(values: Array) -> Array:
    return jnp.where(values == -jnp.inf, 0.0, values)


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
