"""Tuning the sampler by gradient (paper, abstract and section 3.2): does it speed up mixing?

A guide with T Langevin steps inside is trained, its step size with it. Then the sampler runs on
from the guide, and what its draws are worth is held against the same run with step sizes from a
grid, and against runs whose start was not learned (which the paper says are "much worse").

What a run is worth is counted in independent draws: the variance of a statistic over the mean
squared error of its average along a chain, for the worst statistic. So the bias of a finite
step and of a start far away count as errors. The usual effective sample size, from
autocorrelations, would praise a step so large that the draws are wrong.

`paper` trains with the Monte Carlo account, a surrogate, in the coordinates of the target.
`sound` trains with the reverse kernel, a bound, and walks in those of the learned Gaussian.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jaxtyping import Array, Float, Scalar

from relbo.bases import AbstractBase, DiagonalNormal
from relbo.entropy import MonteCarlo, ReverseKernel
from relbo.experiments import Options, Outcome, Protocol
from relbo.experiments._fit import Guide, fit_seeds
from relbo.experiments._metrics import Record, over_seeds
from relbo.experiments._run import run_protocols, settings_for
from relbo.experiments._tuning_figures import Panel, draw_step_sizes, draw_worth
from relbo.experiments._tuning_story import METRIC, STEP_METRIC, STORY
from relbo.experiments._tuning_targets import Target, targets
from relbo.kernels import SGLD
from relbo.refinement import Refinement

__all__ = ["STORY", "run"]

GRID = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_FIRST_STEP = 0.02


class Settings(NamedTuple):
    """How much work a run is."""

    num_seeds: int
    num_iterations: int
    num_steps: int = 8
    """Of the refinement in training."""
    training_draws: int = 64
    num_chains: int = 256
    long_steps: int = 250


FULL = Settings(num_seeds=5, num_iterations=3_000)
QUICK = Settings(num_seeds=2, num_iterations=300, num_chains=64)


class Tuned(NamedTuple):
    """A target, its trained guides, and what their long runs are worth."""

    target: Target
    step_sizes: Float[np.ndarray, "seeds iterations"]
    worth: dict[str, Float[np.ndarray, "seeds ..."]]
    """By row; those over the grid have an axis for it."""
    seconds: float


def run(directory: Path, options: Options) -> Outcome:
    """Runs the protocols asked for and writes their numbers and figures to `directory`."""
    settings = settings_for(options, full=FULL, quick=QUICK)
    all_targets = targets(quick=options.quick)
    return run_protocols(
        directory,
        options,
        lambda protocol: _run_protocol(protocol, directory, settings, all_targets),
    )


def _run_protocol(
    protocol: Protocol, directory: Path, settings: Settings, all_targets: list[Target]
) -> tuple[list[Record], list[Path]]:
    tuned = [_tune(protocol, target, settings) for target in all_targets]
    records = [record for each in tuned for record in _records(protocol, each, settings)]
    panels = [
        Panel(
            each.target.name,
            each.step_sizes,
            each.worth["learned start, step from the grid"],
            each.worth["start not learned, step from the grid"],
            each.worth["learned start, learned step"],
        )
        for each in tuned
    ]
    figures = draw_step_sizes(directory / f"{protocol}_step_sizes", panels)
    figures += draw_worth(directory / f"{protocol}_worth", panels, GRID)
    return records, figures


def refinement(protocol: Protocol, step_size: float | Scalar, num_steps: int) -> Refinement:
    """The sampler that a protocol trains, and its long run with a step size of one's choice."""
    if protocol == "paper":
        return Refinement(SGLD(step_size), MonteCarlo(), num_steps=num_steps)
    return Refinement(SGLD(step_size), ReverseKernel(), num_steps=num_steps, space="whitened")


