"""A conditional autoencoder as a classifier (paper, section 5.4), and its decisions.

`paper` averages p(x | z, y) over the draws of the encoder, as printed. That average is not the
evidence of a class, because the draws already fit the image. `sound` weights the draws, so that
the average estimates p(x | y); there, each class may also have its own autoencoder.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from relbo import SGD, GaussianAccount, ParticleAccount
from relbo.evaluate import (
    CategoricalForecast,
    accuracy,
    calibration_error,
    decide,
    log_score,
)
from relbo_paper.data import ImageSplit, binarized_mnist
from relbo_paper.harness.cells import Cell, slug
from relbo_paper.harness.experiments import InputError, Options, Outcome, Protocol
from relbo_paper.harness.metrics import Record, over_seeds
from relbo_paper.harness.protocols import settings_for
from relbo_paper.images.class_scores import class_evidence, paper_class_scores, with_steps
from relbo_paper.images.classifier_claims import (
    ABSTAINED,
    ACCURACY,
    CALIBRATION,
    LOG_SCORE,
    POOLED,
    UTILITY,
)
from relbo_paper.images.classifier_claims import CLAIMS as CLAIMS
from relbo_paper.images.figures import draw_reliability
from relbo_paper.images.rows import (
    TEST_STEPS,
    TRAIN_STEPS,
    ImageRow,
    gaussian_row,
    refined_row,
)
from relbo_paper.images.work import (
    BATCH_SIZE,
    AbstractImageWork,
    TrainedAutoencoder,
    chosen_rows,
    loaded_images,
    run_images,
)
from relbo_paper.models import Autoencoder, autoencoder

NUM_CLASSES = 10
BY_CLASS = ", one for each class"
NUM_POOLED = 3
"""Number of seeds whose models classify together."""
NUM_DRAWS, MANY_DRAWS = 5, 100
MORE_STEPS, MORE_STEP_SIZE = 20, 0.2
"""Steps at test time, in whitened coordinates; both were chosen on validation images."""
PAPER_STEP_SIZE = 5e-5
PAPER = {"T = 0, 0": 0.965, "T = 0, 10": 0.977, "T = 5, 10": 0.998}
"""The accuracies in the paper, which are unconfirmed: its loader labels every image 0."""
WRONG, ABSTAIN = -5.0, 0.5
"""The utility of a wrong guess and of abstaining; a correct guess has utility 1."""


class ClassifierSettings(NamedTuple):
    """The size of a run."""

    num_seeds: int
    sound_epochs: int
    paper_share: float
    """Share of the paper's number of epochs."""
    num_train: int | None
    """`None` for all."""
    num_test: int | None
    """`None` for all."""
    learning_rate: float
    matrix_rate: float
    weight_decay: float


FULL = ClassifierSettings(3, 30, 1.0, None, None, 3e-3, 1e-2, 0.03)
QUICK = ClassifierSettings(1, 4, 0.1, 12_800, 500, 3e-3, 1e-2, 0.03)


def rows_of(protocol: Protocol) -> list[ImageRow]:
    """Returns the rows that are trained; most of them are tested in several ways."""
    if protocol == "paper":
        step = SGD(PAPER_STEP_SIZE)
        return [
            refined_row("T = 0", step, GaussianAccount(), 0),
            refined_row("T = 5", step, ParticleAccount(), TRAIN_STEPS),
        ]
    conditional = [
        refined_row("IWAE", SGD(), GaussianAccount(), 0, is_weighted=True),
        gaussian_row("VIS T=5, Gaussian, importance-weighted", is_weighted=True),
    ]
    # One decoder for all classes may draw a three when it is given the label eight.
    return conditional + [_by_class(row) for row in conditional]


def is_by_class(row: ImageRow) -> bool:
    """Returns whether the row trains one autoencoder for each class."""
    return row.name.endswith(BY_CLASS)


def _by_class(row: ImageRow) -> ImageRow:
    remark = f"{row.remark}, an autoencoder for each class"
    return row._replace(name=f"{row.name}{BY_CLASS}", remark=remark)


QUICK_ROWS = tuple(
    row.name
    for protocol in ("paper", "sound")
    for row in rows_of(protocol)
    if not is_by_class(row)
)
"""Without the rows by class, whose ten programs take long to compile."""


def run(directory: Path, options: Options) -> Outcome:
    """Runs the requested protocols and writes their numbers and figures to `directory`."""
    settings = settings_for(options, full=FULL, quick=QUICK)
    rows = chosen_rows(rows_of, options, QUICK_ROWS)
    splits = loaded_images(
        binarized_mnist, options, num_train=settings.num_train, num_test=settings.num_test
    )
    work_for = lambda protocol: ClassifierWork(protocol, settings, splits, directory)
    metrics = run_images("cvae", directory, options, work_for, rows)
    return Outcome(metrics, tuple(sorted(directory.glob("*.png"))))


