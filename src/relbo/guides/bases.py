"""Bases of a refinement from the sites of a guide."""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist
from jaxtyping import Array, PRNGKeyArray, PyTree, Scalar
from numpyro.distributions import biject_to

from relbo.core.bases import AbstractBase, AbstractNormal
from relbo.core.random import KeyLike, as_key
from relbo.problem.traces import Sites, is_real

Whitening = tuple[Array, Callable[[Array], tuple[Array, Scalar]]]
"""An array in the shape of the noise, and the map from noise to (value, log abs det)."""


class Start(NamedTuple):
    """Where the steps of a refined guide start: one run of its base guide."""

    base: AbstractBase
    """The base over the latent values that the kernel moves."""
    fixed: dict[str, Array]
    """Unconstrained values of the other latent sites."""
    fixed_log_q: Scalar
    scale: float
    """Number of data points that each local latent value stands for."""
    plates: dict[str, Array]
    """Indices of the plates that the base guide opened."""


def start_of(
    trace: dict[str, Sites],
    distributions: dict[str, Any],
    unpack: Callable[[PyTree], dict[str, Array]],
    key: PRNGKeyArray,
) -> Start:
    """Separates the sites that the kernel moves from those that stay where they were drawn.

    Args:
        trace: the trace of the base guide.
        distributions: distributions over unconstrained values, by site.
        unpack: maps a position to values by site.
        key: a random key for the draws that stay.
    """
    scales = {name: _subsampling_scale(trace, name) for name in distributions}
    local = {name for name, scale in scales.items() if scale != 1.0}
    moved = local or set(distributions)
    if len({scales[name] for name in moved}) > 1:
        raise ValueError(
            f"local latent sites {sorted(moved)} are in plates that subsample at different "
            "rates: give them one rate, or refine one of the plates only"
        )
    fixed_base = {n: fn for n, fn in distributions.items() if n not in moved}
    fixed, fixed_log_q = {}, jnp.zeros(())
    if fixed_base:
        # Global values next to subsampled local ones stay where the base drew them: moving
        # both with one minibatch would invalidate the bound.
        position, fixed_log_q = base_of(fixed_base).sample(key)
        fixed = unpack(position)
    return Start(
        base_of({n: fn for n, fn in distributions.items() if n in moved}),
        fixed,
        fixed_log_q,
        next(iter(scales[name] for name in moved)),
        {n: site["value"] for n, site in trace.items() if site["type"] == "plate"},
    )


class SitesNormal(AbstractNormal):
    """A base whose sites are all transformations of standard normal noise."""

    distributions: dict[str, Any]
    whitenings: dict[str, Whitening]

    def __init__(self, distributions: dict[str, Any], whitenings: dict[str, Whitening]):
        self.distributions = distributions
        self.whitenings = whitenings

    @property
    def noise(self) -> PyTree:
        return {name: like for name, (like, _) in self.whitenings.items()}

    def transform(self, noise: PyTree) -> tuple[PyTree, Scalar]:
        position, total = {}, jnp.zeros(())
        for name, (_, push) in self.whitenings.items():
            position[name], log_det = push(noise[name])
            total = total + log_det
        return position, total

    def log_prob(self, position: PyTree) -> Scalar:
        return _log_prob(self.distributions, position)


class AbstractSitesBase(AbstractBase):
    """A base with reparameterised draws but no known map from standard normal noise."""

    distributions: dict[str, Any]

    @property
    def centre(self) -> PyTree:
        return {name: _centre(fn) for name, fn in self.distributions.items()}

    def sample(self, key: KeyLike) -> tuple[PyTree, Scalar]:
        keys = jr.split(as_key(key), len(self.distributions))
        items = self.distributions.items()
        position = {name: fn.rsample(k) for k, (name, fn) in zip(keys, items, strict=True)}
        spread_out = {name: fn for name, fn in items if not is_point(fn)}
        return position, _log_prob(spread_out, position)


class SitesBase(AbstractSitesBase):
    """A base with a density at all of its sites."""

    has_density: ClassVar[bool] = True

    def log_prob(self, position: PyTree) -> Scalar:
        return _log_prob(self.distributions, position)


class SitesPoint(AbstractSitesBase):
    """A base without a density: some of its sites are points, as in a MAP estimate."""

    has_density: ClassVar[bool] = False

    def log_prob(self, position: PyTree) -> Scalar:
        raise ValueError(
            "a point estimate has no density: an annealed path cannot start from it. Use "
            "anneal=False, or a base with a density such as AutoNormal"
        )


