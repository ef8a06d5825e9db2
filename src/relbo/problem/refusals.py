"""What relbo cannot infer, and what to do instead: one message for each case."""

import copy
import inspect
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PyTree
from numpyro import handlers
from numpyro.primitives import Messenger

from relbo.problem.call import Call
from relbo.problem.traces import (
    Model,
    Sites,
    discrete_latents,
    initial_run,
    is_observed,
    latent_names,
)

_KEEP_DATA = (
    "let the guide keep them, as relbo.fit does: guide = guide.with_data(*data). It then draws "
    "without data and for new inputs"
)


def refuse_discrete(trace: dict[str, Sites]) -> None:
    discrete = discrete_latents(trace)
    if discrete:
        raise ValueError(
            f"the latent sites {discrete} are discrete, and gradients cannot move them: sum "
            "them out with collapsed = relbo.collapse(model), and use it in place of the model"
        )


def refuse_without_latents(trace: dict[str, Sites]) -> None:
    if not latent_names(trace):
        raise ValueError(
            "the model has no latent site: there is nothing to infer (if it is a function that "
            "returns a log density, pass relbo.model_from_logdensity(function, position))"
        )


def refuse_free_parameters(trace: dict[str, Sites], params: dict[str, PyTree]) -> None:
    free = [n for n, site in trace.items() if site["type"] == "param" and n not in params]
    if free:
        raise ValueError(
            f"the model has parameters {free} without a prior: train them with relbo.fit and "
            "pass its params, or give infer a guide, such as guide=relbo.AutoRefined(model)"
        )


class SubsampledPlatesError(ValueError):
    """Raised where an exact log density is asked of a model with subsampled plates."""

    def __init__(self, plates: list[str]):
        super().__init__(
            f"the plates {plates} are subsampled, and an exact log density needs all the data: "
            "use relbo.infer, which trains a guide on minibatches first, or call the model "
            "without subsample_size"
        )
        self.plates = plates


def refuse_subsampled(trace: dict[str, Sites]) -> None:
    plates = {name: site for name, site in trace.items() if site["type"] == "plate"}
    subsampled = [n for n, site in plates.items() if len(site["value"]) < site["args"][0]]
    if subsampled:
        raise SubsampledPlatesError(subsampled)


def refuse_unreachable_data(trace: dict[str, Sites], plates: list[str]) -> None:
    """Refuses observed values with one row that stand for all rows of a plate."""
    for name, site in trace.items():
        if not is_observed(site):
            continue
        shape, event_dim = jnp.shape(site["value"]), site["fn"].event_dim
        for frame in site["cond_indep_stack"]:
            axis = len(shape) + frame.dim - event_dim
            if frame.name in plates and axis >= 0 and shape[axis] != frame.size:
                raise ValueError(
                    f"the site '{name}' has {shape[axis]} of the {frame.size} observations"
                )


def refuse_dynamic_supports(one: dict[str, Sites], other: dict[str, Sites]) -> None:
    """Refuses latent sites whose support depends on another latent site.

    Two runs with different draws show it: a support that is equal in both is fixed.
    """
    dynamic = [name for name in latent_names(one) if not _same_support(one[name], other[name])]
    if dynamic:
        raise ValueError(
            f"the support of {dynamic} depends on other latent sites, and a guide with a fixed "
            "support would be silently wrong: write the site on a fixed support and scale it "
            "(x = low + (high - low) * u), or use numpyro.infer.reparam.TransformReparam"
        )


def refuse_hidden(model: Any, call: Call) -> None:
    """Refuses latent sites that `handlers.block` hides and that are drawn from their priors."""
    open_model = _without_blocks(model)
    if open_model is model:
        return
    one, other = (initial_run(open_model, call, seed) for seed in (0, 1))
    hidden = set(latent_names(one)) - set(initial_run(model, call))
    drawn = [n for n in hidden if not jnp.array_equal(one[n]["value"], other[n]["value"])]
    if drawn:
        raise ValueError(
            f"the latent sites {sorted(drawn)} are hidden by numpyro.handlers.block, and the "
            "density of the model would draw them from their priors. Pass the model without "
            "the block, or give them values with numpyro.handlers.substitute. Do not refine a "
            "part of an AutoGuideList but the list: relbo.AutoRefined(model, base=guides), "
            "with NumPyro's own guides in it"
        )


