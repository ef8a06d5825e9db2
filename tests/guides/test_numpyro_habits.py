"""What NumPyro's tests of its autoguides and of SVI check, for refined guides.

The table on the page "Coming from NumPyro" says which test stands for which of theirs.
"""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax.example_libraries import stax
from numpyro import handlers
from numpyro.contrib.module import flax_module, random_flax_module
from numpyro.distributions import constraints
from numpyro.infer import SVI, Predictive, Trace_ELBO, TraceMeanField_ELBO, autoguide

import relbo
from programs import DATA, NUM, conjugate, fit, prepare

FEATURES = jr.normal(jr.key(0), (40, 2))
LABELS = jr.bernoulli(jr.key(1), jax.nn.sigmoid(FEATURES @ jnp.array([1.0, -2.0]))).astype(int)


def quick(model, **options):
    """A guide that compiles fast."""
    options = {"base": autoguide.AutoDiagonalNormal, "num_steps": 1} | options
    return relbo.AutoRefined(model, kernel=relbo.SGLD(0.01), **options)


def classes(features=None, labels=None):
    """A model that leaves its observations out where it is called without features."""
    weights = numpyro.sample("weights", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
    if features is not None:
        logits = numpyro.deterministic("logits", features @ weights)
        with numpyro.plate("rows", len(features)):
            numpyro.sample("label", dist.Bernoulli(logits=logits), obs=labels)


@pytest.fixture(scope="module")
def fitted():
    with jax.numpy_rank_promotion("allow"):
        guide = quick(classes, num_steps=2)
        return guide, fit(classes, guide, FEATURES, LABELS, num_iterations=200)


CALLS_WITHOUT_DATA = {
    "draws": lambda guide, params: guide.sample_posterior(jr.key(0), params),
    "median": lambda guide, params: guide.median(params),
    "quantiles": lambda guide, params: guide.quantiles(params, [0.1, 0.9]),
    "predictive": lambda guide, params: Predictive(
        classes, guide=guide, params=params, num_samples=2
    )(jr.key(0)),
}


@pytest.mark.parametrize("name", CALLS_WITHOUT_DATA)
def test_draws_without_observed_sites_are_refused(name, fitted):
    with pytest.raises(ValueError, match=r"\['label'\] are missing.*guide.with_data\(\*data\)"):
        CALLS_WITHOUT_DATA[name](*fitted)


def test_kept_data_stand_in_for_missing_ones(fitted):
    guide, params = fitted
    kept = guide.with_data(FEATURES, LABELS)
    assert kept.without_data() is guide
    assert kept.with_data(FEATURES).without_data() is guide
    draw = lambda guide, *data: guide.sample_posterior(
        jr.key(0), params, *data, sample_shape=(500,)
    )
    draws, expected = draw(kept), draw(guide, FEATURES, LABELS)
    np.testing.assert_array_equal(draws["weights"], expected["weights"])
    # Deterministic sites are those of the data that are kept.
    np.testing.assert_array_equal(draws["logits"], expected["logits"])
    # A call with data of its own uses these.
    flipped = draw(kept, FEATURES, 1 - LABELS)
    np.testing.assert_array_equal(
        flipped["weights"], draw(guide, FEATURES, 1 - LABELS)["weights"]
    )
    assert jnp.max(jnp.abs(flipped["weights"] - draws["weights"])) > 0.1
    with pytest.raises(TypeError, match="unexpected keyword argument 'label'"):
        kept.sample_posterior(jr.key(0), params, label=LABELS)


def test_medians_and_quantiles_include_deterministic_sites(fitted):
    guide, params = fitted
    kept = guide.with_data(FEATURES, LABELS)
    median, quantiles = kept.median(params), kept.quantiles(params, [0.2, 0.5, 0.8])
    assert {name: value.shape for name, value in median.items()} == {
        "weights": (2,),
        "logits": (40,),
    }
    for name, (low, middle, high) in quantiles.items():
        assert jnp.all((low < middle) & (middle < high))
        np.testing.assert_allclose(middle, median[name], rtol=1e-5)


def test_predictions_for_new_inputs(fitted):
    guide, params = fitted
    predictive = Predictive(
        classes, guide=guide.with_data(FEATURES, LABELS), params=params, num_samples=400
    )
    new = jnp.array([[3.0, -3.0], [-3.0, 3.0]])
    predicted = predictive(jr.key(0), new)
    assert predicted["label"].shape == (400, 2)
    assert predicted["logits"].shape == (400, 2)
    first, second = jnp.mean(predicted["label"], 0)
    assert first > 0.8
    assert second < 0.2
    # Without any input there is nothing to predict, as with AutoNormal.
    assert predictive(jr.key(0)) == {}


def test_a_deterministic_site_of_observations_and_a_parameter():
    def program(y=None):
        mu = numpyro.sample("mu", dist.Normal(0.0, 5.0))
        sigma = numpyro.param("sigma", 1.0, constraint=constraints.positive)
        with numpyro.plate("rows", 1 if y is None else len(y)):
            y = numpyro.sample("y", dist.Normal(mu, sigma), obs=y)
        numpyro.deterministic("z", (y - mu) / sigma)

    guide = quick(program)
    _, _, params = prepare(program, guide, y=DATA)
    draws = guide.with_data(y=DATA).sample_posterior(jr.key(0), params, sample_shape=(7,))
    assert draws.pop("z").shape == (7, NUM)
    predicted = Predictive(program, draws, params=params)(jr.key(0), DATA[:5])
    expected = (DATA[:5] - draws["mu"][:, None]) / params["sigma"]
    np.testing.assert_allclose(predicted["z"], expected, rtol=1e-5)


def test_quantiles_of_a_guide_without_steps():
    """Within four standard errors of the quantiles of the normal that it is."""

    def program():
        numpyro.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))

    joint = autoguide.AutoMultivariateNormal
    guide = relbo.AutoRefined(program, base=joint, num_steps=0)
    prepare(program, guide)
    tril = jnp.array([[1.0, 0.0], [0.5, 0.5]])
    params, sd = {"auto_loc": jnp.ones(2), "auto_scale_tril": tril}, jnp.array([1.0, 0.5**0.5])
    found = guide.quantiles(params, 0.3, num_draws=4000)["x"]
    normal = dist.Normal(1.0, sd)
    expected = normal.icdf(jnp.array(0.3))
    error = (0.3 * 0.7 / 4000) ** 0.5 / jnp.exp(normal.log_prob(expected))
    assert jnp.all(jnp.abs(found - expected) < 4 * error)


