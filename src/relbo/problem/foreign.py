"""The front end for a log density with its gradient that is computed outside of JAX."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, Scalar

from relbo.problem.call import ByIdentity, Keywords, refuse_arguments
from relbo.problem.problem import AbstractProgram, Position, Problem, Site
from relbo.problem.unconstrained import UnconstrainedModel


@runtime_checkable
class ForeignDensity(Protocol):
    """What relbo needs of a density from elsewhere; the models of BridgeStan have it.

    The name of a number is `theta`; the entries of a vector are `theta.1`, `theta.2`, those of
    a matrix `theta.1.1`, `theta.2.1`, in any order. If there are fewer unconstrained than
    constrained values, as for a simplex, a method `param_unc_names` names the unconstrained
    ones. A method `log_density_hessian`, which returns the log density, its gradient and its
    Hessian, is used where a guide is differentiated through steps.
    """

    def param_unc_num(self) -> int:
        """Returns the number of unconstrained values."""
        ...

    def log_density_gradient(self, theta_unc: np.ndarray, /) -> tuple[float, np.ndarray]:
        """Returns the log density of unconstrained values and its gradient.

        The density includes the Jacobian terms of the constraints. A `RuntimeError` means
        that it is zero there.
        """
        ...

    def param_constrain(self, theta_unc: np.ndarray, /) -> np.ndarray:
        """Returns the vector of constrained values."""
        ...

    def param_names(self) -> Sequence[str]:
        """Returns the names of the constrained values."""
        ...


class Layout(NamedTuple):
    """Where the entries of a site are in a vector."""

    name: str
    shape: tuple[int, ...]
    places: tuple[int, ...]
    """In row-major order of the entries."""


@dataclasses.dataclass(frozen=True)
class ForeignProgram(AbstractProgram):
    """A density from elsewhere, called on the host."""

    source: ByIdentity
    unconstrained: tuple[Layout, ...]
    constrained: tuple[Layout, ...]

    @property
    def model(self) -> UnconstrainedModel:
        return UnconstrainedModel(self)

    @property
    def sites(self) -> tuple[Site, ...]:
        return tuple(Site(layout.name, layout.shape) for layout in self.unconstrained)

    def logdensity(self, position: Position, data: PyTree) -> Scalar:
        return host_logdensity(self.source, self._vector(position))

    def constrain(self, position: Position, data: PyTree) -> dict[str, Array]:
        vector = self._vector(position)
        number = sum(len(layout.places) for layout in self.constrained)
        shape = jax.ShapeDtypeStruct((number,), vector.dtype)
        (values,) = _on_host(_constrain, self.source, (shape,), vector)
        return {
            name: values[np.array(places)].reshape(shape)
            for name, shape, places in self.constrained
        }

    def unconstrain(self, values: Position, data: PyTree) -> Position:
        raise ValueError(
            "a density from elsewhere has no map from constrained to unconstrained values"
        )

    def _vector(self, position: Position) -> Float[Array, " n"]:
        """Returns the values in the order of the density's own vector."""
        values = [jnp.ravel(position[layout.name]) for layout in self.unconstrained]
        places = np.concatenate([layout.places for layout in self.unconstrained])
        return jnp.concatenate(values)[np.argsort(places)]


def read_foreign(
    model: ForeignDensity,
    args: tuple,
    kwargs: Keywords,
    params: dict[str, PyTree],
) -> Problem:
    """Reads a density from elsewhere as a problem."""
    refuse_arguments(args, kwargs, "a density from elsewhere takes none besides its position")
    names = list(getattr(model, "param_unc_names", model.param_names)())
    if len(names) != model.param_unc_num():
        raise ValueError(
            f"model: {len(names)} names for {model.param_unc_num()} unconstrained values; add "
            "a method param_unc_names that names these"
        )
    constrained = _layouts(list(model.param_names()))
    return Problem(ForeignProgram(ByIdentity(model), _layouts(names), constrained), ())


def _layouts(names: list[str]) -> tuple[Layout, ...]:
    """Groups names such as `theta.1.2` by site."""
    entries: dict[str, dict[tuple[int, ...], int]] = {}
    for place, name in enumerate(names):
        site, *index = name.split(".")
        entries.setdefault(site, {})[tuple(map(int, index))] = place
    layouts = []
    for site, places in entries.items():
        shape = tuple(int(size) for size in np.max(list(places), axis=0))
        in_order = tuple(place for _, place in sorted(places.items()))
        if len(in_order) != np.prod(shape):
            raise ValueError(f"model: the names of '{site}' do not fill an array: {names}")
        layouts.append(Layout(site, shape, in_order))
    return tuple(layouts)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def host_logdensity(source: ByIdentity, vector: Float[Array, " n"]) -> Scalar:
    """Returns `log_density_gradient` of an object as a differentiable function."""
    return _value_and_score(source, vector)[0]


@host_logdensity.defjvp
def _host_logdensity_jvp(source: ByIdentity, primals: tuple, tangents: tuple) -> tuple:
    value, score = _value_and_score(source, *primals)
    return value, jnp.dot(score, tangents[0])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _value_and_score(
    source: ByIdentity, vector: Float[Array, " n"]
) -> tuple[Scalar, Float[Array, " n"]]:
    shapes = (jax.ShapeDtypeStruct((), vector.dtype), vector)
    return _on_host(_evaluate, source, shapes, vector)


@_value_and_score.defjvp
def _value_and_score_jvp(source: ByIdentity, primals: tuple, tangents: tuple) -> tuple:
    (vector,), (tangent,) = primals, tangents
    value, score = _value_and_score(source, vector)
    shape = jax.ShapeDtypeStruct((len(vector), len(vector)), vector.dtype)
    # Not called where nothing depends on it, as in the fast mode of a refinement.
    (hessian,) = _on_host(_hessian, source, (shape,), vector)
    return (value, score), (jnp.dot(score, tangent), jnp.dot(hessian, tangent))


def _on_host(function: Callable, source: ByIdentity, shapes: tuple, vector: Array) -> tuple:
    """Calls a function of the density and of one vector; a batch of vectors is one callback."""

    def rows(points: Any) -> list[np.ndarray]:
        points = np.asarray(points, float)
        # A search for modes goes far out, where values overflow and are rejected.
        with np.errstate(all="ignore"):
            found = [
                function(source.value, row) for row in points.reshape(-1, points.shape[-1])
            ]
            return [
                np.reshape(column, (*points.shape[:-1], *shape.shape)).astype(shape.dtype)
                for column, shape in zip(zip(*found, strict=True), shapes, strict=True)
            ]

    return tuple(jax.pure_callback(rows, list(shapes), vector, vmap_method="expand_dims"))


def _evaluate(model: Any, row: np.ndarray) -> tuple[float, np.ndarray]:
    try:
        value, gradient = model.log_density_gradient(row)
    except RuntimeError:
        return -np.inf, np.zeros_like(row)
    return value, np.array(gradient)


def _hessian(model: Any, row: np.ndarray) -> tuple[np.ndarray]:
    second = getattr(model, "log_density_hessian", None)
    if second is None:
        raise ValueError(
            "this density has no second derivatives (log_density_hessian), and differentiation "
            "through steps needs them: use relbo.infer without a guide, or "
            'relbo.Refinement(mode="fast")'
        )
    return (np.array(second(row)[2]),)


def _constrain(model: ForeignDensity, row: np.ndarray) -> tuple[np.ndarray]:
    return (np.array(model.param_constrain(row)),)
