"""Runs `relbo fit`: infers a posterior and writes it with a summary and figures."""

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
from relbo.commands.data_file import describe_shapes, match_arguments, read_data
from relbo.commands.fit_figures import draw_figures
from relbo.commands.model_file import first_line, load_model, location
from relbo.commands.trial import ModelTrial, try_model
from relbo.sampling import Posterior, Summary

# Kernels whose objective is a bound with the default account.
KERNELS: dict[str, Callable[[], Any]] = {
    "underdamped": lambda: None,
    "sgld": relbo.SGLD,
    "psgld": lambda: relbo.PSGLD(metric="local"),
}

_ROWS_SHOWN = 40


class FitRequest(NamedTuple):
    """The arguments of the command."""

    target: str
    """FILE.py:MODEL."""
    data: Path | None
    out: Path
    kernel: str | None = None
    refine_steps: int | None = None
    train_steps: int | None = None
    num_draws: int = 4000
    seed: int = 0
    x64: bool = True

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
    """
    # For this run only: the precision of a calling process does not change.
    with jax.enable_x64(request.x64):
        problem = _read(request)
        directory = _writable(request.out)
        start = time.perf_counter()
        posterior = _infer(request, problem)
        seconds = time.perf_counter() - start
        _report(posterior, problem.trial, seconds, directory)
    # The summary has been printed by now: the other files take a few seconds.
    _write_netcdf(posterior, directory / "posterior.nc")
    figures = draw_figures(posterior, directory)
    print(f"posterior: {directory / 'posterior.nc'} (for ArviZ), .npz (for relbo)")
    print(f"summary:   {directory / 'summary.txt'}")
    for figure in figures:
        print(f"figure:    {figure} (and .svg)")


def _read(request: FitRequest) -> _ModelWithData:
    model = load_model(request.target)
    path = Path(request.target.rpartition(":")[0])
    read = {} if request.data is None else read_data(request.data)
    match_arguments(model, read, "no --data" if request.data is None else str(request.data))
    data = {n: jnp.asarray(v) if isinstance(v, np.ndarray) else v for n, v in read.items()}
    try:
        trial = try_model(model, data)
    except InputError as error:
        raise InputError(f"{path}: {error} ({_described(data)})") from error
    except Exception as error:
        raise InputError(
            f"{location(error, path)}: {first_line(error)} ({_described(data)})"
        ) from error
    if trial.parameters and not request.wants_guide:
        raise InputError(
            f"{path}: the parameters {trial.parameters} have no prior: give --train-steps to "
            "train them, or write them as sample statements"
        )
    if trial.discrete:
        model = _collapsed(model, path)
    return _ModelWithData(model, data, trial)


def _described(data: dict[str, Any]) -> str:
    return f"the data: {describe_shapes(data)}" if data else "without data"


def _collapsed(model: Callable[..., Any], path: Path) -> Callable[..., Any]:
    try:
        return relbo.collapse(model)
    except ImportError as error:
        raise InputError(f"{path}: {error}") from error


def _writable(directory: Path) -> Path:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"--out {directory}: cannot be written to ({error.strerror})"
        ) from error
    return directory


def _infer(request: FitRequest, problem: _ModelWithData) -> Posterior:
    model, data, _ = problem
    key = jr.key(request.seed)
    try:
        if not request.wants_guide:
            return relbo.infer(key, model, (), data, num_draws=request.num_draws)
        return _infer_from_guide(request, problem)
    except ValueError as error:
        if not _is_ours(error):
            raise
        raise InputError(f"{request.target}: {first_line(error)}") from error


def _is_ours(error: BaseException) -> bool:
    """Returns whether relbo raised the error itself, to refuse an input."""
    frames = traceback.extract_tb(error.__traceback__)
    return Path(frames[-1].filename).is_relative_to(Path(relbo.__file__).parent)


def _infer_from_guide(request: FitRequest, problem: _ModelWithData) -> Posterior:
    model, data, _ = problem
    kernel = KERNELS[request.kernel or "underdamped"]()
    num_steps = 8 if request.refine_steps is None else request.refine_steps
    guide = relbo.AutoRefined(model, kernel=kernel, num_steps=num_steps)
    fit_key, sample_key = jr.split(jr.key(request.seed))
    training: dict[str, Any] = {}
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
        posterior.notes = (f"The fit of the guide {fitted.message}.", *posterior.notes)
    return posterior


def _report(posterior: Posterior, trial: ModelTrial, seconds: float, directory: Path) -> None:
    """Saves the draws, and prints and saves the summary."""
    posterior.save(directory / "posterior.npz")
    table = posterior.summary()
    notes = [str(posterior.check()), _evidence(posterior, trial)]
    if trial.discrete:
        notes.append(f"Summed out: {', '.join(trial.discrete)}.")
    verdict = "\n".join(notes) + "\n"
    draft = directory / "summary.txt.tmp"
    draft.write_text(f"{table}\n\n{verdict}", encoding="utf-8")
    draft.replace(directory / "summary.txt")
    num_chains = len(posterior.sample_stats["lp"])
    print(f"{posterior.num_draws} draws from {num_chains} chains in {seconds:.1f} s\n")
    print(f"{_first_rows(table)}\n\n{verdict}", flush=True)


def _first_rows(table: Summary) -> str:
    hidden = len(table.names) - _ROWS_SHOWN
    if hidden <= 0:
        return str(table)
    shown = Summary(
        table.names[:_ROWS_SHOWN], {n: v[:_ROWS_SHOWN] for n, v in table.columns.items()}
    )
    return f"{shown}\n... and {hidden} more rows in summary.txt"


def _evidence(posterior: Posterior, trial: ModelTrial) -> str:
    if trial.improper:
        return f"No evidence: the priors of {', '.join(trial.improper)} are improper."
    if posterior.log_evidence is None:
        return "No evidence was estimated."
    return (
        f"Log evidence log p(data): {posterior.log_evidence:.2f}"
        f" (standard error {posterior.log_evidence_stderr:.2g})."
    )


def _write_netcdf(posterior: Posterior, path: Path) -> None:
    # In NetCDF a slash, which NumPyro's scopes put into names, would begin a group.
    renamed = Posterior(
        {name.replace("/", "."): values for name, values in posterior.chains.items()},
        num_draws=posterior.num_draws,
        sample_stats=posterior.sample_stats,
        num_superchains=posterior.num_superchains,
        step_size=posterior.step_size,
    )
    # Replaced in one step, so that the file is never incomplete.
    draft = path.with_suffix(".partial.nc")
    renamed.to_arviz().to_netcdf(str(draft), engine="h5netcdf")
    draft.replace(path)
