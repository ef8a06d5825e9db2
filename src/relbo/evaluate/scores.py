"""Forecast scores on normal, mixed, categorical and sampled predictives.

A forecast stands for an array of observations and knows its own density, quantiles and CRPS;
a score compares it with what was observed. `log_score` is better when larger; the interval
score, the CRPS and the absolute error are better when smaller.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.scipy.stats import norm
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Scalar

from relbo._weights import log_mean_exp

NUM_BISECTIONS = 64


class AbstractForecast(eqx.Module):
    """A predictive of each entry of an array of observations."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the observations that it predicts."""

    @abstractmethod
    def log_prob(self, observed: Array) -> Float[Array, "..."]:
        """The log density (or log probability) of each observation."""

    @abstractmethod
    def entropy(self, key: PRNGKeyArray | None, num_draws: int) -> Float[Array, "..."]:
        """The entropy of each entry's predictive; `key` where it needs Monte Carlo."""


class AbstractRealForecast(AbstractForecast):
    """A predictive of numbers, which have an order and so quantiles."""

    @property
    @abstractmethod
    def mean(self) -> Float[Array, "..."]:
        """The mean of each entry's predictive."""

    @abstractmethod
    def quantile(self, level: float) -> Float[Array, "..."]:
        """The quantile of each entry's predictive."""

    @abstractmethod
    def crps(self, observed: Array) -> Float[Array, "..."]:
        """The continuous ranked probability score at each observation."""


class NormalForecast(AbstractRealForecast):
    """One normal for each observation.

    Args:
        loc: the means.
        scale: the standard deviations, a number or an array in the shape of `loc`.
    """

    loc: Float[Array, "..."]
    scale: Float[Array, "..."]

    def __init__(self, loc: Array, scale: Array | float):
        self.loc, self.scale = _loc_and_scale(loc, scale)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.loc.shape

    @property
    def mean(self) -> Float[Array, "..."]:
        return self.loc

    def log_prob(self, observed: Array) -> Float[Array, "..."]:
        return norm.logpdf(observed, self.loc, self.scale)

    def quantile(self, level: float) -> Float[Array, "..."]:
        return norm.ppf(level, self.loc, self.scale)

    def crps(self, observed: Array) -> Float[Array, "..."]:
        spread = _mean_absolute(jnp.zeros_like(self.loc), jnp.sqrt(2.0) * self.scale)
        return _mean_absolute(observed - self.loc, self.scale) - 0.5 * spread

    def entropy(self, key: PRNGKeyArray | None, num_draws: int) -> Float[Array, "..."]:
        return 0.5 * (1.0 + jnp.log(2.0 * jnp.pi)) + jnp.log(self.scale)


