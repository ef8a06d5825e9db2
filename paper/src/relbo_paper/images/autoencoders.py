"""Autoencoders of binary images: does a refined encoder train a better model?

`paper` trains by the paper's recipe, whose objectives are surrogates, and prints its own test
estimator beside the log-likelihood. The two differ by many nats: the estimator rewards a wide
encoder whose spread the steps remove.

`sound` trains with accounts that are bounds, each beside its baseline: VIS beside the VAE, and
importance-weighted VIS beside IWAE, all with the same draws, epochs and schedule. The other
methods of the paper's table are trained by the same code.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from relbo_paper.data import ImageSplits
from relbo_paper.data.splits import even_rows
from relbo_paper.harness.cells import Cell, slug
from relbo_paper.harness.experiments import Options, Outcome
from relbo_paper.harness.metrics import Record, over_seeds
from relbo_paper.harness.protocols import settings_for
from relbo_paper.images.claims import FOLDED, LOG_LIKELIHOOD, PAPER_ESTIMATE
from relbo_paper.images.figures import draw_image_rows
from relbo_paper.images.rows import PAPER_STEP_SIZE, TEST_STEPS, ImageRow, rows_of
from relbo_paper.images.scores import (
    NUM_CHAINS,
    NUM_LEAPFROGS,
    NUM_PAPER_DRAWS,
    annealed_loglikelihood,
    default_round_draws,
    fitted_loglikelihood,
    paper_estimate,
    refined_draws,
    share_folded,
)
from relbo_paper.images.work import (
    PART,
    AbstractImageWork,
    TrainedAutoencoder,
    chosen_rows,
    loaded_images,
    run_images,
)
from relbo_paper.models import Autoencoder, autoencoder

ANNEALED = "test log-likelihood, annealed, on a part"
GAP = "annealed less importance sampling, on that part"
OBJECTIVE = "objective on the training images"
EPOCH_SECONDS = "seconds an epoch"
NUM_SHOWN = 20
DRAWS_PER_LATENT = 5
"""Draws of each image's code for the first proposal, per latent value."""
QUICK_ROWS = ("VAE", "IWAE", "VIS T=5, Gaussian, importance-weighted", "VIS-5-10, particle")
"""The rows of a quick run without `--only`."""


class AutoencoderSettings(NamedTuple):
    """The size of a run."""

    num_seeds: int
    sound_epochs: int
    """Number of epochs of a row that is not long."""
    paper_share: float
    """Share of the paper's number of epochs."""
    num_train: int | None
    """`None` for all."""
    num_test: int | None
    """`None` for all."""
    num_annealed: int
    num_temperatures: int
    num_draws: int
    num_rounds: int
    """Number of times that the proposal of each image is fitted."""
    learning_rate: float
    """Of Adam; this and the next two are those of `sound`, the same for all rows."""
    matrix_rate: float
    """Of Muon, in the same units."""
    weight_decay: float
    """Of the matrices that Muon updates."""


FULL = AutoencoderSettings(
    num_seeds=3,
    sound_epochs=10,
    paper_share=1.0,
    num_train=None,
    num_test=None,
    num_annealed=500,
    num_temperatures=300,
    num_draws=500,
    num_rounds=6,
    learning_rate=3e-3,
    matrix_rate=1e-2,
    weight_decay=0.03,
)
QUICK = AutoencoderSettings(
    num_seeds=1,
    sound_epochs=3,
    paper_share=0.1,
    num_train=6_400,
    num_test=100,
    num_annealed=10,
    num_temperatures=100,
    num_draws=200,
    num_rounds=2,
    learning_rate=3e-3,
    matrix_rate=1e-2,
    weight_decay=0.03,
)


class ImageDataset(NamedTuple):
    """A data set, and the paper's figures for it."""

    experiment: str
    load: Callable[[Path | None], ImageSplits]
    paper_epochs: int
    """Number of epochs at T = 0; at T = 5 it is 10."""
    paper: dict[str, float]
    """The paper's own rows, by its own estimator."""


