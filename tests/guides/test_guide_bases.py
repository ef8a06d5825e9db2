"""Autoguides as bases, and NumPyro's losses."""

import pickle

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.distributions.transforms import ReshapeTransform
from numpyro.infer import (
    Predictive,
    RenyiELBO,
    Trace_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
    autoguide,
)

import relbo
from programs import FEATURES, LABELS, fit, prepare, regression
from relbo.guides.bases import base_of


def listed(model):
    """A joint normal for the weights and a mean-field one for the scale."""
    both = autoguide.AutoGuideList(model)
    hidden = handlers.block(model, expose=["weights"])
    both.append(autoguide.AutoMultivariateNormal(hidden, prefix="auto_w"))
    both.append(autoguide.AutoNormal(handlers.block(model, expose=["scale"]), prefix="auto_s"))
    return both


# Small steps: an untrained flow may start anywhere.
SMALL = relbo.Refinement(relbo.Underdamped(0.02), num_steps=2)
MAP = relbo.Refinement(relbo.SGD(1e-4), relbo.ParticleAccount(), num_steps=2)
BASES = {
    "normal": (autoguide.AutoNormal, SMALL),
    "diagonal": (autoguide.AutoDiagonalNormal, SMALL),
    "joint": (autoguide.AutoMultivariateNormal, SMALL),
    "low-rank": (autoguide.AutoLowRankMultivariateNormal, SMALL),
    "iaf": (autoguide.AutoIAFNormal, SMALL),
    "bnaf": (autoguide.AutoBNAFNormal, SMALL),
    "delta": (autoguide.AutoDelta, MAP),
    "laplace": (autoguide.AutoLaplaceApproximation, MAP),
    "list": (listed(regression), SMALL),
}
POINTS = ("delta", "laplace")
UNPICKLED = ("iaf", "laplace", "list")  # by NumPyro, which keeps local functions in them


def slow_unless(quick, names):
    return [n if n in quick else pytest.param(n, marks=pytest.mark.slow) for n in names]


@pytest.mark.parametrize("name", slow_unless(("joint", "iaf", "delta"), BASES))
def test_any_base_is_updated_drawn_from_and_pickled(name):
    base, refinement = BASES[name]
    guide = relbo.AutoRefined(regression, base=base, refinement=refinement)
    svi, state, before = prepare(regression, guide, FEATURES, LABELS)
    state, loss = jax.jit(svi.update)(state, FEATURES, LABELS)
    assert jnp.isfinite(loss)
    params = svi.get_params(state)
    for site, value in params.items():
        moved = [
            not np.array_equal(new, old)
            for new, old in zip(
                jax.tree.leaves(value), jax.tree.leaves(before[site]), strict=True
            )
        ]
        # A factor of the covariance starts at zero, where its gradient is zero as well.
        assert any(moved) or site == "auto_cov_factor", site
    draws = guide.sample_posterior(jr.key(1), params, FEATURES, LABELS, sample_shape=(2, 3))
    shapes = {site: draw.shape for site, draw in draws.items()}
    assert shapes == {"weights": (2, 3, 2), "scale": (2, 3), "norm": (2, 3)}
    assert jnp.all(draws["scale"] > 0)
    np.testing.assert_allclose(draws["norm"], jnp.sum(draws["weights"] ** 2, -1), rtol=1e-5)
    assert guide.bound.valid is (name not in POINTS)
    if name in UNPICKLED:
        for unpickled in (guide, guide.base):
            with pytest.raises((AttributeError, pickle.PicklingError)):
                pickle.dumps(unpickled)
        return
    copy = pickle.loads(pickle.dumps(guide))
    again = copy.sample_posterior(jr.key(1), params, FEATURES, LABELS, sample_shape=(2, 3))
    np.testing.assert_array_equal(draws["weights"], again["weights"])


@pytest.mark.parametrize("name", slow_unless(("diagonal",), ("normal", "diagonal", "joint")))
def test_losses_of_numpyro_agree(name):
    """For a guide of Delta sites the first three losses are the same estimator."""
    guide = relbo.AutoRefined(regression, base=BASES[name][0], num_steps=2)
    _, _, params = prepare(regression, guide, FEATURES, LABELS)
    losses = (Trace_ELBO(), TraceMeanField_ELBO(), TraceGraph_ELBO(), RenyiELBO(alpha=0.5))

    def value(params, key, loss):
        return loss.loss(key, params, regression, guide, FEATURES, LABELS)

    found = jax.jit(
        lambda key: [jax.value_and_grad(value)(params, key, loss) for loss in losses]
    )(jr.key(0))
    values, gradients = zip(*found, strict=True)
    np.testing.assert_allclose(values[:3], values[0], rtol=1e-4)
    assert jnp.isfinite(values[3])
    for gradient in gradients[1:3]:
        for site, slope in gradient.items():
            np.testing.assert_allclose(slope, gradients[0][site], rtol=1e-3, atol=1e-4)


