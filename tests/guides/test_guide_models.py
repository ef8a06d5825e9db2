"""Models with parameters, networks, state, masks and loops, and plain log densities."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from numpyro import handlers
from numpyro.infer import Trace_ELBO
from numpyro.infer.util import log_density
from numpyro.primitives import mutable

import relbo
from programs import DATA, FEATURES, LABELS, NUM, assert_mean_weight, elbos, fit, prepare
from targets import mean_and_error


def of_scale(data):
    scale = numpyro.param("scale", 5.0, constraint=dist.constraints.greater_than(0.1))
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    numpyro.sample("x", dist.Normal(mu, scale).expand([NUM]).to_event(1), obs=data)


@pytest.mark.slow
def test_parameters_of_the_model_are_learned():
    params = fit(of_scale, relbo.AutoRefined(of_scale, num_steps=4), DATA, num_iterations=400)
    assert params["scale"] == pytest.approx(float(jnp.std(DATA)), rel=0.15)


def test_current_parameters_of_the_model_take_effect():
    guide = relbo.AutoRefined(of_scale, kernel=relbo.Underdamped(0.3), num_steps=4)
    _, _, params = prepare(of_scale, guide, DATA)
    assert params["scale"] == pytest.approx(5.0)
    draw = jax.jit(
        lambda scale: guide.sample_posterior(
            jr.key(0), {**params, "scale": scale}, DATA, sample_shape=(500,)
        )["mu"]
    )
    # A sharper likelihood moves the same base draws further.
    assert jnp.mean(jnp.abs(draw(0.5) - draw(5.0))) > 0.05
    with pytest.raises(ValueError, match=r"params: the model's \['scale'\] are missing"):
        guide.sample_posterior(jr.key(0), {"auto_loc": jnp.zeros(1)}, DATA)


@pytest.mark.parametrize("kind", ["equinox", pytest.param("nnx", marks=pytest.mark.slow)])
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
    draws = guide.sample_posterior(jr.key(0), params, FEATURES, LABELS, sample_shape=(3,))
    assert draws["bias"].shape == (3,)


def normed(data):
    """The running mean of the data is mutable state, as in batch norm, with a run counter."""
    state = mutable("norm", {"mean": jnp.array(0.0), "runs": jnp.array(0)})
    state["mean"] = 0.5 * state["mean"] + 0.5 * jnp.mean(data)
    state["runs"] = state["runs"] + 1
    mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
    with numpyro.plate("data", NUM):
        numpyro.sample("x", dist.Normal(mu + state["mean"], 1.0), obs=data)


LOSSES = {"trace": None, "together": relbo.RefinedELBO(3)}


@pytest.mark.parametrize("loss", LOSSES)
def test_mutable_state_is_updated_once_per_step(loss):
    """The runs of the model inside the kernel do not change it."""
    guide = relbo.AutoRefined(normed, num_steps=2)
    svi, state, _ = prepare(normed, guide, DATA, loss=LOSSES[loss])
    update = jax.jit(svi.update)
    for runs in (1, 2, 3):
        np.testing.assert_allclose(
            state.mutable_state["norm"]["mean"], (1 - 0.5**runs) * jnp.mean(DATA), rtol=1e-5
        )
        assert state.mutable_state["norm"]["runs"] == runs
        state, value = update(state, DATA)
        assert jnp.isfinite(value)


def test_current_mutable_state_takes_effect_in_draws():
    guide = relbo.AutoRefined(normed, kernel=relbo.Underdamped(0.3), num_steps=2)
    _, _, params = prepare(normed, guide, DATA)
    draw = jax.jit(
        lambda mean: guide.sample_posterior(
            jr.key(0), {**params, "norm": {"mean": mean, "runs": 1}}, DATA, sample_shape=(50,)
        )["mu"]
    )
    # The larger the state, the less is left for mu to explain.
    assert jnp.mean(draw(0.0) - draw(4.0)) > 0.02
    with pytest.raises(ValueError, match=r"\['norm'\] are missing.*state.mutable_state"):
        guide.sample_posterior(jr.key(0), params, DATA)


def test_scale_and_mask_are_respected():
    """A masked observation does not count, and one scaled by 0.5 counts half."""
    used = jnp.arange(NUM) < 8

    def program(data):
        mu = numpyro.sample("mu", dist.Normal(0.0, 3.0))
        with numpyro.plate("data", NUM), handlers.mask(mask=used), handlers.scale(scale=0.5):
            numpyro.sample("x", dist.Normal(mu, 1.0), obs=data)

    guide = relbo.AutoRefined(program, num_steps=2)
    params = fit(program, guide, DATA, num_iterations=400)
    draws = guide.sample_posterior(jr.key(0), params, DATA, sample_shape=(2000,))["mu"]
    variance = 1 / (4 + 1 / 9)
    expected = variance * 0.5 * jnp.sum(DATA[used])
    assert jnp.mean(draws) == pytest.approx(float(expected), abs=0.1)
    assert jnp.std(draws) == pytest.approx(variance**0.5, rel=0.25)


def test_a_while_loop_with_forward_mode():
    def program():
        z = numpyro.sample("z", dist.Normal(0.0, 1.0))
        halved = jax.lax.while_loop(
            lambda carry: carry[1] < 3, lambda carry: (carry[0] * 0.5, carry[1] + 1), (z, 0)
        )[0]
        numpyro.sample("x", dist.Normal(halved, 1.0), obs=1.0)

    guide = relbo.AutoRefined(program, num_steps=2, forward_mode_differentiation=True)
    assert guide.refinement.execution.forward_mode_differentiation
    params = fit(program, guide, num_iterations=100, forward_mode_differentiation=True)
    evidence = float(dist.Normal(0.0, (1 + 0.125**2) ** 0.5).log_prob(1.0))
    mean, error = mean_and_error(elbos(program, guide, params))
    assert evidence - 0.2 < mean < evidence + 4 * error


def test_log_density_over_a_pytree():
    logdensity_fn = lambda z: -0.5 * jnp.sum(z["a"] ** 2) - 0.5 * (z["b"] - 1.0) ** 2 / 4
    model = relbo.model_from_logdensity(logdensity_fn, {"a": jnp.zeros(2), "b": jnp.array(0.5)})
    guide = relbo.AutoRefined(model, num_steps=2, init_scale=2.0)
    _, _, params = prepare(model, guide)
    evidence = 1.5 * np.log(2 * np.pi) + np.log(2.0)
    assert_mean_weight(elbos(model, guide, params), evidence)
    position = model.to_position(guide.sample_posterior(jr.key(0), params, sample_shape=(5,)))
    assert position["a"].shape == (5, 2)
    with pytest.raises(ValueError, match="at least one array"):
        relbo.model_from_logdensity(logdensity_fn, {})


def decoder(images):
    """A small autoencoder's model: its decoder is a linear map to logits."""
    weights = numpyro.param("decoder", lambda key: 0.5 * jr.normal(key, (2, 6)))
    with numpyro.plate("images", len(images)):
        z = numpyro.sample("z", dist.Normal(jnp.zeros(2), 1.0).to_event(1))
        numpyro.sample("x", dist.Bernoulli(logits=z @ weights).to_event(1), obs=images)


