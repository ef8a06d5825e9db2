"""Runs the compiled chains from the host: fit a normal, warm up, sample, weigh."""

import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from relbo._devices import Spread, is_past, placed
from relbo.gaussian import (
    DENSE_LIMIT,
    NormalFitter,
    Report,
    WhiteEvaluation,
    WhiteningNormal,
    annealed_draws,
    narrow_normal,
    nearest_mode,
    plain_normal,
    points_per_step,
    reversed_log_weights,
    whitening_map,
    whitening_of_draws,
)
from relbo.problem import Problem
from relbo.sampling.chain_draws import ChainDraws, default_num_superchains, joined
from relbo.sampling.diagnostics import independence, largest_autocorrelation
from relbo.sampling.hamiltonian import (
    MAX_STEP,
    METHODS,
    ChainNoise,
    ChainPoints,
    ChainRecord,
    ChainSettings,
    ChainState,
    advance,
    chunk_length,
)
from relbo.sampling.tuning import ChainTuning

MAX_WINDOW = 32
"""The largest number of iterations after which the warm-up adapts."""
LENGTH = 1.9
"""The mean length of a trajectory: more than a quarter of the period of a coordinate with
standard deviation 1, so that successive draws are on opposite sides of the mean. Per gradient,
means gain more from this than variances lose."""
JITTER = 0.25
"""The relative jitter of the length, so that coordinates with other periods do not return."""
LENGTHENING = 1.6
MAX_LENGTH = 16 * LENGTH
SLOW = 0.6
"""An autocorrelation of successive draws above which longer trajectories are tried."""


