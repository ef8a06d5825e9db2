"""Predictive distributions: normal, mixtures, draws and categorical.

A forecast predicts each entry of an array of observations and has a density, quantiles and a
CRPS. The functions of `relbo.evaluate.scores` compare it with the observations.
"""

from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.scipy.stats import norm
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray

from relbo.core.weights import log_mean_exp
from relbo.evaluate.bisection import bisect

NUM_HALVINGS = 64


class AbstractForecast(eqx.Module):
    """A predictive distribution of each entry of an array of observations."""

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The shape of the predicted observations."""

    @abstractmethod
    def log_prob(self, observed: ArrayLike) -> Float[Array, "..."]:
        """Returns the log density (or log probability) of each observation."""

    @abstractmethod
    def entropy(self, key: PRNGKeyArray | None, num_draws: int) -> Float[Array, "..."]:
        """Returns the entropy of each predictive; Monte Carlo estimates need a `key`."""


class AbstractRealForecast(AbstractForecast):
    """A predictive distribution of real numbers, which has quantiles."""

    @property
    @abstractmethod
    def mean(self) -> Float[Array, "..."]:
        """The mean of each predictive."""

    @abstractmethod
    def quantile(self, level: float) -> Float[Array, "..."]:
        """Returns the quantile of each predictive."""

    @abstractmethod
    def crps(self, observed: ArrayLike) -> Float[Array, "..."]:
        """Returns the continuous ranked probability score of each observation."""


class NormalForecast(AbstractRealForecast):
    """A normal distribution for each observation.

    Args:
        loc: the means.
        scale: the standard deviations, a number or an array in the shape of `loc`.
    """

    loc: Float[Array, "..."]
    scale: Float[Array, "..."]

    def __init__(self, loc: ArrayLike, scale: ArrayLike):
        self.loc, self.scale = _loc_and_scale(loc, scale)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.loc.shape

    @property
    def mean(self) -> Float[Array, "..."]:
        return self.loc

    def log_prob(self, observed: ArrayLike) -> Float[Array, "..."]:
        return norm.logpdf(observed, self.loc, self.scale)

    def quantile(self, level: float) -> Float[Array, "..."]:
        return norm.ppf(level, self.loc, self.scale)

    def crps(self, observed: ArrayLike) -> Float[Array, "..."]:
        spread = _mean_absolute(jnp.zeros_like(self.loc), jnp.sqrt(2.0) * self.scale)
        return _mean_absolute(jnp.asarray(observed) - self.loc, self.scale) - 0.5 * spread

    def entropy(self, key: PRNGKeyArray | None, num_draws: int) -> Float[Array, "..."]:
        return 0.5 * (1.0 + jnp.log(2.0 * jnp.pi)) + jnp.log(self.scale)


class NormalMixtureForecast(AbstractRealForecast):
    """A mixture of normals with equal weights, one for each draw of the parameters.

    Each posterior draw gives a normal for each observation. Their mixture accounts for the
    uncertainty of the parameters.

    Args:
        loc: the means, with the draws along the leading axis.
        scale: the standard deviations, a number or an array in the shape of `loc`.

    Example:
        >>> import jax.numpy as jnp
        >>> forecast = NormalMixtureForecast(jnp.zeros((100, 24)), 1.0)
        >>> log_score(forecast, jnp.zeros(24)).shape
        (24,)
    """

    loc: Float[Array, "draws ..."]
    scale: Float[Array, "draws ..."]

    def __init__(self, loc: ArrayLike, scale: ArrayLike):
        self.loc, self.scale = _loc_and_scale(loc, scale)
        _check_has_draws("loc", self.loc)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.loc.shape[1:]

    @property
    def mean(self) -> Float[Array, "..."]:
        return jnp.mean(self.loc, axis=0)

    def log_prob(self, observed: ArrayLike) -> Float[Array, "..."]:
        log_probs = norm.logpdf(jnp.asarray(observed)[None], self.loc, self.scale)
        return log_mean_exp(jnp.moveaxis(log_probs, 0, -1))

    def quantile(self, level: float) -> Float[Array, "..."]:
        # The quantile of a mixture lies between those of its components.
        parts = norm.ppf(level, self.loc, self.scale)
        cdf = lambda z: jnp.mean(norm.cdf(z[None], self.loc, self.scale), axis=0)
        lower, upper = bisect(
            lambda z: cdf(z) < level,
            jnp.min(parts, axis=0),
            jnp.max(parts, axis=0),
            NUM_HALVINGS,
        )
        return 0.5 * (lower + upper)

    def crps(self, observed: ArrayLike) -> Float[Array, "..."]:
        r"""Computes $E|X - y| - \tfrac12 E|X - X'|$ in closed form, over pairs of normals."""

        def distance_to(part: tuple[Array, Array]) -> Array:
            loc, scale = part
            spread = jnp.hypot(self.scale, scale[None])
            return jnp.mean(_mean_absolute(self.loc - loc[None], spread), axis=0)

        # One component at a time, so that memory grows linearly with their number.
        spread = jnp.mean(jax.lax.map(distance_to, (self.loc, self.scale)), axis=0)
        distance = _mean_absolute(jnp.asarray(observed)[None] - self.loc, self.scale)
        return jnp.mean(distance, axis=0) - 0.5 * spread

    def entropy(self, key: PRNGKeyArray | None, num_draws: int) -> Float[Array, "..."]:
        if key is None:
            raise ValueError(
                "key: the entropy of a mixture is a Monte Carlo estimate and needs a random key"
            )
        part_key, noise_key = jr.split(key)
        # Stratified over the components: unbiased, with less variance than at random.
        offsets = (jnp.arange(num_draws) + jr.uniform(part_key)) / num_draws
        parts = jnp.minimum(offsets * self.loc.shape[0], self.loc.shape[0] - 1).astype(int)

        def log_prob(draw: tuple[Array, PRNGKeyArray]) -> Array:
            part, key = draw
            noise = jr.normal(key, self.shape, self.loc.dtype)
            return self.log_prob(self.loc[part] + self.scale[part] * noise)

        draws = (parts, jr.split(noise_key, num_draws))
        return -jnp.mean(jax.lax.map(log_prob, draws), axis=0)


