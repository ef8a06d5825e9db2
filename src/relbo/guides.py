"""NumPyro guides with samplers inside."""

import copy
from collections import OrderedDict
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, PRNGKeyArray, PyTree
from numpyro import handlers
from numpyro.infer.autoguide import (
    AutoContinuous,
    AutoDAIS,
    AutoDiagonalNormal,
    AutoGuide,
    AutoGuideList,
    AutoNormal,
    AutoSemiDAIS,
)
from numpyro.infer.initialization import init_to_uniform

from relbo._guide_bases import base_of, is_point, unconstrained
from relbo._parameters import PerStep, Positive
from relbo._program import (
    Call,
    LogDensityModel,
    Model,
    Sites,
    check_match,
    check_plates,
    discrete_latents,
    draw_key,
    dynamic_supports,
    has_local_sites,
    initial_run,
    latent_names,
    run,
    subsampling,
)
from relbo._refined_guide import AbstractRefinedGuide
from relbo.annealing import Annealing
from relbo.bases import AbstractNormal
from relbo.entropy import AbstractEntropy, ReverseKernel
from relbo.kernels import AbstractKernel, Underdamped
from relbo.refinement import Mode, Refinement, Space


class AutoRefined(AbstractRefinedGuide):
    """An autoguide with T steps of a sampler inside.

    With nothing but the model it is annealed underdamped dynamics with the reverse-kernel
    account, in the whitened coordinates of a mean-field normal, T = 8, with a step size for
    each coordinate and step: a valid bound that contains NumPyro's AutoDAIS as a special case.

    Args:
        model: a NumPyro program.
        base: the guide to refine: a class or an instance of NumPyro's continuous autoguides
            (AutoNormal, AutoDiagonalNormal, AutoMultivariateNormal,
            AutoLowRankMultivariateNormal, AutoIAFNormal, AutoBNAFNormal, AutoDelta,
            AutoGuideList). By default a mean-field normal: AutoDiagonalNormal, which is one
            vector and fast, or AutoNormal where the model has local latent values in a plate
            that is subsampled or where `create_plates` is given.
        kernel: how a step moves; by default `Underdamped` with a step size for each coordinate
            and step (for each step alone where a plate is subsampled), capped at 1 in whitened
            coordinates.
        num_steps: T.
        entropy: what stands for log q; by default `ReverseKernel`.
        anneal: a learned path of temperatures from the base to the posterior; by default where
            the account is `ReverseKernel` and the base has a density.
        mode: `"full"` or `"fast"` differentiation.
        remat: keep only positions for the backward pass.
        unroll: no loop over the steps: faster for few steps of a dear model, slower else.
        space: `"whitened"` or `"unconstrained"`.
        prefix: of the names of all parameters.
        init_loc_fn: where the base starts.
        max_step_size: a cap on the learned step size; see `Refinement`.
        max_score: a cap on the force that the steps follow; see `Refinement`. By default 20 for
            the default kernel in whitened coordinates, and none otherwise.
        forward_mode_differentiation: gradients of the density in forward mode, for models with
            a `while_loop`; train with `svi.update(..., forward_mode_differentiation=True)`.
        **base_options: handed to the base's constructor, such as `init_scale`.

    It pickles where its base does; AutoIAFNormal, AutoLaplaceApproximation and a guide of a
    blocked model (`handlers.block`) do not, by NumPyro's own doing.

    The sampler's parameters are ordinary `numpyro.param` sites: `auto_step_size_latent` (or one
    for each site of the base), `auto_damping`, `auto_temperature_increments` and the like.

    Example:
        >>> import numpyro, numpyro.distributions as dist
        >>> def model():
        ...     numpyro.sample("x", dist.Normal(0, 1))
        >>> guide = AutoRefined(model)
    """

    def __init__(
        self,
        model: Model,
        *,
        base: type[AutoGuide] | AutoGuide | None = None,
        kernel: AbstractKernel | None = None,
        num_steps: int = 8,
        entropy: AbstractEntropy | None = None,
        anneal: bool | Annealing | None = None,
        mode: Mode = "full",
        remat: bool = False,
        unroll: bool = False,
        space: Space = "whitened",
        prefix: str = "auto",
        init_loc_fn: Any = None,
        max_step_size: float | None = None,
        max_score: float | None = None,
        forward_mode_differentiation: bool = False,
        **base_options: Any,
    ):
        if init_loc_fn is None:
            is_density = isinstance(model, LogDensityModel)
            init_loc_fn = model.init_loc_fn if is_density else init_to_uniform
        self._base_if_local = None
        if base is None and "create_plates" in base_options:
            base = AutoNormal
        if base is None:
            base = AutoDiagonalNormal
            self._base_if_local = AutoNormal(
                model, prefix=prefix, init_loc_fn=init_loc_fn, **base_options
            )
        self.base = _make_base(base, model, prefix, init_loc_fn, base_options)
        if forward_mode_differentiation:
            for guide in filter(None, (self.base, self._base_if_local)):
                guide._forward_mode_differentiation = True
        super().__init__(model, prefix=prefix, init_loc_fn=init_loc_fn)
        self._kernel_is_default = kernel is None
        self._has_density = not _has_points(self.base)
        is_whitened = space == "whitened" and self._has_density
        if max_score is None and kernel is None and is_whitened:
            max_score = 20.0
        self.refinement = _refinement(
            kernel,
            entropy,
            can_anneal=self._has_density,
            num_steps=num_steps,
            anneal=anneal,
            max_step_size=max_step_size,
            max_score=max_score,
            mode=mode,
            remat=remat,
            unroll=unroll,
            space=space,
            forward_mode_differentiation=forward_mode_differentiation,
        )

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        call = Call(args, kwargs)
        runs = [initial_run(self.model, call, seed) for seed in (0, 1)]
        _check_latents(*runs)
        check_plates(runs[0])
        is_local = has_local_sites(runs[0])
        self._subsampling = subsampling(*runs)
        if self._base_if_local is not None and is_local:
            self.base = self._base_if_local
        try:
            with handlers.block():
                handlers.seed(self.base, draw_key())(*args, **kwargs)
        except ValueError as error:
            if "local latent variables" not in str(error):
                raise
            raise ValueError(
                f"base: {type(self.base).__name__} takes all latent values for one vector, and "
                "the model has local ones in a plate that is subsampled: use base=AutoNormal, "
                "or relbo.refine with a guide of your own"
            ) from error
        self.prototype_trace = self.base.prototype_trace
        if self._kernel_is_default and not is_local:
            self._size_kernel(call)

    def _size_kernel(self, call: Call) -> None:
        """Gives the default kernel a step size a coordinate, now that they can be counted."""
        with handlers.block():
            distributions = self._distributions(self._run_base(jr.key(0), call))
        base = base_of(distributions)
        like = base.centre
        if self.refinement.space == "whitened" and isinstance(base, AbstractNormal):
            like = base.noise
        upper = self.refinement.kernel.step_size.upper
        # Arrays that outlive this call, which may be the first one of a function under `jit`.
        with jax.ensure_compile_time_eval():
            kernel = _default_kernel(self.refinement.num_steps, like, upper)
        self.refinement = eqx.tree_at(lambda r: r.kernel, self.refinement, kernel)

    def _run_base(self, key: PRNGKeyArray, call: Call) -> dict[str, Sites]:
        return run(handlers.seed(self.base, key), call)

    def _latent(self, part: AutoContinuous) -> str:
        """What the kernel's position calls the whole latent vector of a guide."""
        return "latent" if part.prefix == self.prefix else f"{part.prefix}_latent"

    def _at_full_size(self) -> "AutoRefined":
        full = copy.copy(self)
        full.base = copy.copy(self.base)
        sizes = self.base._prototype_frame_full_sizes
        full.base._prototype_frames = {
            name: frame._replace(size=sizes[name])
            for name, frame in self.base._prototype_frames.items()
        }
        return full

    def _distributions(self, trace: dict[str, Sites]) -> dict[str, Any]:
        distributions, packed = {}, set()
        for part in _parts(self.base):
            if isinstance(part, AutoContinuous):
                distributions[self._latent(part)] = trace[f"_{part.prefix}_latent"]["fn"]
                packed |= set(part._init_locs)
        for name in latent_names(self._prototype):
            if name not in packed:
                distributions[name] = unconstrained(trace[name]["fn"], self._prototype[name])
        return distributions

    def _unpack(self, position: PyTree) -> dict[str, Array]:
        values = dict(position)
        for part in _parts(self.base):
            if isinstance(part, AutoContinuous) and self._latent(part) in values:
                values.update(part._unpack_latent(values.pop(self._latent(part))))
        return values


