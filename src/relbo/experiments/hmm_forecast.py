"""A hidden Markov model, forecasting (paper, section 5.2.1).

The series is 0, 1, 0, 1, ...: 105 steps, of which the first 100 are learned from and the last
five are forecast, by a model with five hidden states and five symbols.

`paper`: 50 epochs without refinement against 20 with one step inside, which the paper calls
equal time, and against as many as take the same time here. Nothing has converged by then: the
scores say how far each has come.

`sound`: both are trained until they have converged, from several starts of which the best by
training density is taken, and the exact posterior's forecast stands beside them.
"""

import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PyTree

from relbo._progress import Done
from relbo.evaluate import CategoricalForecast, accuracy, log_score, predictive_entropy
from relbo.experiments import Options, Outcome, Protocol
from relbo.experiments._curves import LossCurve, draw_curves
from relbo.experiments._forecast_figures import draw_symbol_forecasts
from relbo.experiments._hmm_forecast_story import STORY as STORY
from relbo.experiments._points import Climber, Recipe, best_of
from relbo.experiments._posterior import posterior_draws
from relbo.experiments._run import settings_for
from relbo.experiments._scored import Scored, run_scored
from relbo.experiments.hmm import NUM_STATES, NUM_SYMBOLS, chain, draw_logits
from relbo.models import HiddenMarkov, hidden_markov_model

TRAIN, AHEAD = 100, 5
SERIES = np.arange(TRAIN + AHEAD) % 2
PAPER = {
    "T=0": {"accuracy": 0.40, "predictive entropy": 1.414, "log score": -1.044},
    "T=1": {"accuracy": 0.84, "predictive entropy": 1.056, "log score": -0.682},
}
PAPER_EPOCHS = {0: 50, 1: 20}
PAPER_LEARNING_RATE = 0.05


class Settings(NamedTuple):
    """How much work a run is."""

    num_seeds: int
    step_sizes: tuple[float, ...]
    sound_iterations: int
    num_restarts: int
    num_draws: int


FULL = Settings(10, (1e-3, 1e-2, 1e-1), 1_000, 10, 1_000)
QUICK = Settings(3, (1e-2,), 500, 4, 200)


def run(directory: Path, options: Options) -> Outcome:
    """Runs the protocols asked for and writes their numbers and figures to `directory`."""
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


def _num_rows(settings: Settings) -> dict[Protocol, int]:
    return {"paper": 1 + len(settings.step_sizes), "sound": 3}


def logdensity(logits: PyTree) -> Array:
    """log p(the first 100 | parameters); the Dirichlet priors are flat."""
    return chain(logits).log_likelihood(_observed())


def forecast(logits: PyTree) -> CategoricalForecast:
    """What one point says about the next five."""
    return chain(logits).forecast(_observed(), AHEAD)


def scores(predictive: CategoricalForecast) -> dict[str, float]:
    """The scores of one predictive, averaged over the five steps."""
    ahead = jnp.asarray(SERIES[TRAIN:])
    return {
        "accuracy": float(accuracy(predictive, ahead)),
        "predictive entropy": float(jnp.mean(predictive_entropy(predictive))),
        "log score": float(jnp.mean(log_score(predictive, ahead))),
    }