class LogNormalMixtureForecast(AbstractRealForecast):
    """A mixture of log-normals: the logarithm of an observation is a mixture of normals.

    Args:
        loc: the means of the logarithms, with the draws along the leading axis.
        scale: their standard deviations, a number or an array in the shape of `loc`.

    Example:
        >>> import jax.numpy as jnp
        >>> forecast = LogNormalMixtureForecast(jnp.zeros((100, 24)), 0.1)
        >>> log_score(forecast, jnp.ones(24)).shape
        (24,)
    """

    logarithm: NormalMixtureForecast
    """The forecast of the logarithms."""

    def __init__(self, loc: ArrayLike, scale: ArrayLike):
        self.logarithm = NormalMixtureForecast(loc, scale)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.logarithm.shape

    @property
    def _means(self) -> Float[Array, "draws ..."]:
        return jnp.exp(self.logarithm.loc + 0.5 * self.logarithm.scale**2)

    @property
    def mean(self) -> Float[Array, "..."]:
        return jnp.mean(self._means, axis=0)

    def log_prob(self, observed: ArrayLike) -> Float[Array, "..."]:
        observed = jnp.asarray(observed)
        is_positive = observed > 0
        logs = jnp.log(jnp.where(is_positive, observed, 1.0))
        return jnp.where(is_positive, self.logarithm.log_prob(logs) - logs, -jnp.inf)

    def quantile(self, level: float) -> Float[Array, "..."]:
        return jnp.exp(self.logarithm.quantile(level))

    def crps(self, observed: ArrayLike) -> Float[Array, "..."]:
        r"""Computes $E|X - y| - \tfrac12 E|X - X'|$ in closed form, over pairs of log-normals.

        With means m of independent log-normals,
        $E|X - X'| = m (2 \Phi(d + \sigma^2) - 1) + m' (2 \Phi(-d + \sigma'^2) - 1)$, where d is
        the difference of the log means, and both arguments are divided by
        $\sqrt{\sigma^2 + \sigma'^2}$.
        """
        loc, scale, means = self.logarithm.loc, self.logarithm.scale, self._means

        def distance_to(part: tuple[Array, Array, Array]) -> Array:
            other, other_scale, other_mean = (leaf[None] for leaf in part)
            spread = jnp.hypot(scale, other_scale)
            gap = loc - other
            above = means * (2.0 * norm.cdf((gap + scale**2) / spread) - 1.0)
            below = other_mean * (2.0 * norm.cdf((other_scale**2 - gap) / spread) - 1.0)
            return jnp.mean(above + below, axis=0)

        spread = jnp.mean(jax.lax.map(distance_to, (loc, scale, means)), axis=0)
        observed = jnp.asarray(observed)[None]
        # A value below zero is as far from every draw as zero is, and its own distance more.
        logs = jnp.log(jnp.maximum(observed, jnp.finfo(loc.dtype).tiny))
        score = (logs - loc) / scale
        inside = jnp.maximum(observed, 0.0) * (2.0 * norm.cdf(score) - 1.0)
        distance = inside - means * (2.0 * norm.cdf(score - scale) - 1.0)
        distance = distance - jnp.minimum(observed, 0.0)
        return jnp.mean(distance, axis=0) - 0.5 * spread

    def entropy(self, key: PRNGKeyArray | None, num_draws: int) -> Float[Array, "..."]:
        """Returns the entropy of the logarithm plus its mean."""
        return self.logarithm.entropy(key, num_draws) + self.logarithm.mean