# Where a guide starts


@pytest.mark.parametrize("base", [autoguide.AutoDiagonalNormal, autoguide.AutoNormal])
def test_one_key_gives_one_start_with_and_without_steps(base):
    plain = prepare(conjugate, base(conjugate), DATA)[2]
    refined = prepare(conjugate, quick(conjugate, base=base), DATA)[2]
    assert refined.items() >= plain.items()


def test_initial_values_of_parameters_with_constraints():
    def program():
        a = numpyro.param("a", 1.5, constraint=constraints.greater_than(1.0))
        b = numpyro.param("b", 0.7, constraint=constraints.positive)
        numpyro.sample("x", dist.Normal(a, b))

    guide = quick(program, num_steps=0)
    _, _, params = prepare(program, guide)
    assert params["a"] == pytest.approx(1.5)
    assert params["b"] == pytest.approx(0.7)
    # With as many draws as it takes: KL(N(loc, scale) || N(a, b)).
    loc, scale = params["auto_loc"][0], params["auto_scale"][0]
    expected = jnp.log(0.7 / scale) + (scale**2 + (loc - 1.5) ** 2) / (2 * 0.7**2) - 0.5
    one = lambda key: Trace_ELBO().loss(key, params, program, guide)
    values = jax.vmap(one)(jr.split(jr.key(0), 1000))
    assert abs(values.mean() - expected) < 4 * values.std() / 1000**0.5


def test_given_initial_parameters():
    guide = quick(conjugate)
    given = {"auto_loc": jnp.array([7.0])}
    _, _, params = prepare(conjugate, guide, DATA, init_params=given)
    assert params["auto_loc"] == 7.0
    assert "auto_step_size" in params


def test_a_guide_older_than_double_precision_has_only_doubles():
    guides = quick(conjugate), relbo.AutoRefined(conjugate, num_steps=2)
    with jax.enable_x64(True):
        for guide in guides:
            _, _, params = prepare(conjugate, guide, np.asarray(DATA, float))
            assert {str(value.dtype) for value in params.values()} == {"float64"}


def test_a_guide_without_a_seed_says_so():
    with pytest.warns(UserWarning, match="outside of `seed`"):
        with pytest.raises(ValueError, match=r"inside numpyro\.handlers\.seed"):
            relbo.AutoRefined(conjugate)(DATA)


# Parts of a model


