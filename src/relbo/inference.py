"""From a model to draws in one call."""

import time
from typing import Any

import jax.random as jr
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray

from relbo._program import Model
from relbo.posterior import Posterior
from relbo.sampling import Method, sample
from relbo.training import fit


def infer(
    key: PRNGKeyArray,
    model: Model,
    args: tuple = (),
    kwargs: dict[str, Any] | None = None,
    *,
    guide: Any = None,
    num_draws: int = 4000,
    num_chains: int | None = None,
    method: Method = "hmc",
    seconds: float | None = None,
    mesh: Mesh | None = None,
    progress: bool = True,
) -> Posterior:
    """Infers a posterior: fits a guide, then samples from it exactly.

    Without a guide a normal is fitted by natural gradients, which takes some dozens of
    evaluations whatever the scales of the parameters. Many chains start from it, in its
    whitened coordinates, and learn from one another until they settle; eight annealed steps
    from the normal give the evidence.

    Args:
        key: a random key.
        model: a NumPyro program; for a log density see `model_from_logdensity`, for discrete
            latent sites `collapse`.
        args, kwargs: its arguments.
        guide: a guide to train and start from instead, such as `relbo.AutoRefined(model)`.
        num_draws: how many draws to return.
        num_chains: how many chains; by default about 64.
        method: `"hmc"`, `"mala"` or, with a refined guide, `"unadjusted"`; see `sample`.
        seconds: stop asking for more after so many; half of them are for training a guide.
        mesh: the devices to run on; see `fit` and `sample`.
        progress: whether to show a bar.

    Returns:
        A `Posterior`; ask its `check()` whether to trust it.

    Example:
        >>> import jax, numpyro, numpyro.distributions as dist
        >>> def model(y):
        ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
        ...     numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> posterior = infer(jax.random.key(0), model, (jax.numpy.ones(10),))
        >>> print(posterior.summary())
    """
    params, started, notes = None, time.monotonic(), ()
    if guide is not None:
        fit_key, key = jr.split(key)
        # Half of the time for each: a rough fit is a better start than none.
        trained = fit(
            fit_key,
            model,
            args,
            kwargs,
            guide=guide,
            seconds=None if seconds is None else seconds / 2,
            mesh=mesh,
            progress=progress,
        )
        params, guide = trained.params, trained.guide
        if trained.result == "diverged":
            notes = (f"The fit of the guide {trained.message}.",)
    left = None if seconds is None else max(0.0, seconds - (time.monotonic() - started))
    posterior = sample(
        key,
        model,
        args,
        kwargs,
        guide=guide,
        params=params,
        method=method,
        num_draws=num_draws,
        num_chains=num_chains,
        num_refined=640,
        seconds=left,
        mesh=mesh,
        progress=progress,
    )
    posterior.notes = (*notes, *posterior.notes)
    return posterior
