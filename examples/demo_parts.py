"""The four parts of the demo. Each returns a picture, a sentence and what was printed."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from eight_schools import model as schools
from funnel import SD, funnel
from matplotlib.figure import Figure
from numpyro.diagnostics import effective_sample_size
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO

import relbo
from relbo.data import load_co2
from relbo.statespace import forecast

BLUE, ORANGE, GREY = "#0072b2", "#d55e00", "#888888"
EFFECTS = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
NUM_DRAWS = 2000
NUM_MONTHS, NUM_AHEAD = 120, 24


class Result(NamedTuple):
    """What a part shows."""

    sentence: str
    figure: Figure
    lines: list[str]
    """What the terminal and the page quote, such as the words of `check()`."""


class Part(NamedTuple):
    """A part of the demo."""

    title: str
    make: Callable[[], Result]


def posterior_beside_nuts() -> Result:
    """Eight schools by `relbo.infer` and by NumPyro's NUTS, in the same process."""
    begin = time.perf_counter()
    posterior = relbo.infer(0, schools, (EFFECTS, ERRORS), progress=False)
    ours = Sampled(posterior.chains, time.perf_counter() - begin)
    theirs = run_nuts(num_warmup=1000, num_samples=1000)
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    rows = {"NUTS": (theirs, ORANGE), "relbo.infer": (ours, BLUE)}
    for name, (sampled, colour) in rows.items():
        mu, tau = (sampled.chains[site].ravel()[:NUM_DRAWS] for site in ("mu", "tau"))
        left.scatter(mu, tau, s=4, alpha=0.35, color=colour, lw=0, label=name)
    left.set(xlabel="mu: mean effect of coaching", ylabel="tau: spread over schools")
    left.set(ylim=(0, 20), xlim=(-10, 18))
    left.legend(frameon=False, markerscale=3)
    bars = [sampled.effective_per_second for sampled, _ in rows.values()]
    drawn = right.bar(list(rows), bars, color=[colour for _, colour in rows.values()])
    right.bar_label(drawn, fmt="%.0f")
    right.set_ylabel("effective draws a second, with compilation")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    sentence = (
        f"The posterior of eight schools in {ours.seconds:.1f} s by relbo.infer, beside NUTS, "
        f"which took {theirs.seconds:.1f} s: the draws lie over each other."
    )
    return Result(sentence, figure, str(posterior.check()).splitlines())


class Sampled(NamedTuple):
    """Draws by site, `[chains, draws, ...]`, and the seconds that they took."""

    chains: dict[str, np.ndarray]
    seconds: float

    @property
    def effective_per_second(self) -> float:
        """The smallest effective sample size of a coordinate, for each second."""
        sizes = [
            np.min(effective_sample_size(self.chains[site])) for site in ("mu", "tau", "t")
        ]
        return float(min(sizes)) / self.seconds


def run_nuts(num_warmup: int, num_samples: int) -> Sampled:
    begin = time.perf_counter()
    mcmc = MCMC(
        NUTS(schools),
        num_warmup=num_warmup,
        num_samples=num_samples,
        num_chains=4,
        chain_method="vectorized",
        progress_bar=False,
    )
    mcmc.run(jr.key(0), EFFECTS, ERRORS)
    draws = mcmc.get_samples(group_by_chain=True)
    return Sampled({name: np.asarray(value) for name, value in draws.items()}, _since(begin))


def guide_before_and_after() -> Result:
    """The guide of the README's picture on a funnel, before and after it is trained."""
    guide = relbo.AutoRefined(funnel)
    svi = SVI(funnel, guide, optax.adam(0.01), Trace_ELBO())
    untrained = svi.get_params(svi.init(jr.key(0)))
    begin = time.perf_counter()
    trained = relbo.fit(0, funnel, guide=guide)
    seconds = _since(begin)
    # Compiled once for both.
    loss = jax.jit(lambda params: Trace_ELBO(5_000).loss(jr.key(2), params, funnel, guide))
    draw = jax.jit(
        lambda params: guide.sample_posterior(jr.key(1), params, sample_shape=(NUM_DRAWS,))
    )
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    elbos = []
    for axes, name, params in zip(
        figure.subplots(1, 2, sharex=True, sharey=True),
        ("before", "after"),
        (untrained, trained.params),
        strict=True,
    ):
        draws = draw(params)
        elbos.append(-float(loss(params)))
        z1, z2 = exact_funnel()
        axes.scatter(z2, z1, s=3, alpha=0.3, color=GREY, lw=0, label="the truth")
        axes.scatter(draws["z2"], draws["z1"], s=3, alpha=0.5, color=BLUE, lw=0, label="guide")
        axes.set_title(f"{name} training: ELBO {elbos[-1]:.2f} (at most 0)", fontsize=11)
        axes.set(xlim=(-8, 8), ylim=(-4.5, 4.5), xlabel="z2")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("z1")
    figure.axes[0].legend(frameon=False, markerscale=4, loc="lower left")
    sentence = (
        f"A guide with eight sampler steps inside (relbo.AutoRefined) learns a funnel in "
        f"{seconds:.0f} s: its ELBO rises from {elbos[0]:.2f} to {elbos[1]:.2f}; 0 is exact."
    )
    return Result(sentence, figure, [])


