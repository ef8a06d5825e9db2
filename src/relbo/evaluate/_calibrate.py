"""Simulation-based calibration: are the posteriors of simulated data right?"""

import contextlib
import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.random as jr
import numpy as np
from jaxtyping import Float, PRNGKeyArray
from numpyro.diagnostics import effective_sample_size

from relbo._progress import progress_bar
from relbo.core.checks import check_fraction, check_integer
from relbo.core.fingerprint import Fingerprint, digest, name_of
from relbo.core.random import KeyLike, as_key
from relbo.evaluate.calibration import Calibration
from relbo.evaluate.calibration_files import CalibrationFiles, SimulationRecord
from relbo.evaluate.simulator import Simulation, Simulator, Values
from relbo.problem.call import checked_call
from relbo.problem.problem import coordinate_names

InferFn = Callable[..., Any]
"""Takes a key, a model, its `args` and its `kwargs`."""
LOG_LIKELIHOOD = "log likelihood"


def calibrate(
    key: KeyLike,
    model: Any,
    infer_fn: InferFn,
    num_simulations: int = 200,
    *,
    args: tuple = (),
    kwargs: dict[str, Any] | None = None,
    quantities: Callable[[Values], Values] | None = None,
    num_ranked: int = 100,
    level: float = 0.05,
    directory: str | Path | None = None,
    progress: bool = True,
) -> Calibration:
    """Checks an inference function by simulation-based calibration.

    Parameters are drawn from the prior and data given them. The rank of each parameter among
    draws of its posterior is uniform over the simulations if the posteriors are right. It is
    not if the draws are too narrow, too wide or shifted, on average over the prior.

    Draws are thinned to their effective number, since ranks among autocorrelated draws are not
    uniform. Ties are broken at random. The uniformity of each quantity is tested with
    `uniformity_pvalue`, with Bonferroni's correction over the quantities.

    The log likelihood is ranked like a parameter, wherever the draws contain all latent sites:
    without it, an inference function that ignores the data and returns the prior would pass.

    Args:
        key: a random key, or an integer seed.
        model: a NumPyro program with proper priors and without factors.
        infer_fn: called as `infer_fn(key, model, args, kwargs)` for each simulation, so
            `relbo.infer` itself can be passed. It returns a `Posterior`, or draws by site as
            arrays `[draws, ...]` or `[chains, draws, ...]`. Sites that it leaves out are not
            ranked. If it has an argument `progress`, that is set to `False`.
        num_simulations: number of simulations; at least 2.
        args, kwargs: the model's arguments, with data in the shape of yours, whose values do
            not matter. They are replaced by simulated data. If an observed site does not
            observe an argument itself (but part of it, or its logarithm), or if the model uses
            the argument elsewhere too, `infer_fn` gets the model conditioned on simulated data,
            with a dict of them as its first argument.
        quantities: maps the values of one draw by site to the quantities to rank instead of
            the sites, for example the sorted locations of a mixture.
        num_ranked: maximum number of thinned draws.
        level: the probability of a false alarm.
        directory: where each simulation is kept in a small file. A second call with the same
            arguments continues, also with more simulations. Files of another model, key,
            inference function or setting are refused; what changes inside `infer_fn` is not
            seen.
        progress: whether to show a progress bar.

    Returns:
        A `Calibration`; print it for the verdict. A run that raises an error is counted, and
        makes the verdict negative; an error in the first simulation is raised.

    Example:
        >>> import jax.numpy as jnp, numpyro, numpyro.distributions as dist, relbo
        >>> def model(y=None):
        ...     mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
        ...     numpyro.sample("y", dist.Normal(mean, 1.0).expand([10]).to_event(1), obs=y)
        >>> result = calibrate(0, model, relbo.infer, 20, args=(jnp.zeros(10),))
        >>> print(result.verdict)

    References:
        Talts et al., Validating Bayesian inference algorithms with simulation-based
        calibration, 2018. Modrák et al., Simulation-based calibration checking for Bayesian
        computation: the choice of test quantities shapes sensitivity, 2023.
    """
    key = as_key(key)
    check_integer("num_simulations", num_simulations, 2)
    check_integer("num_ranked", num_ranked, 1)
    check_fraction("level", level)
    simulator = Simulator(model, checked_call(args, kwargs))
    ranker = _Ranker(simulator, quantities, num_ranked)
    files = None
    if directory is not None:
        files = CalibrationFiles(directory, _fingerprint(key, model, infer_fn, ranker))
    with contextlib.suppress(TypeError, ValueError):  # a builtin has no signature
        if "progress" in inspect.signature(infer_fn).parameters:
            infer_fn = partial(infer_fn, progress=False)
    records: list[SimulationRecord] = []
    with progress_bar(progress) as report:
        for index in range(num_simulations):
            record = None if files is None else files.read(index)
            if record is None:
                is_first = not any(r.error is None for r in records)
                record = _run(jr.fold_in(key, index), infer_fn, ranker, is_first)
                if files is not None:
                    files.write(index, record)
            records.append(record)
            note = f"{sum(r.is_doubted for r in records)} of {len(records)} not trusted"
            report("calibrate", len(records) / num_simulations, note)
    return _collected(records, level)


