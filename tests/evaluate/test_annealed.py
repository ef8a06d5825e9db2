"""Annealed importance sampling against closed forms; its weights average to Z exactly."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jax.scipy.stats import norm
from scipy import stats

import relbo
from relbo import evaluate
from relbo.evaluate import annealing
from relbo.evaluate.annealed_path import draw_noise, move, path_between
from targets import TARGETS

GAUSSIAN = TARGETS["gaussian"]
PRIOR = relbo.StandardNormal(jnp.zeros(2))
OBSERVED = jnp.array([1.3, -0.4])
NOISE = 0.5
SMALL = evaluate.AnnealingSettings(num_temperatures=40, num_chains=32, num_leapfrogs=3)


class Decoder(eqx.Module):
    """Probabilistic PCA: the marginal is a normal with covariance W W' + s^2 I."""

    weights: jax.Array

    def __call__(self, z, x):
        return jnp.sum(norm.logpdf(x, self.weights @ z, NOISE))


class Named(relbo.AbstractBase):
    """A normal without whitened coordinates, so that the path is walked as it is."""

    has_density = True

    @property
    def centre(self):
        return {"a": jnp.zeros(()), "b": jnp.zeros(())}

    def sample(self, key):
        a, b = 0.5 + 1.3 * jr.normal(key, (2,))
        position = {"a": a, "b": b}
        return position, self.log_prob(position)

    def log_prob(self, position):
        return norm.logpdf(position["a"], 0.5, 1.3) + norm.logpdf(position["b"], 0.5, 1.3)


def decoder(num_observed=4, seed=0):
    return Decoder(jr.normal(jr.key(seed), (num_observed, 2)))


def marginal(data, weights):
    covariance = weights @ weights.T + NOISE**2 * jnp.eye(weights.shape[0])
    return stats.multivariate_normal(cov=covariance).logpdf(data)


def assert_mean_weight(log_weights, log_evidence):
    """The weights average to the evidence, however few the temperatures."""
    ratios = np.exp(np.asarray(log_weights, np.float64) - log_evidence)
    error = ratios.std() / np.sqrt(ratios.size)
    assert abs(ratios.mean() - 1.0) < 4 * error
    assert error < 0.1


def test_move_leaves_the_tempered_density_as_it_is():
    """Halfway between two normals lies a normal; its draws are still so after a move."""
    base = relbo.StandardNormal(jnp.zeros(1))
    path = path_between(base, lambda z: jnp.sum(norm.logpdf(z, 1.0, 0.5)), whiten=True)
    number, precision = 20_000, 0.5 + 0.5 / 0.25
    loc, scale = 0.5 * 1.0 / 0.25 / precision, precision**-0.5
    positions = loc + scale * jr.normal(jr.key(0), (number, 1))
    noise = draw_noise(jr.key(1), positions)

    @jax.jit
    def moved(positions, noise):
        points = jax.vmap(path.at)(positions)
        half, step_size = jnp.array(0.5), jnp.ones(1)
        one = lambda point, noise: move(path, point, noise, half, step_size, 2)
        return jax.vmap(one)(points, noise)

    points, accepted = moved(positions, noise)
    # The steps are long enough for the correction to matter.
    assert 0.3 < jnp.mean(accepted) < 0.9
    after = (np.asarray(points.position[:, 0], np.float64) - loc) / scale
    assert abs(after.mean()) < 4 / np.sqrt(number)
    assert abs(after.var() - 1.0) < 4 * np.sqrt(2 / number)
    assert np.corrcoef(after, np.asarray(positions[:, 0]))[0, 1] < 0.9
    # What is carried belongs to where the chain is.
    np.testing.assert_allclose(points.target, norm.logpdf(points.position[:, 0], 1.0, 0.5))


@pytest.mark.parametrize("base", [GAUSSIAN.base, Named()], ids=["whitened", "as it is"])
def test_weights_average_to_the_evidence_with_few_temperatures(base):
    def logdensity_fn(z):
        return GAUSSIAN.logdensity_fn(jnp.stack([z["a"], z["b"]]) if isinstance(z, dict) else z)

    settings = evaluate.AnnealingSettings(3, 4_096, 2, 0.8)
    path = path_between(base, logdensity_fn, whiten=True)
    run = jax.jit(lambda key: annealing.anneal(key, path, settings))(jr.key(0))
    assert_mean_weight(run.forward, GAUSSIAN.log_evidence)


