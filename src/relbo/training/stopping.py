"""When a fit stops: plateaus, divergences, and backing off."""

import enum
import math
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from relbo.core.checks import check_bool, check_integer, check_seconds
from relbo.training.optimiser import RATE

CHUNK = 100
"""Number of iterations that are compiled into one call; the losses are examined after each."""
MAX_BACK_OFFS = 10
WARM_PATIENCE, COLD_PATIENCE = 300, 1000
MAX_RISE = 0.1
"""The largest rise of a warm run's loss, in nats, besides two standard deviations."""
_CLIP = 5.0
"""Losses that exceed the median by more than this number of deviations are outliers."""


class Result(enum.StrEnum):
    """How a fit ended."""

    CONVERGED = "converged"
    FINISHED = "finished"
    DIVERGED = "diverged"
    OUT_OF_TIME = "out of time"
    STOPPED = "stopped"


@dataclass(frozen=True, kw_only=True)
class Stopping:
    """Says when a fit stops before its last iteration.

    Args:
        early: whether to stop when the smoothed loss no longer falls.
        patience: number of iterations of each of the two windows that are compared, at least; a
            quarter of the run once that is longer. The loss no longer falls if its mean over
            the last window is no lower than over the one before; after a warm start, if it is
            lower by less than two standard errors. The default is 300 after a warm start and
            1000 otherwise.
        seconds: time budget. It is kept to within an iteration once the program is compiled.
            With checkpoints or several devices the fit stops at the end of the first chunk of
            100 iterations that exceeds it; with checkpoints the warm start is not cut short, so
            that a resumed run equals one without a time budget.
        on_failure: what to do about a NaN or a divergence: `"stop"` with the last good state,
            or `"back off"`: halve the learning rate and continue from the best state. By
            default the default optimiser backs off once it has made progress, and others stop.
            A run with a warm start also backs off when its loss clearly rises.
    """

    early: bool = True
    patience: int | None = None
    seconds: float | None = None
    on_failure: Literal["stop", "back off"] | None = None

    def __post_init__(self) -> None:
        check_bool("early", self.early)
        if self.patience is not None:
            check_integer("patience", self.patience, 1)
        check_seconds(self.seconds)
        if self.on_failure not in ("stop", "back off", None):
            raise ValueError(
                f'on_failure: expected "stop", "back off" or None, got {self.on_failure!r}'
            )


@dataclass
class ChunkLosses:
    """A summary of the losses of one chunk, robust to outliers."""

    mean: float
    variance: float
    number: int


def summary_of(losses: Float[np.ndarray, " n"]) -> ChunkLosses:
    """Computes the mean and the variance of a chunk's losses, with large outliers clipped.

    A single draw of a guide with heavy tails may outweigh all others, and no decision should
    depend on it.
    """
    losses = losses[np.isfinite(losses)]
    if len(losses) == 0:
        return ChunkLosses(math.inf, 0.0, 0)
    median = np.median(losses)
    deviation = 1.5 * np.median(np.abs(losses - median))
    if deviation > 0:
        losses = np.minimum(losses, median + _CLIP * deviation)
    return ChunkLosses(float(losses.mean()), float(losses.var()), len(losses))


def smoothed(losses: Float[np.ndarray, " n"], window: int) -> tuple[float, float]:
    """Computes the mean of the last finite losses and its standard error."""
    last = losses[np.isfinite(losses)][-window:]
    if len(last) == 0:
        return math.inf, math.inf
    return float(last.mean()), float(last.std() / math.sqrt(len(last)))


