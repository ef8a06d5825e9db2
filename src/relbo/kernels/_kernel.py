"""The one contract of every kernel."""

from abc import abstractmethod
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Scalar

from relbo._parameters import Positive

Position = Float[Array, " d"] | Float[Array, "k d"]
Randomness = Literal["none", "position", "momentum"]


class Departure(NamedTuple):
    """A point left behind: where the step goes and what it takes along."""

    position: Position
    memory: PyTree
    log_forward: Scalar
    """The log density of the move, 0 for a kernel without noise."""


class Arrival(NamedTuple):
    """A point arrived at: what the kernel remembers of the way there."""

    memory: PyTree
    log_reverse: Scalar
    """The log density of the move back, 0 for a kernel without noise."""


class AbstractKernel(eqx.Module):
    """How one step moves a particle (or K of them together).

    A step from z to z' is told in two halves, so that whoever runs the kernel evaluates the
    gradient exactly once a point and hands it to both: `depart` leaves z knowing the score
    there, `arrive` completes the step at z' knowing the score there. The standard normal noise
    is handed to it too, in the shape of the position (`None` to a kernel without randomness).
    So a kernel is a plain function: it never computes a gradient of the log density, draws
    nothing, and never knows about annealing, entropy accounts or differentiation modes.

    Positions are vectors `[d]`, or `[k, d]` for kernels whose particles interact; pytrees are
    ravelled before and unravelled after.
    """

    step_size: eqx.AbstractVar[Positive]
    randomness: eqx.AbstractClassVar[Randomness]
    """What is random in a step: nothing, the position itself, or a momentum beside it."""
    interacting: eqx.AbstractClassVar[bool]
    """Whether the step of one particle depends on the others."""

    @property
    @abstractmethod
    def reversible(self) -> bool:
        """Whether the density of the move back is known from the point arrived at alone."""

    @property
    @abstractmethod
    def evaluations_per_step(self) -> int:
        """How many gradients a step takes (more than one only for several leapfrogs)."""

    @abstractmethod
    def init(self, noise: Any, position: Position) -> PyTree:
        """The memory before the first step."""

    @abstractmethod
    def depart(
        self, noise: Any, position: Position, score: Position, memory: PyTree
    ) -> Departure:
        """Leaves `position`, where the log density has the gradient `score`."""

    @abstractmethod
    def arrive(self, position: Position, score: Position, memory: PyTree) -> Arrival:
        """Completes the step at `position`, where the log density has the gradient `score`."""


class AbstractOneGradientKernel(AbstractKernel):
    """A kernel whose step takes one gradient."""

    @property
    def evaluations_per_step(self) -> int:
        return 1


class AbstractDeterministicKernel(AbstractOneGradientKernel):
    """A kernel that moves along a field: no noise, no memory, nothing to do on arrival."""

    randomness: ClassVar[Randomness] = "none"

    @property
    def reversible(self) -> bool:
        return False

    @abstractmethod
    def drift(self, position: Position, score: Position) -> Position:
        """The field that a step follows for `step_size`."""

    def init(self, noise: None, position: Position) -> PyTree:
        return None

    def depart(
        self, noise: None, position: Position, score: Position, memory: PyTree
    ) -> Departure:
        moved = position + self.step_size.value * self.drift(position, score)
        return Departure(moved, memory, jnp.zeros((), position.dtype))

    def arrive(self, position: Position, score: Position, memory: PyTree) -> Arrival:
        return Arrival(memory, jnp.zeros((), position.dtype))
