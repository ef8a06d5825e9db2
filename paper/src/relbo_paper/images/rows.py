"""The rows of the autoencoders' tables: each is a way to train a model."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.infer import Trace_ELBO

from relbo import (
    SGD,
    SGLD,
    AbstractAccount,
    AbstractKernel,
    ChangeOfVariablesAccount,
    Execution,
    GaussianAccount,
    MonteCarloAccount,
    ParticleAccount,
    PerStep,
    PointwiseELBO,
    Refinement,
    ReverseKernelAccount,
    Underdamped,
    refine,
)
from relbo_paper.harness.experiments import Protocol
from relbo_paper.images.claims import (
    BY_ADAM,
    CHANGE_OF_VARIABLES,
    FOR_LONG,
    MORE_LATENTS,
    ONE_DRAW,
    PUBLISHED,
    SMOOTH,
)
from relbo_paper.images.peers import SIVI, UIVI, ContrastiveDivergence, HamiltonianDLGM
from relbo_paper.models import Autoencoder
from relbo_paper.models.networks import Activation

NUM_DRAWS = 5
"""S, the number of draws per image in training."""
PAPER_STEP_SIZE = 1e-3
STEP_SIZE = 0.03
"""Initial value of a learned step size, in the coordinates of the latent space."""
WHITENED_STEP_SIZE = 0.02
"""Initial value of each learned step size in whitened coordinates; small, because the scale of
the encoder is much too large at first."""
UNFOLDED_STEP_SIZE = 5e-3
"""Initial value of a step size in whitened coordinates, for steps that must not fold."""
LEAPFROG_SIZE = 0.1
"""Initial value of the step size of Hamiltonian steps in whitened coordinates."""
MAX_SCORE = 10.0
"""Cap on the scores in whitened coordinates: divergent paths produce huge gradients."""
TRAIN_STEPS, TEST_STEPS = 5, 10
LONG = 6
"""The long rows are trained this many times longer."""
NUM_LATENTS, MANY_LATENTS = 10, 20
"""Number of latent values in the paper, and in the larger models."""
HIDDEN_SIZES = (200, 200)

Optimiser = Literal["Muon", "Adam"]


class ImageRow(NamedTuple):
    """A way to train an autoencoder."""

    name: str
    build: Callable[[Autoencoder], tuple[Any, Any]]
    """Returns the guide and the loss for a model."""
    num_passes: float
    """Work per image and iteration, for the estimate of the time, in passes through a network:
    one forward, one backward to the inputs, one backward to the weights."""
    num_steps: int = 0
    length: int = 1
    """It is trained this many times longer than the other rows."""
    optimiser: Optimiser = "Muon"
    """In `sound`: Muon updates most matrices and Adam the rest, or Adam updates all."""
    num_latents: int = NUM_LATENTS
    activation: Activation = jax.nn.relu
    """The activation of the hidden layers."""
    published: dict[str, float] = {}  # noqa: RUF012 - never changed
    """The log-likelihoods quoted in the paper's table, by experiment."""
    remark: str = f"S = {NUM_DRAWS}"
    """Further details of the training; a part of the settings of a kept cell."""
    annealing: int = 1
    """Its annealed estimate uses this many times more temperatures."""
    may_fold: bool = False
    """Whether its objective is a bound only if its steps do not fold space."""


def paper_rows() -> list[ImageRow]:
    """Returns the plain autoencoder, and five steps under the paper's two accounts."""
    step = PAPER_STEP_SIZE
    steps = [
        refined_row("VIS-5-10, particle", SGD(step), ParticleAccount(), TRAIN_STEPS),
        refined_row("VIS-5-10, Monte Carlo", SGLD(step), MonteCarloAccount(), TRAIN_STEPS),
    ]
    # Their posteriors are farthest from the prior, where annealing starts.
    return [
        refined_row("VAE", SGD(step), GaussianAccount(), 0),
        *(row._replace(annealing=2) for row in steps),
    ]


def sound_rows() -> list[ImageRow]:
    """Returns bounds with their baselines, the paper's other methods, and variations."""
    main = [
        refined_row("VAE", SGD(), GaussianAccount(), 0),
        refined_row("IWAE", SGD(), GaussianAccount(), 0, is_weighted=True),
        gaussian_row("VIS T=5, Gaussian"),
        gaussian_row("VIS T=5, Gaussian, importance-weighted", is_weighted=True),
        annealed_row("VIS T=5, reverse kernel"),
        annealed_row("VIS T=5, reverse kernel, importance-weighted", is_weighted=True),
    ]
    contrast = lambda vae: (vae.guide, ContrastiveDivergence(vae))
    vcd = ImageRow("VCD", contrast, 50, remark="one chain")
    others = [
        gaussian_row(
            "VIS T=5, Gaussian, importance-weighted, decoder frozen in the steps",
            is_weighted=True,
            freeze_model=True,
        ),
        ImageRow("UIVI", _semi_implicit(UIVI), 40),
        ImageRow(
            "HMC-DLGM", lambda vae: (vae.guide, HamiltonianDLGM(vae)), 40, remark="one chain"
        ),
        ImageRow("SIVI", _semi_implicit(SIVI), 120),
        vcd,
        # Not a bound: the score of a decoder with relus is discontinuous.
        refined_row(
            f"{CHANGE_OF_VARIABLES}, importance-weighted",
            SGD(STEP_SIZE),
            ChangeOfVariablesAccount(),
            1,
            is_weighted=True,
        ),
    ]
    rows = [row._replace(published=_published(row.name)) for row in main + others]
    # The gain of a method may depend on the optimiser and on the length of the training. VCD is
    # unstable with Muon, because its gradients are noisy.
    by_adam = [
        row._replace(name=f"{row.name}{BY_ADAM}", optimiser="Adam") for row in (*main[:4], vcd)
    ]
    long = [row._replace(name=f"{row.name}{FOR_LONG}", length=LONG) for row in main]
    # The long row takes more time than the refined ones.
    larger = [_with_more_latents(row) for row in (main[0], main[2], main[4], long[0])]
    # Without relus the change of variables is a bound if its steps do not fold. Steps in the
    # coordinates of the latent space would fold, because most posteriors are narrower than the
    # square root of the step size. One draw per image, because importance weights ignore the
    # charge for a fold.
    plain = refined_row(f"VAE{ONE_DRAW}", SGD(), GaussianAccount(), 0, num_draws=1)
    volume = refined_row(
        f"{CHANGE_OF_VARIABLES}{ONE_DRAW}",
        SGD(UNFOLDED_STEP_SIZE),
        ChangeOfVariablesAccount(monotone=True),
        1,
        space="whitened",
        max_score=MAX_SCORE,
        num_draws=1,
    )
    smooth = [_without_relus(row) for row in (main[1], plain, volume)]
    return rows + by_adam + long + larger + smooth


