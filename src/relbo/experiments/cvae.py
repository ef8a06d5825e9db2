"""A conditional autoencoder as a classifier (paper, section 5.4), and as one who decides.

`paper` averages p(x | z, y) over the encoder's draws, as printed: that is no evidence of a
class, since the draws already fit the image. `sound` weighs the draws, so that the average is
an estimate of p(x | y). There each class may also have an autoencoder of its own.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

from relbo.data import ImageSplit, binarized_mnist
from relbo.entropy import Gaussian, Particle
from relbo.evaluate import (
    CategoricalForecast,
    accuracy,
    calibration_error,
    decide,
    log_score,
    reliability,
)
from relbo.experiments import InputError, Options, Outcome, Protocol
from relbo.experiments._cells import Cell, slug
from relbo.experiments._class_scores import class_evidence, paper_class_scores, with_steps
from relbo.experiments._cvae_story import (
    ABSTAINED,
    ACCURACY,
    CALIBRATION,
    LOG_SCORE,
    POOLED,
    UTILITY,
)
from relbo.experiments._cvae_story import STORY as STORY
from relbo.experiments._figures import BLUE, new_figure, save_figure
from relbo.experiments._image_rows import (
    TEST_STEPS,
    TRAIN_STEPS,
    Row,
    gaussian_row,
    refined_row,
)
from relbo.experiments._image_work import (
    BATCH_SIZE,
    AbstractWork,
    Trained,
    chosen_rows,
    loaded_images,
    run_images,
)
from relbo.experiments._metrics import Record, over_seeds
from relbo.experiments._run import settings_for
from relbo.kernels import SGD
from relbo.models import Autoencoder, autoencoder

NUM_CLASSES = 10
BY_CLASS = ", one for each class"
NUM_POOLED = 3
"""Seeds whose models guess together."""
NUM_DRAWS, MANY_DRAWS = 5, 100
MORE_STEPS, MORE_STEP_SIZE = 20, 0.2
"""At test time, in the encoder's own units; both were chosen on validation images."""
PAPER_STEP_SIZE = 5e-5
PAPER = {"T = 0, 0": 0.965, "T = 0, 10": 0.977, "T = 5, 10": 0.998}
"""The paper's accuracies. Its loader gives every image the label 0: they stand for little."""
WRONG, ABSTAIN = -5.0, 0.5
"""What a wrong guess and none are worth, where a right one is worth 1."""


class Settings(NamedTuple):
    """How much work a run is."""

    num_seeds: int
    sound_epochs: int
    paper_share: float
    """Of the paper's epochs."""
    num_train: int | None
    """`None` for all; so for the next."""
    num_test: int | None
    learning_rate: float
    matrix_rate: float
    weight_decay: float


FULL = Settings(3, 30, 1.0, None, None, 3e-3, 1e-2, 0.03)
QUICK = Settings(1, 4, 0.1, 12_800, 500, 3e-3, 1e-2, 0.03)


def rows_of(protocol: Protocol) -> list[Row]:
    """What is trained; most of it is tested in two ways."""
    if protocol == "paper":
        step = SGD(PAPER_STEP_SIZE)
        return [
            refined_row("T = 0", step, Gaussian(), 0),
            refined_row("T = 5", step, Particle(), TRAIN_STEPS),
        ]
    conditional = [
        refined_row("IWAE", SGD(), Gaussian(), 0, is_weighted=True),
        gaussian_row("VIS T=5, Gaussian, importance-weighted", is_weighted=True),
    ]
    # One decoder for all classes may write a three where it is told to write an eight.
    return conditional + [_by_class(row) for row in conditional]


def is_by_class(row: Row) -> bool:
    return row.name.endswith(BY_CLASS)


def _by_class(row: Row) -> Row:
    remark = f"{row.remark}, an autoencoder for each class"
    return row._replace(name=f"{row.name}{BY_CLASS}", remark=remark)


QUICK_ROWS = tuple(
    row.name
    for protocol in ("paper", "sound")
    for row in rows_of(protocol)
    if not is_by_class(row)
)
"""Ten programs take their time to compile."""


