"""refine: hand-written guides with a sampler inside."""

from collections import OrderedDict
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, PRNGKeyArray, PyTree
from numpyro import handlers

from relbo.core.fingerprint import name_of
from relbo.core.kernels import AbstractKernel
from relbo.core.refinement import Refinement
from relbo.guides.bases import is_point, unconstrained
from relbo.guides.refined_guide import AbstractRefinedGuide, chosen_refinement
from relbo.problem.call import Call
from relbo.problem.numpyro import draw_key
from relbo.problem.refusals import refuse_mismatch
from relbo.problem.traces import Model, Sites, initial_run, latent_names, run, subsampling


class RefinedGuide(AbstractRefinedGuide):
    """A hand-written guide with a sampler inside; made by `refine`."""

    def __init__(
        self,
        guide: Model,
        model: Model,
        refinement: Refinement,
        prefix: str,
        freeze_model: bool,
    ):
        is_forward_mode = refinement.execution.forward_mode_differentiation
        super().__init__(model, prefix=prefix, forward_mode_differentiation=is_forward_mode)
        self.guide = guide
        self.freeze_model = freeze_model
        self.refinement = refinement
        self._has_density = True

    def __repr__(self) -> str:
        names = f"{name_of(self.guide)}, {name_of(self.model)}"
        return f"refine({names}, {self.refinement!r})"

    def _setup_prototype(self, *args: Any, **kwargs: Any) -> None:
        call = Call(args, kwargs)
        guide_key, model_key = jr.split(draw_key())
        with handlers.block():
            guide_trace = self.run_base(guide_key, call)
        runs = [initial_run(self.model, call, seed) for seed in (0, 1)]
        names = latent_names(runs[0])
        missing = [name for name in names if name not in guide_trace]
        if missing:
            raise ValueError(
                f"the model's latent sites {missing} are not in the guide: add them to it, or "
                "use relbo.AutoRefined"
            )
        refuse_mismatch(runs[0], guide_trace)
        replayed = handlers.replay(
            handlers.seed(self.model, model_key), OrderedDict(guide_trace)
        )
        with handlers.block():
            self.prototype_trace = run(replayed, call)
        self._has_density = not any(is_point(guide_trace[name]["fn"]) for name in names)
        if not self._has_density:
            self.refinement = self.refinement.without_default_path()
        self._subsampling = subsampling(*runs)
        self._check_independent(call)

    def _check_independent(self, call: Call) -> None:
        """Refuses sites that depend on another where the walk needs their own density."""
        needs_density = self.refinement.anneal is not None or self.refinement.account.redraws
        if self.refinement.space == "unconstrained" and not needs_density:
            return
        with handlers.block():
            one = self.run_base(jr.key(0), call)
            # Both runs have the same parameters and minibatch: only the draws differ.
            same = {n: s["value"] for n, s in one.items() if s["type"] in ("param", "plate")}
            with handlers.substitute(data=same):
                other = self.run_base(jr.key(1), call)
        for name in latent_names(self.prototype):
            ours, theirs = (jax.tree.leaves(trace[name]["fn"]) for trace in (one, other))
            if not all(bool(jnp.array_equal(a, b)) for a, b in zip(ours, theirs, strict=True)):
                raise ValueError(
                    f"the guide's distribution at '{name}' depends on another of its draws: "
                    'use refinement=relbo.Refinement(space="unconstrained", anneal=False) and '
                    "an account other than GaussianAccount"
                )

    def run_base(self, key: PRNGKeyArray, call: Call) -> dict[str, Sites]:
        return run(handlers.seed(self.guide, key), call)

    def distributions(self, trace: dict[str, Sites]) -> dict[str, Any]:
        return {
            name: unconstrained(trace[name]["fn"], self.prototype[name])
            for name in latent_names(self.prototype)
        }

    def unpack(self, position: PyTree) -> dict[str, Array]:
        return position

    def at_full_size(self) -> "RefinedGuide":
        # The arguments of the guide determine how much of the data it sees.
        return self


def refine(
    guide: Model,
    model: Model,
    *,
    refinement: Refinement | None = None,
    kernel: AbstractKernel | None = None,
    num_steps: int | None = None,
    prefix: str = "refined",
    freeze_model: bool = False,
) -> RefinedGuide:
    """Refines a hand-written guide with T steps of a sampler.

    The guide may be amortised: an encoder whose local latent sites are in a plate. Gradients
    reach the encoder, the parameters inside the model and the sampler's own.

    Args:
        guide: a NumPyro program with a sample statement for each latent site of the model.
        model: the program whose posterior is approximated.
        refinement: the sampler and its account, a `Refinement`; by default `Refinement()`.
        kernel, num_steps: shorthand for `refinement=Refinement(kernel, num_steps=num_steps)`.
        prefix: prefix of the names of the sampler's parameters.
        freeze_model: whether the parameters inside the model, such as a decoder's weights, are
            constants in the steps: they learn from where the steps end, but not from how the
            steps got there. It saves about a third of the work of a refined update of an
            autoencoder; the value of the bound is the same. An autoencoder trained this way
            from the start ended worse than one without steps.

    Returns:
        A guide for `SVI`.

    Example:
        >>> refined = refine(guide, model, num_steps=4)
    """
    refinement = chosen_refinement(refinement, kernel, num_steps)
    return RefinedGuide(guide, model, refinement, prefix, freeze_model)
