"""From a model to draws in one call."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
from jax.sharding import Mesh
from jaxtyping import Array, Float

from relbo._devices import agreed, spread_over
from relbo._progress import Callback, sticky
from relbo.core.random import KeyLike, as_key
from relbo.problem import Problem, read
from relbo.problem.call import Call, Keywords, checked_call
from relbo.problem.plates import (
    subsampled_plates,
    with_jax_arrays,
    with_stratified_minibatches,
    with_whole_data,
)
from relbo.problem.refusals import refuse_missing_arguments
from relbo.sampling import Posterior, sample
from relbo.sampling._sample import (
    SamplingMethod,
    check_sample_options,
    check_start,
    default_num_chains,
)
from relbo.sampling.continuing import double_precision
from relbo.sampling.independent import sample_independently

NUM_EVIDENCE_DRAWS = 640
GRADIENTS_PER_CHAIN = 300
"""What chains usually take, with their warm-up and the evidence."""
DEFAULT_CHAIN_SECONDS = 300.0
"""How long chains on all the data of a subsampled plate may take without a time budget."""


def infer(
    key: KeyLike,
    model: Any,
    args: tuple = (),
    kwargs: Keywords = None,
    *,
    guide: Any = None,
    start: Posterior | None = None,
    num_draws: int = 4000,
    num_chains: int | None = None,
    method: SamplingMethod = "hmc",
    seconds: float | None = None,
    mesh: Mesh | None = None,
    progress: bool = True,
    callback: Callback | None = None,
) -> Posterior:
    """Infers a posterior: fits a guide, then samples from it exactly.

    By default the guide is a normal fitted by natural gradients, which takes a few dozen
    evaluations whatever the scales of the parameters. Many chains start from it, in its
    whitened coordinates, and share their adaptation until they converge. Where the scale of a
    parameter depends on others, as in a funnel, the coordinates learn that. Separate modes are
    sampled one by one and weighed. Annealed paths from the normal to the draws and back enclose
    the evidence. If float32 is too coarse for the posterior, it is inferred again in float64.

    If the model subsamples a plate, a refined guide is trained on minibatches. Then chains run
    on all the data, from the guide, if one gradient shows that there is time for them (five
    minutes without a time budget). Otherwise the guide proposes draws, and each of them is
    accepted or rejected by one evaluation on all the data; the importance weights show whether
    the guide is good enough. `Posterior.procedure` says which of these was done.

    Args:
        key: a random key, or an integer seed.
        model: a NumPyro program, a PyMC model, or a density from elsewhere (see
            `relbo.problem.ForeignDensity`); for a log density in JAX see
            `model_from_logdensity`, for discrete latent sites `collapse`.
        args, kwargs: its arguments: arrays, lists of numbers, or columns and frames of pandas,
            polars or xarray. A frame in `args` is a matrix; as `kwargs`, its columns are the
            keyword arguments.
        guide: a guide to train and start from instead, such as `relbo.AutoRefined(model)`.
        start: a posterior to start from instead, such as one of the same sites for other data
            (see also `Posterior.update`). Then no guide is fitted or trained.
        num_draws: number of draws to return.
        num_chains: number of chains; by default about 64.
        method: `"hmc"`, `"mala"` or, with a refined guide, `"unadjusted"`; see `sample`.
        seconds: time budget in seconds; half of it is for training a guide.
        mesh: the devices to run on; see `fit` and `sample`.
        progress: whether to show a progress bar.
        callback: called with a `RunState` after each chunk; the run ends if it returns `True`,
            as if the time were up, and what there is by then is returned and judged.

    Returns:
        A `Posterior`; its `check()` says whether to trust it, its `procedure` how the draws
        were made.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> def model(y):
        ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
        ...     numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> posterior = infer(0, model, (jnp.ones(10),))
        >>> print(posterior.summary())
    """
    key, started, callback = as_key(key), time.monotonic(), sticky(callback)
    check_sample_options(method, num_draws, num_chains, seconds)
    check_start(start, guide, method)
    args, kwargs = checked_call(args, kwargs)
    refuse_missing_arguments(model, Call(args, kwargs))
    plates = subsampled_plates(model, args, kwargs)
    target = model
    if plates:
        target = with_whole_data(model, args, kwargs, plates)
        args, kwargs = with_jax_arrays(args, kwargs)
    params, trained = None, None
    if guide is not None or (plates and start is None):
        from relbo.training import Stopping, fit  # optax is slow to import

        fit_key, key = jr.split(key)
        # Half of the time for each: a rough fit is a better start than none.
        trained = fit(
            fit_key,
            with_stratified_minibatches(model) if plates else model,
            args,
            kwargs,
            guide=guide,
            stopping=Stopping(seconds=None if seconds is None else seconds / 2),
            mesh=mesh,
            progress=progress,
            callback=callback,
        )
        params, guide = trained.params, trained.guide

    def remaining() -> float | None:
        return None if seconds is None else max(0.0, seconds - (time.monotonic() - started))

    def draw() -> Posterior:
        return sample(
            key,
            target,
            args,
            kwargs,
            guide=guide,
            params=params,
            start=start,
            method=method,
            num_draws=num_draws,
            num_chains=num_chains,
            num_evidence_draws=NUM_EVIDENCE_DRAWS,
            seconds=remaining(),
            mesh=mesh,
            progress=progress,
            callback=callback,
        )

    def propose(problem: Problem, num_chains: int) -> Posterior:
        return sample_independently(
            key,
            problem,
            guide,
            params or {},
            num_draws=num_draws,
            num_chains=num_chains,
            seconds=remaining(),
            mesh=mesh,
            progress=progress,
            callback=callback,
        )

    if plates and start is None and method != "unadjusted":
        problem = read(target, args, kwargs, params=params)
        number = num_chains or default_num_chains(num_draws, problem.size)
        has_time = _can_run_chains(problem, number, remaining(), mesh)
        posterior = draw() if has_time else propose(problem, number)
    else:
        posterior = draw()
    if guide is None and posterior.needs_precision and not jax.config.read("jax_enable_x64"):
        posterior = _in_double_precision(draw) or posterior
    if trained is not None:
        data = f"minibatches of the plates {plates}" if plates else "the data"
        trained_on = f"A guide was trained on {data}."
        posterior.procedure = f"{trained_on} {posterior.procedure}"
        if trained.result == "diverged":
            posterior.add_note(f"The fit of the guide {trained.message}.")
    return posterior


def _can_run_chains(
    problem: Problem, num_chains: int, seconds: float | None, mesh: Mesh | None
) -> bool:
    """Whether there is time for chains on all the data, judged by one gradient."""
    point = jnp.zeros(problem.size)
    jax.block_until_ready(_score(problem, point))
    started = time.monotonic()
    jax.block_until_ready(_score(problem, point))
    expected = num_chains * GRADIENTS_PER_CHAIN * (time.monotonic() - started)
    limit = DEFAULT_CHAIN_SECONDS if seconds is None else seconds
    return agreed(spread_over(mesh), expected < limit)


@jax.jit
def _score(problem: Problem, point: Float[Array, " d"]) -> Float[Array, " d"]:
    return jax.grad(problem.logdensity)(point)


def _in_double_precision(draw: Callable[[], Posterior]) -> Posterior | None:
    """Draws again in float64; `None` if the model does not run in it."""
    with double_precision():
        try:
            posterior = draw()
        except TypeError:
            return None
    posterior.add_note("float32 could not resolve this posterior: float64 was used instead.")
    return posterior
