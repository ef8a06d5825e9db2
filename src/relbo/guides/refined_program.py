"""The program of a refined NumPyro guide: its base, its steps and its sites."""

import copy
from abc import abstractmethod
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, PRNGKeyArray, PyTree, Scalar
from numpyro import handlers
from numpyro.infer.autoguide import AutoGuide

from relbo.core.coordinates import LogDensity
from relbo.core.draws import Refined
from relbo.core.loop import RESULTS
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
from relbo.problem.call import Call, checked_call
from relbo.problem.numpyro import (
    constrain_site,
    draw_key,
    has_data,
    logdensity,
    outer_values,
)
from relbo.problem.traces import (
    Model,
    Sites,
    data_names,
    moved_dimension,
)


class AbstractRefinedProgram(AutoGuide):
    """A guide that runs a base guide, refines its draw and shows the result to NumPyro."""

    refinement: Refinement
    prefix: str
    model: Model
    freeze_model: bool = False
    """Whether the model's parameters are constants in the steps; see `refine`."""
    _forward_mode_differentiation: bool = False
    _has_density: bool
    _subsampling: Subsampling
    _data: Call | None = None
    """Arguments of the model for calls that lack data; see `with_data`."""
    _origin: "AbstractRefinedProgram | None" = None
    """The guide without these."""

    @abstractmethod
    def run_base(self, key: PRNGKeyArray, call: Call) -> dict[str, Sites]:
        """Returns the trace of one run of the base guide."""

    @abstractmethod
    def unpack(self, position: PyTree) -> dict[str, Array]:
        """Maps a position of the kernel to unconstrained values by site."""

    @abstractmethod
    def distributions(self, trace: dict[str, Sites]) -> dict[str, Any]:
        """Returns distributions over unconstrained values, from a run of the base guide."""

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
        if self.prototype_trace is None:
            self.set_up(*args, **kwargs)
        call = self._call_with_data(args, kwargs)
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
                draw_key()  # raises a clearer error where there is no seed handler
                raise
            raise ValueError(
                "the guide sees its model for the first time inside jax.jit, and needs values "
                "that are not known there: run svi.init, or the guide, outside of jax.jit once"
            ) from error

    def with_data(self, *args: Any, **kwargs: Any) -> "AbstractRefinedProgram":
        """Returns this guide with data for all calls that come without.

        The steps inside climb the density of the model, so that draws need its data. With them
        at hand, `sample_posterior(key, params)`, `median(params)` and NumPyro's `Predictive`
        work without data and for new inputs, and draw given the data that are kept. A call that
        has all observed sites uses its own data. `Fit.guide` keeps the data of the fit, unless
        they were cut into minibatches.

        Args:
            *args: the model's arguments, as in training.
            **kwargs: the model's keyword arguments.

        Returns:
            A copy of the guide; this one does not change.

        Example:
            >>> predictive = Predictive(model, guide=guide.with_data(x, y), params=params)
            >>> predictions = predictive(key, new_x)
        """
        kept = copy.copy(self)
        kept._data, kept._origin = checked_call(args, kwargs), self.without_data()
        return kept

    def without_data(self) -> "AbstractRefinedProgram":
        """Returns the guide from which `with_data` has made this one."""
        return self if self._origin is None else self._origin

    def particles(
        self, num_particles: int, *args: Any, **kwargs: Any
    ) -> tuple[dict[str, Array], Scalar]:
        """Returns the constrained values of K particles that move together, and their log q.

        Where the kernel's particles do not interact, they are K independent draws.
        """
        call = Call(args, kwargs)
        sampler, _ = sampler_from_sites(self.refinement, self.prefix)
        numbers = numbers_for(sampler, num_particles)
        refined, start = self._refine(draw_key(), sampler, call, **numbers)
        if start.fixed:
            raise ValueError(
                "interacting particles must move all latent sites, and the model subsamples "
                f"a plate with local ones next to {sorted(start.fixed)}"
            )
        values, log_dets = jax.vmap(self._constrained)(refined.position)
        total = sum(jnp.sum(log_det) for log_det in log_dets.values())
        return values, start.scale * (jnp.sum(refined.log_q) - total)

    def check_ready(self) -> None:
        """Raises `ValueError` where the guide has not seen its model."""
        if self.prototype_trace is None:
            raise ValueError("the guide has not seen its model yet: train it first")

    @property
    def prototype(self) -> dict[str, Sites]:
        """The trace of the model that the guide was set up with."""
        self.check_ready()
        return self.prototype_trace or {}

    def _call_with_data(self, args: tuple, kwargs: dict) -> Call:
        """Returns the arguments of the model, or those that are kept if these lack data."""
        call = Call(args, kwargs)
        if self._data is None:
            return call
        is_whole = (args or kwargs) and has_data(self.model, self.prototype, call)
        return call if is_whole else self._data

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
        observed = data_names(self.prototype)

        def logdensity_fn(position: PyTree) -> Scalar:
            values = {**start.fixed, **self.unpack(position)}
            # A local value stands for `scale` data points in the ELBO, but for one data point
            # in its own posterior.
            total = logdensity(self.model, call, key, values, given, observed)
            return total / start.scale

        return logdensity_fn

    def start(self, key: PRNGKeyArray, call: Call) -> Start:
        """Runs the base guide once."""
        run_key, fixed_key = jr.split(key)
        # NumPyro sees the parameters and plates of the base, but not its draws.
        with handlers.block(hide_fn=lambda site: site["type"] not in ("param", "plate")):
            with nullcontext() if self._forward_mode_differentiation else FiniteGradients():
                trace = self.run_base(run_key, call)
        return start_of(trace, self.distributions(trace), self.unpack, fixed_key)


def numbers_for(sampler: Refinement, number: int) -> dict[str, int]:
    """Returns the arguments of a refinement for a number of particles or independent draws."""
    return {"num_particles" if sampler.kernel.interacting else "num_draws": number}
