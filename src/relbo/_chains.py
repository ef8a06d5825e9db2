"""Runs the compiled ensemble from the host: fit a normal, warm up, sample, weigh."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from relbo import _ensemble as ensemble
from relbo._mesh import Spread, is_past, placed
from relbo._normal import (
    Evaluation,
    Fit,
    Normal,
    fit_step,
    normal_of_draws,
    refined_draws,
)
from relbo._target import Data, Target

DENSE_LIMIT = 200
"""The largest dimension in which all correlations are learned."""

SCOUTS = {30: 3, DENSE_LIMIT: 1}
"""Fits from random places, up to so many dimensions: is there another mode?"""

SETTLED = 0.4
"""A fit that moves by less, in standard deviations, has arrived."""

Report = Callable[[str, float], None]
"""Takes the name of the phase and how much of it is done."""


class Chains(NamedTuple):
    """What chains visited, in unconstrained space, with a chain along the second axis."""

    draws: Float[np.ndarray, "n c d"]
    logdensity: Float[np.ndarray, "n c"]
    acceptance: Float[np.ndarray, "n c"]
    step_size: float
    num_superchains: int


class Method(NamedTuple):
    """What tells Hamiltonian Monte Carlo from MALA."""

    target_acceptance: float
    max_leapfrogs: int

    def more_careful(self) -> "Method":
        """Smaller steps, for posteriors with narrow places."""
        return self._replace(target_acceptance=1 - (1 - self.target_acceptance) / 2)


METHODS = {"hmc": Method(0.8, 64), "mala": Method(0.574, 1)}


class Ensemble:
    """Chains of one target that share a normal to whiten with and a step size.

    Args:
        rng: where all noise comes from.
        target: the density.
        data: what it takes besides a position.
        num_chains: an even number.
        method: a key of `METHODS`.
        report: told about progress.
        deadline: a time of `time.monotonic` at which to stop asking for more.
        spread: the devices that share the chains.
    """

    def __init__(
        self,
        rng: np.random.Generator,
        target: Target,
        data: Data,
        num_chains: int,
        *,
        method: str = "hmc",
        report: Report | None = None,
        deadline: float = np.inf,
        spread: Spread | None = None,
    ):
        self.rng, self.target, self.num_chains = rng, target, num_chains
        self.data, self._placed_data = data, placed(spread, data)
        self._spread = spread
        self.method = METHODS[method]
        self.num_superchains = _num_superchains(num_chains)
        self._num_points = _num_points(num_chains, target.size)
        self.normal = self._narrow(np.zeros(target.size))
        self.rivals: list[Normal] = []
        self._dtype = np.dtype(jnp.result_type(float))
        self._log_step = np.log(0.9 * target.size**-0.25)
        self._state: ensemble.State | None = None
        self._report = report or (lambda *_: None)
        self._deadline = deadline

    def fit(self, start: Float[np.ndarray, " d"] | None = None) -> bool:
        """Fits a normal from several places and keeps the best, and its rivals far from it.

        Args:
            start: the first of the places; by default zero in unconstrained space.

        Returns:
            Whether the best one settled.
        """
        fits = [self._settle(self._first_fit(start))]
        num_scouts = next((n for size, n in SCOUTS.items() if self.target.size <= size), 0)
        for _ in range(num_scouts):
            if not self.is_late():
                fits.append(self._settle(self._first_fit(self._random_start())))
        best = max(fits, key=lambda fit: fit.elbo)
        settled = best.shift < SETTLED
        for rate in np.geomspace(0.7, 0.1, 12):
            best = self._step(best, float(rate))
        self.normal = best.before
        self.rivals = [fit.before for fit in fits if self._is_rival(fit, best)]
        self._report("fit", 1.0)
        return settled

    def _settle(self, fit: Fit) -> Fit:
        """Steps until they are short, or the ELBO has not grown for a while."""
        best, since = fit.elbo, 0
        for turn in range(200):
            fit = self._step(fit, 1.0)
            since = 0 if fit.elbo > best + 1.0 else since + 1
            best = max(best, fit.elbo)
            self._report("fit", min(turn / 50, 0.9))
            if fit.shift < SETTLED or since > 20 or self.is_late():
                break
        return fit

    def _step(self, fit: Fit, rate: float) -> Fit:
        return fit_step(self.rng, self._evaluate, self._num_points, fit, rate)

    def _is_rival(self, fit: Fit, best: Fit) -> bool:
        """Whether a fit ended elsewhere, with a mass that counts."""
        apart = np.max(np.abs(self.normal.pull(fit.before.loc[None])))
        return bool(apart > 5.0 and fit.elbo > best.elbo - 5.0)

    def _random_start(self) -> Float[np.ndarray, " d"]:
        return self.rng.uniform(-2.0, 2.0, self.target.size)

    def _first_fit(self, start: Float[np.ndarray, " d"] | None) -> Fit:
        for attempt in range(20):
            if attempt > 0:
                start = self._random_start()
            narrow = self._narrow(np.zeros(self.target.size) if start is None else start)
            fit = self._step(Fit(narrow, narrow), 1.0)
            if np.isfinite(fit.elbo):
                return fit
        raise ValueError(
            "the log density is not finite at any of 20 starting points: check the data for "
            "NaN and the model for values off its support, or start from a guide whose "
            "init_loc_fn knows where"
        )

    def disperse(self, points: Float[np.ndarray, "s d"] | None = None) -> None:
        """Starts the chains: those of a superchain in the same point, a draw of the normal."""
        if points is None:
            normals = [self.normal, *self.rivals]
            noise = self.rng.standard_normal((self.num_superchains, self.target.size))
            points = np.stack(
                [normals[k % len(normals)].push(white) for k, white in enumerate(noise)]
            )
        points = self.normal.pull(points[: self.num_superchains])
        repeats = self.num_chains // len(points)
        self._begin(np.repeat(points, repeats, axis=0))

    def warm_up(self, max_windows: int = 16) -> bool:
        """Adapts the normal and the step size until they settle.

        Returns:
            Whether they did.
        """
        settled = False
        for window in range(max_windows):
            self._report("warm up", min(window / 4, 0.9))
            length = min(10 + 8 * window, ensemble.CHUNK)
            white, _, acceptance = self._advance(length, adapt=True)
            shift = self.rewhiten(white)
            rate = float(np.mean(acceptance[length // 2 :]))
            near = abs(rate - self.method.target_acceptance) < 0.12
            settled = window >= 2 and near and shift < 0.25
            if settled or self.is_late():
                break
        self._report("warm up", 1.0)
        return settled

    def rewhiten(self, white: Float[np.ndarray, "n c d"]) -> float:
        """Takes the normal from what the chains visited; returns how far it moved."""
        assert self._state is not None
        points = self.normal.push(np.asarray(self._state.current.white, float))
        self._log_step = float(self._state.log_step)
        self.normal, shift = normal_of_draws(self.normal, white.reshape(-1, self.target.size))
        self._begin(self.normal.pull(points))
        return shift

    def white(self, chains: Chains) -> Float[np.ndarray, "n c d"]:
        """Draws in the present white coordinates."""
        flat = chains.draws.reshape(-1, self.target.size)
        return self.normal.pull(flat).reshape(chains.draws.shape)

    def sample(self, num_iterations: int) -> Chains:
        """Runs the chains with everything fixed."""
        parts = []
        done = 0
        while done < num_iterations:
            self._report("sample", done / num_iterations)
            length = min(ensemble.CHUNK, num_iterations - done)
            white, *rest = self._advance(length)
            parts.append((self.normal.push(white), *rest))
            done += length
            if self.is_late() and done >= 4:
                break
        self._report("sample", 1.0)
        assert self._state is not None
        draws, logdensity, acceptance = map(np.concatenate, zip(*parts, strict=True))
        step_size = float(np.exp(self._state.log_step))
        return Chains(draws, logdensity, acceptance, step_size, self.num_superchains)

    def weigh(
        self, num_rounds: int = 8, num_steps: int = 8
    ) -> tuple[Float[np.ndarray, "n d"], Float[np.ndarray, " n"]]:
        """Refines draws of the normal by annealed steps, and weighs them."""
        rounds = []
        for turn in range(num_rounds):
            self._report("weigh", turn / num_rounds)
            rounds.append(
                refined_draws(
                    self.rng,
                    self._evaluate,
                    self.normal,
                    num_points=self.num_chains,
                    num_steps=num_steps,
                    # Unadjusted steps are biased by their size, which a choice would forgive.
                    step_size=0.5 * float(np.exp(self._log_step)),
                )
            )
        self._report("weigh", 1.0)
        draws, log_weights = map(np.concatenate, zip(*rounds, strict=True))
        return draws, log_weights

    def _narrow(self, loc: Float[np.ndarray, " d"]) -> Normal:
        """A narrow normal: the first fits are then steps of Newton's method."""
        scales = np.full(len(loc), 0.1)
        return Normal(loc, np.diag(scales) if len(loc) <= DENSE_LIMIT else scales)

    def _evaluate(self, normal: Normal, white: np.ndarray) -> Evaluation:
        """As many points as one likes, as many at a time as there are chains."""
        batches = []
        for batch in np.split(white, len(white) // self.num_chains):
            state, _ = self._run(normal, self._new_state(batch), 0, adapt=False)
            batches.append([np.asarray(part, float) for part in state.current])
        return Evaluation(*map(np.concatenate, zip(*batches, strict=True)))

    def _begin(self, white: Float[np.ndarray, "c d"]) -> None:
        """Puts the chains at points in white coordinates."""
        self._state = self._new_state(white)

    def _new_state(self, white: Float[np.ndarray, "c d"]) -> ensemble.State:
        start, still = self._real(white), self._real(np.zeros_like(white))
        values = self._real(np.zeros(len(white)))
        return ensemble.State(
            proposal=start,
            momentum=still,
            current=ensemble.Points(start, values, still),
            energy=values,
            is_new=_flag(True),
            log_step=self._real(self._log_step),
            left=_whole(1),
            iteration=_whole(0),
        )

    def _advance(self, num_iterations: int, *, adapt: bool = False) -> tuple[np.ndarray, ...]:
        assert self._state is not None, "the chains have not been started"
        self._state, record = self._run(self.normal, self._state, num_iterations, adapt=adapt)
        self._log_step = float(self._state.log_step)
        return tuple(np.asarray(part)[:num_iterations].astype(float) for part in record)

    def _run(
        self, normal: Normal, state: ensemble.State, num_iterations: int, *, adapt: bool
    ) -> tuple[ensemble.State, ensemble.Record]:
        settings = ensemble.Settings(
            _whole(num_iterations),
            _flag(adapt),
            self._real(self.method.target_acceptance),
            _whole(self.method.max_leapfrogs),
        )
        noise = self._noise() if num_iterations else self._silence()
        host = (self._real(normal.loc), self._real(normal.factor), state, noise, settings)
        loc, factor, state, noise, settings = placed(self._spread, host)
        data = self._placed_data
        return ensemble.advance(
            self.target, loc, factor, state, data, noise, settings, self._spread
        )

    def _noise(self) -> ensemble.Noise:
        shape = (ensemble.CHUNK, self.num_chains)
        momentum = self.rng.standard_normal((ensemble.CHUNK + 1, *shape[1:], self.target.size))
        # A quarter of a period of the standard normal, more or less, so that no coordinate of
        # another period is left where it was.
        length = self.rng.uniform(0.75, 2.25, ensemble.CHUNK + 1)
        uniform = self.rng.uniform(size=shape)
        return ensemble.Noise(self._real(momentum), self._real(uniform), self._real(length))

    def _real(self, value: Any) -> Any:
        """In the type that the program was compiled for."""
        return np.asarray(value, self._dtype)

    def _silence(self) -> ensemble.Noise:
        """For an evaluation, which needs none."""
        if not hasattr(self, "_no_noise"):
            self._no_noise = self._noise()
        return self._no_noise

    def is_late(self) -> bool:
        """Whether to stop asking for more."""
        return is_past(self._spread, self._deadline)


def _num_points(num_chains: int, size: int) -> int:
    """Of a step of the fit: enough to see all directions where correlations are learned."""
    if size > DENSE_LIMIT:
        return num_chains
    return num_chains * max(1, -(-5 * size // (2 * num_chains)))


def _whole(value: int) -> Any:
    return np.int32(value)


def _flag(value: bool) -> Any:
    return np.bool_(value)


def _num_superchains(num_chains: int) -> int:
    """About as many groups as there are chains in each."""
    divisors = [k for k in range(2, num_chains) if num_chains % k == 0]
    return min(divisors, key=lambda k: abs(np.log(k * k / num_chains)), default=num_chains)
