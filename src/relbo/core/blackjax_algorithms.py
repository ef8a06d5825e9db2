"""Refinements as algorithms of BlackJAX: pairs and triples of pure functions."""
# pyright: reportMissingImports=false

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree, Scalar

from relbo.core.bases import AbstractBase, AbstractNormal, DiagonalNormal
from relbo.core.coordinates import LogDensity, coordinates, flat_logdensity, flattener
from relbo.core.kernels import AbstractKernel
from relbo.core.objective import refined_objective
from relbo.core.parameters import flatten_parameters, split_per_step
from relbo.core.refinement import Refinement


class RefinementState(NamedTuple):
    """Where a chain of a refinement is."""

    position: PyTree
    logdensity: Scalar
    """The log density at the position."""
    coordinates: Float[Array, " d"]
    """The position in the coordinates of the walk, as a vector."""
    score: Float[Array, " d"]
    """What the next step follows, in these coordinates."""
    memory: PyTree
    """What the kernel remembers, such as a momentum."""


class RefinementInfo(NamedTuple):
    """What happened in a step."""

    is_finite: Bool[Array, ""]
    """Whether the step led to a finite density and score; otherwise the chain stays."""


class RefinedVIState(NamedTuple):
    """A refined guide in training."""

    base: AbstractBase
    refinement: Refinement
    opt_state: PyTree


class RefinedVIInfo(NamedTuple):
    """What happened in an update."""

    objective: Scalar
    """The objective that is maximised; `refinement.bound` says whether it is an ELBO."""


def as_sampling_algorithm(
    refinement: Refinement, base: AbstractBase, logdensity_fn: LogDensity
) -> Any:
    """Returns the sampler inside a refinement as a `blackjax.SamplingAlgorithm`.

    A step is the last step that was learned, at temperature 1, in the coordinates of the
    refinement. Nothing is accepted or rejected, so the draws have the bias of the step size.

    Args:
        refinement: a trained refinement, whose particles do not interact.
        base: its trained base: `DiagonalNormal`, `MultivariateNormal`, or any base for steps in
            unconstrained space.
        logdensity_fn: log p(x, z) at one position.

    Returns:
        `SamplingAlgorithm(init, step)`, with `init(position, rng_key=None)`. Without a key a
        momentum starts at zero.

    Example:
        >>> import blackjax, jax, jax.numpy as jnp
        >>> base, refinement = DiagonalNormal(jnp.zeros(2)), Refinement(SGLD(0.1))
        >>> sampler = as_sampling_algorithm(refinement, base, lambda z: -jnp.sum(z**2))
        >>> state = sampler.init(jnp.zeros(2))
        >>> state, info = sampler.step(jax.random.key(0), state)
    """
    from blackjax import SamplingAlgorithm

    _refuse_interacting(refinement)
    there = coordinates(base, logdensity_fn, whiten=refinement.space == "whitened")
    ravel, unravel = flattener(there.base.centre)
    value_and_score = jax.value_and_grad(flat_logdensity(there.logdensity_fn, unravel))
    kernel = flatten_parameters(refinement.kernel, there.base.centre, interacting=False)
    changing, constant = split_per_step(kernel)
    kernel = eqx.combine(constant, jax.tree.map(lambda values: values[-1], changing))
    max_score = refinement.score_cap(there.base)

    def arrived(flat: Float[Array, " d"], memory: PyTree) -> RefinementState:
        value, score = value_and_score(flat)
        position, log_det = there.to_position(unravel(flat))
        if max_score is not None:
            score = max_score * jnp.tanh(score / max_score)
        return RefinementState(position, value - log_det, flat, score, memory)

    def init(position: PyTree, rng_key: PRNGKeyArray | None = None) -> RefinementState:
        flat = ravel(_to_walk(refinement, base, position))
        return arrived(flat, kernel.init(_noise(kernel, rng_key, flat), flat))

    def move(state: RefinementState, key: PRNGKeyArray) -> tuple[RefinementState, None]:
        noise = _noise(kernel, key, state.coordinates)
        left = kernel.depart(noise, state.coordinates, state.score, state.memory)
        there = arrived(left.position, left.memory)
        memory = kernel.arrive(there.coordinates, there.score, left.memory).memory
        return there._replace(memory=memory), None

    def step(
        rng_key: PRNGKeyArray, state: RefinementState
    ) -> tuple[RefinementState, RefinementInfo]:
        keys = jr.split(rng_key, kernel.evaluations_per_step)
        moved, _ = jax.lax.scan(move, state, keys)
        is_finite = jnp.isfinite(moved.logdensity) & jnp.all(jnp.isfinite(moved.score))
        kept = jax.tree.map(lambda new, old: jnp.where(is_finite, new, old), moved, state)
        return kept, RefinementInfo(is_finite)

    return SamplingAlgorithm(init, step)  # type: ignore[arg-type]


