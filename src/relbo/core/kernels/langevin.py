"""Gradient ascent and the overdamped Langevin family: one particle at a time."""

from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree, Scalar

from relbo.core.bases import LOG_2PI
from relbo.core.checks import check_positive
from relbo.core.kernels.contract import (
    AbstractDeterministicKernel,
    AbstractOneGradientKernel,
    Arrival,
    Departure,
    Position,
    Randomness,
)
from relbo.core.parameters import Positive, as_step_size


class SGD(AbstractDeterministicKernel):
    r"""Gradient ascent on the log density (paper, section 3.1).

    $$z' = z + \eta\, g(z)$$

    Args:
        step_size: $\eta$; a number, one number per coordinate (a pytree like the position), or
            either inside `PerStep`.

    Example:
        >>> kernel = SGD(step_size=0.01)
    """

    step_size: Positive = eqx.field(default=0.01, converter=as_step_size)
    interacting: ClassVar[bool] = False

    def drift(self, position: Position, score: Position) -> Position:
        return score


class SGLD(AbstractOneGradientKernel):
    r"""Langevin dynamics by Euler-Maruyama (paper, eq. 2, whose minus sign is a misprint).

    $$z' = z + \eta\, g(z) + \sqrt{2\eta}\, \xi, \qquad \xi \sim N(0, I)$$

    Args:
        step_size: $\eta$; as for `SGD`.

    References:
        Welling and Teh, Bayesian learning via stochastic gradient Langevin dynamics, 2011.
    """

    step_size: Positive = eqx.field(default=0.01, converter=as_step_size)
    randomness: ClassVar[Randomness] = "position"
    interacting: ClassVar[bool] = False

    @property
    def reversible(self) -> bool:
        return True

    def init(self, noise: Position, position: Position) -> PyTree:
        return jnp.zeros_like(position)  # the last move

    def depart(
        self, noise: Position, position: Position, score: Position, memory: PyTree
    ) -> Departure:
        move, log_forward = langevin_move(noise, score, self.step_size.value)
        return Departure(position + move, move, log_forward)

    def arrive(self, position: Position, score: Position, memory: PyTree) -> Arrival:
        return Arrival(memory, langevin_density(-memory, score, self.step_size.value))


class PSGLD(AbstractOneGradientKernel):
    r"""Langevin dynamics with a diagonal metric G (RMSprop-style, local or learned).

    $$z' = z + \eta\, G\, g(z) + \sqrt{2\eta\, G}\, \xi$$

    - `metric="rmsprop"`: $G = 1/(\epsilon + \sqrt{v})$ with $v$ the running mean of squared
      gradients, with the learned rate `decay`. It depends on the past of the path, so the step
      has no reverse kernel.
    - `metric="local"`: the same with $v = g(z)^2$, a function of the current point alone.
    - a number or a pytree like the position: a constant metric, learned like the step size.

    The divergence of G is omitted, as usual; a bound does not need an invariant step.

    Args:
        step_size: $\eta$; as for `SGD`.
        metric: one of the three above.
        decay: the decay rate of the running mean in (0, 1), used by `"rmsprop"`.
        damping: $\epsilon$, which keeps the metric finite where the gradient vanishes.

    References:
        Li, Chen, Carlson and Carin, Preconditioned stochastic gradient Langevin dynamics for
        deep neural networks, 2016.
    """

    step_size: Positive
    metric: Positive | None
    decay: Positive | None
    damping: float = eqx.field(static=True)
    randomness: ClassVar[Randomness] = "position"
    interacting: ClassVar[bool] = False

    def __init__(
        self,
        step_size: Any = 0.01,
        *,
        metric: Any = "rmsprop",
        decay: Any = 0.9,
        damping: float = 1e-1,
    ):
        if isinstance(metric, str) and metric not in ("rmsprop", "local"):
            raise ValueError(
                f'metric: expected "rmsprop", "local" or positive numbers, got {metric!r}'
            )
        check_positive("damping", damping)
        self.step_size = as_step_size(step_size)
        self.metric = None if isinstance(metric, str) else Positive.of(metric, name="metric")
        self.decay = (
            Positive.of(decay, upper=1.0, name="decay") if metric == "rmsprop" else None
        )
        self.damping = damping

    @property
    def reversible(self) -> bool:
        return self.decay is None

    def init(self, noise: Position, position: Position) -> PyTree:
        # The running mean, the number of gradients in it, and the last move.
        nowhere = jnp.zeros_like(position)
        return nowhere, jnp.zeros((), position.dtype), nowhere

    def depart(
        self, noise: Position, position: Position, score: Position, memory: PyTree
    ) -> Departure:
        average, seen, _ = memory
        if self.decay is not None:
            decay = self.decay.value
            average = decay * average + (1 - decay) * jnp.square(score)
            seen = decay * seen + (1 - decay)
        step_size = self.step_size.value * self._metric(score, average, seen)
        move, log_forward = langevin_move(noise, score, step_size)
        return Departure(position + move, (average, seen, move), log_forward)

    def arrive(self, position: Position, score: Position, memory: PyTree) -> Arrival:
        average, seen, move = memory
        if not self.reversible:
            return Arrival(memory, jnp.zeros((), position.dtype))
        step_size = self.step_size.value * self._metric(score, average, seen)
        return Arrival(memory, langevin_density(-move, score, step_size))

    def _metric(
        self, score: Position, average: Position, seen: Scalar
    ) -> Float[Array, " d"] | Scalar:
        if self.metric is not None:
            return self.metric.value
        if self.decay is None:
            return 1 / (self.damping + jnp.abs(score))
        # `seen` corrects for the start of the mean at zero, as in Adam.
        return 1 / (self.damping + jnp.sqrt(average / seen + 1e-12))


def langevin_move(
    noise: Position, score: Position, step_size: Array
) -> tuple[Position, Scalar]:
    """Returns a displacement ~ N(eta g, covariance 2 eta) from noise, and its log density."""
    move = step_size * score + jnp.sqrt(2 * step_size) * noise
    return move, _normal_logdensity(noise, 2 * step_size)


def langevin_density(move: Position, score: Position, step_size: Array) -> Scalar:
    """Returns the log density of a Langevin displacement from where the score is `score`."""
    noise = (move - step_size * score) / jnp.sqrt(2 * step_size)
    return _normal_logdensity(noise, 2 * step_size)


def _normal_logdensity(noise: Position, variance: Array) -> Scalar:
    return -0.5 * jnp.sum(jnp.square(noise) + LOG_2PI + jnp.log(variance))