def exact_funnel() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    z1 = SD * rng.normal(size=NUM_DRAWS)
    return z1, np.exp(z1) * rng.normal(size=NUM_DRAWS)


def carbon_dioxide() -> Result:
    """A forecast of two years from ten, beside what came."""
    co2 = load_co2().since("1966-01")
    known, later = slice(NUM_MONTHS), slice(NUM_MONTHS, NUM_MONTHS + NUM_AHEAD)
    begin = time.perf_counter()
    ahead = forecast(co2.values[known], horizon=NUM_AHEAD, season=12, dates=co2.months[known])
    seconds = _since(begin)
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    axes = ahead.plot(figure.subplots())
    came = co2.values[later]
    axes.plot(ahead.index, came, ".", color=ORANGE, label="what came")
    axes.set_ylabel("carbon dioxide (ppm)")
    axes.legend(frameon=False, fontsize="small", loc="upper left")
    frame = ahead.to_frame()
    inside = int(((came >= frame["2.5%"]) & (came <= frame["97.5%"])).sum())
    sentence = (
        f"Carbon dioxide at Mauna Loa, two years forecast from ten in {seconds:.0f} s by "
        f"relbo.statespace.forecast: {inside} of {NUM_AHEAD} months fell into the 95 % "
        "intervals."
    )
    return Result(sentence, figure, str(ahead.check()).splitlines())


def not_to_be_trusted() -> Result:
    """A logistic regression of separable classes with a flat prior, which has no posterior."""
    x = np.array([-2.2, -1.7, -1.1, -0.6, 0.5, 0.9, 1.6, 2.3])
    passed = (x > 0).astype(int)
    posterior = relbo.infer(0, separable, (x, passed), num_draws=NUM_DRAWS, progress=False)
    check = posterior.check()
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.scatter(x, passed, color=np.where(passed, BLUE, ORANGE))
    grid = np.linspace(-2.5, 2.5, 200)
    slopes = posterior.draws["slope"]
    for slope in slopes[:: len(slopes) // 20]:
        curve = 0.5 * (1.0 + np.tanh(0.5 * slope * grid))
        left.plot(grid, curve, color=GREY, lw=0.7, alpha=0.6)
    left.set(xlabel="x", ylabel="probability of passing", title="classes that do not overlap")
    right.plot(posterior.chains["slope"][:4].T, lw=0.8)
    right.set(xlabel="draw", ylabel="slope", title="four chains, with no end to the slope")
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    verdict = "Trust it" if check.trustworthy else "Do not trust it yet"
    sentence = (
        "A logistic regression with a flat prior, whose classes do not overlap, has no "
        f'posterior: any slope is beaten by a steeper one. check() says: "{verdict}".'
    )
    return Result(sentence, figure, str(check).splitlines())


def separable(x: Any, passed: Any) -> None:
    flat = dist.ImproperUniform(dist.constraints.real, (), ())
    slope = numpyro.sample("slope", flat)
    numpyro.sample("passed", dist.Bernoulli(logits=slope * jnp.asarray(x)), obs=passed)


def _since(begin: float) -> float:
    return time.perf_counter() - begin


PARTS = [
    Part("A posterior, beside NUTS", posterior_beside_nuts),
    Part("A guide, before and after training", guide_before_and_after),
    Part("A forecast, with its uncertainty", carbon_dioxide),
    Part("A posterior that is not to be trusted", not_to_be_trusted),
]
