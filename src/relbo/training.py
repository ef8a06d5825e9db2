"""Trains a guide."""

import contextlib
import time
from pathlib import Path
from typing import Any, Literal

import jax.random as jr
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray
from numpyro.infer.autoguide import AutoMultivariateNormal

from relbo._fitting.arguments import not_finite, opened, split_call, typed_key
from relbo._fitting.feeding import feed
from relbo._fitting.monitor import Monitor
from relbo._fitting.outcome import Fit, Result, outcome
from relbo._fitting.run import Run
from relbo._fitting.session import Session, Settings, one_or_all
from relbo._fitting.trainer import CHUNK
from relbo._fitting.trainers import trainer_for
from relbo._mesh import spread_over
from relbo._program import Call, Model, has_local_sites, initial_run, latent_names
from relbo._progress import progress_bar
from relbo.guides import AutoRefined

__all__ = ["Fit", "Result", "fit"]

DENSE_LIMIT = 200
"""The largest dimension in which the default guide learns all correlations."""


def fit(
    key: PRNGKeyArray,
    model: Model,
    args: tuple = (),
    kwargs: dict[str, Any] | None = None,
    *,
    guide: Any = None,
    loss: Any = None,
    optimiser: Any = None,
    num_iterations: int = 10_000,
    num_particles: int | None = None,
    batch_size: int | None = None,
    num_seeds: int = 1,
    keep: Literal["best", "all"] = "best",
    early_stopping: bool = True,
    patience: int = 500,
    on_failure: Literal["stop", "back off"] = "stop",
    warm_start: bool = True,
    checkpoint_dir: str | Path | None = None,
    seconds: float | None = None,
    mesh: Mesh | None = None,
    progress: bool = True,
) -> Fit:
    """Trains a guide, refined or not, with NumPyro's SVI.

    Iterations are compiled in chunks of 100, and the host looks at the losses between them. A
    second fit of the same model and guide to data of the same shape compiles nothing.

    Args:
        key: a random key.
        model: a NumPyro program.
        args, kwargs: its arguments, and the guide's.
        guide: any guide of NumPyro's or relbo's, or a function; by default `AutoRefined` over
            a multivariate normal, or over a mean-field one beyond 200 dimensions.
        loss: an ELBO of NumPyro's kind; by default `Trace_ELBO`, or `RefinedELBO` where the
            particles of the guide's kernel interact.
        optimiser: of optax, schedules included. By default Adam with its gradients clipped at a
            global norm of 10; its rate goes down from 0.03 over 0.01 to 0.003 whenever the
            smoothed loss stops falling, so that no horizon has to be known.
        num_iterations: at most so many.
        num_particles: draws an update of the default loss; 16 unless given.
        batch_size: rows of a minibatch. All arrays among the arguments that share the leading
            length N are cut, in a new random order each epoch that the key determines; the
            last N mod batch_size rows of an epoch are left out. The model scales by its own
            plate: `numpyro.plate("data", N, subsample_size=batch_size)`. A refined guide then
            walks on the minibatch that the loss sees, so that its ELBO is no bound for global
            latent values (it is one for local ones); see `relbo.bound` and `guide.bound`.
        num_seeds: how many runs at once, each from its own initial values.
        keep: the seed with the lowest smoothed loss at the end, or all of them.
        early_stopping: whether to stop when the smoothed loss no longer falls.
        patience: iterations: a plateau is where the mean loss over so many is no lower than
            over as many before, up to a standard error.
        on_failure: what to do about a NaN or a divergence: `"stop"` with the last good state,
            or `"back off"`, which halves the rate and goes on from where the loss was best.
        warm_start: whether to fit a normal by natural gradients first, where the guide has a
            normal base; it finds the scales of a posterior where Adam alone would not arrive.
        checkpoint_dir: where to keep snapshots. A run that finds its own there goes on from the
            last one, and ends as if it had never been interrupted.
        seconds: stop after so many, at the end of a chunk. With checkpoints the warm start is
            not cut short, so that the run can go on as if there had been no limit.
        mesh: the devices to run on; all by default, those of other processes included where
            `relbo.distributed.initialize` has brought some together. The rows of a minibatch
            are spread over them, or else the particles of the loss: as many devices as divide
            their number take a part each. Arrays among the arguments are put on every device;
            for data that are too large for that see `relbo.data.Rows`. The numbers are those
            of one device, up to rounding.
        progress: whether to show a bar.

    Returns:
        A `Fit`; its `result` says how it ended and `message` why.

    Example:
        >>> import jax, numpyro, numpyro.distributions as dist
        >>> def model(y):
        ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
        ...     numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> trained = fit(jax.random.key(0), model, (jax.numpy.ones(10),))
        >>> draws = trained.guide.sample_posterior(
        ...     jax.random.key(1), trained.params, jax.numpy.ones(10), sample_shape=(100,)
        ... )
    """
    deadline = np.inf if seconds is None else time.monotonic() + seconds
    settings = Settings(num_seeds, batch_size, early_stopping, patience, on_failure, warm_start)
    _check(settings, num_iterations, keep, loss, num_particles)
    key = typed_key(key)
    layout, arrays = split_call(args, kwargs, batch_size)
    arrays, sources = opened(layout, arrays)
    spread = spread_over(mesh)
    bad_arguments = not_finite(arrays, layout)
    try:
        trainer, traced, start = trainer_for(
            one_or_all(jr.split(key, num_seeds)),
            lambda: _default_guide(model, layout.first_call(arrays)),
            model=model,
            guide=guide,
            loss=loss,
            optimiser=optimiser,
            layout=layout,
            arrays=arrays,
            num_particles=num_particles,
            num_seeds=num_seeds,
            spread=spread,
        )
    except RuntimeError as error:
        if not bad_arguments:
            raise
        # NumPyro found no initial values, and does not say why.
        raise ValueError(
            f"args: {', '.join(bad_arguments)} of the model's arguments holds NaN or infinity, "
            "and the guide found no place to begin"
        ) from error
    if on_failure == "back off" and not trainer.is_adjustable:
        raise ValueError(
            'on_failure: "back off" needs an optimiser of optax, whose updates can be scaled, '
            f"got {type(optimiser).__name__}"
        )
    monitor = Monitor(
        is_default=trainer.is_default,
        window=max(1, -(-patience // CHUNK)),
        stops_early=early_stopping,
        backs_off=on_failure == "back off",
    )
    with progress_bar(progress) as report:
        session = Session(key, trainer, traced, start, layout.first_call(arrays), settings)
        known = arrays
        if sources is not None and checkpoint_dir is not None:
            # Of data on disk only some rows are looked at.
            known = (arrays, [x and x.probe() for x in sources])
        snapshot, checkpoints = session.opened(checkpoint_dir, known, report, deadline)
        data = feed(trainer.layout, traced, sources, list(session.order_keys), spread)
        with contextlib.closing(data):
            run = Run(trainer, data, monitor, snapshot, checkpoints, report)
            ended = run.until(num_iterations, deadline)
    return outcome(trainer, monitor, ended, keep, bad_arguments)


def _check(
    settings: Settings,
    num_iterations: int,
    keep: str,
    loss: Any,
    num_particles: int | None,
) -> None:
    at_least_one = {
        "num_iterations": num_iterations,
        "num_seeds": settings.num_seeds,
        "patience": settings.patience,
        "num_particles": 1 if num_particles is None else num_particles,
    }
    for name, value in at_least_one.items():
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")
    if keep not in ("best", "all"):
        raise ValueError(f'keep: expected "best" or "all", got {keep!r}')
    if settings.on_failure not in ("stop", "back off"):
        raise ValueError(
            f'on_failure: expected "stop" or "back off", got {settings.on_failure!r}'
        )
    if loss is not None and num_particles is not None:
        raise ValueError(
            "num_particles: it is for the default loss; give your own loss its own number, as "
            "in Trace_ELBO(num_particles=16)"
        )


def _default_guide(model: Model, call: Call) -> AutoRefined:
    trace = initial_run(model, call)
    size = sum(int(np.size(trace[name]["value"])) for name in latent_names(trace))
    if size > DENSE_LIMIT or has_local_sites(trace):
        return AutoRefined(model)
    return AutoRefined(model, base=AutoMultivariateNormal)
