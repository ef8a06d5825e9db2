"""AutoRefined: NumPyro's autoguides with a sampler inside."""

import copy
import inspect
from functools import partial
from typing import Any

import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array, ArrayLike, PRNGKeyArray, PyTree
from numpyro import handlers
from numpyro.infer.autoguide import (
    AutoContinuous,
    AutoDAIS,
    AutoGuide,
    AutoGuideList,
    AutoNormal,
    AutoSemiDAIS,
)
from numpyro.infer.initialization import init_to_uniform

from relbo.core.bases import AbstractNormal
from relbo.core.fingerprint import name_of
from relbo.core.kernels import AbstractKernel
from relbo.core.random import KeyLike, as_key
from relbo.core.refinement import Refinement
from relbo.gaussian import DENSE_LIMIT
from relbo.guides.bases import base_of, unconstrained
from relbo.guides.bent_normal import AutoBentNormal
from relbo.guides.refined_guide import AbstractRefinedGuide, chosen_refinement
from relbo.guides.stretched_normal import AutoStretchedNormal
from relbo.guides.warm_start import can_start_warm, density_of, warm_params
from relbo.problem.call import Call
from relbo.problem.logdensity import LogDensityModel
from relbo.problem.refusals import (
    refuse_ambiguous_plates,
    refuse_discrete,
    refuse_dynamic_supports,
    refuse_hidden,
    refuse_without_latents,
)
from relbo.problem.traces import (
    Model,
    Sites,
    has_local_sites,
    initial_run,
    latent_names,
    run,
    subsampling,
)


def set_up(guide: AutoGuide, *args: Any, **kwargs: Any) -> None:
    """Sets up a guide that was never used, by its first call where that is the only way.

    A call outside of `jit` also compiles a small program for each of its operations.
    """
    if not isinstance(guide, AutoContinuous | AutoNormal):
        guide(*args, **kwargs)
    elif guide.prototype_trace is None:
        guide._setup_prototype(*args, **kwargs)


