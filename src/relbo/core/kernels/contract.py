"""The contract of all kernels."""

from abc import abstractmethod
from typing import Any, ClassVar, Literal, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Scalar

from relbo.core.parameters import Positive

Position = Float[Array, " d"] | Float[Array, "k d"]
Randomness = Literal["none", "position", "momentum"]


class Departure(NamedTuple):
    """The first half of a step: where it goes and what the kernel remembers."""

    position: Position
    memory: PyTree
    log_forward: Scalar
    """The log density of the move, 0 for a kernel without noise."""


class Arrival(NamedTuple):
    """The second half of a step: what the kernel remembers at the new point."""

    memory: PyTree
    log_reverse: Scalar
    """The log density of the reverse move, 0 for a kernel without noise."""


class AbstractKernel(eqx.Module):
    """How one step moves a particle (or K of them together).

    A step from z to z' has two halves, so that the loop evaluates the gradient exactly once per
    point and passes it to both: `depart` leaves z given the score there, and `arrive` completes
    the step at z' given the score there. The loop also passes standard normal noise in the
    shape of the position (`None` to a kernel without randomness). A kernel is therefore a plain
    function: it never computes a gradient of the log density, draws no random numbers, and does
    not know about annealing, accounts or differentiation modes.

    A kernel with noise charges for the reverse of its move *before* rounding: it remembers the
    displacement, or the momentum, instead of where the step began. Adding a displacement and
    rounding maps the grid of floating-point numbers one-to-one onto itself (up to ties and to
    changes of the exponent), so a bound stays a bound where steps are too small for the
    precision. The difference of two rounded positions would say that such steps were never
    taken, after their noise has been charged.

    Positions are vectors `[d]`, or `[k, d]` for kernels whose particles interact; pytrees are
    ravelled before and unravelled after.
    """

    step_size: eqx.AbstractVar[Positive]
    randomness: eqx.AbstractClassVar[Randomness]
    """What is random in a step: nothing, the position itself, or an auxiliary momentum."""
    interacting: eqx.AbstractClassVar[bool]
    """Whether the step of one particle depends on the others."""

    @property
    @abstractmethod
    def reversible(self) -> bool:
        """Whether the density of the reverse move depends on its starting point alone."""

    @property
    @abstractmethod
    def evaluations_per_step(self) -> int:
        """Number of gradients per step (more than one only for several leapfrogs)."""

    @abstractmethod
    def init(self, noise: Any, position: Position) -> PyTree:
        """Returns the memory before the first step."""

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
    """A kernel that moves along a field, without noise or memory."""

    randomness: ClassVar[Randomness] = "none"

    @property
    def reversible(self) -> bool:
        return False

    @abstractmethod
    def drift(self, position: Position, score: Position) -> Position:
        """Returns the field that a step follows for `step_size`."""

    def init(self, noise: None, position: Position) -> PyTree:
        return None

    def depart(
        self, noise: None, position: Position, score: Position, memory: PyTree
    ) -> Departure:
        moved = position + self.step_size.value * self.drift(position, score)
        return Departure(moved, memory, jnp.zeros((), position.dtype))

    def arrive(self, position: Position, score: Position, memory: PyTree) -> Arrival:
        return Arrival(memory, jnp.zeros((), position.dtype))
