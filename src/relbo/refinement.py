"""T steps of a kernel under an account."""

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, PRNGKeyArray, PyTree, Scalar

from relbo._parameters import flatten_parameters, is_traced, longest_schedule
from relbo._walk import RESULTS, Walk, walk
from relbo.annealing import Annealing
from relbo.bases import AbstractBase, AbstractNormal, StandardNormal
from relbo.entropy import AbstractEntropy, ReverseKernel
from relbo.kernels import AbstractKernel
from relbo.validity import Bound, bound, check_pair

Mode = Literal["full", "fast"]
Space = Literal["unconstrained", "whitened"]
LogDensity = Callable[[PyTree], Scalar]


class Refined(NamedTuple):
    """A refined draw; of K interacting particles, the positions have a leading axis K."""

    position: PyTree
    log_q: Scalar
    """The account's log q of the position (of all particles together where they interact)."""
    logdensity: Scalar | None
    """The log density at the position where a step has evaluated it already, else `None`."""
    result: RESULTS
    """How the walk ended. Where it failed, the position is the last good one."""
    one_to_one: Bool[Array, ""]
    """False where a change of variables was seen to fold space; in its monotone form, also
    where it nearly does."""


class Path(NamedTuple):
    """Draws along a run; of several particles, each leaf begins with their axis."""

    position: PyTree
    """After each draw's steps, along an axis."""
    result: RESULTS
    """How the walk ended. Where it failed, it stands at its last good position."""


