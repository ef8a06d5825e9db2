"""From a model to draws in one call."""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.random as jr
from jax.sharding import Mesh

from relbo.core.random import KeyLike, as_key
from relbo.sampling import Posterior, sample
from relbo.sampling._sample import SamplingMethod, check_sample_options
from relbo.training import Stopping, fit

NUM_EVIDENCE_DRAWS = 640


def infer(
    key: KeyLike,
    model: Any,
    args: tuple = (),
    kwargs: dict[str, Any] | None = None,
    *,
    guide: Any = None,
    num_draws: int = 4000,
    num_chains: int | None = None,
    method: SamplingMethod = "hmc",
    seconds: float | None = None,
    mesh: Mesh | None = None,
    progress: bool = True,
) -> Posterior:
    """Infers a posterior: fits a guide, then samples from it exactly.

    By default the guide is a normal fitted by natural gradients, which takes a few dozen
    evaluations whatever the scales of the parameters. Many chains start from it, in its
    whitened coordinates, and share their adaptation until they converge. Where the scale of a
    parameter depends on others, as in a funnel, the coordinates learn that. Separate modes are
    sampled one by one and weighed. Annealed paths from the normal to the draws and back enclose
    the evidence. If float32 is too coarse for the posterior, it is inferred again in float64.

    Args:
        key: a random key, or an integer seed.
        model: a NumPyro program; for a log density see `model_from_logdensity`, for discrete
            latent sites `collapse`.
        args, kwargs: its arguments.
        guide: a guide to train and start from instead, such as `relbo.AutoRefined(model)`.
        num_draws: number of draws to return.
        num_chains: number of chains; by default about 64.
        method: `"hmc"`, `"mala"` or, with a refined guide, `"unadjusted"`; see `sample`.
        seconds: time budget in seconds; half of it is for training a guide.
        mesh: the devices to run on; see `fit` and `sample`.
        progress: whether to show a progress bar.

    Returns:
        A `Posterior`; its `check()` says whether to trust it.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist
        >>> def model(y):
        ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
        ...     numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> posterior = infer(0, model, (jnp.ones(10),))
        >>> print(posterior.summary())
    """
    key, started = as_key(key), time.monotonic()
    check_sample_options(method, num_draws, num_chains, seconds)
    params, trained = None, None
    if guide is not None:
        fit_key, key = jr.split(key)
        # Half of the time for each: a rough fit is a better start than none.
        trained = fit(
            fit_key,
            model,
            args,
            kwargs,
            guide=guide,
            stopping=Stopping(seconds=None if seconds is None else seconds / 2),
            mesh=mesh,
            progress=progress,
        )
        params, guide = trained.params, trained.guide

    def remaining() -> float | None:
        return None if seconds is None else max(0.0, seconds - (time.monotonic() - started))

    def draw() -> Posterior:
        return sample(
            key,
            model,
            args,
            kwargs,
            guide=guide,
            params=params,
            method=method,
            num_draws=num_draws,
            num_chains=num_chains,
            num_evidence_draws=NUM_EVIDENCE_DRAWS,
            seconds=remaining(),
            mesh=mesh,
            progress=progress,
        )

    posterior = draw()
    if guide is None and posterior.needs_precision and not jax.config.read("jax_enable_x64"):
        posterior = _in_double_precision(draw) or posterior
    if trained is not None and trained.result == "diverged":
        posterior.add_note(f"The fit of the guide {trained.message}.")
    return posterior


def _in_double_precision(draw: Callable[[], Posterior]) -> Posterior | None:
    """Draws again in float64; `None` if the model does not run in it."""
    # JAX keeps constants that a model closes over, and would use them in the other precision.
    jax.clear_caches()
    with jax.enable_x64(True):
        try:
            posterior = draw()
        except TypeError:
            return None
        finally:
            jax.clear_caches()
    posterior.add_note("float32 could not resolve this posterior: float64 was used instead.")
    return posterior
