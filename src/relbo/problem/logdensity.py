"""The front end for a plain log density over a pytree."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array, PyTree, Scalar
from numpyro.distributions import ImproperUniform, constraints
from numpyro.infer import init_to_value

from relbo.problem.call import Keywords, refuse_arguments
from relbo.problem.problem import AbstractProgram, Position, Problem, Site


class LogDensityModel:
    """A log density over a pytree, which is a NumPyro program too, so that guides take it.

    Made by `model_from_logdensity`. Each leaf is a latent site on the real line, named after
    its path; the density enters as one factor.
    """

    def __init__(self, logdensity_fn: Callable[[PyTree], Scalar], position: PyTree):
        paths, self._structure = jax.tree_util.tree_flatten_with_path(position)
        if not paths:
            raise ValueError("position: expected a pytree with at least one array, got none")
        self._logdensity_fn = logdensity_fn
        names = [jax.tree_util.keystr(path, simple=True, separator="_") for path, _ in paths]
        self.start = {
            name or "position": jnp.asarray(leaf, jnp.result_type(float, leaf))
            for name, (_, leaf) in zip(names, paths, strict=True)
        }

    def __call__(self) -> None:
        values = {
            name: numpyro.sample(name, ImproperUniform(constraints.real, (), leaf.shape))
            for name, leaf in self.start.items()
        }
        numpyro.factor("logdensity", self.logdensity(values))

    def logdensity(self, values: Position) -> Scalar:
        """Returns the log density of values by site."""
        return self._logdensity_fn(self.to_position(values))

    def to_position(self, draws: Position) -> PyTree:
        """Returns draws, given by site, in the structure of the position."""
        return jax.tree.unflatten(self._structure, [draws[name] for name in self.start])

    def init_loc_fn(self, site: dict[str, Any] | None = None) -> Any:
        """Starts a guide at the position."""
        return init_to_value(site, values=self.start)


def model_from_logdensity(
    logdensity_fn: Callable[[PyTree], Scalar], position: PyTree
) -> LogDensityModel:
    """Makes a model of a log density, for `infer`, `fit` and every guide.

    Args:
        logdensity_fn: the log density at one position, up to a constant.
        position: any pytree of arrays; it gives the structure and the starting point.

    Returns:
        A NumPyro program without arguments, with one latent site per leaf.

    Example:
        >>> import jax.numpy as jnp
        >>> model = model_from_logdensity(lambda z: -jnp.sum(z**2), jnp.zeros(3))
        >>> guide = AutoRefined(model)
    """
    return LogDensityModel(logdensity_fn, position)


@dataclasses.dataclass(frozen=True)
class LogDensityProgram(AbstractProgram):
    """A log density without constraints."""

    model: LogDensityModel
    sites: tuple[Site, ...]

    @property
    def start(self) -> Position:
        return self.model.start

    def logdensity(self, position: Position, data: PyTree) -> Scalar:
        return self.model.logdensity(position)

    def constrain(self, position: Position, data: PyTree) -> dict[str, Array]:
        return {name: jnp.asarray(value) for name, value in position.items()}

    def unconstrain(self, values: Position, data: PyTree) -> Position:
        return values


def read_logdensity(
    model: LogDensityModel,
    args: tuple,
    kwargs: Keywords,
    params: dict[str, PyTree],
) -> Problem:
    """Reads a log density as a problem."""
    refuse_arguments(args, kwargs, "a log density takes none besides its position")
    sites = tuple(Site(name, leaf.shape) for name, leaf in model.start.items())
    return Problem(LogDensityProgram(model, sites), ())