def run(directory: Path, options: Options) -> Outcome:
    """Runs the protocols asked for and writes their numbers and figures to `directory`."""
    settings = settings_for(options, full=FULL, quick=QUICK)
    rows = chosen_rows(rows_of, options, QUICK_ROWS)
    splits = loaded_images(
        binarized_mnist, options, num_train=settings.num_train, num_test=settings.num_test
    )
    work_for = lambda protocol: Work(protocol, settings, splits, directory)
    metrics = run_images("cvae", directory, options, work_for, rows)
    return Outcome(metrics, tuple(sorted(directory.glob("*.png"))))


@dataclass(frozen=True)
class Work(AbstractWork):
    """One protocol."""

    label: int | None = None
    """Of the only class that the images are of, for a plain autoencoder of it."""

    def rows(self) -> list[Row]:
        return rows_of(self.protocol)

    def model(self, row: Row) -> Autoencoder:
        num_classes = NUM_CLASSES if self.label is None else None
        return autoencoder(num_latents=row.num_latents, num_classes=num_classes)

    def data(self) -> tuple:
        train = self.splits.train
        return (train.images, train.labels) if self.label is None else (train.images,)

    def train(self, row: Row, seed: int) -> Trained:
        """Of ten autoencoders the parameters are stacked."""
        if self.label is not None or not is_by_class(row):
            return super().train(row, seed)
        return stacked([self.of_class(label).train(row, seed) for label in range(NUM_CLASSES)])

    def forget(self, row: Row, seed: int) -> None:
        self._evidence_path(row, seed).unlink(missing_ok=True)
        if self.label is None and is_by_class(row):
            for label in range(NUM_CLASSES):
                self.of_class(label).forget(row, seed)
        super().forget(row, seed)

    def of_class(self, label: int) -> Work:
        """The same work on the images of one class alone."""
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

    def paper_epochs(self, row: Row) -> int:
        return 10 if row.num_steps else 15

    def paper_rate(self) -> float:
        # As in the released code; the text has 0.01.
        return 5e-4

    def score(self, row: Row, seed: int, trained: Trained) -> dict[str, float]:
        """All numbers of every way to test what was trained."""
        evidence = dict(self._evidence(row, seed, trained))
        self._keep(row, seed, evidence)
        pooled = self.pooled(row)
        self._draw({**(evidence if seed == 0 else {}), **pooled})
        return self._scores({**evidence, **pooled})

    def num_scoring_passes(self, row: Row, seed: int) -> float:
        images_and_classes = NUM_CLASSES * len(self.splits.test.images)
        if self.protocol == "paper":
            moves = sum(1 + 2 * num_steps for num_steps in _paper_test_steps(row))
            return images_and_classes * NUM_DRAWS * moves
        # The encoder's mean is moved once for all draws.
        moves = 2 * (2 * row.num_steps + MORE_STEPS)
        return images_and_classes * (NUM_DRAWS + 2 * MANY_DRAWS + moves)

    def _scores(self, evidence: dict[str, Array]) -> dict[str, float]:
        # All classes are as likely before the image is seen, here and where it is drawn.
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

    def records(self, row: Row, cells: Sequence[Cell]) -> Iterator[Record]:
        found = {
            name: [cell.scores[name] for cell in cells if name in cell.scores]
            for name in dict.fromkeys(name for cell in cells for name in cell.scores)
        }
        for name, values in found.items():
            metric, _, test = name.partition(" / ")
            yield over_seeds(
                # An earlier one may be of seeds that have been run again since.
                values[-1:] if name.endswith(POOLED) else values,
                experiment="cvae",
                protocol=self.protocol,
                row=test,
                metric=metric,
                estimator=f"{self._how(metric)}; {self.words(row)}",
                seconds=sum(cell.seconds for cell in cells),
                paper=PAPER.get(test) if metric == ACCURACY else None,
            )

    def _evidence(self, row: Row, seed: int, trained: Trained) -> Iterator[tuple[str, Array]]:
        """Each way to test, and what it says of every class."""
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

    def pooled(self, row: Row) -> dict[str, Array]:
        """The mean log evidence of the first seeds' models, where all of it was kept.

        A mixture of them would listen, in each class, to the one that likes the image best.
        """
        if self.protocol == "paper" or self.settings.num_seeds < NUM_POOLED:
            return {}
        found = [self._kept_evidence(row, seed) for seed in range(NUM_POOLED)]
        if not all(found):
            return {}
        mean = lambda way: jnp.mean(jnp.stack([one[way] for one in found]), axis=0)
        return {f"{way}{POOLED}": mean(way) for way in found[0]}

    def _keep(self, row: Row, seed: int, evidence: dict[str, Array]) -> None:
        """It takes far longer to find than the numbers that are made of it."""
        path = self._evidence_path(row, seed)
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays: dict[str, Any] = {way: np.asarray(values) for way, values in evidence.items()}
        np.savez(path, settings=json.dumps(self._decisive(row, seed)), **arrays)

    def _kept_evidence(self, row: Row, seed: int) -> dict[str, Array]:
        """Nothing where there is none, or what there is was found with other settings."""
        path = self._evidence_path(row, seed)
        found = dict(np.load(path)) if path.exists() else {}
        if str(found.pop("settings", "")) != json.dumps(self._decisive(row, seed)):
            return {}
        return {way: jnp.asarray(values) for way, values in found.items()}

    def _evidence_path(self, row: Row, seed: int) -> Path:
        return self.directory / "evidence" / f"{self.protocol}-{slug(row.name)}-{seed}.npz"

    def _how(self, metric: str) -> str:
        """What a number is."""
        number = len(self.splits.test.images)
        draws = "importance-weighted draws" if self.protocol == "sound" else "draws, unweighted"
        found = f"{number} test images, class evidence from {draws}"
        if metric in (UTILITY, ABSTAINED):
            return f"{found}; right 1, wrong {WRONG:g}, abstained {ABSTAIN:g}"
        return found