class Ensemble:
    """Chains of one problem that share a whitening normal and a step size.

    Args:
        rng: the source of all noise.
        problem: the posterior.
        num_chains: an even number.
        method: a key of `METHODS`.
        report: called with the progress; the run ends if it returns `True`.
        deadline: a time of `time.monotonic` after which no more draws are started.
        end: when the evidence has to be known, too.
        spread: the devices that share the chains.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        problem: Problem,
        num_chains: int,
        *,
        method: str = "hmc",
        report: Report = lambda *_: None,
        deadline: float = np.inf,
        end: float = np.inf,
        spread: Spread | None = None,
    ):
        self.rng, self.problem, self.num_chains = rng, problem, num_chains
        self._placed_problem = placed(spread, problem)
        self._spread = spread
        self.method = self._first_method = METHODS[method]
        self.num_superchains = default_num_superchains(num_chains)
        self.normal = narrow_normal(np.zeros(problem.size))
        self.modes = [self.normal]
        self.has_all_modes = True
        self.elsewhere = 0.0
        """The share of draws of the last run that were in another mode."""
        self.has_narrow_places = False
        self._other_modes: list[WhiteningNormal] = []
        self._dtype = np.dtype(jnp.result_type(float))
        self._log_step = _first_log_step(problem.size)
        self._length = LENGTH
        self._chunk = chunk_length(problem.size)
        self._state: ChainState | None = None
        self._unused_noise: ChainNoise | None = None
        self._show = report
        self.is_stopped = False
        """Whether `report` asked to stop."""
        self._deadline, self._end = deadline, end
        self._seconds_per_iteration = self._seconds_per_gradient = 0.0

    def fit(self, start: Float[np.ndarray, " d"] | None = None) -> bool:
        """Fits the whitening normal, and normals of other modes if there are any.

        Args:
            start: where to start first; by default zero in unconstrained space.

        Returns:
            Whether the fit converged.
        """
        fitter = NormalFitter(
            self.rng,
            self._evaluate,
            self.problem.size,
            points_per_step(self.num_chains, self.problem.size),
            self.num_chains,
            report=self.report,
            is_late=self.is_late,
        )
        self.modes, converged, self.has_all_modes = fitter.fit(start)
        self.normal = self.modes[0]
        return converged

    def disperse(self, points: Float[np.ndarray, "s d"] | None = None) -> None:
        """Starts the chains: each superchain in one point, by default a draw of a mode."""
        if points is None:
            draws = [self._likely_draws(mode) for mode in self.modes]
            points = np.stack(
                [draws[k % len(draws)][k // len(draws)] for k in range(self.num_superchains)]
            )
        points = self.normal.pull(points[: self.num_superchains])
        repeats = self.num_chains // len(points)
        self._begin(np.repeat(points, repeats, axis=0))

    def _likely_draws(self, mode: WhiteningNormal) -> Float[np.ndarray, "n d"]:
        """Draws from a normal, without the half that the density likes least.

        Where a normal is too wide, chains would need many steps to come in, or never move.
        """
        white = self.rng.standard_normal((self.num_chains, self.problem.size))
        log_weights = self._evaluate(mode, white).logdensity + 0.5 * np.sum(white**2, 1)
        likely = log_weights >= np.median(log_weights)
        return mode.push(white[likely])

    def start_in(self, mode: WhiteningNormal, others: list[WhiteningNormal]) -> None:
        """Starts all chains in one mode; those that move to another one are moved back."""
        self.modes, self.normal, self.method = [mode], mode, self._first_method
        self._other_modes, self.elsewhere = others, 0.0
        self._log_step = _first_log_step(self.problem.size)
        self.disperse()

    def tuning(self) -> ChainTuning | None:
        """Returns what the chains need to go on; `None` if each mode has chains of its own."""
        if self._other_modes:
            return None
        white = np.zeros((self.num_chains, self.problem.size))
        if self._state is not None:
            white = np.asarray(self._state.current.white, float)
        ends = self.normal.push(white)
        return ChainTuning(self.normal, self._log_step, self._length, self.method, ends)

    def resume(self, tuning: ChainTuning) -> None:
        """Continues chains where they ended, with what they had adapted."""
        self.normal, self._log_step, self._length, self.method = tuning[:4]
        self._begin(self.normal.pull(tuning.ends))

    def warm_up(self, max_windows: int = 16) -> bool:
        """Adapts the normal and the step size until they are stable.

        Returns:
            Whether they became stable.
        """
        stable = False
        window_draws, before = None, np.inf
        for window in range(max_windows):
            self.report("warm up", min(window / 4, 0.9))
            length = min(10 + 8 * window, MAX_WINDOW)
            window_draws = self._advance(length, adapt=True)
            shift = self.rewhiten(window_draws)
            rate = float(np.mean(window_draws.acceptance[length // 2 :]))
            is_white = shift < self._noticeable_shift(window_draws)
            # What short windows cannot improve is left to the rounds of sampling.
            has_stalled = window >= 3 and shift > 0.8 * before
            before = min(before, shift)
            stable = window >= 2 and self._is_tuned(rate) and (is_white or has_stalled)
            if stable or self.is_late():
                break
        if stable and window_draws is not None:
            self._lengthen(window_draws)
        self.report("warm up", 1.0)
        return stable

    def _is_tuned(self, acceptance: float) -> bool:
        """Whether the acceptance is near its target, or steps are as long as they may be."""
        excess = acceptance - self.method.target_acceptance
        is_longest = self._log_step > np.log(0.9 * MAX_STEP)
        return excess > -0.12 and (excess < 0.12 or bool(is_longest))

    def _noticeable_shift(self, visited: ChainDraws) -> float:
        """Returns a change of the scales in a window that is more than noise."""
        # Draws of a chain are correlated: at least four count as one.
        share = independence(largest_autocorrelation(visited.draws))
        effective = np.clip(share, 1 / 16, 1 / 4) * visited.logdensity.size
        noise = (2 * np.log(2 * self.problem.size) / effective) ** 0.5
        return float(max(0.25, 1.3 * noise))

    def _lengthen(self, visited: ChainDraws) -> None:
        """Makes trajectories longer while that makes draws less dependent than it costs.

        It helps coordinates that are much wider than the others. Where a scale depends on the
        place, only new momenta help.
        """
        correlation = largest_autocorrelation(visited.draws)
        while correlation > SLOW and self._length < MAX_LENGTH and not self.is_late():
            self._length *= LENGTHENING
            before, visited = correlation, self._advance(MAX_WINDOW, adapt=True)
            correlation = largest_autocorrelation(visited.draws)
            if independence(correlation) < 1.1 * LENGTHENING * independence(before):
                self._length /= LENGTHENING
                break

    def tune_step(self) -> None:
        """Adapts the step size alone."""
        self.report("warm up", 0.5)
        self._advance(MAX_WINDOW, adapt=True)

    def rewhiten(self, visited: ChainDraws) -> float:
        """Fits the normal to what the chains visited; returns how far it moved."""
        assert self._state is not None
        points = self.normal.push(np.asarray(self._state.current.white, float))
        self.normal, shift = whitening_of_draws(
            self.normal, *(part.reshape(-1, self.problem.size) for part in visited[:2])
        )
        self._begin(self.normal.pull(points))
        draws = visited.draws.reshape(-1, self.problem.size)
        self.has_narrow_places = self.normal.has_narrow_places(draws)
        return shift

    def sample(self, num_iterations: int) -> ChainDraws:
        """Runs the chains with everything fixed."""
        parts, left = [], []
        done = 0
        while done < num_iterations:
            self.report("sample", done / num_iterations)
            length = min(self._chunk, num_iterations - done, self._affordable_length())
            parts.append(self._advance(length))
            left.append(self.elsewhere)
            done += length
            if self.is_late() and done >= 4:
                break
        self.elsewhere = float(np.mean(left))
        self.report("sample", 1.0)
        return joined(*parts)

    def logdensity(self, points: Float[np.ndarray, "c d"]) -> Float[np.ndarray, " c"]:
        """Evaluates the log density at one point for each chain."""
        size = self.problem.size
        return self._evaluate(plain_normal(size, size <= DENSE_LIMIT), points).logdensity

    def weigh(
        self, num_rounds: int, num_steps: int
    ) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"]]:
        """Refines draws of the normal by annealed steps and returns them with log weights."""
        rounds = [
            annealed_draws(
                self.rng,
                self._evaluate,
                self.normal,
                num_points=self.num_chains,
                num_steps=num_steps,
                step_size=self._annealing_step(num_steps),
            )
            for _ in range(num_rounds)
        ]
        draws, log_weights = map(np.concatenate, zip(*rounds, strict=True))
        return draws, log_weights

    def weigh_backwards(
        self, points: Float[np.ndarray, "n d"], num_steps: int
    ) -> Float[np.ndarray, " n"]:
        """Returns log weights of the same path from posterior draws back to the normal."""
        white = self.normal.pull(points)
        number = len(white) // self.num_chains
        return np.concatenate(
            [
                reversed_log_weights(
                    self.rng,
                    self._evaluate,
                    self.normal,
                    batch,
                    num_steps=num_steps,
                    step_size=self._annealing_step(num_steps),
                )
                for batch in np.split(white[: number * self.num_chains], number)
            ]
        )

    def _annealing_step(self, num_steps: int) -> float:
        # Without a Metropolis test the size of a step adds to the variance.
        longest = min(np.exp(self._log_step), self.problem.size**-0.25)
        return (0.5 if num_steps <= 16 else 0.35) * float(longest)

    def _affordable_length(self) -> int:
        """Returns how many iterations fit into the time that is left, as far as is known."""
        # Several processes have to agree, and their clocks do not.
        if not np.isfinite(self._deadline) or self._spread is not None:
            return self._chunk
        left = self._deadline - time.monotonic()
        return int(np.clip(left / max(self._seconds_per_iteration, 1e-9), 4, self._chunk))

    def report(self, phase: str, fraction: float) -> None:
        """Shows the progress; the run ends as if the time were up if that asks to stop."""
        if self._show(phase, fraction):
            self.is_stopped, self._deadline = True, -np.inf

    def affordable_rounds(self, wanted: int, num_steps: int) -> int:
        """Returns how many rounds of annealed paths, forth and back, fit into the time left."""
        if not np.isfinite(self._end) or self._spread is not None:
            return wanted
        left = 0.7 * (self._end - time.monotonic())
        cost = 2 * (num_steps + 1) * max(self._seconds_per_gradient, 1e-9)
        return int(np.clip(left / cost, 1, wanted))

    def is_late(self) -> bool:
        """Whether the time is up."""
        return is_past(self._spread, self._deadline)

    def _evaluate(self, normal: WhiteningNormal, white: np.ndarray) -> WhiteEvaluation:
        """Evaluates any number of points, in batches of the number of chains."""
        batches = []
        for batch in np.split(white, len(white) // self.num_chains):
            state, _ = self._run(normal, self._new_state(batch), 0, adapt=False)
            batches.append([np.asarray(part, float) for part in state.current])
        return WhiteEvaluation(*map(np.concatenate, zip(*batches, strict=True)))

    def _begin(self, white: Float[np.ndarray, "c d"]) -> None:
        """Puts the chains at points in white coordinates."""
        self._state = self._new_state(white)

    def _new_state(self, white: Float[np.ndarray, "c d"]) -> ChainState:
        start, zeros = self._real(white), self._real(np.zeros_like(white))
        values = self._real(np.zeros(len(white)))
        return ChainState(
            proposal=start,
            momentum=zeros,
            current=ChainPoints(start, values, zeros),
            energy=values,
            is_new=np.bool_(True),  # type: ignore[arg-type]
            log_step=self._real(self._log_step),
            step_size=self._real(1.0),
            leapfrogs_left=np.int32(1),  # type: ignore[arg-type]
            num_leapfrogs=np.int32(1),  # type: ignore[arg-type]
            iteration=np.int32(0),  # type: ignore[arg-type]
        )

    def _advance(self, num_iterations: int, *, adapt: bool = False) -> ChainDraws:
        """Runs the chains, in as many calls as it takes."""
        starts = range(0, num_iterations, self._chunk)
        lengths = [min(self._chunk, num_iterations - start) for start in starts]
        return joined(*(self._advance_chunk(length, adapt=adapt) for length in lengths))

    def _advance_chunk(self, num_iterations: int, *, adapt: bool) -> ChainDraws:
        assert self._state is not None, "the chains have not been started"
        started = time.monotonic()
        self._state, record = self._run(self.normal, self._state, num_iterations, adapt=adapt)
        self._log_step = float(self._state.log_step)
        visited = [np.asarray(part)[:num_iterations] for part in record]
        white, score, logdensity, acceptance, energy = (v.astype(float) for v in visited[:5])
        diverging, num_steps = visited[5:]
        flat = white.reshape(-1, self.problem.size)
        scores = self.normal.score(flat, score.reshape(flat.shape)).reshape(white.shape)
        step_size = float(np.exp(self._log_step))
        points, number = self.normal.push(white), self.num_superchains
        elapsed = time.monotonic() - started
        self._seconds_per_iteration = elapsed / num_iterations
        self._seconds_per_gradient = elapsed / max(int(num_steps.sum()), 1)
        draws = ChainDraws(
            points,
            scores,
            logdensity,
            acceptance,
            energy,
            diverging,
            np.tile(num_steps[:, None], (1, self.num_chains)),
            step_size,
            number,
        )
        return self._in_own_mode(draws) if self._other_modes else draws

    def _in_own_mode(self, visited: ChainDraws) -> ChainDraws:
        """Replaces draws in other modes by some in this one, from which the chains go on.

        What is left has the distribution of the posterior within the mode, if leaving it is
        rare.
        """
        points = visited.draws.reshape(-1, self.problem.size)
        outside = nearest_mode(points, [self.normal, *self._other_modes]) > 0
        self.elsewhere = float(np.mean(outside))
        if not 0 < self.elsewhere < 0.9:
            return visited
        source = np.arange(len(points))
        source[outside] = self.rng.choice(np.flatnonzero(~outside), int(np.sum(outside)))
        visited = visited.at(source)
        self._begin(self.normal.pull(visited.draws[-1]))
        return visited

    def _run(
        self, normal: WhiteningNormal, state: ChainState, num_iterations: int, *, adapt: bool
    ) -> tuple[ChainState, ChainRecord]:
        settings = ChainSettings(
            np.int32(num_iterations),  # type: ignore[arg-type]
            np.bool_(adapt),  # type: ignore[arg-type]
            self._real(self.method.target_acceptance),
            np.int32(self.method.max_leapfrogs),  # type: ignore[arg-type]
            np.int32(self.method.num_stages),  # type: ignore[arg-type]
            self._real(self.method.even_kick),
        )
        if num_iterations == 0 and self._unused_noise is None:
            self._unused_noise = jax.device_put(self._noise(adapt))
        # An evaluation uses no noise, but the program takes some.
        noise = self._noise(adapt) if num_iterations else self._unused_noise
        host = (whitening_map(normal, self._dtype), state, noise, settings)
        return advance(self._placed_problem, *placed(self._spread, host), spread=self._spread)

    def _noise(self, adapt: bool) -> ChainNoise:
        shape = (self._chunk, self.num_chains)
        number = self._chunk + 1
        momentum = self.rng.standard_normal((number, *shape[1:], self.problem.size))
        length = self._length * self.rng.uniform(1 - JITTER, 1 + JITTER, number)
        uniform = self.rng.uniform(size=shape)
        step_factor = np.ones(number)
        if self.has_narrow_places and not adapt:
            # A third of the trajectories take smaller steps, to enter and leave these.
            smaller = 2.0 ** self.rng.uniform(-5.0, -1.0, number)
            step_factor = np.where(self.rng.uniform(size=number) < 1 / 3, smaller, 1.0)
        return ChainNoise(
            *(self._real(part) for part in (momentum, uniform, length, step_factor))
        )

    def _real(self, value: Any) -> Any:
        """Converts to the type that the program is compiled for."""
        return np.asarray(value, self._dtype)


def _first_log_step(size: int) -> float:
    """Returns the logarithm of a step size for a normal density in white coordinates."""
    return float(np.log(min(MAX_STEP, 1.6 * size**-0.125)))
