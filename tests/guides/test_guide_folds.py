"""The share of a guide's draws that fold space, under a change of variables."""

import jax.numpy as jnp
import jax.random as jr
import numpyro
import numpyro.distributions as dist
import pytest
from jax.scipy.stats import norm
from numpyro.infer import init_to_value

import relbo

NUM_DRAWS = 4_000


def quartic():
    """Its score is -z^3: a step of 1/3 folds what lies beyond 1 on either side."""
    z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.factor("density", -(z**4) / 4)


def share_of(kernel, account=None, num_draws=NUM_DRAWS):
    guide = relbo.AutoRefined(
        quartic,
        refinement=relbo.Refinement(
            kernel, account or relbo.ChangeOfVariablesAccount(), num_steps=1
        ),
        init_loc_fn=init_to_value(values={"z": 0.0}),
        init_scale=1.0,
    )
    params = numpyro.handlers.trace(numpyro.handlers.seed(guide, 0)).get_trace()
    params = {name: site["value"] for name, site in params.items() if site["type"] == "param"}
    return float(guide.share_folded(jr.key(0), params, num_draws=num_draws))


def test_the_share_is_the_mass_beyond_the_fold():
    share = 2 * norm.cdf(-1.0)
    error = jnp.sqrt(share * (1 - share) / NUM_DRAWS)
    assert abs(share_of(relbo.SGD(1 / 3)) - share) < 4 * error


def test_short_steps_do_not_fold():
    assert share_of(relbo.SGD(1e-3)) == 0.0


def test_particles_fold_together():
    assert share_of(relbo.SVGD(1e-3), num_draws=5) == 0.0
    assert share_of(relbo.SVGD(1 / 3), num_draws=5) in (0.0, 1.0)


@pytest.mark.parametrize(
    "account", [relbo.ParticleAccount(), relbo.ChangeOfVariablesAccount(0)]
)
def test_accounts_without_jacobians_are_refused(account):
    with pytest.raises(ValueError, match="share_folded needs the Jacobians"):
        share_of(relbo.SGD(0.1), account=account)
