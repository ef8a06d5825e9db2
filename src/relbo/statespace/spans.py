r"""The Kalman filter over spans: several steps of a linear-Gaussian model taken as one.

A span leads from the state z before it to the numbers x that it observes and the state z' after
it,

$$\begin{pmatrix} x \\ z' \end{pmatrix} = A z + c + N(0, V), \qquad
  A = \begin{pmatrix} H \\ F \end{pmatrix}.$$

One step is a span, and two spans in a row are one. The matrices are small, so that the time
depends on the number of operations rather than on their size: the gradient of the log
likelihood of 120 steps of a model with 14 states is about 1.6 times as fast over spans of 16
steps as a scan over single steps that observes the numbers one after the other.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import block_diag
from jaxtyping import Array, Bool, Float

from relbo.statespace.wide_start import StateGivenU

NUMBERS_PER_SPAN = {"float32": 8, "float64": 16}
"""Maximum number of observed numbers in a span of several steps. Longer spans would be faster
still, but with a trend the condition number of their covariance grows with the fourth power."""


class Parts(eqx.Module):
    """The matrices of a model, by name."""

    constant: dict[str, Array]
    changing: dict[str, Array]
    """Those that change with time, along a leading axis."""

    def at(self, when: slice) -> "Parts":
        """Returns the parts for some of the steps."""
        changing = {name: value[when] for name, value in self.changing.items()}
        return Parts(self.constant, changing)

    def at_step(self, changing: dict[str, Array]) -> dict[str, Array]:
        """Returns all parts of one step, given those that change."""
        return {**self.constant, **changing}


class Observations(NamedTuple):
    """A series without NaN, and where it was observed."""

    values: Float[Array, "*t m"]
    observed: Bool[Array, "*t m"]


class Span(NamedTuple):
    """The rows of the observed numbers come first, then those of the state after them."""

    matrix: Float[Array, "*s r n"]
    """A."""
    covariance: Float[Array, "*s r r"]
    """V."""
    offset: Float[Array, "*s r"]
    """c; in a span from `condition_spans`, less the observed numbers."""


class FilterTrace(NamedTuple):
    """Intermediate results of the filter, one entry per span."""

    state: Float[Array, "s n n+k"]
    """The state before the span."""
    inverse_root: Float[Array, "s w w"]
    """L^-1, where L L' is the covariance of the observed numbers."""
    misses: Float[Array, "s w k"]
    """L^-1 times (predicted less observed numbers), a matrix times (1, u)."""
    damped: Float[Array, "s n n"]
    """F - K H: the derivative of the mean after the span with respect to the mean before it."""

    @property
    def log_volume(self) -> Float[Array, " s"]:
        """-log det L."""
        return jnp.sum(jnp.log(jnp.diagonal(self.inverse_root, axis1=1, axis2=2)), axis=1)


def run_filter(state: StateGivenU, spans: Span) -> tuple[StateGivenU, FilterTrace]:
    """Runs the filter over spans; returns the state after the last one and all results.

    The gradient recomputes each span from the state before it, which saves memory and time.
    """
    return jax.lax.scan(jax.checkpoint(_filter_span, prevent_cse=False), state, spans)


def _filter_span(state: StateGivenU, span: Span) -> tuple[StateGivenU, FilterTrace]:
    """Conditions on the numbers of a span, in Joseph's form.

    With S = H P H' + V_xx, K = (F P H' + V_zx) S^-1 and W = (-K, I), the covariance after the
    span is W (A P A' + V) W' and the means are W (A M + c).
    """
    num_states = state.shape[0]
    num_seen = span.matrix.shape[0] - num_states
    moved = span.matrix @ state
    means = moved[:, num_states:].at[:, 0].add(span.offset)
    with_seen = moved[:, :num_states] @ span.matrix[:num_seen].T + span.covariance[:, :num_seen]
    inverse = _inverse_root(with_seen[:num_seen])
    gain = (with_seen[num_seen:] @ inverse.T) @ inverse
    weights = concat_columns(-gain, jnp.eye(num_states, dtype=state.dtype))
    moved = weights @ concat_columns(span.matrix, span.covariance)
    damped, noise = moved[:, :num_states], moved[:, num_states:]
    covariance = concat_columns(damped @ state[:, :num_states], noise) @ (
        concat_columns(damped, weights).T
    )
    trace = FilterTrace(state, inverse, inverse @ means[:num_seen], damped)
    return concat_columns(symmetrise(covariance), weights @ means), trace


