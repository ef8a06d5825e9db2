r"""The log likelihood of a linear-Gaussian series, with its derivative written out.

The filter runs over spans of steps. Left to itself, JAX would keep every intermediate of every
span and take far longer. Here one backward pass carries the slopes of the log likelihood by the
state before each span: those of its means, $\bar M$, and of its covariance, $\bar P$, from
which the slopes of all else follow. It is a `custom_jvp` whose tangent is linear in those of
the spans, so that both modes of differentiation work, and twice.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Bool, Float, Scalar

from relbo.models._kalman import (
    LOG_2PI,
    Gaussian,
    Observations,
    Parts,
    evidence_about_start,
    split_start,
)
from relbo.models._spans import Span, cut_into_spans, where_observed

State = Float[Array, "n n+k"]
"""The covariance of the state for given u, and beside it the means as a matrix times (1, u)."""


# Compiled here, since a scan that is called as it stands is traced anew at every call.
@jax.jit
def log_likelihood(start: Gaussian, parts: Parts, series: Observations) -> Scalar:
    """log p(series), the path of the state integrated out exactly."""
    means, covariance = split_start(start)
    spans, numbers = cut_into_spans(parts, series)
    constant = 0.5 * LOG_2PI * jnp.sum(numbers.observed, dtype=means.dtype)
    return _over_spans(_beside(covariance, means), spans, numbers) - constant


@jax.custom_jvp
def _over_spans(state: State, spans: Span, numbers: Observations) -> Scalar:
    run = _run(state, where_observed(spans, numbers))
    return run.log_volume + evidence_about_start(_as_rows(run.misses))


def _over_spans_jvp(primals: tuple, tangents: tuple) -> tuple[Scalar, Scalar]:
    state, spans, numbers = primals
    by_state, by_spans, by_numbers = tangents
    seen = where_observed(spans, numbers)
    run = _run(state, seen)
    about_start, by_rows = jax.value_and_grad(evidence_about_start)(_as_rows(run.misses))
    moves = not _is_zero(by_spans.matrix)
    slopes = _slopes(run, by_rows, seen, numbers.observed, moves=moves)
    changes = (by_state, *by_spans, by_numbers.values)
    products = [
        # One span may stand for all: then its change goes with the slopes of each.
        jnp.sum(slope * change)
        for slope, change in zip(slopes, changes, strict=True)
        if not _is_zero(change)
    ]
    return run.log_volume + about_start, sum(products, start=jnp.zeros_like(about_start))


_over_spans.defjvp(_over_spans_jvp, symbolic_zeros=True)


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, SymbolicZero)


class _Run(NamedTuple):
    """What the filter leaves behind, a span after the other."""

    before: Float[Array, "s n n+k"]
    """The state."""
    inverse: Float[Array, "s w w"]
    """L^-1, with L L' the covariance of the numbers seen."""
    misses: Float[Array, "s w k"]
    """L^-1 times their means less what was seen."""
    gain: Float[Array, "s n w"]
    damped: Float[Array, "s n n"]
    """B = F - K H: what is left of a change of the state after the span."""

    @property
    def log_volume(self) -> Scalar:
        """-log |L| of all spans."""
        return jnp.sum(jnp.log(jnp.diagonal(self.inverse, axis1=1, axis2=2)))


def _run(state: State, spans: Span) -> _Run:
    return jax.lax.scan(_one_span, state, spans)[1]


def _one_span(state: State, span: Span) -> tuple[State, _Run]:
    """Takes in the numbers of a span, in Joseph's form."""
    num_states = state.shape[0]
    num_seen = span.matrix.shape[0] - num_states
    moved = span.matrix @ state
    means = moved[:, num_states:].at[:, 0].add(span.offset)
    with_seen = moved[:, :num_states] @ span.matrix[:num_seen].T + span.covariance[:, :num_seen]
    root = jax.lax.linalg.cholesky(with_seen[:num_seen], symmetrize_input=False)
    unit = jnp.eye(num_seen, dtype=state.dtype)
    inverse = jax.lax.linalg.triangular_solve(root, unit, left_side=True, lower=True)
    gain = (with_seen[num_seen:] @ inverse.T) @ inverse
    weights = _weights(gain)
    damped, noise = _cut_after(weights @ _beside(span.matrix, span.covariance), num_states)
    covariance = _beside(damped @ state[:, :num_states], noise) @ _beside(damped, weights).T
    run = _Run(state, inverse, inverse @ means[:num_seen], gain, damped)
    return _beside(_even(covariance), weights @ means), run