def base_of(distributions: dict[str, Any]) -> AbstractBase:
    """Returns the base of a refinement, from distributions over unconstrained values."""
    if any(is_point(fn) for fn in distributions.values()):
        return SitesPoint(distributions)
    for name, fn in distributions.items():
        if not fn.has_rsample:
            raise ValueError(
                f"the guide's site '{name}' is a {type(fn).__name__}, which has no "
                "reparameterised sample for gradients: use a distribution that has one, "
                "such as Normal or a transformed Normal"
            )
    whitenings = {name: _whitening(fn) for name, fn in distributions.items()}
    known = {name: found for name, found in whitenings.items() if found is not None}
    if len(known) == len(distributions):
        return SitesNormal(distributions, known)
    return SitesBase(distributions)


def unconstrained(fn: Any, site: Sites) -> Any:
    """Returns the guide's distribution at a site, over the model's unconstrained values."""
    support = site["fn"].support
    if is_real(support):
        return fn
    to_support = biject_to(support)
    if isinstance(fn, dist.TransformedDistribution) and _ends_with(fn, to_support):
        rest = fn.transforms[:-1]
        return dist.TransformedDistribution(fn.base_dist, rest) if rest else fn.base_dist
    if is_point(fn):
        return dist.Delta(to_support.inv(fn.mean))
    return dist.TransformedDistribution(fn, to_support.inv)


def _ends_with(fn: dist.TransformedDistribution, transform: Any) -> bool:
    last = fn.transforms[-1]
    return type(last) is type(transform) and bool(last == transform)


def is_point(fn: Any) -> bool:
    while isinstance(fn, dist.Independent | dist.ExpandedDistribution):
        fn = fn.base_dist
    return isinstance(fn, dist.Delta)


def _centre(fn: Any) -> Array:
    """Returns the mean where it is known, and the transformed mean of the base otherwise."""
    try:
        return jnp.asarray(fn.mean)
    except NotImplementedError:
        value = _centre(fn.base_dist)
        for transform in getattr(fn, "transforms", []):
            value = transform(value)
        return value


def _log_prob(distributions: dict[str, Any], position: PyTree) -> Scalar:
    return sum(
        (jnp.sum(fn.log_prob(position[name])) for name, fn in distributions.items()),
        start=jnp.zeros(()),
    )


def _whitening(fn: Any) -> Whitening | None:
    """Returns how noise becomes a draw of `fn`, or `None` where that is not known."""
    if isinstance(fn, dist.Independent):
        return _whitening(fn.base_dist)
    inner = fn.base_dist if isinstance(fn, dist.ExpandedDistribution) else fn
    if isinstance(inner, dist.Normal):
        return _affine(inner.loc, inner.scale, fn.shape())
    if isinstance(fn, dist.MultivariateNormal | dist.LowRankMultivariateNormal):
        return _triangular(fn.loc, fn.scale_tril, fn.shape())
    if isinstance(fn, dist.TransformedDistribution):
        return _pushed(_whitening(fn.base_dist), fn.transforms)
    return None


def _affine(loc: Any, scale: Any, shape: tuple[int, ...]) -> Whitening:
    loc, scale = jnp.broadcast_to(loc, shape), jnp.broadcast_to(scale, shape)
    return loc, lambda noise: (loc + scale * noise, jnp.sum(jnp.log(scale)))


def _triangular(loc: Any, scale_tril: Any, shape: tuple[int, ...]) -> Whitening:
    loc = jnp.broadcast_to(loc, shape)
    scale_tril = jnp.broadcast_to(scale_tril, (*shape, shape[-1]))
    log_det = jnp.sum(jnp.log(jnp.diagonal(scale_tril, axis1=-2, axis2=-1)))
    return loc, lambda noise: (loc + jnp.einsum("...ij,...j", scale_tril, noise), log_det)


def _pushed(inner: Whitening | None, transforms: list[Any]) -> Whitening | None:
    if inner is None:
        return None
    noise_like, start = inner

    def push(noise: Array) -> tuple[Array, Scalar]:
        value, log_det = start(noise)
        for transform in transforms:
            moved, intermediates = transform.call_with_intermediates(value)
            step = transform.log_abs_det_jacobian(value, moved, intermediates)
            value, log_det = moved, log_det + jnp.sum(step)
        return value, log_det

    return noise_like, push


def _subsampling_scale(trace: dict[str, Sites], name: str) -> float:
    """Returns the number of data points that one entry of a site stands for."""
    scale = 1.0
    if name not in trace:  # the joint vector of a guide, which is never local
        return scale
    for frame in trace[name]["cond_indep_stack"]:
        full = trace[frame.name]["args"][0] if frame.name in trace else frame.size
        scale *= full / frame.size
    return scale
