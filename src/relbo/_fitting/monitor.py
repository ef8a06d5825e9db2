"""Watches the losses of a run between chunks: plateaus, divergence, what to do next."""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from relbo._fitting.optimiser import RATES

MAX_BACK_OFFS = 10
_CLIP = 5.0
"""Losses further above the median than so many deviations are outliers."""


@dataclass
class Level:
    """The losses of one chunk, with outliers pulled in."""

    mean: float
    variance: float
    number: int


def level_of(losses: Float[np.ndarray, " n"]) -> Level:
    """The mean and the variance of a chunk's losses.

    One draw of a guide with heavy tails may outweigh all others; a decision must not hang on
    it, so that losses far above the median count as if they were nearer.
    """
    losses = losses[np.isfinite(losses)]
    if len(losses) == 0:
        return Level(math.inf, 0.0, 0)
    middle = np.median(losses)
    spread = 1.5 * np.median(np.abs(losses - middle))
    if spread > 0:
        losses = np.minimum(losses, middle + _CLIP * spread)
    return Level(float(losses.mean()), float(losses.var()), len(losses))


def smoothed(losses: Float[np.ndarray, " n"], window: int) -> tuple[float, float]:
    """The plain mean of the last losses, and its standard error."""
    last = losses[np.isfinite(losses)][-window:]
    if len(last) == 0:
        return math.inf, math.inf
    return float(last.mean()), float(last.std() / math.sqrt(len(last)))


@dataclass
class Seed:
    """What is known of one seed's run; survives in a checkpoint."""

    levels: list[Level] = field(default_factory=list)
    stage: int = 0
    """Which of the rates is in use."""
    stage_start: int = 0
    """The chunk in which it came into use."""
    back_offs: int = 0
    best: float = math.inf
    best_sd: float = 0.0
    outcome: str | None = None
    """Why it ended, `None` while it runs."""
    ended_at: int | None = None
    """The number of iterations run when it ended."""
    failed_at: int = -1
    restore: bool = False
    """Whether the state to go on from, or to end with, is the best one, not the last."""
    keep: bool = False
    """Whether the last state is the best one."""
    is_whitened: bool = False
    """Whether a normal base is moved in units of its own standard deviations."""

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Seed":
        levels = [Level(**level) for level in values["levels"]]
        return cls(**{**values, "levels": levels})


class Monitor:
    """The rules by which a run is led.

    Args:
        is_default: whether the rate goes down on a plateau, before a stop.
        window: how many chunks make up one side of the comparison that finds a plateau.
        stops_early: whether the last plateau ends a run.
        backs_off: whether a failure lowers the rate rather than ending the run.
    """

    def __init__(self, *, is_default: bool, window: int, stops_early: bool, backs_off: bool):
        self.num_stages = len(RATES) if is_default else 1
        self.window, self.stops_early, self.backs_off = window, stops_early, backs_off

    def factor(self, seed: Seed) -> float:
        """What the optimiser's updates are multiplied with."""
        return RATES[seed.stage] / RATES[0] * 0.5**seed.back_offs

    def look(
        self, seed: Seed, losses: Float[np.ndarray, " n"], failed_at: int, iteration: int
    ) -> None:
        """Takes in a chunk.

        Args:
            seed: is changed.
            losses: of the chunk.
            failed_at: the iteration that spoilt the run, or -1.
            iteration: how many were run by now.
        """
        seed.keep = seed.restore = False
        level = level_of(losses)
        has_exploded = _has_exploded(seed, level)
        if failed_at >= 0 or has_exploded:
            self._fail(seed, failed_at, iteration, has_exploded)
            return
        seed.levels.append(level)
        if level.mean < seed.best:
            seed.best, seed.best_sd, seed.keep = level.mean, math.sqrt(level.variance), True
        if self._is_plateau(seed):
            self._settle(seed, iteration)

    def _fail(self, seed: Seed, failed_at: int, iteration: int, has_exploded: bool) -> None:
        seed.failed_at = failed_at if failed_at >= 0 else iteration - 1
        seed.restore = has_exploded
        if self.backs_off and seed.back_offs < MAX_BACK_OFFS:
            # The last finite state may already be far out, where a lower rate is no help.
            seed.restore = True
            seed.back_offs += 1
            seed.stage_start = len(seed.levels)
            return
        seed.outcome, seed.ended_at = "diverged", iteration if has_exploded else failed_at

    def _settle(self, seed: Seed, iteration: int) -> None:
        if seed.stage + 1 < self.num_stages:
            seed.stage += 1
            seed.stage_start = len(seed.levels)
        elif self.stops_early:
            seed.outcome, seed.ended_at = "converged", iteration

    def _is_plateau(self, seed: Seed) -> bool:
        """Whether the last chunks are no better than those before, up to their noise."""
        here = seed.levels[seed.stage_start :]
        if len(here) < 2 * self.window:
            return False
        before, after = here[-2 * self.window : -self.window], here[-self.window :]
        gain = _mean(before) - _mean(after)
        return gain <= math.hypot(_stderr(before), _stderr(after))


def _mean(levels: list[Level]) -> float:
    return float(np.mean([level.mean for level in levels]))


def _stderr(levels: list[Level]) -> float:
    """From the noise within chunks or from chunk to chunk, whichever is larger.

    Parameters that wander make neighbouring losses alike, which only the latter shows.
    """
    number = max(1, sum(level.number for level in levels))
    within = float(np.mean([level.variance for level in levels])) / number
    between = float(np.var([level.mean for level in levels])) / len(levels)
    return math.sqrt(max(within, between))


def _has_exploded(seed: Seed, level: Level) -> bool:
    """Whether the loss is far above anything that the run has come down from."""
    if not seed.levels or level.number == 0:
        return False
    descent = seed.levels[0].mean - seed.best
    return level.mean > seed.best + 20.0 * max(descent, 10.0 * seed.best_sd, 1.0)
