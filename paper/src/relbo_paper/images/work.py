"""The work that the image experiments share: long fits, one per row and seed."""

import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.random as jr
import numpy as np
import optax
import optax.contrib

from relbo import Starts, Stopping, fit
from relbo_paper.data import ImageSplits
from relbo_paper.harness.cells import Cell, computed_cell, kept_cell, run_in_turn, slug
from relbo_paper.harness.experiments import InputError, Options, Protocol
from relbo_paper.harness.metrics import (
    Record,
    begin_run,
    markdown_table,
    read_metrics,
    write_metrics,
)
from relbo_paper.harness.progress import duration
from relbo_paper.harness.workers import in_processes
from relbo_paper.images.rows import ImageRow
from relbo_paper.images.time import estimated_seconds
from relbo_paper.models import Autoencoder

BATCH_SIZE = 128
MAX_NORM = 100.0
"""Maximum norm of a gradient per image: a few times the usual norm of all rows."""

MAX_INPUTS = 500
"""Muon updates matrices with at most this many inputs: with more it is expensive."""

PART = "part of the training that was done"

RowsOf = Callable[[Protocol], list[ImageRow]]


class TrainedAutoencoder(NamedTuple):
    """A model with its learned parameters."""

    vae: Autoencoder
    guide: Any
    params: dict[str, Any]
    objective: float
    """The mean objective per image over the last iterations; a bound if the account is."""
    seconds: float
    """Training time of this run."""
    is_whole: bool
    """Whether it was trained in one run, without a checkpoint of an earlier one."""
    part: float
    """Share of the iterations that were run: less than 1 if the training failed."""


