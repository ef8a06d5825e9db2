"""What a refined guide shows to NumPyro: the sampler's parameters and the refined values."""

from contextlib import ExitStack
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, PyTree, Scalar
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.primitives import Messenger

from relbo.core.parameters import Positive, is_parameter
from relbo.core.refinement import Refinement
from relbo.problem.numpyro import constrain_site
from relbo.problem.traces import Sites, latent_names


@jax.custom_vjp
def finite_gradient(value: Array) -> Array:
    """Returns a value whose gradient is zero wherever it would not be finite.

    Where one of many draws diverges, its gradient is NaN, and so would be their sum. Inside of
    a map over draws only the gradient of that draw is dropped; the loss is still infinite.
    """
    return value


finite_gradient.defvjp(
    lambda value: (value, None),
    lambda _, slope: (jnp.where(jnp.isfinite(slope), slope, 0.0),),
)


def with_finite_gradients(tree: PyTree) -> PyTree:
    """Applies `finite_gradient` to all real arrays of a pytree."""
    guard = lambda leaf: finite_gradient(jnp.asarray(leaf))
    return jax.tree.map(lambda x: guard(x) if eqx.is_inexact_array(x) else x, tree)


class FiniteGradients(Messenger):
    """A handler that applies `finite_gradient` to all parameters of a program."""

    def postprocess_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "param":
            msg["value"] = with_finite_gradients(msg["value"])


class _LogQ(dist.Unit):
    """A factor in a guide with a gradient, which TraceGraph_ELBO drops for NumPyro's own."""

    reparametrized_params = ["log_factor"]  # noqa: RUF012


def sampler_from_sites(refinement: Refinement, prefix: str) -> tuple[Refinement, bool]:
    """Returns the refinement with the current values of its `numpyro.param` sites.

    Every step size, damping, metric or bandwidth becomes a `numpyro.param` with its constraint,
    and so do the increments of the temperatures.

    Returns:
        The refinement, and whether the parameters were substituted (by a loss or a posterior)
        instead of being initialised here.
    """
    substituted = []

    def param(name: str, value: Any, constraint: Any) -> Any:
        # In the precision of this call: the guide may be older than `jax.enable_x64`.
        value = jnp.asarray(value, float)
        found = numpyro.param(f"{prefix}_{name}", value, constraint=constraint)
        substituted.append(found is not value)
        return found

    def from_site(path: Any, node: Any) -> Any:
        if not is_parameter(node):
            return node
        name = jax.tree_util.keystr(path, simple=True, separator="_")
        return node.known(_leaves_from_sites(name, node, param))

    kernel = jax.tree_util.tree_map_with_path(
        from_site, refinement.kernel, is_leaf=is_parameter
    )
    refinement = eqx.tree_at(lambda r: r.kernel, refinement, kernel)
    if refinement.anneal is not None:
        increments = param(
            "temperature_increments",
            jax.nn.softmax(refinement.anneal.logits),
            constraints.positive,
        )
        refinement = eqx.tree_at(lambda r: r.anneal.logits, refinement, jnp.log(increments))
    return refinement, any(substituted)


def _leaves_from_sites(name: str, parameter: Positive, param: Any) -> PyTree:
    constraint = (
        constraints.positive
        if parameter.upper is None
        else constraints.interval(0.0, parameter.upper)
    )

    def from_site(path: Any, value: Any) -> Any:
        suffix = jax.tree_util.keystr(path, simple=True, separator="_")
        return param(f"{name}_{suffix}" if suffix else name, value, constraint)

    return jax.tree_util.tree_map_with_path(from_site, parameter.value)


def add_log_q(name: str, log_q: Scalar) -> None:
    """Adds log q of the refined values to the program, as a factor."""
    factor = _LogQ(log_q)
    numpyro.sample(name, factor, obs=factor.sample(None), infer={"is_auxiliary": True})


def sample_sites(
    prototype: dict[str, Sites], values: dict[str, Array], indices: dict[str, Array]
) -> dict[str, Array]:
    """Adds the latent sites of a model to the program, at given values.

    Args:
        prototype: the trace of the model.
        values: unconstrained values by site.
        indices: indices of the plates that the base guide opened.

    Returns:
        The constrained values.
    """
    plates = _plates(prototype, indices)
    result = {}
    for name in latent_names(prototype):
        site = prototype[name]
        value, log_det = constrain_site(site, values[name])
        delta = dist.Delta(value, log_density=-log_det, event_dim=site["fn"].event_dim)
        with ExitStack() as stack:
            for frame in site["cond_indep_stack"]:
                if frame.name in plates:
                    stack.enter_context(plates[frame.name])
            result[name] = numpyro.sample(name, delta)
    return result


def _plates(prototype: dict[str, Sites], indices: dict[str, Array]) -> dict[str, Any]:
    """Opens the plates of the latent sites again, with the indices of the base guide."""
    frames = {
        frame.name: frame
        for name in latent_names(prototype)
        for frame in prototype[name]["cond_indep_stack"]
    }
    plates = {}
    for name, frame in frames.items():
        size = prototype[name]["args"][0]
        subsample = len(indices[name]) if name in indices else frame.size
        with handlers.substitute(data=indices), handlers.block():
            plates[name] = numpyro.plate(name, size, dim=frame.dim, subsample_size=subsample)
    return plates