@pytest.mark.parametrize("name", ["gaussian", "mixture"])
def test_estimate_of_a_known_evidence(name):
    target = TARGETS[name]
    estimate = evaluate.annealed_importance(
        jr.key(1), target.logdensity_fn, PRIOR, settings=evaluate.AnnealingSettings(100)
    )
    assert abs(estimate.value - target.log_evidence) < 4 * estimate.stderr
    assert estimate.stderr < 0.15
    assert estimate.estimator == "annealed importance sampling"
    assert (estimate.num_draws, estimate.valid_bound) == (64, True)


def test_far_and_narrow_target_is_found():
    """The schedule and the scales come from the pilots: nothing was tuned to this target."""
    loc, scale = jnp.array([6.0, -3.0]), jnp.array([0.05, 3.0])
    logdensity_fn = lambda z: jnp.sum(norm.logpdf(z, loc, scale)) - 5.0
    estimate = evaluate.annealed_importance(
        jr.key(0), logdensity_fn, PRIOR, settings=evaluate.AnnealingSettings(600, 32)
    )
    assert abs(estimate.value + 5.0) < 4 * estimate.stderr
    assert estimate.stderr < 0.3


@pytest.mark.parametrize("is_pilot", [True, False])
def test_only_a_pilot_looks_at_its_chains(is_pilot):
    path = path_between(PRIOR, GAUSSIAN.logdensity_fn, whiten=True)
    schedule = annealing._first_schedule(path, SMALL)
    phase = annealing.AnnealingPhase(jr.key(0), 40, 40, jnp.array(is_pilot), jnp.array(True))
    run = lambda phase: annealing._walk(path, SMALL, schedule, phase, None)
    walk = jax.jit(run)(phase._replace(num_steps=jnp.array(40)))
    stays = np.array_equal(walk.schedule.step_sizes, schedule.step_sizes)
    assert stays == (not is_pilot)
    assert (walk.log_step_change == 0) == (not is_pilot)


def test_weighted_walk_steps_as_the_schedule_says():
    """With steps of no size it stays where it began, however wide its chains are spread."""
    path = path_between(PRIOR, GAUSSIAN.logdensity_fn, whiten=True)
    schedule = annealing._first_schedule(path, SMALL)
    phase = annealing.AnnealingPhase(
        jr.key(0), jnp.array(40), jnp.array(40), jnp.array(False), jnp.array(True)
    )
    run = jax.jit(lambda schedule: annealing._walk(path, SMALL, schedule, phase, None))
    moved = run(schedule).points
    stayed = run(schedule._replace(scales=jnp.full_like(schedule.scales, 1e-9))).points
    start = jax.vmap(path.draw)(jr.split(jr.split(jr.key(0))[0], 32))
    np.testing.assert_allclose(stayed.position, start, atol=1e-5)
    assert jnp.mean(jnp.abs(moved.position - start)) > 0.3


def test_schedule_ends_at_the_target_and_spreads_the_length_evenly():
    betas = jnp.linspace(0.0, 1.0, 41) ** 2
    speeds = 1.0 / jnp.sqrt(betas + 0.01)
    lengths = np.asarray(annealing._lengths(betas, speeds))
    assert lengths[0] == 0.0
    assert lengths[-1] == pytest.approx(1.0)
    exact = (jnp.sqrt(betas + 0.01) - 0.1) / (jnp.sqrt(1.01) - 0.1)
    np.testing.assert_allclose(lengths, 0.9 * exact + 0.1 * betas, atol=0.01)


def test_interpolation_agrees_with_numpy():
    known_at = np.array([0.0, 0.1, 0.1, 0.5, 1.0, 1.0])
    known = np.array([3.0, 1.0, 1.0, 2.0, 7.0, 7.0])
    at = np.linspace(-0.1, 1.1, 37)
    found = annealing._interpolate(
        jnp.asarray(at), jnp.asarray(known_at), jnp.stack([known, -known], axis=1)
    )
    expected = np.interp(at, known_at, known)
    np.testing.assert_allclose(found, np.stack([expected, -expected], axis=1), rtol=1e-5)


def test_non_finite_densities_have_the_weight_zero():
    """Half of the base's draws lie where the target is zero or no number."""
    logdensity_fn = lambda z: jnp.where(
        z[0] > 0, norm.logpdf(z[0]) + norm.logpdf(z[1]), jnp.where(z[1] > 0, -jnp.inf, jnp.nan)
    )
    settings = evaluate.AnnealingSettings(3, 4_096, 2, 0.8)
    path = path_between(PRIOR, logdensity_fn, whiten=True)
    run = jax.jit(lambda key: annealing.anneal(key, path, settings))(jr.key(0))
    estimate = evaluate.importance_estimate(run.forward)
    assert abs(estimate.value - np.log(0.5)) < 4 * estimate.stderr


