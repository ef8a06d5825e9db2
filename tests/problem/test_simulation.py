"""Data are drawn in the shapes of the arguments."""

import jax.numpy as jnp
import jax.random as jr
import numpyro
import numpyro.distributions as dist
import pytest

from relbo.problem.call import Call
from relbo.problem.simulation import simulate


def without_plate(y):
    numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


def in_plate(y):
    with numpyro.plate("data", 4):
        numpyro.sample("y", dist.Normal(0.0, 1.0), obs=y)


def vectors(y):
    with numpyro.plate("data", 4):
        numpyro.sample("y", dist.Dirichlet(jnp.ones(3)), obs=y)


@pytest.mark.parametrize(
    ("model", "shape", "drawn"),
    [
        (without_plate, (4,), (4,)),
        (in_plate, (4,), (4,)),
        (in_plate, (), (4,)),
        (vectors, (4, 3), (4, 3)),
    ],
)
def test_observed_sites_are_drawn_in_the_shape_of_their_data(model, shape, drawn):
    site = simulate(model, jr.key(0), Call((jnp.zeros(shape),), {}))["y"]
    assert not site["is_observed"]
    assert site["value"].shape == drawn
    assert len(set(site["value"].ravel().tolist())) == site["value"].size
