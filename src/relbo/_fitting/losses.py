"""Which loss a guide is trained with, and in which order it adds up."""

import copy
from typing import Any

import jax.numpy as jnp
from jaxtyping import PRNGKeyArray, PyTree
from numpyro.infer import Trace_ELBO
from numpyro.infer.elbo import ELBO

from relbo._mesh import Spread
from relbo._refined_guide import AbstractRefinedGuide
from relbo.elbo import RefinedELBO

NUM_PARTICLES = 16


class OrderedELBO(ELBO):
    """NumPyro's `Trace_ELBO`, with its sites added up in the order of their names.

    NumPyro adds them up in the order of a set, which is another one in each process: a run that
    goes on in a new process would differ from one that was never stopped, in the last bit.
    """

    def __init__(self, loss: Trace_ELBO):
        super().__init__(loss.num_particles, loss.vectorize_particles)
        self.multi_sample_guide = loss.multi_sample_guide
        self._by_site = Trace_ELBO(
            loss.num_particles,
            loss.vectorize_particles,  # type: ignore[arg-type]
            loss.multi_sample_guide,
            sum_sites=False,
        )

    def loss_with_mutable_state(
        self,
        rng_key: PRNGKeyArray,
        param_map: dict[str, PyTree],
        model: Any,
        guide: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        result = self._by_site.loss_with_mutable_state(
            rng_key, param_map, model, guide, *args, **kwargs
        )
        losses: Any = result["loss"]
        total = sum((losses[name] for name in sorted(losses)), start=jnp.zeros(()))
        return {"loss": total, "mutable_state": result["mutable_state"]}


def spread_particles(loss: Any, spread: Spread) -> Any:
    """A copy of a loss that spreads its particles over devices.

    All losses of NumPyro's kind map over their particles with one function of theirs.
    """
    if getattr(loss, "vectorize_particles", None) is not True:
        return loss
    copied = copy.copy(loss)
    copied.vectorize_particles_fn = spread.map
    if isinstance(copied, OrderedELBO):
        copied._by_site = spread_particles(copied._by_site, spread)
    return copied


def chosen_loss(loss: Any, guide: Any, num_particles: int | None, has_mutable: bool) -> Any:
    """The loss to train with: the user's, or the one that the guide asks for.

    NumPyro's drops mutable state where there is more than one particle; ours keeps it.
    """
    if loss is not None:
        return OrderedELBO(loss) if type(loss) is Trace_ELBO and loss.sum_sites else loss
    number = NUM_PARTICLES if num_particles is None else num_particles
    is_refined = isinstance(guide, AbstractRefinedGuide)
    if is_refined and (guide.refinement.kernel.interacting or has_mutable):
        return RefinedELBO(number)
    if has_mutable and num_particles is None:
        number = 1
    return OrderedELBO(Trace_ELBO(number))
