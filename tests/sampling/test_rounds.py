"""How long the chains run."""

from types import SimpleNamespace

import numpy as np
import pytest
from scipy.signal import lfilter

from relbo.sampling import effective_sample_size
from relbo.sampling.chain_draws import ChainDraws
from relbo.sampling.ensemble import Ensemble
from relbo.sampling.hamiltonian import METHODS
from relbo.sampling.rounds import _effective, sample_until_good

NUM_CHAINS, LENGTH, SIZE = 16, 200, 100


@pytest.mark.parametrize("slow", [3, 77])
def test_the_slowest_of_many_coordinates_counts(slow):
    rng = np.random.default_rng(slow)
    draws = rng.normal(size=(LENGTH, NUM_CHAINS, SIZE))
    # An autoregression; the signs of another coordinate are independent, its size is not.
    draws[..., slow] = lfilter([0.3], [1.0, -0.95], draws[..., slow], axis=0)
    draws[..., slow - 1] = np.exp(lfilter([0.3], [1.0, -0.97], draws[..., slow - 1], axis=0))
    draws[..., slow - 1] *= rng.choice([-1.0, 1.0], (LENGTH, NUM_CHAINS))
    values = np.zeros((LENGTH, NUM_CHAINS))
    chains = ChainDraws(draws, draws, *[values] * 3, values > 0, values.astype(int), 0.1, 4)
    by_coordinate = effective_sample_size(np.swapaxes(draws, 0, 1))
    assert by_coordinate.min() < 0.2 * np.median(by_coordinate)
    assert _effective(chains) == pytest.approx(by_coordinate.min())


class SteadyChains(Ensemble):
    """Independent normal draws of which a share of the steps from one tail is rejected."""

    num_chains = num_superchains = NUM_CHAINS
    has_narrow_places = False

    def __init__(self, rejected):
        self.rng, self.rejected = np.random.default_rng(0), rejected
        self.method = METHODS["hmc"]
        self.problem = SimpleNamespace(coordinate_names=lambda: ["scale", "child"])
        self.num_rounds = 1

    def sample(self, length):
        draws = self.rng.normal(size=(length, NUM_CHAINS, 2))
        from_tail = np.roll(draws[..., 0], 1, 0) < -1.7
        is_rejected = from_tail & (self.rng.uniform(size=from_tail.shape) < self.rejected)
        parts = (draws, -draws, -0.5 * np.sum(draws**2, 2), np.where(is_rejected, 0.0, 0.9))
        zeros = np.zeros(from_tail.shape)
        return ChainDraws(*parts, zeros, zeros > 0, zeros.astype(int), 0.5, NUM_CHAINS)

    def rewhiten(self, _):
        self.num_rounds += 1

    def tune_step(self):
        pass

    def is_late(self):
        return False


def test_two_runs_that_agree_are_enough_where_some_steps_are_rejected():
    chains = SteadyChains(rejected=0.24)
    draws, found = sample_until_good(chains, 8000)
    assert not found
    assert chains.num_rounds == 2
    assert chains.method.target_acceptance > METHODS["hmc"].target_acceptance
    assert draws.logdensity.size == 8000


def test_runs_that_agree_are_not_enough_where_most_steps_are_rejected():
    _, found = sample_until_good(SteadyChains(rejected=0.6), 8000)
    assert "too long for a narrow place" in found[-1].text
