"""A normal whose scales and locations bend with the coordinates before: an autoguide."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, Float
from numpyro.distributions import constraints
from numpyro.distributions.transforms import LowerCholeskyAffine, PermuteTransform, Transform
from numpyro.infer.autoguide import AutoContinuous
from numpyro.infer.initialization import init_to_uniform

from relbo.core.checks import check_integer, check_positive
from relbo.gaussian.whitening import scale_features
from relbo.problem.traces import latent_names

MAX_PARENTS = 64
"""The largest dimension in which every coordinate may depend on all before it."""
FEW_PARENTS = 8
"""The number of coordinates that others may depend on in higher dimensions."""

LIMIT = 5.0
"""Beyond this many standard deviations a coordinate bends others no further."""


class BendTransform(Transform):
    r"""Scales and shifts each coordinate by functions of those before it.

    $$v_i = u_i\, e^{\sum_{j<i} c_{ij} \cdot f(w_j)} + \sum_{j<i} d_{ij} \cdot h(w_j), \qquad
      w_j = u_j \left(1 + (u_j / 5)^4\right)^{-1/4}$$

    with $f(w) = (w, a(w + 1), a(w - 1))$, $h(w) = (a(w + 1), a(w - 1), w^2 - 1)$ and a smooth
    hinge a: lines that may turn at two places, and parabolas. They level off beyond 5, so that
    far away, where noise never is but steps may go, the map is affine. Its Jacobian is
    triangular. With coefficients of zero it is the identity.

    Args:
        log_scale: c, `[d, 3, p]`; only the first p coordinates bend others.
        curve: d, of the same shape. In both, entries with $j \ge i$ are ignored.
    """

    domain: Any = constraints.real_vector  # type: ignore[override]
    codomain: Any = constraints.real_vector  # type: ignore[override]

    def __init__(self, log_scale: Float[Array, "d 3 p"], curve: Float[Array, "d 3 p"]):
        size, _, self.num_parents = curve.shape
        below = np.tril(np.ones((size, self.num_parents), curve.dtype), -1)[:, None]
        # The lines are of the scales only, the parabolas of the locations only.
        log_scale = jnp.pad(log_scale * below, ((0, 0), (0, 1), (0, 0)))
        curve = jnp.pad(curve * below, ((0, 0), (1, 0), (0, 0)))
        # One matrix, made once and not in every step of a walk.
        both = jnp.concatenate([log_scale, curve])
        self.slopes = jnp.reshape(both, (2 * size, 4 * self.num_parents)).T

    def __call__(self, x: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        return self.call_with_intermediates(x)[0]

    def call_with_intermediates(
        self, x: Float[Array, "*n d"]
    ) -> tuple[Float[Array, "*n d"], Float[Array, "*n d"]]:
        log_scales, shifts = self._parts(x)
        return x * jnp.exp(log_scales) + shifts, log_scales

    def log_abs_det_jacobian(
        self, x: Float[Array, "*n d"], y: Any, intermediates: Any = None
    ) -> Float[Array, "*n"]:
        log_scales = self._parts(x)[0] if intermediates is None else intermediates
        return jnp.sum(log_scales, -1)

    def _inverse(self, y: Float[Array, "*n d"]) -> Float[Array, "*n d"]:
        # A turn makes one more coordinate right; after p turns those that bend others are.
        def turn(x: Array, _: None) -> tuple[Array, None]:
            log_scales, shifts = self._parts(x)
            return (y - shifts) * jnp.exp(-log_scales), None

        return jax.lax.scan(turn, jnp.zeros_like(y), None, length=self.num_parents + 1)[0]

    def _parts(self, x: Float[Array, "*n d"]) -> tuple[Array, Array]:
        parents = x[..., : self.num_parents]
        square = jnp.square(parents / LIMIT)
        w = parents * jax.lax.rsqrt(jnp.sqrt(1.0 + square * square))
        lines = scale_features(w)
        parts = jnp.concatenate([lines, w * w - 1.0], -1) @ self.slopes
        return parts[..., : x.shape[-1]], parts[..., x.shape[-1] :]

    def tree_flatten(self) -> Any:
        return (self.slopes,), (("slopes",), {"num_parents": self.num_parents})


class AutoBentNormal(AutoContinuous):
    """A multivariate normal whose conditional scales and locations bend.

    $z = m + L v$, where v is standard normal noise bent by `BendTransform`. It contains
    AutoMultivariateNormal, and follows funnels and bananas: the scale and the location of each
    coordinate may depend on those before it, in the order in which the model samples its sites
    (a scale is usually sampled before the values that it scales). Up to 64 dimensions every
    coordinate may depend on all before it, beyond that on the first 8.

    Its parameters `auto_loc`, `auto_scale_tril`, `auto_scale_slopes` and `auto_curves` are in
    this order. `auto_place` is the place of each entry of the latent vector in the order: it is
    not learned, and a warm start may choose another.

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
        return min(wanted, self.latent_dim - 1)

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        super()._setup_prototype(*args, **kwargs)
        order, dtype = self.program_order(), self._init_latent.dtype
        self._init_place = jnp.asarray(np.argsort(order), dtype)
        self._init_loc = self._init_latent[order]

    def _get_posterior(self) -> dist.TransformedDistribution:
        prefix, size, dtype = self.prefix, self.latent_dim, self._init_latent.dtype
        place: Any = numpyro.param(f"{prefix}_place", self._init_place)
        order = jnp.argsort(jax.lax.stop_gradient(place))
        loc: Any = numpyro.param(f"{prefix}_loc", self._init_loc)
        tril: Any = numpyro.param(
            f"{prefix}_scale_tril",
            jnp.identity(size, dtype) * self._init_scale,
            constraint=constraints.scaled_unit_lower_cholesky,
        )
        straight = jnp.zeros((size, 3, self.num_parents), dtype)
        log_scale: Any = numpyro.param(f"{prefix}_scale_slopes", straight)
        curve: Any = numpyro.param(f"{prefix}_curves", straight)
        # All coefficients may move at once: their sum should move as far as other parameters.
        unit = max(self.num_parents, 1) ** -0.5
        return dist.TransformedDistribution(
            self.get_base_dist(),
            [
                BendTransform(log_scale * unit, curve * unit),
                LowerCholeskyAffine(loc, tril),
                PermuteTransform(jnp.argsort(order)),
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