def _without_relus(row: ImageRow) -> ImageRow:
    """Returns the row with smooth activations; the published networks have relus."""
    name, remark = f"{row.name}{SMOOTH}", f"{row.remark}, silu in place of relus"
    return row._replace(name=name, activation=jax.nn.silu, remark=remark)


def _with_more_latents(row: ImageRow) -> ImageRow:
    """Returns the row with a larger model, which has no published figures."""
    remark = f"{row.remark}, {MANY_LATENTS} latent values"
    return row._replace(
        name=f"{row.name}{MORE_LATENTS}",
        num_latents=MANY_LATENTS,
        remark=remark,
        # With 300 temperatures it was 0.31 to 0.36 below the other estimate of these rows.
        annealing=2 if row.num_steps else 1,
    )


def _published(name: str) -> dict[str, float]:
    return {data: rows[name] for data, rows in PUBLISHED.items() if name in rows}


def rows_of(protocol: Protocol) -> list[ImageRow]:
    """Returns the rows of a protocol."""
    return paper_rows() if protocol == "paper" else sound_rows()


def gaussian_row(name: str, **options: Any) -> ImageRow:
    """Returns a row whose steps refine the encoder's mean in whitened coordinates.

    These steps follow natural gradients: they are long where an image is uninformative.
    """
    steps = PerStep(jnp.full(TRAIN_STEPS, WHITENED_STEP_SIZE))
    return refined_row(
        name,
        SGD(steps),
        GaussianAccount(),
        TRAIN_STEPS,
        space="whitened",
        max_score=MAX_SCORE,
        **options,
    )


def annealed_row(name: str, **options: Any) -> ImageRow:
    """Returns a row whose steps move every draw from the encoder towards the posterior."""
    each_step = lambda value: PerStep(jnp.full(TRAIN_STEPS, value))
    return refined_row(
        name,
        Underdamped(each_step(LEAPFROG_SIZE), each_step(0.9)),
        ReverseKernelAccount(),
        TRAIN_STEPS,
        space="whitened",
        max_score=MAX_SCORE,
        anneal=True,
        **options,
    )


def refined_row(
    name: str,
    kernel: AbstractKernel,
    account: AbstractAccount,
    num_steps: int,
    *,
    space: Literal["unconstrained", "whitened"] = "unconstrained",
    max_score: float | None = None,
    anneal: bool = False,
    num_draws: int = NUM_DRAWS,
    is_weighted: bool = False,
    freeze_model: bool = False,
) -> ImageRow:
    """Returns a row whose guide is an encoder with a sampler inside."""
    refinement = Refinement(
        kernel,
        account,
        num_steps=num_steps,
        space=space,
        max_score=max_score,
        anneal=anneal,
        execution=Execution(unroll=True),
    )

    def build(vae: Autoencoder) -> tuple[Any, Any]:
        guide = refine(vae.guide, vae.model, refinement=refinement, freeze_model=freeze_model)
        # A volume, like an importance weight, belongs to one image. Without them a loss of the
        # whole minibatch suffices, which draws fewer random numbers.
        if is_weighted or account.counts_volume:
            return guide, PointwiseELBO(num_draws=num_draws)
        return guide, Trace_ELBO(num_particles=num_draws)

    units = ", steps in the encoder's own units" if space == "whitened" else ""
    cap = "" if max_score is None else f" with scores capped at {max_score:g}"
    path = ", annealed" if anneal else ""
    return ImageRow(
        name,
        build,
        _num_passes(account, num_steps, num_draws, freeze_model),
        num_steps,
        remark=f"S = {num_draws}{units}{cap}{path}",
        may_fold=account.counts_volume,
    )


def _num_passes(
    account: AbstractAccount, num_steps: int, num_draws: int, freeze_model: bool
) -> float:
    """Counts passes per image: six for a step and its derivative, four without weights."""
    per_step: float = 4 if freeze_model else 6
    if isinstance(account, ChangeOfVariablesAccount):
        per_step *= NUM_LATENTS  # each latent value has a column of the Jacobian
    num_paths = 1 if account.redraws else num_draws
    encoder = 6
    return encoder + 3 * num_draws + per_step * num_steps * num_paths


def _semi_implicit(kind: Any) -> Callable[[Autoencoder], tuple[Any, Any]]:
    def build(vae: Autoencoder) -> tuple[Any, Any]:
        num_pixels = vae.encoder.first.weights[0].shape[0]
        guide = kind(num_pixels, vae.num_latents, HIDDEN_SIZES)
        return guide, Trace_ELBO(num_particles=NUM_DRAWS)

    return build
