"""A NumPyro program, read as a log density over unconstrained values."""

import inspect
import math
from collections.abc import Callable, Iterator, Set
from contextlib import contextmanager
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpyro
from jaxtyping import Array, PRNGKeyArray, PyTree, Scalar
from numpyro import handlers
from numpyro.distributions import biject_to, constraints
from numpyro.distributions.util import sum_rightmost
from numpyro.infer import init_to_uniform, init_to_value
from numpyro.infer.util import helpful_support_errors, potential_energy
from numpyro.primitives import Messenger, mutable

from relbo.validity import Subsampling

Model = Callable[..., Any]
Sites = dict[str, Any]


class Call(NamedTuple):
    """The arguments of one run of a program."""

    args: tuple
    kwargs: dict[str, Any]


def run(program: Any, call: Call) -> dict[str, Sites]:
    """The trace of a program."""
    return handlers.trace(program).get_trace(*call.args, **call.kwargs)


def is_latent(site: Sites) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


def is_discrete(site: Sites) -> bool:
    return bool(site["fn"].support.is_discrete)


def latent_names(trace: dict[str, Sites]) -> list[str]:
    return [name for name, site in trace.items() if is_latent(site)]


def outer_values(trace: dict[str, Sites]) -> dict[str, PyTree]:
    """The current values of the parameters and the mutable state of a program.

    Asked for where the guide runs, so that whoever trains hands in what it holds now; the
    density that a kernel climbs must not use the values of its first call.
    """
    values = {}
    for name, site in trace.items():
        if site["type"] == "param":
            values[name] = numpyro.param(name, _initial(site), **site["kwargs"])
        elif site["type"] == "mutable":
            values[name] = mutable(name, fresh(site["value"]))
    return values


def _initial(site: Sites) -> Callable[[Any], Any]:
    """How a parameter begins, as a function: a network is callable and would be called.

    What the program draws is drawn anew, so that every seed of a fit begins elsewhere.
    """
    is_drawn = not site["args"]
    return lambda _: site["fn"]() if is_drawn else site["value"]


def fresh(tree: PyTree) -> PyTree:
    """The same leaves in new containers: a program changes its mutable state in place."""
    return jax.tree.map(lambda leaf: leaf, tree)


def mutable_values(trace: dict[str, Sites]) -> dict[str, PyTree]:
    return {name: site["value"] for name, site in trace.items() if site["type"] == "mutable"}


def logdensity(
    model: Model,
    call: Call,
    key: PRNGKeyArray,
    unconstrained: dict[str, Array],
    given: dict[str, PyTree],
) -> Scalar:
    """log p of the program at unconstrained latent values, Jacobians included.

    Args:
        model: the program.
        call: its arguments.
        key: for whatever the program draws by itself, such as the indices of a minibatch: the
            same key gives the same minibatch.
        unconstrained: values of its latent sites.
        given: values of parameters, mutable state, plates' indices and fixed latent sites.
    """
    given = {
        n: fresh(value) if isinstance(value, dict) else value for n, value in given.items()
    }
    with handlers.block():
        known = _LatentsAreKnown(model, unconstrained.keys() | given.keys())
        program = handlers.substitute(handlers.seed(known, key), data=given)
        return jnp.negative(potential_energy(program, call.args, call.kwargs, unconstrained))


class _LatentsAreKnown(Messenger):
    """Refuses a latent site that nobody has a value for, which would silently be drawn."""

    def __init__(self, fn: Model, names: Set[str]):
        super().__init__(fn)
        self.names = names

    def process_message(self, msg: dict[str, Any]) -> None:
        if msg["type"] != "sample" or msg["is_observed"] or msg["value"] is not None:
            return
        if msg["name"] not in self.names:
            raise ValueError(
                f"the model's site '{msg['name']}' is latent in this call, and was not when "
                "the guide was set up. The steps inside climb the model's density and need its "
                "data: hand in what was handed in for training. To predict without data, draw "
                "first: Predictive(model, guide.sample_posterior(key, params, *data, "
                "sample_shape=(n,)))"
            )