class RefinedGuide(AbstractRefinedGuide):
    """A hand-written guide with a sampler inside; made by `refine`."""

    def __init__(
        self,
        guide: Model,
        model: Model,
        refinement: Refinement,
        prefix: str,
        freeze_model: bool = False,
    ):
        super().__init__(model, prefix=prefix)
        self.guide = guide
        self.freeze_model = freeze_model
        self.refinement = refinement
        self._has_density = True

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        call = Call(args, kwargs)
        guide_key, model_key = jr.split(draw_key())
        with handlers.block():
            guide_trace = self._run_base(guide_key, call)
        runs = [initial_run(self.model, call, seed) for seed in (0, 1)]
        names = latent_names(runs[0])
        missing = [name for name in names if name not in guide_trace]
        if missing:
            raise ValueError(
                f"the model's latent sites {missing} are not in the guide: add them to it, or "
                "use relbo.AutoRefined"
            )
        check_match(runs[0], guide_trace)
        replayed = handlers.replay(
            handlers.seed(self.model, model_key), OrderedDict(guide_trace)
        )
        with handlers.block():
            self.prototype_trace = run(replayed, call)
        self._has_density = not any(is_point(guide_trace[name]["fn"]) for name in names)
        self._subsampling = subsampling(*runs)
        self._check_independent(call)

    def _check_independent(self, call: Call) -> None:
        """A site drawn given another has no density or whitening of its own to walk with."""
        needs_density = self.refinement.anneal is not None or self.refinement.entropy.redraws
        if self.refinement.space == "unconstrained" and not needs_density:
            return
        with handlers.block():
            one = self._run_base(jr.key(0), call)
            # The same parameters and the same minibatch: only the draws differ.
            same = {n: s["value"] for n, s in one.items() if s["type"] in ("param", "plate")}
            with handlers.substitute(data=same):
                other = self._run_base(jr.key(1), call)
        for name in latent_names(self._prototype):
            ours, theirs = (jax.tree.leaves(trace[name]["fn"]) for trace in (one, other))
            if not all(bool(jnp.array_equal(a, b)) for a, b in zip(ours, theirs, strict=True)):
                raise ValueError(
                    f"the guide's distribution at '{name}' depends on another of its draws: "
                    'use space="unconstrained" without annealing, and an account other than '
                    "Gaussian"
                )

    def _run_base(self, key: PRNGKeyArray, call: Call) -> dict[str, Sites]:
        return handlers.trace(handlers.seed(self.guide, key)).get_trace(
            *call.args, **call.kwargs
        )

    def _distributions(self, trace: dict[str, Sites]) -> dict[str, Any]:
        return {
            name: unconstrained(trace[name]["fn"], self._prototype[name])
            for name in latent_names(self._prototype)
        }

    def _unpack(self, position: PyTree) -> dict[str, Array]:
        return position

    def _at_full_size(self) -> "RefinedGuide":
        # The guide's own arguments say how much of the data it sees.
        return self


