"""What a fit hands back, and how it says what happened."""

import enum
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Float, PyTree

from relbo._fitting.diagnosis import likely_cause
from relbo._fitting.monitor import Monitor, Seed, smoothed
from relbo._fitting.run import Ended, rate_words
from relbo._fitting.trainer import CHUNK, Trainer


class Result(enum.StrEnum):
    """How a fit ended."""

    CONVERGED = "converged"
    FINISHED = "finished"
    DIVERGED = "diverged"
    OUT_OF_TIME = "out of time"


class Fit(NamedTuple):
    """A trained guide; with `keep="all"` what belongs to a seed has a leading axis."""

    params: dict[str, PyTree]
    """Constrained, as `SVI.get_params` gives them; never a NaN among them."""
    losses: Float[np.ndarray, " n"]
    """One an iteration; where an update was left out it is infinite."""
    guide: Any
    num_iterations: int
    """How many were run."""
    result: Result
    message: str
    """The result in plain words; of a failure the iteration and the likely cause."""
    final_loss: Any
    """The mean over the last iterations."""
    final_stderr: Any
    seed_losses: Float[np.ndarray, "s n"]
    """Of all seeds; NaN where one had ended."""
    seed_results: tuple[Result, ...]
    best_seed: int
    mutable_state: Any = None
    """Of a model that has one, such as the averages of batch norm."""

    def __repr__(self) -> str:
        return f"Fit({self.message})"


class _Final(NamedTuple):
    """One seed at its end."""

    result: Result
    loss: float
    stderr: float
    length: int
    """Iterations run."""


def outcome(
    trainer: Trainer, monitor: Monitor, ended: Ended, keep: str, bad_arguments: list[str]
) -> Fit:
    """Puts a run that has ended into words and numbers."""
    number = len(ended.seeds)
    restore = np.array([seed.outcome == "diverged" and seed.restore for seed in ended.seeds])
    state = trainer.params(ended.carry, restore if number > 1 else restore[0])
    finals = [
        _final(seed, row, monitor, ended)
        for seed, row in zip(ended.seeds, ended.losses, strict=True)
    ]
    best = min(
        range(number), key=lambda i: (finals[i].result is Result.DIVERGED, finals[i].loss)
    )
    best_state = jax.tree.map(lambda x: x[best], state) if number > 1 else state
    cause = lambda: likely_cause(
        trainer.guide,
        best_state[0],
        bad_arguments,
        ended.seeds[best].failed_at,
        rate_words(trainer, monitor, ended.seeds[best]),
    )
    message = _message(ended.seeds[best], finals[best], ended.losses[best], cause)
    losses = ended.losses[:, : max(final.length for final in finals)]
    if keep == "all":
        lead = (lambda x: x[None]) if number == 1 else (lambda x: x)
        params, mutable = jax.tree.map(lead, state)
        kept = losses
        loss, stderr = (np.array([getattr(f, n) for f in finals]) for n in ("loss", "stderr"))
    else:
        params, mutable = best_state
        kept = losses[best, : finals[best].length]
        loss, stderr = finals[best].loss, finals[best].stderr
    return Fit(
        params=params,
        losses=kept,
        guide=trainer.guide,
        num_iterations=kept.shape[-1],
        result=finals[best].result,
        message=message + _about_seeds(finals, best),
        final_loss=loss,
        final_stderr=stderr,
        seed_losses=losses,
        seed_results=tuple(final.result for final in finals),
        best_seed=best,
        mutable_state=mutable,
    )


def _final(seed: Seed, losses: np.ndarray, monitor: Monitor, ended: Ended) -> _Final:
    if seed.outcome is not None:
        result = Result(seed.outcome)
    else:
        result = Result.OUT_OF_TIME if ended.is_late else Result.FINISHED
    length = ended.iteration if seed.ended_at is None else seed.ended_at
    if seed.restore and result is Result.DIVERGED:
        # Its parameters are those of its best chunk, and so is its loss.
        return _Final(result, seed.best, seed.best_sd / CHUNK**0.5, length)
    return _Final(result, *smoothed(losses[:length], monitor.window * CHUNK), length)


def _message(seed: Seed, final: _Final, losses: np.ndarray, cause: Any) -> str:
    loss = f"loss {final.loss:.6g} ± {final.stderr:.2g}"
    if final.result is Result.CONVERGED:
        words = f"converged after {final.length} iterations, {loss}: it no longer falls"
    elif final.result is Result.FINISHED:
        words = f"finished all {final.length} iterations, {loss}"
    elif final.result is Result.OUT_OF_TIME:
        words = f"out of time after {final.length} iterations, {loss}"
    else:
        what = "the loss rose beyond bounds" if seed.restore else "a value was not finite"
        which = "where the loss was lowest" if seed.restore else "just before"
        words = (
            f"diverged at iteration {seed.failed_at}: {what}; the parameters are those "
            f"{which}, {loss}. Likely cause: {cause()}"
        )
    left_out = int(np.sum(np.isinf(losses[: final.length])))
    if left_out:
        words += f"; {left_out} updates met an infinite loss and were left out"
    if seed.back_offs:
        words += f"; the rate was halved {seed.back_offs} times"
    return words


def _about_seeds(finals: list[_Final], best: int) -> str:
    if len(finals) == 1:
        return ""
    bad = [i for i, final in enumerate(finals) if final.result is Result.DIVERGED]
    words = f"; this is seed {best} of {len(finals)}, the best"
    return words + (f" (diverged: {bad})" if bad else "")