def _tune(protocol: Protocol, target: Target, settings: Settings) -> Tuned:
    start = time.perf_counter()
    plain = DiagonalNormal(jnp.zeros(target.size))
    fit = fit_seeds(
        jr.split(jr.key(0), settings.num_seeds),
        Guide(plain, refinement(protocol, _FIRST_STEP, settings.num_steps)),
        target.logdensity_fn,
        # As for the funnel: without the clip one huge gradient stops Adam for long.
        optax.chain(
            optax.clip_by_global_norm(100.0),
            optax.adam(optax.cosine_decay_schedule(0.02, settings.num_iterations)),
        ),
        num_iterations=settings.num_iterations,
        num_draws=settings.training_draws,
        watch=lambda guide: guide.refinement.kernel.step_size.value,
    )
    traces = np.asarray(fit.watched)
    learned_step, learned_base = jnp.asarray(traces[:, -1]), fit.guides.base
    plain_bases = jax.tree.map(lambda leaf: jnp.stack([leaf] * settings.num_seeds), plain)
    grid = jnp.broadcast_to(jnp.array(GRID), (settings.num_seeds, len(GRID)))
    measure = _measurer(protocol, target, settings)
    worth = {
        "learned start, learned step": measure(learned_base, learned_step[:, None])[:, 0],
        "start not learned, learned step": measure(plain_bases, learned_step[:, None])[:, 0],
        "learned start, step from the grid": measure(learned_base, grid),
        "start not learned, step from the grid": measure(plain_bases, grid),
    }
    seconds = time.perf_counter() - start
    print(f"tuning: {protocol}, {target.name}: {seconds:.0f} s", flush=True)
    return Tuned(target, traces, worth, seconds)


def _measurer(
    protocol: Protocol, target: Target, settings: Settings
) -> Callable[[AbstractBase, Float[Array, "seeds steps"]], Float[np.ndarray, "seeds steps"]]:
    """Long runs of each seed's base with each of some step sizes: what 1000 gradients buy."""
    truth, variance = jnp.asarray(target.mean), jnp.asarray(target.variance)

    def one(key: Array, base: AbstractBase, step_size: Scalar) -> Scalar:
        path = refinement(protocol, step_size, 1).run(
            key,
            base,
            target.logdensity_fn,
            num_draws=settings.long_steps - 1,
            num_particles=settings.num_chains,
        )
        values = jax.vmap(jax.vmap(target.statistics))(path.position)
        errors = jnp.mean(values, axis=1) - truth.astype(values.dtype)[None]
        draws = variance.astype(values.dtype) / jnp.mean(errors**2, axis=0)
        # A run that left the numbers is worth nothing.
        worst = jnp.min(jnp.nan_to_num(draws, nan=0.0, posinf=0.0))
        return 1000.0 * worst / settings.long_steps

    @eqx.filter_jit
    def measure(base: AbstractBase, step_sizes: Array) -> Array:
        keys = jr.split(jr.key(1), step_sizes.shape)
        by_step = jax.vmap(one, in_axes=(0, None, 0))
        return jax.vmap(by_step)(keys, base, step_sizes)

    return lambda base, step_sizes: np.asarray(measure(base, step_sizes))


def _records(protocol: Protocol, tuned: Tuned, settings: Settings) -> Iterator[Record]:
    estimator = (
        f"variance over mean squared error, the worst statistic, {settings.num_chains} chains "
        f"of {settings.long_steps} steps; trained {settings.num_iterations} iterations of Adam"
    )

    def record(row: str, metric: str, values: Float[np.ndarray, " seeds"]) -> Record:
        return over_seeds(
            values,
            experiment="tuning",
            protocol=protocol,
            row=f"{tuned.target.name}: {row}",
            metric=metric,
            estimator=estimator,
            seconds=tuned.seconds,
        )

    yield record("learned", STEP_METRIC, tuned.step_sizes[:, -1])
    for name, values in tuned.worth.items():
        if values.ndim == 1:
            yield record(name, METRIC, values)
            continue
        start = name.partition(",")[0]
        for number, step_size in enumerate(GRID):
            yield record(f"{start}, step {step_size:g}", METRIC, values[:, number])
