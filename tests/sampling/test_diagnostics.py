import numpy as np
import pytest

from relbo.sampling.diagnostics import (
    effective_sample_size,
    nested_rhat,
    rejected_in_tails,
    stuck_chains,
)


def test_chains_of_one_law_agree_and_displaced_superchains_do_not():
    rng = np.random.default_rng(0)
    draws = rng.normal(size=(64, 20, 3))
    assert np.all(nested_rhat(draws, 8) < 1.01)
    draws[:8, :, 1] += 1.0  # one superchain still remembers its start
    rhat = nested_rhat(draws, 8)
    assert rhat[1] > 1.03
    assert np.all(rhat[[0, 2]] < 1.01)


def test_nested_rhat_of_one_chain_a_superchain_is_the_classic_one():
    draws = np.random.default_rng(1).normal(size=(8, 50)) + np.arange(8)[:, None]
    between, within = draws.mean(1).var(ddof=1), draws.var(1, ddof=1).mean()
    np.testing.assert_allclose(nested_rhat(draws, 8), np.sqrt(1 + between / within))


def test_nested_rhat_of_constants_is_one():
    assert nested_rhat(np.ones((8, 5)), 4) == 1.0


def test_superchains_must_divide_the_chains():
    with pytest.raises(ValueError, match="num_superchains"):
        nested_rhat(np.ones((8, 5)), 3)


def test_the_effective_sample_size_is_that_of_the_worse_of_mean_and_variance():
    rng = np.random.default_rng(2)
    independent = rng.normal(size=(16, 200))
    assert 0.7 * 3200 < effective_sample_size(independent) < 1.5 * 3200
    # The sign is new each time, the size hardly changes: means are fine, variances are not.
    size = np.exp(np.cumsum(0.05 * rng.normal(size=(16, 200)), 1))
    assert effective_sample_size(independent * size) < 800


def test_draws_that_avoid_each_other_have_a_bounded_positive_worth():
    swings = np.where(np.arange(50) % 2, 1.0, -1.0) * np.ones((8, 1))
    noisy = swings + 0.1 * np.random.default_rng(4).normal(size=(8, 50))
    assert 0 < effective_sample_size(noisy) <= 400 * np.log10(400)


def test_chains_that_do_not_move_or_sit_apart_are_marked():
    rng = np.random.default_rng(3)
    acceptance = rng.uniform(0.6, 1.0, size=(10, 30))
    logdensity = -rng.chisquare(5, size=(10, 30))
    assert not stuck_chains(acceptance, logdensity).any()
    acceptance[2] = 0.0
    logdensity[5] -= 1000.0
    assert np.flatnonzero(stuck_chains(acceptance, logdensity)).tolist() == [2, 5]


@pytest.mark.parametrize("side", [-1, 1])
def test_steps_that_are_rejected_in_a_tail_are_counted(side):
    rng = np.random.default_rng(6)
    draws = rng.normal(size=(64, 100, 3))
    acceptance = rng.uniform(0.5, 1.0, size=(64, 100))
    assert np.all(rejected_in_tails(draws, acceptance) == 0.0)
    # Half of the steps that start in a tail of the second coordinate.
    starts = (side * draws[:, :-1, 1] > 1.8) & (rng.uniform(size=(64, 99)) < 0.5)
    acceptance[:, 1:][starts] = 0.0
    share = rejected_in_tails(draws, acceptance)
    # Of about 190 steps, less two standard errors of 0.036.
    np.testing.assert_allclose(share[1], 0.5 - 0.072, atol=0.12)
    assert np.all(share[[0, 2]] < 0.1)
