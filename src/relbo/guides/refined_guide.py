"""The common part of refined NumPyro guides."""

import copy
import math
import warnings
from abc import abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, PRNGKeyArray, PyTree, Scalar
from numpyro import handlers
from numpyro.infer.autoguide import AutoGuide

from relbo.core.accounts import ChangeOfVariablesAccount
from relbo.core.checks import check_instance
from relbo.core.coordinates import LogDensity
from relbo.core.draws import Refined
from relbo.core.kernels import AbstractKernel
from relbo.core.loop import RESULTS
from relbo.core.random import KeyLike, as_key
from relbo.core.refinement import Refinement
from relbo.core.validity import Bound, Subsampling, bound
from relbo.guides.bases import Start, start_of
from relbo.guides.sites import (
    FiniteGradients,
    add_log_q,
    sample_sites,
    sampler_from_sites,
    with_finite_gradients,
)
from relbo.problem.call import Call
from relbo.problem.numpyro import (
    constrain_site,
    deterministic_values,
    draw_key,
    fresh,
    logdensity,
    outer_values,
    substituted,
)
from relbo.problem.refusals import refuse_incomplete_call
from relbo.problem.traces import Model, Sites, has_local_sites, latent_names, moved_dimension


class AbstractRefinedGuide(AutoGuide):
    """A guide that runs a base guide, refines its draw and shows the result to NumPyro."""

    refinement: Refinement
    prefix: str
    model: Model
    freeze_model: bool = False
    """Whether the model's parameters are constants in the steps; see `refine`."""
    _forward_mode_differentiation: bool = False
    _has_density: bool
    _subsampling: Subsampling

    @abstractmethod
    def run_base(self, key: PRNGKeyArray, call: Call) -> dict[str, Sites]:
        """Returns the trace of one run of the base guide."""

    @abstractmethod
    def unpack(self, position: PyTree) -> dict[str, Array]:
        """Maps a position of the kernel to unconstrained values by site."""

    @abstractmethod
    def distributions(self, trace: dict[str, Sites]) -> dict[str, Any]:
        """Returns distributions over unconstrained values, from a run of the base guide."""

    @abstractmethod
    def at_full_size(self) -> "AbstractRefinedGuide":
        """Returns a guide that draws all local values, whatever the size of a minibatch."""

    @property
    def bound(self) -> Bound:
        """Whether the ELBO of this guide is a lower bound on the evidence, and why.

        All values of a minibatch are taken to move together; under `PointwiseELBO` only those
        of one data point do.
        """
        return bound(
            self.refinement.kernel,
            self.refinement.account,
            self.refinement.num_steps,
            dimension=moved_dimension(self.prototype),
            subsampling=self._subsampling,
            base_has_density=self._has_density,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Array]:
        call = Call(args, kwargs)
        if self.prototype_trace is None:
            self.set_up(*args, **kwargs)
        sampler, is_substituted = sampler_from_sites(self.refinement, self.prefix)
        if sampler.kernel.interacting:
            if is_substituted:
                raise ValueError(
                    f"particles of {type(sampler.kernel).__name__} move together, and this "
                    "loss runs the guide for one at a time, which would silently make it SGD: "
                    "use relbo.RefinedELBO(num_particles=K) as the loss and "
                    "guide.sample_posterior for draws"
                )
            # An optimiser is being set up, which needs the parameters only.
            sampler = Refinement(num_steps=0)
        refined, start = self._refine(draw_key(), sampler, call)
        add_log_q(f"{self.prefix}_log_q", start.scale * refined.log_q + start.fixed_log_q)
        values = {**start.fixed, **self.unpack(refined.position)}
        return sample_sites(self.prototype, values, start.plates)

    def set_up(self, *args: Any, **kwargs: Any) -> None:
        """Reads the model once; the first call of the guide does so too.

        Args:
            *args: the model's arguments.
            **kwargs: the model's keyword arguments.
        """
        try:
            self._setup_prototype(*args, **kwargs)
        except Exception as error:
            self.prototype_trace = None  # so that the next call is refused as well
            if not isinstance(error, jax.errors.ConcretizationTypeError):
                raise
            raise ValueError(
                "the guide sees its model for the first time inside jax.jit, and needs values "
                "that are not known there: run svi.init, or the guide, outside of jax.jit once"
            ) from error

    def particles(
        self, num_particles: int, *args: Any, **kwargs: Any
    ) -> tuple[dict[str, Array], Scalar]:
        """Returns the constrained values of K particles that move together, and their log q.

        Where the kernel's particles do not interact, they are K independent draws.
        """
        call = Call(args, kwargs)
        sampler, _ = sampler_from_sites(self.refinement, self.prefix)
        numbers = _numbers(sampler, num_particles)
        refined, start = self._refine(draw_key(), sampler, call, **numbers)
        if start.fixed:
            raise ValueError(
                "interacting particles must move all latent sites, and the model subsamples "
                f"a plate with local ones next to {sorted(start.fixed)}"
            )
        values, log_dets = jax.vmap(self._constrained)(refined.position)
        total = sum(jnp.sum(log_det) for log_det in log_dets.values())
        return values, start.scale * (jnp.sum(refined.log_q) - total)

    def sample_posterior(
        self,
        rng_key: KeyLike,
        params: dict[str, PyTree],
        *args: Any,
        sample_shape: tuple[int, ...] = (),
        num_steps: int | None = None,
        **kwargs: Any,
    ) -> dict[str, Array]:
        """Draws from the refined guide, all at once.

        Args:
            rng_key: a random key or an integer seed.
            params: the learned parameters, as `SVI.get_params` returns them.
            *args: the model's arguments: the sampler climbs its density.
            sample_shape: the shape of the draws.
            num_steps: number of steps if it is larger than in training: the learned sampler
                continues at temperature 1 with its last step size.
            **kwargs: the model's keyword arguments.

        Returns:
            Constrained draws by site, deterministic sites included.
        """
        number = math.prod(sample_shape)
        call = self._complete_call(params, args, kwargs)
        longer = copy.copy(self.at_full_size())
        if num_steps is not None:
            longer.refinement = self.refinement.extended(num_steps)
        # The arguments are not traced, because a model may branch on their values.
        draw = eqx.filter_jit(lambda key, params: longer._draw(key, params, number, call))
        try:
            with warnings.catch_warnings():
                # All local values are drawn, whatever size of minibatch the arguments name.
                warnings.filterwarnings("ignore", "subsample_size does not match")
                draws = draw(as_key(rng_key), params)
        except ValueError as error:
            if "shapes disagree" in str(error) and has_local_sites(self.prototype):
                raise ValueError(
                    "draws of all local latent values need all the data: pass the model's "
                    f"arguments for the whole data set, not for a minibatch ({error})"
                ) from error
            raise
        return jax.tree.map(lambda x: x.reshape(sample_shape + x.shape[1:]), draws)

    def sample_chains(
        self,
        rng_key: KeyLike,
        params: dict[str, PyTree],
        *args: Any,
        num_chains: int,
        num_draws: int,
        every: int | None = None,
        **kwargs: Any,
    ) -> dict[str, Array]:
        """Draws along chains of the learned sampler, which continues after its T steps.

        There is no accept-reject step, so the draws have the bias of a finite step size.

        Args:
            rng_key: a random key or an integer seed.
            params: the learned parameters.
            *args: the model's arguments.
            num_chains: number of chains; each interacting particle is one.
            num_draws: number of draws to keep per chain.
            every: number of steps between two of them; by default T.
            **kwargs: the model's keyword arguments.

        Returns:
            Constrained draws `[num_chains, num_draws, ...]` by latent site.
        """
        call = self._complete_call(params, args, kwargs)
        every = max(1, self.refinement.num_steps) if every is None else every

        def draw() -> dict[str, Array]:
            base_key, model_key, run_key = jr.split(draw_key(), 3)
            sampler, _ = sampler_from_sites(self.refinement, self.prefix)
            start = self.start(base_key, call)
            interacting = sampler.kernel.interacting
            path = sampler.run(
                run_key,
                start.base,
                self._density(start, call, model_key),
                num_draws=num_draws,
                every=every,
                num_chains=None if interacting else num_chains,
                num_particles=num_chains if interacting else None,
            )
            return jax.vmap(jax.vmap(self._constrained))(path.position)[0]

        return _compiled(draw, rng_key, params)

    def median(
        self, params: dict[str, PyTree], *args: Any, num_draws: int = 1000, **kwargs: Any
    ) -> dict[str, Array]:
        """Estimates the medians of the refined guide from draws with a fixed key."""
        return self.quantiles(params, 0.5, *args, num_draws=num_draws, **kwargs)

    def quantiles(
        self,
        params: dict[str, PyTree],
        quantiles: Any,
        *args: Any,
        num_draws: int = 1000,
        **kwargs: Any,
    ) -> dict[str, Array]:
        """Estimates quantiles, along the first axis, from draws with a fixed key."""
        draws = self.sample_posterior(
            jr.key(0), params, *args, sample_shape=(num_draws,), **kwargs
        )
        levels = jnp.asarray(quantiles)
        return {
            name: jnp.quantile(draws[name], levels, axis=0)
            for name in latent_names(self.prototype)
        }

    def share_folded(
        self,
        rng_key: KeyLike,
        params: dict[str, PyTree],
        *args: Any,
        num_draws: int = 1000,
        **kwargs: Any,
    ) -> Scalar:
        """Estimates the share of draws whose steps fold space, under a change of variables.

        The bound requires zero. Above zero the plain account is too high, by the mean entropy
        of where a draw began given where it ended; the monotone account charges folds, and
        counts draws that nearly fold.

        Args:
            rng_key: a random key or an integer seed.
            params: the learned parameters.
            *args: the model's arguments.
            num_draws: number of draws to examine.
            **kwargs: the model's keyword arguments.
        """
        call = self._complete_call(params, args, kwargs)
        longer = self.at_full_size()

        def folded() -> Scalar:
            sampler, _ = sampler_from_sites(longer.refinement, longer.prefix)
            numbers = _numbers(sampler, num_draws)
            refined, _ = longer._refine(draw_key(), sampler, call, **numbers)
            total = sum(leaf.size for leaf in jax.tree.leaves(refined.position))
            account, dimension = sampler.account, total // refined.one_to_one.size
            if not (
                isinstance(account, ChangeOfVariablesAccount) and account.is_exact(dimension)
            ):
                raise ValueError(
                    "share_folded needs the Jacobians of an exact ChangeOfVariablesAccount, "
                    f"and {type(account).__name__} has none in {dimension} dimensions"
                )
            return jnp.mean(~refined.one_to_one)

        return _compiled(folded, rng_key, params)

    def check_ready(self) -> None:
        """Raises `ValueError` where the guide has not seen its model."""
        if self.prototype_trace is None:
            raise ValueError("the guide has not seen its model yet: train it first")

    @property
    def prototype(self) -> dict[str, Sites]:
        """The trace of the model that the guide was set up with."""
        self.check_ready()
        return self.prototype_trace or {}

    def _draw(
        self, key: PRNGKeyArray, params: dict[str, PyTree], number: int, call: Call
    ) -> dict[str, Array]:

        def draw_one(key: PRNGKeyArray) -> dict[str, Array]:
            with substituted(key, params):
                return self(*call.args, **call.kwargs)

        if self.refinement.kernel.interacting:
            guide_key, model_key = jr.split(key)
            model_keys = jr.split(model_key, number)
            with substituted(guide_key, params):
                latents, _ = self.particles(number, *call.args, **call.kwargs)
        else:
            keys = jax.vmap(jr.split)(jr.split(key, number))
            guide_keys, model_keys = keys[:, 0], keys[:, 1]
            latents = jax.vmap(draw_one)(guide_keys)
        if not any(site["type"] == "deterministic" for site in self.prototype.values()):
            return latents
        computed = lambda key, latents: deterministic_values(
            self.model, key, call, {**fresh(params), **latents}
        )
        return {**latents, **jax.vmap(computed)(model_keys, latents)}

    def _complete_call(self, params: dict[str, PyTree], args: tuple, kwargs: dict) -> Call:
        """Returns the arguments of the model, refused if the steps need more than these."""
        call = Call(args, kwargs)
        refuse_incomplete_call(self.model, self.prototype, params, call)
        return call

    def _constrained(self, position: PyTree) -> tuple[dict[str, Array], dict[str, Array]]:
        """Returns the constrained values of a position, and log abs det, by site."""
        free = self.unpack(position)
        found = {name: constrain_site(self.prototype[name], free[name]) for name in free}
        values = {name: value for name, (value, _) in found.items()}
        return values, {name: log_det for name, (_, log_det) in found.items()}

    def _refine(
        self, key: PRNGKeyArray, sampler: Refinement, call: Call, **numbers: int
    ) -> tuple[Refined, Start]:
        base_key, model_key, refine_key = jr.split(key, 3)
        if not self._forward_mode_differentiation:
            sampler = with_finite_gradients(sampler)
        start = self.start(base_key, call)
        logdensity_fn = self._density(start, call, model_key)
        refined = sampler(refine_key, start.base, logdensity_fn, **numbers)
        # The log q of a walk that failed is not that of any density: its weight is zero, as in
        # `refined_objective`, and an ELBO that contains one is minus infinity.
        log_q = jnp.where(refined.result == RESULTS.successful, refined.log_q, jnp.inf)
        return refined._replace(log_q=log_q), start

    def _density(self, start: Start, call: Call, key: PRNGKeyArray) -> LogDensity:
        """Returns the log density that the kernel climbs."""
        outer = outer_values(self.prototype)
        if self.freeze_model:
            outer = jax.lax.stop_gradient(outer)
        elif not self._forward_mode_differentiation:
            outer = with_finite_gradients(outer)
        given = {**outer, **start.plates}

        def logdensity_fn(position: PyTree) -> Scalar:
            values = {**start.fixed, **self.unpack(position)}
            # A local value stands for `scale` data points in the ELBO, but for one data point
            # in its own posterior.
            return logdensity(self.model, call, key, values, given) / start.scale

        return logdensity_fn

    def start(self, key: PRNGKeyArray, call: Call) -> Start:
        """Runs the base guide once."""
        run_key, fixed_key = jr.split(key)
        # NumPyro sees the parameters and plates of the base, but not its draws.
        with handlers.block(hide_fn=lambda site: site["type"] not in ("param", "plate")):
            with nullcontext() if self._forward_mode_differentiation else FiniteGradients():
                trace = self.run_base(run_key, call)
        return start_of(trace, self.distributions(trace), self.unpack, fixed_key)


