"""The result of a fit, and what it says in words."""

from html import escape
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, PyTree

from relbo.training.checkpoints import Snapshot
from relbo.training.program import Program
from relbo.training.stopping import Result, SeedProgress, StoppingRule, smoothed

_HUGE, _TINY, _AT_CAP = 1e6, 1e-8, 0.98
_BACK_OFF = 'stopping=Stopping(on_failure="back off")'


class Fit(NamedTuple):
    """A trained guide, with the parameters of the best seed."""

    params: dict[str, PyTree]
    """Constrained parameters, as `SVI.get_params` returns them; never NaN."""
    losses: Float[np.ndarray, " n"]
    """One loss per iteration; infinite where an update was left out."""
    guide: Any
    """The guide. A refined one keeps the data of the fit, so that its draws need none, unless
    they were cut into minibatches; see `AutoRefined.with_data`."""
    num_iterations: int
    """Number of iterations that were run."""
    result: Result
    message: str
    """The result in plain words; after a failure, its iteration and its likely cause."""
    final_loss: float
    """The mean loss over the last iterations."""
    final_stderr: float
    best_seed: int
    """The seed with the lowest final loss among those that did not diverge."""
    seed_params: dict[str, PyTree]
    """The parameters of all seeds, along a leading axis."""
    seed_losses: Float[np.ndarray, "s n"]
    """The losses of all seeds, one row per seed; NaN after a seed has ended."""
    seed_results: tuple[Result, ...]
    mutable_state: Any = None
    """The mutable state of a model that has one, such as the averages of batch norm."""
    seed_mutable_state: Any = None
    """The mutable state of all seeds, along a leading axis."""

    def __repr__(self) -> str:
        return f"Fit({self.message})"

    def _repr_html_(self) -> str:
        rows = {
            "result": str(self.result),
            "iterations": str(self.num_iterations),
            "loss": f"{self.final_loss:.6g} ± {self.final_stderr:.2g}",
            "seeds": ", ".join(map(str, self.seed_results)),
            "guide": repr(self.guide),
        }
        cells = "".join(
            f"<tr><th>{name}</th><td>{escape(text)}</td></tr>" for name, text in rows.items()
        )
        return f"<table>{cells}</table><p>{escape(self.message)}</p>"


class _SeedEnd(NamedTuple):
    """How one seed ended."""

    result: Result
    loss: float
    stderr: float
    num_iterations: int


def result_of(
    program: Program,
    rule: StoppingRule,
    end: Snapshot,
    *,
    is_late: bool,
    is_stopped: bool,
    bad_arguments: list[str],
) -> Fit:
    """Returns the result of a run.

    Args:
        program: what was run.
        rule: what decided about the end.
        end: the last state.
        is_late: whether the time budget was exceeded.
        is_stopped: whether a callback stopped the run.
        bad_arguments: the arguments of the model that contain NaN or infinity.
    """
    restore = [seed.restore for seed in end.seeds]
    seed_params, seed_mutable = program.params(end.carry, np.array(restore))
    # Of seeds that have not ended by themselves.
    last_result = Result.OUT_OF_TIME if is_late else Result.FINISHED
    last_result = Result.STOPPED if is_stopped else last_result
    ends = [
        _end_of(seed, row, rule, end.iteration, last_result)
        for seed, row in zip(end.seeds, end.losses, strict=True)
    ]
    best = min(
        range(len(ends)), key=lambda i: (ends[i].result is Result.DIVERGED, ends[i].loss)
    )
    last, seed = ends[best], end.seeds[best]
    params, mutable = jax.tree.map(lambda x: x[best], (seed_params, seed_mutable))
    losses = end.losses[best, : last.num_iterations]
    message = _message(seed, last)
    if last.result is Result.DIVERGED:
        rate = rule.rate_words(seed)
        cause = likely_cause(program.guide, params, bad_arguments, seed.failed_at, rate)
        message += f". Likely cause: {cause}"
    return Fit(
        params=params,
        losses=losses,
        guide=program.guide,
        num_iterations=last.num_iterations,
        result=last.result,
        message=message + _remarks(seed, losses, ends, best),
        final_loss=last.loss,
        final_stderr=last.stderr,
        best_seed=best,
        seed_params=seed_params,
        seed_losses=end.losses[:, : max(one.num_iterations for one in ends)],
        seed_results=tuple(one.result for one in ends),
        mutable_state=mutable,
        seed_mutable_state=seed_mutable,
    )