SUCCESSES = jnp.array([[1.0] * 8 + [0.0] * 2, [1.0] * 4 + [0.0] * 6]).T


def coins(data):
    chances = numpyro.sample("chances", dist.Beta(jnp.ones(2), jnp.ones(2)).to_event())
    with numpyro.plate("rows", 10):
        numpyro.sample("x", dist.Bernoulli(chances).to_event(1), obs=data)


def listed_coins():
    both = autoguide.AutoGuideList(coins)
    both.append(autoguide.AutoNormal(handlers.block(coins, hide=[])))
    return both


TWO_STEPS = relbo.Refinement(num_steps=2)
COIN_BASES = {
    "default": (lambda: None, TWO_STEPS),
    "joint": (lambda: autoguide.AutoMultivariateNormal, TWO_STEPS),
    "low-rank": (lambda: autoguide.AutoLowRankMultivariateNormal, TWO_STEPS),
    "iaf": (lambda: autoguide.AutoIAFNormal, SMALL),
    "bnaf": (lambda: autoguide.AutoBNAFNormal, SMALL),
    "delta": (
        lambda: autoguide.AutoDelta,
        relbo.Refinement(relbo.SGD(1e-3), relbo.ParticleAccount(), num_steps=2),
    ),
    "list": (listed_coins, TWO_STEPS),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COIN_BASES)
def test_posterior_of_a_beta_bernoulli_model(name):
    base, refinement = COIN_BASES[name]
    guide = relbo.AutoRefined(coins, base=base(), refinement=refinement)
    params = fit(coins, guide, SUCCESSES, num_iterations=400)
    draws = guide.sample_posterior(jr.key(1), params, SUCCESSES, sample_shape=(1000,))
    # A point estimate is at the mode of the logits, which is the mean of the chances here.
    expected = (jnp.sum(SUCCESSES, axis=0) + 1) / 12
    np.testing.assert_allclose(jnp.mean(draws["chances"], 0), expected, atol=0.05)
    assert Predictive(coins, draws)(jr.key(1), None)["x"].shape == (1000, 10, 2)


INPUTS = jr.normal(jr.key(0), (300, 3))
OUTPUTS = dist.Bernoulli(logits=INPUTS @ jnp.array([1.0, 2.0, 3.0])).sample(jr.key(1))


def logistic(inputs, outputs=None):
    slopes = numpyro.sample("slopes", dist.Normal(0.0, 1.0).expand([3]).to_event())
    logits = numpyro.deterministic("logits", inputs @ slopes)
    with numpyro.plate("rows", len(inputs)):
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=outputs)


@jax.jit
def exact_posterior():
    """Mean and spread of the slopes, by importance sampling around the mode."""
    joint = lambda slopes: (
        jnp.sum(dist.Normal(0.0, 1.0).log_prob(slopes))
        + jnp.sum(dist.Bernoulli(logits=INPUTS @ slopes).log_prob(OUTPUTS))
    )
    newton = lambda _, z: z - jnp.linalg.solve(jax.hessian(joint)(z), jax.grad(joint)(z))
    mode = jax.lax.fori_loop(0, 20, newton, jnp.ones(3))
    proposal = dist.MultivariateNormal(mode, precision_matrix=-0.7 * jax.hessian(joint)(mode))
    slopes = proposal.sample(jr.key(0), (5000,))
    weights = jax.nn.softmax(jax.vmap(joint)(slopes) - proposal.log_prob(slopes))
    mean = weights @ slopes
    return mean, jnp.sqrt(weights @ (slopes - mean) ** 2)


LOSSES = {
    "trace": lambda: Trace_ELBO(num_particles=4),
    "mean-field": lambda: TraceMeanField_ELBO(num_particles=4),
    "renyi": lambda: RenyiELBO(alpha=0.5, num_particles=4),
    "graph": lambda: TraceGraph_ELBO(num_particles=4),
}
LOGISTIC_BASES = {
    "default": None,
    "normal": autoguide.AutoNormal,
    "joint": autoguide.AutoMultivariateNormal,
    "low-rank": autoguide.AutoLowRankMultivariateNormal,
}


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("base", LOGISTIC_BASES)
def test_posterior_of_a_logistic_regression(base, loss):
    guide = relbo.AutoRefined(logistic, base=LOGISTIC_BASES[base], num_steps=2)
    params = fit(logistic, guide, INPUTS, OUTPUTS, num_iterations=3000, loss=LOSSES[loss]())
    mean, spread = exact_posterior()
    draws = guide.sample_posterior(jr.key(1), params, INPUTS, OUTPUTS, sample_shape=(1000,))
    assert draws["logits"].shape == (1000, 300)
    assert jnp.all(jnp.abs(jnp.mean(draws["slopes"], 0) - mean) < 0.5 * spread)
    ratio = jnp.std(draws["slopes"], 0) / spread
    assert jnp.all((ratio > 0.6) & (ratio < 1.4))


