"""Hidden states of a Markov chain given a series: Viterbi and posterior decoding."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float, Int, Scalar

from relbo.core.checks import check_shape
from relbo.statespace.forward import safe_log, smooth_states
from relbo.statespace.observations import float_arrays


class DecodedStates(NamedTuple):
    """What is known about the path of the hidden state."""

    path: Int[Array, " t"]
    """The most probable path as a whole (Viterbi)."""
    log_joint: Scalar
    """log p(path, series)."""
    log_probs: Float[Array, "t k"]
    """log p(z_t | series): the probability of each state at each step (posterior decoding)."""


def decode_states(
    initial: ArrayLike, transition: ArrayLike, log_likelihoods: ArrayLike
) -> DecodedStates:
    r"""Decodes the hidden states of a Markov chain with any kind of observations.

    $$\text{path} = \arg\max_z p(z_1) \prod_t p(z_{t+1} \mid z_t) \prod_t p(x_t \mid z_t)$$

    Use `jax.vmap` to decode with each draw of a posterior; averaging the probabilities over
    draws accounts for the uncertainty of the parameters.

    Args:
        initial: p(z_1), `[k]`.
        transition: p(z_{t+1} | z_t), one row of probabilities per state, `[k, k]`.
        log_likelihoods: log p(x_t | z_t), `[t, k]`; a row of zeros for a missing step.

    Returns:
        A `DecodedStates`.

    Example:
        >>> import jax.numpy as jnp, numpyro.distributions as dist
        >>> stay = jnp.array([[0.9, 0.1], [0.1, 0.9]])
        >>> series = jnp.array([0.1, -0.2, 3.0, 2.9])
        >>> seen = dist.Normal(jnp.array([0.0, 3.0]), 1.0).log_prob(series[:, None])
        >>> decode_states(jnp.array([0.5, 0.5]), stay, seen).path.tolist()
        [0, 0, 1, 1]
    """
    given = float_arrays(
        initial=initial, transition=transition, log_likelihoods=log_likelihoods
    )
    check_shape("initial", given["initial"], "k")
    size = len(given["initial"])
    check_shape("transition", given["transition"], size, size)
    check_shape("log_likelihoods", given["log_likelihoods"], "t", size)
    return decode(
        safe_log(given["initial"]), safe_log(given["transition"]), given["log_likelihoods"]
    )


@jax.jit
def decode(
    log_initial: Float[Array, " k"],
    log_transition: Float[Array, "k k"],
    log_emitted: Float[Array, "t k"],
) -> DecodedStates:
    """Decodes from logarithms; see `decode_states`."""

    def forward(best: Array, log_emitted: Array) -> tuple[Array, Array]:
        arriving = best[:, None] + log_transition
        return jnp.max(arriving, axis=0) + log_emitted, jnp.argmax(arriving, axis=0)

    last, came_from = jax.lax.scan(forward, log_initial + log_emitted[0], log_emitted[1:])
    end = jnp.argmax(last)

    def backward(state: Array, came_from: Array) -> tuple[Array, Array]:
        before = came_from[state]
        return before, before

    _, path = jax.lax.scan(backward, end, came_from, reverse=True)
    probabilities = smooth_states(log_initial, log_transition, log_emitted)
    return DecodedStates(jnp.append(path, end), jnp.max(last), probabilities)
