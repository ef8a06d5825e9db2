"""Refined guides on NumPyro programs: what holds for AutoNormal holds for AutoRefined."""

import pickle

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro import handlers
from numpyro.infer import (
    SVI,
    Predictive,
    RenyiELBO,
    Trace_ELBO,
    TraceGraph_ELBO,
    TraceMeanField_ELBO,
    autoguide,
    init_to_value,
    reparam,
)

import relbo
from programs import (
    DATA,
    NUM,
    conjugate,
    conjugate_evidence,
    elbos,
    encoder,
    fit,
    local,
    local_evidence,
)
from targets import mean_and_error


@pytest.fixture(autouse=True)
def _numpyro_promotes():
    """NumPyro's own distributions and flows rely on rank promotion."""
    with jax.numpy_rank_promotion("allow"):
        yield


BASES = [
    autoguide.AutoNormal,
    autoguide.AutoDiagonalNormal,
    autoguide.AutoMultivariateNormal,
    autoguide.AutoLowRankMultivariateNormal,
    autoguide.AutoIAFNormal,
    autoguide.AutoBNAFNormal,
    autoguide.AutoDelta,
]
MAP = {"kernel": relbo.SGD(1e-4), "entropy": relbo.Particle()}


def regression(features, labels=None):
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    numpyro.deterministic("norm", jnp.sum(weights**2))
    with numpyro.plate("rows", 12):
        numpyro.sample("y", dist.Normal(features @ weights, scale), obs=labels)


FEATURES = jr.normal(jr.key(2), (12, 2))
LABELS = FEATURES @ jnp.array([1.0, -0.5]) + 0.3 * jr.normal(jr.key(3), (12,))


@pytest.mark.parametrize("base", BASES)
def test_any_base_with_any_loss(base):
    # Small steps: an untrained flow may start anywhere.
    options = MAP if base is autoguide.AutoDelta else {"kernel": relbo.Underdamped(0.02)}
    guide = relbo.AutoRefined(regression, base=base, num_steps=2, **options)
    losses = [
        Trace_ELBO(),
        TraceMeanField_ELBO(),
        TraceGraph_ELBO(),
        RenyiELBO(num_particles=2),
    ]
    found = []
    # The first call looks at the model, which takes a key from the others.
    SVI(regression, guide, optax.adam(0.01), losses[0]).init(jr.key(0), FEATURES, LABELS)
    for loss in losses:
        svi = SVI(regression, guide, optax.adam(0.01), loss)
        state = svi.init(jr.key(0), FEATURES, LABELS)
        found.append(jax.jit(svi.evaluate)(state, FEATURES, LABELS))
    assert np.all(np.isfinite(found))
    # The first three are one estimator on a program of deltas.
    np.testing.assert_allclose(found[:3], found[0], rtol=1e-4)
    state, _ = jax.jit(svi.update)(state, FEATURES, LABELS)
    params = svi.get_params(state)
    draws = guide.sample_posterior(jr.key(1), params, FEATURES, LABELS, sample_shape=(2, 3))
    shapes = {name: draw.shape for name, draw in draws.items()}
    assert shapes == {"weights": (2, 3, 2), "scale": (2, 3), "norm": (2, 3)}
    assert jnp.all(draws["scale"] > 0)
    np.testing.assert_allclose(draws["norm"], jnp.sum(draws["weights"] ** 2, -1), rtol=1e-5)
    assert guide.bound.valid is (base is not autoguide.AutoDelta)


def test_with_nothing_but_the_model_it_reaches_the_evidence():
    guide = relbo.AutoRefined(conjugate)
    params = fit(conjugate, guide, DATA, num_iterations=400)
    assert guide.refinement.num_steps == 8
    assert guide.bound.valid is True
    mean, error = mean_and_error(elbos(conjugate, guide, params, DATA))
    assert mean < conjugate_evidence() + 4 * error
    assert mean > conjugate_evidence() - 0.2
    draws = guide.sample_posterior(jr.key(0), params, DATA, sample_shape=(4000,))["mu"]
    variance = 1 / (NUM + 1 / 9)
    assert abs(jnp.mean(draws) - variance * jnp.sum(DATA)) < 5 * (variance / 4000) ** 0.5 + 0.02
    assert jnp.std(draws) == pytest.approx(variance**0.5, rel=0.15)


