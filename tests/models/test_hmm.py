"""The forward algorithm against every path for short series and hmmlearn for long ones."""

import itertools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import pytest
from hmmlearn.hmm import CategoricalHMM
from numpyro.infer.util import log_density

from relbo.models import HiddenMarkov, hidden_markov_model
from relbo.models._forward import _log_expect, _scaled_expect

NUM_STATES, NUM_SYMBOLS = 3, 4


def random_rows(rng, *shape):
    rows = rng.gamma(0.7, size=shape)
    return rows / rows.sum(axis=-1, keepdims=True)


def random_parts(seed):
    rng = np.random.default_rng(seed)
    return {
        "initial": random_rows(rng, NUM_STATES),
        "transition": random_rows(rng, NUM_STATES, NUM_STATES),
        "emission": random_rows(rng, NUM_STATES, NUM_SYMBOLS),
    }


def path_probabilities(parts, series):
    """p(path, series) of every path, by writing them all out."""
    paths = list(itertools.product(range(NUM_STATES), repeat=len(series)))
    probabilities = []
    for path in paths:
        total = parts["initial"][path[0]]
        for before, after in itertools.pairwise(path):
            total *= parts["transition"][before, after]
        for state, symbol in zip(path, series, strict=True):
            total *= 1.0 if np.isnan(symbol) else parts["emission"][state, int(symbol)]
        probabilities.append(total)
    return np.array(paths), np.array(probabilities)


@pytest.mark.parametrize("seed", range(4))
def test_every_path_is_counted(x64, seed):
    parts = random_parts(seed)
    if seed == 3:  # with transitions that never happen
        parts["transition"] = np.array([[0, 1.0, 0], [0, 0, 1.0], [0.5, 0.5, 0]])
    series = np.array([0, 3, np.nan, 1, 2, np.nan])
    paths, probabilities = path_probabilities(parts, series)
    model = HiddenMarkov(**parts)
    total = probabilities.sum()
    assert float(model.log_likelihood(series)) == pytest.approx(np.log(total))
    filtered = model.filter(series)
    assert float(filtered.log_likelihood) == pytest.approx(np.log(total))
    marginals = np.stack(
        [probabilities[paths[:, t] == k].sum() for t in range(6) for k in range(NUM_STATES)]
    ).reshape(6, NUM_STATES)
    np.testing.assert_allclose(
        np.exp(model.smooth(series)), marginals / total, rtol=1e-6, atol=1e-12
    )
    _, first = path_probabilities(parts, series[:2])
    last = np.array([first[k::NUM_STATES].sum() for k in range(NUM_STATES)])
    np.testing.assert_allclose(np.exp(filtered.log_probs[1]), last / last.sum(), atol=1e-12)


def test_forecasts_are_ratios_of_likelihoods(x64):
    parts = random_parts(0)
    model, series = HiddenMarkov(**parts), np.array([0, 3, 1, 2])
    forecast = model.forecast(series, 2)
    assert forecast.shape == (2,)
    base = model.log_likelihood(series)
    for symbol in range(NUM_SYMBOLS):
        one = model.log_likelihood(np.append(series, symbol)) - base
        two = model.log_likelihood(np.array([*series, np.nan, symbol])) - base
        np.testing.assert_allclose(forecast.log_probs[:, symbol], [one, two], rtol=1e-9)


def test_long_series_agree_with_hmmlearn(x64):
    parts = random_parts(1)
    model = HiddenMarkov(**parts)
    series = np.asarray(model.simulate(jr.key(0), 3_000).series)
    theirs = CategoricalHMM(n_components=NUM_STATES, n_features=NUM_SYMBOLS)
    theirs.startprob_, theirs.transmat_ = parts["initial"], parts["transition"]
    theirs.emissionprob_ = parts["emission"]
    total, posteriors = theirs.score_samples(series[:, None])
    assert float(model.log_likelihood(series)) == pytest.approx(total, rel=1e-9)
    np.testing.assert_allclose(np.exp(model.smooth(series)), posteriors, atol=1e-9)


def test_float32_keeps_its_digits_over_a_long_series():
    parts = random_parts(1)
    model = HiddenMarkov(**parts)
    series = np.asarray(model.simulate(jr.key(0), 3_000).series)
    ours = float(model.log_likelihood(series))
    with jax.enable_x64(True):
        assert ours == pytest.approx(
            float(HiddenMarkov(**parts).log_likelihood(series)), rel=2e-6
        )


