"""Nasty cases with several modes: near, far, light and narrow, mirrored, exchangeable."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax.scipy.special import logsumexp
from scipy import stats

from gallery_shapes import density
from gallery_truth import Case, Draws, Line, Plane, Truth, entries, of_draws


class NormalMixture:
    """A mixture of round normals in `size` dimensions with centres on given points."""

    def __init__(self, weights: list[float], centres: np.ndarray, sds: list[float]):
        self.weights, self.sds = np.array(weights), np.array(sds)
        self.centres = np.asarray(centres, float)

    def logdensity(self, x: Any) -> Any:
        size = self.centres.shape[1]
        squares = jnp.sum((x - jnp.asarray(self.centres)) ** 2, 1)
        sds = jnp.asarray(self.sds)
        parts = jnp.log(jnp.asarray(self.weights)) - size * jnp.log(sds)
        return logsumexp(parts - 0.5 * squares / sds**2)

    def draws(self, rng: np.random.Generator, number: int) -> Draws:
        part = rng.choice(len(self.weights), number, p=self.weights)
        noise = rng.standard_normal((number, self.centres.shape[1]))
        return {"x": self.centres[part] + self.sds[part, None] * noise}

    def truths(self) -> dict[str, Truth]:
        """Computes the marginal of the first entry on a grid."""
        ends = self.centres[:, 0]
        widest = self.sds.max()
        x = np.linspace(ends.min() - 8 * widest, ends.max() + 8 * widest, 400_001)
        parts = self.weights * stats.norm.pdf(x[:, None], ends, self.sds)
        with np.errstate(divide="ignore"):
            return {"x[0]": Line(x, np.log(parts.sum(1))).truth()}

    def case(self, name: str) -> Case:
        size = self.centres.shape[1]
        build = density(self.logdensity, size)
        return Case(name, "nasty", build, entries("x[0]"), self.truths, self.draws)


def _along_first(size: int, *positions: float) -> np.ndarray:
    centres = np.zeros((len(positions), size))
    centres[:, 0] = positions
    return centres


# The location of a Cauchy sample of two.

_PAIR = np.array([-5.0, 6.0])


def _cauchy_location(y: Any) -> None:
    loc = numpyro.sample("loc", dist.Normal(0.0, 10.0))
    numpyro.sample("y", dist.Cauchy(loc, 0.5), obs=y)


def _cauchy_location_line() -> Line:
    x = np.linspace(-60, 60, 240_001)
    likelihood = stats.cauchy.logpdf(_PAIR[:, None], x, 0.5).sum(0)
    return Line(x, likelihood - 0.5 * (x / 10) ** 2)


# A mixture whose labels can be exchanged.

_MIXED = np.concatenate(
    [
        np.random.default_rng(41).normal(-1.5, 1, 14),
        np.random.default_rng(42).normal(1.5, 1, 26),
    ]
)


def _labels(y: Any) -> None:
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0).expand([2]).to_event(1))
    parts = dist.Normal(mu, 1.0).log_prob(y[:, None])
    numpyro.factor("y", jnp.sum(logsumexp(jnp.asarray(parts), axis=1)))


def _labels_plane() -> Plane:
    axis = np.linspace(-5, 5, 501)

    def logdensity(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        first = -0.5 * (_MIXED - a[:, None]) ** 2
        second = -0.5 * (_MIXED - b[:, None]) ** 2
        return np.logaddexp(first, second).sum(1) - 0.5 * (a**2 + b**2) / 25

    return Plane(axis, axis, logdensity)


def _labels_truths() -> dict[str, Truth]:
    plane = _labels_plane()
    return {
        "mu[0]": plane.truth(lambda a, b: a),
        "mu[1]": plane.truth(lambda a, b: b),
        "smaller": plane.truth(np.minimum),
        "larger": plane.truth(np.maximum),
    }


# One factor: changing the signs of all loadings and all scores changes nothing.

_NOISE = 0.5


class OneFactor:
    """y_ij ~ N(score_i loading_j, 0.5) with standard normal scores and loadings."""

    def __init__(self, people: int, items: int):
        rng = np.random.default_rng(people)
        loadings = np.resize([1.0, -0.8, 1.3, 0.7, -1.1], items)
        self.y = np.outer(rng.normal(size=people), loadings)
        self.y += _NOISE * rng.normal(size=(people, items))

    def model(self, y: Any) -> None:
        people, items = y.shape
        standard = lambda size: dist.Normal(0.0, 1.0).expand([size]).to_event(1)
        loading = jnp.asarray(numpyro.sample("loading", standard(items)))
        score = jnp.asarray(numpyro.sample("score", standard(people)))
        numpyro.sample("y", dist.Normal(score[:, None] * loading, _NOISE), obs=y)

    def draws(self, rng: np.random.Generator, number: int) -> Draws:
        """Draws by many Gibbs chains, each draw with a random sign.

        Both conditionals are normal, and given one sign the chains mix in a few steps.
        """
        people, items = self.y.shape
        num_chains, thin = 5000, 2
        num_kept = -(-number // num_chains)
        score = rng.standard_normal((num_chains, people))
        kept = []
        for step in range(100 + thin * num_kept):
            loading = self._conditional(rng, score, self.y)
            score = self._conditional(rng, loading, self.y.T)
            if step >= 100 and step % thin == 0:
                kept.append(np.concatenate([loading, score], 1))
        both = np.concatenate(kept)[:number]
        both *= rng.choice([-1.0, 1.0], (number, 1))
        return {"loading": both[:, :items], "score": both[:, items:]}

    def _conditional(
        self, rng: np.random.Generator, given: np.ndarray, y: np.ndarray
    ) -> np.ndarray:
        """Draws one factor given the other; `y` has the given one along its rows."""
        variance = 1 / (1 + (given**2).sum(1, keepdims=True) / _NOISE**2)
        noise = rng.standard_normal((len(given), y.shape[1]))
        return variance * (given @ y) / _NOISE**2 + np.sqrt(variance) * noise

    def truths(self) -> dict[str, Truth]:
        draws = self.draws(np.random.default_rng(4), 250_000)
        loading, score = draws["loading"][:, 0], draws["score"][:, 0]
        # The distribution is symmetric; using this halves the error.
        loading, score = (np.concatenate([x, -x]) for x in (loading, score))
        return {
            "loading[0]": of_draws(loading),
            "score[0]": of_draws(score),
            "|loading[0]|": of_draws(np.abs(loading)),
        }

    def case(self) -> Case:
        quantities = {
            **entries("loading[0]", "score[0]"),
            "|loading[0]|": lambda draws: np.abs(draws["loading"][:, 0]),
        }
        name = f"one_factor_{sum(self.y.shape)}"
        build = lambda: (self.model, (self.y,), {})
        return Case(name, "nasty", build, quantities, self.truths, self.draws)


CASES = [
    NormalMixture([0.5, 0.5], _along_first(1, -2.0, 2.0), [1.0, 1.0]).case("modes_near"),
    NormalMixture([0.3, 0.7], _along_first(5, -10.0, 10.0), [1.0, 1.0]).case("modes_far_5"),
    NormalMixture([0.4, 0.6], _along_first(20, -8.0, 8.0), [1.0, 1.0]).case("modes_far_20"),
    NormalMixture(
        [0.5, 0.3, 0.2], np.array([[-4.0, 0.0], [4.0, 1.0], [0.0, 7.0]]), [1.0, 0.7, 0.5]
    ).case("modes_three"),
    NormalMixture([0.8, 0.2], _along_first(2, 0.0, 6.0), [1.0, 0.05]).case("mode_narrow_light"),
    NormalMixture([0.5, 0.5], _along_first(2, 0.0, 0.0), [1.0, 0.02]).case("spike_in_slab"),
    Case(
        "cauchy_location",
        "nasty",
        lambda: (_cauchy_location, (_PAIR,), {}),
        entries("loc"),
        lambda: {"loc": _cauchy_location_line().truth()},
        lambda rng, number: {"loc": _cauchy_location_line().draws(rng, number)},
    ),
    Case(
        "label_switching",
        "nasty",
        lambda: (_labels, (_MIXED,), {}),
        {
            **entries("mu[0]", "mu[1]"),
            "smaller": lambda draws: draws["mu"].min(1),
            "larger": lambda draws: draws["mu"].max(1),
        },
        _labels_truths,
        lambda rng, number: {"mu": np.stack(_labels_plane().draws(rng, number), 1)},
    ),
    OneFactor(5, 3).case(),
    OneFactor(30, 5).case(),
]