def refuse_ambiguous_plates(trace: dict[str, Sites]) -> None:
    """Refuses a plate name that is used for two different plates."""
    seen: dict[str, tuple[str, Any]] = {}
    for name in latent_names(trace):
        for frame in trace[name]["cond_indep_stack"]:
            where, first = seen.setdefault(frame.name, (name, frame))
            if (frame.size, frame.dim) != (first.size, first.dim):
                raise ValueError(
                    f"the plate '{frame.name}' has size {first.size} in dimension {first.dim} "
                    f"at the site '{where}', and size {frame.size} in dimension {frame.dim} at "
                    f"'{name}': give the second plate another name, or the same size and "
                    "dimension"
                )


def refuse_mismatch(model: dict[str, Sites], guide: dict[str, Sites]) -> None:
    """Refuses a guide whose plates or shapes differ from those of the model."""
    for name, site in model.items():
        if site["type"] != "plate" or name not in guide:
            continue
        ours, theirs = (
            (trace[name]["args"][0], len(trace[name]["value"])) for trace in (model, guide)
        )
        if ours != theirs:
            raise ValueError(
                f"the plate '{name}' takes {ours[1]} of {ours[0]} in the model and {theirs[1]} "
                f"of {theirs[0]} in the guide: open it with the same size and subsample_size "
                "in both"
            )
    for name in latent_names(model):
        ours, theirs = (jnp.shape(trace[name]["value"]) for trace in (model, guide))
        if ours != theirs:
            raise ValueError(
                f"the site '{name}' has shape {ours} in the model and {theirs} in the guide: "
                "draw it in the same plates in both"
            )


def refuse_missing_data(what: str) -> None:
    raise ValueError(
        f"the model's {what} in this call, unlike when the guide was set up. The steps inside "
        "climb the model's density and need its data: pass what was passed for training, or "
        f"{_KEEP_DATA}"
    )


def refuse_missing_arguments(model: Any, call: Call) -> None:
    """Refuses a call without arguments that the model requires."""
    try:
        signature = inspect.signature(model)
    except (TypeError, ValueError):
        return  # not a function; its own reader refuses wrong arguments
    required = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    missing = [name for name in required[len(call.args) :] if name not in call.kwargs]
    if missing:
        raise TypeError(
            f"model: its arguments {missing} are missing: pass them as args=(...) or "
            "kwargs={...} (if it is a function that returns a log density, pass "
            "relbo.model_from_logdensity(function, position) instead)"
        )


def refuse_incomplete_call(
    model: Model, prototype: dict[str, Sites], params: dict[str, PyTree], call: Call
) -> None:
    """Refuses draws from a guide without the data or parameters that its steps need."""
    try:
        inspect.signature(model).bind(*call.args, **call.kwargs)
    except TypeError as error:
        raise TypeError(
            f"{error}: the steps inside the guide climb the model's density, so draws need its "
            "arguments too: pass them after params, or "
            f"{_KEEP_DATA}"
        ) from error
    needed = [n for n, site in prototype.items() if site["type"] in ("param", "mutable")]
    missing = [name for name in needed if name not in params]
    if missing:
        raise ValueError(
            f"params: the model's {missing} are missing, and the steps inside the guide climb "
            "its density with them; pass svi.get_params(state), together with "
            "state.mutable_state where there is one"
        )


def _same_support(one: Sites, other: Sites) -> bool:
    leaves = [jax.tree.flatten(site["fn"].support) for site in (one, other)]
    (first, structure), (second, other_structure) = leaves
    if structure != other_structure:
        return False
    return all(bool(jnp.array_equal(a, b)) for a, b in zip(first, second, strict=True))


def _without_blocks(model: Any) -> Any:
    """Returns a model whose handlers hide no site and draw no site with a seed of their own."""
    if not isinstance(model, Messenger):
        return model
    inner = _without_blocks(model.fn)
    if isinstance(model, handlers.block | handlers.seed):
        return inner
    if inner is model.fn:
        return model
    opened = copy.copy(model)
    opened.fn = inner
    return opened