def refine(
    guide: Model,
    model: Model,
    *,
    kernel: AbstractKernel | None = None,
    num_steps: int = 8,
    entropy: AbstractEntropy | None = None,
    anneal: bool | Annealing | None = None,
    mode: Mode = "full",
    remat: bool = False,
    unroll: bool = False,
    space: Space = "whitened",
    prefix: str = "refined",
    max_step_size: float | None = None,
    max_score: float | None = None,
    forward_mode_differentiation: bool = False,
    freeze_model: bool = False,
) -> RefinedGuide:
    """Lifts a hand-written guide to a refined one.

    The guide may be amortised: an encoder whose local latent sites are in a plate. Gradients
    reach the encoder, the parameters inside the model and the sampler's own.

    Args:
        guide: a NumPyro program with a sample statement for each latent site of the model.
        model: the program whose posterior is approximated.
        kernel, num_steps, entropy, anneal, mode, remat, unroll, space: as for `AutoRefined`.
        prefix: of the names of the sampler's parameters.
        max_step_size, max_score: as for `Refinement`.
        forward_mode_differentiation: as for `AutoRefined`.
        freeze_model: whether to leave the parameters inside the model, such as a decoder's
            weights, out of the differentiation of the steps: they learn from where the steps
            end, and no longer from how they got there. It saves about a third of the work of
            an autoencoder's refined update; the value of the bound is the same. An
            autoencoder trained so from the start ended worse than one without steps.

    Returns:
        A guide for `SVI`.
    """
    refinement = _refinement(
        kernel,
        entropy,
        can_anneal=True,
        num_steps=num_steps,
        anneal=anneal,
        max_step_size=max_step_size,
        max_score=max_score,
        mode=mode,
        remat=remat,
        unroll=unroll,
        space=space,
        forward_mode_differentiation=forward_mode_differentiation,
    )
    return RefinedGuide(guide, model, refinement, prefix, freeze_model)


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
    model: Model,
    prefix: str,
    init_loc_fn: Any,
    options: dict[str, Any],
) -> AutoGuide:
    kind = base if isinstance(base, type) else type(base)
    if not issubclass(kind, AutoGuide):
        raise ValueError(
            f"base: expected a class or an instance of NumPyro's autoguides, got {base!r}; for "
            "a guide of your own use relbo.refine(guide, model)"
        )
    if issubclass(kind, AutoDAIS | AutoSemiDAIS | AbstractRefinedGuide):
        raise ValueError(
            f"base: {kind.__name__} has a sampler inside already; give the guide that it "
            "starts from, such as AutoNormal, and more steps"
        )
    if isinstance(base, type):
        return base(model, prefix=prefix, init_loc_fn=init_loc_fn, **options)
    if options:
        raise ValueError(
            f"{sorted(options)}: options of the base go to its own constructor where an "
            "instance is given"
        )
    return base