class NormalMixtureForecast(AbstractRealForecast):
    """Normals of equal weight, one for each draw of the parameters.

    A forecast that carries the uncertainty of the parameters: each posterior draw gives a
    normal for each observation, and the predictive is their average.

    Args:
        loc: the means, the draws along the leading axis.
        scale: the standard deviations, a number or an array in the shape of `loc`.

    Example:
        >>> import jax.numpy as jnp
        >>> forecast = NormalMixtureForecast(jnp.zeros((100, 24)), 1.0)
        >>> log_score(forecast, jnp.zeros(24)).shape
        (24,)
    """

    loc: Float[Array, "draws ..."]
    scale: Float[Array, "draws ..."]

    def __init__(self, loc: Array, scale: Array | float):
        self.loc, self.scale = _loc_and_scale(loc, scale)
        _check_has_draws("loc", self.loc)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.loc.shape[1:]

    @property
    def mean(self) -> Float[Array, "..."]:
        return jnp.mean(self.loc, axis=0)

    def log_prob(self, observed: Array) -> Float[Array, "..."]:
        log_probs = norm.logpdf(jnp.asarray(observed)[None], self.loc, self.scale)
        return log_mean_exp(jnp.moveaxis(log_probs, 0, -1))

    def quantile(self, level: float) -> Float[Array, "..."]:
        # The quantile of a mixture lies between the smallest and the largest of its parts'.
        parts = norm.ppf(level, self.loc, self.scale)

        def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            lower, upper = ends
            middle = 0.5 * (lower + upper)
            below = self._cdf(middle) < level
            return jnp.where(below, middle, lower), jnp.where(below, upper, middle)

        ends = (jnp.min(parts, axis=0), jnp.max(parts, axis=0))
        lower, upper = jax.lax.fori_loop(0, NUM_BISECTIONS, halve, ends)
        return 0.5 * (lower + upper)

    def crps(self, observed: Array) -> Float[Array, "..."]:
        r"""Closed: $E|X - y| - \tfrac12 E|X - X'|$ is a sum over pairs of normals."""

        def distance_to(part: tuple[Array, Array]) -> Array:
            loc, scale = part
            spread = jnp.hypot(self.scale, scale[None])
            return jnp.mean(_mean_absolute(self.loc - loc[None], spread), axis=0)

        # One part at a time, so that the memory is that of the mixture and not its square.
        spread = jnp.mean(jax.lax.map(distance_to, (self.loc, self.scale)), axis=0)
        distance = _mean_absolute(jnp.asarray(observed)[None] - self.loc, self.scale)
        return jnp.mean(distance, axis=0) - 0.5 * spread

    def entropy(self, key: PRNGKeyArray | None, num_draws: int) -> Float[Array, "..."]:
        if key is None:
            raise ValueError(
                "key: the entropy of a mixture is found by Monte Carlo and needs a random key"
            )
        part_key, noise_key = jr.split(key)
        # Draws spread evenly over the parts: no bias, and less variance than at random.
        offsets = (jnp.arange(num_draws) + jr.uniform(part_key)) / num_draws
        parts = jnp.minimum(offsets * self.loc.shape[0], self.loc.shape[0] - 1).astype(int)

        def log_prob(draw: tuple[Array, PRNGKeyArray]) -> Array:
            part, key = draw
            noise = jr.normal(key, self.shape, self.loc.dtype)
            return self.log_prob(self.loc[part] + self.scale[part] * noise)

        draws = (parts, jr.split(noise_key, num_draws))
        return -jnp.mean(jax.lax.map(log_prob, draws), axis=0)

    def _cdf(self, value: Array) -> Array:
        return jnp.mean(norm.cdf(value[None], self.loc, self.scale), axis=0)


class DrawsForecast(AbstractRealForecast):
    """Draws of each observation, when nothing but draws is known.

    Args:
        draws: the draws along the leading axis.
    """

    draws: Float[Array, "draws ..."]

    def __init__(self, draws: Array):
        self.draws = jnp.asarray(draws, jnp.result_type(float, draws))
        _check_has_draws("draws", self.draws)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.draws.shape[1:]

    @property
    def mean(self) -> Float[Array, "..."]:
        return jnp.mean(self.draws, axis=0)

    def quantile(self, level: float) -> Float[Array, "..."]:
        return jnp.quantile(self.draws, level, axis=0)

    def log_prob(self, observed: Array) -> Float[Array, "..."]:
        raise ValueError(
            "DrawsForecast: draws have no density, so no log score and no entropy: use the "
            "normals that the draws come from (NormalMixtureForecast), or the CRPS"
        )

    def entropy(self, key: PRNGKeyArray | None, num_draws: int) -> Float[Array, "..."]:
        return self.log_prob(self.mean)

    def crps(self, observed: Array) -> Float[Array, "..."]:
        r"""The fair score, without bias at any number n of draws.

        $$\frac1n \sum_i |x_i - y| - \frac{1}{n (n - 1)} \sum_{i < j} |x_i - x_j|,$$

        the second sum from the sorted draws: $\sum_i (2 i - n - 1) x_{(i)}$.
        """
        num_draws = self.draws.shape[0]
        if num_draws < 2:
            raise ValueError(f"draws: the CRPS needs at least 2 of them, got {num_draws}")
        # Around the observation, or a large location would eat the digits.
        centred = jnp.sort(self.draws - jnp.asarray(observed)[None], axis=0)
        ranks = 2.0 * jnp.arange(1, num_draws + 1) - num_draws - 1.0
        spread = jnp.tensordot(ranks, centred, axes=1) / (num_draws * (num_draws - 1))
        return jnp.mean(jnp.abs(centred), axis=0) - spread


