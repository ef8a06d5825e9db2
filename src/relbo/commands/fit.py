"""Runs `relbo fit`: infers a posterior and writes it with a summary and figures."""

import shutil
import textwrap
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import relbo
from relbo.commands import InputError
from relbo.commands.data_file import match_arguments, read_data
from relbo.commands.expected_time import announcement, expected_seconds
from relbo.commands.fit_figures import draw_figures
from relbo.commands.model_file import first_line, load_model, location
from relbo.commands.output import exclusive, rescued, written_at_once
from relbo.commands.trial import ModelTrial, try_model
from relbo.sampling import Posterior, Summary

# Kernels whose objective is a bound with the default account.
KERNELS: dict[str, Callable[[], Any]] = {
    "underdamped": lambda: None,
    "sgld": relbo.SGLD,
    "psgld": lambda: relbo.PSGLD(metric="local"),
}

_ROWS_SHOWN = 40
_COLUMNS = 80


class FitRequest(NamedTuple):
    """The arguments of the command."""

    target: str
    """FILE.py:MODEL."""
    data: Path | None
    out: Path | None
    kernel: str | None
    refine_steps: int | None
    train_steps: int | None
    num_draws: int
    seed: int
    x64: bool

    @property
    def file(self) -> Path:
        return Path(self.target.rpartition(":")[0])

    @property
    def wants_guide(self) -> bool:
        asked = (self.kernel, self.refine_steps, self.train_steps)
        return any(value is not None for value in asked)


class _ModelWithData(NamedTuple):
    """A model with its data, after one trial run."""

    model: Callable[..., Any]
    data: dict[str, Any]
    trial: ModelTrial


def run_fit(request: FitRequest) -> None:
    """Infers the posterior, prints its summary and writes all files.

    Raises:
        InputError: if the model, the data or the directory is wrong.
        OutputError: if the results cannot be written.
    """
    # For this run only: the precision of a calling process does not change.
    with jax.enable_x64(request.x64):
        problem = _read(request)
        directory = request.out or Path("relbo-out") / request.file.stem
        with exclusive(directory):
            _announce(request, problem)
            start = time.perf_counter()
            posterior = _infer(request, problem, directory)
            seconds = time.perf_counter() - start
            num_chains = len(posterior.sample_stats["lp"])
            table, verdict = posterior.summary(), _verdict(posterior, problem.trial)
            print(f"{posterior.num_draws} draws from {num_chains} chains in {seconds:.1f} s\n")
            print(f"{_first_rows(table)}\n\n{verdict}", flush=True)
            with rescued(posterior, directory):
                _write(posterior, f"{table}\n\n{verdict}", directory)


def _read(request: FitRequest) -> _ModelWithData:
    model = load_model(request.target)
    path = request.file
    read = {} if request.data is None else read_data(request.data)
    match_arguments(model, read, "no --data" if request.data is None else str(request.data))
    data = {n: jnp.asarray(v) if isinstance(v, np.ndarray) else v for n, v in read.items()}
    shapes = ", ".join(f"{name} {np.shape(value)}" for name, value in data.items())
    described = f"the data: {shapes}" if data else "without data"
    try:
        trial = try_model(model, data)
    except InputError as error:
        raise InputError(f"{path}: {error} ({described})") from error
    except Exception as error:
        place = location(error, path)
        raise InputError(f"{place}: {first_line(error)} ({described})") from error
    if trial.parameters and not request.wants_guide:
        raise InputError(
            f"{path}: the parameters {trial.parameters} have no prior: give --train-steps to "
            "train them, or write them as sample statements"
        )
    try:
        model = relbo.collapse(model) if trial.discrete else model
    except ImportError as error:
        raise InputError(f"{path}: {error}") from error
    return _ModelWithData(model, data, trial)


def _announce(request: FitRequest, problem: _ModelWithData) -> None:
    """Says how long the run takes, before it starts."""
    if request.wants_guide:
        print("A guide is trained first; the progress says how long it takes.", flush=True)
    else:
        seconds = expected_seconds(problem.model, problem.data, request.num_draws)
        print(announcement(seconds), flush=True)