class DrawsForecast(AbstractRealForecast):
    """A predictive distribution that is known only by draws from it.

    Args:
        draws: the draws, along the leading axis.
    """

    draws: Float[Array, "draws ..."]

    def __init__(self, draws: ArrayLike):
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

    def log_prob(self, observed: ArrayLike) -> Float[Array, "..."]:
        raise ValueError(
            "DrawsForecast: draws have no density, and thus no log score and no entropy: use "
            "the normals that the draws come from (NormalMixtureForecast), or the CRPS"
        )

    def entropy(self, key: PRNGKeyArray | None, num_draws: int) -> Float[Array, "..."]:
        return self.log_prob(self.mean)

    def crps(self, observed: ArrayLike) -> Float[Array, "..."]:
        r"""Computes the fair score, which is unbiased for any number n of draws.

        $$\frac1n \sum_i |x_i - y| - \frac{1}{n (n - 1)} \sum_{i < j} |x_i - x_j|,$$

        with the second sum from the sorted draws: $\sum_i (2 i - n - 1) x_{(i)}$.
        """
        num_draws = self.draws.shape[0]
        if num_draws < 2:
            raise ValueError(f"draws: the CRPS needs at least 2 draws, got {num_draws}")
        # Relative to the observation, so that a large location does not cost digits.
        centred = jnp.sort(self.draws - jnp.asarray(observed)[None], axis=0)
        ranks = 2.0 * jnp.arange(1, num_draws + 1) - num_draws - 1.0
        spread = jnp.tensordot(ranks, centred, axes=1) / (num_draws * (num_draws - 1))
        return jnp.mean(jnp.abs(centred), axis=0) - spread


class CategoricalForecast(AbstractForecast):
    """The probability of each category, for each observation.

    Args:
        logits: log probabilities up to a constant, with the categories along the last axis.
        mixture: whether a leading axis holds draws of the parameters, over which probabilities
            are averaged.
    """

    log_probs: Float[Array, "... categories"]

    def __init__(self, logits: ArrayLike, *, mixture: bool = False):
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

    def log_prob(self, observed: ArrayLike) -> Float[Array, "..."]:
        index = jnp.asarray(observed)[..., None]
        picked = jnp.take_along_axis(self.log_probs, index, axis=-1, mode="fill")
        return picked[..., 0]

    def entropy(self, key: PRNGKeyArray | None, num_draws: int) -> Float[Array, "..."]:
        # A category of probability zero contributes nothing.
        probs = jnp.exp(self.log_probs)
        terms = jnp.where(probs > 0, probs * self.log_probs, 0.0)
        return -jnp.sum(terms, axis=-1)

    @property
    def mode(self) -> Int[Array, "..."]:
        """The most probable category."""
        return jnp.argmax(self.log_probs, axis=-1)


def _mean_absolute(loc: Array, scale: Array) -> Array:
    """Returns E|X| of a normal X."""
    standardised = loc / scale
    return 2.0 * scale * norm.pdf(standardised) + loc * (2.0 * norm.cdf(standardised) - 1.0)


def _loc_and_scale(loc: ArrayLike, scale: ArrayLike) -> tuple[Array, Array]:
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
