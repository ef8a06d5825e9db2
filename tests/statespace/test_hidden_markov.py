"""The forward algorithm against sums over all paths, and against hmmlearn."""

import itertools

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import pytest
from hmmlearn.hmm import CategoricalHMM
from numpyro.infer.util import log_density

from relbo.statespace import HiddenMarkov, hidden_markov_model
from relbo.statespace.forward import log_expected_counts, scaled_expected_counts

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
    """All paths, and p(path, series) of each."""
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


@jax.jit
def results(parts, series):
    model = HiddenMarkov(**parts)
    return model.log_likelihood(series), model.filter(series), model.smooth(series)


@pytest.mark.parametrize("seed", range(4))
def test_likelihood_filter_and_smoother_are_sums_over_all_paths(x64, seed):
    parts = random_parts(seed)
    if seed == 3:  # with impossible transitions
        parts["transition"] = np.array([[0, 1.0, 0], [0, 0, 1.0], [0.5, 0.5, 0]])
    series = np.array([0, 3, np.nan, 1, 2, np.nan])
    paths, probabilities = path_probabilities(parts, series)
    total = probabilities.sum()
    log_likelihood, filtered, smoothed = results(parts, series)
    assert float(log_likelihood) == pytest.approx(np.log(total))
    assert float(filtered.log_likelihood) == pytest.approx(np.log(total))
    marginals = np.stack(
        [probabilities[paths[:, t] == k].sum() for t in range(6) for k in range(NUM_STATES)]
    ).reshape(6, NUM_STATES)
    np.testing.assert_allclose(np.exp(smoothed), marginals / total, rtol=1e-6, atol=1e-12)
    _, first = path_probabilities(parts, series[:2])
    last = np.array([first[k::NUM_STATES].sum() for k in range(NUM_STATES)])
    np.testing.assert_allclose(np.exp(filtered.log_probs[1]), last / last.sum(), atol=1e-12)


def test_forecasts_are_ratios_of_likelihoods(x64):
    model, series = HiddenMarkov(**random_parts(0)), np.array([0.0, 3, 1, 2])
    forecast = model.forecast(series, 2)
    assert forecast.shape == (2,)
    extended = lambda *symbols: model.log_likelihood(np.array([*series, *symbols]))
    base = extended(np.nan, np.nan)
    for symbol in range(NUM_SYMBOLS):
        ratios = [extended(symbol, np.nan) - base, extended(np.nan, symbol) - base]
        np.testing.assert_allclose(forecast.log_probs[:, symbol], ratios, rtol=1e-9)


def test_a_long_series_agrees_with_hmmlearn_in_both_precisions(x64):
    parts = random_parts(1)
    model = HiddenMarkov(**parts)
    series = np.asarray(model.simulate(jr.key(0), 3_000).series)
    theirs = CategoricalHMM(n_components=NUM_STATES, n_features=NUM_SYMBOLS)
    theirs.startprob_, theirs.transmat_ = parts["initial"], parts["transition"]
    theirs.emissionprob_ = parts["emission"]
    total, posteriors = theirs.score_samples(series[:, None])
    log_likelihood, _, smoothed = results(parts, series)
    assert float(log_likelihood) == pytest.approx(total, rel=1e-9)
    np.testing.assert_allclose(np.exp(smoothed), posteriors, atol=1e-9)
    with jax.enable_x64(False):
        single = float(HiddenMarkov(**parts).log_likelihood(series))
    assert single == pytest.approx(total, rel=2e-6)


def test_rare_transitions_do_not_underflow():
    """In float32 the product of their probabilities would be zero."""
    tiny = 1e-30
    transition = np.array([[1.0, tiny], [tiny, 1.0]])
    model = HiddenMarkov(np.array([1.0, 0.0]), transition, np.eye(2))
    value = float(model.log_likelihood(np.array([0, 1, 0, 1, 0])))
    assert value == pytest.approx(4 * np.log(tiny), rel=1e-6)


def test_the_only_possible_state_does_not_underflow():
    """No transition leads into the second state, whose probability falls to 1e-50."""
    stay = np.eye(2)
    emission = np.array([[1.0, 0.0], [1e-10, 1.0 - 1e-10]])
    model = HiddenMarkov(np.array([1.0, 1e-30]), stay, emission)
    value = float(model.log_likelihood(np.array([0, 0, 1])))
    assert value == pytest.approx(np.log(1e-30) + 2 * np.log(1e-10), rel=1e-5)


SERIES = np.array([0, 3, 1, np.nan, 2, 2, 0])


def by_logits(logits):
    return HiddenMarkov(*(jax.nn.softmax(part) for part in logits)).log_likelihood(SERIES)


def by_automatic_differentiation(logits):
    """A plain forward algorithm."""
    initial, transition, emission = (jax.nn.log_softmax(part) for part in logits)
    forward, first = initial, True
    for symbol in SERIES:
        if not first:
            forward = jax.nn.logsumexp(forward[:, None] + transition, axis=0)
        first = False
        forward = forward if np.isnan(symbol) else forward + emission[:, int(symbol)]
    return jax.nn.logsumexp(forward)


def test_first_and_second_derivatives_agree_with_automatic_differentiation(x64):
    logits = [jnp.log(value) for value in random_parts(2).values()]

    @jax.jit
    def derivatives(logits):
        both = (by_logits, by_automatic_differentiation)
        second = lambda f: jax.grad(lambda x: jnp.sum(jnp.sin(jax.grad(f)(x)[1])))
        return [(jax.grad(f)(logits), second(f)(logits)) for f in both]

    ours, plain = derivatives(logits)
    for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8, atol=1e-11)


