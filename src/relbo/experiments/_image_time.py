"""How long work on images will take on this machine."""

import time

import jax
import jax.numpy as jnp


def seconds_of(num_passes: float, *, num_programs: int) -> float:
    """An estimate, from how long a pass takes here.

    Args:
        num_passes: of an image through a network.
        num_programs: to compile.
    """
    # Products are two thirds of the time; compiling takes a minute or so.
    return 1.5 * num_passes * _seconds_a_pass() + 60.0 * num_programs


def _seconds_a_pass() -> float:
    """Of one image through a network like the decoder."""
    number, repeats = 640, 20  # five draws of a minibatch
    inputs, weights = jnp.ones((number, 250)), jnp.full((250, 784), 0.01)

    @jax.jit
    def run(inputs: jax.Array, weights: jax.Array) -> jax.Array:
        turn = lambda _, x: 0.01 * ((x @ weights) @ weights.T)
        return jax.lax.fori_loop(0, repeats, turn, inputs)

    run(inputs, weights).block_until_ready()
    begin = time.perf_counter()
    run(inputs, weights).block_until_ready()
    return (time.perf_counter() - begin) / (2 * number * repeats)
