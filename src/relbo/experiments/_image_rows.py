"""The rows of the autoencoders' tables: ways to train one."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.infer import Trace_ELBO

from relbo._parameters import PerStep
from relbo.elbo import PointwiseELBO
from relbo.entropy import (
    AbstractEntropy,
    ChangeOfVariables,
    Gaussian,
    MonteCarlo,
    Particle,
    ReverseKernel,
)
from relbo.experiments import Protocol
from relbo.experiments._autoencoders_story import (
    BY_ADAM,
    CHANGE_OF_VARIABLES,
    FOR_LONG,
    MORE_LATENTS,
    ONE_DRAW,
    PUBLISHED,
    SMOOTH,
)
from relbo.experiments._peers import SIVI, UIVI, ContrastiveDivergence, HamiltonianDLGM
from relbo.guides import refine
from relbo.kernels import SGD, SGLD, AbstractKernel, Underdamped
from relbo.models import Autoencoder
from relbo.models._networks import Activation
from relbo.refinement import Space

NUM_PARTICLES = 5
PAPER_STEP_SIZE = 1e-3
STEP_SIZE = 0.03
"""Where a learned step begins, in the latent space itself."""
WHITENED_STEP_SIZE = 0.02
"""Where each learned step begins in the encoder's own units: low, as these are far too wide at
first."""
UNFOLDED_STEP_SIZE = 5e-3
"""Where a step that must not fold begins in these units, which are too wide at first."""
LEAPFROG_SIZE = 0.1
"""The same of Hamiltonian steps."""
MAX_SCORE = 10.0
"""Of a step in these units: without a cap an image may run off, and then rules a minibatch."""
TRAIN_STEPS, TEST_STEPS = 5, 10
LONG = 6
"""How many times as long the long rows are trained."""
NUM_LATENTS, MANY_LATENTS = 10, 20
"""The paper's, and those of the larger models."""
HIDDEN_SIZES = (200, 200)

Optimiser = Literal["Muon", "Adam"]


class Row(NamedTuple):
    """One way to train."""

    name: str
    build: Callable[[Autoencoder], tuple[Any, Any]]
    """The guide and the loss, for a model."""
    num_passes: float
    """Work of an image in an iteration, in passes of it through a network, for the estimate of
    the time: one there, one back to what went in, one back to the weights."""
    num_steps: int = 0
    length: int = 1
    """How many times as long it is trained as the others."""
    optimiser: Optimiser = "Muon"
    """Under `sound`: Muon moves most matrices and Adam the rest, or Adam all."""
    num_latents: int = NUM_LATENTS
    activation: Activation = jax.nn.relu
    """Of the hidden layers."""
    published: dict[str, float] = {}  # noqa: RUF012 - never changed
    """The log-likelihood that the paper's table quotes, by experiment."""
    remark: str = f"S = {NUM_PARTICLES}"
    """What one must know of its training besides."""
    annealing: int = 1
    """How many times as many temperatures as the others its annealed estimate takes."""
    may_fold: bool = False
    """Whether its objective is a bound only while its steps do not fold space."""


def paper_rows() -> list[Row]:
    """The plain autoencoder, and five steps under the paper's two accounts."""
    step = PAPER_STEP_SIZE
    steps = [
        refined_row("VIS-5-10, particle", SGD(step), Particle(), TRAIN_STEPS),
        refined_row("VIS-5-10, Monte Carlo", SGLD(step), MonteCarlo(), TRAIN_STEPS),
    ]
    # Their posteriors are farthest from the prior, where annealing begins.
    return [
        refined_row("VAE", SGD(step), Gaussian(), 0),
        *(row._replace(annealing=2) for row in steps),
    ]


def sound_rows() -> list[Row]:
    """Bounds, each beside its baseline; the paper's peers; the first ones in other ways."""
    main = [
        refined_row("VAE", SGD(), Gaussian(), 0),
        refined_row("IWAE", SGD(), Gaussian(), 0, is_weighted=True),
        gaussian_row("VIS T=5, Gaussian"),
        gaussian_row("VIS T=5, Gaussian, importance-weighted", is_weighted=True),
        annealed_row("VIS T=5, reverse kernel"),
        annealed_row("VIS T=5, reverse kernel, importance-weighted", is_weighted=True),
    ]
    contrast = lambda vae: (vae.guide, ContrastiveDivergence(vae))
    vcd = Row("VCD", contrast, 50, remark="one chain")
    others = [
        gaussian_row(
            "VIS T=5, Gaussian, importance-weighted, decoder frozen in the steps",
            is_weighted=True,
            freeze_model=True,
        ),
        Row("UIVI", _semi_implicit(UIVI), 40),
        Row("HMC-DLGM", lambda vae: (vae.guide, HamiltonianDLGM(vae)), 40, remark="one chain"),
        Row("SIVI", _semi_implicit(SIVI), 120),
        vcd,
        # No bound after all: the score of a decoder with relus jumps.
        refined_row(
            f"{CHANGE_OF_VARIABLES}, importance-weighted",
            SGD(STEP_SIZE),
            ChangeOfVariables(),
            1,
            is_weighted=True,
        ),
    ]
    rows = [row._replace(published=_published(row.name)) for row in main + others]
    # What a method does for a poor optimiser, or for one in a hurry, it may not do for another;
    # and one whose gradients are as noisy as those of VCD does not stand a fast one.
    by_adam = [
        row._replace(name=f"{row.name}{BY_ADAM}", optimiser="Adam") for row in (*main[:4], vcd)
    ]
    long = [row._replace(name=f"{row.name}{FOR_LONG}", length=LONG) for row in main]
    # The long one has more time than the others' steps take.
    larger = [_with_more_latents(row) for row in (main[0], main[2], main[4], long[0])]
    # Without relus the change of variables is a bound, while its steps do not fold: those of
    # the latent space itself would, as most posteriors are narrower than their root. One draw
    # a time, since importance weights pass over what is charged for a fold.
    plain = refined_row(f"VAE{ONE_DRAW}", SGD(), Gaussian(), 0, num_draws=1)
    volume = refined_row(
        f"{CHANGE_OF_VARIABLES}{ONE_DRAW}",
        SGD(UNFOLDED_STEP_SIZE),
        ChangeOfVariables(monotone=True),
        1,
        space="whitened",
        max_score=MAX_SCORE,
        num_draws=1,
    )
    smooth = [_without_relus(row) for row in (main[1], plain, volume)]
    return rows + by_adam + long + larger + smooth


