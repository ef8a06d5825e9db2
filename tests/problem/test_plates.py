"""Models with subsampled plates, read with all of their data."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer.util import log_density

from relbo.problem import model_from_logdensity, read
from relbo.problem.plates import (
    FixedMinibatch,
    ModelWithPlates,
    stratified_indices,
    subsampled_plates,
    with_stratified_minibatches,
    with_whole_data,
)

Y = np.linspace(-1.0, 2.0, 12)


def indexed(y, batch_size=None):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", len(y), subsample_size=batch_size) as rows:
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=jnp.asarray(y)[rows])


def subsampled(y, batch_size):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", len(y), subsample_size=batch_size):
        batch = numpyro.subsample(y, event_dim=0)
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=batch)


def given_batch(batch):
    mean = numpyro.sample("mean", dist.Normal(0.0, 2.0))
    with numpyro.plate("rows", len(Y), subsample_size=len(batch)):
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=batch)


@pytest.mark.parametrize("model", [indexed, subsampled])
def test_the_density_is_that_of_all_the_data(model):
    assert subsampled_plates(model, (Y, 4), None) == ["rows"]
    whole = read(with_whole_data(model, (Y, 4), None, ["rows"]), (Y, 4))
    plain = read(indexed, (Y,))
    for mean in (-0.5, 1.5):
        point = jnp.array([mean])
        np.testing.assert_allclose(whole.logdensity(point), plain.logdensity(point), rtol=1e-6)


def test_models_without_subsampling_have_no_such_plates():
    assert subsampled_plates(indexed, (Y,), None) == []
    assert subsampled_plates(indexed, (Y, len(Y)), None) == []
    density = model_from_logdensity(lambda z: -jnp.sum(z**2), jnp.zeros(2))
    assert subsampled_plates(density, (), None) == []


def test_what_is_wrong_otherwise_is_not_reported_here():
    def with_parameter():
        numpyro.sample("x", dist.Normal(numpyro.param("loc", 0.0), 1.0))

    assert subsampled_plates(with_parameter, (), None) == []


@pytest.mark.parametrize("size", [1, 4])
def test_a_minibatch_in_the_arguments_is_refused(size):
    """One row would be broadcast to all rows silently."""
    assert subsampled_plates(given_batch, (Y[:size],), None) == ["rows"]
    with pytest.raises(ValueError, match=r"^args: the plates \['rows'\].*pass all rows"):
        with_whole_data(given_batch, (Y[:size],), None, ["rows"])


def test_two_readings_are_equal_so_that_nothing_is_compiled_again():
    one, other = (with_whole_data(indexed, (Y, 4), None, ["rows"]) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert with_stratified_minibatches(indexed) is with_stratified_minibatches(indexed)


def test_stratified_indices_are_different_and_uniform():
    draw = jax.jit(jax.vmap(lambda key: stratified_indices(10, 4, key)))
    indices = np.sort(draw(jr.split(jr.key(0), 20_000)), axis=1)
    assert np.all(np.diff(indices, axis=1) > 0)
    counts = np.bincount(indices.ravel(), minlength=10)
    expected, error = 20_000 * 0.4, (20_000 * 0.4 * 0.6) ** 0.5
    assert np.all(np.abs(counts - expected) < 4.5 * error)


def test_stratified_minibatches_have_the_expectation_of_the_whole():
    model = with_stratified_minibatches(indexed)

    def log_joint(key):
        return log_density(handlers.seed(model, key), (Y, 4), {}, {"mean": 0.3})[0]

    values = np.asarray(jax.jit(jax.vmap(log_joint))(jr.split(jr.key(0), 4_000)), float)
    whole = log_density(indexed, (Y,), {}, {"mean": 0.3})[0]
    assert values.std() > 0.1
    assert abs(values.mean() - whole) < 4 * values.std() / 4_000**0.5


def test_a_fixed_minibatch_has_a_density_of_its_own_on_the_scale_of_the_whole():
    constant, point = np.ones(12), jnp.array([0.3])
    fixed = read(ModelWithPlates(indexed, FixedMinibatch), (constant, 4))
    expected = read(indexed, (constant,)).logdensity(point)
    np.testing.assert_allclose(fixed.logdensity(point), expected, rtol=1e-5)


def test_a_fixed_minibatch_is_large_if_the_model_can_take_it():
    model = ModelWithPlates(with_stratified_minibatches(indexed), FixedMinibatch)
    whole = read(indexed, (Y,))
    point = jnp.array([0.3])
    np.testing.assert_allclose(
        read(model, (Y, 4)).logdensity(point), whole.logdensity(point), rtol=1e-5
    )