def _infer(request: FitRequest, problem: _ModelWithData, directory: Path) -> Posterior:
    model, data, _ = problem
    try:
        if request.wants_guide:
            return _infer_from_guide(request, problem, directory / "training")
        return relbo.infer(jr.key(request.seed), model, (), data, num_draws=request.num_draws)
    except ValueError as error:
        raised_in = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
        if not raised_in.is_relative_to(Path(relbo.__file__).parent):
            raise
        # relbo raised the error itself, to refuse an input.
        raise InputError(f"{request.target}: {first_line(error)}") from error


def _infer_from_guide(
    request: FitRequest, problem: _ModelWithData, checkpoints: Path
) -> Posterior:
    model, data, _ = problem
    kernel = KERNELS[request.kernel or "underdamped"]()
    num_steps = 8 if request.refine_steps is None else request.refine_steps
    guide = relbo.AutoRefined(model, kernel=kernel, num_steps=num_steps)
    fit_key, sample_key = jr.split(jr.key(request.seed))
    training: dict[str, Any] = {"checkpoint_dir": checkpoints}
    if request.train_steps is not None:
        training["num_iterations"] = request.train_steps
    fitted = relbo.fit(fit_key, model, (), data, guide=guide, **training)
    print(f"guide: {fitted.message}")
    posterior = relbo.sample(
        sample_key,
        model,
        (),
        data,
        guide=guide,
        params=fitted.params,
        num_draws=request.num_draws,
        num_evidence_draws=640,
    )
    if fitted.result == "diverged":
        posterior.add_note(f"The fit of the guide {fitted.message}.")
    # The run is complete.
    shutil.rmtree(checkpoints, ignore_errors=True)
    return posterior


def _first_rows(table: Summary) -> str:
    lines = str(table).splitlines()
    hidden = len(table.names) - _ROWS_SHOWN
    if hidden > 0:
        lines[-hidden:] = [f"... and {hidden} more rows in summary.txt"]
    return "\n".join(lines)


def _verdict(posterior: Posterior, trial: ModelTrial) -> str:
    """Says whether to trust the draws, and gives the evidence."""
    lines = [str(posterior.check())]
    if trial.improper:
        lines.append(f"No evidence: the priors of {', '.join(trial.improper)} are improper.")
    elif posterior.log_evidence is None:
        lines.append("No evidence was estimated.")
    else:
        lines.append(
            f"Log evidence log p(data): {posterior.log_evidence:.2f}"
            f" (standard error {posterior.log_evidence_stderr:.2g})."
        )
    if trial.discrete:
        lines.append(f"Summed out: {', '.join(trial.discrete)}.")
    paragraphs = "\n".join(lines).splitlines()
    return "\n".join(textwrap.fill(line, _COLUMNS) for line in paragraphs) + "\n"


def _write(posterior: Posterior, summary: str, directory: Path) -> None:
    """Writes all files; first the draws, since the figures take a few seconds."""
    with written_at_once(directory) as drafts:
        posterior.save(drafts / "posterior.npz")
        (drafts / "summary.txt").write_text(summary, encoding="utf-8")
        _write_netcdf(posterior, drafts / "posterior.nc")
    with written_at_once(directory) as drafts:
        figures = draw_figures(posterior, drafts)
    print(f"posterior: {directory / 'posterior.nc'} (for ArviZ), .npz (for relbo)")
    print(f"summary:   {directory / 'summary.txt'}")
    for figure in figures:
        print(f"figure:    {directory / figure.name} (and .svg)")


def _write_netcdf(posterior: Posterior, path: Path) -> None:
    names = _netcdf_names(list(posterior.chains))
    renamed = Posterior(
        {names[name]: values for name, values in posterior.chains.items()},
        num_draws=posterior.num_draws,
        sample_stats=posterior.sample_stats,
        num_superchains=posterior.num_superchains,
        step_size=posterior.step_size,
    )
    # HDF5 crashes on a full disk, so the space is claimed first.
    arrays = [*renamed.chains.values(), *renamed.sample_stats.values()]
    path.write_bytes(bytes(2**20 + sum(2**14 + values.nbytes for values in arrays)))
    renamed.to_arviz().to_netcdf(str(path), engine="h5netcdf")


def _netcdf_names(sites: list[str]) -> dict[str, str]:
    """Replaces slashes, which begin a group in NetCDF, so that all names remain different."""
    names = {site: site for site in sites if "/" not in site}
    for site in sites:
        if "/" in site:
            name = site.replace("/", ".")
            while name in names.values():
                name += "_"
            names[site] = name
    return names