def test_a_walk_that_broke_off_counts_for_nothing():
    """Its partial log q would pass for an ELBO otherwise, above the evidence as like as not."""

    def walled():
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.factor("wall", jnp.where(z > 0.0, jnp.nan, 0.0) * z)

    start = init_to_value(values={"z": -0.1})
    guide = relbo.AutoRefined(walled, num_steps=4, init_loc_fn=start)
    svi = SVI(walled, guide, optax.adam(0.01), Trace_ELBO())
    params = svi.get_params(svi.init(jr.key(0)))
    values = elbos(walled, guide, params, num_draws=200)
    # (A draw of the base beyond the wall is NaN by the model's own doing.)
    assert jnp.any(values == -jnp.inf)
    assert jnp.any(jnp.isfinite(values))
    draws = guide.sample_posterior(jr.key(0), params, sample_shape=(200,))["z"]
    assert jnp.all(jnp.isfinite(draws))


def test_new_arguments_take_effect():
    """What AutoDAIS gets wrong: it climbs the density of its first call for ever."""
    guide = relbo.AutoRefined(conjugate, num_steps=4)
    params = fit(conjugate, guide, DATA)
    here, there = (
        guide.sample_posterior(jr.key(0), params, DATA + shift, sample_shape=(500,))["mu"]
        for shift in (0.0, 1.0)
    )
    assert jnp.mean(there - here) > 0.3


def test_current_parameters_of_the_model_take_effect():
    def program(data):
        scale = numpyro.param("scale", 5.0, constraint=dist.constraints.positive)
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
        numpyro.sample("x", dist.Normal(mu, scale).expand([NUM]).to_event(1), obs=data)

    guide = relbo.AutoRefined(program, num_steps=4)
    params = fit(program, guide, DATA, num_iterations=5)
    wide, narrow = (
        guide.sample_posterior(
            jr.key(0), {**params, "scale": jnp.array(scale)}, DATA, sample_shape=(500,)
        )["mu"]
        for scale in (5.0, 0.5)
    )
    # A sharper likelihood pulls harder at the same base draws.
    assert jnp.mean(jnp.abs(narrow - wide)) > 0.05
    params = fit(program, guide, DATA, num_iterations=400)
    assert params["scale"] == pytest.approx(float(jnp.std(DATA)), rel=0.15)


@pytest.mark.parametrize("kind", ["equinox", "nnx"])
def test_networks_inside_the_model_are_learned(kind):
    from numpyro.contrib import module

    def network():
        if kind == "equinox":
            return module.eqx_module("net", eqx.nn.Linear(2, 1, key=jr.key(0)))
        from flax import nnx

        return module.nnx_module("net", nnx.Linear(2, 1, rngs=nnx.Rngs(0)))

    def program(features, labels):
        net = network()
        bias = numpyro.sample("bias", dist.Normal(0.0, 1.0))
        rows = jax.vmap(net)(features) if kind == "equinox" else net(features)
        mean = rows[:, 0] + bias
        numpyro.sample("y", dist.Normal(mean, 0.3).to_event(1), obs=labels)

    guide = relbo.AutoRefined(program, num_steps=2)
    params = fit(program, guide, FEATURES, LABELS, num_iterations=300)
    (name,) = [name for name in params if name.startswith("net")]
    weights = jnp.concatenate(
        [leaf.reshape(-1) for leaf in jax.tree.leaves(params[name]) if leaf.size == 2]
    )
    np.testing.assert_allclose(weights, [1.0, -0.5], atol=0.25)


