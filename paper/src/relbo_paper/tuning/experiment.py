"""Tuning the sampler by gradient (paper, abstract and section 3.2): does it speed up mixing?

A guide with T Langevin steps is trained together with its step size. Then the sampler continues
from the guide, and the efficiency of its draws is compared with that of the same run with step
sizes from a grid, and of runs without a learned start (which the paper calls "much worse").

The efficiency of a run is counted in independent draws: the variance of a statistic over the
mean squared error of its average along a chain, for the worst statistic. So the biases of a
finite step and of a distant start count as errors. The usual effective sample size, which is
computed from autocorrelations, would favour steps so large that the draws are wrong.

`paper` trains with the Monte Carlo account, a surrogate, in the coordinates of the target.
`sound` trains with the reverse kernel, a bound, in the coordinates of the learned Gaussian.
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

from relbo import (
    SGLD,
    AbstractBase,
    DiagonalNormal,
    MonteCarloAccount,
    Refinement,
    ReverseKernelAccount,
)
from relbo_paper.harness.experiments import Options, Outcome, Protocol
from relbo_paper.harness.metrics import Record, over_seeds
from relbo_paper.harness.protocols import run_protocols, settings_for
from relbo_paper.harness.seed_fits import LearnedGuide, fit_seeds
from relbo_paper.tuning.claims import CLAIMS as CLAIMS
from relbo_paper.tuning.claims import EFFICIENCY, STEP_SIZE
from relbo_paper.tuning.figures import TuningPanel, draw_efficiencies, draw_step_sizes
from relbo_paper.tuning.targets import TuningTarget, targets

GRID = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
_FIRST_STEP = 0.02


class TuningSettings(NamedTuple):
    """The size of a run."""

    num_seeds: int
    num_iterations: int
    num_steps: int = 8
    """Number of steps of the refinement in training."""
    training_draws: int = 64
    num_chains: int = 256
    long_steps: int = 250


FULL = TuningSettings(num_seeds=5, num_iterations=3_000)
QUICK = TuningSettings(num_seeds=2, num_iterations=300, num_chains=64)


class TunedTarget(NamedTuple):
    """A target with its learned step sizes and the efficiency of the long runs."""

    target: TuningTarget
    step_sizes: Float[np.ndarray, "seeds iterations"]
    efficiency: dict[str, Float[np.ndarray, "seeds ..."]]
    """By row; the rows over the grid have a second axis for it."""
    seconds: float


def run(directory: Path, options: Options) -> Outcome:
    """Runs the requested protocols and writes their numbers and figures to `directory`."""
    settings = settings_for(options, full=FULL, quick=QUICK)
    all_targets = targets(quick=options.quick)
    return run_protocols(
        directory,
        options,
        lambda protocol: _run_protocol(protocol, directory, settings, all_targets),
    )


def _run_protocol(
    protocol: Protocol,
    directory: Path,
    settings: TuningSettings,
    all_targets: list[TuningTarget],
) -> tuple[list[Record], list[Path]]:
    tuned = [_tune(protocol, target, settings) for target in all_targets]
    records = [record for each in tuned for record in _records(protocol, each, settings)]
    panels = [
        TuningPanel(
            each.target.name,
            each.step_sizes,
            each.efficiency["learned start, step from the grid"],
            each.efficiency["start not learned, step from the grid"],
            each.efficiency["learned start, learned step"],
        )
        for each in tuned
    ]
    figures = draw_step_sizes(directory / f"{protocol}_step_sizes", panels)
    figures += draw_efficiencies(directory / f"{protocol}_worth", panels, GRID)
    return records, figures


def refinement(protocol: Protocol, step_size: float | Scalar, num_steps: int) -> Refinement:
    """Returns the sampler of a protocol with a given step size and number of steps."""
    if protocol == "paper":
        account, space = MonteCarloAccount(), "unconstrained"
    else:
        account, space = ReverseKernelAccount(), "whitened"
    return Refinement(SGLD(step_size), account, num_steps=num_steps, anneal=False, space=space)


def _tune(protocol: Protocol, target: TuningTarget, settings: TuningSettings) -> TunedTarget:
    start = time.perf_counter()
    plain = DiagonalNormal(jnp.zeros(target.size))
    fit = fit_seeds(
        jr.split(jr.key(0), settings.num_seeds),
        LearnedGuide(plain, refinement(protocol, _FIRST_STEP, settings.num_steps)),
        target.logdensity_fn,
        # As for the funnel: without clipping, one huge gradient stops Adam for a long time.
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
    efficiency = {
        "learned start, learned step": measure(learned_base, learned_step[:, None])[:, 0],
        "start not learned, learned step": measure(plain_bases, learned_step[:, None])[:, 0],
        "learned start, step from the grid": measure(learned_base, grid),
        "start not learned, step from the grid": measure(plain_bases, grid),
    }
    seconds = time.perf_counter() - start
    print(f"tuning: {protocol}, {target.name}: {seconds:.0f} s", flush=True)
    return TunedTarget(target, traces, efficiency, seconds)


def _measurer(
    protocol: Protocol, target: TuningTarget, settings: TuningSettings
) -> Callable[[AbstractBase, Float[Array, "seeds steps"]], Float[np.ndarray, "seeds steps"]]:
    """Returns a function that measures long runs: independent draws per 1000 gradients.

    It runs the sampler from the base of each seed with each of several step sizes.
    """
    truth, variance = jnp.asarray(target.mean), jnp.asarray(target.variance)

    def one(key: Array, base: AbstractBase, step_size: Scalar) -> Scalar:
        path = refinement(protocol, step_size, 1).run(
            key,
            base,
            target.logdensity_fn,
            num_draws=settings.long_steps - 1,
            num_chains=settings.num_chains,
        )
        values = jax.vmap(jax.vmap(target.statistics))(path.position)
        errors = jnp.mean(values, axis=1) - truth.astype(values.dtype)[None]
        draws = variance.astype(values.dtype) / jnp.mean(errors**2, axis=0)
        # A divergent run counts as zero draws.
        worst = jnp.min(jnp.nan_to_num(draws, nan=0.0, posinf=0.0))
        return 1000.0 * worst / settings.long_steps

    @eqx.filter_jit
    def measure(base: AbstractBase, step_sizes: Array) -> Array:
        keys = jr.split(jr.key(1), step_sizes.shape)
        by_step = jax.vmap(one, in_axes=(0, None, 0))
        return jax.vmap(by_step)(keys, base, step_sizes)

    return lambda base, step_sizes: np.asarray(measure(base, step_sizes))


def _records(
    protocol: Protocol, tuned: TunedTarget, settings: TuningSettings
) -> Iterator[Record]:
    estimator = (
        f"variance over mean squared error of the worst statistic, {settings.num_chains} "
        f"chains of {settings.long_steps} steps; {settings.num_iterations} iterations of Adam"
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

    yield record("learned", STEP_SIZE, tuned.step_sizes[:, -1])
    for name, values in tuned.efficiency.items():
        if values.ndim == 1:
            yield record(name, EFFICIENCY, values)
            continue
        start = name.partition(",")[0]
        for number, step_size in enumerate(GRID):
            yield record(f"{start}, step {step_size:g}", EFFICIENCY, values[:, number])