class _Ranker(NamedTuple):
    """Ranks the parameters of a simulation among draws."""

    simulator: Simulator
    quantities: Callable[[Values], Values] | None
    num_ranked: int

    def ranks(
        self, key: PRNGKeyArray, simulation: Simulation, result: Any
    ) -> tuple[dict[str, float], int]:
        """Returns the rank of each quantity, as a number in (0, 1), and the number of draws."""
        chains, truth = _aligned(result, simulation.truth)
        shape = next(iter(chains.values())).shape[:2]
        flat = {name: values.reshape(-1, *values.shape[2:]) for name, values in chains.items()}
        names, draws = self._tested(flat)
        effective = _effective_draws(draws.reshape(*shape, -1))
        # Likelihoods are computed for a fixed number of draws, to compile once.
        some = evenly_spaced(len(draws), self.num_ranked)
        first = {name: value[None] for name, value in truth.items()}
        draws = np.concatenate([self._tested(first)[1], draws[some]])
        if set(self.simulator.latent) <= set(chains):
            ranked = {name: np.concatenate([first[name], flat[name][some]]) for name in flat}
            likelihood = self.simulator.log_likelihood(ranked, simulation.data)
            names = [*names, LOG_LIKELIHOOD]
            draws = np.column_stack([draws, np.asarray(likelihood, float)])
        if np.isnan(draws).any():
            bad = [names[i] for i in np.flatnonzero(np.isnan(draws).any(0))]
            raise ValueError(f"draws of {', '.join(bad[:3])} are not numbers")
        kept = 1 + evenly_spaced(len(some), effective)
        pits = randomised_pits(key, draws[0], draws[kept])
        return dict(zip(names, pits.tolist(), strict=True)), len(kept)

    def _tested(self, flat: dict[str, np.ndarray]) -> tuple[list[str], np.ndarray]:
        """Returns the names of the tested quantities, and their values, one row per draw."""
        values: Any = flat
        if self.quantities is not None:
            values = jax.vmap(self.quantities)(values)
        arrays = {name: np.asarray(value, float) for name, value in values.items()}
        names = [n for site, v in arrays.items() for n in coordinate_names(site, v.shape[1:])]
        return names, np.concatenate([v.reshape(len(v), -1) for v in arrays.values()], axis=1)


def _run(
    key: PRNGKeyArray, infer_fn: InferFn, ranker: _Ranker, is_first: bool
) -> SimulationRecord:
    """Runs one simulation; an error is recorded, unless no run has succeeded yet."""
    draw_key, infer_key, rank_key = jr.split(key, 3)
    simulation = ranker.simulator.draw(draw_key)
    model, call = ranker.simulator.with_data(simulation.data)
    try:
        result = infer_fn(infer_key, model, call.args, call.kwargs)
        check = result.check() if hasattr(result, "check") else None
        pits, num_draws = ranker.ranks(rank_key, simulation, result)
    except Exception as error:
        if is_first:
            raise
        return SimulationRecord({}, 0, None, f"{type(error).__name__}: {error}")
    is_trusted = None if check is None else bool(check.trustworthy)
    return SimulationRecord(pits, num_draws, is_trusted, None)