def test_subsampling_global_latents_stays_a_bound():
    guide = relbo.AutoRefined(conjugate, num_steps=4)
    params = fit(conjugate, guide, DATA, 5, num_iterations=400)
    assert guide.bound.valid is True
    values = elbos(conjugate, guide, params, DATA, 5, num_draws=20_000)
    mean, error = mean_and_error(values)
    assert mean < conjugate_evidence() + 4 * error
    assert mean > conjugate_evidence() - 2.5


def test_a_minibatch_handed_in_is_called_no_bound():
    """The kernel and the loss would see the same one."""

    def handed_in(batch):
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
        with numpyro.plate("data", NUM, subsample_size=5):
            numpyro.sample("x", dist.Normal(mu, 1.0), obs=batch)

    guide = relbo.AutoRefined(handed_in, num_steps=2)
    fit(handed_in, guide, DATA[:5], num_iterations=1)
    assert guide.bound.valid is False
    assert "minibatch" in guide.bound.reason


@pytest.mark.parametrize("batch_size", [None, 5])
def test_local_latents(batch_size):
    """Each value has its own posterior N(0.8 x, sd 0.894); a batch must not sharpen it."""
    guide = relbo.AutoRefined(local, base=autoguide.AutoNormal, num_steps=3)
    params = fit(local, guide, DATA, batch_size, num_iterations=600)
    assert guide.bound.valid is True
    mean, error = mean_and_error(elbos(local, guide, params, DATA, batch_size))
    assert mean < local_evidence() + 4 * error
    assert mean > local_evidence() - 2.0
    draws = guide.sample_posterior(jr.key(0), params, DATA, sample_shape=(1000,))["z"]
    assert draws.shape == (1000, NUM)
    np.testing.assert_allclose(jnp.mean(draws, 0), 0.8 * DATA, atol=0.6)
    assert jnp.mean(jnp.std(draws, 0)) == pytest.approx(0.894, rel=0.15)


@pytest.mark.parametrize("batch_size", [None, 5])
def test_refined_encoder(batch_size):
    guide = relbo.refine(encoder, local, num_steps=3)
    params = fit(local, guide, DATA, batch_size, num_iterations=400)
    mean, error = mean_and_error(elbos(local, guide, params, DATA, batch_size))
    assert mean < local_evidence() + 4 * error
    assert mean > local_evidence() - 0.5
    assert {"slope", "scale", "refined_step_size"} <= set(params)
    draws = guide.sample_posterior(jr.key(0), params, DATA, sample_shape=(1000,))["z"]
    np.testing.assert_allclose(jnp.mean(draws, 0), 0.8 * DATA, atol=0.3)


def test_gradients_reach_the_encoder_the_decoder_and_the_step_size():
    def decoder(data, batch_size=None):
        gain = numpyro.param("gain", 1.0)
        with numpyro.plate("data", NUM, subsample_size=batch_size):
            batch = numpyro.subsample(data, 0)
            z = numpyro.sample("z", dist.Normal(0.0, 1.0))
            numpyro.sample("x", dist.Normal(gain * z, 1.0), obs=batch)

    guide = relbo.refine(encoder, decoder, num_steps=2)
    svi = SVI(decoder, guide, optax.sgd(1.0), Trace_ELBO())
    state = svi.init(jr.key(0), DATA)
    before = svi.get_params(state)
    after = svi.get_params(svi.update(state, DATA)[0])
    for name in ("slope", "scale", "gain", "refined_step_size", "refined_damping"):
        assert not np.allclose(before[name], after[name]), name


def test_a_hierarchical_guide_is_walked_where_it_is_or_refused():
    def program():
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        numpyro.sample("b", dist.Normal(a, 1.0))

    def hierarchical():
        a = numpyro.sample("a", dist.Normal(numpyro.param("m", 0.5), 1.0))
        numpyro.sample("b", dist.Normal(a, 1.0))

    with pytest.raises(ValueError, match="'b' depends on another of its draws"):
        fit(program, relbo.refine(hierarchical, program, num_steps=2), num_iterations=1)
    guide = relbo.refine(
        hierarchical, program, num_steps=2, space="unconstrained", anneal=False
    )
    params = fit(program, guide, num_iterations=100)
    mean, error = mean_and_error(elbos(program, guide, params))
    assert -1.0 < mean < 4 * error