def _refinement(
    kernel: AbstractKernel | None,
    entropy: AbstractEntropy | None,
    *,
    can_anneal: bool,
    num_steps: int,
    anneal: bool | Annealing | None,
    max_step_size: float | None,
    **options: Any,
) -> Refinement:
    """A refinement, with a guide's defaults for what is left open."""
    if kernel is None:
        max_step_size = 1.0 if max_step_size is None else max_step_size
        kernel = _default_kernel(num_steps, 0.0, max_step_size)
    if anneal is None:
        anneal = can_anneal and (entropy is None or isinstance(entropy, ReverseKernel))
    return Refinement(
        kernel,
        entropy,
        num_steps=num_steps,
        anneal=anneal,
        max_step_size=max_step_size,
        **options,
    )


def _default_kernel(num_steps: int, like: PyTree, upper: float | None) -> Underdamped:
    """Each step has a size for every entry of `like`, and a damping of its own."""
    start = 0.3 if upper is None else min(0.3, upper / 2)
    if num_steps == 0:
        return Underdamped(start, 0.9)
    sizes = jax.tree.map(lambda leaf: jnp.full((num_steps, *jnp.shape(leaf)), start), like)
    step_size = Positive(PerStep(sizes), upper=upper, name="max_step_size")
    return Underdamped(step_size, PerStep(jnp.full(num_steps, 0.9)))


def _check_latents(one: dict[str, Sites], other: dict[str, Sites]) -> None:
    """Refuses what a guide would get wrong, from two runs with other draws."""
    discrete = discrete_latents(one)
    if discrete:
        raise ValueError(
            f"the latent sites {discrete} are discrete, and a sampler with gradients cannot "
            "move them: sum them out with collapsed = relbo.collapse(model), and use it for "
            "the guide and for SVI"
        )
    if not latent_names(one):
        raise ValueError("the model has no continuous latent site: there is nothing to refine")
    dynamic = dynamic_supports(one, other)
    if dynamic:
        raise ValueError(
            f"the support of {dynamic} depends on other latent sites, and a guide that took it "
            "for fixed would be silently wrong: write the site on a fixed support and scale it "
            "(x = low + (high - low) * u), or use numpyro.infer.reparam.TransformReparam"
        )
