"""T steps of a kernel under an account."""

import dataclasses
import math
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, PRNGKeyArray, PyTree, Scalar

from relbo.core.accounts import AbstractAccount, ReverseKernelAccount
from relbo.core.annealing import Annealing
from relbo.core.bases import AbstractBase
from relbo.core.checks import check_choice, check_instance, check_integer, check_positive
from relbo.core.coordinates import (
    Coordinates,
    LogDensity,
    coordinates,
    flat_logdensity,
    flattener,
    for_each,
    repeat,
)
from relbo.core.default_kernel import DEFAULT_MAX_SCORE, cap_step_size, default_kernel
from relbo.core.draws import Path, Refined
from relbo.core.kernels import AbstractKernel
from relbo.core.loop import RESULTS, Execution, Walk, walk
from relbo.core.parameters import flatten_parameters, longest_schedule, replaced
from relbo.core.random import KeyLike, as_key
from relbo.core.validity import Bound, bound, check_pair

Mode = Literal["full", "fast"]
Space = Literal["unconstrained", "whitened"]


class Refinement(eqx.Module):
    r"""Embeds T steps of a sampler in a base density.

    $$z_0 \sim q_0, \qquad z_t = K_\eta(z_{t-1}), \quad t = 1, \dots, T$$

    Its leaves (step sizes, damping, temperatures) are learned like any other parameter. By
    default it takes underdamped steps along a learned path of temperatures, with the
    reverse-kernel account, in the whitened coordinates of the base: a valid bound, which
    contains NumPyro's AutoDAIS as a special case.

    Args:
        kernel: how one step moves; by default `Underdamped` with a learned size for each step.
            (`AutoRefined` gives this kernel a size for each coordinate and step.)
        account: what stands for $\log q(z_T)$; by default `ReverseKernelAccount`, a bound.
        num_steps: T; with zero steps the refined density is exactly the base.
        mode: `"full"` differentiates through every step; `"fast"` treats each displacement as
            a constant, so that a step costs one gradient and the parameters of the kernel are
            not learned.
        anneal: `True` for a path of learned temperatures from the base to the target, an
            `Annealing`, or `False` for none. By default a path where the account counts a
            reverse kernel and the base has a density.
        execution: how the steps are computed, which changes time and memory only.
        space: `"whitened"` for steps in the base's own coordinates u with z = transform(u),
            which preconditions every kernel, or `"unconstrained"`. A base without these
            coordinates, such as a Dirac, is walked in its own.
        max_step_size: a cap on the learned step size. By default 1 for the default kernel,
            twice the initial step size for a surrogate, which nothing else keeps from growing,
            and none otherwise. (A step size that is traced at construction gets none.)
        max_score: c for steps that follow $c \tanh(g / c)$, coordinate by coordinate, instead
            of the score g, in the coordinates of the walk. Where a density narrows sharply a
            leapfrog step is unstable, and a bounded force cannot throw a draw far. Every
            account counts the steps as they are taken and the log density is unchanged, so a
            bound stays a bound. In whitened coordinates the gradient of a draw is bounded, too:
            by 10 in every coordinate of its final position, and by 5 where it goes back through
            the steps. By default 20 for the default kernel in whitened coordinates and none
            otherwise; infinity switches it off.

    Example:
        >>> import jax.numpy as jnp
        >>> refinement = Refinement(SGLD(0.1), num_steps=5)
        >>> base = DiagonalNormal(jnp.zeros(2))
        >>> refined = refinement(0, base, lambda z: -jnp.sum(z**2), num_draws=10)
        >>> refined.position.shape
        (10, 2)
    """

    kernel: AbstractKernel
    account: AbstractAccount
    anneal: Annealing | None
    num_steps: int = eqx.field(static=True)
    mode: Mode = eqx.field(static=True)
    execution: Execution = eqx.field(static=True)
    space: Space = eqx.field(static=True)
    max_score: float | None = eqx.field(static=True)
    """As given: `None` for the automatic choice."""
    kernel_is_default: bool = eqx.field(static=True)
    anneal_is_default: bool = eqx.field(static=True)

    def __init__(
        self,
        kernel: AbstractKernel | None = None,
        account: AbstractAccount | None = None,
        *,
        num_steps: int = 8,
        mode: Mode = "full",
        anneal: bool | Annealing | None = None,
        execution: Execution = Execution(),
        space: Space = "whitened",
        max_step_size: float | None = None,
        max_score: float | None = None,
    ):
        check_integer("num_steps", num_steps, 0)
        check_choice("mode", mode, ("full", "fast"))
        check_choice("space", space, ("unconstrained", "whitened"))
        check_positive("max_step_size", max_step_size, optional=True)
        check_positive("max_score", max_score, optional=True)
        self.kernel_is_default = kernel is None
        self.anneal_is_default = anneal is None
        if kernel is None:
            kernel = default_kernel(num_steps, 0.0, max_step_size)
        if account is None:
            account = ReverseKernelAccount()
        check_instance("kernel", kernel, AbstractKernel, "Underdamped(0.1)")
        check_instance("account", account, AbstractAccount, "ReverseKernelAccount()")
        check_pair(kernel, account)
        _check_schedule("a per-step parameter", longest_schedule(kernel), num_steps)
        if not self.kernel_is_default:
            is_surrogate = bound(kernel, account, num_steps).valid is False
            kernel = cap_step_size(kernel, max_step_size, is_surrogate=is_surrogate)
        self.kernel = kernel
        self.account = account
        self.anneal = _annealing(anneal, num_steps, account)
        self.num_steps = num_steps
        self.mode = mode
        self.execution = execution
        self.space = space
        self.max_score = max_score

    def __repr__(self) -> str:
        kernel, account = type(self.kernel).__name__, type(self.account).__name__
        return (
            f"Refinement({kernel}, {account}, num_steps={self.num_steps}, mode={self.mode!r}, "
            f"anneal={self.anneal is not None}, space={self.space!r})"
        )

    @property
    def bound(self) -> Bound:
        """Whether the objective is a lower bound, without subsampling and from a density."""
        return bound(self.kernel, self.account, self.num_steps)

    def extended(self, num_steps: int) -> "Refinement":
        """Returns the same sampler with more steps: the last step size, at temperature 1."""
        check_integer("num_steps", num_steps, 0)
        if num_steps < self.num_steps:
            raise ValueError(
                f"num_steps: expected at least the {self.num_steps} trained, got {num_steps}"
            )
        # Schedules that are shorter than the walk keep their last entry. Thousands of unrolled
        # steps would take hours to compile.
        unroll = self.execution.unroll and num_steps <= self.num_steps
        execution = dataclasses.replace(self.execution, unroll=unroll)
        return replaced(self, num_steps=num_steps, execution=execution)

    def with_step_sizes_like(self, position: PyTree) -> "Refinement":
        """Gives the default kernel a step size for each step and each entry of `position`.

        Other kernels stay as they are.
        """
        if not self.kernel_is_default:
            return self
        kernel = default_kernel(self.num_steps, position, self.kernel.step_size.upper)
        return replaced(self, kernel=kernel)

    def without_default_path(self) -> "Refinement":
        """Drops an annealed path that was chosen by default.

        For a base without a density. A path that was given stays, and is refused there.
        """
        return replaced(self, anneal=None) if self.anneal_is_default else self

    def __call__(
        self,
        key: KeyLike,
        base: AbstractBase,
        logdensity_fn: LogDensity,
        *,
        num_draws: int | None = None,
        num_particles: int | None = None,
    ) -> Refined:
        """Draws from the refined density.

        Args:
            key: a random key or an integer seed.
            base: q0.
            logdensity_fn: log p(x, z) at one position.
            num_draws: number of independent draws, along a leading axis; `None` for one draw
                without that axis.
            num_particles: for kernels whose particles interact, the number that moves together,
                along the next axis of the positions. Each draw is then one system of particles
                with one `log_q`.

        Returns:
            A `Refined`.
        """
        self._check_numbers(num_draws, num_particles, needs_particles=self.num_steps > 0)
        sampler = self if base.has_density else self.without_default_path()
        refine = lambda k: sampler._refine(k, base, logdensity_fn, num_particles)
        return repeat(refine, as_key(key), num_draws)

    def run(
        self,
        key: KeyLike,
        base: AbstractBase,
        logdensity_fn: LogDensity,
        *,
        num_draws: int,
        every: int = 1,
        num_chains: int | None = None,
        num_particles: int | None = None,
    ) -> Path:
        """Continues with the sampler after its T steps: the last step size, temperature 1.

        The draws come without log q and are not accepted or rejected, so they have the bias of
        a finite step size.

        Args:
            key: a random key or an integer seed.
            base: q0, where the chains start.
            logdensity_fn: log p(x, z) at one position.
            num_draws: number of positions to keep per chain.
            every: number of steps between two of them.
            num_chains: number of independent chains, along a leading axis; `None` for one chain
                without that axis.
            num_particles: for kernels whose particles interact, the number that moves together
                in a chain, along the next axis.

        Returns:
            A `Path`.
        """
        check_integer("num_draws", num_draws, 1)
        check_integer("every", every, 1)
        self._check_numbers(num_chains, num_particles, name="num_chains")
        sampler = self if base.has_density else self.without_default_path()
        longer = sampler.extended(self.num_steps + num_draws * every)
        kept = slice(self.num_steps + every - 1, None, every)
        run = lambda k: longer._run(k, base, logdensity_fn, kept, num_particles)
        return repeat(run, as_key(key), num_chains)

    def _check_numbers(
        self,
        number: int | None,
        num_particles: int | None,
        *,
        name: str = "num_draws",
        needs_particles: bool = True,
    ) -> None:
        check_integer(name, number, 1, optional=True)
        check_integer("num_particles", num_particles, 1, optional=True)
        kernel = type(self.kernel).__name__
        if not self.kernel.interacting and num_particles is not None:
            raise ValueError(
                f"num_particles: particles of {kernel} do not interact: use {name}"
            )
        if self.kernel.interacting and num_particles is None and needs_particles:
            raise ValueError(
                f"num_particles: {kernel} moves particles together and needs their number; a "
                "single one would silently be SGD"
            )

    def _run(
        self,
        key: PRNGKeyArray,
        base: AbstractBase,
        logdensity_fn: LogDensity,
        kept: slice,
        num_particles: int | None,
    ) -> Path:
        there = coordinates(base, logdensity_fn, whiten=self.space == "whitened")
        base_key, walk_key = jr.split(key)
        start = repeat(lambda k: there.base.sample(k)[0], base_key, num_particles)
        walked = self._walk(walk_key, start, there, num_particles, keeps_path=True)
        assert walked.path is not None
        path = walked.path[kept]
        if num_particles is not None:
            path = jnp.swapaxes(path, 0, 1)
        _, unravel = flattener(there.base.centre)
        to_position = jax.vmap(lambda flat: there.to_position(unravel(flat))[0])
        return Path(for_each(to_position, num_particles)(path), walked.result)

    def _refine(
        self,
        key: PRNGKeyArray,
        base: AbstractBase,
        logdensity_fn: LogDensity,
        num_particles: int | None,
    ) -> Refined:
        if self.num_steps == 0:
            position, log_q = repeat(base.sample, key, num_particles)
            return Refined(position, jnp.sum(log_q), None, RESULTS.successful, jnp.array(True))
        there = coordinates(base, logdensity_fn, whiten=self.space == "whitened")
        base_key, walk_key, finish_key = jr.split(key, 3)
        start, log_q = repeat(
            lambda k: self.account.start(k, there.base), base_key, num_particles
        )
        walked = self._walk(walk_key, start, there, num_particles)
        _, unravel = flattener(there.base.centre)

        def finish(
            key: PRNGKeyArray, flat: Array, log_q: Scalar
        ) -> tuple[PyTree, Scalar, Scalar]:
            end, log_q = self.account.finish(key, there.base, unravel(flat), log_q)
            position, log_det = there.to_position(end)
            return position, log_q, log_det

        keys = repeat(lambda k: k, finish_key, num_particles)
        found = for_each(finish, num_particles)(keys, walked.position, log_q)
        position, (log_q, log_det) = found[0], map(jnp.sum, found[1:])
        has_value = self.account.counts_reverse and self.mode == "full"
        return Refined(
            position,
            log_q + walked.log_q - log_det,
            walked.logdensity - log_det if has_value else None,
            walked.result,
            walked.one_to_one,
        )

    def _walk(
        self,
        key: PRNGKeyArray,
        start: PyTree,
        there: Coordinates,
        num_particles: int | None,
        *,
        keeps_path: bool = False,
    ) -> Walk:
        template = there.base.centre
        ravel, unravel = flattener(template)
        flat = for_each(ravel, num_particles)(start)
        kernel = flatten_parameters(self.kernel, template, interacting=self.kernel.interacting)
        run = lambda z: walk(
            replaced(self, kernel=kernel),
            key,
            z,
            flat_logdensity(there.logdensity_fn, unravel),
            flat_logdensity(there.base.log_prob, unravel),
            max_score=self.score_cap(there.base),
            keeps_path=keeps_path,
        )
        if self.mode == "full" or keeps_path:
            return run(flat)
        # Each displacement is a constant, and so is every increment of the account.
        still = jax.lax.stop_gradient(flat)
        numbers, others = eqx.partition(run(still), eqx.is_inexact_array)
        walked = eqx.combine(jax.lax.stop_gradient(numbers), others)
        return walked._replace(position=flat + (walked.position - still))

    def score_cap(self, base: AbstractBase) -> float | None:
        """Returns the bound c on the score that steps from a base follow, `None` without."""
        if self.max_score is not None:
            return None if math.isinf(self.max_score) else self.max_score
        is_whitened = self.space == "whitened" and base.has_density
        return DEFAULT_MAX_SCORE if self.kernel_is_default and is_whitened else None


def _annealing(
    anneal: bool | Annealing | None, num_steps: int, account: AbstractAccount
) -> Annealing | None:
    if isinstance(anneal, Annealing):
        _check_schedule("anneal", anneal.num_steps, num_steps)
        return anneal
    is_wanted = account.counts_reverse if anneal is None else anneal
    return Annealing(num_steps) if is_wanted and num_steps > 0 else None


def _check_schedule(name: str, length: int, num_steps: int) -> None:
    if length > num_steps:
        raise ValueError(f"{name} has {length} entries for num_steps={num_steps}")