def _paper_test_steps(row: Row) -> tuple[int, ...]:
    """With how many steps what was trained is tested."""
    return (TEST_STEPS,) if row.num_steps else (0, TEST_STEPS)


def stacked(parts: Sequence[Trained]) -> Trained:
    """One autoencoder for each class, the parameters along a new first axis."""
    return parts[-1]._replace(
        params=jax.tree.map(lambda *leaves: jnp.stack(leaves), *[p.params for p in parts]),
        objective=float(np.mean([part.objective for part in parts])),
        seconds=sum(part.seconds for part in parts),
        is_whole=all(part.is_whole for part in parts),
        part=min(part.part for part in parts),
    )


def scores_of(forecast: CategoricalForecast, observed: Array) -> dict[str, float]:
    """How good the guesses are, how honest the probabilities, and what decisions are worth."""
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
    """A right guess is worth 1, a wrong one much less than none."""
    guesses = jnp.where(jnp.eye(NUM_CLASSES) > 0, 1.0, WRONG)
    return jnp.vstack([guesses, jnp.full((1, NUM_CLASSES), ABSTAIN)])


def draw_reliability(
    stem: Path, forecast: CategoricalForecast, observed: Array, title: str
) -> list[Path]:
    """How often guesses are right, by how sure they are."""
    found = reliability(forecast, observed)
    is_filled = np.asarray(found.number) > 0
    sure, right, number = (np.asarray(part)[is_filled] for part in found)
    low, high = _wilson(right, number)
    figure = new_figure(4.2, 4.0)
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1, label="as sure as right")
    axes.errorbar(
        sure,
        right,
        (right - low, high - right),
        fmt="o",
        color=BLUE,
        label=f"error {float(calibration_error(forecast, observed)):.3f}",
    )
    for where, height, many in zip(sure, high, number, strict=True):
        axes.text(where, height + 0.01, f"{many}", ha="center", va="bottom", fontsize=7)
    axes.set_ylim(-0.02, 1.08)
    axes.set_xlabel("probability of the guess")
    axes.set_ylabel("how often it is right, and of how many")
    axes.set_title(textwrap.fill(title, 48), fontsize=10)
    axes.legend(frameon=False)
    return save_figure(figure, stem)


def _wilson(share: np.ndarray, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Wilson's interval, a standard error wide: a bin with a guess or two says little."""
    middle = (share + 0.5 / number) / (1.0 + 1.0 / number)
    half = np.sqrt(share * (1.0 - share) / number + 0.25 / number**2) / (1.0 + 1.0 / number)
    # Up to rounding the share lies within.
    return np.minimum(middle - half, share), np.maximum(middle + half, share)
