"""Autoencoders on binary images: does a refined encoder train a better one?

`paper` trains by the paper's recipe, whose objectives are surrogates, and prints its own test
estimator beside the log-likelihood. The two differ by many nats: the estimator pays for a wide
encoder whose spread the steps have taken back.

`sound` trains with accounts that are bounds, each beside its baseline: VIS beside the VAE, and
importance-weighted VIS beside IWAE, all with the same draws, epochs and schedule. The methods
that the paper's table stands beside are trained by the same code.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from relbo.data import ImageSplits
from relbo.data._splits import even_rows
from relbo.experiments import Options, Outcome
from relbo.experiments._autoencoders_story import FOLDED, LOG_LIKELIHOOD, PAPER_ESTIMATE
from relbo.experiments._cells import Cell, slug
from relbo.experiments._image_figures import draw_codes
from relbo.experiments._image_rows import PAPER_STEP_SIZE, TEST_STEPS, Row, rows_of
from relbo.experiments._image_scores import (
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
from relbo.experiments._image_work import (
    PART,
    AbstractWork,
    Trained,
    chosen_rows,
    loaded_images,
    run_images,
)
from relbo.experiments._metrics import Record, over_seeds
from relbo.experiments._run import settings_for
from relbo.models import Autoencoder, autoencoder

ANNEALED = "test log-likelihood, annealed, on a part"
GAP = "annealed less importance sampling, on that part"
OBJECTIVE = "objective on the training images"
EPOCH_SECONDS = "seconds an epoch"
NUM_SHOWN = 20
DRAWS_A_LATENT = 5
"""Of each image's code, for a first proposal."""
QUICK_ROWS = ("VAE", "IWAE", "VIS T=5, Gaussian, importance-weighted", "VIS-5-10, particle")
"""Of a quick run, unless others are asked for."""


class Settings(NamedTuple):
    """How much work a run is."""

    num_seeds: int
    sound_epochs: int
    """Of a row that is not long."""
    paper_share: float
    """Of the paper's epochs."""
    num_train: int | None
    """`None` for all; so for the next."""
    num_test: int | None
    num_annealed: int
    num_temperatures: int
    num_draws: int
    num_rounds: int
    """How often each image's proposal is fitted."""
    learning_rate: float
    """Of Adam; this and the next two under `sound`, for all rows alike."""
    matrix_rate: float
    """Of Muon, in the same units."""
    weight_decay: float
    """Of what Muon moves."""