def test_interacting_particles_need_their_loss():
    options = {"kernel": relbo.SVGD(0.05), "entropy": relbo.ChangeOfVariables()}
    guide = relbo.AutoRefined(conjugate, num_steps=2, **options)
    with pytest.raises(ValueError, match=r"relbo.RefinedELBO"):
        fit(conjugate, guide, DATA, num_iterations=2)
    guide = relbo.AutoRefined(conjugate, num_steps=2, **options)
    params = fit(conjugate, guide, DATA, num_iterations=300, loss=relbo.RefinedELBO(5))
    loss = relbo.RefinedELBO(num_particles=5)
    keys = jr.split(jr.key(0), 500)
    values = -jax.jit(jax.vmap(lambda key: loss.loss(key, params, conjugate, guide, DATA)))(
        keys
    )
    mean, error = mean_and_error(values)
    assert conjugate_evidence() - 1.0 < mean < conjugate_evidence() + 4 * error
    draws = guide.sample_posterior(jr.key(1), params, DATA, sample_shape=(4, 5))
    assert draws["mu"].shape == (4, 5)
    with pytest.raises(ValueError, match="expected a refined guide"):
        loss.loss(jr.key(0), {}, conjugate, autoguide.AutoNormal(conjugate), DATA)


def test_constrained_supports():
    def program():
        numpyro.sample("simplex", dist.Dirichlet(jnp.ones(3)))
        numpyro.sample("positive", dist.HalfNormal(1.0))
        numpyro.sample("unit", dist.Beta(2.0, 2.0).expand([2]).to_event(1))
        numpyro.sample("cholesky", dist.LKJCholesky(3, 1.0))
        ordered = dist.transforms.OrderedTransform()
        normal = dist.Normal(0.0, 1.0).expand([3]).to_event(1)
        numpyro.sample("ordered", dist.TransformedDistribution(normal, ordered))

    guide = relbo.AutoRefined(program, num_steps=4)
    params = fit(program, guide, num_iterations=400)
    mean, error = mean_and_error(elbos(program, guide, params))
    assert -0.6 < mean < 4 * error
    draws = guide.sample_posterior(jr.key(0), params, sample_shape=(50,))
    np.testing.assert_allclose(jnp.sum(draws["simplex"], -1), 1.0, rtol=1e-5)
    assert jnp.all(jnp.diff(draws["ordered"]) > 0)
    np.testing.assert_allclose(jnp.sum(draws["cholesky"] ** 2, -1), 1.0, rtol=1e-4)


def test_supports_that_depend_on_other_sites():
    def direct():
        high = numpyro.sample("high", dist.Uniform(0.0, 1.0))
        numpyro.sample("low", dist.Uniform(0.0, high))

    with pytest.raises(ValueError, match=r"support of \['low'\] depends"):
        fit(direct, relbo.AutoRefined(direct), num_iterations=1)

    def reparameterised():
        high = numpyro.sample("high", dist.Uniform(0.0, 1.0))
        scaled = dist.transforms.AffineTransform(0.0, high)
        with handlers.reparam(config={"low": reparam.TransformReparam()}):
            numpyro.sample("low", dist.TransformedDistribution(dist.Uniform(0.0, 1.0), scaled))

    guide = relbo.AutoRefined(reparameterised, num_steps=4)
    params = fit(reparameterised, guide, num_iterations=300)
    mean, error = mean_and_error(elbos(reparameterised, guide, params))
    assert -0.3 < mean < 4 * error
    assert "low" in guide.sample_posterior(jr.key(0), params, sample_shape=(3,))