@dataclass(frozen=True)
class ClassifierWork(AbstractImageWork):
    """The work of one protocol."""

    label: int | None = None
    """The class of all images, for the plain autoencoder of one class; else `None`."""

    def rows(self) -> list[ImageRow]:
        return rows_of(self.protocol)

    def model(self, row: ImageRow) -> Autoencoder:
        num_classes = NUM_CLASSES if self.label is None else None
        return autoencoder(num_latents=row.num_latents, num_classes=num_classes)

    def data(self) -> tuple:
        train = self.splits.train
        return (train.images, train.labels) if self.label is None else (train.images,)

    def train(self, row: ImageRow, seed: int) -> TrainedAutoencoder:
        """Trains a row; the parameters of ten autoencoders are stacked."""
        if self.label is not None or not is_by_class(row):
            return super().train(row, seed)
        return stacked([self.of_class(label).train(row, seed) for label in range(NUM_CLASSES)])

    def forget(self, row: ImageRow, seed: int) -> None:
        self._evidence_path(row, seed).unlink(missing_ok=True)
        if self.label is None and is_by_class(row):
            for label in range(NUM_CLASSES):
                self.of_class(label).forget(row, seed)
        super().forget(row, seed)

    def of_class(self, label: int) -> ClassifierWork:
        """Returns the same work on the images of one class."""
        train = self.splits.train
        is_of_class = np.asarray(train.labels) == label
        if is_of_class.sum() < BATCH_SIZE:
            raise InputError(
                f"--data-dir: {is_of_class.sum()} training images have the label {label}, and "
                f"an autoencoder for each class needs {BATCH_SIZE} of each: leave those rows "
                "out with --only"
            )
        part = ImageSplit(train.images[is_of_class], train.labels[is_of_class])
        splits = self.splits._replace(train=part)
        directory = self.directory / f"class_{label}"
        return replace(self, splits=splits, directory=directory, label=label)

    def paper_epochs(self, row: ImageRow) -> int:
        return 10 if row.num_steps else 15

    def paper_rate(self) -> float:
        # As in the released code; the text says 0.01.
        return 5e-4

    def score(self, row: ImageRow, seed: int, trained: TrainedAutoencoder) -> dict[str, float]:
        """Returns the scores of every way to test a trained row."""
        evidence = dict(self._evidence(row, seed, trained))
        self._keep(row, seed, evidence)
        pooled = self.pooled(row)
        self._draw({**(evidence if seed == 0 else {}), **pooled})
        return self._scores({**evidence, **pooled})

    def num_scoring_passes(self, row: ImageRow, seed: int) -> float:
        images_and_classes = NUM_CLASSES * len(self.splits.test.images)
        if self.protocol == "paper":
            moves = sum(1 + 2 * num_steps for num_steps in _paper_test_steps(row))
            return images_and_classes * NUM_DRAWS * moves
        # The steps move the mean of the encoder once for all draws.
        moves = 2 * (2 * row.num_steps + MORE_STEPS)
        return images_and_classes * (NUM_DRAWS + 2 * MANY_DRAWS + moves)

    def _scores(self, evidence: dict[str, Array]) -> dict[str, float]:
        # All classes have the same prior probability.
        observed = jnp.asarray(self.splits.test.labels)
        return {
            f"{metric} / {way}": score
            for way, values in evidence.items()
            for metric, score in scores_of(CategoricalForecast(values), observed).items()
        }

    def _draw(self, evidence: dict[str, Array]) -> None:
        observed = jnp.asarray(self.splits.test.labels)
        for way, values in evidence.items():
            stem = self.directory / f"{self.protocol}_reliability_{slug(way)}"
            draw_reliability(stem, CategoricalForecast(values), observed, way)

    def records(self, row: ImageRow, cells: Sequence[Cell]) -> Iterator[Record]:
        found = {
            name: [cell.scores[name] for cell in cells if name in cell.scores]
            for name in dict.fromkeys(name for cell in cells for name in cell.scores)
        }
        for name, values in found.items():
            metric, _, test = name.partition(" / ")
            yield over_seeds(
                # Earlier values may be of seeds that were run again since.
                values[-1:] if name.endswith(POOLED) else values,
                experiment="cvae",
                protocol=self.protocol,
                row=test,
                metric=metric,
                estimator=f"{self._estimator(metric)}; {self.training_description(row)}",
                seconds=sum(cell.seconds for cell in cells),
                paper=PAPER.get(test) if metric == ACCURACY else None,
            )

    def _evidence(
        self, row: ImageRow, seed: int, trained: TrainedAutoencoder
    ) -> Iterator[tuple[str, Array]]:
        """Yields each way to test with its log evidence of every class."""
        key = jr.fold_in(jr.key(1), seed)
        vae, guide, params = trained.vae, trained.guide, trained.params
        images = self.splits.test.images
        if self.protocol == "sound":
            for number in (NUM_DRAWS, MANY_DRAWS):
                found = class_evidence(key, vae, guide, params, images, num_draws=number)
                yield f"{row.name}, K = {number}", found
            guide, params = with_steps(
                vae, params, images, num_steps=MORE_STEPS, step_size=MORE_STEP_SIZE
            )
            found = class_evidence(key, vae, guide, params, images, num_draws=MANY_DRAWS)
            yield f"{row.name}, K = {MANY_DRAWS}, {MORE_STEPS} steps at test", found
            return
        for num_steps in _paper_test_steps(row):
            found = paper_class_scores(
                key,
                vae,
                params,
                images,
                num_draws=NUM_DRAWS,
                step_size=PAPER_STEP_SIZE,
                num_steps=num_steps,
            )
            yield f"T = {row.num_steps}, {num_steps}", found

    def pooled(self, row: ImageRow) -> dict[str, Array]:
        """Returns the mean log evidence of the first seeds' models, if all of it was kept.

        In a mixture, the model that assigns the highest evidence would dominate in each class.
        """
        if self.protocol == "paper" or self.settings.num_seeds < NUM_POOLED:
            return {}
        found = [self._kept_evidence(row, seed) for seed in range(NUM_POOLED)]
        if not all(found):
            return {}
        mean = lambda way: jnp.mean(jnp.stack([one[way] for one in found]), axis=0)
        return {f"{way}{POOLED}": mean(way) for way in found[0]}

    def _keep(self, row: ImageRow, seed: int, evidence: dict[str, Array]) -> None:
        """Saves the evidence, which takes much longer to compute than the scores."""
        path = self._evidence_path(row, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {way: np.asarray(values) for way, values in evidence.items()}
        np.savez(path, settings=json.dumps(self.cell_settings(row, seed)), **arrays)

    def _kept_evidence(self, row: ImageRow, seed: int) -> dict[str, Array]:
        """Loads the evidence; empty if there is none with the same settings."""
        path = self._evidence_path(row, seed)
        found = dict(np.load(path)) if path.exists() else {}
        if str(found.pop("settings", "")) != json.dumps(self.cell_settings(row, seed)):
            return {}
        return {way: jnp.asarray(values) for way, values in found.items()}

    def _evidence_path(self, row: ImageRow, seed: int) -> Path:
        return self.directory / "evidence" / f"{self.protocol}-{slug(row.name)}-{seed}.npz"

    def _estimator(self, metric: str) -> str:
        """Describes the estimator of a metric."""
        number = len(self.splits.test.images)
        draws = "importance-weighted draws" if self.protocol == "sound" else "draws, unweighted"
        found = f"{number} test images, class evidence from {draws}"
        if metric in (UTILITY, ABSTAINED):
            return f"{found}; right 1, wrong {WRONG:g}, abstained {ABSTAIN:g}"
        return found


def _paper_test_steps(row: ImageRow) -> tuple[int, ...]:
    """Returns the numbers of steps at test time."""
    return (TEST_STEPS,) if row.num_steps else (0, TEST_STEPS)


def stacked(parts: Sequence[TrainedAutoencoder]) -> TrainedAutoencoder:
    """Stacks the parameters of one autoencoder per class along a new first axis."""
    return parts[-1]._replace(
        params=jax.tree.map(lambda *leaves: jnp.stack(leaves), *[p.params for p in parts]),
        objective=float(np.mean([part.objective for part in parts])),
        seconds=sum(part.seconds for part in parts),
        is_whole=all(part.is_whole for part in parts),
        part=min(part.part for part in parts),
    )


def scores_of(forecast: CategoricalForecast, observed: Array) -> dict[str, float]:
    """Returns accuracy, calibration, log score, and the utility of the decisions."""
    utility = guess_or_abstain()
    action = decide(forecast, utility).action
    scores = {
        ACCURACY: accuracy(forecast, observed),
        CALIBRATION: calibration_error(forecast, observed),
        LOG_SCORE: jnp.mean(log_score(forecast, observed)),
        UTILITY: jnp.mean(utility[action, observed]),
        ABSTAINED: jnp.mean(action == NUM_CLASSES),
    }
    return {name: float(score) for name, score in scores.items()}


def guess_or_abstain() -> Array:
    """Returns the utility of each guess, and of abstaining, for each class."""
    guesses = jnp.where(jnp.eye(NUM_CLASSES) > 0, 1.0, WRONG)
    return jnp.vstack([guesses, jnp.full((1, NUM_CLASSES), ABSTAIN)])
