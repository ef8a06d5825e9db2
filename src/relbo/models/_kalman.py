r"""The Kalman filter and what follows from it, for one series.

A first state that is wide beside the noise would cost the filter its digits: after a few
observations some sums of states are known to the noise while the states themselves are not, and
no float32 matrix holds both. So the first state is kept apart: $z_1 = m_1 + S u + w$ with
$u \sim N(0, I)$ and a narrow $w$, the filter runs for given u, where nothing is wide, and
carries the means as a linear function of u. What the series says about u is a least-squares
problem, solved by QR. (After de Jong, The diffuse Kalman filter, 1991.)
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.scipy.linalg import solve_triangular
from jaxtyping import Array, Bool, Float, Key, PRNGKeyArray, Scalar

from relbo.models._roots import symmetric_root, triangle
from relbo.models._scan import scan_over_time

LOG_2PI = 1.8378770664093453

_NARROW = 1e-6
"""The share of the first covariance that stays in the filter: some must, where observations
have no noise."""

Gaussian = tuple[Float[Array, " n"], Float[Array, "n n"]]
"""Mean and covariance of the state."""

Given = tuple[Float[Array, "n k"], Float[Array, "n n"]]
"""Means of the state for given u, as a matrix times (1, u), and the covariance for given u."""


class Parts(eqx.Module):
    """The matrices of a model, by name."""

    constant: dict[str, Array]
    changing: dict[str, Array]
    """Those that change with time, along a leading axis."""

    def at(self, when: slice) -> "Parts":
        """The same for some of the steps."""
        changing = {name: value[when] for name, value in self.changing.items()}
        return Parts(self.constant, changing)

    def here(self, changing: dict[str, Array]) -> dict[str, Array]:
        """All parts of one step, from those that change."""
        return {**self.constant, **changing}


class Observations(NamedTuple):
    """A series without NaN, and where it was observed."""

    values: Float[Array, "*t m"]
    observed: Bool[Array, "*t m"]


class Filtered(NamedTuple):
    """What the past says about the state at each step."""

    mean: Float[Array, "t n"]
    """Of the state given observations up to and with its own step."""
    covariance: Float[Array, "t n n"]
    predicted_mean: Float[Array, "t n"]
    """Of the state given observations before its own step."""
    predicted_covariance: Float[Array, "t n n"]
    log_likelihoods: Float[Array, " t"]
    """log p(x_t | x_1..x_{t-1}); zero where nothing was observed."""

    @property
    def log_likelihood(self) -> Scalar:
        return jnp.sum(self.log_likelihoods)


class Smoothed(NamedTuple):
    """What the whole series says about the state at each step."""

    mean: Float[Array, "t n"]
    covariance: Float[Array, "t n n"]


class Simulated(NamedTuple):
    """A path that the model drew."""

    states: Float[Array, "t n"]
    series: Float[Array, "t m"]


# Compiled here, since a scan that is called as it stands is traced anew at every call.
@jax.jit
def kalman_filter(start: Gaussian, parts: Parts, series: Observations) -> Filtered:
    def step(carry: tuple[Given, Array], inputs: tuple) -> tuple[tuple, Filtered]:
        predicted, root = carry
        seen, here = _at_one_step(parts, inputs)
        updated, (terms, rows, _) = _update(predicted, seen, here)
        new_root = _add_rows(root, rows)
        # The two differ by what was learnt about u here.
        learnt = _log_det(root) - _log_det(new_root) - 0.5 * new_root[-1, -1] ** 2
        emptied = new_root.at[-1, -1].set(0.0)
        out = Filtered(
            *_marginal(updated, new_root), *_marginal(predicted, root), jnp.sum(terms) + learnt
        )
        return (_predict(updated, here), emptied), out

    given = split_start(start)
    root = jnp.eye(given[0].shape[1], dtype=given[0].dtype).at[-1, -1].set(0.0)
    return scan_over_time(step, (given, root), (series, parts.changing))[1]


@jax.jit
def kalman_smoother(start: Gaussian, parts: Parts, series: Observations) -> Smoothed:
    def forth(predicted: Given, inputs: tuple) -> tuple[Given, tuple]:
        seen, here = _at_one_step(parts, inputs)
        updated, (_, rows, gains) = _update(predicted, seen, here)
        return _predict(updated, here), (updated, rows, gains)

    def back(later: Given, inputs: tuple) -> tuple[Given, Given]:
        (means, covariance), gains, *others = inputs
        seen, here = _at_one_step(parts, others)
        # The gradient of log p(what comes later), and minus its expected Hessian.
        score, precision = later
        score = here["transition"].T @ score
        precision = here["transition"].T @ precision @ here["transition"]
        smoothed = (
            means + covariance @ score,
            _symmetric(covariance - covariance @ precision @ covariance),
        )
        return _reverse_update(_observed_rows(seen, here), gains, (score, precision)), smoothed

    given = split_start(start)
    _, (updated, rows, gains) = scan_over_time(forth, given, (series, parts.changing))
    inputs = (updated, gains, series, parts.changing)
    nothing = jax.tree.map(jnp.zeros_like, given)
    _, smoothed = jax.lax.scan(back, nothing, inputs, reverse=True)
    root = _root_of_rows(rows.reshape(-1, rows.shape[-1]))
    return Smoothed(*jax.vmap(lambda moments: _marginal(moments, root))(smoothed))


@jax.jit
def kalman_forecast(
    start: Gaussian, before: Parts, after: Parts, series: Observations, steps: Array
) -> tuple[Float[Array, "h m"], Float[Array, "h m"]]:
    """Mean and variance of each number at each step ahead; `steps` is as long as they are."""
    given, rows = _run(start, before, series)
    (mean, covariance) = _marginal(given, _root_of_rows(rows.reshape(-1, rows.shape[-1])))

    def look(predicted: Given, inputs: tuple) -> tuple[Given, tuple[Array, Array]]:
        _, here = _at_one_step(after, inputs)
        loading = here["observation"]
        mean = loading @ predicted[0][:, 0] + here["observation_offset"]
        spread = jnp.sum((loading @ predicted[1]) * loading, axis=1)
        return _predict(predicted, here), (mean, spread + here["observation_variance"])

    return jax.lax.scan(look, (mean[:, None], covariance), (steps, after.changing))[1]


@jax.jit
def simulate(
    key: PRNGKeyArray, start: Gaussian, parts: Parts, keys: Key[Array, " t"]
) -> Simulated:
    def step(state: Array, inputs: tuple) -> tuple[Array, Simulated]:
        key, here = _at_one_step(parts, inputs)
        noise_key, state_key = jr.split(key)
        variance = here["observation_variance"]
        noise = jnp.sqrt(variance) * jr.normal(noise_key, variance.shape, state.dtype)
        seen = here["observation"] @ state + here["observation_offset"] + noise
        moved = here["transition"] @ state + here["transition_offset"]
        return _draw(state_key, (moved, here["transition_covariance"])), Simulated(state, seen)

    return jax.lax.scan(step, _draw(key, start), (keys, parts.changing))[1]


def _run(start: Gaussian, parts: Parts, series: Observations) -> tuple[Given, Array]:
    """The state after the last step, and rows of the problem for u."""

    def step(predicted: Given, inputs: tuple) -> tuple[Given, Array]:
        seen, here = _at_one_step(parts, inputs)
        updated, (_, rows, _) = _update(predicted, seen, here)
        return _predict(updated, here), rows

    return scan_over_time(step, split_start(start), (series, parts.changing))


def split_start(start: Gaussian) -> Given:
    mean, covariance = start
    spread = symmetric_root((1.0 - _NARROW) * covariance)
    return jnp.concatenate([mean[:, None], spread], axis=1), _NARROW * covariance


def _root_of_rows(rows: Float[Array, "r k"]) -> Float[Array, "k k"]:
    """The triangle R of the rows under those of the prior of u, with the residual last."""
    size = rows.shape[-1]
    prior = jnp.eye(size, dtype=rows.dtype)[:-1]
    return triangle(jnp.concatenate([prior, rows]))


@jax.custom_jvp
def evidence_about_start(rows: Float[Array, "r k"]) -> Scalar:
    """log of the integral over u of exp(-|rows (u, -1)|^2 / 2) under its prior."""
    root = _root_of_rows(rows)
    return -_log_det(root) - 0.5 * root[-1, -1] ** 2


@evidence_about_start.defjvp
def _evidence_jvp(primals: tuple, tangents: tuple) -> tuple[Scalar, Scalar]:
    """Closed, and far cheaper than the derivative of the decomposition."""
    (rows,), (change,) = primals, tangents
    root = _root_of_rows(rows)
    left, right = rows[:, :-1], rows[:, -1]
    inverse = solve_triangular(root[:-1, :-1], jnp.eye(left.shape[1], dtype=rows.dtype))
    best = inverse @ root[:-1, -1]
    residual = right - left @ best
    by_left = jnp.outer(residual, best) - left @ (inverse @ inverse.T)
    slope = jnp.concatenate([by_left, -residual[:, None]], axis=1)
    return -_log_det(root) - 0.5 * root[-1, -1] ** 2, jnp.sum(slope * change)


def _add_rows(root: Float[Array, "k k"], rows: Float[Array, "m k"]) -> Float[Array, "k k"]:
    return triangle(jnp.concatenate([root, rows]))


def _log_det(root: Float[Array, "k k"]) -> Scalar:
    return jnp.sum(jnp.log(jnp.abs(jnp.diagonal(root)[:-1])))


def _marginal(given: Given, root: Float[Array, "k k"]) -> Gaussian:
    """Mean and covariance of the state, from those for given u and what is known of u."""
    means, covariance = given
    triangle, right = root[:-1, :-1], root[:-1, -1]
    # S R^-1, by the rows of the transposed problem.
    spread = solve_triangular(triangle, means[:, 1:].T, trans="T").T
    return means[:, 0] + spread @ right, covariance + spread @ spread.T


def _at_one_step(parts: Parts, inputs: tuple | list) -> tuple:
    first, changing = inputs
    return first, parts.here(changing)


def _update(
    predicted: Given, seen: Observations, here: dict[str, Array]
) -> tuple[Given, tuple[Array, Array, "_Gain"]]:
    """Takes in the numbers observed at one step, one after the other.

    Since their noise is independent no matrix has to be inverted, and a missing number is left
    out alone.
    """
    number = seen.values.shape[0]
    return jax.lax.scan(
        _absorb, predicted, _observed_rows(seen, here), unroll=number if number <= 4 else 1
    )


def _reverse_update(rows: tuple, gains: "_Gain", later: Given) -> Given:
    """What the numbers of one step add to what comes later, last number first."""

    def give_back(later: Given, inputs: tuple) -> tuple[Given, None]:
        score, precision = later
        (_, _, loading, _), (gain, surprise, weight) = inputs
        along = precision @ gain
        score = score + jnp.outer(loading, weight * surprise - gain @ score)
        cross = jnp.outer(along, loading)
        own = (gain @ along + weight) * jnp.outer(loading, loading)
        return (score, _symmetric(precision - cross - cross.T + own)), None

    return jax.lax.scan(give_back, later, (rows, gains), reverse=True)[0]


def _predict(updated: Given, here: dict[str, Array]) -> Given:
    means, covariance = updated
    transition = here["transition"]
    # One product for both: at these sizes it is their number that costs.
    moved = transition @ jnp.concatenate([means, covariance], axis=1)
    means, half = jnp.split(moved, [means.shape[1]], axis=1)
    means = means.at[:, 0].add(here["transition_offset"])
    covariance = transition @ half.T + here["transition_covariance"]
    return means, _symmetric(covariance)


class _Gain(NamedTuple):
    gain: Float[Array, " n"]
    surprise: Float[Array, " k"]
    weight: Scalar
    """One over the variance of the surprise; all three are zero where nothing was seen."""


def _observed_rows(seen: Observations, here: dict[str, Array]) -> tuple:
    centred = seen.values - here["observation_offset"]
    return centred, seen.observed, here["observation"], here["observation_variance"]


def _absorb(state: Given, row: tuple) -> tuple[Given, tuple[Scalar, Array, _Gain]]:
    """Conditions the state on one number, in Joseph's form.

    Beside the state it returns the log normaliser of the number for given u, a row of the
    least-squares problem for u, and what the smoother needs.
    """
    means, covariance = state
    value, observed, loading, noise = row
    along = covariance @ loading
    # A number that is missing and has no variance must not divide by it.
    variance = jnp.where(observed, loading @ along + noise, 1.0)
    weight = jnp.where(observed, 1.0 / variance, 0.0)
    gain = along * weight
    surprise = (-(loading @ means)).at[0].add(value)
    surprise = jnp.where(observed, surprise, 0.0)
    term = jnp.where(observed, -0.5 * (jnp.log(variance) + LOG_2PI), 0.0)
    # (I - k h) P (I - k h)' + k r k' with the two products one after the other: what rounding
    # leaves behind in the first is damped by the second.
    once = covariance - jnp.outer(gain, along)
    twice = once - jnp.outer(once @ loading, gain) + noise * jnp.outer(gain, gain)
    updated = (means + jnp.outer(gain, surprise), _symmetric(twice))
    return updated, (term, _least_squares_row(surprise, weight), _Gain(gain, surprise, weight))


def _least_squares_row(surprise: Float[Array, " k"], weight: Scalar) -> Float[Array, " k"]:
    """The surprise is s_0 + s' u, so that -s' u = s_0 up to noise; the right side goes last."""
    is_there = weight > 0
    scale = jnp.where(is_there, jnp.sqrt(jnp.where(is_there, weight, 1.0)), 0.0)
    return scale * jnp.concatenate([-surprise[1:], surprise[:1]])


def _symmetric(matrix: Float[Array, "n n"]) -> Float[Array, "n n"]:
    return 0.5 * (matrix + matrix.T)


def _draw(key: PRNGKeyArray, state: Gaussian) -> Float[Array, " n"]:
    mean, covariance = state
    return mean + symmetric_root(covariance) @ jr.normal(key, mean.shape, mean.dtype)
