"""One row of the autoencoders' tables with one seed: trained, scored, and kept on disk."""

import shutil
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

from relbo.data import ImageSplits
from relbo.experiments import Protocol
from relbo.experiments._cells import Cell, computed_cell, kept_cell, slug
from relbo.experiments._image_figures import draw_codes
from relbo.experiments._image_rows import PAPER_STEP_SIZE, TEST_STEPS, Row
from relbo.experiments._image_scores import (
    annealed_loglikelihood,
    fitted_loglikelihood,
    paper_estimate,
    refined_draws,
)
from relbo.models import Autoencoder, autoencoder
from relbo.training import fit

BATCH_SIZE = 128
LOG_LIKELIHOOD = "test log-likelihood"
ANNEALED = "test log-likelihood, annealed, on a part"
GAP = "annealed less importance sampling, on that part"
PAPER_ESTIMATE = "the paper's estimate"
EPOCH_SECONDS = "seconds an epoch"
NUM_SHOWN = 20


class Settings(NamedTuple):
    """How much work a run is."""

    num_seeds: int
    sound_epochs: int
    paper_share: float
    """Of the paper's epochs."""
    num_train: int | None
    """`None` for all; so for the next."""
    num_test: int | None
    num_annealed: int
    num_temperatures: int
    num_draws: int
    learning_rate: float


class Trained(NamedTuple):
    vae: Autoencoder
    guide: Any
    params: dict[str, Any]
    seconds: float
    """Of training alone, with what was trained before an interruption left out."""


