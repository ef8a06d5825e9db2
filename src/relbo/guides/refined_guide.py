"""Refined NumPyro guides: draws, chains and quantiles."""

import copy
import math
import warnings
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, PRNGKeyArray, PyTree, Scalar

from relbo._compiler import quick_filter_jit
from relbo.core.accounts import ChangeOfVariablesAccount
from relbo.core.checks import check_instance
from relbo.core.kernels import AbstractKernel
from relbo.core.loop import Execution
from relbo.core.random import KeyLike, as_key
from relbo.core.refinement import Refinement
from relbo.guides.refined_program import AbstractRefinedProgram, numbers_for
from relbo.guides.sites import sampler_from_sites
from relbo.problem.call import Call, checked_call
from relbo.problem.numpyro import deterministic_values, draw_key, fresh, substituted
from relbo.problem.refusals import refuse_incomplete_call
from relbo.problem.traces import has_local_sites


class AbstractRefinedGuide(AbstractRefinedProgram):
    """A guide that refines the draws of a base guide, and can be drawn from."""

    @abstractmethod
    def at_full_size(self) -> "AbstractRefinedGuide":
        """Returns a guide that draws all local values, whatever the size of a minibatch."""

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
        draw = quick_filter_jit(lambda key, params: longer._draw(key, params, number, call))
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
        """Estimates medians, also of deterministic sites, from draws with a fixed key."""
        return self.quantiles(params, 0.5, *args, num_draws=num_draws, **kwargs)

    def quantiles(
        self,
        params: dict[str, PyTree],
        quantiles: Any,
        *args: Any,
        num_draws: int = 1000,
        **kwargs: Any,
    ) -> dict[str, Array]:
        """Estimates quantiles, along the first axis, from draws with a fixed key.

        Those of a deterministic site are quantiles of its own draws. NumPyro's guides return
        its value at the quantiles of the latent sites, which differs where it is not monotone.
        """
        draws = self.sample_posterior(
            jr.key(0), params, *args, sample_shape=(num_draws,), **kwargs
        )
        levels = jnp.asarray(quantiles)
        return {name: jnp.quantile(draw, levels, axis=0) for name, draw in draws.items()}

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
            numbers = numbers_for(sampler, num_draws)
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
        call = self._call_with_data(*checked_call(args, kwargs))
        refuse_incomplete_call(self.model, self.prototype, params, call)
        return call


def _compiled(function: Callable[[], Any], key: KeyLike, params: dict[str, PyTree]) -> Any:
    """Calls a function of a guide with these parameters, compiled."""

    def run(key: PRNGKeyArray, params: dict[str, PyTree]) -> Any:
        with substituted(key, params):
            return function()

    return quick_filter_jit(run)(as_key(key), params)


def chosen_refinement(
    refinement: Refinement | None,
    kernel: AbstractKernel | None,
    num_steps: int | None,
    forward_mode_differentiation: bool = False,
) -> Refinement:
    """Returns the given refinement, or the one that the shorthand options describe."""
    execution = Execution(forward_mode_differentiation=forward_mode_differentiation)
    given = {
        "kernel": kernel,
        "num_steps": num_steps,
        "execution": execution if forward_mode_differentiation else None,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if refinement is None:
        return Refinement(**given)
    if given:
        name = next(iter(given))
        raise ValueError(
            f"{name}: expected refinement= or its shorthand, got both: use "
            f"refinement=relbo.Refinement({name}=...)"
        )
    check_instance("refinement", refinement, Refinement, "relbo.Refinement(num_steps=8)")
    return refinement