def encode(images):
    weights = numpyro.param("encoder", lambda key: 0.5 * jr.normal(key, (6, 2)))
    with numpyro.plate("images", len(images)):
        numpyro.sample("z", dist.Normal(images @ weights, 0.5).to_event(1))


def test_a_frozen_model_learns_only_where_the_steps_end():
    images = jr.bernoulli(jr.key(0), 0.4, (3, 6)).astype(jnp.float32)
    refinement = relbo.Refinement(
        relbo.SGD(0.1), relbo.GaussianAccount(), num_steps=2, space="unconstrained"
    )
    learning, frozen = (
        relbo.refine(encode, decoder, refinement=refinement, freeze_model=freeze)
        for freeze in (False, True)
    )
    _, _, params = prepare(decoder, learning, images)
    prepare(decoder, frozen, images)

    def value_and_grad(guide):
        loss = lambda params: Trace_ELBO().loss(jr.key(2), params, decoder, guide, images)
        return jax.jit(jax.value_and_grad(loss))(params)

    value, gradient = value_and_grad(learning)
    frozen_value, frozen_gradient = value_and_grad(frozen)
    np.testing.assert_allclose(frozen_value, value, rtol=1e-6)
    decoders = [one.pop("decoder") for one in (gradient, frozen_gradient)]
    for name in gradient:
        np.testing.assert_allclose(frozen_gradient[name], gradient[name], rtol=1e-5, atol=1e-7)
    assert not np.allclose(*decoders)

    # The loss splits its key, and gives the guide the second half.
    _, guide_key = jr.split(jr.key(2))
    with handlers.block(), handlers.seed(rng_seed=guide_key):
        codes = handlers.substitute(frozen, data=params)(images)["z"]

    def at_the_end(weights):
        values = {"decoder": weights, "z": codes}
        return -log_density(handlers.seed(decoder, 0), (images,), {}, values)[0]

    expected = jax.grad(at_the_end)(params["decoder"])
    np.testing.assert_allclose(decoders[1], expected, rtol=1e-4, atol=1e-6)