def _run_paper(
    directory: Path, settings: Settings, done: Done
) -> tuple[list[Scored], list[Path]]:
    starts = _starts(settings.num_seeds)
    plain = Recipe(0, PAPER_LEARNING_RATE)
    longest = Climber(logdensity, PAPER_EPOCHS[0])
    budget = PAPER_EPOCHS[0] * longest.seconds_per_iteration(starts, plain)
    scored, curves = [], []
    for recipe in [plain] + [Recipe(1, PAPER_LEARNING_RATE, s) for s in settings.step_sizes]:
        begin = time.perf_counter()
        each = longest.seconds_per_iteration(starts, recipe)
        losses = np.asarray(longest.fit(starts, recipe).losses)
        curves.append(LossCurve(recipe.name, losses, each, recipe.num_steps + 1))
        by_time = max(1, int(budget / each))
        for epochs in dict.fromkeys((PAPER_EPOCHS[recipe.num_steps], by_time)):
            if recipe.num_steps == 0 and epochs != PAPER_EPOCHS[0]:
                continue
            fit = Climber(logdensity, epochs).fit(starts, recipe)
            is_papers = epochs == PAPER_EPOCHS[recipe.num_steps]
            scored.append(
                _score_points(
                    f"{recipe.name}, {epochs} epochs" + ("" if is_papers else " (equal time)"),
                    fit.positions,
                    f"Adam {PAPER_LEARNING_RATE} and the steps' size are ours, the paper gives "
                    f"neither; {1e3 * each:.2f} ms an epoch",
                    time.perf_counter() - begin,
                    PAPER[f"T={recipe.num_steps}"] if is_papers else {},
                )
            )
        done(recipe.name)
    figures = draw_curves(
        directory / "paper_loss",
        curves,
        "negative log-likelihood",
        "0, 1, 0, 1, ...: what the first 50 epochs do",
    )
    return scored, figures


def _run_sound(
    directory: Path, settings: Settings, done: Done
) -> tuple[list[Scored], list[Path]]:
    climber = Climber(logdensity, settings.sound_iterations)
    number = settings.num_seeds * settings.num_restarts
    starts = _starts(number)
    scored, shown, curves = [], {}, []
    for recipe in (Recipe(0, 0.05), Recipe(1, 0.05, 1e-3)):
        begin = time.perf_counter()
        fit = climber.fit(starts, recipe)
        final = -jax.vmap(logdensity)(fit.positions)
        grouped = jax.tree.map(
            lambda leaf: leaf.reshape(settings.num_seeds, -1, *leaf.shape[1:]),
            (fit.positions, final),
        )
        best = jax.vmap(best_of)(*grouped)
        each = climber.seconds_per_iteration(starts, recipe)
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
        Scored(
            name,
            {metric: [value] for metric, value in scores(whole).items()},
            f"mixture over {settings.num_draws} draws of relbo.infer",
            time.perf_counter() - begin,
            {},
        )
    )
    done(name)
    shown[name] = whole
    figures = draw_curves(
        directory / "sound_loss",
        curves,
        "negative log-likelihood",
        f"0, 1, 0, 1, ...: {settings.num_seeds} single starts; some stay on a plateau",
    )
    figures += draw_symbol_forecasts(directory / "sound_forecast", SERIES, TRAIN, shown)
    return scored, figures


def posterior_forecast(num_draws: int) -> CategoricalForecast:
    """The predictive of the next five with the parameters integrated out."""
    draws = posterior_draws(
        jr.key(3),
        hidden_markov_model,
        (_observed(),),
        {"num_states": NUM_STATES, "num_symbols": NUM_SYMBOLS},
        num_draws=num_draws,
        num_chains=20,
    )
    uniform = jnp.full(NUM_STATES, 1.0 / NUM_STATES)

    def one(draw: dict[str, Array]) -> Array:
        process = HiddenMarkov(uniform, draw["transition"], draw["emission"])
        return process.forecast(_observed(), AHEAD).log_probs

    kept = {name: draws[name] for name in ("transition", "emission")}
    return CategoricalForecast(jax.jit(jax.vmap(one))(kept), mixture=True)


def _observed() -> Array:
    return jnp.asarray(SERIES[:TRAIN])


def _starts(number: int) -> PyTree:
    return jax.vmap(draw_logits)(jr.split(jr.key(0), number))


def _score_points(
    row: str, positions: PyTree, estimator: str, seconds: float, paper: dict[str, float]
) -> Scored:
    number = len(jax.tree.leaves(positions)[0])
    each = [
        scores(forecast(jax.tree.map(lambda leaf, s=seed: leaf[s], positions)))
        for seed in range(number)
    ]
    by_metric = {metric: [one[metric] for one in each] for metric in each[0]}
    return Scored(row, by_metric, estimator, seconds, paper)