@dataclass
class SeedProgress:
    """The history of one seed and the decisions about it; kept in checkpoints."""

    chunks: list[ChunkLosses] = field(default_factory=list)
    start: int = 0
    """The chunk with which the present phase began."""
    cooling: int = 0
    """Number of chunks in which the learning rate falls to zero; 0 before that."""
    back_offs: int = 0
    best: float = math.inf
    best_sd: float = 0.0
    result: Result | None = None
    """How it ended, `None` while it runs."""
    ended_at: int | None = None
    """Number of iterations run when it ended."""
    failed_at: int = -1
    restore: bool = False
    """Whether to continue from, or end with, the best state instead of the last."""
    keep: bool = False
    """Whether the last state is the best one."""
    is_whitened: bool = False
    """Whether a normal base moves in units of its own standard deviations."""

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "SeedProgress":
        chunks = [ChunkLosses(**chunk) for chunk in values["chunks"]]
        result = None if values["result"] is None else Result(values["result"])
        return cls(**{**values, "chunks": chunks, "result": result})


class StoppingRule:
    """Decides after each chunk how a seed continues.

    Args:
        stopping: the options of the user.
        is_default_optimiser: whether the learning rate falls to zero before the fit stops.
        is_warm: whether the run started from a fitted normal.
    """

    def __init__(
        self, stopping: Stopping, *, is_default_optimiser: bool, is_warm: bool = False
    ):
        self.is_default_optimiser = is_default_optimiser
        self.patience = stopping.patience or (WARM_PATIENCE if is_warm else COLD_PATIENCE)
        self.chunk_length = CHUNK
        self._stops_early = stopping.early
        # With a fixed number of iterations a longer run must begin like a shorter one.
        self._ends_cool = is_default_optimiser and stopping.early
        self._backs_off = stopping.on_failure == "back off"
        self._backs_off_later = is_default_optimiser and stopping.on_failure is None
        # A warm start leaves little to gain before the rate falls.
        self._min_gain = 2.0 if is_warm else 0.0
        self._cooling_ratio = 3 if is_warm else 2
        self._takes_back_rises = is_warm and (self._backs_off or self._backs_off_later)

    @property
    def window(self) -> int:
        """The number of chunks in each of the two windows that are compared."""
        return -(-self.patience // self.chunk_length)

    def factor(self, seed: SeedProgress) -> float:
        """Returns the factor of the optimiser's updates."""
        factor = 0.5**seed.back_offs
        if seed.cooling:
            done = (len(seed.chunks) - seed.start + 0.5) / seed.cooling
            cosine = 0.5 * (1 + math.cos(math.pi * min(done, 1.0)))
            factor *= cosine if self._stops_early else max(cosine, 0.1)
        return factor

    def expected_chunks(self, seed: SeedProgress) -> float:
        """Returns how many chunks a seed will still take if its loss stops falling soon."""
        done = len(seed.chunks) - seed.start
        if not self._stops_early:
            return math.inf
        if seed.cooling:
            return float(max(seed.cooling - done, 1))
        plateau = float(max(2 * self.window - done, 1))
        return plateau + (
            self._cooling_ratio * (done + plateau) if self.is_default_optimiser else 0.0
        )

    def rate_words(self, seed: SeedProgress) -> str:
        """Says what is known about the learning rate."""
        factor = self.factor(seed)
        if self.is_default_optimiser:
            return f"learning rate {RATE * factor:.2g}"
        return "the learning rate" if factor == 1.0 else f"{factor:.2g} of the learning rate"

    def apply(
        self,
        seed: SeedProgress,
        losses: Float[np.ndarray, " n"],
        failed_at: int,
        iteration: int,
        *,
        chunks_left: float = math.inf,
    ) -> None:
        """Takes in a chunk.

        Args:
            seed: is changed in place.
            losses: the losses of the chunk.
            failed_at: the iteration that failed, or -1.
            iteration: number of iterations run so far.
            chunks_left: number of chunks that may follow.
        """
        seed.keep = seed.restore = False
        chunk = summary_of(losses)
        has_exploded = _has_exploded(seed, chunk) or self._has_risen(seed, chunk)
        if failed_at >= 0 or has_exploded:
            self._fail(seed, failed_at, iteration, has_exploded)
            return
        seed.chunks.append(chunk)
        if chunk.mean < seed.best:
            seed.best, seed.best_sd, seed.keep = chunk.mean, math.sqrt(chunk.variance), True
        if seed.cooling:
            self._continue_cooling(seed, iteration, chunks_left)
        elif self._is_plateau(seed):
            if self.is_default_optimiser:
                self._cool(seed, chunks_left)
            elif self._stops_early:
                seed.result, seed.ended_at = Result.CONVERGED, iteration
        elif self._ends_cool and chunks_left <= self._wanted_cooling(seed):
            self._cool(seed, chunks_left)

    def _cool(self, seed: SeedProgress, chunks_left: float) -> None:
        """Lets the learning rate fall to zero."""
        seed.cooling = int(max(1, min(self._wanted_cooling(seed), chunks_left)))
        seed.start = len(seed.chunks)

    def _wanted_cooling(self, seed: SeedProgress) -> int:
        """Returns a number of chunks, in proportion to what the run has taken."""
        return self._cooling_ratio * (len(seed.chunks) - seed.start)

    def _continue_cooling(self, seed: SeedProgress, iteration: int, chunks_left: float) -> None:
        """Ends a seed that has cooled, and one that has no time to cool further."""
        if not self._stops_early:
            return
        done = len(seed.chunks) - seed.start
        left = min(seed.cooling - done, chunks_left)
        seed.cooling = done + max(int(left), 0)
        if done < seed.cooling:
            return
        if chunks_left == 0:
            # A run that is made longer starts again.
            seed.cooling, seed.start = 0, len(seed.chunks)
            return
        seed.result = Result.CONVERGED if chunks_left >= 1 else Result.OUT_OF_TIME
        seed.ended_at = iteration

    def _fail(
        self, seed: SeedProgress, failed_at: int, iteration: int, has_exploded: bool
    ) -> None:
        seed.failed_at = failed_at if failed_at >= 0 else iteration - 1
        seed.restore = has_exploded
        backs_off = self._backs_off or (self._backs_off_later and len(seed.chunks) > 0)
        if backs_off and seed.back_offs < MAX_BACK_OFFS:
            # The last finite state may be too far away for a lower rate to help.
            seed.restore = True
            seed.back_offs += 1
            if not seed.cooling:
                seed.start = len(seed.chunks)
            return
        seed.result, seed.ended_at = Result.DIVERGED, iteration if has_exploded else failed_at

    def _has_risen(self, seed: SeedProgress, chunk: ChunkLosses) -> bool:
        """Returns whether a warm run leaves the optimum that it started next to.

        A few long gradients are enough for that where many steps amplify them.
        """
        if not self._takes_back_rises or seed.back_offs >= MAX_BACK_OFFS or not seed.chunks:
            return False
        return chunk.mean > seed.best + 2.0 * seed.best_sd + MAX_RISE

    def _is_plateau(self, seed: SeedProgress) -> bool:
        """Returns whether the last chunks are no better than those before."""
        chunks = seed.chunks[seed.start :]
        window = max(self.window, len(chunks) // 4)
        if len(chunks) < 2 * window:
            return False
        before, after = chunks[-2 * window : -window], chunks[-window:]
        noise = math.hypot(_stderr(before), _stderr(after))
        return _mean(before) - _mean(after) <= self._min_gain * noise


def _mean(chunks: list[ChunkLosses]) -> float:
    return float(np.mean([chunk.mean for chunk in chunks]))


def _stderr(chunks: list[ChunkLosses]) -> float:
    """Returns the standard error of the mean loss of some chunks."""
    number = max(sum(chunk.number for chunk in chunks), 1)
    return math.sqrt(float(np.mean([chunk.variance for chunk in chunks])) / number)


def _has_exploded(seed: SeedProgress, chunk: ChunkLosses) -> bool:
    """Returns whether the loss is far above the range in which the run has moved."""
    if not seed.chunks or chunk.number == 0:
        return False
    descent = seed.chunks[0].mean - seed.best
    return chunk.mean > seed.best + 20.0 * max(descent, 10.0 * seed.best_sd, 1.0)