class Refinement(eqx.Module):
    r"""Embeds T steps of a sampler in a base density.

    $$z_0 \sim q_0, \qquad z_t = K_\eta(z_{t-1}), \quad t = 1, \dots, T$$

    Its leaves (step sizes, damping, temperatures) are learned like any other parameter.

    Args:
        kernel: how one step moves.
        entropy: what stands for $\log q(z_T)$; the default is a valid account.
        num_steps: T; zero is exactly the base.
        mode: `"full"` differentiates through every step; `"fast"` takes each displacement for
            a constant, so that a step costs one gradient and the kernel's own parameters learn
            nothing.
        anneal: `True` for a path of learned temperatures from the base to the target, or an
            `Annealing`.
        remat: keeps only the positions for the backward pass and computes the steps again.
        unroll: lays the steps out one after another in place of a loop. Worth it for few steps
            of a dear density, such as one with large networks: what the backward pass needs is
            not copied any more. A cheap density becomes slower, and compilation takes longer.
        space: `"unconstrained"`, or `"whitened"` for steps in the base's own coordinates u with
            z = transform(u), which preconditions every kernel. A Dirac has no such coordinates
            and is walked as it is.
        max_step_size: a cap on the learned step size. By default a surrogate gets twice its
            initial step, since nothing else stops it from growing; a valid account gets none.
            (A step size that is traced at construction has no known initial value, and gets
            none either.)
        max_score: c for steps that follow $c \tanh(g / c)$, coordinate by coordinate, in place
            of the score g, in the space that is walked. Where a density narrows sharply a
            leapfrog is unstable, and a bounded force cannot throw a draw far. Every account
            counts the steps as they are taken, and the log density itself is untouched, so
            that a bound stays one. `None` (or infinity) for the score as it is.
        forward_mode_differentiation: take the score in forward mode, for a log density with
            primitives that reverse mode cannot pass, such as `while_loop`. It costs one pass a
            coordinate.

    Example:
        >>> import jax.numpy as jnp, jax.random as jr
        >>> refinement = Refinement(SGLD(0.1), num_steps=5)
        >>> base = DiagonalNormal(jnp.zeros(2))
        >>> refined = refinement(jr.key(0), base, lambda z: -jnp.sum(z**2))
    """

    kernel: AbstractKernel
    entropy: AbstractEntropy
    anneal: Annealing | None
    num_steps: int = eqx.field(static=True)
    mode: Mode = eqx.field(static=True)
    remat: bool = eqx.field(static=True)
    unroll: bool = eqx.field(static=True)
    space: Space = eqx.field(static=True)
    max_score: float | None = eqx.field(static=True)
    forward_mode_differentiation: bool = eqx.field(static=True)

    def __init__(
        self,
        kernel: AbstractKernel,
        entropy: AbstractEntropy | None = None,
        *,
        num_steps: int,
        mode: Mode = "full",
        anneal: bool | Annealing = False,
        remat: bool = False,
        unroll: bool = False,
        space: Space = "unconstrained",
        max_step_size: float | None = None,
        max_score: float | None = None,
        forward_mode_differentiation: bool = False,
    ):
        entropy = ReverseKernel() if entropy is None else entropy
        _check_instance("kernel", kernel, AbstractKernel, "Underdamped(0.1)")
        _check_instance("entropy", entropy, AbstractEntropy, "ReverseKernel()")
        _check_at_least("num_steps", num_steps, 0)
        _check_choice("mode", mode, ("full", "fast"))
        _check_choice("space", space, ("unconstrained", "whitened"))
        if max_score is not None and not max_score > 0:
            raise ValueError(f"max_score: expected a positive number or None, got {max_score}")
        check_pair(kernel, entropy)
        _check_schedule("a per-step parameter", longest_schedule(kernel), num_steps)
        if isinstance(anneal, Annealing):
            _check_schedule("anneal", anneal.num_steps, num_steps)
        elif anneal and num_steps > 0:
            anneal = Annealing(num_steps)
        is_surrogate = bound(kernel, entropy, num_steps).valid is False
        self.kernel = _cap_step_size(kernel, max_step_size, is_surrogate)
        self.entropy = entropy
        self.anneal = anneal if isinstance(anneal, Annealing) else None
        self.num_steps = num_steps
        self.mode = mode
        self.remat = remat
        self.unroll = unroll
        self.space = space
        self.max_score = None if max_score is None or math.isinf(max_score) else max_score
        self.forward_mode_differentiation = forward_mode_differentiation

    @property
    def bound(self) -> Bound:
        """Whether the objective is a lower bound, without subsampling and from a density."""
        return bound(self.kernel, self.entropy, self.num_steps)

    def extended(self, num_steps: int) -> "Refinement":
        """The same sampler for more steps: the last step size, at temperature 1."""
        if num_steps < self.num_steps:
            raise ValueError(
                f"num_steps: expected at least the {self.num_steps} trained, got {num_steps}"
            )
        return self._with_num_steps(num_steps)

    def _with_num_steps(self, num_steps: int) -> "Refinement":
        # A static field: neither tree_at nor replace (the constructor takes other arguments)
        # can set it.
        other = object.__new__(Refinement)
        for field, value in vars(self).items():
            object.__setattr__(other, field, value)
        object.__setattr__(other, "num_steps", num_steps)
        # Thousands of steps laid out would take hours to compile.
        object.__setattr__(other, "unroll", self.unroll and num_steps <= self.num_steps)
        return other

    def __call__(
        self,
        key: PRNGKeyArray,
        base: AbstractBase,
        logdensity_fn: LogDensity,
        *,
        num_particles: int | None = None,
    ) -> Refined:
        """Draws from the refined density.

        Args:
            key: a random key.
            base: q0.
            logdensity_fn: log p(x, z) at one position.
            num_particles: `None` for one draw; K for K of them along a leading axis. Kernels
                whose particles interact need it, and return one `log_q` for all.

        Returns:
            A `Refined`.
        """
        if self.kernel.interacting:
            if num_particles is None and self.num_steps > 0:
                raise ValueError(
                    f"num_particles: {type(self.kernel).__name__} moves particles together and "
                    "needs their number; a single one would silently be SGD"
                )
            return self._refine(key, base, logdensity_fn, num_particles)
        if num_particles is None:
            return self._refine(key, base, logdensity_fn, None)
        return jax.vmap(lambda k: self._refine(k, base, logdensity_fn, None))(
            jr.split(key, num_particles)
        )

    def run(
        self,
        key: PRNGKeyArray,
        base: AbstractBase,
        logdensity_fn: LogDensity,
        *,
        num_draws: int,
        every: int = 1,
        num_particles: int | None = None,
    ) -> Path:
        """Goes on with the sampler after its T steps: the last step size, temperature 1.

        Nothing is counted and nothing is accepted or rejected, so the draws have the bias of
        a finite step.

        Args:
            key: a random key.
            base: q0, where the particles start.
            logdensity_fn: log p(x, z) at one position.
            num_draws: how many positions to keep of each particle.
            every: how many steps lie between two of them.
            num_particles: as in a call.

        Returns:
            A `Path`.
        """
        _check_at_least("num_draws", num_draws, 1)
        _check_at_least("every", every, 1)
        longer = self.extended(self.num_steps + num_draws * every)
        kept = slice(self.num_steps + every - 1, None, every)
        one = lambda k: longer._run(k, base, logdensity_fn, kept, None)
        if not self.kernel.interacting:
            return (
                one(key)
                if num_particles is None
                else jax.vmap(one)(jr.split(key, num_particles))
            )
        if num_particles is None:
            raise ValueError(f"num_particles: {type(self.kernel).__name__} needs their number")
        return longer._run(key, base, logdensity_fn, kept, num_particles)

    def _run(
        self,
        key: PRNGKeyArray,
        base: AbstractBase,
        logdensity_fn: LogDensity,
        kept: slice,
        num_particles: int | None,
    ) -> Path:
        if self.space == "whitened" and isinstance(base, AbstractNormal):
            white = StandardNormal(base.noise)
            path = self._run_here(
                key, white, _whitened(base, logdensity_fn), kept, num_particles
            )
            each = jax.vmap(lambda u: base.transform(u)[0])
            return path._replace(position=_over_particles(each, num_particles)(path.position))
        return self._run_here(key, base, logdensity_fn, kept, num_particles)

    def _run_here(
        self,
        key: PRNGKeyArray,
        base: AbstractBase,
        logdensity_fn: LogDensity,
        kept: slice,
        num_particles: int | None,
    ) -> Path:
        base_key, walk_key = jr.split(key)
        draw = _over_particles(lambda k: base.sample(k)[0], num_particles)
        flat, unravel = _ravel(draw(_keys(base_key, num_particles)), base.centre)
        walked = self._walk(walk_key, flat, base.centre, base, logdensity_fn, keeps_path=True)
        assert walked.path is not None
        path = walked.path[kept]
        if num_particles is not None:
            path = jnp.swapaxes(path, 0, 1)
        return Path(_over_particles(jax.vmap(unravel), num_particles)(path), walked.result)

    def _refine(
        self,
        key: PRNGKeyArray,
        base: AbstractBase,
        logdensity_fn: LogDensity,
        num_particles: int | None,
    ) -> Refined:
        if self.num_steps == 0:
            position, log_q = _over_particles(base.sample, num_particles)(
                _keys(key, num_particles)
            )
            return Refined(position, _total(log_q), None, RESULTS.successful, jnp.array(True))
        if self.space == "whitened" and isinstance(base, AbstractNormal):
            return self._refine_whitened(key, base, logdensity_fn, num_particles)
        return self._refine_here(key, base, logdensity_fn, num_particles)

    def _refine_whitened(
        self,
        key: PRNGKeyArray,
        base: AbstractNormal,
        logdensity_fn: LogDensity,
        num_particles: int | None,
    ) -> Refined:
        white = self._refine_here(
            key, StandardNormal(base.noise), _whitened(base, logdensity_fn), num_particles
        )
        position, log_det = _over_particles(base.transform, num_particles)(white.position)
        log_det = _total(log_det)
        logdensity = None if white.logdensity is None else white.logdensity - log_det
        return white._replace(
            position=position, log_q=white.log_q - log_det, logdensity=logdensity
        )

    def _refine_here(
        self,
        key: PRNGKeyArray,
        base: AbstractBase,
        logdensity_fn: LogDensity,
        num_particles: int | None,
    ) -> Refined:
        base_key, walk_key, finish_key = jr.split(key, 3)
        start = _over_particles(lambda k: self.entropy.start(k, base), num_particles)
        position, log_q = start(_keys(base_key, num_particles))
        template = base.centre
        flat, unravel = _ravel(position, template)
        finish_keys = _keys(finish_key, num_particles)

        walked = self._walk(walk_key, flat, template, base, logdensity_fn)
        finish = _over_particles(
            lambda k, z, log_q: self.entropy.finish(k, base, z, log_q), num_particles
        )
        position, log_q = finish(finish_keys, _unravel(walked.position, unravel), log_q)
        reached = self.entropy.counts_reverse and self.mode == "full"
        return Refined(
            position,
            _total(log_q) + walked.log_q,
            walked.logdensity if reached else None,
            walked.result,
            walked.one_to_one,
        )

    def _walk(
        self,
        key: PRNGKeyArray,
        flat: Array,
        template: PyTree,
        base: AbstractBase,
        logdensity_fn: LogDensity,
        *,
        keeps_path: bool = False,
    ) -> Walk:
        _, unravel = ravel_pytree(template)

        def flat_logdensity(z: Array) -> Scalar:
            return _checked_scalar(logdensity_fn(unravel(z))).astype(z.dtype)

        def flat_base_logdensity(z: Array) -> Scalar:
            return base.log_prob(unravel(z)).astype(z.dtype)

        sampler = eqx.tree_at(
            lambda r: r.kernel,
            self,
            flatten_parameters(self.kernel, template, interacting=self.kernel.interacting),
        )
        run = lambda z: walk(
            sampler, key, z, flat_logdensity, flat_base_logdensity, keeps_path=keeps_path
        )
        if self.mode == "full" or keeps_path:
            return run(flat)
        # Each displacement is a constant, and so is every increment of the account.
        still = jax.lax.stop_gradient(flat)
        walked = jax.tree.map(_stop_gradient, run(still))
        return walked._replace(position=flat + (walked.position - still))


