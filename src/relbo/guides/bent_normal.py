"""A normal whose scales and locations bend with the coordinates before: an autoguide."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer.autoguide import AutoContinuous
from numpyro.infer.initialization import init_to_uniform

from relbo.core.checks import check_integer, check_positive
from relbo.guides.bends import (
    NUM_FEATURES,
    BendTransform,
    PlacedAffine,
    triangular,
)
from relbo.problem.traces import latent_names

MAX_PARENTS = 64
"""The largest dimension in which every coordinate may depend on all before it."""
FEW_PARENTS = 8
"""The number of coordinates that others may depend on in higher dimensions."""


class AutoBentNormal(AutoContinuous):
    """A multivariate normal whose conditional scales and locations bend.

    $z = m + L v$, where v is standard normal noise bent by `BendTransform`. It contains
    AutoMultivariateNormal, and follows funnels and bananas: the scale and the location of each
    coordinate may depend on those before it, in the order in which the model samples its sites
    (a scale is usually sampled before the values that it scales). Up to 64 dimensions every
    coordinate may depend on all before it, beyond that on the first 8.

    Its parameters `auto_loc`, `auto_scale_tril` and `auto_bends` are in this order.
    `auto_place` is the place of each entry of the latent vector in the order: it is not
    learned, and a warm start may choose another.

    Args:
        model: a NumPyro program.
        prefix: prefix of the names of all parameters.
        init_loc_fn: where the location starts, as in NumPyro's autoguides.
        init_scale: the initial standard deviation of each coordinate.
        num_parents: the number of coordinates, from the first, that others may depend on.

    Example:
        >>> import numpyro, numpyro.distributions as dist
        >>> def funnel():
        ...     log_scale = numpyro.sample("log_scale", dist.Normal(0, 1.35))
        ...     numpyro.sample("z", dist.Normal(0, jax.numpy.exp(log_scale)))
        >>> guide = AutoBentNormal(funnel)
    """

    def __init__(
        self,
        model: Any,
        *,
        prefix: str = "auto",
        init_loc_fn: Any = init_to_uniform,
        init_scale: float = 0.1,
        num_parents: int | None = None,
    ):
        check_positive("init_scale", init_scale)
        if num_parents is not None:
            check_integer("num_parents", num_parents, 0)
        self._init_scale, self._num_parents = init_scale, num_parents
        super().__init__(model, prefix=prefix, init_loc_fn=init_loc_fn)

    @property
    def num_parents(self) -> int:
        """The number of coordinates that others may depend on."""
        limit = MAX_PARENTS if self.latent_dim <= MAX_PARENTS else FEW_PARENTS
        wanted = limit if self._num_parents is None else self._num_parents
        return min(wanted, self.latent_dim)

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        order, dtype = self.program_order(), self._init_latent.dtype
        self._init_place = jnp.asarray(np.argsort(order), dtype)
        self._init_loc = self._init_latent[order]

    def _get_posterior(self) -> dist.TransformedDistribution:
        prefix, size, dtype = self.prefix, self.latent_dim, self._init_latent.dtype
        place: Any = numpyro.param(f"{prefix}_place", self._init_place)
        loc: Any = numpyro.param(f"{prefix}_loc", self._init_loc)
        tril: Any = numpyro.param(
            f"{prefix}_scale_tril",
            jnp.identity(size, dtype) * self._init_scale,
            constraint=triangular,
        )
        straight = jnp.zeros((NUM_FEATURES, self.num_parents, 2, size), dtype)
        bends: Any = numpyro.param(f"{prefix}_bends", straight)
        # All coefficients may move at once: their sum should move as far as other parameters.
        unit = max(min(self.num_parents, size - 1), 1) ** -0.5
        return dist.TransformedDistribution(
            self.get_base_dist(),
            [
                BendTransform(bends * unit),
                PlacedAffine(loc, tril, jax.lax.stop_gradient(place)),
            ],
        )

    def program_order(self) -> np.ndarray:
        """Returns indices into the latent vector, in the order of the program."""
        # NumPyro may have sorted the sites of the vector by name.
        entries, start = {}, 0
        for name, value in self._init_locs.items():
            entries[name] = start + np.arange(np.size(value))
            start += np.size(value)
        names = [name for name in latent_names(self.prototype_trace or {}) if name in entries]
        return np.concatenate([entries[name] for name in names])

    def get_base_dist(self) -> Any:
        return dist.Normal(jnp.zeros(self.latent_dim), 1).to_event(1)
