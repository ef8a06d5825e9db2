"""Sums discrete latent sites out of a NumPyro program."""

from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpyro
from jaxtyping import Array
from numpyro import handlers
from numpyro.infer.util import _guess_max_plate_nesting, compute_log_probs

from relbo.problem.call import Call
from relbo.problem.traces import Model, Sites, is_discrete, is_latent, run


class CollapsedModel:
    """A program with its discrete latent sites summed out; made by `collapse`."""

    def __init__(self, model: Model):
        self.model = model

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        call = Call(args, kwargs)
        priors, values = self._continuous_sites(call)
        log_joint = self._enumerated_logdensity(call, values)
        numpyro.factor("collapsed", log_joint - priors)

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

    def _enumerated_logdensity(self, call: Call, values: dict[str, Any]) -> Array:
        from numpyro.contrib.funsor import config_enumerate, enum, log_density

        with handlers.block():
            seeded = handlers.seed(self.model, 0)
            plain = run(handlers.substitute(seeded, data=values), call)
            dim = -_guess_max_plate_nesting(plain) - 1
            program = enum(config_enumerate(handlers.seed(self.model, 0)), dim)
            log_joint, _ = log_density(program, call.args, call.kwargs, values)
        return jnp.asarray(log_joint)


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