def _whitened(base: AbstractNormal, logdensity_fn: LogDensity) -> LogDensity:
    """The log density in the base's own coordinates."""

    def white_logdensity(noise: PyTree) -> Scalar:
        position, log_det = base.transform(noise)
        return logdensity_fn(position) + log_det

    return white_logdensity


def _check_at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name}: expected {least} or more, got {value}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: expected one of {choices}, got {value!r}")


def _check_instance(name: str, value: Any, kind: type, example: str) -> None:
    if not isinstance(value, kind):
        raise ValueError(f"{name}: expected an instance such as {example}, got {value!r}")


def _check_schedule(name: str, length: int, num_steps: int) -> None:
    if length > num_steps:
        raise ValueError(f"{name} has {length} entries for num_steps={num_steps}")


def _cap_step_size(
    kernel: AbstractKernel, max_step_size: float | None, is_surrogate: bool
) -> AbstractKernel:
    step_size = kernel.step_size
    leaves = jax.tree.leaves(step_size.value)
    if any(is_traced(leaf) for leaf in leaves):
        return kernel
    if max_step_size is None:
        if not is_surrogate or step_size.upper is not None:
            return kernel
        max_step_size = 2 * max(float(jnp.max(leaf)) for leaf in leaves)
    return eqx.tree_at(lambda k: k.step_size, kernel, step_size.with_upper(max_step_size))


