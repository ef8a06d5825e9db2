"""Leads a trainer through its chunks."""

import time
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from relbo._fitting.checkpoints import Checkpoints, Snapshot
from relbo._fitting.feeding import Memory, Stream
from relbo._fitting.monitor import Monitor, Seed, smoothed
from relbo._fitting.optimiser import RATES
from relbo._fitting.trainer import CHUNK, Carry, Control, Record, Trainer
from relbo._mesh import is_past, local, placed, together


class Ended(NamedTuple):
    """A run at its end."""

    carry: Carry
    losses: Float[np.ndarray, "s n"]
    """NaN where a seed was not running."""
    seeds: list[Seed]
    iteration: int
    is_late: bool


class Run:
    """A run of one or more seeds, from its start or from a checkpoint.

    Args:
        trainer: what is compiled.
        feed: brings the data.
        monitor: the rules.
        snapshot: where to begin.
        checkpoints: where to keep snapshots, or `None`.
        report: told about progress.
    """

    def __init__(
        self,
        trainer: Trainer,
        feed: Memory | Stream,
        monitor: Monitor,
        snapshot: Snapshot,
        checkpoints: Checkpoints | None,
        report: Any,
    ):
        self.trainer, self.feed, self.monitor = trainer, feed, monitor
        self.carry, self.seeds = placed(trainer.spread, snapshot.carry), snapshot.seeds
        self.iteration = snapshot.iteration
        self._losses = [snapshot.losses]
        self._checkpoints, self._report = checkpoints, report
        self._window = monitor.window * CHUNK

    def until(self, num_iterations: int, deadline: float) -> Ended:
        """Runs to the end of the budget, or until no seed is left."""
        with together(self.trainer.spread, "fit", self._advice()):
            return self._until(num_iterations, deadline)

    def _until(self, num_iterations: int, deadline: float) -> Ended:
        is_late = False
        while self.iteration < num_iterations and self._is_alive() and not is_late:
            began = time.monotonic()
            record = self._advance(num_iterations)
            now = time.monotonic()
            is_late = self.iteration < num_iterations and is_past(self.trainer.spread, deadline)
            self._save(num_iterations, is_late)
            self._tell(record, num_iterations, CHUNK / max(now - began, 1e-9))
        if not is_late:
            self._give_up()
        if self._checkpoints is not None:
            self._checkpoints.close()
        carry = local(self.trainer.spread, self.carry)
        return Ended(carry, self._all_losses(), self.seeds, self.iteration, is_late)

    def _advice(self) -> str:
        if self._checkpoints is None:
            return "with a checkpoint_dir it could have gone on from its last snapshot"
        where = self._checkpoints.directory
        return f"start all of them again, and the run goes on from the last snapshot in {where}"

    def _give_up(self) -> None:
        """Calls a seed that backed off to the end and never got through a chunk by its name."""
        for seed in self.seeds:
            if seed.outcome is None and not seed.levels:
                seed.outcome, seed.ended_at, seed.restore = "diverged", self.iteration, False

    def _is_alive(self) -> bool:
        return any(seed.outcome is None for seed in self.seeds)

    def _advance(self, num_iterations: int) -> Record:
        # Boundaries are at multiples of the chunk, wherever a run was interrupted.
        stop = min(self.iteration + CHUNK, num_iterations)
        self.carry, record = self.trainer.chunk(
            self.carry,
            self._control(),
            np.int32(self.iteration),
            np.int32(stop),
            self.feed(self.iteration, num_iterations),
        )
        losses = np.atleast_2d(np.asarray(record.losses))[:, : stop - self.iteration]
        failed_at = np.atleast_1d(np.asarray(self.carry.failed_at))
        self._losses.append(losses)
        self.iteration = stop
        for seed, row, failed in zip(self.seeds, losses, failed_at, strict=True):
            if seed.outcome is None:
                self.monitor.look(seed, row, int(failed), stop)
        return record

    def _control(self) -> Control:
        flags = lambda name: np.array([getattr(seed, name) for seed in self.seeds])
        is_active = np.array([seed.outcome is None for seed in self.seeds])
        control = Control(
            np.array([self.monitor.factor(seed) for seed in self.seeds], np.float32),
            is_active,
            flags("keep"),
            flags("restore") & is_active,
            flags("is_whitened"),
        )
        return control if self.trainer.num_seeds > 1 else Control(*(x[0] for x in control))

    def _save(self, num_iterations: int, is_late: bool) -> None:
        if self._checkpoints is None or self.iteration % CHUNK:
            return
        is_last = is_late or not self._is_alive() or self.iteration + CHUNK > num_iterations
        snapshot = Snapshot(self.iteration, self.carry, self._all_losses(), self.seeds)
        self._checkpoints.save(snapshot, is_last=is_last)

    def _all_losses(self) -> Float[np.ndarray, "s n"]:
        self._losses = [np.concatenate(self._losses, axis=1)]
        return self._losses[0]

    def _tell(self, record: Record, num_iterations: int, speed: float) -> None:
        recent = np.concatenate(self._losses[-self.monitor.window :], axis=1)
        means = [smoothed(row, self._window) for row in recent]
        best = int(np.argmin([mean for mean, _ in means]))
        loss, stderr = means[best]
        is_over = self.iteration >= num_iterations or not self._is_alive()
        note = (
            f"loss {loss:.6g} ± {stderr:.2g}, {self._rate_note(record, best)}{speed:.0f} it/s"
        )
        self._report("fit", 1.0 if is_over else self.iteration / num_iterations, note)

    def _rate_note(self, record: Record, best: int) -> str:
        step_size = float(np.atleast_1d(np.asarray(record.step_size))[best])
        if np.isfinite(step_size):
            return f"step size {step_size:.3g}, "
        return f"{rate_words(self.trainer, self.monitor, self.seeds[best])}, "


def rate_words(trainer: Trainer, monitor: Monitor, seed: Seed) -> str:
    """What is known of the learning rate."""
    factor = monitor.factor(seed)
    if trainer.is_default:
        return f"learning rate {RATES[0] * factor:.2g}"
    return "the learning rate" if factor == 1.0 else f"{factor:.2g} of the learning rate"
