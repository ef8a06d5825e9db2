"""Trains a guide."""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.random as jr
import numpy as np
from jax.sharding import Mesh
from jaxtyping import PRNGKeyArray

from relbo._devices import spread_over
from relbo._progress import Callback, progress_bar
from relbo.core.checks import check_integer
from relbo.core.random import as_key
from relbo.guides.refined_guide import AbstractRefinedGuide
from relbo.problem import read
from relbo.problem.call import Keywords, checked_call
from relbo.training.checkpoints import Checkpoints, fingerprint, first_snapshot
from relbo.training.data import RowStream, laid_out
from relbo.training.loop import TrainingLoop
from relbo.training.program import program_for
from relbo.training.result import Fit, result_of
from relbo.training.starts import Starts, warm_values
from relbo.training.stopping import Stopping, StoppingRule


def fit(
    key: PRNGKeyArray | int,
    model: Any,
    args: tuple = (),
    kwargs: Keywords = None,
    *,
    guide: Any = None,
    loss: Any = None,
    optimiser: Any = None,
    num_iterations: int = 10_000,
    batch_size: int | None = None,
    starts: Starts = Starts(),  # noqa: B008
    stopping: Stopping = Stopping(),  # noqa: B008
    checkpoint_dir: str | Path | None = None,
    mesh: Mesh | None = None,
    progress: bool = True,
    callback: Callback | None = None,
) -> Fit:
    """Trains a guide, refined or not, with NumPyro's SVI.

    Iterations are compiled in chunks of 100; the host looks at the losses after each chunk. A
    second fit with the same model, guide, loss and optimiser (the same objects) to data of the
    same shapes compiles nothing.

    Args:
        key: a random key or an integer seed.
        model: a NumPyro program, or any other model that `infer` takes; its NumPyro program
            is then `relbo.problem.read(model).program.model`.
        args, kwargs: its arguments, which are also the guide's; see `infer` for what they may
            be.
        guide: any guide of NumPyro or relbo, or a function. The default is `AutoRefined`,
            which chooses its base.
        loss: a NumPyro ELBO, which also says how many draws an update takes
            (`Trace_ELBO(num_particles=16)`). The default is `Trace_ELBO` with 16 draws, or
            `RefinedELBO` with 16 particles if the particles of the guide's kernel interact.
        optimiser: an optax optimiser, schedules included. The default is Adam with gradients
            clipped at a global norm of 10. Its learning rate is 0.02 until the smoothed loss
            stops falling or a third of the iterations or of the time has passed. It then falls
            to zero in twice as many iterations, so that no schedule is needed; after a warm
            start in three times as many.
        num_iterations: maximum number of iterations.
        batch_size: number of rows of a minibatch. Each array among the arguments that has the
            common leading length N is subsampled, in a new random order each epoch that the key
            determines; the last N mod batch_size rows of an epoch are left out. The model
            scales by its own plate: `numpyro.plate("data", N, subsample_size=batch_size)`. A
            refined guide then takes its steps on the minibatch that the loss sees; its ELBO is
            a bound for local latent values only. See `relbo.bound` and `guide.bound`.
        starts: number of seeds, and whether to start from a fitted normal.
        stopping: when to stop early, the time budget, and what to do about a failure.
        checkpoint_dir: a directory for snapshots. A run that finds its own snapshots there
            continues from the last one and ends as if it had never been interrupted.
        mesh: the devices to use; the default is all devices, including those of other processes
            after `relbo.distributed.initialize`. The rows of a minibatch are spread over the
            devices, or the draws of the loss if there are no minibatches: as many devices as
            divide their number take a part each. Arrays among the arguments are copied to every
            device; for data that do not fit there see `relbo.Rows`. The numbers are those of a
            single device, up to rounding.
        progress: whether to show a progress bar.
        callback: called with a `RunState` after each chunk of iterations, whose `values` hold
            the loss; the fit ends if it returns `True`. Several processes have to decide alike.

    Returns:
        A `Fit`; its `result` says how it ended and its `message` why.

    Example:
        >>> import jax, numpyro, numpyro.distributions as dist
        >>> def model(y):
        ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
        ...     numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)
        >>> trained = fit(0, model, (jax.numpy.ones(10),))
        >>> draws = trained.guide.sample_posterior(1, trained.params, sample_shape=(100,))
    """
    began = time.monotonic()
    _check_options(num_iterations, starts, stopping)
    deadline = np.inf if stopping.seconds is None else began + stopping.seconds
    model = model if callable(model) else read(model, args, kwargs).program.model
    keys = jr.split(as_key(key), starts.num_seeds)
    if isinstance(guide, AbstractRefinedGuide):
        guide = guide.without_data()
    given = laid_out(checked_call(args, kwargs), batch_size)
    bad_arguments = given.not_finite()
    spread = spread_over(mesh)
    with _naming(bad_arguments):
        program, initial, data = program_for(
            keys,
            given,
            model=model,
            guide=guide,
            loss=loss,
            optimiser=optimiser,
            spread=spread,
        )
    if stopping.on_failure == "back off" and not program.is_scalable:
        raise ValueError(
            'on_failure: "back off" needs an optimiser of optax, whose updates can be scaled, '
            f"got {type(optimiser).__name__}"
        )
    order_keys = jax.vmap(lambda key: jr.fold_in(key, 1))(keys)
    stream = RowStream(data, order_keys, spread)
    with progress_bar(progress, callback) as report, contextlib.closing(stream):
        checkpoints = snapshot = None
        if checkpoint_dir is not None:
            carry = program.begin(initial, {})
            text = program.text(carry, data.whole_arrays, stream.shapes)
            run = fingerprint(program, text, keys, given, (starts, stopping))
            checkpoints = Checkpoints(checkpoint_dir, run, spread)
            snapshot = checkpoints.latest(carry)
        if snapshot is None:
            # A warm start that is cut short differs from that of a resumed run, or of another
            # process.
            is_alone = checkpoints is None and not (spread and spread.is_shared)
            warm_deadline = deadline if is_alone else np.inf
            better = {}
            if starts.warm:
                better = warm_values(keys, program, data, initial, report, warm_deadline)
            snapshot = first_snapshot(
                program.begin(initial, better), len(keys), is_whitened=bool(better)
            )
        rule = StoppingRule(
            stopping,
            is_default_optimiser=program.is_default_optimiser,
            is_warm=snapshot.seeds[0].is_whitened,
        )
        loop = TrainingLoop(program, data, stream, rule, snapshot, checkpoints, report)
        end, is_late = loop.run(num_iterations, deadline)
    trained = result_of(
        program,
        rule,
        end,
        is_late=is_late,
        is_stopped=loop.is_stopped,
        bad_arguments=bad_arguments,
    )
    if batch_size is None and isinstance(trained.guide, AbstractRefinedGuide):
        call = given.layout.call.fill(given.arrays)
        trained = trained._replace(guide=trained.guide.with_data(*call.args, **call.kwargs))
    return trained


@contextlib.contextmanager
def _naming(bad_arguments: list[str]) -> Iterator[None]:
    """Explains why NumPyro finds no initial values, which it does not say itself."""
    try:
        yield
    except RuntimeError as error:
        if not bad_arguments:
            raise
        raise ValueError(
            f"args: {', '.join(bad_arguments)} of the model's arguments contains NaN or "
            "infinity, and the guide found no initial values"
        ) from error


def _check_options(num_iterations: int, starts: Any, stopping: Any) -> None:
    check_integer("num_iterations", num_iterations, 1)
    for name, value, kind in (("starts", starts, Starts), ("stopping", stopping, Stopping)):
        if not isinstance(value, kind):
            raise ValueError(
                f"{name}: expected relbo.{kind.__name__}, got {type(value).__name__}; write "
                f"{name}=relbo.{kind()}"
            )
