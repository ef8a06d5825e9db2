"""The loss that a guide is trained with."""

import copy
from typing import Any

from numpyro.infer import Trace_ELBO

from relbo._devices import Spread
from relbo.guides.losses import RefinedELBO
from relbo.guides.refined_guide import AbstractRefinedGuide

NUM_DRAWS = 16


class OrderedELBO(Trace_ELBO):
    """NumPyro's `Trace_ELBO`, which adds its sites in the order of their names.

    NumPyro adds them in the order of a set, which differs between processes. A run that is
    resumed in a new process would differ in the last bits, and JAX's persistent cache of
    compiled programs would not find the program of an earlier process.
    """

    def __init__(self, loss: Trace_ELBO):
        super().__init__(
            loss.num_particles,
            loss.vectorize_particles,  # type: ignore[arg-type]
            loss.multi_sample_guide,
            sum_sites=False,
        )

    def loss_with_mutable_state(self, *args: Any, **kwargs: Any) -> Any:
        found = super().loss_with_mutable_state(*args, **kwargs)
        losses: Any = found["loss"]
        return {**found, "loss": sum(losses[name] for name in sorted(losses))}


def training_loss(loss: Any, guide: Any, *, has_mutable: bool) -> Any:
    """Returns the user's loss, or the default one of the guide.

    `Trace_ELBO` drops mutable state if it takes several draws; `RefinedELBO` keeps it.
    """
    if loss is not None:
        return OrderedELBO(loss) if type(loss) is Trace_ELBO and loss.sum_sites else loss
    is_refined = isinstance(guide, AbstractRefinedGuide)
    if is_refined and (guide.refinement.kernel.interacting or has_mutable):
        return RefinedELBO(NUM_DRAWS)
    return OrderedELBO(Trace_ELBO(1 if has_mutable else NUM_DRAWS))


def over_devices(loss: Any, spread: Spread) -> Any:
    """Returns a copy of a loss that spreads its draws over devices.

    All losses of NumPyro map over their draws with one function that they keep as an attribute.
    """
    if getattr(loss, "vectorize_particles", None) is not True:
        return loss
    copied = copy.copy(loss)
    copied.vectorize_particles_fn = spread.map
    return copied
