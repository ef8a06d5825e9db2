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
        self._chunk_ends: list[float] = []
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
        # Chunks begin at multiples of their length, wherever a run was interrupted.
        stop = min(self.iteration + CHUNK, num_iterations)
        streamed = self.stream.chunk(self.iteration, num_iterations)
        ends = np.int32(self.iteration), np.int32(stop)
        return self.carry, self._control(), *ends, self.arrays, streamed

    def _turn(self, num_iterations: int, deadline: float) -> bool:
        began = time.monotonic()
        record = self._advance(num_iterations, deadline)
        speed = CHUNK / max(time.monotonic() - began, 1e-9)
        is_late = self.iteration < num_iterations and is_past(self.program.spread, deadline)
        # Before the callback, which may raise.
        self._save(num_iterations, is_late)
        self.is_stopped = bool(self._show(record, num_iterations, speed))
        if self.is_stopped and not is_late:
            self._save(num_iterations, True)
        return is_late or self.is_stopped

    def _advance(self, num_iterations: int, deadline: float) -> ChunkRecord:
        inputs = self.inputs(num_iterations)
        start, stop = int(inputs[2]), int(inputs[3])
        self.carry, record = self.program.chunk(*inputs)
        losses = np.asarray(record.losses)[:, : stop - start]
        failed_at = np.asarray(self.carry.failed_at)
        self._losses.append(losses)
        self.iteration = stop
        chunks_left = self._chunks_left(num_iterations, deadline)
        for seed, row, failed in zip(self.seeds, losses, failed_at, strict=True):
            if seed.result is None:
                self.rule.apply(seed, row, int(failed), stop, chunks_left=chunks_left)
        return record

    def _chunks_left(self, num_iterations: int, deadline: float) -> float:
        """Returns how many chunks the iterations and the time budget allow."""
        left = float(-(-(num_iterations - self.iteration) // CHUNK))
        # Processes would have to agree, and a run that is resumed would have to know.
        if self._checkpoints is not None or self.program.spread is not None:
            return left
        self._chunk_ends.append(time.monotonic())
        # The first chunk was compiled.
        ends = self._chunk_ends[-10:]
        if deadline == np.inf or len(ends) < 3:
            return left
        seconds = (ends[-1] - ends[0]) / (len(ends) - 1)
        return min(left, max(0.0, deadline - ends[-1]) / seconds)

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

    def _show(self, record: ChunkRecord, num_iterations: int, speed: float) -> bool:
        recent = np.concatenate(self._losses[-self.rule.window :], axis=1)
        means = [smoothed(row, self.rule.window * CHUNK) for row in recent]
        best = int(np.argmin([mean for mean, _ in means]))
        loss, stderr = means[best]
        step_size = float(np.asarray(record.step_size)[best])
        rate = self.rule.rate_words(self.seeds[best])
        rate = f"step size {step_size:.3g}" if np.isfinite(step_size) else rate
        note = f"loss {loss:.6g} ± {stderr:.2g}, {rate}, {speed:.0f} it/s"
        fraction = self._fraction_done(num_iterations)
        values = {"iteration": self.iteration, "loss": float(loss), "stderr": float(stderr)}
        return bool(self._report("fit", fraction, note, **values))

    def _fraction_done(self, num_iterations: int) -> float:
        """Estimates the share of the fit that is done, from which the time left follows."""
        if self.iteration >= num_iterations or not self._is_alive():
            return 1.0
        active = [seed for seed in self.seeds if seed.result is None]
        left = CHUNK * max(self.rule.expected_chunks(seed) for seed in active)
        return self.iteration / min(num_iterations, self.iteration + left)
