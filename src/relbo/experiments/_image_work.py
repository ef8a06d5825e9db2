"""What the experiments on images share: long fits, row by row and seed by seed."""

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

from relbo._progress import duration
from relbo.data import ImageSplits
from relbo.experiments import InputError, Options, Protocol
from relbo.experiments._cells import Cell, computed_cell, kept_cell, run_in_turn, slug
from relbo.experiments._image_rows import Row
from relbo.experiments._image_time import seconds_of
from relbo.experiments._metrics import (
    Record,
    begin_run,
    markdown_table,
    read_metrics,
    write_metrics,
)
from relbo.experiments._workers import in_processes
from relbo.models import Autoencoder
from relbo.training import fit

BATCH_SIZE = 128
MAX_NORM = 100.0
"""Of a gradient, an image: a few times what is usual, with steps inside and without."""

MAX_INPUTS = 500
"""Of a matrix that Muon moves; its iterations are dear for those that take pixels."""

PART = "part of the training that was done"

RowsOf = Callable[[Protocol], list[Row]]


class Trained(NamedTuple):
    """A model with what was learned."""

    vae: Autoencoder
    guide: Any
    params: dict[str, Any]
    objective: float
    """What was maximised, an image, over the last iterations; a bound where the account is."""
    seconds: float
    """Of this sitting."""
    is_whole: bool
    """Whether all of it was trained in this sitting, so that its seconds say something."""
    part: float
    """Of the iterations, how many were run: less than 1 where the training failed."""


