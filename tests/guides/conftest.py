import jax
import pytest


@pytest.fixture(autouse=True)
def _numpyro_promotes():
    """NumPyro's own distributions and flows rely on rank promotion."""
    with jax.numpy_rank_promotion("allow"):
        yield