def test_spread_is_a_standard_deviation_that_outliers_do_not_move():
    values = 3.0 * jr.normal(jr.key(0), (1_000, 2))
    values = values.at[:20, 1].set(-jnp.inf).at[20:40, 1].set(1e9)
    np.testing.assert_allclose(annealing._spread(values), 3.0, rtol=0.2)


def test_estimates_by_point_agree_with_the_marginal():
    model = evaluate.LatentVariableModel(decoder())
    data = jr.normal(jr.key(1), (10, 4))
    settings = evaluate.AnnealingSettings(200, 16)
    estimate = evaluate.annealed_pointwise(
        jr.key(0), model, data, PRIOR, settings=settings, batch_size=4
    )
    exact = marginal(data, model.loglikelihood_fn.weights)
    difference = estimate.values - exact
    assert np.all(np.abs(difference) < 5 * estimate.stderrs)
    assert abs(difference.mean()) < 4 * np.sqrt(np.square(estimate.stderrs).sum()) / 10
    assert estimate.stderrs.mean() < 0.3
    assert estimate.mean().num_draws == 16


def posterior_draw(key):
    """An exact draw of z given the data that are always observed: z ~ N(0, 1), x ~ N(z, s)."""
    variance = 1.0 / (1.0 + NOISE**-2)
    loc = variance * OBSERVED / NOISE**2
    return loc + jnp.sqrt(variance) * jr.normal(key, (2,)), OBSERVED


def joint(z, x):
    return jnp.sum(norm.logpdf(z)) + jnp.sum(norm.logpdf(x, z, NOISE))


EVIDENCE = float(jnp.sum(norm.logpdf(OBSERVED, 0.0, np.sqrt(1.0 + NOISE**2))))


def test_both_directions_have_their_means_with_few_temperatures():
    """Forward weights average to Z, reverse ones to 1 / Z, given exact posterior draws."""
    check = evaluate.bidirectional(
        jr.key(0),
        posterior_draw,
        joint,
        PRIOR,
        num_simulations=512,
        settings=evaluate.AnnealingSettings(4, 8, 2),
        batch_size=512,
    )
    assert_mean_weight(check.lower.values, EVIDENCE)
    assert_mean_weight(-check.upper.values, -EVIDENCE)
    assert check.lower.mean().value < EVIDENCE < check.upper.mean().value
    assert check.gap.value > 4 * check.gap.stderr
    assert (check.lower.valid_bound, check.upper.valid_bound) == (True, False)


@pytest.mark.slow
def test_gap_closes_with_more_temperatures():
    check = evaluate.bidirectional(
        jr.key(0), posterior_draw, joint, PRIOR, num_simulations=8, batch_size=8, settings=SMALL
    )
    assert abs(check.gap.value) < 0.1
    np.testing.assert_allclose(check.lower.values, EVIDENCE, atol=0.3)
    np.testing.assert_allclose(check.upper.values, EVIDENCE, atol=0.3)


def test_other_weights_of_the_same_shape_are_not_compiled_again():
    traced = []

    class Counting(eqx.Module):
        weights: jax.Array

        def __call__(self, z, x):
            traced.append(1)
            return jnp.sum(norm.logpdf(x, self.weights @ z, NOISE))

    data, counts = jnp.ones((2, 4)), []
    for seed in range(2):
        model = evaluate.LatentVariableModel(Counting(decoder(seed=seed).weights))
        evaluate.annealed_pointwise(jr.key(seed), model, data + seed, PRIOR, settings=SMALL)
        counts.append(len(traced))
    assert counts[0] == counts[1] > 0


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="num_temperatures: expected an integer of 1 or more"):
        evaluate.AnnealingSettings(num_temperatures=0)
    with pytest.raises(ValueError, match="num_chains: expected an integer of 4 or more"):
        evaluate.AnnealingSettings(num_chains=3)
    with pytest.raises(ValueError, match="num_leapfrogs: expected an integer of 1 or more"):
        evaluate.AnnealingSettings(num_leapfrogs=0)
    with pytest.raises(ValueError, match="target_acceptance: expected a number between"):
        evaluate.AnnealingSettings(target_acceptance=1.0)
    with pytest.raises(ValueError, match="Dirac has no density"):
        evaluate.annealed_importance(
            jr.key(0), GAUSSIAN.logdensity_fn, relbo.Dirac(jnp.zeros(2))
        )
    with pytest.raises(ValueError, match="num_simulations: expected an integer of 2 or more"):
        evaluate.bidirectional(jr.key(0), posterior_draw, joint, PRIOR, num_simulations=1)
