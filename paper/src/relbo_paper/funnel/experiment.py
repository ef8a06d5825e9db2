"""The funnel (paper, section 5.1): is a refined guide a better approximation?

`paper` repeats the published comparison: a diagonal Gaussian without refinement and with one
SGLD step, 50 iterations of Adam, the loss at iteration 30. The published loss at T = 1 is a
surrogate, so each of these rows has a second number: the ELBO of the same trained guide under
the reverse-kernel account, which is a bound.

`sound` trains valid accounts for longer and compares their ELBO with the exact log Z = 0.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float

from relbo import (
    SGD,
    SGLD,
    AbstractAccount,
    AbstractKernel,
    ChangeOfVariablesAccount,
    DiagonalNormal,
    GaussianAccount,
    MonteCarloAccount,
    ParticleAccount,
    PerStep,
    Refinement,
    ReverseKernelAccount,
    Underdamped,
)
from relbo_paper.funnel.claims import CLAIMS as CLAIMS
from relbo_paper.funnel.figures import FunnelCloud, FunnelCurve, draw_clouds, draw_losses
from relbo_paper.harness.experiments import Options, Outcome, Protocol
from relbo_paper.harness.metrics import Record, over_seeds
from relbo_paper.harness.progress import counted
from relbo_paper.harness.protocols import run_protocols, settings_for
from relbo_paper.harness.seed_fits import (
    LearnedGuide,
    SeedEvaluations,
    SeedFits,
    draw_seeds,
    evaluate_seeds,
    fit_seeds,
)
from relbo_paper.models import FUNNEL_SCALE, funnel_logdensity

PAPER_ITERATION = 30
PAPER_LOSS_PLAIN = 1.011
PAPER_LOSS_REFINED = 0.667
_REFINED_ROW = "T=32 annealed underdamped, reverse kernel"


class FunnelSettings(NamedTuple):
    """The size of a run."""

    num_seeds: int
    sound_iterations: int
    evaluation_draws: int
    paper_step_sizes: tuple[float, ...]
    sound_langevin_steps: tuple[int, ...]
    show_uncapped: bool = False
    paper_iterations: int = 50
    training_draws: int = 64
    cloud_draws: int = 4_000


FULL = FunnelSettings(
    num_seeds=10,
    sound_iterations=2_000,
    evaluation_draws=100_000,
    paper_step_sizes=(0.01, 0.05),
    sound_langevin_steps=(8, 32),
    show_uncapped=True,
)
QUICK = FunnelSettings(
    num_seeds=3,
    sound_iterations=300,
    evaluation_draws=20_000,
    paper_step_sizes=(0.05,),
    sound_langevin_steps=(8,),
)


class FunnelRow(NamedTuple):
    """A row of the table."""

    name: str
    refinement: Refinement


class TrainedFunnel(NamedTuple):
    """A row with its trained guides and their evaluation."""

    row: FunnelRow
    fit: SeedFits
    evaluation: SeedEvaluations
    seconds: float


def run(directory: Path, options: Options) -> Outcome:
    """Runs the requested protocols and writes their numbers and figures to `directory`."""
    settings = settings_for(options, full=FULL, quick=QUICK)
    protocols = {"paper": _run_paper, "sound": _run_sound}
    return run_protocols(
        directory, options, lambda protocol: protocols[protocol](directory, settings)
    )


def paper_rows(settings: FunnelSettings) -> list[FunnelRow]:
    """Returns the rows with no step, and with one SGLD step under the paper's accounts.

    The paper names neither its step size nor the account of its figure.
    """
    accounts = {"Monte Carlo": MonteCarloAccount(), "particle": ParticleAccount()}
    return [_plain_row()] + [
        FunnelRow(
            f"T=1 SGLD {step_size}, {name}", _refinement(SGLD(step_size), account, num_steps=1)
        )
        for step_size in settings.paper_step_sizes
        for name, account in accounts.items()
    ]


def sound_rows(settings: FunnelSettings) -> list[FunnelRow]:
    """Returns the rows with bounds, and one that is a bound while its steps are one-to-one."""

    def steps(num_steps: int, step_size: float) -> PerStep:
        return PerStep(jnp.full((num_steps, 2), step_size))

    def sgld(num_steps: int) -> Refinement:
        kernel = SGLD(steps(num_steps, 0.01))
        return _refinement(kernel, ReverseKernelAccount(), num_steps=num_steps)

    def annealed(num_steps: int, step_size: float, cap: float | None = None) -> Refinement:
        kernel = Underdamped(steps(num_steps, step_size), damping=0.9)
        account = ReverseKernelAccount()
        return _refinement(kernel, account, num_steps=num_steps, anneal=True, max_step_size=cap)

    def sgd(account: AbstractAccount) -> Refinement:
        return _refinement(SGD(steps(8, 0.01)), account, num_steps=8)

    return [
        _plain_row(),
        FunnelRow("T=8 SGD, Gaussian", sgd(GaussianAccount())),
        *(
            FunnelRow(f"T={num_steps} SGLD, reverse kernel", sgld(num_steps))
            for num_steps in settings.sound_langevin_steps
        ),
        FunnelRow("T=8 annealed underdamped, reverse kernel", annealed(8, 0.1)),
        # A leapfrog is unstable where its step exceeds twice the width of the funnel. Without a
        # cap a few draws in a million have enormous negative log weights; the second row is
        # kept to show this.
        FunnelRow(f"{_REFINED_ROW}, step < 0.1", annealed(32, 0.05, cap=0.1)),
        *(
            [FunnelRow(f"{_REFINED_ROW}, no cap", annealed(32, 0.05))]
            if settings.show_uncapped
            else []
        ),
        FunnelRow("T=8 SGD, change of variables", sgd(ChangeOfVariablesAccount())),
    ]


def _plain_row() -> FunnelRow:
    return FunnelRow("T=0", _refinement(SGLD(), ReverseKernelAccount(), num_steps=0))


def _refinement(
    kernel: AbstractKernel, account: AbstractAccount, *, anneal: bool = False, **options: Any
) -> Refinement:
    """Returns a refinement that takes its steps in the coordinates of the funnel."""
    return Refinement(kernel, account, anneal=anneal, space="unconstrained", **options)


def _run_paper(directory: Path, settings: FunnelSettings) -> tuple[list[Record], list[Path]]:
    trained = _train_all(
        "paper",
        paper_rows(settings),
        settings,
        optax.adam(0.1),
        settings.paper_iterations,
        snapshot=PAPER_ITERATION,
    )
    records = [record for each in trained.values() for record in _paper_records(each, settings)]
    curves = [FunnelCurve(name, jnp.asarray(each.fit.losses)) for name, each in trained.items()]
    chosen = [trained["T=0"], trained["T=1 SGLD 0.05, Monte Carlo"]]
    clouds = [_cloud(each, settings, f"after {PAPER_ITERATION} iterations") for each in chosen]
    paper = {"T=0": PAPER_LOSS_PLAIN, "T=1": PAPER_LOSS_REFINED}
    figures = draw_losses(directory / "paper_loss", curves, PAPER_ITERATION, paper)
    figures += draw_clouds(directory / "paper_contours", clouds)
    return records, figures


def _run_sound(directory: Path, settings: FunnelSettings) -> tuple[list[Record], list[Path]]:
    iterations = settings.sound_iterations
    # The neck of the funnel gives rare, huge gradients. Without clipping, one of them stops
    # Adam for a thousand iterations; with tight clipping, the guide never learns to avoid it.
    optimiser = optax.chain(
        optax.clip_by_global_norm(100.0),
        optax.adam(optax.cosine_decay_schedule(0.01, iterations)),
    )
    trained = _train_all("sound", sound_rows(settings), settings, optimiser, iterations)
    records = [record for each in trained.values() for record in _sound_records(each, settings)]
    chosen = [trained["T=0"], trained[f"{_REFINED_ROW}, step < 0.1"]]
    elbos = [_mean(each.evaluation.objective) for each in chosen]
    clouds = [
        _cloud(each, settings, f"ELBO {elbo:.2f} (exact log Z: 0)")
        for each, elbo in zip(chosen, elbos, strict=True)
    ]
    return records, draw_clouds(directory / "sound_contours", clouds)


def _train_all(
    protocol: Protocol,
    rows: Sequence[FunnelRow],
    settings: FunnelSettings,
    optimiser: optax.GradientTransformation,
    num_iterations: int,
    snapshot: int | None = None,
) -> dict[str, TrainedFunnel]:
    trained = {}
    with counted(f"funnel, {protocol}", len(rows)) as done:
        for row in rows:
            trained[row.name] = _train(row, settings, optimiser, num_iterations, snapshot)
            done(row.name)
    return trained


def _train(
    row: FunnelRow,
    settings: FunnelSettings,
    optimiser: optax.GradientTransformation,
    num_iterations: int,
    snapshot: int | None = None,
) -> TrainedFunnel:
    start = time.perf_counter()
    guide = LearnedGuide(DiagonalNormal(jnp.zeros(2)), row.refinement)
    fit = fit_seeds(
        _keys("fit", settings),
        guide,
        funnel_logdensity,
        optimiser,
        num_iterations=num_iterations,
        num_draws=settings.training_draws,
        snapshot=snapshot,
    )
    evaluation = _evaluate(fit.guides, settings)
    jax.block_until_ready(evaluation)
    return TrainedFunnel(row, fit, evaluation, time.perf_counter() - start)


def _paper_records(trained: TrainedFunnel, settings: FunnelSettings) -> Iterator[Record]:
    record = _recorder("paper", trained, settings)
    at = f"at iteration {PAPER_ITERATION}"
    loss = -trained.evaluation.objective
    if trained.row.refinement.num_steps == 0:
        yield record(f"negative ELBO {at}", loss, True, paper=PAPER_LOSS_PLAIN)
        return
    yield record(f"surrogate loss {at}", loss, False, paper=PAPER_LOSS_REFINED)
    # The same guide, trained as in the paper, under an account that gives a bound.
    with_bound = eqx.tree_at(
        lambda guides: guides.refinement.account, trained.fit.guides, ReverseKernelAccount()
    )
    yield record(f"negative ELBO {at}", -_evaluate(with_bound, settings).objective, True)


def _sound_records(trained: TrainedFunnel, settings: FunnelSettings) -> Iterator[Record]:
    record = _recorder("sound", trained, settings)
    valid = trained.row.refinement.bound.valid
    name = "ELBO" if valid else "objective, a bound while one-to-one"
    yield record(name, trained.evaluation.objective, valid)
    spread = jnp.sqrt(trained.evaluation.variance[:, 0])
    yield record(f"sd of z1 (exact: {FUNNEL_SCALE})", spread, None)
    if valid is None:
        yield record("share of draws seen to fold", trained.evaluation.folded, None)
    if jnp.any(trained.evaluation.failed > 0):
        yield record("share of walks that failed", trained.evaluation.failed, None)


def _recorder(
    protocol: Protocol, trained: TrainedFunnel, settings: FunnelSettings
) -> Callable[..., Record]:
    optimiser = {
        "paper": "Adam 0.1 (our choice: the paper does not say)",
        "sound": f"{settings.sound_iterations} iterations of Adam 0.01, cosine decay, clip 100",
    }[protocol]
    estimator = (
        f"mean of {settings.evaluation_draws} fresh draws per seed; trained with {optimiser}, "
        f"{settings.training_draws} draws per iteration"
    )

    def record(
        metric: str,
        values: Float[Array, " seeds"],
        valid_bound: bool | None,
        paper: float | None = None,
    ) -> Record:
        return over_seeds(
            values,
            experiment="funnel",
            protocol=protocol,
            row=trained.row.name,
            metric=metric,
            estimator=estimator,
            seconds=trained.seconds,
            valid_bound=valid_bound,
            paper=paper,
        )

    return record


def _evaluate(guides: LearnedGuide, settings: FunnelSettings) -> SeedEvaluations:
    return evaluate_seeds(
        _keys("evaluate", settings),
        guides,
        funnel_logdensity,
        num_draws=settings.evaluation_draws,
    )


def _cloud(trained: TrainedFunnel, settings: FunnelSettings, note: str) -> FunnelCloud:
    """Draws from the first seed's guide."""
    guides = jax.tree.map(
        lambda leaf: leaf[:1] if eqx.is_inexact_array(leaf) else leaf, trained.fit.guides
    )
    keys = _keys("draw", settings)[:1]
    draws = draw_seeds(keys, guides, funnel_logdensity, num_draws=settings.cloud_draws)
    base = guides.base
    return FunnelCloud(
        f"{trained.row.name}\n{note}",
        draws.position[0],
        base.loc[0],
        base.scale.value[0],
    )


def _keys(purpose: str, settings: FunnelSettings) -> Array:
    # Training and evaluation must not share their draws.
    stream = ("fit", "evaluate", "draw").index(purpose)
    return jr.split(jr.fold_in(jr.key(0), stream), settings.num_seeds)


def _mean(values: Float[Array, " seeds"]) -> float:
    return float(jnp.mean(values))
