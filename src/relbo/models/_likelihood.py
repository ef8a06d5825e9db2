r"""The log likelihood of a linear-Gaussian series, with its derivative written out.

Left to itself, JAX keeps every intermediate of every step and takes three times as long. Here
only the state before each step is kept, and one backward pass carries the slopes of the log
likelihood with respect to that state: those of its means, $\bar M$, and of its covariance,
$\bar P$, from which the slopes of all parts follow. It is a `custom_jvp` whose tangent is
linear in those of the parts, so that both modes of differentiation work, and twice.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero
from jaxtyping import Array, Float, Scalar

from relbo.models._kalman import (
    Gaussian,
    Given,
    Observations,
    Parts,
    absorb,
    evidence_about_start,
    forward_step,
    observed_rows,
    split_start,
)
from relbo.models._routes import pull
from relbo.models._scan import there_and_back

Slopes = dict[str, Any]


# Compiled here, since a scan that is called as it stands is traced anew at every call.
@jax.jit
def log_likelihood(start: Gaussian, parts: Parts, series: Observations) -> Scalar:
    """log p(series), the path of the state integrated out exactly."""
    return _from_given(split_start(start), parts, series)


@jax.custom_jvp
def _from_given(given: Given, parts: Parts, series: Observations) -> Scalar:
    _, (terms, rows) = jax.lax.scan(forward_step(parts), given, (series, parts.changing))
    return jnp.sum(terms) + evidence_about_start(rows.reshape(-1, rows.shape[-1]))


def _from_given_jvp(primals: tuple, tangents: tuple) -> tuple[Scalar, Scalar]:
    given, parts, series = primals
    moves = not _is_zero(_transition(tangents[1]))
    value, slopes = _value_and_slopes(given, parts, series, moves)
    of_parts = {**tangents[1].constant, **tangents[1].changing}
    pairs = [(slopes.pop("given"), tangents[0]), (slopes.pop("values"), tangents[2].values)]
    pairs += [(slope, of_parts[name]) for name, slope in slopes.items()]
    products = jax.tree.map(
        lambda slope, change: None if _is_zero(change) else jnp.sum(slope * change),
        *zip(*pairs, strict=True),
    )
    return value, sum(jax.tree.leaves(products), start=jnp.zeros_like(value))


_from_given.defjvp(_from_given_jvp, symbolic_zeros=True)


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, SymbolicZero)


def _transition(parts: Parts) -> Any:
    return {**parts.constant, **parts.changing}["transition"]


def _value_and_slopes(
    given: Given, parts: Parts, series: Observations, moves: bool
) -> tuple[Scalar, Slopes]:
    """The log likelihood and its slopes; that of the transition only if it `moves`."""

    def weigh(outputs: tuple[Array, Array]) -> tuple[Scalar, Float[Array, "t m k"]]:
        terms, rows = outputs
        flat = rows.reshape(-1, rows.shape[-1])
        about_start, slopes = jax.value_and_grad(evidence_about_start)(flat)
        return jnp.sum(terms) + about_start, slopes.reshape(rows.shape)

    def back(carry: tuple[Given, Slopes], inputs: tuple) -> tuple[tuple, Slopes]:
        later, totals = carry
        before, row_slopes, (seen, changing) = inputs
        here = parts.here(changing)
        earlier, slopes, values = _one_step_back(later, before, row_slopes, seen, here, moves)
        kept = {name: slopes[name] for name in changing if name in slopes}
        totals = {name: totals[name] + slopes[name] for name in totals}
        return (earlier, totals), {**kept, "values": values}

    nothing = {
        name: jnp.zeros_like(value)
        for name, value in parts.constant.items()
        if moves or name != "transition"
    }
    end = (jax.tree.map(jnp.zeros_like, given), nothing)
    value, (first, totals), out = there_and_back(
        forward_step(parts), back, weigh, given, end, (series, parts.changing)
    )
    return value, {"given": first, **totals, **out}


def _one_step_back(
    later: Given,
    before: Given,
    row_slopes: Float[Array, "m k"],
    seen: Observations,
    here: dict[str, Any],
    moves: bool,
) -> tuple[Given, Slopes, Float[Array, " m"]]:
    """Slopes before a step, from those after it; those of its parts; those of its numbers."""
    numbers = observed_rows(seen, here)
    count = len(seen.values)
    unroll = count if count <= 4 else 1

    def absorb_keeping(state: Given, row: tuple) -> tuple[Given, Given]:
        return absorb(state, row)[0], state

    updated, states = jax.lax.scan(absorb_keeping, before, numbers, unroll=unroll)
    transition = here["transition"]
    slopes = {"transition_offset": later[0][:, 0], "transition_covariance": later[1]}
    if moves:
        slopes["transition"] = later[0] @ updated[0].T + 2 * later[1] @ (
            transition @ updated[1]
        )
    pulled = pull(transition, here["routes"], jnp.concatenate(later, axis=1))
    means, half = jnp.split(pulled, [later[0].shape[1]], axis=1)
    earlier, (loadings, variances, values) = jax.lax.scan(
        _one_number_back,
        (means, pull(transition, here["routes"], half.T)),
        (states, numbers, row_slopes),
        reverse=True,
        unroll=unroll,
    )
    slopes |= {
        "observation": loadings,
        "observation_variance": variances,
        "observation_offset": -values,
    }
    return earlier, slopes, values


def _one_number_back(later: Given, inputs: tuple) -> tuple[Given, tuple[Array, Array, Array]]:
    """Slopes before a number was taken in; those of its loading, variance and value.

    The covariance's update is differentiated in its short form, P - a a' / v, which is the same
    function as Joseph's. Where nothing was seen the weight 1 / v is zero and nothing changes.
    """
    (means, covariance), (value, observed, loading, noise), row_slope = inputs
    along = covariance @ loading
    variance = jnp.where(observed, loading @ along + noise, 1.0)
    weight = jnp.where(observed, 1.0 / variance, 0.0)
    gain = along * weight
    surprise = jnp.where(observed, (-(loading @ means)).at[0].add(value), 0.0)
    scale = jnp.sqrt(jnp.where(observed, weight, 1.0)) * observed
    by_means, by_covariance = later
    by_surprise = scale * jnp.concatenate([row_slope[-1:], -row_slope[:-1]])
    by_variance = -0.5 * weight * (1.0 + by_surprise @ surprise)
    by_gain = by_means @ surprise
    by_surprise = by_surprise + gain @ by_means
    pushed = by_covariance @ along
    by_variance = by_variance + weight * (gain @ pushed - by_gain @ gain)
    by_along = weight * (by_gain - 2 * pushed) + by_variance * loading
    by_loading = by_variance * along + covariance @ by_along - means @ by_surprise
    cross = 0.5 * jnp.outer(by_along, loading)
    earlier = (
        by_means - jnp.outer(loading, by_surprise),
        by_covariance + cross + cross.T,
    )
    return earlier, (by_loading, by_variance, by_surprise[0])
