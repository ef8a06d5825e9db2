"""Models with subsampled plates, read with all of their data."""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

from relbo.problem import model_from_logdensity, read
from relbo.problem.plates import WholeData, subsampled_plates, with_whole_data

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
    assert WholeData(indexed) == WholeData(indexed)
    assert hash(WholeData(indexed)) == hash(WholeData(indexed))