@dataclass(frozen=True)
class AbstractWork(ABC):
    """One protocol of an experiment on images."""

    protocol: Protocol
    settings: Any
    """Has `num_seeds`, `sound_epochs` and the rates and the decay of the optimiser."""
    splits: ImageSplits
    directory: Path

    @abstractmethod
    def rows(self) -> list[Row]:
        """All rows of the protocol."""

    @abstractmethod
    def model(self, row: Row) -> Autoencoder:
        """What is trained."""

    @abstractmethod
    def data(self) -> tuple:
        """The arguments to train it on."""

    @abstractmethod
    def paper_epochs(self, row: Row) -> int:
        """How long the paper trains."""

    @abstractmethod
    def paper_rate(self) -> float:
        """At what rate the paper trains."""

    @abstractmethod
    def score(self, row: Row, seed: int, trained: Trained) -> dict[str, float]:
        """All numbers of a row; may leave figures behind."""

    @abstractmethod
    def num_scoring_passes(self, row: Row, seed: int) -> float:
        """Work of `score`, in the units of `Row.num_passes`."""

    @abstractmethod
    def records(self, row: Row, cells: Sequence[Cell]) -> Iterable[Record]:
        """All numbers of a row over the seeds that are there."""

    def num_epochs(self, row: Row) -> int:
        if self.protocol == "sound":
            return row.length * self.settings.sound_epochs
        return max(1, round(self.settings.paper_share * self.paper_epochs(row)))

    def num_passes(self, row: Row, seed: int) -> float:
        """Work of a row with a seed, in the units of `Row.num_passes`."""
        num_images = self.num_iterations(row) * BATCH_SIZE
        return num_images * row.num_passes + self.num_scoring_passes(row, seed)

    def num_iterations(self, row: Row) -> int:
        return self.num_epochs(row) * (len(self.splits.train.images) // BATCH_SIZE)

    def learning_rate(self, row: Row) -> float:
        """Of Adam; alone it has the paper's, as a higher one costs a plain VAE dear."""
        is_alone = self.protocol == "paper" or row.optimiser == "Adam"
        return self.paper_rate() if is_alone else self.settings.learning_rate

    def optimiser(self, row: Row) -> optax.GradientTransformation:
        """Adam; under `sound` Muon for most matrices, or Adam with decay, with rates that fall.

        There gradients are clipped, too. An image whose walk runs off has a huge one, which
        either would remember for long.
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

    def words(self, row: Row) -> str:
        """How a row was trained."""
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

    def train(self, row: Row, seed: int) -> Trained:
        """Trains by Adam; goes on from a checkpoint where there is one."""
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
            early_stopping=False,
            on_failure="back off",
            warm_start=False,
            checkpoint_dir=directory,
        )
        print(f"{row.name}, seed {seed}: {fitted.message}", flush=True)
        objective = -float(fitted.final_loss) / number
        seconds = time.perf_counter() - begin
        part = float(fitted.num_iterations) / self.num_iterations(row)
        return Trained(vae, guide, fitted.params, objective, seconds, is_whole, part)

    def run(self, row: Row, seed: int, run: dict[str, Any], *, resume: bool) -> Cell:
        """Trains and scores, or finds what was found before."""

        def compute() -> tuple[dict[str, float], float]:
            trained = self.train(row, seed)
            scores = self.score(row, seed, trained)
            if trained.part < 1.0:
                scores[f"{PART} / {row.name}"] = trained.part
            return scores, trained.seconds

        kept = self.kept(row, seed) if resume else None
        if not resume:
            self.forget(row, seed)
        where, settings = self._path(row, seed), self._decisive(row, seed)
        return kept or computed_cell(where, settings, run, compute)

    def forget(self, row: Row, seed: int) -> None:
        """Removes what a run would go on from."""
        shutil.rmtree(self._checkpoints(row, seed), ignore_errors=True)

    def kept(self, row: Row, seed: int) -> Cell | None:
        """What was found before with the same settings."""
        return kept_cell(self._path(row, seed), self._decisive(row, seed))

    def all_kept(self, row: Row) -> list[Cell]:
        """What every seed found before with the same settings, be they more than asked for."""
        paths = self._path(row, 0).parent.glob(f"{self.protocol}-{slug(row.name)}-*.json")
        ends = (path.stem.rpartition("-")[2] for path in paths)
        seeds = sorted(int(end) for end in ends if end.isdecimal())  # else a copy of somebody's
        return [cell for seed in seeds if (cell := self.kept(row, seed))]

    def _path(self, row: Row, seed: int) -> Path:
        return self.directory / "cells" / f"{self.protocol}-{slug(row.name)}-{seed}.json"

    def _checkpoints(self, row: Row, seed: int) -> Path:
        name = f"{self.protocol}-{slug(row.name)}-{self.num_epochs(row)}-{seed}"
        return self.directory / "checkpoints" / name

    def _decisive(self, row: Row, seed: int) -> dict[str, Any]:
        """What the numbers depend on; a seed is the same among few or many."""
        settings = self.settings._asdict()
        for name in ("num_seeds", "sound_epochs", "paper_share"):  # the words have the epochs
            settings.pop(name)
        images = {"train": self.splits.train.images, "test": self.splits.test.images}
        sums = {part: _checksum(values) for part, values in images.items()}
        # Only the first seed is annealed. Left out where it says nothing, so that cells of
        # before it was there are still good.
        more = {"annealing": row.annealing} if row.annealing > 1 and seed == 0 else {}
        return {**settings, **sums, **more, "training": self.words(row)}


def _matrices(params: Any) -> Any:
    """What decays under Adam."""
    return jax.tree.map(lambda leaf: leaf.ndim == 2, params)


def _hidden_matrices(params: Any) -> Any:
    """How Muon is to see each matrix; `None` for what is left to Adam."""
    seen = optax.contrib.MuonDimensionNumbers(reduction_axis=0, output_axis=1)
    is_hidden = lambda leaf: leaf.ndim == 2 and len(leaf) <= MAX_INPUTS
    return jax.tree.map(lambda leaf: seen if is_hidden(leaf) else None, params)


def run_images(
    name: str,
    directory: Path,
    options: Options,
    work_for: Callable[[Protocol], AbstractWork],
    rows: dict[Protocol, list[Row]],
) -> Path:
    """Runs the protocols asked for; `metrics.json` is written after every fit.

    Args:
        name: of the experiment.
        directory: where everything goes.
        options: from the command line.
        work_for: makes the work of a protocol.
        rows: of each protocol.

    Returns:
        The path of `metrics.json`.
    """
    directory.mkdir(parents=True, exist_ok=True)
    metrics = directory / "metrics.json"
    if metrics.exists():
        read_metrics(metrics)  # one that is broken is better known now than after the work
    for protocol in options.protocols:
        if rows[protocol]:  # those asked for may all be of the other one
            _run_work(name, work_for(protocol), rows[protocol], metrics, options)
    return metrics


def _run_work(
    name: str, work: AbstractWork, rows: Sequence[Row], metrics: Path, options: Options
) -> None:
    label = f"{name}, {work.protocol}"
    num_seeds = work.settings.num_seeds
    cells = [(row, seed) for seed in range(num_seeds) for row in rows]
    to_do = [cell for cell in cells if not (options.resume and work.kept(*cell))]
    if to_do:
        # One fit alone uses several cores, if badly.
        passes = sum(work.num_passes(*cell) for cell in to_do)
        seconds = seconds_of(passes, num_programs=len(to_do))
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
    work: AbstractWork, cells: list[tuple[Row, int]], run: dict[str, Any], options: Options
) -> Iterator[Callable[[Row, int], Cell]]:
    """Runs a row with a seed, here or in processes that have begun with all of them."""
    if options.num_jobs == 1:
        yield lambda row, seed: work.run(row, seed, run, resume=options.resume)
        return
    logs = work.directory / "logs"
    print(f"{options.num_jobs} fits at once; what they have to say is in {logs}", flush=True)
    tasks = [(row.name, seed) for row, seed in cells]
    shared = (work, run, options.resume)
    with in_processes(_run_named, shared, tasks, options.num_jobs, logs) as result:
        yield lambda row, seed: result((row.name, seed))


def _run_named(shared: tuple[AbstractWork, dict[str, Any], bool], name: str, seed: int) -> Cell:
    work, run, resume = shared
    (row,) = [row for row in work.rows() if row.name == name]
    return work.run(row, seed, run, resume=resume)


def _kept_cells(work: AbstractWork, found: dict[str, list[Cell]]) -> dict[str, list[Cell]]:
    """What other rows found before with the same settings."""
    others = (row for row in work.rows() if row.name not in found)
    return {row.name: cells for row in others if (cells := work.all_kept(row))}


def chosen_rows(
    rows_of: RowsOf, options: Options, quick: Sequence[str] = ()
) -> dict[Protocol, list[Row]]:
    """The rows that were asked for.

    Args:
        rows_of: all rows of a protocol.
        options: from the command line.
        quick: the names of the rows of a quick run, unless others are asked for.
    """
    wanted = options.only or (quick if options.quick else ())
    known = dict.fromkeys(row.name for row in rows_of("paper") + rows_of("sound"))
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InputError(f"--only {unknown[0]}: there are the rows {'; '.join(known)}")
    chosen: dict[Protocol, list[Row]] = {
        protocol: [row for row in rows_of(protocol) if not wanted or row.name in wanted]
        for protocol in options.protocols
    }
    if not any(chosen.values()):
        raise InputError(
            f"--only {'; '.join(wanted)}: no row of --protocol {options.protocols[0]}; "
            "take the other one, or both"
        )
    return chosen


def loaded_images(
    load: Callable[[Path | None], ImageSplits],
    options: Options,
    *,
    num_train: int | None,
    num_test: int | None,
) -> ImageSplits:
    """The images, or some of them where a run is to be short."""
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
    """Tells one set of images from another."""
    return f"{images.shape}, {int(np.asarray(images).sum())} pixels"