class Work(NamedTuple):
    """One protocol on one data set."""

    protocol: Protocol
    settings: Settings
    splits: ImageSplits
    paper_epochs: int
    directory: Path

    def num_epochs(self, row: Row) -> int:
        if self.protocol == "sound":
            return self.settings.sound_epochs
        epochs = self.paper_epochs if row.num_steps == 0 else 10
        return max(1, round(self.settings.paper_share * epochs))

    def num_iterations(self, row: Row) -> int:
        return self.num_epochs(row) * (len(self.splits.train.images) // BATCH_SIZE)

    def learning_rate(self) -> float:
        return self.settings.learning_rate if self.protocol == "sound" else 1e-3

    def train(self, row: Row, seed: int) -> Trained:
        """Goes on from a checkpoint where there is one."""
        begin = time.perf_counter()
        vae = autoencoder()
        guide, loss = row.build(vae)
        images = self.splits.train.images
        rate: Any = self.learning_rate()
        if self.protocol == "sound":
            rate = optax.cosine_decay_schedule(rate, self.num_iterations(row))
        fitted = fit(
            jr.key(seed),
            vae.model,
            (images,),
            {"num_images": len(images)},
            guide=guide,
            loss=loss,
            optimiser=optax.adam(rate),
            num_iterations=self.num_iterations(row),
            batch_size=BATCH_SIZE,
            early_stopping=False,
            warm_start=False,
            checkpoint_dir=self._checkpoints(row, seed),
        )
        return Trained(vae, guide, fitted.params, time.perf_counter() - begin)

    def score(self, row: Row, seed: int, trained: Trained) -> dict[str, float]:
        """The log-likelihood by two estimators, and in the paper's protocol by its own."""
        test = self.splits.test
        stride = max(1, len(test.images) // min(self.settings.num_annealed, len(test.images)))
        fit_key, anneal_key, paper_key = jr.split(jr.fold_in(jr.key(1), seed), 3)
        fitted = fitted_loglikelihood(
            fit_key,
            trained.vae,
            trained.guide,
            trained.params,
            test.images,
            num_draws=self.settings.num_draws,
        )
        annealed = annealed_loglikelihood(
            anneal_key,
            trained.vae,
            trained.params,
            test.images[::stride],
            num_temperatures=self.settings.num_temperatures,
        )
        value, slow = fitted.mean().value, annealed.mean().value
        scores = {
            LOG_LIKELIHOOD: value,
            ANNEALED: slow,
            GAP: slow - float(np.mean(fitted.values[::stride])),
            EPOCH_SECONDS: trained.seconds / self.num_epochs(row),
        }
        if self.protocol == "paper":
            scores |= self._paper_scores(paper_key, row, trained)
        return {name: float(score) for name, score in scores.items()}

    def figures(self, row: Row, trained: Trained) -> list[Path]:
        """Images, what is made of them, images made up, and ways through the latent space."""
        shown = self.splits.test.evenly(min(NUM_SHOWN, len(self.splits.test.images))).images
        num_latents = trained.vae.num_latents
        draws = refined_draws(jr.key(2), trained.guide, trained.params, shown, num_draws=1)
        decode = jax.jit(jax.vmap(trained.vae.decoder_from(trained.params)))
        seen = lambda codes: np.asarray(jax.nn.sigmoid(decode(codes)))
        stem = f"{self.protocol}_images_{slug(row.name)}"
        images = draw_codes(
            self.directory / stem,
            {
                "image": shown,
                "reconstruction": seen(draws[:, 0]),
                "from the prior": seen(jr.normal(jr.key(3), (len(shown), num_latents))),
            },
            row.name,
        )
        walks = {
            f"z[{axis}]": seen(_walk(draws[0, 0], axis, NUM_SHOWN))
            for axis in range(min(5, num_latents))
        }
        title = f"{row.name}: one image's code, each coordinate from -3 to 3"
        ways = self.directory / f"{self.protocol}_walks_{slug(row.name)}"
        return images + draw_codes(ways, walks, title)

    def words(self, row: Row) -> str:
        """How a row was trained."""
        decay = ", cosine decay" if self.protocol == "sound" else ""
        remark = f", {row.remark}" if row.remark else ", S = 5"
        return (
            f"trained for {self.num_epochs(row)} epochs of {len(self.splits.train.images)} "
            f"images, Adam {self.learning_rate()}{decay}, batch {BATCH_SIZE}{remark}"
        )

    def kept(self, row: Row, seed: int) -> Cell | None:
        """What was found before with the same settings."""
        return kept_cell(self._path(row, seed), self._decisive())

    def run(self, row: Row, seed: int, run: dict[str, Any], *, resume: bool) -> Cell:
        """Trains and scores, or finds what was found before."""

        def compute() -> tuple[dict[str, float], float]:
            trained = self.train(row, seed)
            if seed == 0:
                self.figures(row, trained)
            return self.score(row, seed, trained), trained.seconds

        kept = self.kept(row, seed) if resume else None
        if not resume:
            shutil.rmtree(self._checkpoints(row, seed), ignore_errors=True)
        return kept or computed_cell(self._path(row, seed), self._decisive(), run, compute)

    def _path(self, row: Row, seed: int) -> Path:
        return self.directory / "cells" / f"{self.protocol}-{slug(row.name)}-{seed}.json"

    def _decisive(self) -> dict[str, Any]:
        """What the numbers depend on; a seed is the same among few or many."""
        settings = self.settings._asdict()
        settings.pop("num_seeds")
        return {**settings, "train": _sum(self.splits.train), "test": _sum(self.splits.test)}

    def _paper_scores(self, key: Any, row: Row, trained: Trained) -> dict[str, float]:
        found = {}
        steps = {row.name: TEST_STEPS} if row.num_steps else {"VAE": 0, "VIS-0-10": TEST_STEPS}
        for name, num_steps in steps.items():
            estimate = paper_estimate(
                key,
                trained.vae,
                trained.params,
                self.splits.test.images,
                step_size=PAPER_STEP_SIZE,
                num_steps=num_steps,
            )
            found[f"{PAPER_ESTIMATE} / {name}"] = float(np.mean(estimate))
        return found

    def _checkpoints(self, row: Row, seed: int) -> Path:
        name = f"{self.protocol}-{slug(row.name)}-{self.num_epochs(row)}-{seed}"
        return self.directory / "checkpoints" / name


def _walk(code: Any, axis: int, number: int) -> Any:
    return jnp.tile(code, (number, 1)).at[:, axis].set(jnp.linspace(-3.0, 3.0, number))


def _sum(part: Any) -> str:
    """Tells one set of images from another."""
    images = np.asarray(part.images)
    return f"{images.shape}, {int(images.sum())} pixels"