class AutoRefined(AbstractRefinedGuide):
    """An autoguide with T steps of a sampler inside.

    By default it takes annealed underdamped steps with the reverse-kernel account, in the
    whitened coordinates of a normal that may bend, T = 8, with a step size for each coordinate
    and step: a valid bound that contains NumPyro's AutoDAIS as a special case.

    Args:
        model: a NumPyro program.
        base: the guide to refine: a class or an instance of NumPyro's continuous autoguides
            (AutoNormal, AutoDiagonalNormal, AutoMultivariateNormal,
            AutoLowRankMultivariateNormal, AutoIAFNormal, AutoBNAFNormal, AutoDelta,
            AutoGuideList). By default `AutoBentNormal` up to 200 dimensions, which learns all
            correlations and follows funnels, and `AutoStretchedNormal` beyond; AutoNormal where
            the model has local latent values in a plate that is subsampled or where
            `create_plates` is given.
        refinement: the sampler and its account, a `Refinement`; by default `Refinement()`. Its
            default kernel gets a step size for each coordinate and step (for each step only
            where a plate with local latent values is subsampled).
        kernel, num_steps: shorthand for `refinement=Refinement(kernel, num_steps=num_steps)`.
        prefix: prefix of the names of all parameters.
        init_loc_fn: where the base starts, as in NumPyro's autoguides.
        forward_mode_differentiation: as in NumPyro's autoguides, for models with a
            `while_loop`; shorthand for `Refinement(execution=...)`. Train with
            `svi.update(..., forward_mode_differentiation=True)`.
        **base_options: options of the base's constructor, such as `init_scale`.

    It can be pickled where its base can; AutoIAFNormal, AutoLaplaceApproximation and guides of
    a blocked model (`handlers.block`) cannot, because of NumPyro.

    The sampler's parameters are ordinary `numpyro.param` sites: `auto_step_size_latent` (or one
    for each site of the base), `auto_damping`, `auto_temperature_increments` and so on.

    Example:
        >>> import numpyro, numpyro.distributions as dist
        >>> def model():
        ...     numpyro.sample("x", dist.Normal(0, 1))
        >>> guide = AutoRefined(model)
        >>> richer = AutoRefined(model, refinement=Refinement(num_steps=16))
    """

    def __init__(
        self,
        model: Model,
        *,
        base: type[AutoGuide] | AutoGuide | None = None,
        refinement: Refinement | None = None,
        kernel: AbstractKernel | None = None,
        num_steps: int | None = None,
        prefix: str = "auto",
        init_loc_fn: Any = None,
        forward_mode_differentiation: bool = False,
        **base_options: Any,
    ):
        misplaced = sorted(
            inspect.signature(Refinement).parameters.keys() & base_options.keys()
        )
        if misplaced:
            raise ValueError(
                f"{misplaced[0]}: this is an option of the refinement, not of the guide: use "
                f"refinement=relbo.Refinement({misplaced[0]}=...)"
            )
        refinement = chosen_refinement(
            refinement, kernel, num_steps, forward_mode_differentiation
        )
        if init_loc_fn is None:
            is_density = isinstance(model, LogDensityModel)
            init_loc_fn = model.init_loc_fn if is_density else init_to_uniform
        if base is None and "create_plates" in base_options:
            base = AutoNormal
        self._chooses_base = base is None
        base = AutoBentNormal if base is None else base
        self._make_base = partial(
            _make_base,
            model=model,
            prefix=prefix,
            init_loc_fn=init_loc_fn,
            options=base_options,
            is_forward_mode=refinement.execution.forward_mode_differentiation,
        )
        self.base = self._make_base(base)
        super().__init__(model, prefix=prefix, init_loc_fn=init_loc_fn)
        self._forward_mode_differentiation = refinement.execution.forward_mode_differentiation
        self._has_density = not _has_points(self.base)
        self.refinement = refinement if self._has_density else refinement.without_default_path()

    def __repr__(self) -> str:
        base = "chosen by the model" if self._base_is_open else type(self.base).__name__
        return f"AutoRefined({name_of(self.model)}, base={base}, {self.refinement!r})"

    @property
    def _base_is_open(self) -> bool:
        return self._chooses_base and self.prototype_trace is None

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        call = Call(args, kwargs)
        runs = [initial_run(self.model, call, seed) for seed in (0, 1)]
        refuse_discrete(runs[0])
        refuse_without_latents(runs[0])
        refuse_dynamic_supports(*runs)
        refuse_ambiguous_plates(runs[0])
        refuse_hidden(self.model, call)
        is_local = has_local_sites(runs[0])
        self._subsampling = subsampling(*runs)
        if self._chooses_base:
            kind = _suitable_base(runs[0])
            if type(self.base) is not kind:
                self.base = self._make_base(kind)
        try:
            # With the keys of the caller: the base starts where it would without steps.
            with handlers.block():
                set_up(self.base, *args, **kwargs)
        except ValueError as error:
            if "local latent variables" not in str(error):
                raise
            raise ValueError(
                f"base: {type(self.base).__name__} is a density of one vector with all latent "
                "values, and the model has local ones in a plate that is subsampled: use "
                "base=AutoNormal, or relbo.refine with a guide of your own"
            ) from error
        self.prototype_trace = self.base.prototype_trace
        if not is_local:
            self._size_kernel(call)

    def _size_kernel(self, call: Call) -> None:
        """Gives the default kernel a step size for each coordinate of the base."""
        if not self.refinement.kernel_is_default:
            return

        def position_of(key: PRNGKeyArray) -> PyTree:
            with handlers.block():
                base = base_of(self.distributions(self.run_base(key, call)))
            if self.refinement.space == "whitened" and isinstance(base, AbstractNormal):
                return base.noise
            return base.centre

        # Only the shapes are needed, and computing values compiles many small programs.
        position = jax.eval_shape(position_of, jr.key(0))
        # The arrays outlive this call, which may be the first one of a function under `jit`.
        with jax.ensure_compile_time_eval():
            self.refinement = self.refinement.with_step_sizes_like(position)

    def warm_start(self, key: KeyLike, *args: Any, **kwargs: Any) -> dict[str, ArrayLike]:
        """Fits a normal by natural gradients, for the parameters of a normal base.

        `relbo.fit` does this by itself. With NumPyro's SVI, give the result to `svi.init` or
        `svi.run`: training then starts at the optimum of a normal without steps.

        Args:
            key: a random key or an integer seed.
            *args: the model's arguments.
            **kwargs: the model's keyword arguments.

        Returns:
            Initial values of the base's parameters; none if no normal was found.

        Example:
            >>> import numpyro, numpyro.distributions as dist
            >>> def model():
            ...     numpyro.sample("x", dist.Normal(0, 1))
            >>> guide = AutoRefined(model)
            >>> init_params = guide.warm_start(0)
            >>> # svi.run(key, 5_000, init_params=init_params)
        """
        fit_key, init_key = jr.split(as_key(key))
        with handlers.block():
            sites = handlers.trace(handlers.seed(self, init_key)).get_trace(*args, **kwargs)
        params = {n: site["value"] for n, site in sites.items() if site["type"] == "param"}
        if not can_start_warm(self):
            raise ValueError(
                f"base: a warm start fits a normal, and {type(self.base).__name__} is none or "
                "has plates of its own: use the default base"
            )
        problem = density_of(self.model, Call(args, kwargs))
        found = None if problem is None else warm_params(fit_key, self, problem, params)
        return found or {}

    def run_base(self, key: PRNGKeyArray, call: Call) -> dict[str, Sites]:
        return run(handlers.seed(self.base, key), call)

    def _latent(self, part: AutoContinuous) -> str:
        """Returns the name of a guide's latent vector in the kernel's position."""
        return "latent" if part.prefix == self.prefix else f"{part.prefix}_latent"

    def at_full_size(self) -> "AutoRefined":
        full = copy.copy(self)
        full.base = copy.copy(self.base)
        sizes = self.base._prototype_frame_full_sizes
        full.base._prototype_frames = {
            name: frame._replace(size=sizes[name])
            for name, frame in self.base._prototype_frames.items()
        }
        return full

    def distributions(self, trace: dict[str, Sites]) -> dict[str, Any]:
        distributions, packed = {}, set()
        for part in _parts(self.base):
            if isinstance(part, AutoContinuous):
                distributions[self._latent(part)] = trace[f"_{part.prefix}_latent"]["fn"]
                packed |= set(part._init_locs)
        for name in latent_names(self.prototype):
            if name not in packed:
                distributions[name] = unconstrained(trace[name]["fn"], self.prototype[name])
        return distributions

    def unpack(self, position: PyTree) -> dict[str, Array]:
        values = dict(position)
        for part in _parts(self.base):
            if isinstance(part, AutoContinuous) and self._latent(part) in values:
                values.update(part._unpack_latent(values.pop(self._latent(part))))
        return values