def test_list_of_guides_with_a_deterministic_site_exposed_is_refused():
    both = autoguide.AutoGuideList(regression)
    both.append(autoguide.AutoDiagonalNormal(regression))
    with pytest.raises(ValueError, match="'norm' in sub-guide"):
        prepare(regression, relbo.AutoRefined(regression, base=both), FEATURES, LABELS)


def test_shapes_of_draws():
    shapes = [(), (1,), (2, 3)]

    def program():
        for number, shape in enumerate(shapes):
            x = numpyro.sample(f"x{number}", dist.Normal(0.0, 1.0).expand(shape))
            numpyro.deterministic(f"square{number}", x**2)

    guide = relbo.AutoRefined(program, base=autoguide.AutoNormal, num_steps=1)
    _, _, params = prepare(program, guide)
    for sample_shape in ((), (2, 3)):
        draw = lambda key, shape=sample_shape: guide.sample_posterior(
            key, params, sample_shape=shape
        )
        draws = jax.eval_shape(draw, jr.key(0))
        for number, shape in enumerate(shapes):
            assert draws[f"x{number}"].shape == sample_shape + shape
            assert draws[f"square{number}"].shape == sample_shape + shape


@pytest.mark.parametrize(
    "base",
    [
        autoguide.AutoBatchedMultivariateNormal,
        pytest.param(autoguide.AutoBatchedLowRankMultivariateNormal, marks=pytest.mark.slow),
    ],
    ids=["joint", "low-rank"],
)
def test_batched_autoguides_as_bases(base):
    def program():
        with numpyro.plate("rows", 3):
            numpyro.sample("x", dist.MultivariateNormal(jnp.ones(2), jnp.eye(2)))

    guide = relbo.AutoRefined(program, base=base, num_steps=2)
    svi, state, params = prepare(program, guide)
    assert jnp.isfinite(jax.jit(svi.evaluate)(state))
    draws = jax.eval_shape(lambda key: guide.sample_posterior(key, params), jr.key(0))
    assert draws["x"].shape == (3, 2)


TRIANGLES = jnp.array([[[1.0, 0.0], [0.5, 0.8]], [[2.0, 0.0], [-0.3, 0.6]]])
BATCHED = dist.MultivariateNormal(jnp.ones((2, 2)), scale_tril=TRIANGLES)
WHITENED = {
    "normal": dist.Normal(jnp.array([0.5, -1.0]), 2.0),
    "event": dist.Normal(jnp.zeros(3), 0.5).to_event(1),
    "expanded": dist.Normal(1.0, 0.5).expand([2, 3]),
    "joint": dist.MultivariateNormal(jnp.ones(2), scale_tril=TRIANGLES[0]),
    "batched": BATCHED,
    "reshaped": dist.TransformedDistribution(BATCHED, ReshapeTransform((4,), (2, 2))),
    "low-rank": dist.LowRankMultivariateNormal(
        jnp.zeros((3, 2)), jnp.ones((3, 2, 1)), jnp.ones((3, 2))
    ),
    "log-normal": dist.LogNormal(0.3, 0.5),
}


@pytest.mark.parametrize("name", WHITENED)
def test_whitening_carries_the_density(name):
    base = base_of({"z": WHITENED[name]})
    assert isinstance(base, relbo.AbstractNormal)
    noise = {"z": jr.normal(jr.key(0), base.noise["z"].shape)}
    position, log_det = base.transform(noise)
    expected = jnp.sum(dist.Normal(0.0, 1.0).log_prob(noise["z"])) - log_det
    np.testing.assert_allclose(base.log_prob(position), expected, rtol=1e-4)


def test_a_site_that_cannot_be_whitened_is_walked_in_its_own_coordinates():
    """A Gamma has reparameterised draws, but no map from standard normal noise."""

    def program():
        numpyro.sample("rate", dist.Gamma(4.0, 2.0))

    def guide():
        shape = numpyro.param("shape", 3.0, constraint=dist.constraints.positive)
        numpyro.sample("rate", dist.Gamma(shape, 2.0))

    refined = relbo.refine(guide, program, num_steps=2)
    svi, state, params = prepare(program, refined)
    assert jnp.isfinite(jax.jit(svi.update)(state)[1])
    assert jnp.all(refined.sample_posterior(jr.key(0), params, sample_shape=(9,))["rate"] > 0)
