"""The training loop: one compiled chunk after the other."""

import time
from typing import Any

import numpy as np

from relbo._devices import is_past, local, placed, together
from relbo.training.checkpoints import Checkpoints, Snapshot
from relbo.training.data import RowStream, TrainingData
from relbo.training.program import Program
from relbo.training.stopping import CHUNK, Result, StoppingRule, smoothed
from relbo.training.update import ChunkRecord, Control

NUM_CHUNKS = 25
"""Number of chunks that a time budget allows at least, so that it is kept."""
LENGTHS = 5, 10, 20, 25, 50, CHUNK


class Pace:
    """How fast iterations are, from the last parts of a run."""

    def __init__(self) -> None:
        self._first: list[tuple[int, float]] = []
        self._parts: list[tuple[int, float]] = []

    @property
    def is_known(self) -> bool:
        return bool(self._parts)

    @property
    def seconds(self) -> float:
        """Seconds of an iteration, with compilation if it is not known without."""
        number, seconds = map(sum, zip(*(self._parts[-10:] or self._first), strict=True))
        return max(seconds / number, 1e-9)

    def add(self, number: int, seconds: float) -> None:
        """Takes in some iterations; the first ones were compiled and do not count."""
        if self._first:
            self._parts.append((number, seconds))
        else:
            self._first.append((number, seconds))

    def iterations_until(self, deadline: float) -> int:
        """Returns how many iterations are in time; a few where it is not known."""
        if not self.is_known:
            return 3 if self._first else 2
        return max(int(min(deadline - time.monotonic(), 1e9) / self.seconds), 1)

    def chunk_length(self, deadline: float) -> int:
        """Returns a number of iterations that leaves time for many chunks."""
        wanted = self.iterations_until(deadline) / NUM_CHUNKS
        return max((length for length in LENGTHS if length <= wanted), default=LENGTHS[0])