def test_scale_and_mask_are_respected():
    """A scaled density has its power as posterior; a masked observation is none."""

    def masked(data):
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
        with numpyro.plate("data", NUM), handlers.mask(mask=jnp.arange(NUM) < 4):
            numpyro.sample("x", dist.Normal(mu, 1.0), obs=data)

    def scaled(data):
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
        with numpyro.plate("data", NUM), handlers.scale(scale=0.2):
            numpyro.sample("x", dist.Normal(mu, 1.0), obs=data)

    for program, used in [(masked, DATA[:4]), (scaled, DATA)]:
        guide = relbo.AutoRefined(program, num_steps=4)
        params = fit(program, guide, DATA, num_iterations=300)
        draws = guide.sample_posterior(jr.key(0), params, DATA, sample_shape=(2000,))["mu"]
        variance = 1 / (4 + 1 / 9)
        assert jnp.mean(draws) == pytest.approx(float(4 * variance * jnp.mean(used)), abs=0.1)
        assert jnp.std(draws) == pytest.approx(variance**0.5, rel=0.25)


def test_a_while_loop_with_forward_mode():
    def program():
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        halved = jax.lax.while_loop(
            lambda carry: carry[1] < 3, lambda carry: (carry[0] * 0.5, carry[1] + 1), (z, 0)
        )[0]
        numpyro.sample("x", dist.Normal(halved, 1.0), obs=1.0)

    guide = relbo.AutoRefined(program, num_steps=2, forward_mode_differentiation=True)
    params = fit(program, guide, num_iterations=100, forward_mode_differentiation=True)
    evidence = float(dist.Normal(0.0, (1 + 0.125**2) ** 0.5).log_prob(1.0))
    mean, error = mean_and_error(elbos(program, guide, params))
    assert evidence - 0.2 < mean < evidence + 4 * error


def test_pickled_guide_draws_the_same():
    guide = relbo.AutoRefined(regression, num_steps=2)
    params = fit(regression, guide, FEATURES, LABELS, num_iterations=3)
    copy = pickle.loads(pickle.dumps(guide))
    one, other = (
        g.sample_posterior(jr.key(0), params, FEATURES, LABELS, sample_shape=(3,))
        for g in (guide, copy)
    )
    np.testing.assert_array_equal(one["weights"], other["weights"])


def test_predictive_median_and_quantiles():
    guide = relbo.AutoRefined(regression, num_steps=2)
    params = fit(regression, guide, FEATURES, LABELS, num_iterations=300)
    draws = Predictive(guide, params=params, num_samples=7)(jr.key(0), FEATURES, LABELS)
    assert draws["weights"].shape == (7, 2)
    latents = {name: draws[name] for name in ("weights", "scale")}
    predicted = Predictive(regression, latents)(jr.key(1), FEATURES)
    assert predicted["y"].shape == (7, 12)
    median = guide.median(params, FEATURES, LABELS)
    low, high = guide.quantiles(params, [0.05, 0.95], FEATURES, LABELS)["weights"]
    assert jnp.all((low < median["weights"]) & (median["weights"] < high))
    np.testing.assert_allclose(median["weights"], [1.0, -0.5], atol=0.3)


def test_more_steps_when_sampling():
    guide = relbo.AutoRefined(conjugate, num_steps=2)
    params = fit(conjugate, guide, DATA, num_iterations=100)
    draws = guide.sample_posterior(jr.key(0), params, DATA, sample_shape=(20,), num_steps=50)
    assert jnp.all(jnp.isfinite(draws["mu"]))
    assert guide.refinement.num_steps == 2
    with pytest.raises(ValueError, match="at least the 2 trained"):
        guide.sample_posterior(jr.key(0), params, DATA, num_steps=1)


def test_list_of_guides():
    both = autoguide.AutoGuideList(regression)
    both.append(
        autoguide.AutoMultivariateNormal(
            handlers.block(regression, expose=["weights"]), prefix="auto_w"
        )
    )
    both.append(
        autoguide.AutoNormal(handlers.block(regression, expose=["scale"]), prefix="auto_s")
    )
    guide = relbo.AutoRefined(regression, base=both, num_steps=2)
    params = fit(regression, guide, FEATURES, LABELS, num_iterations=100)
    draws = guide.sample_posterior(jr.key(0), params, FEATURES, LABELS, sample_shape=(3,))
    assert draws["weights"].shape == (3, 2)


