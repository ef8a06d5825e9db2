"""Distributions of a guide's sites as bases of a refinement."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
import jax.random as jr
import numpyro.distributions as dist
from jaxtyping import Array, PRNGKeyArray, PyTree, Scalar
from numpyro.distributions import biject_to

from relbo._program import Sites, is_real
from relbo.bases import AbstractBase, AbstractNormal

Whitening = tuple[Array, Callable[[Array], tuple[Array, Scalar]]]
"""Something in the shape of white noise, and the map from it to (value, log abs det)."""


class SitesNormal(AbstractNormal):
    """Sites whose distributions are all images of white noise."""

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


class SitesBase(AbstractBase):
    """Sites with reparameterised draws but no known map from white noise."""

    distributions: dict[str, Any]
    has_density: ClassVar[bool] = True

    @property
    def centre(self) -> PyTree:
        return {name: _centre(fn) for name, fn in self.distributions.items()}

    def sample(self, key: PRNGKeyArray) -> tuple[PyTree, Scalar]:
        keys = jr.split(key, len(self.distributions))
        items = self.distributions.items()
        position = {name: fn.rsample(k) for k, (name, fn) in zip(keys, items, strict=True)}
        return position, self.log_prob(position)

    def log_prob(self, position: PyTree) -> Scalar:
        return _log_prob(self.distributions, position)


class SitesPoint(AbstractBase):
    """Sites of which some are points (a MAP estimate): a start, but no density."""

    distributions: dict[str, Any]
    has_density: ClassVar[bool] = False

    @property
    def centre(self) -> PyTree:
        return {name: _point_or_mean(fn) for name, fn in self.distributions.items()}

    def sample(self, key: PRNGKeyArray) -> tuple[PyTree, Scalar]:
        keys = jr.split(key, len(self.distributions))
        position, log_q = {}, jnp.zeros(())
        for k, (name, fn) in zip(keys, self.distributions.items(), strict=True):
            if is_point(fn):
                position[name] = _point_or_mean(fn)
            else:
                position[name] = fn.rsample(k)
                log_q = log_q + jnp.sum(fn.log_prob(position[name]))
        return position, log_q

    def log_prob(self, position: PyTree) -> Scalar:
        raise ValueError(
            "a point estimate has no density: an annealed path cannot start from it. Use "
            "anneal=False, or a base with a density such as AutoNormal"
        )


def base_of(distributions: dict[str, Any]) -> AbstractBase:
    """The base of a refinement from distributions over unconstrained values."""
    if any(is_point(fn) for fn in distributions.values()):
        return SitesPoint(distributions)
    for name, fn in distributions.items():
        if not fn.has_rsample:
            raise ValueError(
                f"the guide's site '{name}' is a {type(fn).__name__}, which has no "
                "reparameterised sample to carry gradients: use a distribution that has one, "
                "such as Normal or a transformed Normal"
            )
    whitenings = {name: _whitening(fn) for name, fn in distributions.items()}
    known = {name: found for name, found in whitenings.items() if found is not None}
    if len(known) == len(distributions):
        return SitesNormal(distributions, known)
    return SitesBase(distributions)


def unconstrained(fn: Any, site: Sites) -> Any:
    """The guide's distribution at a site, moved to the unconstrained space of the model's."""
    support = site["fn"].support
    if is_real(support):
        return fn
    to_support = biject_to(support)
    if isinstance(fn, dist.TransformedDistribution) and _ends_with(fn, to_support):
        rest = fn.transforms[:-1]
        return dist.TransformedDistribution(fn.base_dist, rest) if rest else fn.base_dist
    if is_point(fn):
        return dist.Delta(to_support.inv(_point_or_mean(fn)))
    return dist.TransformedDistribution(fn, to_support.inv)


def _ends_with(fn: dist.TransformedDistribution, transform: Any) -> bool:
    last = fn.transforms[-1]
    return type(last) is type(transform) and bool(last == transform)


def is_point(fn: Any) -> bool:
    while isinstance(fn, dist.Independent | dist.ExpandedDistribution):
        fn = fn.base_dist
    return isinstance(fn, dist.Delta)


def _point_or_mean(fn: Any) -> Array:
    shape = fn.shape()
    while isinstance(fn, dist.Independent | dist.ExpandedDistribution):
        fn = fn.base_dist
    value = fn.v if isinstance(fn, dist.Delta) else fn.mean
    return jnp.broadcast_to(value, shape)


def _centre(fn: Any) -> Array:
    """A point in the middle, the same in every run; the mean where it is known."""
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
    """How white noise becomes a draw of `fn`, or `None` where that is not known."""
    if isinstance(fn, dist.Independent):
        return _whitening(fn.base_dist)
    if isinstance(fn, dist.ExpandedDistribution):
        inner = fn.base_dist
        if isinstance(inner, dist.Normal):
            return _affine(inner.loc, inner.scale, fn.shape())
        return None
    if isinstance(fn, dist.Normal):
        return _affine(fn.loc, fn.scale, fn.shape())
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
