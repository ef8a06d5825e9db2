"""How long the chains run."""

import numpy as np
import pytest
from scipy.signal import lfilter

from relbo.sampling import effective_sample_size
from relbo.sampling.chain_draws import ChainDraws
from relbo.sampling.rounds import _effective

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
