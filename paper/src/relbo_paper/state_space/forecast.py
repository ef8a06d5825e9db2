"""A hidden Markov model, forecasting (paper, section 5.2.1).

The series is 0, 1, 0, 1, ...: a model with five hidden states and five symbols is trained on
the first 100 steps and forecasts the last five.

`paper`: 50 epochs without refinement against 20 with one step inside the guide, which the paper
calls equal time, and against the number of epochs that take the same time here. Neither has
converged by then, so the scores measure progress.

`sound`: both are trained until converged from several starts, of which the best by training
density is kept, and compared with the forecast of the exact posterior.
"""

import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PyTree

from relbo import infer
from relbo.evaluate import CategoricalForecast, accuracy, log_score, predictive_entropy
from relbo.statespace import HiddenMarkov, hidden_markov_model
from relbo_paper.harness.experiments import Options, Outcome, Protocol
from relbo_paper.harness.figures import LossCurve, draw_loss_curves
from relbo_paper.harness.point_fits import PointOptimiser, PointRecipe, best_of
from relbo_paper.harness.progress import Done
from relbo_paper.harness.protocols import ScoredRow, run_scored, settings_for
from relbo_paper.state_space.figures import draw_symbol_forecasts
from relbo_paper.state_space.forecast_claims import CLAIMS as CLAIMS
from relbo_paper.state_space.hmm import NUM_STATES, NUM_SYMBOLS, chain, draw_logits

TRAIN, AHEAD = 100, 5
SERIES = np.arange(TRAIN + AHEAD) % 2
PAPER = {
    "T=0": {"accuracy": 0.40, "predictive entropy": 1.414, "log score": -1.044},
    "T=1": {"accuracy": 0.84, "predictive entropy": 1.056, "log score": -0.682},
}
PAPER_EPOCHS = {0: 50, 1: 20}
PAPER_LEARNING_RATE = 0.05


class ForecastSettings(NamedTuple):
    """The size of a run."""

    num_seeds: int
    step_sizes: tuple[float, ...]
    sound_iterations: int
    num_restarts: int
    num_draws: int


FULL = ForecastSettings(10, (1e-3, 1e-2, 1e-1), 1_000, 10, 1_000)
QUICK = ForecastSettings(3, (1e-2,), 500, 4, 200)


def run(directory: Path, options: Options) -> Outcome:
    """Runs the requested protocols and writes their numbers and figures to `directory`."""
    settings = settings_for(options, full=FULL, quick=QUICK)
    return run_scored(
        "hmm-forecast",
        directory,
        options,
        {
            "paper": lambda done: _run_paper(directory, settings, done),
            "sound": lambda done: _run_sound(directory, settings, done),
        },
        _num_rows(settings),
    )


def _num_rows(settings: ForecastSettings) -> dict[Protocol, int]:
    return {"paper": 1 + len(settings.step_sizes), "sound": 3}


def logdensity(logits: PyTree) -> Array:
    """Returns the log-likelihood of the first 100 steps; the Dirichlet priors are flat."""
    return chain(logits).log_likelihood(_observed())


def forecast(logits: PyTree) -> CategoricalForecast:
    """Returns the forecast of the next five steps at one point."""
    return chain(logits).forecast(_observed(), AHEAD)


def scores(predictive: CategoricalForecast) -> dict[str, float]:
    """Returns the scores of a forecast, averaged over the five steps."""
    ahead = jnp.asarray(SERIES[TRAIN:])
    return {
        "accuracy": float(accuracy(predictive, ahead)),
        "predictive entropy": float(jnp.mean(predictive_entropy(predictive))),
        "log score": float(jnp.mean(log_score(predictive, ahead))),
    }


def _run_paper(
    directory: Path, settings: ForecastSettings, done: Done
) -> tuple[list[ScoredRow], list[Path]]:
    starts = _starts(settings.num_seeds)
    plain = PointRecipe(0, PAPER_LEARNING_RATE)
    longest = PointOptimiser(logdensity, PAPER_EPOCHS[0])
    budget = PAPER_EPOCHS[0] * longest.seconds_per_iteration(starts, plain)
    scored, curves = [], []
    for recipe in [plain] + [
        PointRecipe(1, PAPER_LEARNING_RATE, s) for s in settings.step_sizes
    ]:
        begin = time.perf_counter()
        each = longest.seconds_per_iteration(starts, recipe)
        losses = np.asarray(longest.fit(starts, recipe).losses)
        curves.append(LossCurve(recipe.name, losses, each, recipe.num_steps + 1))
        by_time = max(1, int(budget / each))
        for epochs in dict.fromkeys((PAPER_EPOCHS[recipe.num_steps], by_time)):
            if recipe.num_steps == 0 and epochs != PAPER_EPOCHS[0]:
                continue
            fit = PointOptimiser(logdensity, epochs).fit(starts, recipe)
            is_papers = epochs == PAPER_EPOCHS[recipe.num_steps]
            scored.append(
                _score_points(
                    f"{recipe.name}, {epochs} epochs" + ("" if is_papers else " (equal time)"),
                    fit.positions,
                    f"Adam {PAPER_LEARNING_RATE} and the step size are our choice, the paper "
                    f"gives neither; {1e3 * each:.2f} ms per epoch",
                    time.perf_counter() - begin,
                    PAPER[f"T={recipe.num_steps}"] if is_papers else {},
                )
            )
        done(recipe.name)
    figures = draw_loss_curves(
        directory / "paper_loss",
        curves,
        "negative log-likelihood",
        "0, 1, 0, 1, ...: the first 50 epochs",
    )
    return scored, figures