def _slopes(
    run: _Run, by_rows: Array, spans: Span, observed: Bool[Array, "s w"], *, moves: bool
) -> tuple:
    """Those of the first state, of the spans' parts, and of the numbers.

    With W = (-K, I), the state after a span has the covariance W (A P A' + V) W' and the means
    W (A M + c). A change of K does not change the covariance to first order. The slope of the
    matrices is `None` unless one of them `moves`.
    """
    num_states, num_seen = run.gain.shape[1:]
    covariances, means = _cut_after(run.before, num_states)
    back_to_seen = _transposed(run.inverse)
    by_misses = back_to_seen @ _from_rows(by_rows, run.misses.shape)
    weighted = back_to_seen @ run.misses
    by_seen = -0.5 * (back_to_seen @ run.inverse + by_misses @ _transposed(weighted))
    # The variance of one that stands for what was not observed is no part of the model.
    by_seen = jnp.where(observed[:, :, None], by_seen, 0.0)
    loading = spans.matrix[:, :num_seen]
    right = jnp.concatenate([run.damped, -_transposed(weighted) @ loading], axis=1)
    own = _transposed(loading) @ _beside(by_seen @ loading, by_misses)

    def back(later: State, inputs: tuple) -> tuple[State, State]:
        damped, right, own = inputs
        half = damped.T @ later
        return own + _beside(_even(half @ right), half[:, num_states:]), later

    nothing = jnp.zeros_like(run.before[0])
    first, later = jax.lax.scan(back, nothing, (run.damped, right, own), reverse=True)
    by_covariance, by_means = _cut_after(later, num_states)
    weights = _weights(run.gain)
    inner = by_covariance @ weights
    inner = inner.at[:, :, :num_seen].add(-by_means @ _transposed(weighted))
    by_noise = _even(_transposed(weights) @ inner).at[:, :num_seen, :num_seen].add(by_seen)
    by_moved = (_transposed(weights) @ by_means).at[:, :num_seen].add(by_misses)
    by_matrix = None
    if moves:
        moved = spans.matrix @ covariances
        by_matrix = by_moved @ _transposed(means) + 2.0 * by_noise @ moved
    by_offset = by_moved[:, :, 0]
    return first, by_matrix, by_noise, by_offset, -by_offset[:, :num_seen]


def _weights(gain: Float[Array, "*s n w"]) -> Float[Array, "*s n w+n"]:
    """(-K, I)."""
    shape = (*gain.shape[:-1], gain.shape[-2])
    return _beside(-gain, jnp.broadcast_to(jnp.eye(shape[-1], dtype=gain.dtype), shape))


def _beside(left: Array, right: Array) -> Array:
    return jnp.concatenate([left, right], axis=-1)


def _cut_after(matrices: Float[Array, "*s r c"], number: int) -> tuple[Array, Array]:
    return matrices[..., :number], matrices[..., number:]


def _even(matrices: Float[Array, "*s r r"]) -> Float[Array, "*s r r"]:
    return 0.5 * (matrices + _transposed(matrices))


def _transposed(matrices: Float[Array, "*s r c"]) -> Float[Array, "*s c r"]:
    return jnp.swapaxes(matrices, -1, -2)


def _as_rows(misses: Float[Array, "s w k"]) -> Float[Array, "r k"]:
    """A miss is s_0 + s' u, so that s' u = -s_0 up to noise; the right side goes last."""
    rows = jnp.concatenate([misses[..., 1:], -misses[..., :1]], axis=-1)
    return rows.reshape(-1, rows.shape[-1])


def _from_rows(by_rows: Float[Array, "r k"], shape: tuple) -> Float[Array, "s w k"]:
    slopes = by_rows.reshape(shape)
    return jnp.concatenate([-slopes[..., -1:], slopes[..., :-1]], axis=-1)
