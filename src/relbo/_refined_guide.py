"""What refined NumPyro guides share."""

import copy
import math
import warnings
from abc import abstractmethod
from contextlib import ExitStack
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro
import numpyro.distributions as dist
from jaxtyping import Array, PRNGKeyArray, PyTree, Scalar
from numpyro import handlers
from numpyro.infer.autoguide import AutoGuide

from relbo._guide_start import Start, start_of
from relbo._program import (
    Call,
    Model,
    Sites,
    check_arguments,
    constrain,
    deterministic_values,
    draw_key,
    fresh,
    has_local_sites,
    latent_names,
    logdensity,
    moved_dimension,
    outer_values,
    played,
)
from relbo._sampler_sites import sampler_from_sites
from relbo._walk import RESULTS
from relbo.entropy import ChangeOfVariables
from relbo.refinement import LogDensity, Refined, Refinement
from relbo.validity import Bound, Subsampling, bound


class _LogQ(dist.Unit):
    """A factor in a guide, whose gradient counts: TraceGraph_ELBO drops that of NumPyro's."""

    reparametrized_params = ["log_factor"]  # noqa: RUF012


class AbstractRefinedGuide(AutoGuide):
    """What the refined guides share: a base is run, its draw refined, the result emitted."""

    refinement: Refinement
    prefix: str
    model: Model
    freeze_model: bool = False
    """Whether the model's parameters learn nothing through the steps; see `refine`."""
    _has_density: bool
    _subsampling: Subsampling

    @abstractmethod
    def _run_base(self, key: PRNGKeyArray, call: Call) -> dict[str, Sites]:
        """The trace of one run of the base guide."""

    @abstractmethod
    def _unpack(self, position: PyTree) -> dict[str, Array]:
        """Unconstrained values by site, from what the kernel moves."""

    @abstractmethod
    def _distributions(self, trace: dict[str, Sites]) -> dict[str, Any]:
        """Distributions over unconstrained values, from a run of the base guide."""

    @abstractmethod
    def _at_full_size(self) -> "AbstractRefinedGuide":
        """The same guide for draws of all local values, whatever the size of a minibatch."""

    @property
    def bound(self) -> Bound:
        """Whether the ELBO of this guide is a lower bound on the evidence, and why.

        All values of a minibatch count as moved together; under `PointwiseELBO` only those of
        one data point are.
        """
        self._check_ready()
        return bound(
            self.refinement.kernel,
            self.refinement.entropy,
            self.refinement.num_steps,
            dimension=moved_dimension(self._prototype),
            subsampling=self._subsampling,
            base_has_density=self._has_density,
        )

    def __call__(self, *args: Any, **kwargs: Any) -> dict[str, Array]:
        call = Call(args, kwargs)
        if self.prototype_trace is None:
            self._see_model(call)
        sampler, is_handed_in = sampler_from_sites(self.refinement, self.prefix)
        if sampler.kernel.interacting:
            if is_handed_in:
                raise ValueError(
                    f"particles of {type(sampler.kernel).__name__} move together, and this "
                    "loss runs the guide for one at a time, which would silently make it SGD: "
                    "use relbo.RefinedELBO(num_particles=K) as the loss and "
                    "guide.sample_posterior for draws"
                )
            # Only the parameters are asked for here: an optimiser is being set up.
            sampler = sampler._with_num_steps(0)
        refined, start = self._refine(draw_key(), sampler, call, None)
        return self._emit(refined, start)

    def particles(
        self, num_particles: int, *args: Any, **kwargs: Any
    ) -> tuple[dict[str, Array], Scalar]:
        """K particles moved together: their constrained values, and log q of them all."""
        call = Call(args, kwargs)
        sampler, _ = sampler_from_sites(self.refinement, self.prefix)
        refined, start = self._refine(draw_key(), sampler, call, num_particles)
        if start.fixed:
            raise ValueError(
                "particles that interact need all latent sites, and the model subsamples "
                f"a plate with local ones beside {sorted(start.fixed)}"
            )
        values, log_dets = {}, jnp.zeros(())
        for name, value in jax.vmap(self._unpack)(refined.position).items():
            values[name], log_det = jax.vmap(
                lambda v, name=name: constrain(self._prototype[name], v)
            )(value)
            log_dets = log_dets + jnp.sum(log_det)
        log_q = start.scale * (jnp.sum(refined.log_q) - log_dets)
        return values, log_q

    def sample_posterior(
        self,
        rng_key: PRNGKeyArray,
        params: dict[str, PyTree],
        *args: Any,
        sample_shape: tuple[int, ...] = (),
        num_steps: int | None = None,
        **kwargs: Any,
    ) -> dict[str, Array]:
        """Draws from the refined guide, all at once.

        Args:
            rng_key: a random key.
            params: the learned parameters, as `SVI.get_params` returns them.
            *args: the model's arguments: the sampler climbs its density.
            sample_shape: the shape of the draws.
            num_steps: more steps than in training, if one likes: the learned sampler goes on
                at temperature 1 with its last step size.
            **kwargs: the model's keyword arguments.

        Returns:
            Constrained draws by site, deterministic sites included.
        """
        number = math.prod(sample_shape)
        self._check_ready()
        call = Call(args, kwargs)
        check_arguments(self.model, self._prototype, params, call)
        longer = self._at_full_size()
        if num_steps is not None:
            longer = longer._extended(num_steps)
        # Compiled as one program; the arguments stay outside, since a model may look at them.
        draw = eqx.filter_jit(lambda key, params: longer._draw(key, params, number, call))
        try:
            with warnings.catch_warnings():
                # All local values are drawn, whatever size of minibatch the arguments ask for.
                warnings.filterwarnings("ignore", "subsample_size does not match")
                draws = draw(rng_key, params)
        except ValueError as error:
            if "shapes disagree" in str(error) and has_local_sites(self._prototype):
                raise ValueError(
                    "draws of all local latent values need all the data: hand in the model's "
                    f"arguments for the whole of it, not for a minibatch ({error})"
                ) from error
            raise
        return jax.tree.map(lambda x: x.reshape(sample_shape + x.shape[1:]), draws)

    def sample_chains(
        self,
        rng_key: PRNGKeyArray,
        params: dict[str, PyTree],
        *args: Any,
        num_chains: int,
        num_draws: int,
        every: int | None = None,
        **kwargs: Any,
    ) -> dict[str, Array]:
        """Draws along chains of the learned sampler, which goes on after its T steps.

        Nothing is accepted or rejected, so the draws have the bias of a finite step.

        Args:
            rng_key: a random key.
            params: the learned parameters.
            *args: the model's arguments.
            num_chains: how many chains; particles that interact are one for each.
            num_draws: how many draws to keep of each chain.
            every: how many steps lie between two of them; by default T.
            **kwargs: the model's keyword arguments.

        Returns:
            Constrained draws `[num_chains, num_draws, ...]` by latent site.
        """
        self._check_ready()
        call = Call(args, kwargs)
        check_arguments(self.model, self._prototype, params, call)
        every = max(1, self.refinement.num_steps) if every is None else every

        def draw(key: PRNGKeyArray, params: dict[str, PyTree]) -> dict[str, Array]:
            with played(key, params):
                return self._chains(call, num_chains, num_draws, every)

        return eqx.filter_jit(draw)(rng_key, params)

    def _chains(
        self, call: Call, num_chains: int, num_draws: int, every: int
    ) -> dict[str, Array]:
        base_key, model_key, run_key = jr.split(draw_key(), 3)
        sampler, _ = sampler_from_sites(self.refinement, self.prefix)
        start = self._start(base_key, call)
        path = sampler.run(
            run_key,
            start.base,
            self._density(start, call, model_key),
            num_draws=num_draws,
            every=every,
            num_particles=num_chains,
        )

        def values(position: PyTree) -> dict[str, Array]:
            free = self._unpack(position)
            return {name: constrain(self._prototype[name], free[name])[0] for name in free}

        return jax.vmap(jax.vmap(values))(path.position)

    def median(
        self, params: dict[str, PyTree], *args: Any, num_samples: int = 1000, **kwargs: Any
    ) -> dict[str, Array]:
        """Medians of the refined guide, from draws with a fixed key."""
        return self.quantiles(params, 0.5, *args, num_samples=num_samples, **kwargs)

    def quantiles(
        self,
        params: dict[str, PyTree],
        quantiles: Any,
        *args: Any,
        num_samples: int = 1000,
        **kwargs: Any,
    ) -> dict[str, Array]:
        """Quantiles of the refined guide, along the first axis, from draws with a fixed key."""
        draws = self.sample_posterior(
            jr.key(0), params, *args, sample_shape=(num_samples,), **kwargs
        )
        levels = jnp.asarray(quantiles)
        return {
            name: jnp.quantile(draws[name], levels, axis=0)
            for name in latent_names(self._prototype)
        }

    def share_folded(
        self,
        rng_key: PRNGKeyArray,
        params: dict[str, PyTree],
        *args: Any,
        num_samples: int = 1000,
        **kwargs: Any,
    ) -> Scalar:
        """The share of draws whose steps are seen to fold space, under a change of variables.

        Zero is what its bound asks for. Beyond that the plain account is too high, by the mean
        entropy of where a draw began given where it ended; the monotone one charges its folds,
        and counts draws that nearly fold.

        Args:
            rng_key: a random key.
            params: the learned parameters.
            *args: the model's arguments.
            num_samples: how many draws to look at.
            **kwargs: the model's keyword arguments.
        """
        self._check_ready()
        call = Call(args, kwargs)
        check_arguments(self.model, self._prototype, params, call)
        longer = self._at_full_size()

        def folded(key: PRNGKeyArray, params: dict[str, PyTree]) -> Scalar:
            with played(key, params):
                sampler, _ = sampler_from_sites(longer.refinement, longer.prefix)
                refined, _ = longer._refine(draw_key(), sampler, call, num_samples)
            total = sum(leaf.size for leaf in jax.tree.leaves(refined.position))
            entropy, dimension = sampler.entropy, total // refined.one_to_one.size
            if not (isinstance(entropy, ChangeOfVariables) and entropy.is_exact(dimension)):
                raise ValueError(
                    "share_folded looks at the Jacobians of an exact ChangeOfVariables, and "
                    f"there are none of {type(entropy).__name__} in {dimension} dimensions"
                )
            return jnp.mean(~refined.one_to_one)

        return eqx.filter_jit(folded)(rng_key, params)

    def _see_model(self, call: Call) -> None:
        try:
            self._setup_prototype(*call.args, **call.kwargs)
        except Exception as error:
            self.prototype_trace = None  # what is refused once is refused the next time too
            if not isinstance(error, jax.errors.ConcretizationTypeError):
                raise
            raise ValueError(
                "the guide sees its model for the first time inside jax.jit, and has to look "
                "at values that are not there yet: run svi.init, or the guide, outside of it "
                "once"
            ) from error

    def _check_ready(self) -> None:
        if self.prototype_trace is None:
            raise ValueError("the guide has not seen its model yet: train it first")

    @property
    def _prototype(self) -> dict[str, Sites]:
        self._check_ready()
        return self.prototype_trace or {}

    def _extended(self, num_steps: int) -> "AbstractRefinedGuide":
        longer = copy.copy(self)
        longer.refinement = self.refinement.extended(num_steps)
        return longer

    def _draw(
        self, key: PRNGKeyArray, params: dict[str, PyTree], number: int, call: Call
    ) -> dict[str, Array]:
        if self.refinement.kernel.interacting:
            guide_key, model_key = jr.split(key)
            model_keys = jr.split(model_key, number)
            with played(guide_key, params):
                latents, _ = self.particles(number, *call.args, **call.kwargs)
        else:
            keys = jax.vmap(jr.split)(jr.split(key, number))
            guide_keys, model_keys = keys[:, 0], keys[:, 1]
            latents = jax.vmap(lambda key: self._draw_one(key, params, call))(guide_keys)
        if not any(site["type"] == "deterministic" for site in self._prototype.values()):
            return latents
        computed = lambda key, latents: deterministic_values(
            self.model, key, call, {**fresh(params), **latents}
        )
        return {**latents, **jax.vmap(computed)(model_keys, latents)}

    def _draw_one(
        self, key: PRNGKeyArray, params: dict[str, PyTree], call: Call
    ) -> dict[str, Array]:
        with played(key, params):
            return self(*call.args, **call.kwargs)

    def _refine(
        self,
        key: PRNGKeyArray,
        sampler: Refinement,
        call: Call,
        num_particles: int | None,
    ) -> tuple[Refined, Start]:
        base_key, model_key, refine_key = jr.split(key, 3)
        start = self._start(base_key, call)
        logdensity_fn = self._density(start, call, model_key)
        refined = sampler(refine_key, start.base, logdensity_fn, num_particles=num_particles)
        # The log q of a walk that broke off belongs to no density: its weight is zero, as in
        # the engine's own objective, and an ELBO that met one is minus infinity.
        log_q = jnp.where(refined.result == RESULTS.successful, refined.log_q, jnp.inf)
        return refined._replace(log_q=log_q), start

    def _density(self, start: Start, call: Call, key: PRNGKeyArray) -> LogDensity:
        """The density that the kernel climbs."""
        outer = outer_values(self._prototype)
        if self.freeze_model:
            outer = jax.lax.stop_gradient(outer)
        given = {**outer, **start.plates}

        def logdensity_fn(position: PyTree) -> Scalar:
            values = {**start.fixed, **self._unpack(position)}
            # A local value stands for `scale` data points in the ELBO, but for one in its own
            # posterior.
            return logdensity(self.model, call, key, values, given) / start.scale

        return logdensity_fn

    def _start(self, key: PRNGKeyArray, call: Call) -> Start:
        run_key, fixed_key = jr.split(key)
        # Parameters and plates of the base are everybody's; its draws are not.
        with handlers.block(hide_fn=lambda site: site["type"] not in ("param", "plate")):
            trace = self._run_base(run_key, call)
        return start_of(trace, self._distributions(trace), self._unpack, fixed_key)

    def _emit(self, refined: Refined, start: Start) -> dict[str, Array]:
        """Hands the refined values to NumPyro as sites, and log q as a factor."""
        log_q = start.scale * refined.log_q + start.fixed_log_q
        factor = _LogQ(log_q)
        name = f"{self.prefix}_log_q"
        numpyro.sample(name, factor, obs=factor.sample(None), infer={"is_auxiliary": True})
        values = {**start.fixed, **self._unpack(refined.position)}
        plates = self._plates(start)
        result = {}
        for name in latent_names(self._prototype):
            site = self._prototype[name]
            value, log_det = constrain(site, values[name])
            delta = dist.Delta(value, log_density=-log_det, event_dim=site["fn"].event_dim)
            with ExitStack() as stack:
                for frame in site["cond_indep_stack"]:
                    if frame.name in plates:
                        stack.enter_context(plates[frame.name])
                result[name] = numpyro.sample(name, delta)
        return result

    def _plates(self, start: Start) -> dict[str, Any]:
        """The base's plates once more, with the indices that it drew."""
        sizes = {
            name: site["args"][0]
            for name, site in self._prototype.items()
            if site["type"] == "plate"
        }
        frames = {
            frame.name: frame
            for name in latent_names(self._prototype)
            for frame in self._prototype[name]["cond_indep_stack"]
        }
        plates = {}
        for name, frame in frames.items():
            size = sizes[name]
            subsample = len(start.plates[name]) if name in start.plates else frame.size
            with handlers.substitute(data=start.plates), handlers.block():
                plates[name] = numpyro.plate(
                    name, size, dim=frame.dim, subsample_size=subsample
                )
        return plates
