"""Sums discrete latent sites out of a NumPyro program."""

import math
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro
from jaxtyping import Array, ArrayLike
from numpyro import handlers
from numpyro.infer.util import _guess_max_plate_nesting, compute_log_probs
from numpyro.primitives import Messenger

from relbo.problem.call import Call
from relbo.problem.traces import (
    Model,
    Sites,
    batch_shape,
    initial_run,
    is_discrete,
    is_latent,
    is_observed,
    run,
)


class CollapsedModel:
    """A program with its discrete latent sites summed out; made by `collapse`."""

    def __init__(self, model: Model):
        self.model = model

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        call = Call(args, kwargs)
        priors, values = self._continuous_sites(call)
        log_joint = self._enumerated_logdensity(call, values)
        numpyro.factor("collapsed", log_joint - priors)

    def log_likelihood(
        self, call: Call, draws: dict[str, ArrayLike], params: dict[str, Any]
    ) -> dict[str, Array]:
        """Computes the log density of each observation alone, given the continuous sites.

        Without the other observations their discrete sites sum to one, so what is left is the
        sum over the discrete sites of this observation.
        """
        trace = initial_run(self.model, call)
        if any(site["type"] == "control_flow" for site in trace.values()):
            raise ValueError(
                "log_likelihood: the discrete sites form a sequence (scan), so observations "
                "are not independent given the parameters; leave out whole sequences instead"
            )
        shapes = {name: batch_shape(s) for name, s in trace.items() if is_observed(s)}
        none = {name: jnp.zeros((), bool) for name in shapes}

        def of_draw(values: dict[str, Array]) -> dict[str, Array]:
            def of_masked(masks: dict[str, Array]) -> Array:
                return self._enumerated_logdensity(call, values | params, none | masks)

            found, rest = {}, of_masked({})
            for name, shape in shapes.items():
                ones = jnp.eye(math.prod(shape), dtype=bool).reshape(-1, *shape)
                found[name] = (jax.vmap(of_masked)({name: ones}) - rest).reshape(shape)
            return found

        return jax.jit(lambda draws: jax.lax.map(of_draw, draws))(draws)

    def _continuous_sites(self, call: Call) -> tuple[Array, dict[str, Any]]:
        """Runs the program for its continuous priors; discrete and observed sites are hidden.

        The draws at discrete sites are arbitrary, so the priors must not depend on them.
        """
        program = handlers.seed(self.model, _spare_key())
        with handlers.block(hide_fn=_is_summed_out):
            log_probs, trace = compute_log_probs(program, call.args, call.kwargs, {})
        names = [n for n, site in trace.items() if is_latent(site) and not is_discrete(site)]
        priors = sum((log_probs[name] for name in names), start=jnp.zeros(()))
        values = {
            name: site["value"]
            for name, site in trace.items()
            if name in names or site["type"] in ("param", "mutable")
        }
        return priors, values

    def _enumerated_logdensity(
        self,
        call: Call,
        values: dict[str, Any],
        masks: dict[str, Array] | None = None,
    ) -> Array:
        """Computes the log density of the other sites, with the discrete ones summed out.

        The masks say which observations count, by site; by default all do.
        """
        model = self.model if masks is None else _Masked(self.model, masks)
        from numpyro.contrib.funsor import config_enumerate, enum, log_density

        with handlers.block():
            seeded = handlers.seed(model, 0)
            plain = run(handlers.substitute(seeded, data=values), call)
            dim = -_guess_max_plate_nesting(plain) - 1
            program = enum(config_enumerate(handlers.seed(model, 0)), dim)
            log_joint, _ = log_density(program, call.args, call.kwargs, values)
        return jnp.asarray(log_joint)


class _Masked(Messenger):
    """Leaves observations out."""

    def __init__(self, fn: Model, masks: dict[str, Array]):
        super().__init__(fn)
        self.masks = masks

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] == "sample" and msg["name"] in self.masks:
            msg["fn"] = msg["fn"].mask(self.masks[msg["name"]])


def collapse(model: Model) -> CollapsedModel:
    """Sums the discrete latent sites out of a NumPyro program.

    The result is a program with the continuous latent sites under their priors and one factor:
    the enumerated density of all other sites given them. Guides and losses for continuous sites
    work on it, and the sum is exact: for a hidden Markov model written with NumPyro's `scan` it
    is the forward algorithm.

    Use the collapsed program for the model and for the guide:
    `SVI(collapse(model), AutoRefined(collapse(model)), ...)`. (NumPyro's own `TraceEnum_ELBO`
    over a `scan` is silently wrong in version 0.22.)

    Args:
        model: a program whose discrete latent sites NumPyro can enumerate, and whose continuous
            priors do not depend on them.

    Returns:
        A program with the same arguments.
    """
    try:
        import funsor  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "summing out discrete sites needs funsor: pip install 'relbo[enum]'"
        ) from error
    return CollapsedModel(model)


def _is_summed_out(site: Sites) -> bool:
    if site["type"] == "deterministic":
        return True
    return site["type"] == "sample" and (site["is_observed"] or is_discrete(site))


def _spare_key() -> Array:
    # A replayed program, which has all its values, need not be seeded.
    key = numpyro.prng_key()
    return jr.key(0) if key is None else key