def _aligned(result: Any, truth: Values) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Returns the draws of sites that the prior has too, by chain, and their true values."""
    draws = getattr(result, "chains", result)
    if not isinstance(draws, Mapping):
        raise ValueError(
            "infer_fn: expected a Posterior or a dict of draws by site, got "
            f"{type(result).__name__}"
        )
    known = {name: np.asarray(value) for name, value in truth.items() if name in draws}
    if not known:
        raise ValueError(
            f"infer_fn: expected draws of some of {list(truth)}, got those of {list(draws)}"
        )
    chains = {name: _by_chain(name, draws[name], known[name].shape) for name in known}
    if len({values.shape[:2] for values in chains.values()}) > 1:
        raise ValueError("infer_fn: expected the same number of draws for all sites")
    return chains, known


def _by_chain(name: str, values: Any, shape: tuple[int, ...]) -> np.ndarray:
    values = np.asarray(values)
    if values.ndim == len(shape) + 1:
        values = values[None]
    if values.ndim != len(shape) + 2 or values.shape[2:] != shape:
        raise ValueError(
            f"infer_fn: expected draws of '{name}' in the shape [draws, *{list(shape)}] or "
            f"[chains, draws, *{list(shape)}], got {list(values.shape)}"
        )
    return values


def _effective_draws(draws: Float[np.ndarray, "chains draws quantities"]) -> int:
    """Returns the smallest effective number of draws, of values and of their distances.

    Distances from the median show slow changes of the scale.
    """
    number = draws.shape[0] * draws.shape[1]
    if draws.shape[1] < 4:
        return number
    distances = np.abs(draws - np.median(draws, (0, 1)))
    with np.errstate(divide="ignore", invalid="ignore"):
        sizes = np.stack([effective_sample_size(values) for values in (draws, distances)])
    # A constant has no effective number, and antithetic draws may have a negative one.
    sizes = np.where(np.isfinite(sizes) & (sizes > 0), sizes, number)
    return max(1, min(number, int(sizes.min())))


def evenly_spaced(length: int, number: int) -> np.ndarray:
    """Returns at most `number` evenly spaced indices into range(length)."""
    number = min(length, number)
    return np.arange(number) * length // number


def randomised_pits(
    key: PRNGKeyArray,
    truth: Float[np.ndarray, " quantities"],
    draws: Float[np.ndarray, "draws quantities"],
) -> Float[np.ndarray, " quantities"]:
    """Returns ranks divided by their number; uniform on (0, 1) if truth and draws are alike.

    The rank is random among draws that are equal to the truth.
    """
    below, equal = np.sum(draws < truth, axis=0), np.sum(draws == truth, axis=0)
    uniform = np.asarray(jr.uniform(key, truth.shape), float)
    return (below + uniform * (equal + 1)) / (len(draws) + 1)


def _fingerprint(
    key: PRNGKeyArray, model: Any, infer_fn: InferFn, ranker: _Ranker
) -> Fingerprint:
    """Describes a calibration. One simulation identifies the model with its arguments."""
    options = getattr(infer_fn, "keywords", {})
    return {
        "model": name_of(model),
        "simulated values": digest(ranker.simulator.draw(jr.fold_in(key, 0))),
        "key": digest(key),
        "infer_fn": name_of(getattr(infer_fn, "func", infer_fn)),
        "options of infer_fn": {name: repr(value) for name, value in options.items()},
        "quantities": None if ranker.quantities is None else name_of(ranker.quantities),
        "num_ranked": ranker.num_ranked,
    }


def _collected(records: list[SimulationRecord], level: float) -> Calibration:
    done = [record for record in records if record.error is None]
    failures = {i: r.error for i, r in enumerate(records) if r.error is not None}
    names = list(done[0].pits)
    if any(list(record.pits) != names for record in done):
        raise ValueError("infer_fn: expected draws of the same sites in every simulation")
    checked = [record.is_trusted for record in done]
    return Calibration(
        names,
        np.array([[record.pits[name] for name in names] for record in done]),
        np.array([record.num_draws for record in done]),
        None if None in checked else np.array(checked, bool),
        failures,
        level,
    )
