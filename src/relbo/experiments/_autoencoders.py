"""Autoencoders on binary images: does a refined encoder train a better one?

`paper` trains by the paper's recipe, whose objectives are surrogates, and prints its own test
estimator beside the log-likelihood. The two differ by many nats: the estimator pays for a wide
encoder whose spread the steps have taken back.

`sound` trains with accounts that are bounds, each beside its baseline: VIS beside the VAE, and
importance-weighted VIS beside IWAE, all with the same draws, epochs and schedule. The methods
that the paper's table stands beside are trained by the same code.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from relbo._progress import counted, duration
from relbo.data import ImageSplits
from relbo.experiments import InputError, Options, Outcome, Protocol
from relbo.experiments._cells import Cell
from relbo.experiments._image_cells import (
    ANNEALED,
    BATCH_SIZE,
    EPOCH_SECONDS,
    GAP,
    LOG_LIKELIHOOD,
    PAPER_ESTIMATE,
    Settings,
    Work,
)
from relbo.experiments._image_rows import Row, rows_of
from relbo.experiments._metrics import (
    Record,
    begin_run,
    markdown_table,
    over_seeds,
    read_metrics,
    write_metrics,
)
from relbo.experiments._run import settings_for

FULL = Settings(
    num_seeds=3,
    sound_epochs=60,
    paper_share=1.0,
    num_train=None,
    num_test=None,
    num_annealed=500,
    num_temperatures=1_000,
    num_draws=1_000,
    learning_rate=3e-3,
)
QUICK = Settings(
    num_seeds=1,
    sound_epochs=2,
    paper_share=0.1,
    num_train=6_400,
    num_test=100,
    num_annealed=10,
    num_temperatures=100,
    num_draws=200,
    learning_rate=3e-3,
)
QUICK_ROWS = ("VAE", "IWAE", "VIS T=5, Gaussian, importance-weighted", "VIS-5-10, particle")
"""Of a quick run, unless others are asked for."""


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
    chosen: dict[Protocol, list[Row]] = {
        protocol: _chosen(protocol, options) for protocol in options.protocols
    }
    splits = _cut(_loaded(dataset, options), settings)
    directory.mkdir(parents=True, exist_ok=True)
    metrics = directory / "metrics.json"
    if metrics.exists():
        read_metrics(metrics)  # one that is broken is better known now than after the work
    for protocol, rows in chosen.items():
        work = Work(protocol, settings, splits, dataset.paper_epochs, directory)
        _run_protocol(dataset, work, rows, metrics, options)
    return Outcome(metrics, tuple(sorted(directory.glob("*_images_*.png"))))


def _run_protocol(
    dataset: Dataset, work: Work, rows: Sequence[Row], metrics: Path, options: Options
) -> None:
    """Every row with the first seed, then with the next, so that it can be stopped anywhere."""
    label = f"{dataset.experiment}, {work.protocol}"
    cells = [(row, seed) for seed in range(work.settings.num_seeds) for row in rows]
    to_do = [row for row, seed in cells if not (options.resume and work.kept(row, seed))]
    if to_do:
        left = duration(_estimate(work, to_do))
        print(f"{label}: {len(to_do)} fits to do, about {left}", flush=True)
    run = begin_run(options)
    found: dict[str, list[Cell]] = {}
    with counted(label, len(cells)) as done:
        for row, seed in cells:
            cell = work.run(row, seed, run, resume=options.resume)
            found.setdefault(row.name, []).append(cell)
            records = [r for each in rows for r in _records(dataset, work, each, found)]
            write_metrics(metrics, records, run)
            done(f"{row.name}, seed {seed}")
    print(
        markdown_table(r for r in read_metrics(metrics).records if r.protocol == work.protocol)
    )


def _chosen(protocol: Protocol, options: Options) -> list[Row]:
    rows = rows_of(protocol)
    wanted = options.only or (QUICK_ROWS if options.quick else ())
    known = {row.name for row in rows_of("paper") + rows_of("sound")}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise InputError(f"--only {unknown[0]}: there are the rows {', '.join(sorted(known))}")
    return [row for row in rows if not wanted or row.name in wanted]


def _loaded(dataset: Dataset, options: Options) -> ImageSplits:
    try:
        return dataset.load(options.data_dir)
    except ValueError as error:
        if options.data_dir is None:
            raise
        raise InputError(f"--data-dir: {error}") from error


def _cut(splits: ImageSplits, settings: Settings) -> ImageSplits:
    """Some of the images where a run is to be short."""
    train, test = splits.train, splits.test
    if settings.num_train is not None:
        train = train.evenly(min(settings.num_train, len(train.images)))
    if settings.num_test is not None:
        test = test.evenly(min(settings.num_test, len(test.images)))
    return splits._replace(train=train, test=test)


def _estimate(work: Work, rows: Sequence[Row]) -> float:
    """Seconds of training and scoring, from how long passes take on this machine."""
    passes = 0.0
    for row in rows:
        passes += work.num_iterations(row) * BATCH_SIZE * row.num_passes
        # Three rounds of weighted draws, and a gradient at each temperature.
        passes += len(work.splits.test.images) * 3 * work.settings.num_draws
        passes += work.settings.num_annealed * work.settings.num_temperatures * 2
    # Products are two thirds of the time; compiling takes half a minute a fit.
    return 1.5 * passes * _seconds_a_pass() + 30.0 * len(rows)


def _seconds_a_pass() -> float:
    """Of one image through a network like the decoder."""
    number, repeats = 5 * BATCH_SIZE, 20
    inputs, weights = jnp.ones((number, 250)), jnp.full((250, 784), 0.01)

    @jax.jit
    def run(inputs: jax.Array, weights: jax.Array) -> jax.Array:
        turn = lambda _, x: 0.01 * ((x @ weights) @ weights.T)
        return jax.lax.fori_loop(0, repeats, turn, inputs)

    run(inputs, weights).block_until_ready()
    begin = time.perf_counter()
    run(inputs, weights).block_until_ready()
    return (time.perf_counter() - begin) / (2 * number * repeats)


def _records(
    dataset: Dataset, work: Work, row: Row, found: dict[str, list[Cell]]
) -> Iterator[Record]:
    """All numbers of a row, over the seeds that are there."""
    cells = found.get(row.name, [])
    for metric in cells[0].scores if cells else ():
        name, _, other = metric.partition(" / ")
        yield over_seeds(
            [cell.scores[metric] for cell in cells],
            experiment=dataset.experiment,
            protocol=work.protocol,
            row=other or row.name,
            metric=name,
            estimator=_words(work, row, name),
            seconds=sum(cell.seconds for cell in cells),
            valid_bound={LOG_LIKELIHOOD: True, ANNEALED: True, PAPER_ESTIMATE: False}.get(name),
            paper=_paper(dataset, row, name, other),
        )


def _paper(dataset: Dataset, row: Row, metric: str, other: str) -> float | None:
    """The figure that the paper prints: its own by its estimator, its peers' as published."""
    if metric == PAPER_ESTIMATE:
        return dataset.paper["VIS-5-10" if row.num_steps else other]
    return row.published.get(dataset.experiment) if metric == LOG_LIKELIHOOD else None


def _words(work: Work, row: Row, metric: str) -> str:
    settings, test = work.settings, work.splits.test.images
    part = min(settings.num_annealed, len(test))
    how = {
        LOG_LIKELIHOOD: f"importance sampling, {settings.num_draws} draws an image from a "
        f"proposal fitted to its own draws, {len(test)} test images; ",
        ANNEALED: f"annealed importance sampling, {settings.num_temperatures} temperatures, "
        f"{part} images taken evenly from the test images; ",
        GAP: f"the two estimates on the same {part} images; ",
        PAPER_ESTIMATE: "log-mean-exp of 10 draws after their steps without noise, over a "
        "density taken at its own centre; ",
        EPOCH_SECONDS: "training alone, compilation included; ",
    }
    return how[metric] + work.words(row)