def _suitable_base(trace: dict[str, Sites]) -> type[AutoGuide]:
    """Returns the class of base that is affordable for a model."""
    if has_local_sites(trace):
        return AutoNormal
    size = sum(np.size(trace[name]["value"]) for name in latent_names(trace))
    return AutoBentNormal if size <= DENSE_LIMIT else AutoStretchedNormal


def _parts(guide: AutoGuide) -> list[AutoGuide]:
    if isinstance(guide, AutoGuideList):
        return [part for inner in guide for part in _parts(inner)]
    return [guide]


def _has_points(guide: AutoGuide) -> bool:
    return any(
        not isinstance(part, AutoContinuous | AutoNormal)
        or type(part).__name__ == "AutoLaplaceApproximation"
        for part in _parts(guide)
    )


def _make_base(
    base: type[AutoGuide] | AutoGuide,
    *,
    model: Model,
    prefix: str,
    init_loc_fn: Any,
    options: dict[str, Any],
    is_forward_mode: bool,
) -> AutoGuide:
    kind = base if isinstance(base, type) else type(base)
    if not issubclass(kind, AutoGuide):
        raise ValueError(
            f"base: expected a class or an instance of NumPyro's autoguides, got {base!r}; for "
            "a guide of your own use relbo.refine(guide, model)"
        )
    if issubclass(kind, AutoDAIS | AutoSemiDAIS | AbstractRefinedGuide):
        raise ValueError(
            f"base: {kind.__name__} already has a sampler inside: use the guide that it starts "
            "from, such as AutoNormal, and more steps"
        )
    if isinstance(base, type):
        base = base(model, prefix=prefix, init_loc_fn=init_loc_fn, **options)
    elif options:
        raise ValueError(
            f"{sorted(options)}: base is an instance, so its options belong to its own "
            "constructor"
        )
    if is_forward_mode:
        base._forward_mode_differentiation = True
    return base
