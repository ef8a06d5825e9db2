"""A normal with stretched axes, for models with many dimensions: an autoguide."""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import constraints
from numpyro.distributions.transforms import Transform
from numpyro.infer.autoguide import AutoContinuous
from numpyro.infer.initialization import init_to_uniform

from relbo.core.checks import check_positive
from relbo.gaussian import LowRankFactor
from relbo.gaussian.factors import times


class AutoStretchedNormal(AutoContinuous):
    r"""A normal with a scale for each coordinate and stretched axes.

    $$z = m + D (I + U (S - I) U^\top) u$$

    The location m, the scales D and the stretches S are learned. The orthonormal axes U come
    from a warm start (`relbo.fit` makes one by itself, `AutoRefined.warm_start` is for SVI) and
    do not change: their number is not that of the entries of a covariance, of which a
    stochastic optimiser would only see noise. There are as many axes as dimensions up to 2,000,
    so that the warm start finds all correlations, and fewer beyond, four million numbers in
    all. Without a warm start there are none, and this is AutoDiagonalNormal.

    Args:
        model: a NumPyro program.
        prefix: prefix of the names of all parameters.
        init_loc_fn: where the location starts, as in NumPyro's autoguides.
        init_scale: the initial standard deviation of each coordinate.

    Example:
        >>> import numpyro, numpyro.distributions as dist
        >>> def walk():
        ...     numpyro.sample("walk", dist.GaussianRandomWalk(1.0, 500))
        >>> guide = AutoStretchedNormal(walk)
    """

    def __init__(
        self,
        model: Any,
        *,
        prefix: str = "auto",
        init_loc_fn: Any = init_to_uniform,
        init_scale: float = 0.1,
    ):
        check_positive("init_scale", init_scale)
        self._init_scale = init_scale
        super().__init__(model, prefix=prefix, init_loc_fn=init_loc_fn)

    def _get_posterior(self) -> dist.TransformedDistribution:
        prefix, size, dtype = self.prefix, self.latent_dim, self._init_latent.dtype
        positive = {"constraint": constraints.positive}
        loc: Any = numpyro.param(f"{prefix}_loc", self._init_latent)
        wide = jnp.full(size, self._init_scale, dtype)
        scale: Any = numpyro.param(f"{prefix}_scale", wide, **positive)
        stretch: Any = numpyro.param(f"{prefix}_stretch", jnp.ones(0, dtype), **positive)
        axes: Any = numpyro.param(f"{prefix}_axes", jnp.zeros((size, 0), dtype))
        transform = StretchTransform(loc, scale, jax.lax.stop_gradient(axes), stretch)
        return dist.TransformedDistribution(self.get_base_dist(), [transform])

    def get_base_dist(self) -> Any:
        return dist.Normal(jnp.zeros(self.latent_dim), 1).to_event(1)


class StretchTransform(Transform):
    r"""The map $z = m + D (I + U (S - I) U^\top) u$.

    With as many axes as dimensions it is $z = m + D U S u$, which maps noise to the same
    distribution at half the price.

    Args:
        loc: m.
        scale: D, positive.
        axes: U, with orthonormal columns; those that are zero are not used.
        stretch: S, positive.
    """

    domain: Any = constraints.real_vector  # type: ignore[override]
    codomain: Any = constraints.real_vector  # type: ignore[override]

    def __init__(
        self,
        loc: Float[Array, " d"],
        scale: Float[Array, " d"],
        axes: Float[Array, "d k"],
        stretch: Float[Array, " k"],
    ):
        self.loc, self.scale, self.axes, self.stretch = loc, scale, axes, stretch
        is_used = jnp.sum(jnp.square(axes), 0) > 0.5
        logs = jnp.sum(jnp.where(is_used, jnp.log(stretch), 0.0))
        self.log_det = jnp.sum(jnp.log(scale)) + logs

    def __call__(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        if _is_square(self.axes):
            return self.loc + self.scale * ((x * self.stretch) @ self.axes.T)
        factor = LowRankFactor(self.scale, self.axes, self.stretch)
        return self.loc + times(factor, x)

    def log_abs_det_jacobian(
        self, x: Float[Array, "*n d"], y: Any, intermediates: Any = None
    ) -> Float[Array, "*n"]:
        return jnp.broadcast_to(self.log_det, x.shape[:-1])

    def _inverse(self, y: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        centred = (y - self.loc) / self.scale
        if _is_square(self.axes):
            return (centred @ self.axes) / self.stretch
        factor = LowRankFactor(self.scale, self.axes, self.stretch)
        return factor.stretched(centred, 1.0 / self.stretch)

    def tree_flatten(self) -> Any:
        names = ("loc", "scale", "axes", "stretch", "log_det")
        return tuple(getattr(self, name) for name in names), (names, {})


def _is_square(axes: Float[Array, "d k"]) -> bool:
    return axes.shape[0] == axes.shape[1]
