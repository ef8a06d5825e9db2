"""Losses for interacting particles and for weights of each data point."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, PRNGKeyArray, PyTree, Scalar
from numpyro import handlers
from numpyro.infer.elbo import ELBO
from numpyro.infer.util import log_density

from relbo.core.checks import check_integer
from relbo.core.weights import log_mean_exp
from relbo.guides.refined_guide import AbstractRefinedGuide
from relbo.problem.call import Call
from relbo.problem.numpyro import fresh, substituted
from relbo.problem.traces import Sites, latent_names, mutable_values


class RefinedELBO(ELBO):
    r"""The refined objective of K particles that move together.

    $$\frac{1}{K} \left[ \sum_i \log p(x, z_i) - \log q(z_{1:K}) \right]$$

    It is needed for kernels whose particles interact (SVGD, its stochastic version, the
    Fokker-Planck flow): a loss that runs the guide once for each particle cannot express it.
    For other kernels it equals NumPyro's `Trace_ELBO` with the same number of particles.
    Mutable state, such as that of batch norm, is averaged over the particles (`Trace_ELBO`
    drops it where there is more than one).

    Args:
        num_particles: K.

    Example:
        >>> from numpyro.infer import SVI
        >>> svi = SVI(model, guide, optimiser, RefinedELBO(num_particles=10))
    """

    def __init__(self, num_particles: int = 1):
        check_integer("num_particles", num_particles, 1)
        super().__init__(num_particles=num_particles)

    def loss_with_mutable_state(
        self,
        rng_key: PRNGKeyArray,
        param_map: dict[str, PyTree],
        model: Any,
        guide: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if not isinstance(guide, AbstractRefinedGuide):
            raise ValueError(
                f"guide: expected a refined guide, got {type(guide).__name__}: use "
                "relbo.AutoRefined or relbo.refine, or the loss numpyro.infer.Trace_ELBO"
            )
        guide_key, model_key = jr.split(rng_key)
        with substituted(guide_key, param_map):
            latents, log_q = guide.particles(self.num_particles, *args, **kwargs)

        def log_joint(
            particle: tuple[PRNGKeyArray, dict[str, Array]],
        ) -> tuple[Scalar, dict[str, PyTree]]:
            key, latent = particle
            program = handlers.seed(model, key)
            values = {**fresh(param_map), **latent}
            log_p, trace = log_density(program, args, kwargs, values)
            return jnp.asarray(log_p), mutable_values(trace)

        keys = jr.split(model_key, self.num_particles)
        log_p, states = self.vectorize_particles_fn(log_joint, (keys, latents))
        loss = (log_q - jnp.sum(log_p)) / self.num_particles
        return {"loss": loss, "mutable_state": jax.tree.map(_mean_state, states) or None}


def _mean_state(states: Array) -> Array:
    """Returns the mean state of all particles, or the first one if it is not a real number."""
    return jnp.mean(states, axis=0) if jnp.issubdtype(states, jnp.inexact) else states[0]


class PointwiseELBO(ELBO):
    r"""The importance-weighted ELBO of a model with latent values for each data point.

    $$\sum_i \log \frac1S \sum_s \frac{p(x_i, z_i^s)}{q(z_i^s \mid x_i)}$$

    Each data point has its own weights. Weights of the whole minibatch would give a much looser
    bound, since a product of many weights is dominated by one draw. With a refined guide the
    data points are walked separately, so that a walk that fails does not affect the others.

    The model and the guide must open one plate, with a sample for each data point and no other
    latent values. All arrays among their arguments that have the length of the first one are
    treated as data, one row per data point.

    Args:
        num_draws: S, the number of draws per data point.

    Example:
        >>> from numpyro.infer import SVI
        >>> svi = SVI(model, guide, optimiser, PointwiseELBO(num_draws=5))

    References:
        Burda, Grosse and Salakhutdinov, Importance weighted autoencoders, 2016.
    """

    def __init__(self, num_draws: int = 5):
        check_integer("num_draws", num_draws, 1)
        super().__init__(num_particles=num_draws)

    def loss_with_mutable_state(
        self,
        rng_key: PRNGKeyArray,
        param_map: dict[str, PyTree],
        model: Any,
        guide: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        whole = Call(args, kwargs)
        rows, rest = _split_rows(whole)
        num_rows = len(jax.tree.leaves(rows)[0])

        def bound(point: tuple[PRNGKeyArray, Any]) -> Scalar:
            """Computes the bound of one data point."""
            key, row = point
            call = eqx.combine(jax.tree.map(lambda leaf: leaf[None], row), rest)
            weigh = lambda k: log_weight(k, param_map, model, guide, call)
            return log_mean_exp(jax.vmap(weigh)(jr.split(key, self.num_particles)))

        bounds = self.vectorize_particles_fn(bound, (jr.split(rng_key, num_rows), rows))
        scale = _scale_of(model, rng_key, param_map, whole)
        return {"loss": -scale * jnp.sum(bounds), "mutable_state": None}


def _split_rows(call: Call) -> tuple[Call, Call]:
    """Splits the arguments into the data and all others."""
    lengths = [len(leaf) for leaf in jax.tree.leaves(call) if _has_rows(leaf)]
    if not lengths:
        raise ValueError("PointwiseELBO needs data: an argument with one row per data point")
    return eqx.partition(call, lambda leaf: _has_rows(leaf) and len(leaf) == lengths[0])


def _has_rows(leaf: Any) -> bool:
    return eqx.is_array_like(leaf) and jnp.ndim(leaf) > 0


def log_weight(
    key: PRNGKeyArray, param_map: dict[str, PyTree], model: Any, guide: Any, call: Call
) -> Scalar:
    """Computes the log weight of one draw for one data point."""
    guide_key, model_key = jr.split(key)
    seeded = handlers.seed(guide, guide_key)
    log_q, guide_trace = log_density(seeded, call.args, call.kwargs, param_map)
    replayed = handlers.replay(handlers.seed(model, model_key), guide_trace)
    log_p, trace = log_density(replayed, call.args, call.kwargs, param_map)
    # In the program one data point may stand for all of them.
    return jnp.asarray(log_p - log_q) / _scale(trace)


def _scale_of(model: Any, key: PRNGKeyArray, param_map: dict[str, PyTree], call: Call) -> float:
    """Returns the number of data points that each one in a call stands for."""
    program = handlers.substitute(handlers.seed(model, key), data=param_map)
    with handlers.block():
        return _scale(handlers.trace(program).get_trace(*call.args, **call.kwargs))


def _scale(trace: dict[str, Sites]) -> float:
    shared = [name for name in latent_names(trace) if not trace[name]["cond_indep_stack"]]
    if shared:
        raise ValueError(
            f"PointwiseELBO: the latent sites {shared} are in no plate and belong to all data "
            "points: use numpyro.infer.Trace_ELBO"
        )
    plates = [site for site in trace.values() if site["type"] == "plate"]
    return math.prod(site["args"][0] / len(site["value"]) for site in plates)
