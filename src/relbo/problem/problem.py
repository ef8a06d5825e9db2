"""One inference problem: a log density over unconstrained values, with its sites and data."""

import abc
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, PyTree, Scalar

from relbo.problem.call import Call

Position = Mapping[str, ArrayLike]
"""Unconstrained values by site."""


class Site(NamedTuple):
    """A latent site: its name and the shape of its unconstrained value."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))


class AbstractProgram(abc.ABC):
    """What a front end provides: a log density and its constrained view, apart from the data.

    A subclass is a frozen dataclass with hashable fields: two readings of one model with data
    of the same shapes are equal, so that a compiled function is reused for the second. It has
    `model` and `sites` as fields or properties, and defines `logdensity`, `constrain` and
    `unconstrain`; the other methods are for models with a start, arguments or observed sites.
    """

    model: Any
    """A NumPyro program of this density, for guides."""
    sites: tuple[Site, ...]
    """The latent sites, in the order in which a vector holds them."""

    @abc.abstractmethod
    def logdensity(self, position: Position, data: PyTree) -> Scalar:
        """Returns the log density of unconstrained values, including Jacobian terms."""

    @abc.abstractmethod
    def constrain(self, position: Position, data: PyTree) -> dict[str, Array]:
        """Returns the values that a user sees: latent and deterministic sites."""

    @abc.abstractmethod
    def unconstrain(self, values: Mapping[str, ArrayLike], data: PyTree) -> Position:
        """Returns the unconstrained values of constrained ones."""

    @property
    def start(self) -> Position | None:
        """Where inference should start, if the model says so."""
        return None

    def call(self, data: PyTree) -> Call:
        """Returns the arguments of `model`."""
        return Call((), {})

    def with_constants(self, data: PyTree) -> "tuple[AbstractProgram, PyTree]":
        """Returns the program with its data as constants, whose values a guide can use."""
        return self, data

    def observed(self, data: PyTree) -> dict[str, ArrayLike]:
        """Returns the observed values by site."""
        return {}

    def log_likelihood(self, draws: dict[str, Any], data: PyTree) -> dict[str, Array]:
        """Returns the pointwise log likelihood of the data, one row per draw."""
        raise ValueError(f"{type(self).__name__} has no observed sites: no log likelihood")

    def predict(
        self, key: PRNGKeyArray, draws: dict[str, Any], data: PyTree, call: Call | None = None
    ) -> dict[str, Array]:
        """Draws new observations, one row per draw of the latent values.

        Args:
            key: a random key.
            draws: constrained values by site, one row per draw.
            data: the data.
            call: other arguments of the model; by default those that it was read with.
        """
        raise ValueError(f"{type(self).__name__} has no observed sites: nothing to predict")

    def draw_prior(self, key: PRNGKeyArray, number: int, data: PyTree) -> dict[str, Array]:
        """Draws all sites from the prior, those of new observations included."""
        raise ValueError(f"{type(self).__name__} has no prior to draw from")

    def dims(self, data: PyTree) -> dict[str, list[str]]:
        """Returns names of the axes of sites, for those that have any."""
        return {}

    def coords(self, data: PyTree) -> dict[str, Any]:
        """Returns labels along axes, by the axis' name."""
        return {}

    def constants(self, data: PyTree) -> dict[str, ArrayLike]:
        """Returns the arrays among the data that are not observed, by name."""
        return {}


class Problem(eqx.Module):
    """A posterior to infer: a program with its data, as a density over one vector.

    Made by `relbo.problem.read` from a NumPyro model with its arguments, or from a log density.
    It is a pytree whose leaves are the data, so that it can be an argument of a compiled
    function, which is reused for other data of the same shapes.
    """

    program: AbstractProgram = eqx.field(static=True)
    data: PyTree

    @property
    def sites(self) -> tuple[Site, ...]:
        return self.program.sites

    @property
    def size(self) -> int:
        """The number of unconstrained values."""
        return sum(site.size for site in self.sites)

    @property
    def start(self) -> Float[Array, " d"] | None:
        """Where inference should start, if the model says so."""
        position = self.program.start
        return None if position is None else self.ravel(position)

    @property
    def call(self) -> Call:
        """The arguments of the model."""
        return self.program.call(self.data)

    def with_constants(self) -> "Problem":
        """Returns the problem with its data as constants."""
        return Problem(*self.program.with_constants(self.data))

    def logdensity(self, vector: Float[Array, " d"]) -> Scalar:
        """Returns the log density of a vector of unconstrained values, with Jacobian terms."""
        return self.program.logdensity(self.unravel(vector), self.data)

    def logdensity_at(self, position: Position) -> Scalar:
        """Returns the log density of unconstrained values given by site."""
        return self.program.logdensity(position, self.data)

    def constrain(self, vector: Float[Array, " d"]) -> dict[str, Array]:
        """Returns the values of all latent and deterministic sites at a vector."""
        return self.program.constrain(self.unravel(vector), self.data)

    def unconstrain(self, values: Mapping[str, ArrayLike]) -> Float[Array, " d"]:
        """Returns the vector of unconstrained values of constrained ones."""
        return self.ravel(self.program.unconstrain(values, self.data))

    def observed(self) -> dict[str, ArrayLike]:
        """Returns the observed values by site."""
        return self.program.observed(self.data)

    def log_likelihood(self, draws: dict[str, Any]) -> dict[str, Array]:
        """Returns the pointwise log likelihood of the data, one row per draw."""
        return self.program.log_likelihood(draws, self.data)

    def predict(
        self, key: PRNGKeyArray, draws: dict[str, Any], call: Call | None = None
    ) -> dict[str, Array]:
        """Draws new observations, one row per draw of the latent values."""
        return self.program.predict(key, draws, self.data, call)

    def ravel(self, position: Position) -> Float[Array, " d"]:
        return jnp.concatenate([jnp.ravel(position[site.name]) for site in self.sites])

    def unravel(self, vector: Float[Array, " d"]) -> Position:
        position, start = {}, 0
        for site in self.sites:
            position[site.name] = jnp.reshape(vector[start : start + site.size], site.shape)
            start += site.size
        return position

    def coordinate_names(self) -> list[str]:
        """Returns a name for each entry of the vector, such as `theta[3]`."""
        return [name for site in self.sites for name in coordinate_names(*site)]


def coordinate_names(site: str, shape: tuple[int, ...]) -> list[str]:
    """Returns a name for each entry of a site, such as `theta[3]`."""
    if shape == ():
        return [site]
    return [f"{site}[{','.join(map(str, index))}]" for index in np.ndindex(*shape)]
