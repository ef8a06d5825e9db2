"""The kernel of a refinement that names none, and the cap on a learned step size."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PyTree

from relbo.core.kernels import AbstractKernel, Underdamped
from relbo.core.parameters import PerStep, Positive, is_traced

DEFAULT_MAX_STEP_SIZE = 1.0
DEFAULT_MAX_SCORE = 20.0
INITIAL_STEP_SIZE = 0.05
"""Small, so that the base is fitted first; with 0.3 it stayed too narrow on a funnel."""


def default_kernel(
    num_steps: int, position: PyTree, max_step_size: float | None
) -> Underdamped:
    """Returns `Underdamped` with a step size for each step and each entry of `position`."""
    upper = DEFAULT_MAX_STEP_SIZE if max_step_size is None else max_step_size
    start = min(INITIAL_STEP_SIZE, upper / 2)
    if num_steps == 0:
        return Underdamped(Positive(start, upper=upper), 0.9)
    fill = lambda leaf: jnp.full((num_steps, *jnp.shape(leaf)), start)
    step_size = Positive(PerStep(jax.tree.map(fill, position)), upper=upper)
    return Underdamped(step_size, PerStep(jnp.full(num_steps, 0.9)))


def cap_step_size(
    kernel: AbstractKernel, max_step_size: float | None, *, is_surrogate: bool
) -> AbstractKernel:
    """Returns the kernel with an upper end to its step size.

    Without `max_step_size`, a surrogate that has no cap gets twice its largest initial step
    size. A traced step size has no known value and stays as it is.
    """
    step_size = kernel.step_size
    if any(is_traced(leaf) for leaf in jax.tree.leaves(step_size.raw)):
        return kernel
    if max_step_size is None and (not is_surrogate or step_size.upper is not None):
        return kernel
    with jax.ensure_compile_time_eval():
        if max_step_size is None:
            leaves = jax.tree.leaves(step_size.value)
            max_step_size = 2 * max(float(jnp.max(leaf)) for leaf in leaves)
        capped = step_size.with_upper(max_step_size)
    return eqx.tree_at(lambda k: k.step_size, kernel, capped)
