"""Autoencoders on binary images: does a refined encoder train a better one?

`paper` trains by the paper's recipe, whose objectives are surrogates, and prints its own test
estimator beside the log-likelihood. The two differ by many nats: the estimator pays for a wide
encoder whose spread the steps have taken back.

`sound` trains with accounts that are bounds, each beside its baseline: VIS beside the VAE, and
importance-weighted VIS beside IWAE, all with the same draws, epochs and schedule.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.random as jr
import numpy as np
import optax
from numpyro.infer import Trace_ELBO

from relbo._progress import counted
from relbo.data import ImageSplits
from relbo.elbo import PointwiseELBO
from relbo.entropy import AbstractEntropy, Gaussian, MonteCarlo, Particle, ReverseKernel
from relbo.experiments import Options, Outcome, Protocol
from relbo.experiments._image_figures import draw_codes
from relbo.experiments._image_scores import (
    annealed_loglikelihood,
    fitted_loglikelihood,
    paper_estimate,
    refined_draws,
)
from relbo.experiments._metrics import Record, over_seeds
from relbo.experiments._run import run_protocols, settings_for
from relbo.guides import refine
from relbo.kernels import SGD, SGLD, AbstractKernel
from relbo.models import Autoencoder, autoencoder
from relbo.training import Fit, fit

BATCH_SIZE = 128
NUM_PARTICLES = 5
LEARNING_RATE = 1e-3
PAPER_STEP_SIZE = 1e-3
TRAIN_STEPS, TEST_STEPS = 5, 10
LOG_LIKELIHOOD = "test log-likelihood"
ANNEALED = "test log-likelihood, annealed, on a part"
PAPER_ESTIMATE = "the paper's estimate"


class Dataset(NamedTuple):
    """Images, and what the paper says of them."""

    experiment: str
    load: Callable[[Path | None], ImageSplits]
    paper_epochs: int
    """At T = 0; at T = 5 it trains for 10."""
    paper: dict[str, float]
    """Its own rows, by its own estimator."""


class Settings(NamedTuple):
    """How much work a run is."""

    num_seeds: int
    sound_epochs: int
    paper_share: float
    """Of the paper's epochs."""
    num_train: int | None
    """`None` for all; so for the two below."""
    num_test: int | None
    num_annealed: int
    num_temperatures: int
    num_draws: int


FULL = Settings(
    num_seeds=3,
    sound_epochs=60,
    paper_share=1.0,
    num_train=None,
    num_test=None,
    num_annealed=500,
    num_temperatures=1_000,
    num_draws=1_000,
)
QUICK = Settings(
    num_seeds=1,
    sound_epochs=2,
    paper_share=0.1,
    num_train=12_800,
    num_test=200,
    num_annealed=16,
    num_temperatures=100,
    num_draws=300,
)


class Row(NamedTuple):
    """One way to train."""

    name: str
    kernel: AbstractKernel
    entropy: AbstractEntropy
    num_steps: int
    is_weighted: bool = False
    """Whether the objective is importance-weighted, image by image."""

    @property
    def loss(self) -> Any:
        return PointwiseELBO(NUM_PARTICLES) if self.is_weighted else Trace_ELBO(NUM_PARTICLES)


class Trained(NamedTuple):
    row: Row
    vae: Autoencoder
    guide: Any
    fits: list[Fit]
    """One a seed."""
    seconds: float


def paper_rows() -> list[Row]:
    """The plain autoencoder, and five steps under the paper's two accounts."""
    return [
        Row("VAE", SGD(PAPER_STEP_SIZE), Gaussian(), 0),
        Row("VIS-5-10, particle", SGD(PAPER_STEP_SIZE), Particle(), TRAIN_STEPS),
        Row("VIS-5-10, Monte Carlo", SGLD(PAPER_STEP_SIZE), MonteCarlo(), TRAIN_STEPS),
    ]


