"""Estimates how long the image experiments take on this machine."""

import time

import jax
import jax.numpy as jnp


def estimated_seconds(num_passes: float, *, num_programs: int) -> float:
    """Estimates the time of a run from a short measurement.

    Args:
        num_passes: number of passes of an image through a network.
        num_programs: number of programs to compile.
    """
    # Matrix products take two thirds of the time, and compiling takes about a minute.
    return 1.5 * num_passes * _seconds_per_pass() + 60.0 * num_programs


def _seconds_per_pass() -> float:
    """Measures one pass of an image through a network like the decoder."""
    number, repeats = 640, 20  # five draws for each image of a minibatch
    inputs, weights = jnp.ones((number, 250)), jnp.full((250, 784), 0.01)

    @jax.jit
    def run(inputs: jax.Array, weights: jax.Array) -> jax.Array:
        turn = lambda _, x: 0.01 * ((x @ weights) @ weights.T)
        return jax.lax.fori_loop(0, repeats, turn, inputs)

    run(inputs, weights).block_until_ready()
    begin = time.perf_counter()
    run(inputs, weights).block_until_ready()
    return (time.perf_counter() - begin) / (2 * number * repeats)