def _inverse_root(covariance: Float[Array, "w w"]) -> Float[Array, "w w"]:
    """Returns the inverse of the Cholesky factor."""
    if covariance.shape == (1, 1):
        return 1.0 / jnp.sqrt(covariance)
    root = jax.lax.linalg.cholesky(covariance, symmetrize_input=False)
    unit = jnp.eye(covariance.shape[0], dtype=covariance.dtype)
    return jax.lax.linalg.triangular_solve(root, unit, left_side=True, lower=True)


def single_steps(parts: Parts) -> Span:
    """Returns each step as a span; one span that stands for all if no part changes."""

    def step(changing: dict[str, Array]) -> Span:
        here = parts.at_step(changing)
        return Span(
            jnp.concatenate([here["observation"], here["transition"]]),
            block_diag(jnp.diag(here["observation_variance"]), here["transition_covariance"]),
            jnp.concatenate([here["observation_offset"], here["transition_offset"]]),
        )

    if parts.changing:
        return jax.vmap(step)(parts.changing)
    return jax.tree.map(lambda leaf: leaf[None], step({}))


def cut_into_spans(parts: Parts, series: Observations) -> tuple[Span, Observations]:
    """Returns spans of several steps and their observations.

    Returns one span that stands for all if no part changes. The last span is filled up with
    unobserved steps.
    """
    length, num_observed = series.values.shape
    most = NUMBERS_PER_SPAN.get(series.values.dtype.name, 1)
    num_doublings = max(0, (most // num_observed).bit_length() - 1)
    num_added = -length % 2**num_doublings
    pad = lambda leaf: jnp.pad(leaf, ((0, num_added), *[(0, 0)] * (leaf.ndim - 1)))
    spans = single_steps(Parts(parts.constant, jax.tree.map(pad, parts.changing)))
    for _ in range(num_doublings):
        firsts, seconds = (
            Span(*(leaf[first::2] for leaf in spans)) if parts.changing else spans
            for first in (0, 1)
        )
        spans = jax.vmap(_join)(firsts, seconds)
    cut = lambda leaf: pad(leaf).reshape(-1, 2**num_doublings * num_observed)
    return spans, Observations(*map(cut, series))


def _join(first: Span, second: Span) -> Span:
    """Joins two spans in a row: the second acts on the state after the first."""
    num_seen = first.matrix.shape[0] - first.matrix.shape[1]
    on_both = block_diag(jnp.eye(num_seen, dtype=first.matrix.dtype), second.matrix)
    covariance = on_both @ first.covariance @ on_both.T
    return Span(
        on_both @ first.matrix,
        covariance.at[num_seen:, num_seen:].add(second.covariance),
        (on_both @ first.offset).at[num_seen:].add(second.offset),
    )


def condition_spans(spans: Span, series: Observations) -> Span:
    """Subtracts the observed numbers from the offsets, so that every observation is zero.

    An unobserved number becomes independent of the state, with a variance of one. Returns one
    span for each entry of the series.
    """
    num_states = spans.matrix.shape[-1]
    state = ((0, 0), (0, num_states))
    present = jnp.pad(series.observed, state, constant_values=True)
    both = present[:, :, None] & present[:, None, :]
    unit = jnp.eye(present.shape[1], dtype=bool)[None] & ~both
    return Span(
        jnp.where(present[:, :, None], spans.matrix, 0.0),
        jnp.where(both, spans.covariance, unit.astype(spans.covariance.dtype)),
        jnp.where(present, spans.offset - jnp.pad(series.values, state), 0.0),
    )


def concat_columns(left: Array, right: Array) -> Array:
    return jnp.concatenate([left, right], axis=-1)


def symmetrise(matrices: Float[Array, "*s r r"]) -> Float[Array, "*s r r"]:
    return 0.5 * (matrices + jnp.swapaxes(matrices, -1, -2))