FULL = Settings(
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
QUICK = Settings(
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


class Dataset(NamedTuple):
    """Images, and what the paper says of them."""

    experiment: str
    load: Callable[[Path | None], ImageSplits]
    paper_epochs: int
    """At T = 0; at T = 5 it trains for 10."""
    paper: dict[str, float]
    """Its own rows, by its own estimator."""


def run_dataset(dataset: Dataset, directory: Path, options: Options) -> Outcome:
    """Runs the protocols asked for and writes their numbers and figures to `directory`."""
    settings = settings_for(options, full=FULL, quick=QUICK)
    rows = chosen_rows(rows_of, options, QUICK_ROWS)
    splits = loaded_images(
        dataset.load, options, num_train=settings.num_train, num_test=settings.num_test
    )
    work_for = lambda protocol: Work(protocol, settings, splits, directory, dataset)
    metrics = run_images(dataset.experiment, directory, options, work_for, rows)
    return Outcome(metrics, tuple(sorted(directory.glob("*.png"))))


@dataclass(frozen=True)
class Work(AbstractWork):
    """One protocol on one data set."""

    dataset: Dataset

    def rows(self) -> list[Row]:
        return rows_of(self.protocol)

    def model(self, row: Row) -> Autoencoder:
        return autoencoder(num_latents=row.num_latents, activation=row.activation)

    def data(self) -> tuple:
        return (self.splits.train.images,)

    def paper_epochs(self, row: Row) -> int:
        return self.dataset.paper_epochs if row.num_steps == 0 else 10

    def paper_rate(self) -> float:
        return 1e-3

    def score(self, row: Row, seed: int, trained: Trained) -> dict[str, float]:
        """The log-likelihood by two estimators, and in the paper's protocol by its own."""
        test = self.splits.test.images
        stride = max(1, len(test) // min(self.settings.num_annealed, len(test)))
        fit_key, anneal_key, paper_key = jr.split(jr.fold_in(jr.key(1), seed), 3)
        draw_key, weigh_key = jr.split(fit_key)
        vae, guide, params = trained.vae, trained.guide, trained.params
        number = DRAWS_A_LATENT * vae.num_latents
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
            # It is dear, and there to check the other estimate, which one seed can do.
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

    def num_scoring_passes(self, row: Row, seed: int) -> float:
        settings, number = self.settings, len(self.splits.test.images)
        draws = DRAWS_A_LATENT * row.num_latents * 2 * row.num_steps
        rounds = settings.num_rounds * default_round_draws(settings.num_draws, row.num_latents)
        passes = number * (draws + rounds + settings.num_draws)
        if self.protocol == "paper":
            passes += number * NUM_PAPER_DRAWS * (1 + 2 * TEST_STEPS)
        if seed == 0:
            num_moves = NUM_CHAINS * NUM_LEAPFROGS * self._num_temperatures(row)
            passes += min(settings.num_annealed, number) * 2 * num_moves
        return passes

    def records(self, row: Row, cells: Sequence[Cell]) -> Iterator[Record]:
        for metric in dict.fromkeys(metric for cell in cells for metric in cell.scores):
            name, _, other = metric.partition(" / ")
            is_bound = {LOG_LIKELIHOOD: True, ANNEALED: True, PAPER_ESTIMATE: False}
            yield over_seeds(
                [cell.scores[metric] for cell in cells if metric in cell.scores],
                experiment=self.dataset.experiment,
                protocol=self.protocol,
                row=other or row.name,
                metric=name,
                estimator=self._how(name, row) + self.words(row),
                seconds=sum(cell.seconds for cell in cells),
                valid_bound=is_bound.get(name),
                paper=self._published(row, name, other),
            )

    def _paper_scores(self, key: Any, row: Row, trained: Trained) -> dict[str, float]:
        """The paper's estimate; of the plain model both without steps and with some."""
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

    def _draw_figures(self, row: Row, trained: Trained, codes: Any) -> None:
        """Images, what is made of them, images made up, and ways through the latent space."""
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
        draw_codes(self.directory / name.format("images"), images, row.name)
        title = f"{row.name}: one image's code, each coordinate from -3 to 3"
        draw_codes(self.directory / name.format("walks"), walks, title)

    def _published(self, row: Row, metric: str, other: str) -> float | None:
        """The paper's own figures by its estimator, its peers' log-likelihoods as published."""
        if metric == PAPER_ESTIMATE:
            return self.dataset.paper["VIS-5-10" if row.num_steps else other]
        if metric == LOG_LIKELIHOOD:
            return row.published.get(self.dataset.experiment)
        return None

    def _num_temperatures(self, row: Row) -> int:
        return row.annealing * self.settings.num_temperatures

    def _how(self, metric: str, row: Row) -> str:
        """What an estimate is."""
        number = len(self.splits.test.images)
        part = min(self.settings.num_annealed, number)
        return {
            LOG_LIKELIHOOD: f"importance sampling, {self.settings.num_draws} draws an image "
            f"from a proposal fitted {self.settings.num_rounds + 1} times, first to its own "
            f"draws, {number} test images; ",
            ANNEALED: f"annealed importance sampling, {self._num_temperatures(row)} "
            f"temperatures, {part} images taken evenly from the test images; ",
            GAP: f"the two estimates on the same {part} images; ",
            PAPER_ESTIMATE: "log-mean-exp of 10 draws after their steps without noise, over a "
            "density taken at its own centre; ",
            OBJECTIVE: "what was maximised, an image, over the last iterations; ",
            FOLDED: f"share of {DRAWS_A_LATENT * row.num_latents} draws of each of {part} "
            "images taken evenly from the test images whose step folds, or nearly so; ",
            EPOCH_SECONDS: "training alone, compilation included; ",
            PART: "how far it came before it failed; ",
        }[metric]


def _walk(code: Any, axis: int, number: int) -> Any:
    return jnp.tile(code, (number, 1)).at[:, axis].set(jnp.linspace(-3.0, 3.0, number))
