"""The Kalman filter: log likelihood, filtering, smoothing, forecasts and simulation."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Key, PRNGKeyArray, Scalar

from relbo.statespace.spans import (
    FilterTrace,
    Observations,
    Parts,
    Span,
    concat_columns,
    condition_spans,
    cut_into_spans,
    run_filter,
    single_steps,
    symmetrise,
)
from relbo.statespace.wide_start import (
    Moments,
    StateGivenU,
    add_rows,
    least_squares_rows,
    log_evidence,
    log_evidence_of_rows,
    marginal,
    prior_root,
    split_start,
    symmetric_root,
)

LOG_2PI = 1.8378770664093453


class LinearGaussianFiltered(NamedTuple):
    """Moments of the state at each step, given the observations so far."""

    mean: Float[Array, "t n"]
    """Given the observations up to and including the same step."""
    covariance: Float[Array, "t n n"]
    predicted_mean: Float[Array, "t n"]
    """Given the observations before the step."""
    predicted_covariance: Float[Array, "t n n"]
    log_likelihoods: Float[Array, " t"]
    """log p(x_t | x_1..x_{t-1}); zero where nothing was observed."""

    @property
    def log_likelihood(self) -> Scalar:
        return jnp.sum(self.log_likelihoods)


class LinearGaussianSmoothed(NamedTuple):
    """Moments of the state at each step, given the whole series."""

    mean: Float[Array, "t n"]
    covariance: Float[Array, "t n n"]


class LinearGaussianSimulated(NamedTuple):
    """A path of the state that was drawn from the model, and its observations."""

    states: Float[Array, "t n"]
    series: Float[Array, "t m"]


# Compiled here, because JAX traces a scan again at every call outside jit.
@jax.jit
def log_likelihood(start: Moments, parts: Parts, series: Observations) -> Scalar:
    """Returns log p(series), with the path of the state integrated out exactly."""
    spans, numbers = cut_into_spans(parts, series)
    _, trace = run_filter(split_start(start), condition_spans(spans, numbers))
    rows = least_squares_rows(trace.misses)
    about_start = log_evidence_of_rows(rows.reshape(-1, rows.shape[-1]))
    constant = 0.5 * LOG_2PI * jnp.sum(series.observed, dtype=rows.dtype)
    return jnp.sum(trace.log_volume) + about_start - constant


@jax.jit
def kalman_filter(start: Moments, parts: Parts, series: Observations) -> LinearGaussianFiltered:
    def learn(root: Array, rows: Array) -> tuple[Array, tuple[Array, Array, Scalar]]:
        new_root = add_rows(root, rows)
        gained = log_evidence(new_root) - log_evidence(root)
        return new_root.at[-1, -1].set(0.0), (root, new_root, gained)

    spans = condition_spans(single_steps(parts), series)
    _, trace = run_filter(split_start(start), spans)
    rows = least_squares_rows(trace.misses)
    first_root = prior_root(rows.shape[-1], rows.dtype)
    _, (roots_before, roots, gained) = jax.lax.scan(learn, first_root, rows)
    constants = 0.5 * LOG_2PI * jnp.sum(series.observed, axis=1, dtype=rows.dtype)
    return LinearGaussianFiltered(
        *jax.vmap(marginal)(jax.vmap(_update)(trace, spans), roots),
        *jax.vmap(marginal)(trace.state, roots_before),
        trace.log_volume + gained - constants,
    )


@jax.jit
def kalman_smoother(
    start: Moments, parts: Parts, series: Observations
) -> LinearGaussianSmoothed:
    """Runs the filter, then the backward recursion of Bryson and Frazier."""

    def back(after: Array, inputs: tuple[FilterTrace, Span]) -> tuple[Array, Array]:
        trace, span = inputs
        num_seen, num_states = trace.misses.shape[0], trace.damped.shape[0]
        loading = trace.inverse_root @ span.matrix[:num_seen]
        precision = trace.damped.T @ after[:, :num_states] @ trace.damped + loading.T @ loading
        score = trace.damped.T @ after[:, num_states:] - loading.T @ trace.misses
        return concat_columns(symmetrise(precision), score), after

    spans = condition_spans(single_steps(parts), series)
    first = split_start(start)
    _, trace = run_filter(first, spans)
    _, after = jax.lax.scan(back, jnp.zeros_like(first), (trace, spans), reverse=True)
    smoothed = jax.vmap(_smooth)(jax.vmap(_update)(trace, spans), after, spans)
    root = _final_root(trace)
    return LinearGaussianSmoothed(*jax.vmap(lambda state: marginal(state, root))(smoothed))


@partial(jax.jit, static_argnums=4)
def kalman_forecast(
    start: Moments, before: Parts, after: Parts, series: Observations, num_steps: int
) -> tuple[Float[Array, "h m"], Float[Array, "h m"]]:
    """Returns mean and variance of each number at each of the steps ahead.

    The parts of the observed steps are `before`, those of the steps ahead `after`.
    """
    spans = condition_spans(single_steps(before), series)
    last, trace = run_filter(split_start(start), spans)

    def predict(state: Moments, changing: dict) -> tuple[Moments, tuple[Array, Array]]:
        mean, covariance = state
        here = after.at_step(changing)
        loading, transition = here["observation"], here["transition"]
        variance = jnp.sum((loading @ covariance) * loading, axis=1)
        seen = loading @ mean + here["observation_offset"]
        moved = transition @ mean + here["transition_offset"]
        spread = transition @ covariance @ transition.T + here["transition_covariance"]
        return (moved, symmetrise(spread)), (seen, variance + here["observation_variance"])

    state = marginal(last, _final_root(trace))
    return jax.lax.scan(predict, state, after.changing, length=num_steps)[1]


@jax.jit
def simulate(
    key: PRNGKeyArray, start: Moments, parts: Parts, keys: Key[Array, " t"]
) -> LinearGaussianSimulated:
    def step(state: Array, inputs: tuple) -> tuple[Array, LinearGaussianSimulated]:
        key, changing = inputs
        here = parts.at_step(changing)
        noise_key, state_key = jr.split(key)
        variance = here["observation_variance"]
        noise = jnp.sqrt(variance) * jr.normal(noise_key, variance.shape, state.dtype)
        seen = here["observation"] @ state + here["observation_offset"] + noise
        moved = here["transition"] @ state + here["transition_offset"]
        following = _draw(state_key, (moved, here["transition_covariance"]))
        return following, LinearGaussianSimulated(state, seen)

    return jax.lax.scan(step, _draw(key, start), (keys, parts.changing))[1]


def _update(trace: FilterTrace, span: Span) -> StateGivenU:
    """Returns the state of one step given its own observations, in Joseph's form."""
    num_seen, num_states = trace.misses.shape[0], trace.damped.shape[0]
    covariance, means = trace.state[:, :num_states], trace.state[:, num_states:]
    loading, noise = span.matrix[:num_seen], span.covariance[:num_seen, :num_seen]
    # P H' L^-T, so that the gain is this times L^-1.
    scaled = covariance @ (trace.inverse_root @ loading).T
    gain = scaled @ trace.inverse_root
    damped = jnp.eye(num_states, dtype=gain.dtype) - gain @ loading
    updated = damped @ covariance @ damped.T + gain @ noise @ gain.T
    return concat_columns(symmetrise(updated), means - scaled @ trace.misses)


def _smooth(state: StateGivenU, after: StateGivenU, span: Span) -> StateGivenU:
    """Adds the later observations to a filtered state.

    The gradient of log p(later observations) with respect to the next state is in `after`, to
    the right of minus its expected Hessian.
    """
    num_states = state.shape[0]
    transition = span.matrix[-num_states:]
    covariance, means = state[:, :num_states], state[:, num_states:]
    moved = transition @ covariance
    smoothed = covariance - moved.T @ after[:, :num_states] @ moved
    return concat_columns(symmetrise(smoothed), means + moved.T @ after[:, num_states:])


def _final_root(trace: FilterTrace) -> Float[Array, "k k"]:
    """Returns the triangular factor of all observations."""
    rows = least_squares_rows(trace.misses)
    size = rows.shape[-1]
    return add_rows(prior_root(size, rows.dtype), rows.reshape(-1, size))


def _draw(key: PRNGKeyArray, state: Moments) -> Float[Array, " n"]:
    mean, covariance = state
    return mean + symmetric_root(covariance) @ jr.normal(key, mean.shape, mean.dtype)