def test_a_state_of_tiny_probability_is_not_lost():
    """In float32 its probability would be zero, and the series impossible."""
    tiny = 1e-30
    transition = np.array([[1.0, tiny], [tiny, 1.0]])
    model = HiddenMarkov(np.array([1.0, 0.0]), transition, np.eye(2))
    value = float(model.log_likelihood(np.array([0, 1, 0, 1, 0])))
    assert value == pytest.approx(4 * np.log(tiny), rel=1e-6)


def test_a_state_that_underflows_and_is_the_only_one_left():
    """Nothing leads into the second state, whose probability falls to 1e-50 on the way."""
    stay = np.eye(2)
    emission = np.array([[1.0, 0.0], [1e-10, 1.0 - 1e-10]])
    model = HiddenMarkov(np.array([1.0, 1e-30]), stay, emission)
    value = float(model.log_likelihood(np.array([0, 0, 1])))
    assert value == pytest.approx(np.log(1e-30) + 2 * np.log(1e-10), rel=1e-5)


SERIES = np.array([0, 3, 1, np.nan, 2, 2, 0])


def by_logits(logits):
    return HiddenMarkov(*(jax.nn.softmax(part) for part in logits)).log_likelihood(SERIES)


def by_scan(logits):
    """The forward algorithm once more, left to automatic differentiation."""
    initial, transition, emission = (jax.nn.log_softmax(part) for part in logits)
    forward, first = initial, True
    for symbol in SERIES:
        if not first:
            forward = jax.nn.logsumexp(forward[:, None] + transition, axis=0)
        first = False
        forward = forward if np.isnan(symbol) else forward + emission[:, int(symbol)]
    return jax.nn.logsumexp(forward)


def test_the_gradient_written_out_is_the_gradient(x64):
    logits = [jnp.log(value) for value in random_parts(2).values()]
    ours, plain = (jax.jit(jax.grad(f))(logits) for f in (by_logits, by_scan))
    for one, other in zip(ours, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_its_second_derivative_too(x64):
    logits = [jnp.log(value) for value in random_parts(2).values()]

    def bend(f):
        slope = lambda x: jnp.sum(jnp.sin(jax.grad(f)(x)[1]))
        return jax.jit(jax.grad(slope))(logits)

    for one, other in zip(bend(by_logits), bend(by_scan), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-11)


def test_zeros_have_finite_gradients():
    def loss(transition):
        model = HiddenMarkov(jnp.array([1.0, 0.0]), transition, jnp.eye(2))
        return model.log_likelihood(np.array([0, 1, 0]))

    swap = jnp.array([[0.0, 1.0], [1.0, 0.0]])
    assert float(loss(swap)) == 0.0
    assert jnp.all(jnp.isfinite(jax.grad(loss)(swap)))
    stay = jnp.eye(2)
    assert float(loss(stay)) == -np.inf
    assert jnp.all(jnp.isfinite(jax.grad(loss)(stay)))


def test_a_mask_says_the_same_as_nan(x64):
    model = HiddenMarkov(**random_parts(0))
    filled = np.where(np.isnan(SERIES), 1, SERIES).astype(int)
    assert model.log_likelihood(SERIES) == model.log_likelihood(filled, ~np.isnan(SERIES))


def test_batches_by_vmap(x64):
    model = HiddenMarkov(**random_parts(0))
    series = np.stack([SERIES, SERIES[::-1]])
    together = jax.vmap(model.log_likelihood)(series)
    np.testing.assert_allclose(together, [model.log_likelihood(one) for one in series])


def test_the_program_is_the_priors_and_the_likelihood(x64):
    parts = random_parts(0)
    values = {name: parts[name] for name in ("transition", "emission")}
    settings = {"num_states": NUM_STATES, "num_symbols": NUM_SYMBOLS}
    total, _ = log_density(hidden_markov_model, (SERIES,), settings, values)
    uniform = np.full(NUM_STATES, 1 / NUM_STATES)
    likelihood = HiddenMarkov(uniform, **values).log_likelihood(SERIES)
    # A flat Dirichlet over s probabilities has the density (s - 1)!.
    prior = NUM_STATES * (np.log(2) + np.log(6))
    assert float(total) == pytest.approx(float(likelihood) + prior)


def test_the_program_draws_series_of_its_own():
    settings = {"num_states": NUM_STATES, "num_symbols": NUM_SYMBOLS, "num_steps": 50}
    draws = numpyro.infer.Predictive(hidden_markov_model, num_samples=3)(jr.key(0), **settings)
    assert draws["series"].shape == (3, 50)
    assert set(np.unique(draws["series"])) <= set(range(NUM_SYMBOLS))
    with pytest.raises(ValueError, match="num_steps"):
        numpyro.handlers.seed(hidden_markov_model, 0)(
            num_states=NUM_STATES, num_symbols=NUM_SYMBOLS
        )


@pytest.mark.parametrize(
    ("series", "message"),
    [
        (np.array([0, 4]), "series: expected whole numbers from 0 to 3"),
        (np.array([0, -1]), "series: expected whole numbers"),
        (np.array([0.5, 1.0]), "series: expected whole numbers"),
        (np.zeros(0), "at least one step"),
        (np.zeros((2, 2)), r"expected the shape \[t\]"),
    ],
)
def test_wrong_series_are_named(series, message):
    with pytest.raises(ValueError, match=message):
        HiddenMarkov(**random_parts(0)).log_likelihood(series)


def test_a_wrong_symbol_that_cannot_be_looked_at_gives_nan():
    log_likelihood = jax.jit(
        lambda series: HiddenMarkov(**random_parts(0)).log_likelihood(series)
    )
    assert jnp.isfinite(log_likelihood(jnp.array([0, 3])))
    assert jnp.isnan(log_likelihood(jnp.array([0, 4])))
    assert jnp.isnan(log_likelihood(jnp.array([-1, 3])))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("initial", np.array([0.5, 0.5, 0.5]), "add up to 1"),
        ("initial", np.ones((1, 1)), "expected a vector"),
        ("transition", np.eye(2), "expected the shape"),
        ("transition", 2 * np.eye(3) - 0.5 * np.roll(np.eye(3), 1), "zero or more"),
        ("emission", np.eye(2), r"expected the shape \[3, s\]"),
    ],
)
def test_wrong_parts_are_named(name, value, message):
    with pytest.raises(ValueError, match=f"{name}: .*{message}"):
        HiddenMarkov(**{**random_parts(0), name: value})