@dataclass(frozen=True)
class AbstractImageWork(ABC):
    """The work of one protocol of an image experiment."""

    protocol: Protocol
    settings: Any
    """Has `num_seeds`, `sound_epochs`, the learning rates and the weight decay."""
    splits: ImageSplits
    directory: Path

    @abstractmethod
    def rows(self) -> list[ImageRow]:
        """Returns all rows of the protocol."""

    @abstractmethod
    def model(self, row: ImageRow) -> Autoencoder:
        """Returns the model to train."""

    @abstractmethod
    def data(self) -> tuple:
        """Returns the training data, as arguments of the model."""

    @abstractmethod
    def paper_epochs(self, row: ImageRow) -> int:
        """Returns the paper's number of epochs."""

    @abstractmethod
    def paper_rate(self) -> float:
        """Returns the paper's learning rate."""

    @abstractmethod
    def score(self, row: ImageRow, seed: int, trained: TrainedAutoencoder) -> dict[str, float]:
        """Returns all scores of a trained row; may write figures."""

    @abstractmethod
    def num_scoring_passes(self, row: ImageRow, seed: int) -> float:
        """Returns the work of `score`, in the unit of `ImageRow.num_passes`."""

    @abstractmethod
    def records(self, row: ImageRow, cells: Sequence[Cell]) -> Iterable[Record]:
        """Returns all records of a row from the cells of its seeds."""

    def num_epochs(self, row: ImageRow) -> int:
        if self.protocol == "sound":
            return row.length * self.settings.sound_epochs
        return max(1, round(self.settings.paper_share * self.paper_epochs(row)))

    def num_passes(self, row: ImageRow, seed: int) -> float:
        """Returns the work of a row with a seed, in the unit of `ImageRow.num_passes`."""
        num_images = self.num_iterations(row) * BATCH_SIZE
        return num_images * row.num_passes + self.num_scoring_passes(row, seed)

    def num_iterations(self, row: ImageRow) -> int:
        return self.num_epochs(row) * (len(self.splits.train.images) // BATCH_SIZE)

    def learning_rate(self, row: ImageRow) -> float:
        """Returns the rate of Adam: the paper's without Muon, as a higher one harms the VAE."""
        is_alone = self.protocol == "paper" or row.optimiser == "Adam"
        return self.paper_rate() if is_alone else self.settings.learning_rate

    def optimiser(self, row: ImageRow) -> optax.GradientTransformation:
        """Returns Adam in `paper`; in `sound`, Muon for most matrices or AdamW, with decay.

        In `sound` gradients are clipped: divergent paths produce huge gradients, and both
        optimisers remember them for many iterations.
        """
        if self.protocol == "paper":
            return optax.adam(self.learning_rate(row))
        clip = optax.clip_by_global_norm(MAX_NORM * len(self.splits.train.images))
        falling = lambda rate: optax.cosine_decay_schedule(rate, self.num_iterations(row))
        decay, rate = self.settings.weight_decay, falling(self.learning_rate(row))
        if row.optimiser == "Adam":
            return optax.chain(clip, optax.adamw(rate, weight_decay=decay, mask=_matrices))
        return optax.chain(
            clip,
            optax.contrib.muon(
                falling(self.settings.matrix_rate),
                ns_steps=3,
                weight_decay=decay,
                consistent_rms=0.2,
                muon_weight_dimension_numbers=_hidden_matrices,
                adam_learning_rate=rate,
            ),
        )

    def training_description(self, row: ImageRow) -> str:
        """Describes how a row is trained; kept cells are found by this text."""
        more = ""
        if self.protocol == "sound":
            decay = f"with weight decay {self.settings.weight_decay}"
            more = (
                f" {decay} and cosine decay"
                if row.optimiser == "Adam"
                else f" and Muon {self.settings.matrix_rate} {decay}, both with cosine decay"
            )
            more += f", gradients clipped at {MAX_NORM:g}"
        return (
            f"trained for {self.num_epochs(row)} epochs of {len(self.splits.train.images)} "
            f"images, Adam {self.learning_rate(row)}{more}, batch {BATCH_SIZE}, {row.remark}"
        )

    def train(self, row: ImageRow, seed: int) -> TrainedAutoencoder:
        """Trains a row, from a checkpoint if there is one."""
        begin, directory = time.perf_counter(), self._checkpoints(row, seed)
        is_whole = not directory.exists()
        number = len(self.splits.train.images)
        vae = self.model(row)
        guide, loss = row.build(vae)
        fitted = fit(
            jr.key(seed),
            vae.model,
            self.data(),
            {"num_images": number},
            guide=guide,
            loss=loss,
            optimiser=self.optimiser(row),
            num_iterations=self.num_iterations(row),
            batch_size=BATCH_SIZE,
            starts=Starts(warm=False),
            stopping=Stopping(early=False, on_failure="back off"),
            checkpoint_dir=directory,
        )
        print(f"{row.name}, seed {seed}: {fitted.message}", flush=True)
        objective = -float(fitted.final_loss) / number
        seconds = time.perf_counter() - begin
        part = float(fitted.num_iterations) / self.num_iterations(row)
        return TrainedAutoencoder(vae, guide, fitted.params, objective, seconds, is_whole, part)

    def run(self, row: ImageRow, seed: int, run: dict[str, Any], *, resume: bool) -> Cell:
        """Trains and scores a row, or reads the cell that is kept."""

        def compute() -> tuple[dict[str, float], float]:
            trained = self.train(row, seed)
            scores = self.score(row, seed, trained)
            if trained.part < 1.0:
                scores[f"{PART} / {row.name}"] = trained.part
            return scores, trained.seconds

        kept = self.kept(row, seed) if resume else None
        if not resume:
            self.forget(row, seed)
        where, settings = self._path(row, seed), self.cell_settings(row, seed)
        return kept or computed_cell(where, settings, run, compute)

    def forget(self, row: ImageRow, seed: int) -> None:
        """Removes the checkpoints of a row."""
        shutil.rmtree(self._checkpoints(row, seed), ignore_errors=True)

    def kept(self, row: ImageRow, seed: int) -> Cell | None:
        """Returns the kept cell with the same settings, if there is one."""
        return kept_cell(self._path(row, seed), self.cell_settings(row, seed))

    def all_kept(self, row: ImageRow) -> list[Cell]:
        """Returns the kept cells of all seeds, also of seeds that were not requested."""
        paths = self._path(row, 0).parent.glob(f"{self.protocol}-{slug(row.name)}-*.json")
        ends = (path.stem.rpartition("-")[2] for path in paths)
        seeds = sorted(int(end) for end in ends if end.isdecimal())  # ignores stray files
        return [cell for seed in seeds if (cell := self.kept(row, seed))]

    def _path(self, row: ImageRow, seed: int) -> Path:
        return self.directory / "cells" / f"{self.protocol}-{slug(row.name)}-{seed}.json"

    def _checkpoints(self, row: ImageRow, seed: int) -> Path:
        name = f"{self.protocol}-{slug(row.name)}-{self.num_epochs(row)}-{seed}"
        return self.directory / "checkpoints" / name

    def cell_settings(self, row: ImageRow, seed: int) -> dict[str, Any]:
        """Returns the settings that the numbers depend on, by which kept cells are found."""
        settings = self.settings._asdict()
        for name in ("num_seeds", "sound_epochs", "paper_share"):
            settings.pop(name)  # the number of epochs is in the description
        images = {"train": self.splits.train.images, "test": self.splits.test.images}
        sums = {part: _checksum(values) for part, values in images.items()}
        # Only the first seed is annealed. Left out where it has no effect, so that older cells
        # remain valid.
        more = {"annealing": row.annealing} if row.annealing > 1 and seed == 0 else {}
        return {**settings, **sums, **more, "training": self.training_description(row)}


def _matrices(params: Any) -> Any:
    """Selects the matrices, which have weight decay with Adam."""
    return jax.tree.map(lambda leaf: leaf.ndim == 2, params)


def _hidden_matrices(params: Any) -> Any:
    """Returns the axes of each matrix for Muon; `None` for what Adam updates."""
    seen = optax.contrib.MuonDimensionNumbers(reduction_axis=0, output_axis=1)
    is_hidden = lambda leaf: leaf.ndim == 2 and len(leaf) <= MAX_INPUTS
    return jax.tree.map(lambda leaf: seen if is_hidden(leaf) else None, params)


def run_images(
    name: str,
    directory: Path,
    options: Options,
    work_for: Callable[[Protocol], AbstractImageWork],
    rows: dict[Protocol, list[ImageRow]],
) -> Path:
    """Runs the requested protocols and writes `metrics.json` after every fit.

    Args:
        name: the name of the experiment.
        directory: the output directory.
        options: the options of the command line.
        work_for: returns the work of a protocol.
        rows: the rows of each protocol.

    Returns:
        The path of `metrics.json`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    metrics = directory / "metrics.json"
    if metrics.exists():
        read_metrics(metrics)  # so that a broken file is reported before the work
    for protocol in options.protocols:
        if rows[protocol]:  # the requested rows may all be of the other protocol
            _run_work(name, work_for(protocol), rows[protocol], metrics, options)
    return metrics


def _run_work(
    name: str,
    work: AbstractImageWork,
    rows: Sequence[ImageRow],
    metrics: Path,
    options: Options,
) -> None:
    label = f"{name}, {work.protocol}"
    num_seeds = work.settings.num_seeds
    cells = [(row, seed) for seed in range(num_seeds) for row in rows]
    to_do = [cell for cell in cells if not (options.resume and work.kept(*cell))]
    if to_do:
        # A single fit uses several cores, but inefficiently.
        passes = sum(work.num_passes(*cell) for cell in to_do)
        seconds = estimated_seconds(passes, num_programs=len(to_do))
        left = duration(seconds / max(1.0, 0.8 * options.num_jobs))
        print(f"{label}: {len(to_do)} fits to do, about {left}", flush=True)
    run = begin_run(options)

    def write(found: dict[str, list[Cell]]) -> None:
        others = _kept_cells(work, found) if options.resume else {}
        known = {**found, **others}
        done = [row for row in work.rows() if row.name in known]
        records = [r for row in done for r in work.records(row, known[row.name])]
        write_metrics(metrics, records, run)

    with _runner(work, cells, run, options) as run_one:
        run_in_turn(label, rows, num_seeds, run_one, write)
    written = read_metrics(metrics).records
    print(markdown_table(record for record in written if record.protocol == work.protocol))


@contextmanager
def _runner(
    work: AbstractImageWork,
    cells: list[tuple[ImageRow, int]],
    run: dict[str, Any],
    options: Options,
) -> Iterator[Callable[[ImageRow, int], Cell]]:
    """Yields a function that runs a row with a seed, here or in worker processes."""
    if options.num_jobs == 1:
        yield lambda row, seed: work.run(row, seed, run, resume=options.resume)
        return
    logs = work.directory / "logs"
    print(f"{options.num_jobs} fits at a time; their output is in {logs}", flush=True)
    tasks = [(row.name, seed) for row, seed in cells]
    shared = (work, run, options.resume)
    with in_processes(_run_named, shared, tasks, options.num_jobs, logs) as result:
        yield lambda row, seed: result((row.name, seed))


def _run_named(
    shared: tuple[AbstractImageWork, dict[str, Any], bool], name: str, seed: int
) -> Cell:
    work, run, resume = shared
    (row,) = [row for row in work.rows() if row.name == name]
    return work.run(row, seed, run, resume=resume)


def _kept_cells(work: AbstractImageWork, found: dict[str, list[Cell]]) -> dict[str, list[Cell]]:
    """Returns the kept cells of the rows that were not run."""
    others = (row for row in work.rows() if row.name not in found)
    return {row.name: cells for row in others if (cells := work.all_kept(row))}


def chosen_rows(
    rows_of: RowsOf, options: Options, quick: Sequence[str] = ()
) -> dict[Protocol, list[ImageRow]]:
    """Returns the requested rows of each protocol.

    Args:
        rows_of: returns all rows of a protocol.
        options: the options of the command line.
        quick: the names of the rows of a quick run without `--only`.
    """
    wanted = options.only or (quick if options.quick else ())
    known = dict.fromkeys(row.name for row in rows_of("paper") + rows_of("sound"))
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InputError(f"--only {unknown[0]}: expected one of the rows {'; '.join(known)}")
    chosen: dict[Protocol, list[ImageRow]] = {
        protocol: [row for row in rows_of(protocol) if not wanted or row.name in wanted]
        for protocol in options.protocols
    }
    if not any(chosen.values()):
        raise InputError(
            f"--only {'; '.join(wanted)}: no row of --protocol {options.protocols[0]}; use the "
            "other protocol, or both"
        )
    return chosen


def loaded_images(
    load: Callable[[Path | None], ImageSplits],
    options: Options,
    *,
    num_train: int | None,
    num_test: int | None,
) -> ImageSplits:
    """Loads the images, or an evenly spaced part of them."""
    try:
        splits = load(options.data_dir)
    except ValueError as error:
        if options.data_dir is None:
            raise
        raise InputError(f"--data-dir: {error}") from error
    train, test = splits.train, splits.test
    if num_train is not None:
        train = train.evenly(min(num_train, len(train.images)))
    if num_test is not None:
        test = test.evenly(min(num_test, len(test.images)))
    return splits._replace(train=train, test=test)


def _checksum(images: np.ndarray) -> str:
    """Returns a short text that distinguishes sets of images."""
    return f"{images.shape}, {int(np.asarray(images).sum())} pixels"
