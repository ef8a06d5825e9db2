"""Learnable positive numbers, for all steps or for each step."""

import dataclasses
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PyTree

_Module = TypeVar("_Module", bound=eqx.Module)


class PerStep(eqx.Module):
    """Marks a value as having one entry per refinement step, along a leading axis.

    Args:
        values: a pytree whose leaves have a leading axis of at most `num_steps`; a shorter
            schedule keeps its last entry.

    Example:
        >>> import jax.numpy as jnp
        >>> kernel = SGLD(step_size=PerStep(jnp.array([0.1, 0.05, 0.01])))
    """

    values: PyTree

    def __init__(self, values: PyTree):
        self.values = jax.tree.map(jnp.asarray, values)
        lengths = {leaf.shape[:1] for leaf in jax.tree.leaves(self.values)}
        if len(lengths) != 1 or () in lengths or (0,) in lengths:
            raise ValueError(
                "PerStep(values): every leaf needs the same leading axis of at least one step, "
                f"got shapes {[leaf.shape for leaf in jax.tree.leaves(self.values)]}"
            )


class Positive(eqx.Module):
    r"""A learnable number in $(0, \infty)$, or in $(0, \text{upper})$.

    The leaf that an optimiser sees is unconstrained: $\log v$, or
    $\operatorname{logit}(v / \text{upper})$ where there is an upper end. No update can make a
    step size negative, and updates are relative to the size of the number.

    Args:
        value: a number, a pytree of the position's structure (one number per coordinate), or
            either inside `PerStep`.
        upper: the upper end of the interval, or `None`.
        name: the name of the argument in error messages.
    """

    raw: PyTree
    upper: float | None = eqx.field(static=True)
    per_step: bool = eqx.field(static=True)
    is_known: bool = eqx.field(static=True)
    """Whether `raw` is the value itself: it is used, and not learned."""

    def __init__(self, value: Any, *, upper: float | None = None, name: str = "value"):
        self.per_step = isinstance(value, PerStep)
        self.upper = upper
        self.is_known = False
        values = value.values if isinstance(value, PerStep) else value
        _check_inside(values, upper, name)
        self.raw = jax.tree.map(self._unconstrain, values)

    @classmethod
    def of(cls, value: Any, *, upper: float | None = None, name: str = "value") -> "Positive":
        """Returns `value` itself if it is a `Positive`, and a new one around it otherwise."""
        return value if isinstance(value, Positive) else cls(value, upper=upper, name=name)

    @property
    def value(self) -> PyTree:
        return jax.tree.map(self._constrain, self.raw)

    @property
    def num_steps(self) -> int | None:
        """The length of the schedule, `None` where all steps share one value."""
        return jax.tree.leaves(self.raw)[0].shape[0] if self.per_step else None

    def with_value(self, value: PyTree) -> "Positive":
        """Returns the parameter with another value, of the structure of `self.value`."""
        return eqx.tree_at(lambda p: p.raw, self, jax.tree.map(self._unconstrain, value))

    def known(self, value: PyTree) -> "Positive":
        """Returns the parameter at a value like `self.value`, to be used and not learned."""
        return replaced(self, raw=value, is_known=True)

    def with_upper(self, upper: float) -> "Positive":
        """Returns the parameter with the same value and an upper end."""
        value = PerStep(self.value) if self.per_step else self.value
        return Positive(value, upper=upper)

    def _constrain(self, raw: Array) -> Array:
        if self.is_known:
            return raw
        return jnp.exp(raw) if self.upper is None else self.upper * jax.nn.sigmoid(raw)

    def _unconstrain(self, value: Any) -> Array:
        value = jnp.asarray(value, dtype=jnp.result_type(float, value))
        if self.upper is None:
            return jnp.log(value)
        return jnp.log(value) - jnp.log(self.upper - value)


def replaced(module: _Module, **changes: Any) -> _Module:
    """Returns a copy of a module with other values of some fields, without its constructor."""
    copied = object.__new__(type(module))
    for field in dataclasses.fields(module):
        value = changes.get(field.name, getattr(module, field.name))
        object.__setattr__(copied, field.name, value)
    return copied


def as_step_size(value: Any) -> Positive:
    return Positive.of(value, name="step_size")


def _check_inside(values: PyTree, upper: float | None, name: str) -> None:
    leaves = jax.tree.leaves(values)
    if not leaves:
        raise ValueError(f"{name}: expected a number or a pytree of numbers, got {values!r}")
    end = jnp.inf if upper is None else upper
    for leaf in leaves:
        # A traced value cannot be checked: its logarithm would be NaN, which a refinement
        # reports as a named failure.
        if is_traced(leaf):
            continue
        # NumPy, because under a transformation jax.numpy would trace even this.
        leaf = np.asarray(leaf)
        if not np.all((leaf > 0) & (leaf < end)):
            raise ValueError(f"{name}: expected numbers in (0, {end}), got {leaf}")


def is_traced(leaf: Any) -> bool:
    return isinstance(leaf, Tracer)


def is_parameter(node: Any) -> bool:
    return isinstance(node, Positive)


def flatten_parameters(tree: PyTree, position: PyTree, *, interacting: bool) -> PyTree:
    """Flattens per-coordinate parameters in the order in which `position` is ravelled.

    They become vectors `[d]`, or `[1, d]` for the `[k, d]` of interacting particles.
    """

    def flatten(node: Any) -> Any:
        is_one_number = lambda raw: isinstance(raw, Array) and raw.ndim == int(node.per_step)
        if not is_parameter(node) or is_one_number(node.raw):
            return node
        _check_structure(node, position)

        def ravel(raw: PyTree) -> Array:
            flat = ravel_pytree(raw)[0]
            return flat[None] if interacting else flat

        raw = jax.vmap(ravel)(node.raw) if node.per_step else ravel(node.raw)
        return eqx.tree_at(lambda p: p.raw, node, raw)

    return jax.tree.map(flatten, tree, is_leaf=is_parameter)


def with_known_values(tree: PyTree) -> PyTree:
    """Computes the values of all parameters once, instead of in every step of a walk."""
    known = lambda node: node.known(node.value) if is_parameter(node) else node
    return jax.tree.map(known, tree, is_leaf=is_parameter)


def split_per_step(tree: PyTree) -> tuple[PyTree, PyTree]:
    """Splits `tree` into the parameters with one value per step and the rest."""

    def changes(node: Any) -> bool:
        return is_parameter(node) and node.per_step

    return eqx.partition(tree, jax.tree.map(changes, tree, is_leaf=is_parameter))


def longest_schedule(tree: PyTree) -> int:
    """Returns the length of the longest per-step schedule in `tree`, 0 if there is none."""
    nodes = jax.tree.leaves(tree, is_leaf=is_parameter)
    return max((node.num_steps or 0 for node in nodes if is_parameter(node)), default=0)


def _check_structure(node: Positive, position: PyTree) -> None:
    skip = int(node.per_step)
    found = jax.tree.map(lambda leaf: jnp.shape(leaf)[skip:], node.raw)
    wanted = jax.tree.map(jnp.shape, position)
    if found != wanted:
        raise ValueError(
            "a per-coordinate parameter of the kernel must have the structure and the shapes "
            f"of the position: expected {wanted}, got {found}"
        )