def _run_sound(
    directory: Path, settings: ForecastSettings, done: Done
) -> tuple[list[ScoredRow], list[Path]]:
    optimiser = PointOptimiser(logdensity, settings.sound_iterations)
    number = settings.num_seeds * settings.num_restarts
    starts = _starts(number)
    scored, shown, curves = [], {}, []
    for recipe in (PointRecipe(0, 0.05), PointRecipe(1, 0.05, 1e-3)):
        begin = time.perf_counter()
        fit = optimiser.fit(starts, recipe)
        final = -jax.vmap(logdensity)(fit.positions)
        grouped = jax.tree.map(
            lambda leaf: leaf.reshape(settings.num_seeds, -1, *leaf.shape[1:]),
            (fit.positions, final),
        )
        best = jax.vmap(best_of)(*grouped)
        each = optimiser.seconds_per_iteration(starts, recipe)
        name = f"{recipe.name}, converged"
        scored.append(
            _score_points(
                name,
                best,
                f"best by training density of {settings.num_restarts} starts of "
                f"{settings.sound_iterations} iterations; no Jacobian in kernel or objective",
                time.perf_counter() - begin,
                {},
            )
        )
        shown[name] = forecast(jax.tree.map(lambda leaf: leaf[0], best))
        losses = np.asarray(fit.losses)[: settings.num_seeds]
        curves.append(LossCurve(recipe.name, losses, each, recipe.num_steps + 1))
        done(name)
    begin = time.perf_counter()
    whole = posterior_forecast(settings.num_draws)
    name = "exact posterior, flat Dirichlet priors"
    scored.append(
        ScoredRow(
            name,
            {metric: [value] for metric, value in scores(whole).items()},
            f"mixture over {settings.num_draws} draws of relbo.infer",
            time.perf_counter() - begin,
            {},
        )
    )
    done(name)
    shown[name] = whole
    figures = draw_loss_curves(
        directory / "sound_loss",
        curves,
        "negative log-likelihood",
        f"0, 1, 0, 1, ...: {settings.num_seeds} single starts; some remain on a plateau",
    )
    figures += draw_symbol_forecasts(directory / "sound_forecast", SERIES, TRAIN, shown)
    return scored, figures


def posterior_forecast(num_draws: int) -> CategoricalForecast:
    """Returns the forecast of the next five steps with the parameters integrated out."""
    posterior = infer(
        jr.key(3),
        hidden_markov_model,
        (_observed(),),
        {"num_states": NUM_STATES, "num_symbols": NUM_SYMBOLS},
        num_draws=num_draws,
        num_chains=20,
        progress=False,
    )
    uniform = jnp.full(NUM_STATES, 1.0 / NUM_STATES)

    def one(draw: dict[str, Array]) -> Array:
        process = HiddenMarkov(uniform, draw["transition"], draw["emission"])
        return process.forecast(_observed(), AHEAD).log_probs

    draws = {name: jnp.asarray(posterior.draws[name]) for name in ("transition", "emission")}
    return CategoricalForecast(jax.jit(jax.vmap(one))(draws), mixture=True)


def _observed() -> Array:
    return jnp.asarray(SERIES[:TRAIN])


def _starts(number: int) -> PyTree:
    return jax.vmap(draw_logits)(jr.split(jr.key(0), number))


def _score_points(
    row: str, positions: PyTree, estimator: str, seconds: float, paper: dict[str, float]
) -> ScoredRow:
    number = len(jax.tree.leaves(positions)[0])
    each = [
        scores(forecast(jax.tree.map(lambda leaf, s=seed: leaf[s], positions)))
        for seed in range(number)
    ]
    by_metric = {metric: [one[metric] for one in each] for metric in each[0]}
    return ScoredRow(row, by_metric, estimator, seconds, paper)
