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


# A normal beside a mode of another shape.


class BesideNormal:
    """A standard normal at `-distance` and another shape at `distance`, on the first axis.

    Args:
        weight: the weight of the normal.
        distance: where the two are.
        size: the number of dimensions.
        logdensity: the normalised log density of the other shape.
        draws: its draws, given a generator and a shape.
    """

    def __init__(self, weight: float, distance: float, size: int, logdensity: Any, draws: Any):
        self.weight, self.size = weight, size
        self.offset = np.eye(size)[0] * distance
        self.other, self.other_draws = logdensity, draws

    def logdensity(self, x: Any) -> Any:
        normal = jnp.sum(dist.Normal(0.0, 1.0).log_prob(x + self.offset))
        other = self.other(x - self.offset)
        return jnp.logaddexp(jnp.log(self.weight) + normal, jnp.log1p(-self.weight) + other)

    def draws(self, rng: np.random.Generator, number: int) -> Draws:
        shape = (number, self.size)
        normal = rng.standard_normal(shape) - self.offset
        other = self.other_draws(rng, shape) + self.offset
        return {"x": np.where(rng.random((number, 1)) < self.weight, normal, other)}

    def case(self, name: str) -> Case:
        quantities = entries("x[0]", "x[1]")

        def truths() -> dict[str, Truth]:
            draws = self.draws(np.random.default_rng(5), 1_000_000)
            found = {name: of_draws(fn(draws)) for name, fn in quantities.items()}
            # The kurtosis of a Student t with three degrees of freedom does not exist.
            is_heavy = name == "beside_student"
            return {n: t._replace(kurtosis=None) if is_heavy else t for n, t in found.items()}

        build = density(self.logdensity, self.size)
        return Case(name, "nasty", build, quantities, truths, self.draws)


def _student(x: Any) -> Any:
    return jnp.sum(dist.StudentT(3.0).log_prob(x))


def _gumbel(x: Any) -> Any:
    return jnp.sum(dist.Gumbel(0.0, 1.0).log_prob(x))


def _bent(x: Any) -> Any:
    straight = x.at[1].add(1.0 - x[0] ** 2 / 4)
    scales = jnp.ones(len(x)).at[0].set(2.0)
    return jnp.sum(dist.Normal(0.0, scales).log_prob(straight))


def _bent_draws(rng: np.random.Generator, shape: tuple[int, int]) -> np.ndarray:
    draws = rng.standard_normal(shape)
    draws[:, 0] *= 2
    draws[:, 1] += draws[:, 0] ** 2 / 4 - 1
    return draws


# The frequency of a sine: many local summits, one of them by far the highest.


class SineFrequency:
    """y = sin(w t) + noise with w uniform below a limit."""

    def __init__(self, limit: float, end: float, number: int, noise: float, true: float):
        rng = np.random.default_rng(number)
        self.limit, self.noise = limit, noise
        self.t = np.sort(rng.uniform(0, end, number))
        self.y = np.sin(true * self.t) + noise * rng.normal(size=number)

    def model(self, t: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Uniform(0.0, self.limit))
        numpyro.sample("y", dist.Normal(jnp.sin(w * t), self.noise), obs=y)

    def line(self) -> Line:
        w = np.linspace(0, self.limit, 1_000_002)[1:-1]
        squares = [
            ((self.y - np.sin(part[:, None] * self.t)) ** 2).sum(1)
            for part in np.array_split(w, 200)
        ]
        return Line(w, -0.5 * np.concatenate(squares) / self.noise**2)

    def case(self, name: str) -> Case:
        return Case(
            name,
            "nasty",
            lambda: (self.model, (self.t, self.y), {}),
            entries("w"),
            lambda: {"w": self.line().truth()},
            lambda rng, number: {"w": self.line().draws(rng, number)},
        )


CASES = [
    NormalMixture([0.5, 0.5], _along_first(1, -2.0, 2.0), [1.0, 1.0]).case("modes_near"),
    NormalMixture([0.3, 0.7], _along_first(5, -10.0, 10.0), [1.0, 1.0]).case("modes_far_5"),
    NormalMixture([0.4, 0.6], _along_first(20, -8.0, 8.0), [1.0, 1.0]).case("modes_far_20"),
    NormalMixture(
        [0.5, 0.3, 0.2], np.array([[-4.0, 0.0], [4.0, 1.0], [0.0, 7.0]]), [1.0, 0.7, 0.5]
    ).case("modes_three"),
    NormalMixture([0.8, 0.2], _along_first(2, 0.0, 6.0), [1.0, 0.05]).case("mode_narrow_light"),
    NormalMixture([0.5, 0.5], _along_first(2, 0.0, 0.0), [1.0, 0.02]).case("spike_in_slab"),
    NormalMixture([0.6, 0.4], _along_first(3, 0.5, 0.5), [2.0, 0.05]).case("spike_in_slab_3"),
    NormalMixture([0.5, 0.5], _along_first(3, 0.0, 3.0), [1.0, 0.1]).case("mode_narrow_3"),
    NormalMixture([0.6, 0.4], _along_first(10, 0.0, 3.5), [1.0, 0.25]).case("mode_narrow_10"),
    NormalMixture([0.8, 0.2], _along_first(30, 0.0, 8.0), [1.0, 0.5]).case("mode_half_30"),
    NormalMixture([0.5, 0.5], _along_first(20, 0.0, 6.0), [1.0, 0.5]).case("mode_half_20"),
    BesideNormal(0.5, 6.0, 2, _student, lambda rng, shape: rng.standard_t(3, shape)).case(
        "beside_student"
    ),
    BesideNormal(0.6, 6.0, 2, _gumbel, lambda rng, shape: rng.gumbel(size=shape)).case(
        "beside_gumbel"
    ),
    BesideNormal(0.3, 9.0, 4, _bent, _bent_draws).case("beside_banana"),
    SineFrequency(12.0, 30.0, 60, 0.3, 4.1).case("sine_frequency"),
    SineFrequency(12.0, 100.0, 100, 0.5, 6.6).case("sine_frequency_sharp"),
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