def test_the_forecast_looks_at_least_one_step_ahead():
    with pytest.raises(ValueError, match="num_steps"):
        HiddenMarkov(**random_parts(0)).forecast(np.array([0, 1]), 0)


@pytest.mark.parametrize("x64_enabled", [False, True])
def test_both_ways_of_counting_agree(x64_enabled):
    """Probabilities as they are, and their logs."""
    with jax.enable_x64(x64_enabled):
        model = HiddenMarkov(**random_parts(3))
        arguments = (model.log_initial, model.log_transition, model._evidence(SERIES, None))
        scaled, in_logs = (f(*arguments) for f in (_scaled_expect, _log_expect))
        tolerance = {"rtol": 1e-10} if x64_enabled else {"rtol": 1e-4, "atol": 1e-6}
        for one, other in zip(jax.tree.leaves(scaled), jax.tree.leaves(in_logs), strict=True):
            np.testing.assert_allclose(one, other, **tolerance)
        assert float(jnp.sum(scaled[1].transitions)) == pytest.approx(len(SERIES) - 1, rel=1e-5)


def test_one_chain_that_needs_logs_does_not_spoil_a_batch():
    tiny = 1e-30
    rare = jnp.array([[1.0, tiny], [tiny, 1.0]])
    usual = jnp.array([[0.7, 0.3], [0.2, 0.8]])
    series = np.array([0, 1, 0, 1, 0])

    def value(transition):
        return HiddenMarkov(jnp.array([0.5, 0.5]), transition, jnp.eye(2)).log_likelihood(
            series
        )

    together = jax.vmap(jax.vmap(jax.value_and_grad(value)))(jnp.stack([usual, rare])[None])
    for number, transition in enumerate((usual, rare)):
        alone = jax.value_and_grad(value)(transition)
        for one, other in zip(alone, together, strict=True):
            np.testing.assert_allclose(one, other[0, number], rtol=1e-5)


def test_derivatives_in_both_modes_agree(x64):
    logits = jnp.log(random_parts(2)["transition"])
    parts = random_parts(2)

    def value(logits):
        chain = HiddenMarkov(parts["initial"], jax.nn.softmax(logits), parts["emission"])
        return chain.log_likelihood(SERIES)

    np.testing.assert_allclose(jax.jacfwd(value)(logits), jax.grad(value)(logits), rtol=1e-9)
    hessian = jax.hessian(value)(logits).reshape(logits.size, -1)
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-10)


def test_one_symbol_alone(x64):
    model = HiddenMarkov(**random_parts(0))
    expected = jnp.exp(model.log_initial) @ jnp.exp(model.log_emission[:, 2])
    value, slope = jax.value_and_grad(lambda m: m.log_likelihood(np.array([2])))(model)
    assert float(value) == pytest.approx(float(jnp.log(expected)))
    assert jnp.all(slope.log_transition == 0)
