"""Learnable positive numbers and schedules."""

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

import relbo
from relbo import PerStep, Positive


@pytest.mark.parametrize("upper", [None, 2.0])
@pytest.mark.parametrize("value", [0.3, jnp.array([0.1, 1.9]), {"a": jnp.array([1.0])}])
def test_values_survive_a_round_trip(value, upper):
    parameter = Positive(value, upper=upper)
    assert_same(parameter.value, value)
    assert_same(parameter.with_value(parameter.value).value, value)
    assert_same(parameter.known(parameter.value).value, value)


def assert_same(found, wanted):
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        found, wanted = found["a"], wanted["a"]
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("raw", [-50.0, 0.0, 50.0])
def test_no_raw_number_leaves_the_interval(raw):
    for upper, end in [(None, np.inf), (1.0, 1.0)]:
        parameter = Positive(0.5, upper=upper)
        moved = eqx.tree_at(lambda p: p.raw, parameter, jnp.asarray(raw))
        assert 0 < moved.value <= end


def test_length_of_a_schedule():
    assert Positive(PerStep(jnp.ones(4))).num_steps == 4
    assert Positive(1.0).num_steps is None


def test_cap_keeps_the_value():
    capped = Positive(PerStep(jnp.array([0.1, 0.3]))).with_upper(0.5)
    np.testing.assert_allclose(capped.value, [0.1, 0.3], rtol=1e-5)
    assert capped.per_step
    with pytest.raises(ValueError, match="expected numbers in"):
        Positive(0.3).with_upper(0.2)


def test_an_empty_value_is_refused():
    with pytest.raises(ValueError, match="step_size: expected a number"):
        relbo.SGD({})


def test_temperatures_rise_to_one():
    annealing = relbo.Annealing(5)
    betas = annealing.inverse_temperatures
    assert jnp.all(jnp.diff(betas) > 0)
    assert betas[-1] == 1.0
    assert betas[0] > 0
