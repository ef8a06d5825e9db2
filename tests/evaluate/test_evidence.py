"""The evidence of NumPyro models whose evidence is known."""

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro.infer.autoguide import AutoDelta, AutoDiagonalNormal, AutoNormal

import relbo
from programs import DATA, conjugate, conjugate_evidence, encoder, local, local_evidence
from relbo import evaluate
from targets import SCHOOLS, TARGETS, gaussian

DATA = np.asarray(DATA)
SMALL = evaluate.AnnealingSettings(num_temperatures=60, num_chains=32, num_leapfrogs=3)
WEIGHTS = evaluate.ImportanceSettings()
# The posterior of the conjugate model is close to N(2.1, 0.22).
ENCODER = {"slope": jnp.array(0.75), "scale": jnp.array(1.0)}


def normal_guide():
    guide = AutoNormal(conjugate)
    numpyro.handlers.seed(guide, 0)(DATA)
    return guide, {"mu_auto_loc": jnp.array(2.0), "mu_auto_scale": jnp.array(0.3)}


def assert_agrees(estimate, exact, largest_error=0.2):
    assert abs(estimate.value - exact) < 4 * estimate.stderr
    assert estimate.stderr < largest_error


def positive(data):
    """A scale with a constraint: its Jacobian counts. The evidence is found by quadrature."""
    scale = numpyro.sample("scale", dist.Exponential(1.0))
    numpyro.sample("x", dist.Normal(0.0, scale), obs=data)


def test_annealing_needs_nothing_but_the_model():
    settings = evaluate.AnnealingSettings(num_temperatures=200)
    estimate = evaluate.log_evidence(jr.key(0), conjugate, (DATA,), settings=settings)
    assert_agrees(estimate, conjugate_evidence())
    assert (estimate.num_draws, estimate.valid_bound) == (64, True)


def test_jacobians_count():
    data = np.array([0.5, -1.0, 2.0])
    scales = np.linspace(1e-3, 60.0, 400_001)
    log_joint = -scales - 3 * np.log(scales * np.sqrt(2 * np.pi))
    log_joint = log_joint - np.square(data).sum() / (2 * scales**2)
    exact = np.log(np.trapezoid(np.exp(log_joint), scales))
    assert_agrees(evaluate.log_evidence(jr.key(1), positive, (data,), settings=SMALL), exact)


@pytest.mark.parametrize("settings", [SMALL, evaluate.ImportanceSettings(batch_size=300)])
def test_autoguide(settings):
    guide, params = normal_guide()
    estimate = evaluate.log_evidence(
        jr.key(0), conjugate, (DATA,), guide=guide, params=params, settings=settings
    )
    assert_agrees(estimate, conjugate_evidence(), 0.05)
    assert estimate.valid_bound is True


@pytest.mark.parametrize("settings", [SMALL, WEIGHTS])
def test_guide_of_ones_own(settings):
    estimate = evaluate.log_evidence(
        jr.key(0), local, (DATA,), guide=encoder, params=ENCODER, settings=settings
    )
    assert_agrees(estimate, local_evidence())


@pytest.mark.parametrize(
    ("account", "valid"),
    [(relbo.ReverseKernelAccount(), True), (relbo.ParticleAccount(), False)],
)
def test_refined_guide_knows_whether_its_weights_are_a_bound(account, valid):
    kernel = relbo.SGLD(0.01)
    guide = relbo.AutoRefined(
        conjugate,
        base=AutoDiagonalNormal,
        refinement=relbo.Refinement(kernel, account, num_steps=2),
    )
    numpyro.handlers.seed(guide, 0)(DATA)
    params = {"auto_loc": jnp.array([2.0]), "auto_scale": jnp.array([0.25])}
    estimate = evaluate.log_evidence(
        jr.key(0), conjugate, (DATA,), guide=guide, params=params, settings=WEIGHTS
    )
    assert estimate.valid_bound is valid
    if valid:
        assert_agrees(estimate, conjugate_evidence())


def test_point_is_no_bound_and_no_start():
    guide = AutoDelta(conjugate)
    numpyro.handlers.seed(guide, 0)(DATA)
    given = {"guide": guide, "params": {"mu_auto_loc": jnp.array(2.0)}}
    estimate = evaluate.log_evidence(jr.key(0), conjugate, (DATA,), settings=WEIGHTS, **given)
    assert estimate.valid_bound is False
    with pytest.raises(ValueError, match="has no density"):
        evaluate.log_evidence(jr.key(0), conjugate, (DATA,), **given, settings=SMALL)