def deterministic_values(
    model: Model,
    key: PRNGKeyArray,
    call: Call,
    values: dict[str, PyTree],
) -> dict[str, Array]:
    """What the program computes at given values of its parameters and latent sites."""
    program = handlers.substitute(handlers.seed(model, key), data=values)
    with handlers.block():
        trace = run(program, call)
    return {
        name: site["value"] for name, site in trace.items() if site["type"] == "deterministic"
    }


def check_arguments(
    model: Model, prototype: dict[str, Sites], params: dict[str, PyTree], call: Call
) -> None:
    """Refuses draws without what the density that is climbed needs."""
    signature = inspect.signature(model)
    try:
        signature.bind(*call.args, **call.kwargs)
    except TypeError as error:
        raise TypeError(
            f"{error}: the steps inside the guide climb the model's density, so its "
            "arguments are needed for draws too; hand them in after params"
        ) from error
    outer = {n: s["type"] for n, s in prototype.items()}
    missing = [n for n in outer if outer[n] in ("param", "mutable") and n not in params]
    if missing:
        raise ValueError(
            f"params: the model's {missing} are missing, and the steps inside the guide "
            "climb its density with them; hand in svi.get_params(state), together with "
            "state.mutable_state where there is one"
        )


@contextmanager
def played(key: PRNGKeyArray, params: dict[str, PyTree]) -> Iterator[None]:
    """A guide that is run in here has these parameters, and nobody outside sees its sites."""
    with handlers.block(), handlers.seed(rng_seed=key), handlers.substitute(data=params):
        yield


def draw_key() -> PRNGKeyArray:
    key = numpyro.prng_key()
    if key is None:
        raise ValueError("a guide draws: run it inside numpyro.handlers.seed")
    return key


def constrain(site: Sites, unconstrained: Array) -> tuple[Array, Array]:
    """The constrained value at a site, and log abs det for each of its events."""
    with helpful_support_errors(site):
        transform = biject_to(site["fn"].support)
    value = transform(unconstrained)
    log_det = transform.log_abs_det_jacobian(unconstrained, value)
    event_dim = site["fn"].event_dim
    return value, sum_rightmost(log_det, jnp.ndim(log_det) - jnp.ndim(value) + event_dim)


def initial_run(model: Model, call: Call, seed: int = 0) -> dict[str, Sites]:
    """A run with arbitrary values at continuous sites (an improper prior cannot be drawn)."""

    def start(site: Sites) -> Any:
        if is_latent(site) and not is_discrete(site):
            return init_to_uniform(site)
        return None

    with handlers.block():
        return run(handlers.substitute(handlers.seed(model, seed), substitute_fn=start), call)


def check_plates(trace: dict[str, Sites]) -> None:
    """Refuses a name that stands for two plates."""
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


def check_match(model: dict[str, Sites], guide: dict[str, Sites]) -> None:
    """Refuses a guide whose plates or shapes are not those of the model."""
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


def has_local_sites(trace: dict[str, Sites]) -> bool:
    """Whether a latent site is in a plate that is subsampled."""
    return bool(_local_names(trace))


def _local_names(trace: dict[str, Sites]) -> list[str]:
    return [name for name in latent_names(trace) if _is_subsampled(trace, trace[name])]


def moved_dimension(trace: dict[str, Sites]) -> int:
    """How many unconstrained values a run's steps move: those of local sites, or of all."""
    sites = [trace[name] for name in _local_names(trace) or latent_names(trace)]
    shapes = (
        biject_to(site["fn"].support).inverse_shape(jnp.shape(site["value"])) for site in sites
    )
    return sum(math.prod(shape) for shape in shapes)


def _is_subsampled(trace: dict[str, Sites], site: Sites) -> bool:
    return any(frame.size < trace[frame.name]["args"][0] for frame in site["cond_indep_stack"])