class CategoricalForecast(AbstractForecast):
    """The probability of each category, for each observation.

    Args:
        logits: log probabilities up to a constant, the categories along the last axis.
        mixture: whether a leading axis holds draws of the parameters; their probabilities are
            then averaged.
    """

    log_probs: Float[Array, "... categories"]

    def __init__(self, logits: Array, *, mixture: bool = False):
        logits = jnp.asarray(logits, jnp.result_type(float, logits))
        if logits.ndim < 1 + mixture:
            raise ValueError(
                f"logits: expected {'draws and ' if mixture else ''}categories among the axes, "
                f"got the shape {logits.shape}"
            )
        log_probs = jax.nn.log_softmax(logits, axis=-1)
        self.log_probs = log_mean_exp(jnp.moveaxis(log_probs, 0, -1)) if mixture else log_probs

    @property
    def shape(self) -> tuple[int, ...]:
        return self.log_probs.shape[:-1]

    def log_prob(self, observed: Int[Array, "..."]) -> Float[Array, "..."]:
        index = jnp.asarray(observed)[..., None]
        picked = jnp.take_along_axis(self.log_probs, index, axis=-1, mode="fill")
        return picked[..., 0]

    def entropy(self, key: PRNGKeyArray | None, num_draws: int) -> Float[Array, "..."]:
        # Zero times minus infinity is a category that never comes, and counts nothing.
        probs = jnp.exp(self.log_probs)
        terms = jnp.where(probs > 0, probs * self.log_probs, 0.0)
        return -jnp.sum(terms, axis=-1)

    @property
    def mode(self) -> Int[Array, "..."]:
        return jnp.argmax(self.log_probs, axis=-1)


def log_score(forecast: AbstractForecast, observed: Array) -> Float[Array, "..."]:
    """The log density (or log probability) of each observation; larger is better.

    Args:
        forecast: the predictive.
        observed: what came, in the shape of the forecast.

    Returns:
        One score for each observation.

    Example:
        >>> import jax.numpy as jnp
        >>> float(log_score(NormalForecast(jnp.zeros(1), 1.0), jnp.zeros(1))[0])
        -0.9189385175704956
    """
    return forecast.log_prob(_checked(forecast, observed))


def predictive_entropy(
    forecast: AbstractForecast, *, key: PRNGKeyArray | None = None, num_draws: int = 1_000
) -> Float[Array, "..."]:
    """The entropy of each observation's predictive: how much it commits itself.

    Args:
        forecast: the predictive.
        key: a random key; only a mixture of normals needs it.
        num_draws: Monte Carlo draws for a mixture.

    Returns:
        One entropy for each observation, in nats.
    """
    return forecast.entropy(key, num_draws)


def interval_score(
    forecast: AbstractRealForecast, observed: Array, *, alpha: float = 0.05
) -> Float[Array, "..."]:
    r"""The score of the central interval of probability $1 - \alpha$; smaller is better.

    $$(u - l) + \tfrac2\alpha (l - y)_+ + \tfrac2\alpha (y - u)_+$$

    Args:
        forecast: the predictive.
        observed: what came, y.
        alpha: the probability outside the interval.

    Returns:
        One score for each observation.

    References:
        Gneiting and Raftery, Strictly proper scoring rules, prediction, and estimation, 2007.
    """
    lower, upper = central_interval(forecast, alpha=alpha)
    observed = _checked(forecast, observed)
    outside = jax.nn.relu(lower - observed) + jax.nn.relu(observed - upper)
    return upper - lower + 2.0 / alpha * outside