def sound_rows() -> list[Row]:
    """Bounds, each kind beside its baseline."""
    return [
        Row("VAE", SGD(), Gaussian(), 0),
        Row("VIS T=5, Gaussian", SGD(0.01), Gaussian(), TRAIN_STEPS),
        Row("VIS T=5, reverse kernel", SGLD(1e-3), ReverseKernel(), TRAIN_STEPS),
        Row("IWAE", SGD(), Gaussian(), 0, is_weighted=True),
        Row(
            "VIS T=5, Gaussian, importance-weighted",
            SGD(0.01),
            Gaussian(),
            TRAIN_STEPS,
            is_weighted=True,
        ),
    ]


def run_dataset(dataset: Dataset, directory: Path, options: Options) -> Outcome:
    """Runs the protocols asked for and writes their numbers and figures to `directory`."""
    settings = settings_for(options, full=FULL, quick=QUICK)
    splits = _cut(dataset.load(options.data_dir), settings)

    def run_protocol(protocol: Protocol) -> tuple[list[Record], list[Path]]:
        rows = paper_rows() if protocol == "paper" else sound_rows()
        work = Work(dataset, protocol, settings, splits, directory)
        records: list[Record] = []
        figures: list[Path] = []
        with counted(f"{dataset.experiment}, {protocol}", len(rows)) as done:
            for row in rows:
                trained = work.train(row)
                records += work.records(trained)
                figures += work.figures(trained)
                done(row.name)
        return records, figures

    return run_protocols(directory, options, run_protocol)


def _cut(splits: ImageSplits, settings: Settings) -> ImageSplits:
    """Some of the images where a run is to be short."""
    train, test = splits.train, splits.test
    if settings.num_train is not None:
        train = train.evenly(min(settings.num_train, len(train.images)))
    if settings.num_test is not None:
        test = test.evenly(min(settings.num_test, len(test.images)))
    return splits._replace(train=train, test=test)