@jax.jit
@jax.vmap
@jax.value_and_grad
def of_transition(transition):
    """Two states that emit their own symbol, and a series that changes at every step."""
    model = HiddenMarkov(jnp.array([1.0, 0.0]), transition, jnp.eye(2))
    return model.log_likelihood(np.array([0, 1, 0, 1, 0]))


def test_gradients_at_impossible_transitions_are_finite():
    swap, stay = jnp.array([[0.0, 1.0], [1.0, 0.0]]), jnp.eye(2)
    values, gradients = of_transition(jnp.stack([swap, stay]))
    assert values.tolist() == [0.0, -np.inf]
    assert jnp.all(jnp.isfinite(gradients))


def test_a_mask_is_equivalent_to_nan(x64):
    model = HiddenMarkov(**random_parts(0))
    filled = np.where(np.isnan(SERIES), 1, SERIES).astype(int)
    assert model.log_likelihood(SERIES) == model.log_likelihood(filled, ~np.isnan(SERIES))


def test_vmap_gives_batches(x64):
    model = HiddenMarkov(**random_parts(0))
    series = np.stack([SERIES, SERIES[::-1]])
    together = jax.vmap(model.log_likelihood)(series)
    np.testing.assert_allclose(together, [model.log_likelihood(one) for one in series])


def test_the_density_of_the_program_is_prior_times_likelihood(x64):
    parts = random_parts(0)
    values = {name: parts[name] for name in ("transition", "emission")}
    settings = {"num_states": NUM_STATES, "num_symbols": NUM_SYMBOLS}
    total, _ = log_density(hidden_markov_model, (SERIES,), settings, values)
    uniform = np.full(NUM_STATES, 1 / NUM_STATES)
    likelihood = HiddenMarkov(uniform, **values).log_likelihood(SERIES)
    # A flat Dirichlet over s probabilities has the density (s - 1)!.
    prior = NUM_STATES * (np.log(2) + np.log(6))
    assert float(total) == pytest.approx(float(likelihood) + prior)


def test_the_program_draws_series_from_the_prior():
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
def test_invalid_series_raise_an_error(series, message):
    with pytest.raises(ValueError, match=message):
        HiddenMarkov(**random_parts(0)).log_likelihood(series)


def test_an_invalid_symbol_in_a_compiled_function_gives_nan():
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
        ("initial", np.ones((1, 1)), r"expected the shape \[k\]"),
        ("transition", np.eye(2), "expected the shape"),
        ("transition", 2 * np.eye(3) - 0.5 * np.roll(np.eye(3), 1), "zero or more"),
        ("emission", np.eye(2), r"expected the shape \[3, s\]"),
    ],
)
def test_invalid_parts_raise_an_error_with_their_name(name, value, message):
    with pytest.raises(ValueError, match=f"{name}: .*{message}"):
        HiddenMarkov(**{**random_parts(0), name: value})


def test_a_forecast_has_at_least_one_step():
    with pytest.raises(ValueError, match="num_steps"):
        HiddenMarkov(**random_parts(0)).forecast(np.array([0, 1]), 0)


@pytest.mark.parametrize("x64_enabled", [False, True])
def test_probabilities_and_logarithms_give_the_same_counts(x64_enabled):
    with jax.enable_x64(x64_enabled):
        model = HiddenMarkov(**random_parts(3))
        functions = (scaled_expected_counts, log_expected_counts)
        both = jax.jit(lambda *arguments: [f(*arguments) for f in functions])
        scaled, in_logs = both(*model._log_probs(SERIES, None))
        tolerance = {"rtol": 1e-10} if x64_enabled else {"rtol": 1e-4, "atol": 1e-6}
        for one, other in zip(jax.tree.leaves(scaled), jax.tree.leaves(in_logs), strict=True):
            np.testing.assert_allclose(one, other, **tolerance)
        assert float(jnp.sum(scaled[1].transitions)) == pytest.approx(len(SERIES) - 1, rel=1e-5)


def test_a_batch_in_which_one_chain_needs_logarithms():
    tiny = 1e-30
    rare = jnp.array([[1.0, tiny], [tiny, 1.0]])
    usual = jnp.array([[0.7, 0.3], [0.2, 0.8]])
    mixed = of_transition(jnp.stack([usual, rare]))
    safe = of_transition(jnp.stack([usual, usual]))
    for one, other in zip(mixed, safe, strict=True):
        np.testing.assert_allclose(one[0], other[0], rtol=1e-5)
    assert float(mixed[0][1]) == pytest.approx(4 * np.log(tiny), rel=1e-6)
    assert jnp.all(jnp.isfinite(mixed[1]))


def test_both_modes_of_differentiation_agree(x64):
    logits = jnp.log(random_parts(2)["transition"])
    parts = random_parts(2)

    def value(logits):
        chain = HiddenMarkov(parts["initial"], jax.nn.softmax(logits), parts["emission"])
        return chain.log_likelihood(SERIES)

    modes = jax.jit(lambda x: (jax.jacfwd(value)(x), jax.grad(value)(x), jax.hessian(value)(x)))
    forward, reverse, hessian = modes(logits)
    np.testing.assert_allclose(forward, reverse, rtol=1e-9)
    hessian = hessian.reshape(logits.size, -1)
    np.testing.assert_allclose(hessian, hessian.T, atol=1e-10)


def test_a_series_of_one_symbol(x64):
    model = HiddenMarkov(**random_parts(0))
    expected = jnp.exp(model.log_initial) @ jnp.exp(model.log_emission[:, 2])
    value, slope = jax.value_and_grad(lambda m: m.log_likelihood(np.array([2])))(model)
    assert float(value) == pytest.approx(float(jnp.log(expected)))
    assert jnp.all(slope.log_transition == 0)
