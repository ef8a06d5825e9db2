"""Separate modes: found, sampled one by one, weighed by their evidence."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.distributions import constraints

import relbo
from relbo.sampling.chain_draws import ChainDraws
from relbo.sampling.evidence import LogWeights
from relbo.sampling.modes import (
    Mode,
    WhiteningNormal,
    _allotted,
    are_separate,
    combine,
    mode_weights,
    nearest_mode,
    total_weights,
    with_own_weights,
)

LEFT, RIGHT = (WhiteningNormal(np.full(2, side), np.eye(2)) for side in (-6.0, 6.0))


def two_normals():
    """Weights 0.3 and 0.7, twelve standard deviations apart; the evidence is 1."""
    x = numpyro.sample("x", dist.ImproperUniform(constraints.real_vector, (), (2,)))
    parts = jnp.stack(
        [
            jnp.log(w) + jnp.sum(dist.Normal(m, 1.0).log_prob(x))
            for w, m in ((0.3, -6), (0.7, 6))
        ]
    )
    numpyro.factor("mixture", jax.nn.logsumexp(parts))


def infer(model, seed, *args, **options):
    return relbo.infer(jr.key(seed), model, args, progress=False, **options)


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))]
)
def test_two_far_normals_have_their_weights(seed):
    posterior = infer(two_normals, seed, num_draws=1600)
    check = posterior.check()
    assert check.trustworthy
    assert check.evidence_is_known
    assert "2 separate modes" in str(check)
    right = posterior.draws["x"][:, 0] > 0
    # The error of the shares, from 640 weights each, is about 0.002.
    assert abs(right.mean() - 0.7) < 0.01
    for side, mean in ((right, 6.0), (~right, -6.0)):
        draws = posterior.draws["x"][side]
        np.testing.assert_allclose(draws.mean(0), mean, atol=5 / len(draws) ** 0.5)
        np.testing.assert_allclose(draws.std(0), 1.0, atol=5 / len(draws) ** 0.5)
    errors = [posterior.log_weights.lower[1], posterior.log_weights.upper[1]]
    np.testing.assert_allclose(posterior.log_evidence, 0.0, atol=4 * errors[0])
    np.testing.assert_allclose(posterior.log_evidence_upper, 0.0, atol=4 * errors[1] + 0.02)


def one_factor(y):
    """Changing all signs changes nothing."""
    standard = lambda size: dist.Normal(0.0, 1.0).expand([size]).to_event(1)
    loading = numpyro.sample("loading", standard(y.shape[1]))
    score = numpyro.sample("score", standard(y.shape[0]))
    numpyro.sample("y", dist.Normal(score[:, None] * loading[None], 0.5), obs=y)


@pytest.mark.parametrize("people", [6, pytest.param(30, marks=pytest.mark.slow)])
def test_mirrored_factors_have_half_of_the_mass_each(people):
    rng = np.random.default_rng(1)
    y = np.outer(rng.normal(size=people), [1.0, -0.8, 1.3])
    posterior = infer(one_factor, 0, y + 0.5 * rng.normal(size=y.shape))
    assert posterior.check().trustworthy
    share = np.mean(posterior.draws["loading"][:, 0] > 0)
    # A small part of the mass is on the other side of zero, the same for both signs.
    assert abs(share - 0.5) < 0.05
    for draws in posterior.draws.values():
        assert np.all(np.abs(draws.mean(0)) < 0.1 * draws.std(0))


def bimodal_but_connected():
    x = numpyro.sample("x", dist.ImproperUniform(constraints.real, (), ()))
    parts = [dist.Normal(m, 1.0).log_prob(x) for m in (-2.0, 2.0)]
    numpyro.factor("mixture", jnp.logaddexp(*parts) - jnp.log(2.0))


def test_modes_that_chains_move_between_are_not_separated():
    posterior = infer(bimodal_but_connected, 0)
    assert "separate modes" not in str(posterior.check())
    assert abs(np.mean(posterior.draws["x"] > 0) - 0.5) < 0.06
    np.testing.assert_allclose(posterior.draws["x"].std(), 5**0.5, rtol=0.05)


def test_a_mode_that_no_start_reaches_is_not_claimed():
    """Half of the mass lies a thousand standard deviations away."""

    def model():
        x = numpyro.sample("x", dist.ImproperUniform(constraints.real_vector, (), (2,)))
        parts = [jnp.sum(dist.Normal(m, 1.0).log_prob(x)) for m in (0.0, 1000.0)]
        numpyro.factor("mixture", jnp.logaddexp(*parts) - jnp.log(2.0))

    posterior = infer(model, 0, num_draws=1600)
    assert "separate modes" not in str(posterior.check())
    assert np.all(np.abs(posterior.draws["x"]) < 10)
    # The evidence is that of the mode found.
    np.testing.assert_allclose(posterior.log_evidence, np.log(0.5), atol=0.05)


def chains_in(rng, *places, length=20):
    """Chains that stay where they are, one for each place."""
    centres = np.stack(places)[None]
    draws = centres + rng.normal(size=(length, len(places), 2))
    values = np.zeros(draws.shape[:2])
    return ChainDraws(
        draws,
        -draws,
        values,
        values + 0.8,
        values,
        values > 0,
        values.astype(int),
        0.5,
        len(places),
    )


def test_points_belong_to_the_mode_that_explains_them():
    points = np.array([[-5.0, -7.0], [4.0, 6.0], [7.0, 7.0]])
    np.testing.assert_array_equal(nearest_mode(points, [LEFT, RIGHT]), [0, 1, 1])
    narrow = WhiteningNormal(np.full(2, 6.0), 0.01 * np.eye(2))
    wide = WhiteningNormal(np.zeros(2), 3.0 * np.eye(2))
    np.testing.assert_array_equal(nearest_mode(points, [narrow, wide]), [1, 1, 1])
    np.testing.assert_array_equal(nearest_mode(narrow.loc[None] + 0.01, [narrow, wide]), [0])


def test_modes_are_separate_if_no_chain_moves_between_them():
    rng = np.random.default_rng(0)
    apart = chains_in(rng, LEFT.loc, RIGHT.loc)
    assert are_separate(apart, [LEFT, RIGHT])
    moving = apart._replace(draws=apart.draws.copy())
    moving.draws[10:, 0] *= -1
    assert not are_separate(moving, [LEFT, RIGHT])
    # All chains went to one mode: the other is none.
    assert not are_separate(chains_in(rng, LEFT.loc, LEFT.loc), [LEFT, RIGHT])


@pytest.mark.parametrize("seed", range(3))
def test_draws_are_allotted_by_the_shares(seed):
    shares = np.array([0.62, 0.31, 0.07])
    which = _allotted(np.random.default_rng(seed), shares, 50, 64)
    assert which.shape == (50, 64)
    counted = [np.mean(which == k) for k in range(3)]
    np.testing.assert_allclose(counted, shares, atol=1 / which.size)
    by_chain = [np.mean(which == k, 0) for k in range(3)]
    np.testing.assert_allclose(by_chain, np.tile(shares[:, None], 64), atol=1.01 / 50)
    # In each chain the modes come in random order.
    assert np.std(which[:25].mean(0)) > 0.01


def made_modes(rng, masses, spread=0.5, number=640):
    """Modes with known masses, and weights of a known coefficient of variation."""
    noise = lambda: rng.normal(-0.5 * spread**2, spread, number)
    return [
        Mode(
            normal,
            chains_in(rng, *4 * [normal.loc]),
            np.tile(normal.loc, (number, 1)),
            LogWeights(np.log(m) + noise(), np.log(m) - noise()),
            [],
        )
        for m, normal in zip(masses, (LEFT, RIGHT), strict=True)
    ]


def test_errors_of_the_weights_are_those_of_repetitions():
    rng = np.random.default_rng(1)
    found = [mode_weights(made_modes(rng, (3e-5, 7e-5))) for _ in range(200)]
    shares, errors = map(np.array, zip(*found, strict=True))
    np.testing.assert_array_less(
        np.abs(shares.mean(0) - [0.3, 0.7]), 4 * shares.std(0) / 200**0.5
    )
    # The standard error of a standard deviation of 200 values is 5 %.
    np.testing.assert_allclose(errors.mean(0), shares.std(0), rtol=0.2)


def test_evidence_of_modes_adds_up():
    modes = made_modes(np.random.default_rng(2), (3e-5, 7e-5))
    total = total_weights(modes)
    for value, stderr in (total.lower, total.upper):
        np.testing.assert_allclose(value, np.log(1e-4), atol=4 * stderr)


def test_uncertain_weights_are_fatal_and_findings_name_the_mode():
    from relbo.sampling.findings import Finding

    rng = np.random.default_rng(3)
    modes = made_modes(rng, (0.3, 0.7))
    modes[1] = modes[1]._replace(findings=[Finding("Something.")])
    chains, (about_modes, about_one) = combine(rng, modes)
    assert chains.draws.shape == (20, 4, 2)
    assert about_one.text == "Mode 2: Something."
    assert not about_modes.is_fatal
    _, (uncertain, *_) = combine(rng, made_modes(rng, (0.3, 0.7), spread=3.0, number=50))
    assert uncertain.is_fatal


def test_weights_of_paths_that_ended_in_another_mode_do_not_count():
    one, other = made_modes(np.random.default_rng(4), (0.3, 0.7))
    one = one._replace(ends=np.where(np.arange(640)[:, None] < 160, RIGHT.loc, LEFT.loc))
    own, same = with_own_weights([one, other])
    np.testing.assert_array_equal(np.isfinite(own.weights.forward), np.arange(640) >= 160)
    np.testing.assert_array_equal(same.weights.forward, other.weights.forward)


def test_weights_that_differ_from_both_sides_are_uncertain():
    rng = np.random.default_rng(5)
    modes = made_modes(rng, (0.5, 0.5), spread=0.1)
    _, errors = mode_weights(modes)
    assert np.all(errors < 0.02)
    low = modes[0].weights
    modes[0] = modes[0]._replace(weights=low._replace(forward=low.forward - 1.0))
    shares, errors = mode_weights(modes)
    # By one side 0.27, by the other 0.5: a third of the difference, less its own errors.
    assert np.all(errors > 0.05)
    assert 0.27 < shares[0] < 0.5


def spike_in_slab():
    x = numpyro.sample("x", dist.ImproperUniform(constraints.real_vector, (), (2,)))
    parts = [jnp.sum(dist.Normal(0.0, scale).log_prob(x)) for scale in (1.0, 0.02)]
    numpyro.factor("mixture", jnp.logaddexp(*parts) - jnp.log(2.0))


def test_a_spike_has_its_share_and_chains_stay_in_their_mode():
    posterior = infer(spike_in_slab, 0)
    check = posterior.check()
    assert check.trustworthy
    assert "2 separate modes" in str(check)
    radius = np.linalg.norm(posterior.draws["x"], axis=1)
    # The slab has 0.5 % of its mass within 0.1, and the spike all of it.
    assert abs(np.mean(radius < 0.1) - 0.5025) < 0.03
    np.testing.assert_allclose(posterior.draws["x"].std(), 0.5**0.5, rtol=0.05)


def test_modes_without_a_weight_are_never_trusted():
    rng = np.random.default_rng(6)
    nothing = LogWeights(np.full(640, -np.inf), np.full(640, np.inf))
    modes = [mode._replace(weights=nothing) for mode in made_modes(rng, (0.3, 0.7))]
    shares, errors = mode_weights(modes)
    np.testing.assert_array_equal(shares, 0.5)
    assert not np.any(errors <= 1.0)
    _, (about_modes, *_) = combine(rng, modes)
    assert about_modes.is_fatal
