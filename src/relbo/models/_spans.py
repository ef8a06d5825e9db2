r"""Several steps of a linear-Gaussian model taken as one.

At the sizes of time series it is the number of operations that costs, not their size. A *span*
takes in many numbers at once: from the state z before it come the numbers seen and the state
after, stacked,

$$(x, z') = A z + c + N(0, V).$$

One step is a span, and two spans in a row are one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.scipy.linalg import block_diag
from jaxtyping import Array, Float

from relbo.models._kalman import Observations, Parts

MOST_NUMBERS = {"float32": 8, "float64": 16}
"""In a span, unless one step has more. More would be faster still, but their covariance nearer
to a singular one: with a trend its condition grows with the fourth power of their number."""


class Span(NamedTuple):
    """The numbers seen come first, then the state after them."""

    matrix: Float[Array, "s r n"]
    covariance: Float[Array, "s r r"]
    offset: Float[Array, "s r"]


def cut_into_spans(parts: Parts, series: Observations) -> tuple[Span, Observations]:
    """All spans, or the one that stands for all where no part changes; and what each has seen.

    The steps that fill up the last one have not been observed.
    """
    length, num_observed = series.values.shape
    most = MOST_NUMBERS.get(series.values.dtype.name, 1)
    num_doublings = max(0, (most // num_observed).bit_length() - 1)
    num_left = -length % 2**num_doublings
    pad = lambda leaf: jnp.pad(leaf, ((0, num_left), *[(0, 0)] * (leaf.ndim - 1)))
    spans = _steps(parts, jax.tree.map(pad, parts.changing))
    for _ in range(num_doublings):
        firsts, seconds = (_every_other(spans, i) if parts.changing else spans for i in (0, 1))
        spans = jax.vmap(_join)(firsts, seconds)
    cut = lambda leaf: pad(leaf).reshape(-1, 2**num_doublings * num_observed)
    return spans, Observations(*map(cut, series))


def where_observed(spans: Span, series: Observations) -> Span:
    """The spans with numbers taken off, so that all they see is zero; one for each stretch.

    A number that was not observed has nothing to do with the state, and a variance of one.
    """
    num_states = spans.matrix.shape[-1]
    state = ((0, 0), (0, num_states))
    there = jnp.pad(series.observed, state, constant_values=True)
    both = there[:, :, None] & there[:, None, :]
    alone = jnp.eye(there.shape[1], dtype=bool)[None] & ~both
    return Span(
        jnp.where(there[:, :, None], spans.matrix, 0.0),
        jnp.where(both, spans.covariance, alone.astype(spans.covariance.dtype)),
        jnp.where(there, spans.offset - jnp.pad(series.values, state), 0.0),
    )


def _steps(parts: Parts, changing: dict[str, Array]) -> Span:
    def step(changing: dict[str, Array]) -> Span:
        here = parts.here(changing)
        return Span(
            jnp.concatenate([here["observation"], here["transition"]]),
            block_diag(jnp.diag(here["observation_variance"]), here["transition_covariance"]),
            jnp.concatenate([here["observation_offset"], here["transition_offset"]]),
        )

    if changing:
        return jax.vmap(step)(changing)
    return jax.tree.map(lambda leaf: leaf[None], step({}))


def _every_other(spans: Span, first: int) -> Span:
    return Span(*(leaf[first::2] for leaf in spans))


def _join(first: Span, second: Span) -> Span:
    """Two spans in a row: the second acts on the state of the first, not on what it saw."""
    num_seen = first.matrix.shape[0] - first.matrix.shape[1]
    on_both = block_diag(jnp.eye(num_seen, dtype=first.matrix.dtype), second.matrix)
    covariance = on_both @ first.covariance @ on_both.T
    return Span(
        on_both @ first.matrix,
        covariance.at[num_seen:, num_seen:].add(second.covariance),
        (on_both @ first.offset).at[num_seen:].add(second.offset),
    )