@pytest.mark.parametrize("seeded", [lambda model: model, lambda m: handlers.seed(m, 1)])
def test_a_part_of_a_list_of_guides_is_refused(seeded):
    """Its steps would climb a density in which the other parts are draws from the prior."""

    def program(data):
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        b = numpyro.sample("b", dist.Normal(0.0, 1.0))
        numpyro.sample("x", dist.Normal(a + b, 1.0).expand([NUM]).to_event(1), obs=data)

    guides = autoguide.AutoGuideList(program)
    guides.append(autoguide.AutoNormal(handlers.block(program, expose=["a"])))
    guides.append(quick(handlers.block(seeded(program), hide=["a"])))
    with pytest.raises(ValueError, match=r"\['a'\] are hidden.*base=guides"):
        prepare(program, guides, DATA)
    # A site that is hidden with a value is not drawn.
    fixed = handlers.block(handlers.substitute(program, data={"a": 1.0}), hide=["a"])
    prepare(fixed, quick(fixed), DATA)


def test_spheres_are_refused_with_advice():
    def program():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0).expand([2]).to_event(1))
        numpyro.sample("y", dist.ProjectedNormal(x))

    with pytest.raises(ValueError, match="ProjectedNormalReparam"):
        handlers.seed(relbo.AutoRefined(program), 0)()


def test_a_deterministic_site_in_a_model_with_minibatches():
    def program():
        x = numpyro.sample("x", dist.Normal(0.0, 1.0))
        numpyro.deterministic("twice", 2 * x)
        with numpyro.plate("rows", 10, subsample_size=5):
            numpyro.sample("y", dist.Normal(x, 1.0), obs=jnp.ones(5))

    guide = quick(program)
    _, _, params = prepare(program, guide)
    draws = guide.sample_posterior(jr.key(1), params)
    assert draws["twice"] == 2 * draws["x"]


# Networks


def normed_network(name, **options):
    nn = pytest.importorskip("flax.linen")

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(1)(nn.BatchNorm(use_running_average=False)(nn.Dense(2)(x)))

    net = random_flax_module if options else flax_module
    return net(name, Net(), input_shape=(4, 2), mutable=["batch_stats"], **options)


NETWORKS = {
    "module": lambda: numpyro.module("net", stax.Dense(1), (2,)),
    "flax": lambda: normed_network("net"),
    "random flax": lambda: normed_network(
        "net", prior={"Dense_0.kernel": dist.Normal(0.0, 1.0)}
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_networks_with_state_are_trained(name):
    def program(features, labels=None):
        mean = NETWORKS[name]()(features)[:, 0]
        scale = numpyro.sample("scale", dist.HalfNormal(1.0))
        with numpyro.plate("rows", len(features)):
            numpyro.sample("y", dist.Normal(mean, scale), obs=labels)

    guide = quick(program)
    target = FEATURES @ jnp.array([1.0, -2.0])
    svi, state, first = prepare(program, guide, FEATURES, target)
    update = jax.jit(svi.update)
    state, loss = update(state, FEATURES, target)
    assert jnp.isfinite(loss)
    params = svi.get_params(state)
    weights = [jax.tree.leaves(values["net$params"]) for values in (first, params)]
    assert not any(map(np.array_equal, *weights))
    if name == "module":
        return
    means = [
        one.mutable_state["net$state"]["batch_stats"]["BatchNorm_0"]["mean"]
        for one in (state, update(state, FEATURES, target)[0])
    ]
    assert not np.array_equal(*means)
    params |= state.mutable_state
    draws = guide.sample_posterior(jr.key(0), params, FEATURES, target, sample_shape=(3,))
    assert draws["scale"].shape == (3,)


# SVI


def test_options_of_svi():
    """Compiled or not, stable or not, mapped or in turn: an update is the same."""
    guide = quick(conjugate)
    svi, state, _ = prepare(conjugate, guide, DATA)
    expected = svi.get_params(svi.update(state, DATA)[0])
    for update in (svi.update, svi.stable_update):
        found = svi.get_params(jax.jit(update)(state, DATA)[0])
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-6)
    mapped, in_turn = (
        SVI(conjugate, guide, optax.adam(0.01), Trace_ELBO(2, vectorize_particles=mapped)).run(
            jr.key(0), 3, DATA, progress_bar=mapped
        )
        for mapped in (True, False)
    )
    np.testing.assert_allclose(mapped.losses, in_turn.losses, rtol=1e-4)


@pytest.mark.parametrize("loss", [Trace_ELBO, TraceMeanField_ELBO])
def test_losses_by_site_sum_to_the_loss(loss):
    guide = quick(conjugate)
    _, _, params = prepare(conjugate, guide, DATA)
    by_site, total = (
        loss(sum_sites=sum_sites).loss(jr.key(0), params, conjugate, guide, DATA)
        for sum_sites in (False, True)
    )
    assert set(by_site) == {"auto_log_q", "mu", "x"}
    np.testing.assert_allclose(sum(by_site.values()), total, rtol=1e-5)