class Work(NamedTuple):
    """One protocol on one data set."""

    dataset: Dataset
    protocol: Protocol
    settings: Settings
    splits: ImageSplits
    directory: Path

    def train(self, row: Row) -> Trained:
        """One fit a seed; each keeps checkpoints and goes on from them."""
        begin = time.perf_counter()
        vae = autoencoder()
        guide = refine(
            vae.guide,
            vae.model,
            kernel=row.kernel,
            entropy=row.entropy,
            num_steps=row.num_steps,
            space="unconstrained",
            anneal=False,
        )
        images = self.splits.train.images
        fits = [
            fit(
                jr.key(seed),
                vae.model,
                (images,),
                {"num_images": len(images)},
                guide=guide,
                loss=row.loss,
                optimiser=self._optimiser(row),
                num_iterations=self._num_iterations(row),
                batch_size=BATCH_SIZE,
                early_stopping=False,
                warm_start=False,
                checkpoint_dir=self._checkpoints(row, seed),
            )
            for seed in range(self.settings.num_seeds)
        ]
        return Trained(row, vae, guide, fits, time.perf_counter() - begin)

    def records(self, trained: Trained) -> Iterator[Record]:
        """The log-likelihood by two estimators, and in the paper's protocol by its own."""
        test = self.splits.test
        part = test.evenly(min(self.settings.num_annealed, len(test.images)))
        fitted, annealed = [], []
        for seed, each in enumerate(trained.fits):
            fit_key, anneal_key = jr.split(jr.fold_in(jr.key(1), seed))
            found = fitted_loglikelihood(
                fit_key,
                trained.vae,
                trained.guide,
                each.params,
                test.images,
                num_draws=self.settings.num_draws,
            )
            fitted.append(found.mean().value)
            slow = annealed_loglikelihood(
                anneal_key,
                trained.vae,
                each.params,
                part.images,
                num_temperatures=self.settings.num_temperatures,
            )
            annealed.append(slow.mean().value)
        yield self._record(trained, LOG_LIKELIHOOD, fitted, True, self._fitted_words(trained))
        yield self._record(trained, ANNEALED, annealed, True, self._annealed_words(part.images))
        if self.protocol == "paper":
            yield from self._paper_records(trained)

    def figures(self, trained: Trained) -> list[Path]:
        """Images, what is made of them, and images that are made up; of the first seed."""
        shown = self.splits.test.evenly(min(20, len(self.splits.test.images))).images
        params = trained.fits[0].params
        draws = refined_draws(jr.key(2), trained.guide, params, shown, num_draws=1)
        prior = jr.normal(jr.key(3), (len(shown), trained.vae.num_latents))
        decode = jax.vmap(trained.vae.decoder_from(params))
        probabilities = [jax.nn.sigmoid(decode(codes)) for codes in (draws[:, 0], prior)]
        name = trained.row.name.replace(",", "").replace(" ", "_").replace("=", "")
        return draw_codes(
            self.directory / f"{self.protocol}_images_{name}",
            {
                "image": shown,
                "reconstruction": np.asarray(probabilities[0]),
                "from the prior": np.asarray(probabilities[1]),
            },
            trained.row.name,
        )

    def _paper_records(self, trained: Trained) -> Iterator[Record]:
        is_plain = trained.row.num_steps == 0
        rows = {"VAE": 0, "VIS-0-10": TEST_STEPS} if is_plain else {"VIS-5-10": TEST_STEPS}
        for name, num_steps in rows.items():
            values = []
            for seed, each in enumerate(trained.fits):
                estimate = paper_estimate(
                    jr.fold_in(jr.key(4), seed),
                    trained.vae,
                    each.params,
                    self.splits.test.images,
                    step_size=PAPER_STEP_SIZE,
                    num_steps=num_steps,
                )
                values.append(float(np.mean(estimate)))
            words = (
                f"log-mean-exp of 10 draws after {num_steps} steps without noise, over a "
                f"density taken at its own centre; {self._training_words(trained.row)}"
            )
            record = self._record(trained, PAPER_ESTIMATE, values, False, words)
            row = name if is_plain else trained.row.name
            yield record._replace(row=row, paper=self.dataset.paper[name])

    def _record(
        self,
        trained: Trained,
        metric: str,
        values: list[float],
        valid_bound: bool,
        estimator: str,
    ) -> Record:
        return over_seeds(
            values,
            experiment=self.dataset.experiment,
            protocol=self.protocol,
            row=trained.row.name,
            metric=metric,
            estimator=estimator,
            seconds=trained.seconds,
            valid_bound=valid_bound,
        )

    def _num_epochs(self, row: Row) -> int:
        if self.protocol == "sound":
            return self.settings.sound_epochs
        epochs = self.dataset.paper_epochs if row.num_steps == 0 else 10
        return max(1, round(self.settings.paper_share * epochs))

    def _num_iterations(self, row: Row) -> int:
        return self._num_epochs(row) * (len(self.splits.train.images) // BATCH_SIZE)

    def _optimiser(self, row: Row) -> optax.GradientTransformation:
        if self.protocol == "paper":
            return optax.adam(LEARNING_RATE)
        return optax.adam(optax.cosine_decay_schedule(LEARNING_RATE, self._num_iterations(row)))

    def _checkpoints(self, row: Row, seed: int) -> Path:
        epochs = self._num_epochs(row)
        name = f"{self.protocol}, {row.name}, {epochs} epochs, seed {seed}"
        return self.directory / "checkpoints" / name

    def _training_words(self, row: Row) -> str:
        decay = ", cosine decay" if self.protocol == "sound" else ""
        return (
            f"trained for {self._num_epochs(row)} epochs of {len(self.splits.train.images)} "
            f"images, Adam {LEARNING_RATE}{decay}, batch {BATCH_SIZE}, S = {NUM_PARTICLES}"
        )

    def _fitted_words(self, trained: Trained) -> str:
        return (
            f"importance sampling, {self.settings.num_draws} draws an image from a proposal "
            f"fitted to its refined draws, {len(self.splits.test.images)} test images; "
            f"{self._training_words(trained.row)}"
        )

    def _annealed_words(self, part: np.ndarray) -> str:
        return (
            f"annealed importance sampling, {self.settings.num_temperatures} temperatures, "
            f"{len(part)} images taken evenly from the test images"
        )