def central_interval(
    forecast: AbstractRealForecast, *, alpha: float = 0.05
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """The ends of the central interval of probability 1 - alpha."""
    if not 0.0 < alpha < 1.0:
        raise ValueError(f"alpha: expected a number between 0 and 1, got {alpha}")
    return forecast.quantile(0.5 * alpha), forecast.quantile(1.0 - 0.5 * alpha)


def covered(
    forecast: AbstractRealForecast, observed: Array, *, alpha: float = 0.05
) -> Bool[Array, "..."]:
    """Whether each observation lies in the central interval of probability 1 - alpha."""
    lower, upper = central_interval(forecast, alpha=alpha)
    observed = _checked(forecast, observed)
    return (lower <= observed) & (observed <= upper)


def coverage(forecast: AbstractRealForecast, observed: Array, *, alpha: float = 0.05) -> Scalar:
    """The fraction of observations in the central interval of probability 1 - alpha."""
    inside = covered(forecast, observed, alpha=alpha)
    return jnp.mean(inside, dtype=jnp.result_type(float))


def mae(forecast: AbstractRealForecast, observed: Array) -> Scalar:
    """The mean absolute error of the median, the point forecast that this error asks for."""
    return jnp.mean(jnp.abs(forecast.quantile(0.5) - _checked(forecast, observed)))


def crps(forecast: AbstractRealForecast, observed: Array) -> Float[Array, "..."]:
    r"""The continuous ranked probability score; smaller is better, in the observations' unit.

    $$\int (F(t) - 1[t \ge y])^2\,dt = E|X - y| - \tfrac12 E|X - X'|$$

    It is closed for a normal and for a mixture of normals; for draws it is the fair
    estimate, which has no bias and costs one sort.

    Args:
        forecast: the predictive, with distribution function F.
        observed: what came, y.

    Returns:
        One score for each observation.

    References:
        Grimit et al., The continuous ranked probability score for circular variables and its
        application to mesoscale forecast ensemble verification, 2006.
    """
    return forecast.crps(_checked(forecast, observed))


def accuracy(forecast: CategoricalForecast, observed: Int[Array, "..."]) -> Scalar:
    """The fraction of observations that are the most probable category."""
    hits = forecast.mode == _checked(forecast, observed)
    return jnp.mean(hits, dtype=forecast.log_probs.dtype)


def _mean_absolute(loc: Array, scale: Array) -> Array:
    """E|X| of a normal."""
    standardised = loc / scale
    return 2.0 * scale * norm.pdf(standardised) + loc * (2.0 * norm.cdf(standardised) - 1.0)


def _loc_and_scale(loc: Array, scale: Array | float) -> tuple[Array, Array]:
    loc = jnp.asarray(loc, jnp.result_type(float, loc))
    scale = jnp.asarray(scale, loc.dtype)
    if scale.shape not in ((), loc.shape):
        raise ValueError(
            f"scale: expected a number or the shape {loc.shape} of loc, got {scale.shape}"
        )
    return loc, jnp.broadcast_to(scale, loc.shape)


def _check_has_draws(name: str, array: Array) -> None:
    if array.ndim == 0 or array.shape[0] == 0:
        raise ValueError(
            f"{name}: expected draws along a leading axis, got the shape {array.shape}"
        )


def _checked(forecast: AbstractForecast, observed: Array) -> Array:
    # A silent broadcast of one observation against many forecasts would score nonsense.
    observed = jnp.asarray(observed)
    if observed.shape != forecast.shape:
        raise ValueError(
            f"observed: expected the shape {forecast.shape} of the forecast, "
            f"got {observed.shape}"
        )
    return observed
