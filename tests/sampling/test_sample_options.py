"""Wrong options of `infer` and `sample` are refused before anything runs."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import relbo
from relbo.sampling import sample

pytestmark = pytest.mark.usefixtures("wrong_types")


def model():
    numpyro.sample("x", dist.Normal())


def untrainable(*_):
    raise AssertionError("the guide is trained before the options are checked")


def infer_with_guide(key, *args, **options):
    return relbo.infer(key, *args, guide=untrainable, **options)


@pytest.mark.parametrize("function", [sample, relbo.infer, infer_with_guide])
@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"seconds": value}, "seconds: ") for value in (np.nan, -1.0, "10", True, [1.0])),
        *(({"num_draws": n}, "num_draws: ") for n in (0, -4, 100.0, 1.5, True, "100", None)),
        *(({"num_chains": n}, "num_chains: ") for n in (0, 2, 7, 8.0, True)),
        ({"method": "nuts"}, "method: "),
        ({"method": ["hmc"]}, "method: "),
    ],
    ids=str,
)
def test_wrong_options_are_refused(function, options, message):
    with pytest.raises(ValueError, match=f"^{message}expected .*, got .*$"):
        function(0, model, **options)


@pytest.mark.parametrize("function", [sample, relbo.infer, infer_with_guide])
def test_batches_of_keys_are_refused(function):
    for keys in (
        jax.random.split(jax.random.key(0), 3),
        np.zeros((3, 2), np.uint32),
        1.5,
        True,
    ):
        with pytest.raises(ValueError, match=r"^key: expected one random key"):
            function(keys, model)


def test_wrong_numbers_of_evidence_draws_are_refused():
    for number in (-1, 2.5, True):
        with pytest.raises(ValueError, match=r"^num_evidence_draws: expected an integer"):
            sample(0, model, num_evidence_draws=number)
