"""Steps taken together against steps taken one by one."""

import jax
import numpy as np
import pytest
from test_kalman import random_parts, random_series

from relbo.models import LinearGaussian, _spans


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("most", [1, 4])
def test_how_many_numbers_a_span_has_changes_nothing(x64, monkeypatch, seed, most):
    series = random_series(seed)
    model = LinearGaussian(**random_parts(seed))
    usual = float(model.log_likelihood(series))
    monkeypatch.setattr(_spans, "MOST_NUMBERS", {"float64": most})
    jax.clear_caches()
    np.testing.assert_allclose(model.log_likelihood(series), usual, rtol=1e-10)


@pytest.mark.parametrize("length", [1, 7, 16, 17])
def test_series_need_not_fill_the_last_span(x64, length):
    series = random_series(0)[:length]
    parts = random_parts(0)
    model = LinearGaussian(**parts)
    np.testing.assert_allclose(
        model.log_likelihood(series), model.filter(series).log_likelihood, rtol=1e-9
    )