def _without_relus(row: Row) -> Row:
    """The same with networks whose gradients do not jump; the published ones have relus."""
    name, remark = f"{row.name}{SMOOTH}", f"{row.remark}, silu in place of relus"
    return row._replace(name=name, activation=jax.nn.silu, remark=remark)


def _with_more_latents(row: Row) -> Row:
    """The same of a larger model, which is not to be held against published figures."""
    remark = f"{row.remark}, {MANY_LATENTS} latent values"
    return row._replace(
        name=f"{row.name}{MORE_LATENTS}",
        num_latents=MANY_LATENTS,
        remark=remark,
        # With 300 temperatures it lay 0.31 to 0.36 below the other estimate of such rows.
        annealing=2 if row.num_steps else 1,
    )


def _published(name: str) -> dict[str, float]:
    return {data: rows[name] for data, rows in PUBLISHED.items() if name in rows}


def rows_of(protocol: Protocol) -> list[Row]:
    return paper_rows() if protocol == "paper" else sound_rows()


def gaussian_row(name: str, **options: Any) -> Row:
    """A row whose encoder's mean is refined, by steps in units of its standard deviations.

    There a step is one of natural gradients: long where an image says little of its code.
    """
    steps = PerStep(jnp.full(TRAIN_STEPS, WHITENED_STEP_SIZE))
    return refined_row(
        name,
        SGD(steps),
        Gaussian(),
        TRAIN_STEPS,
        space="whitened",
        max_score=MAX_SCORE,
        **options,
    )


def annealed_row(name: str, **options: Any) -> Row:
    """A row whose every draw is moved from the encoder's density towards the posterior.

    These are the steps that `refine` takes by default, but for a lower start and a cap.
    """
    each_step = lambda value: PerStep(jnp.full(TRAIN_STEPS, value))
    return refined_row(
        name,
        Underdamped(each_step(LEAPFROG_SIZE), each_step(0.9)),
        ReverseKernel(),
        TRAIN_STEPS,
        space="whitened",
        max_score=MAX_SCORE,
        anneal=True,
        **options,
    )


def refined_row(
    name: str,
    kernel: AbstractKernel,
    entropy: AbstractEntropy,
    num_steps: int,
    *,
    space: Space = "unconstrained",
    max_score: float | None = None,
    anneal: bool = False,
    num_draws: int = NUM_PARTICLES,
    is_weighted: bool = False,
    freeze_model: bool = False,
) -> Row:
    """A row whose guide is an encoder with a sampler inside."""

    def build(vae: Autoencoder) -> tuple[Any, Any]:
        guide = refine(
            vae.guide,
            vae.model,
            kernel=kernel,
            entropy=entropy,
            num_steps=num_steps,
            space=space,
            max_score=max_score,
            anneal=anneal,
            unroll=True,
            freeze_model=freeze_model,
        )
        # Weights, or a volume, of a point's own; without them all points share a loss and
        # fewer draws of random numbers are made.
        is_pointwise = is_weighted or entropy.counts_volume
        loss = PointwiseELBO if is_pointwise else Trace_ELBO
        return guide, loss(num_particles=num_draws)

    units = ", steps in the encoder's own units" if space == "whitened" else ""
    cap = "" if max_score is None else f" with scores capped at {max_score:g}"
    path = ", annealed" if anneal else ""
    return Row(
        name,
        build,
        _num_passes(entropy, num_steps, num_draws, freeze_model),
        num_steps,
        remark=f"S = {num_draws}{units}{cap}{path}",
        may_fold=entropy.counts_volume,
    )


def _num_passes(
    entropy: AbstractEntropy, num_steps: int, num_draws: int, freeze_model: bool
) -> float:
    """In passes of one image: a step and its derivative are six, or four without weights."""
    a_step: float = 4 if freeze_model else 6
    if isinstance(entropy, ChangeOfVariables):
        a_step *= 10  # latent values, each with a column of the Jacobian
    num_paths = 1 if entropy.redraws else num_draws
    encoder = 6
    return encoder + 3 * num_draws + a_step * num_steps * num_paths


def _semi_implicit(kind: Any) -> Callable[[Autoencoder], tuple[Any, Any]]:
    def build(vae: Autoencoder) -> tuple[Any, Any]:
        num_pixels = vae.encoder.first.weights[0].shape[0]
        guide = kind(num_pixels, vae.num_latents, HIDDEN_SIZES)
        return guide, Trace_ELBO(num_particles=NUM_PARTICLES)

    return build