def as_vi_algorithm(
    logdensity_fn: LogDensity,
    optimizer: Any,
    refinement: Refinement | None = None,
    *,
    base_fn: Callable[[PyTree], AbstractBase] = lambda position: DiagonalNormal(position, 0.1),
    num_draws: int = 16,
) -> Any:
    """Returns the training of a refined base as a `blackjax.VIAlgorithm`.

    Args:
        logdensity_fn: log p(x, z) at one position.
        optimizer: an optax optimiser.
        refinement: what to train; by default `Refinement()`.
        base_fn: makes q0 of an initial position; by default a narrow `DiagonalNormal` there.
            All leaves of the base are trained.
        num_draws: number of draws per update.

    Returns:
        `VIAlgorithm(init, step, sample)`. The state has the fields `base` and `refinement`,
        which `as_sampling_algorithm` takes.

    Example:
        >>> import jax, jax.numpy as jnp, optax
        >>> guide = as_vi_algorithm(lambda z: -jnp.sum(z**2), optax.adam(0.02))
        >>> state = guide.init(jnp.zeros(2))
        >>> state, info = guide.step(jax.random.key(0), state)
        >>> draws = guide.sample(jax.random.key(1), state, 100)
    """
    from blackjax import VIAlgorithm

    chosen = Refinement() if refinement is None else refinement
    _refuse_interacting(chosen)

    def init(position: PyTree, rng_key: PRNGKeyArray | None = None) -> RefinedVIState:
        base = base_fn(position)
        return RefinedVIState(base, chosen, optimizer.init((base, chosen)))

    def step(
        rng_key: PRNGKeyArray, state: RefinedVIState
    ) -> tuple[RefinedVIState, RefinedVIInfo]:
        def loss(guide: tuple[AbstractBase, Refinement]) -> Scalar:
            base, refinement = guide
            found = refined_objective(
                rng_key, refinement, base, logdensity_fn, num_draws=num_draws
            )
            return -found.value

        guide = (state.base, state.refinement)
        value, gradient = jax.value_and_grad(loss)(guide)
        updates, opt_state = optimizer.update(gradient, state.opt_state, guide)
        base, refinement = eqx.apply_updates(guide, updates)
        return RefinedVIState(base, refinement, opt_state), RefinedVIInfo(-value)

    def sample(rng_key: PRNGKeyArray, state: RefinedVIState, num_samples: int = 1) -> PyTree:
        refined = state.refinement(rng_key, state.base, logdensity_fn, num_draws=num_samples)
        return refined.position

    return VIAlgorithm(init, step, sample)


def _refuse_interacting(refinement: Refinement) -> None:
    if refinement.kernel.interacting:
        raise ValueError(
            f"refinement: particles of {type(refinement.kernel).__name__} move together, and a "
            "chain of BlackJAX has one: use another kernel, such as relbo.Underdamped(0.1)"
        )


def _to_walk(refinement: Refinement, base: AbstractBase, position: PyTree) -> PyTree:
    """Returns a position in the coordinates of the walk."""
    if refinement.space == "unconstrained" or not isinstance(base, AbstractNormal):
        return position
    whiten = getattr(base, "whiten", None)
    if whiten is None:
        raise ValueError(
            f"base: {type(base).__name__} has no map from positions to whitened coordinates: "
            'use DiagonalNormal or MultivariateNormal, or Refinement(space="unconstrained")'
        )
    return whiten(position)


def _noise(kernel: AbstractKernel, key: PRNGKeyArray | None, like: Array) -> Array | None:
    """Draws what a kernel needs, or zeros without a key."""
    if kernel.randomness == "none":
        return None
    return jnp.zeros_like(like) if key is None else jr.normal(key, like.shape, like.dtype)