class TrainingLoop:
    """Runs one or more seeds from their start or from a checkpoint.

    Args:
        program: the compiled functions.
        data: the data.
        stream: reads the rows that stay on disk.
        rule: decides when a seed ends.
        snapshot: where to start.
        checkpoints: where to keep snapshots, or `None`.
        report: is told about progress.
    """

    def __init__(
        self,
        program: Program,
        data: TrainingData,
        stream: RowStream,
        rule: StoppingRule,
        snapshot: Snapshot,
        checkpoints: Checkpoints | None,
        report: Any,
    ):
        self.program, self.rule = program, rule
        self.arrays, self.stream = placed(program.spread, data.whole_arrays), stream
        self.carry, self.seeds = placed(program.spread, snapshot.carry), snapshot.seeds
        self.iteration = snapshot.iteration
        self._losses = [snapshot.losses]
        self._checkpoints, self._report = checkpoints, report
        self._pace, self._has_chunks = Pace(), False
        self._unseen = np.zeros((len(snapshot.seeds), 0))
        self.is_stopped = False
        """Whether a callback asked to stop."""

    def run(self, num_iterations: int, deadline: float) -> tuple[Snapshot, bool]:
        """Runs until all seeds have ended, the last iteration, the deadline or a callback.

        Returns:
            The last state, and whether the deadline was missed or a callback stopped the run.
        """
        with together(self.program.spread, "fit", self._advice()):
            is_late = False
            while self.iteration < num_iterations and self._is_alive() and not is_late:
                is_late = self._turn(num_iterations, deadline)
            if not is_late:
                self._end_seeds_without_progress()
            if self._checkpoints is not None:
                self._checkpoints.close()
            carry = local(self.program.spread, self.carry)
        return self._snapshot()._replace(carry=carry), is_late

    def inputs(self, num_iterations: int) -> tuple:
        """Returns the arguments of the next chunk's compiled function."""
        return self._inputs(self._next_stop(num_iterations), num_iterations)

    def _inputs(self, stop: int, num_iterations: int) -> tuple:
        streamed = self.stream.chunk(self.iteration, num_iterations)
        ends = np.int32(self.iteration), np.int32(stop)
        return self.carry, self._control(), *ends, self.arrays, streamed

    def _next_stop(self, num_iterations: int) -> int:
        # Chunks end at multiples of their length, wherever a run was interrupted.
        return min(
            self.iteration - self.iteration % self.rule.chunk_length + self.rule.chunk_length,
            num_iterations,
        )

    def _turn(self, num_iterations: int, deadline: float) -> bool:
        record = self._advance(num_iterations, deadline)
        is_late = self.iteration < num_iterations and self._is_late(deadline)
        is_whole = self._see_losses(num_iterations, deadline, is_late=is_late)
        if not is_whole:
            return False
        # Before the callback, which may raise.
        self._save(num_iterations, is_late)
        self.is_stopped = bool(self._show(record, num_iterations))
        if self.is_stopped and not is_late:
            self._save(num_iterations, True)
        return is_late or self.is_stopped

    def _advance(self, num_iterations: int, deadline: float) -> ChunkRecord:
        """Runs a chunk, or a part of it where the time budget says so."""
        began = time.monotonic()
        stop = self._next_stop(num_iterations)
        if self._keeps_time(deadline):
            stop = min(stop, self.iteration + self._pace.iterations_until(deadline))
        start, inputs = self.iteration, self._inputs(stop, num_iterations)
        self.carry, record = self.program.chunk(*inputs)
        losses = np.asarray(record.losses)[:, : stop - start]
        self._losses.append(losses)
        self._unseen = np.concatenate([self._unseen, losses], axis=1)
        self.iteration = stop
        self._pace.add(stop - start, time.monotonic() - began)
        if self._keeps_time(deadline) and self._pace.is_known and not self._has_chunks:
            self.rule.chunk_length = self._pace.chunk_length(deadline)
        return record

    def _see_losses(self, num_iterations: int, deadline: float, *, is_late: bool) -> bool:
        """Applies the stopping rule to a whole chunk; returns whether there was one."""
        failed_at = np.asarray(self.carry.failed_at)
        is_whole = (
            self.iteration % self.rule.chunk_length == 0
            or self.iteration == num_iterations
            # The next part would forget it.
            or np.any(failed_at >= 0)
        )
        for seed in self.seeds:
            if seed.result is None:
                # What it asked for has been done.
                seed.keep = seed.restore = False
        if not (is_whole or is_late):
            return False
        chunks_left = self._chunks_left(num_iterations, deadline)
        for seed, row, failed in zip(self.seeds, self._unseen, failed_at, strict=True):
            if seed.result is None:
                self.rule.apply(seed, row, int(failed), self.iteration, chunks_left=chunks_left)
        self._unseen, self._has_chunks = self._unseen[:, :0], True
        return True

    def _keeps_time(self, deadline: float) -> bool:
        """Returns whether chunks are cut so that the run ends in time.

        Processes would have to agree, and a run that is resumed would have to know.
        """
        is_alone = self._checkpoints is None and self.program.spread is None
        return deadline < np.inf and is_alone

    def _is_late(self, deadline: float) -> bool:
        """Returns whether no further iteration is in time."""
        if self._keeps_time(deadline) and self._pace.is_known:
            deadline -= self._pace.seconds
        return is_past(self.program.spread, deadline)

    def _chunks_left(self, num_iterations: int, deadline: float) -> float:
        """Returns how many chunks the iterations and the time budget allow."""
        length = self.rule.chunk_length
        left = float(-(-(num_iterations - self.iteration) // length))
        if not (self._keeps_time(deadline) and self._pace.is_known):
            return left
        seconds = max(deadline - time.monotonic(), 0.0)
        return min(left, seconds / (self._pace.seconds * length))

    def _control(self) -> Control:
        flags = lambda name: np.array([getattr(seed, name) for seed in self.seeds])
        is_active = np.array([seed.result is None for seed in self.seeds])
        return Control(
            np.array([self.rule.factor(seed) for seed in self.seeds], np.float32),
            is_active,
            flags("keep"),
            flags("restore") & is_active,
            flags("is_whitened"),
        )

    def _is_alive(self) -> bool:
        return any(seed.result is None for seed in self.seeds)

    def _end_seeds_without_progress(self) -> None:
        """Marks seeds as diverged that backed off to the end and completed no chunk."""
        for seed in self.seeds:
            if seed.result is None and not seed.chunks:
                seed.result, seed.ended_at = Result.DIVERGED, self.iteration
                seed.restore = False

    def _snapshot(self) -> Snapshot:
        self._losses = [np.concatenate(self._losses, axis=1)]
        return Snapshot(self.iteration, self.carry, self._losses[0], self.seeds)

    def _save(self, num_iterations: int, is_late: bool) -> None:
        if self._checkpoints is None or self.iteration % CHUNK:
            return
        is_last = is_late or not self._is_alive() or self.iteration + CHUNK > num_iterations
        self._checkpoints.save(self._snapshot(), is_last=is_last)

    def _advice(self) -> str:
        if self._checkpoints is None:
            return "with a checkpoint_dir it could continue from its last snapshot"
        where = self._checkpoints.directory
        return f"start all processes again to continue from the last snapshot in {where}"

    def _show(self, record: ChunkRecord, num_iterations: int) -> bool:
        window = self.rule.patience
        recent = np.concatenate(self._losses[-window:], axis=1)
        means = [smoothed(row, window) for row in recent]
        best = int(np.argmin([mean for mean, _ in means]))
        loss, stderr = means[best]
        step_size = float(np.asarray(record.step_size)[best])
        rate = self.rule.rate_words(self.seeds[best])
        rate = f"step size {step_size:.3g}" if np.isfinite(step_size) else rate
        note = f"loss {loss:.6g} ± {stderr:.2g}, {rate}, {1.0 / self._pace.seconds:.0f} it/s"
        fraction = self._fraction_done(num_iterations)
        values = {"iteration": self.iteration, "loss": float(loss), "stderr": float(stderr)}
        if self._pace.is_known:
            left = self.iteration * (1.0 / fraction - 1.0)
            values["seconds_left"] = self._pace.seconds * left
        return bool(self._report("fit", fraction, note, **values))

    def _fraction_done(self, num_iterations: int) -> float:
        """Estimates the share of the fit that is done, from which the time left follows."""
        if self.iteration >= num_iterations or not self._is_alive():
            return 1.0
        active = [seed for seed in self.seeds if seed.result is None]
        left = self.rule.chunk_length * max(self.rule.expected_chunks(seed) for seed in active)
        return self.iteration / min(num_iterations, self.iteration + left)
