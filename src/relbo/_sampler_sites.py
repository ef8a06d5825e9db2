"""The sampler's own parameters as sites of a NumPyro program."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import PyTree
from numpyro.distributions import constraints

from relbo._parameters import Positive, is_parameter
from relbo.refinement import Refinement


def sampler_from_sites(refinement: Refinement, prefix: str) -> tuple[Refinement, bool]:
    """The refinement with its parameters as NumPyro holds them now.

    Every step size, damping, metric or bandwidth becomes a `numpyro.param` with the constraint
    that keeps it where it belongs, and so do the increments of the temperatures.

    Returns:
        The refinement, and whether somebody handed parameters in (a loss, a posterior) rather
        than asking for the initial ones.
    """
    handed_in = []

    def ask(name: str, value: Any, constraint: Any) -> Any:
        value = jnp.asarray(value)
        found = numpyro.param(f"{prefix}_{name}", value, constraint=constraint)
        handed_in.append(found is not value)
        return found

    def from_site(path: Any, node: Any) -> Any:
        if not is_parameter(node):
            return node
        name = jax.tree_util.keystr(path, simple=True, separator="_")
        return node.with_value(_ask_leaves(name, node, ask))

    kernel = jax.tree_util.tree_map_with_path(
        from_site, refinement.kernel, is_leaf=is_parameter
    )
    refinement = eqx.tree_at(lambda r: r.kernel, refinement, kernel)
    if refinement.anneal is not None:
        increments = ask(
            "temperature_increments",
            jax.nn.softmax(refinement.anneal.logits),
            constraints.positive,
        )
        refinement = eqx.tree_at(lambda r: r.anneal.logits, refinement, jnp.log(increments))
    return refinement, any(handed_in)


def _ask_leaves(name: str, parameter: Positive, ask: Any) -> PyTree:
    constraint = (
        constraints.positive
        if parameter.upper is None
        else constraints.interval(0.0, parameter.upper)
    )

    def ask_leaf(path: Any, value: Any) -> Any:
        suffix = jax.tree_util.keystr(path, simple=True, separator="_")
        return ask(f"{name}_{suffix}" if suffix else name, value, constraint)

    return jax.tree_util.tree_map_with_path(ask_leaf, parameter.value)