@pytest.mark.slow
def test_plain_log_density():
    model = relbo.model_from_logdensity(gaussian, jnp.zeros(2))
    estimate = evaluate.log_evidence(jr.key(0), model, settings=SMALL)
    assert_agrees(estimate, TARGETS["gaussian"].log_evidence)


def test_other_data_of_the_same_shape_compile_nothing():
    runs = []

    def counted(data, *, scale):
        runs.append(1)
        mu = numpyro.sample("mu", dist.Normal(0.0, scale))
        numpyro.sample("x", dist.Normal(mu, 1.0), obs=data)

    values, counts = [], []
    for shift in (0.0, 5.0):
        data = DATA + np.float32(shift)
        estimate = evaluate.log_evidence(
            jr.key(0), counted, (data,), {"scale": 3.0}, settings=SMALL
        )
        values.append(estimate.value)
        counts.append(len(runs))
    # A second call reads the model once, and traces nothing.
    assert counts[1] == counts[0] + 1
    assert values[0] != values[1]


def test_program_that_looks_at_its_data_gets_them():
    def branching(data):
        scale = 3.0 if float(np.sum(data)) > 0 else 1.0
        mu = numpyro.sample("mu", dist.Normal(0.0, scale))
        numpyro.sample("x", dist.Normal(mu, 1.0).expand([20]).to_event(1), obs=data)

    estimate = evaluate.log_evidence(jr.key(0), branching, (DATA,), settings=SMALL)
    assert_agrees(estimate, conjugate_evidence(), 0.4)


def test_simulated_data_are_enclosed():
    check = evaluate.bidirectional_evidence(
        jr.key(0),
        conjugate,
        (DATA,),
        num_simulations=6,
        settings=evaluate.AnnealingSettings(400, 16),
        batch_size=6,
    )
    assert abs(check.gap.value) < 0.1 + 4 * check.gap.stderr
    assert check.gap.stderr < 0.2
    # Data were simulated: they are not those that were handed in, nor one another's.
    assert np.std(check.lower.values) > 0.5
    assert not np.any(np.isclose(check.lower.values, conjugate_evidence(), atol=1e-3))


def test_what_has_no_evidence_is_refused():
    def discrete():
        numpyro.sample("k", dist.Bernoulli(0.5))

    def factored():
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.factor("f", -(z**2))

    def improper(data):
        mu = numpyro.sample("mu", dist.ImproperUniform(dist.constraints.real, (), ()))
        numpyro.sample("x", dist.Normal(mu, 1.0), obs=data)

    key = jr.key(0)
    with pytest.raises(ValueError, match=r"\['k'\] are discrete"):
        evaluate.log_evidence(key, discrete)
    with pytest.raises(ValueError, match="no latent site"):
        evaluate.log_evidence(key, lambda: None)
    with pytest.raises(ValueError, match=r"plates \['data'\] are subsampled"):
        evaluate.log_evidence(key, conjugate, (DATA,), {"batch_size": 5})
    with pytest.raises(ValueError, match=r"factors \['f'\]"):
        evaluate.bidirectional_evidence(key, factored)
    with pytest.raises(ValueError, match="cannot be drawn"):
        evaluate.bidirectional_evidence(key, improper, (1.0,))


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"guide: .* got none"):
        evaluate.log_evidence(jr.key(0), conjugate, (DATA,), settings=WEIGHTS)
    with pytest.raises(ValueError, match="num_draws: expected an integer of 2 or more"):
        evaluate.ImportanceSettings(num_draws=1)
    with pytest.raises(ValueError, match="has not seen its model yet"):
        evaluate.log_evidence(
            jr.key(0), conjugate, (DATA,), guide=relbo.AutoRefined(conjugate), settings=SMALL
        )


def schools(effects, errors):
    mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
    tau = numpyro.sample("tau", dist.HalfCauchy(5.0))
    with numpyro.plate("schools", 8):
        t = numpyro.sample("t", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mu + tau * t, errors), obs=effects)


@pytest.mark.slow
def test_eight_schools():
    estimate = evaluate.log_evidence(
        jr.key(0),
        schools,
        tuple(np.array(x) for x in SCHOOLS),
        settings=evaluate.AnnealingSettings(num_chains=512),
    )
    assert_agrees(estimate, TARGETS["eight-schools"].log_evidence, 0.02)