def _compiled(function: Callable[[], Any], key: KeyLike, params: dict[str, PyTree]) -> Any:
    """Calls a function of a guide with these parameters, compiled."""

    def run(key: PRNGKeyArray, params: dict[str, PyTree]) -> Any:
        with substituted(key, params):
            return function()

    return eqx.filter_jit(run)(as_key(key), params)


def _numbers(sampler: Refinement, number: int) -> dict[str, int]:
    """Returns the arguments of a refinement for a number of particles or independent draws."""
    return {"num_particles" if sampler.kernel.interacting else "num_draws": number}


def chosen_refinement(
    refinement: Refinement | None, kernel: AbstractKernel | None, num_steps: int | None
) -> Refinement:
    """Returns the given refinement, or the one that the shorthand options describe."""
    if refinement is None:
        return (
            Refinement(kernel) if num_steps is None else Refinement(kernel, num_steps=num_steps)
        )
    if kernel is not None or num_steps is not None:
        name = "num_steps" if kernel is None else "kernel"
        raise ValueError(
            f"{name}: expected refinement= or its shorthand kernel= and num_steps=, got both: "
            "use refinement=relbo.Refinement(kernel, num_steps=...)"
        )
    check_instance("refinement", refinement, Refinement, "relbo.Refinement(num_steps=8)")
    return refinement
