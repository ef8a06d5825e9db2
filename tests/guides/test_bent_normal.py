"""The bent normal as a guide, as a base, and its warm start."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.distributions import biject_to
from numpyro.infer import SVI, Trace_ELBO, init_to_value
from numpyro.infer.autoguide import AutoNormal

import relbo
from programs import DATA, NUM, conjugate, conjugate_evidence, elbos, fit, local
from relbo.guides.bends import (
    BendTransform,
    PlacedAffine,
    bend_features,
    triangular,
)
from targets import mean_and_error


def bend(size=4, num_parents=3):
    return BendTransform(0.3 * jr.normal(jr.key(0), (4, num_parents, 2, size)))


def test_a_bend_is_triangular_and_has_an_inverse():
    transform, u = bend(), jr.normal(jr.key(1), (4,))
    jacobian = jax.jacobian(transform)(u)
    np.testing.assert_allclose(jnp.triu(jacobian, 1), 0.0, atol=1e-6)
    np.testing.assert_allclose(
        transform.log_abs_det_jacobian(u, transform(u)),
        jnp.linalg.slogdet(jacobian)[1],
        rtol=1e-4,
    )
    np.testing.assert_allclose(transform.inv(transform(u)), u, rtol=1e-4, atol=1e-5)


def test_far_away_a_bend_is_affine():
    transform = bend()
    at = lambda far: transform(jnp.array([far, 0.0, 0.0, 1.0]))[1:]
    np.testing.assert_allclose(at(1e3), at(1e4), rtol=1e-4, atol=1e-4)


def plain_features(x):
    w = x / (1.0 + (x / 5.0) ** 4) ** 0.25
    hinge = lambda v: 0.5 * jax.nn.softplus(2.0 * v)
    return jnp.stack([w, hinge(w + 1.0), hinge(w - 1.0), w**2 - 1.0])


def test_the_derivatives_of_a_bend_are_those_of_its_formula():
    ours, plain = (lambda x, f=f: f(x[None])[..., 0] for f in (bend_features, plain_features))
    x = jnp.array([-30.0, -4.0, -0.7, 0.0, 1.3, 6.0, 40.0])
    for _ in range(3):
        np.testing.assert_allclose(jax.vmap(ours)(x), jax.vmap(plain)(x), rtol=1e-4, atol=2e-5)
        ours, plain = jax.jacfwd(ours), jax.jacfwd(plain)


def test_a_placed_affine_map_is_an_affine_map_in_another_order():
    loc, tril = jnp.arange(3.0), jnp.tril(jnp.ones((3, 3))) * 2.0
    v = jr.normal(jr.key(2), (5, 3))
    transform = PlacedAffine(loc, tril, jnp.array([1.9, 0.0, 1.1]))
    expected = (loc + v @ tril.T)[:, jnp.array([2, 0, 1])]
    np.testing.assert_allclose(transform(v), expected, rtol=1e-5)
    np.testing.assert_allclose(transform.inv(expected), v, rtol=1e-4, atol=1e-5)
    log_det = jnp.linalg.slogdet(jax.jacobian(transform)(v[0]))[1]
    np.testing.assert_allclose(transform.log_abs_det_jacobian(v, expected), log_det, rtol=1e-5)


def test_a_triangular_parameter_keeps_its_value():
    transform = biject_to(triangular)
    tril = jnp.array([[2.0, 0.0], [-3.0, 0.1]])
    np.testing.assert_allclose(transform(transform.inv(tril)), tril, rtol=1e-5)
    assert triangular(transform(jr.normal(jr.key(3), (4, 4))))


def funnel():
    # By name, the scale would come last.
    spread = numpyro.sample("spread", dist.Normal(0.0, 1.35))
    numpyro.sample("inner", dist.Normal(0.0, jnp.exp(spread)))


def test_the_scale_comes_first():
    guide = relbo.AutoBentNormal(funnel)
    params = fit(funnel, guide, num_iterations=1)

    bends = jnp.zeros((4, 2, 2, 2)).at[0, 0, 0, 1].set(1.35)
    exact = {
        "auto_place": params["auto_place"],
        "auto_loc": jnp.zeros(2),
        "auto_scale_tril": jnp.diag(jnp.array([1.35, 1.0])),
        "auto_bends": bends,
    }
    values = elbos(funnel, guide, exact)
    # Beyond five standard deviations it bends no further.
    assert abs(jnp.mean(values)) < 0.02


def scale_last(z):
    spread, inner = z[3], z[:3]
    return dist.Normal(0.0, 1.0).log_prob(spread) + jnp.sum(
        dist.Normal(0.0, jnp.exp(spread)).log_prob(inner)
    )


def test_a_warm_start_finds_the_scale_and_the_best_normal():
    model = relbo.model_from_logdensity(scale_last, jnp.zeros(4))
    guide = relbo.AutoRefined(model, num_steps=0)
    warm = guide.warm_start(0)
    assert jnp.argsort(warm["auto_place"])[0] == 3
    svi = SVI(model, guide, optax.adam(0.01), Trace_ELBO(num_particles=2000))
    state = svi.init(jr.key(1), init_params=warm)
    assert svi.evaluate(state) < 2.0


def test_a_warm_start_of_a_conjugate_model_is_exact():
    guide = relbo.AutoRefined(conjugate)
    warm = guide.warm_start(0, DATA)
    assert warm["auto_scale_tril"] == pytest.approx((NUM + 1 / 9) ** -0.5, rel=1e-3)
    params = {**fit(conjugate, guide, DATA, num_iterations=1), **warm}
    mean, error = mean_and_error(elbos(conjugate, guide, params, DATA))
    assert conjugate_evidence() - 0.02 - 4 * error < mean < conjugate_evidence() + 4 * error


def test_the_default_base_is_the_richest_that_is_affordable():
    def large():
        numpyro.sample("z", dist.Normal(0.0, 1.0).expand([201]).to_event(1))

    def base_of(model, *args):
        guide = relbo.AutoRefined(model, num_steps=1)
        guide.set_up(*args)
        return type(guide.base)

    with numpyro.handlers.seed(rng_seed=0):
        assert base_of(funnel) is relbo.AutoBentNormal
        assert base_of(large) is relbo.AutoStretchedNormal
        assert base_of(local, DATA, 5) is AutoNormal


def test_a_draw_that_diverges_leaves_the_gradient_finite():
    """In plain SVI one NaN gradient would end the training."""

    def program():
        z = numpyro.sample("z", dist.ImproperUniform(dist.constraints.real, (), ()))
        numpyro.factor("edge", jnp.sqrt(1.0 - z) - 0.5 * z**2)

    start = {"init_loc_fn": init_to_value(values={"z": 0.9}), "init_scale": 1.0}
    guide = relbo.AutoRefined(program, num_steps=2, **start)
    svi = SVI(program, guide, optax.adam(0.01), Trace_ELBO(num_particles=16))
    state, loss = svi.update(svi.init(jr.key(0)))
    assert not jnp.isfinite(loss)
    for value in jax.tree.leaves(svi.get_params(state)):
        assert jnp.all(jnp.isfinite(value))