def subsampling(one: dict[str, Sites], other: dict[str, Sites]) -> Subsampling:
    """How the data that a kernel sees go with those that the loss sees, from two runs.

    A program that draws its own minibatch draws another one for the kernel than for the loss.
    A minibatch that comes in as an argument is the same for both, and shows the same
    observations in two runs. Local latent values belong to their data, so that there is
    nothing to keep apart.
    """
    if has_local_sites(one):
        return "none"
    observed = [
        name
        for name, site in one.items()
        if site["type"] == "sample" and site["is_observed"] and _is_subsampled(one, site)
    ]
    if not observed:
        return "none"
    values = ((one[name]["value"], other[name]["value"]) for name in observed)
    shared = any(bool(jnp.array_equal(ours, theirs)) for ours, theirs in values)
    return "shared" if shared else "independent"


def discrete_latents(trace: dict[str, Sites]) -> list[str]:
    return [name for name in latent_names(trace) if is_discrete(trace[name])]


def dynamic_supports(one: dict[str, Sites], other: dict[str, Sites]) -> list[str]:
    """The latent sites whose support depends on another latent site.

    Two runs with other draws tell: a support that is the same object of the same numbers in
    both does not depend on them.
    """
    return [name for name in latent_names(one) if not _same_support(one[name], other[name])]


def _same_support(one: Sites, other: Sites) -> bool:
    leaves = [jax.tree.flatten(site["fn"].support) for site in (one, other)]
    (ours, structure), (theirs, other_structure) = leaves
    if structure != other_structure:
        return False
    return all(bool(jnp.array_equal(a, b)) for a, b in zip(ours, theirs, strict=True))


def is_real(support: Any) -> bool:
    if isinstance(support, constraints.independent):
        return is_real(support.base_constraint)
    return support is constraints.real


class LogDensityModel:
    """A NumPyro program around a log density over a pytree.

    Made by `model_from_logdensity`. Each leaf is a latent site on the real line, named after
    its path; the density enters as one factor.
    """

    def __init__(self, logdensity_fn: Callable[[PyTree], Scalar], position: PyTree):
        paths, self._structure = jax.tree_util.tree_flatten_with_path(position)
        if not paths:
            raise ValueError("position: expected a pytree with at least one array, got none")
        self._logdensity_fn = logdensity_fn
        names = [jax.tree_util.keystr(path, simple=True, separator="_") for path, _ in paths]
        self.start = {
            name or "position": jnp.asarray(leaf, jnp.result_type(float, leaf))
            for name, (_, leaf) in zip(names, paths, strict=True)
        }

    def __call__(self) -> None:
        leaves = [
            numpyro.sample(
                name,
                numpyro.distributions.ImproperUniform(constraints.real, (), leaf.shape),
            )
            for name, leaf in self.start.items()
        ]
        numpyro.factor("logdensity", self._logdensity_fn(self.to_position_leaves(leaves)))

    def to_position_leaves(self, leaves: list[Any]) -> PyTree:
        return jax.tree.unflatten(self._structure, leaves)

    def to_position(self, draws: dict[str, Array]) -> PyTree:
        """Puts draws, a dict of sites, back into the position's structure."""
        return self.to_position_leaves([draws[name] for name in self.start])

    def init_loc_fn(self, site: Sites | None = None) -> Any:
        """Starts a guide where the position is."""
        return init_to_value(site, values=self.start)


def model_from_logdensity(
    logdensity_fn: Callable[[PyTree], Scalar], position: PyTree
) -> LogDensityModel:
    """Makes a NumPyro program of a log density, so that every guide works on it.

    Args:
        logdensity_fn: the log density at one position, up to a constant.
        position: any pytree of arrays: gives the structure, and where a guide starts.

    Returns:
        A program without arguments, with one latent site a leaf.

    Example:
        >>> import jax.numpy as jnp
        >>> model = model_from_logdensity(lambda z: -jnp.sum(z**2), jnp.zeros(3))
        >>> guide = AutoRefined(model)
    """
    return LogDensityModel(logdensity_fn, position)