def _checked_scalar(value: Any) -> Array:
    value = jnp.asarray(value)
    if value.shape != () or not jnp.issubdtype(value.dtype, jnp.floating):
        raise ValueError(
            "logdensity_fn: expected one real number at one position, got an array of shape "
            f"{value.shape} and type {value.dtype}; sum over data points and coordinates, and "
            "let relbo do the vectorising over draws"
        )
    return value


def _keys(key: PRNGKeyArray, num_particles: int | None) -> Array:
    return key if num_particles is None else jr.split(key, num_particles)


def _over_particles(fn: Callable, num_particles: int | None) -> Callable:
    return fn if num_particles is None else jax.vmap(fn)


def _total(values: Array) -> Scalar:
    """One particle's number, or the sum over particles that interact."""
    return jnp.sum(values)


def _ravel(position: PyTree, template: PyTree) -> tuple[Array, Callable[[Array], PyTree]]:
    """Ravels one position to `[d]`, or K of them to `[k, d]`."""
    _, unravel = ravel_pytree(template)
    one = jax.tree.map(jnp.shape, position) == jax.tree.map(jnp.shape, template)
    if one:
        return ravel_pytree(position)[0], unravel
    return jax.vmap(lambda z: ravel_pytree(z)[0])(position), unravel


def _unravel(flat: Array, unravel: Callable[[Array], PyTree]) -> PyTree:
    return unravel(flat) if flat.ndim == 1 else jax.vmap(unravel)(flat)


def _stop_gradient(leaf: Any) -> Any:
    return jax.lax.stop_gradient(leaf) if eqx.is_inexact_array(leaf) else leaf