def test_plain_log_density():
    logdensity_fn = lambda z: -0.5 * jnp.sum(z["a"] ** 2) - 0.5 * (z["b"] - 1.0) ** 2 / 4
    model = relbo.model_from_logdensity(logdensity_fn, {"a": jnp.zeros(2), "b": jnp.array(0.5)})
    guide = relbo.AutoRefined(model, num_steps=4)
    params = fit(model, guide, num_iterations=300)
    mean, error = mean_and_error(elbos(model, guide, params))
    evidence = 1.5 * np.log(2 * np.pi) + np.log(2.0)
    assert evidence - 0.2 < mean < evidence + 4 * error
    position = model.to_position(guide.sample_posterior(jr.key(0), params, sample_shape=(5,)))
    assert position["a"].shape == (5, 2)
    with pytest.raises(ValueError, match="at least one array"):
        relbo.model_from_logdensity(logdensity_fn, {})


def test_mistakes_say_what_to_do():
    def observed():
        numpyro.sample("x", dist.Normal(0.0, 1.0), obs=0.0)

    def discrete():
        numpyro.sample("z", dist.Normal(0.0, 1.0))
        numpyro.sample("k", dist.Bernoulli(0.5))

    def gamma(data, batch_size=None):
        with numpyro.plate("data", NUM):
            numpyro.sample("z", dist.Poisson(3.0))

    cases = [
        (relbo.AutoRefined(observed), (), "no continuous latent site"),
        (relbo.AutoRefined(discrete), (), r"relbo.collapse\(model\)"),
        (
            relbo.AutoRefined(local, base=autoguide.AutoMultivariateNormal),
            (DATA, 5),
            "use base=AutoNormal",
        ),
        (relbo.refine(gamma, local), (DATA,), "no reparameterised sample"),
        (relbo.refine(lambda data: None, local), (DATA,), r"\['z'\] are not in the guide"),
    ]
    for guide, args, message in cases:
        with pytest.raises(ValueError, match=message):
            fit(guide.model, guide, *args, num_iterations=1)
    with pytest.raises(ValueError, match="options of the base"):
        relbo.AutoRefined(local, base=autoguide.AutoNormal(local), init_scale=0.1)
    with pytest.raises(ValueError, match="has not seen its model"):
        relbo.AutoRefined(local).sample_posterior(jr.key(0), {}, DATA)
    with pytest.raises(ValueError, match="ReverseKernel needs"):
        relbo.AutoRefined(local, kernel=relbo.SGD())
    with pytest.raises(ValueError, match="num_particles"):
        relbo.RefinedELBO(num_particles=0)


def test_refinement_without_steps_is_its_base():
    guide = relbo.AutoRefined(conjugate, num_steps=0)
    params = fit(conjugate, guide, DATA, num_iterations=300)
    base_params = {name: params[name] for name in ("auto_loc", "auto_scale")}
    ours, error = mean_and_error(elbos(conjugate, guide, params, DATA))
    theirs, their_error = mean_and_error(elbos(conjugate, guide.base, base_params, DATA))
    assert abs(ours - theirs) < 4 * np.hypot(error, their_error)


def test_update_is_compiled_once():
    traces = []

    def counted(data):
        traces.append(None)
        conjugate(data)

    guide = relbo.AutoRefined(counted, num_steps=8)
    svi = SVI(counted, guide, optax.adam(0.01), Trace_ELBO())
    state = svi.init(jr.key(0), DATA)
    update = jax.jit(svi.update)
    traces.clear()
    state, _ = update(state, DATA)
    # Once for the kernel, once for the loss itself.
    assert len(traces) == 2
    update(state, DATA + 1)
    assert len(traces) == 2