def _end_of(
    seed: SeedProgress,
    losses: np.ndarray,
    rule: StoppingRule,
    iteration: int,
    otherwise: Result,
) -> _SeedEnd:
    result = seed.result or otherwise
    number = iteration if seed.ended_at is None else seed.ended_at
    if seed.restore:
        # Its parameters are those of its best chunk, and so is its loss.
        return _SeedEnd(result, seed.best, seed.best_sd / rule.chunk_length**0.5, number)
    return _SeedEnd(result, *smoothed(losses[:number], rule.patience), number)


def _message(seed: SeedProgress, end: _SeedEnd) -> str:
    loss, number = f"loss {end.loss:.6g} ± {end.stderr:.2g}", end.num_iterations
    if end.result is Result.CONVERGED:
        return f"converged after {number} iterations, {loss}: it no longer falls"
    if end.result is Result.FINISHED:
        return f"finished all {number} iterations, {loss}"
    if end.result is Result.OUT_OF_TIME:
        return f"out of time after {number} iterations, {loss}"
    if end.result is Result.STOPPED:
        return f"stopped by the callback after {number} iterations, {loss}"
    what, which = "a value was not finite", "just before"
    if seed.restore:
        what, which = "the loss rose far above its earlier values", "where the loss was lowest"
    return (
        f"diverged at iteration {seed.failed_at}: {what}; the parameters are those {which}, "
        f"{loss}"
    )


def _remarks(seed: SeedProgress, losses: np.ndarray, ends: list[_SeedEnd], best: int) -> str:
    """Says which updates were left out or halved, and which seed this is."""
    words, left_out = "", int(np.sum(np.isinf(losses)))
    if left_out:
        words += f"; {left_out} updates had an infinite loss and were left out"
    if seed.back_offs:
        words += f"; the learning rate was halved {seed.back_offs} times"
    if len(ends) > 1:
        words += f"; this is seed {best} of {len(ends)}, the best"
        bad = [i for i, end in enumerate(ends) if end.result is Result.DIVERGED]
        words += f" (diverged: {bad})" if bad else ""
    return words


def likely_cause(
    guide: Any, params: dict[str, Any], bad_arguments: list[str], failed_at: int, rate: str
) -> str:
    """Says what probably went wrong, and what to try.

    Args:
        guide: the guide that was trained.
        params: its last good parameters, constrained.
        bad_arguments: the arguments of the model that contain NaN or infinity.
        failed_at: the iteration that failed.
        rate: what is known about the learning rate.
    """
    if bad_arguments:
        return f"{', '.join(bad_arguments)} of the model's arguments contains NaN or infinity"
    if failed_at == 0:
        return (
            "the first loss is not finite: the guide starts outside the model's support or "
            "where its density overflows (try init_loc_fn, or check the model)"
        )
    capped = _step_size_at_cap(guide, params)
    if capped:
        return (
            f"the step size {capped} is at its cap, so the steps inside the guide may have "
            "become unstable (try a smaller max_step_size)"
        )
    extreme = _extreme_parameter(params)
    if extreme:
        return f"the parameter {extreme}; {rate} may be too high (try {_BACK_OFF})"
    return f"{rate} is too high for this model (try a lower one, or {_BACK_OFF})"


def _step_size_at_cap(guide: Any, params: dict[str, Any]) -> str | None:
    kernel = getattr(getattr(guide, "refinement", None), "kernel", None)
    upper = getattr(getattr(kernel, "step_size", None), "upper", None)
    if upper is None:
        return None
    start = f"{guide.prefix}_step_size"
    for name, value in params.items():
        if name.startswith(start) and np.max(np.asarray(value)) > _AT_CAP * upper:
            return name
    return None


def _extreme_parameter(params: dict[str, Any]) -> str | None:
    """Names the parameter that is furthest from ordinary numbers."""
    worst, found = 1.0, None
    for name, value in params.items():
        for leaf in jax.tree.leaves(value):
            sizes = np.abs(np.asarray(leaf, float)).ravel()
            if sizes.size == 0:
                continue
            large, small = sizes.max(), sizes.min()
            if large / _HUGE > worst:
                worst, found = large / _HUGE, f"{name} has grown to {large:.1e}"
            if name.endswith("scale") and 0 < small < _TINY / worst:
                worst, found = _TINY / small, f"{name} has shrunk to {small:.1e}"
    return found