def run_dataset(dataset: ImageDataset, directory: Path, options: Options) -> Outcome:
    """Runs the requested protocols and writes their numbers and figures to `directory`."""
    settings = settings_for(options, full=FULL, quick=QUICK)
    rows = chosen_rows(rows_of, options, QUICK_ROWS)
    splits = loaded_images(
        dataset.load, options, num_train=settings.num_train, num_test=settings.num_test
    )
    work_for = lambda protocol: AutoencoderWork(protocol, settings, splits, directory, dataset)
    metrics = run_images(dataset.experiment, directory, options, work_for, rows)
    return Outcome(metrics, tuple(sorted(directory.glob("*.png"))))


@dataclass(frozen=True)
class AutoencoderWork(AbstractImageWork):
    """The work of one protocol on one data set."""

    dataset: ImageDataset

    def rows(self) -> list[ImageRow]:
        return rows_of(self.protocol)

    def model(self, row: ImageRow) -> Autoencoder:
        return autoencoder(num_latents=row.num_latents, activation=row.activation)

    def data(self) -> tuple:
        return (self.splits.train.images,)

    def paper_epochs(self, row: ImageRow) -> int:
        return self.dataset.paper_epochs if row.num_steps == 0 else 10

    def paper_rate(self) -> float:
        return 1e-3

    def score(self, row: ImageRow, seed: int, trained: TrainedAutoencoder) -> dict[str, float]:
        """Returns the log-likelihood by two estimators, and the paper's estimate in `paper`."""
        test = self.splits.test.images
        stride = max(1, len(test) // min(self.settings.num_annealed, len(test)))
        fit_key, anneal_key, paper_key = jr.split(jr.fold_in(jr.key(1), seed), 3)
        draw_key, weigh_key = jr.split(fit_key)
        vae, guide, params = trained.vae, trained.guide, trained.params
        number = DRAWS_PER_LATENT * vae.num_latents
        draws = refined_draws(draw_key, guide, params, test, num_draws=number)
        if seed == 0:
            self._draw_figures(row, trained, draws[:, 0])
        fitted = fitted_loglikelihood(
            weigh_key,
            vae,
            params,
            test,
            draws,
            num_draws=self.settings.num_draws,
            num_rounds=self.settings.num_rounds,
        )
        scores = {LOG_LIKELIHOOD: fitted.mean().value, OBJECTIVE: trained.objective}
        if row.may_fold:
            some = test[::stride]
            folded = share_folded(draw_key, guide, params, some, num_draws=number)
            scores[FOLDED] = float(np.mean(folded))
        if trained.is_whole and trained.part > 0.0:
            scores[EPOCH_SECONDS] = trained.seconds / (trained.part * self.num_epochs(row))
        if seed == 0:
            # It is expensive and only checks the other estimate, for which one seed suffices.
            annealed = annealed_loglikelihood(
                anneal_key,
                vae,
                params,
                test[::stride],
                num_temperatures=self._num_temperatures(row),
            )
            scores[ANNEALED] = slow = annealed.mean().value
            scores[GAP] = slow - float(np.mean(fitted.values[::stride]))
        if self.protocol == "paper":
            scores |= self._paper_scores(paper_key, row, trained)
        return {name: float(score) for name, score in scores.items()}

    def num_scoring_passes(self, row: ImageRow, seed: int) -> float:
        settings, number = self.settings, len(self.splits.test.images)
        draws = DRAWS_PER_LATENT * row.num_latents * 2 * row.num_steps
        rounds = settings.num_rounds * default_round_draws(settings.num_draws, row.num_latents)
        passes = number * (draws + rounds + settings.num_draws)
        if self.protocol == "paper":
            passes += number * NUM_PAPER_DRAWS * (1 + 2 * TEST_STEPS)
        if seed == 0:
            num_moves = NUM_CHAINS * NUM_LEAPFROGS * self._num_temperatures(row)
            passes += min(settings.num_annealed, number) * 2 * num_moves
        return passes

    def records(self, row: ImageRow, cells: Sequence[Cell]) -> Iterator[Record]:
        for metric in dict.fromkeys(metric for cell in cells for metric in cell.scores):
            name, _, other = metric.partition(" / ")
            is_bound = {LOG_LIKELIHOOD: True, ANNEALED: True, PAPER_ESTIMATE: False}
            yield over_seeds(
                [cell.scores[metric] for cell in cells if metric in cell.scores],
                experiment=self.dataset.experiment,
                protocol=self.protocol,
                row=other or row.name,
                metric=name,
                estimator=self._estimator(name, row) + self.training_description(row),
                seconds=sum(cell.seconds for cell in cells),
                valid_bound=is_bound.get(name),
                paper=self._published(row, name, other),
            )

    def _paper_scores(
        self, key: Any, row: ImageRow, trained: TrainedAutoencoder
    ) -> dict[str, float]:
        """Returns the paper's estimate; of the plain model with and without steps."""
        steps = {row.name: TEST_STEPS} if row.num_steps else {"VAE": 0, "VIS-0-10": TEST_STEPS}
        estimate = lambda num_steps: paper_estimate(
            key,
            trained.vae,
            trained.params,
            self.splits.test.images,
            step_size=PAPER_STEP_SIZE,
            num_steps=num_steps,
        )
        return {
            f"{PAPER_ESTIMATE} / {name}": float(np.mean(estimate(num_steps)))
            for name, num_steps in steps.items()
        }

    def _draw_figures(self, row: ImageRow, trained: TrainedAutoencoder, codes: Any) -> None:
        """Draws images, reconstructions, draws from the prior and walks in latent space."""
        test = self.splits.test.images
        rows = even_rows(len(test), min(NUM_SHOWN, len(test)))
        shown, codes, num_latents = test[rows], codes[rows], trained.vae.num_latents
        decode = jax.jit(jax.vmap(trained.vae.decoder_from(trained.params)))
        seen = lambda codes: np.asarray(jax.nn.sigmoid(decode(codes)))
        images = {
            "image": shown,
            "reconstruction": seen(codes),
            "from the prior": seen(jr.normal(jr.key(3), (len(shown), num_latents))),
        }
        walks = {
            f"z[{axis}]": seen(_walk(codes[0], axis, NUM_SHOWN))
            for axis in range(min(5, num_latents))
        }
        name = f"{self.protocol}_{{}}_{slug(row.name)}"
        draw_image_rows(self.directory / name.format("images"), images, row.name)
        title = f"{row.name}: the code of one image, each coordinate from -3 to 3"
        draw_image_rows(self.directory / name.format("walks"), walks, title)

    def _published(self, row: ImageRow, metric: str, other: str) -> float | None:
        """Returns the published figure: by the paper's estimator, or a log-likelihood."""
        if metric == PAPER_ESTIMATE:
            return self.dataset.paper["VIS-5-10" if row.num_steps else other]
        if metric == LOG_LIKELIHOOD:
            return row.published.get(self.dataset.experiment)
        return None

    def _num_temperatures(self, row: ImageRow) -> int:
        return row.annealing * self.settings.num_temperatures

    def _estimator(self, metric: str, row: ImageRow) -> str:
        """Describes an estimator."""
        number = len(self.splits.test.images)
        part = min(self.settings.num_annealed, number)
        return {
            LOG_LIKELIHOOD: f"importance sampling, {self.settings.num_draws} draws per image "
            f"from a proposal fitted {self.settings.num_rounds + 1} times, first to its own "
            f"draws, {number} test images; ",
            ANNEALED: f"annealed importance sampling, {self._num_temperatures(row)} "
            f"temperatures, {part} evenly spaced test images; ",
            GAP: f"the two estimates on the same {part} images; ",
            PAPER_ESTIMATE: "log-mean-exp of 10 draws after noiseless steps, with a density "
            "evaluated at its own centre; ",
            OBJECTIVE: "mean training objective per image over the last iterations; ",
            FOLDED: f"share of {DRAWS_PER_LATENT * row.num_latents} draws of each of {part} "
            "evenly spaced test images whose step folds or nearly folds; ",
            EPOCH_SECONDS: "training alone, compilation included; ",
            PART: "share of the iterations before the training failed; ",
        }[metric]


def _walk(code: Any, axis: int, number: int) -> Any:
    return jnp.tile(code, (number, 1)).at[:, axis].set(jnp.linspace(-3.0, 3.0, number))
