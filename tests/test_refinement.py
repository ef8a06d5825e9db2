"""Refinement: what it refuses, what it keeps, how long it walks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import relbo
from targets import mixture

BASE = relbo.DiagonalNormal(jnp.zeros(2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: relbo.Refinement(relbo.SGLD(), num_steps=-1), "num_steps: expected 0 or more"),
        (lambda: relbo.Refinement(relbo.SGLD(), num_steps=1, mode="slow"), "mode: expected"),
        (lambda: relbo.Refinement(relbo.SGLD(), num_steps=1, space="flat"), "space: expected"),
        (
            lambda: relbo.Refinement(relbo.SGLD(), num_steps=1, max_score=0.0),
            "max_score: expec",
        ),
        (lambda: relbo.SGLD(-0.1), r"step_size: expected numbers in \(0, inf\)"),
        (lambda: relbo.SGLD(0.0), "step_size"),
        (lambda: relbo.SGD(jnp.nan), "step_size"),
        (lambda: relbo.Underdamped(0.1, 1.0), r"damping: expected numbers in \(0, 1.0\)"),
        (lambda: relbo.Underdamped(num_leapfrogs=0), "num_leapfrogs"),
        (lambda: relbo.SVGD(bandwidth=-1.0), "bandwidth"),
        (lambda: relbo.PSGLD(metric="adam"), "metric"),
        (lambda: relbo.PSGLD(damping=0.0), "damping"),
        (lambda: relbo.PerStep(jnp.array(1.0)), "leading axis"),
        (lambda: relbo.Annealing(0), "num_steps"),
        (
            lambda: relbo.Refinement(relbo.SGLD(relbo.PerStep(jnp.ones(3))), num_steps=2),
            "3 entries for num_steps=2",
        ),
        (
            lambda: relbo.Refinement(relbo.SGLD(), num_steps=2, anneal=relbo.Annealing(3)),
            "anneal has 3 entries",
        ),
        (lambda: relbo.DiagonalNormal(jnp.zeros(2), -1.0), "scale"),
        (lambda: relbo.DiagonalNormal(jnp.zeros(2), jnp.ones(3)), "scale must"),
        (lambda: relbo.MultivariateNormal(jnp.zeros((2, 2))), "expected a vector"),
        (lambda: relbo.MultivariateNormal(jnp.zeros(2), jnp.eye(3)), "scale_tril"),
    ],
)
def test_static_mistakes_are_refused_at_construction(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("refinement", "logdensity_fn", "message"),
    [
        (relbo.Refinement(relbo.SGLD(), num_steps=1), lambda z: z, "one real number"),
        (
            relbo.Refinement(relbo.SGLD(), num_steps=1),
            lambda z: jnp.sum(z).astype(jnp.int32),
            "one real number",
        ),
        (
            relbo.Refinement(relbo.SGLD(jnp.full(3, 0.1)), num_steps=1),
            mixture,
            "structure and the shapes",
        ),
        (
            relbo.Refinement(relbo.SGLD({"a": jnp.full(2, 0.1)}), num_steps=1),
            mixture,
            "structure and the shapes",
        ),
        (
            relbo.Refinement(relbo.SVGD(), relbo.Particle(), num_steps=1),
            mixture,
            "num_particles: SVGD",
        ),
    ],
)
def test_mistakes_that_need_the_position_are_refused_at_the_call(
    refinement, logdensity_fn, message
):
    with pytest.raises(ValueError, match=message):
        refinement(jr.key(0), BASE, logdensity_fn)


def test_annealing_needs_a_density_to_start_from():
    refinement = relbo.Refinement(relbo.SGLD(), num_steps=1, anneal=True)
    with pytest.raises(ValueError, match="Dirac has no density"):
        refinement(jr.key(0), relbo.Dirac(jnp.zeros(2)), mixture)
    flow = relbo.TransformedNormal(lambda u: (u, jnp.zeros(())), jnp.zeros(2))
    with pytest.raises(ValueError, match="whitened"):
        refinement(jr.key(0), flow, mixture)


def test_traced_negative_step_size_is_a_named_failure():
    @jax.jit
    def run(step_size):
        refinement = relbo.Refinement(relbo.SGLD(step_size), num_steps=2)
        return refinement(jr.key(0), BASE, mixture)

    assert run(-0.1).result == relbo.RESULTS.non_finite_gradient
    assert jnp.all(jnp.isfinite(run(-0.1).position))
    assert run(0.1).result == relbo.RESULTS.successful


def test_last_step_that_leaves_the_finite_numbers_is_seen():
    refinement = relbo.Refinement(
        relbo.SGD(1e38), relbo.Particle(), num_steps=1, max_step_size=2e38
    )
    refined = refinement(jr.key(0), BASE, lambda z: -1e3 * jnp.sum(z**2))
    assert refined.result == relbo.RESULTS.non_finite_position
    assert jnp.all(jnp.isfinite(refined.position))


def test_schedules_run_step_by_step_and_hold_their_last_value():
    """SGD on a linear density moves by the sum of its step sizes."""
    kernel = relbo.SGD(relbo.PerStep(jnp.array([0.1, 0.2, 0.4])))
    refinement = relbo.Refinement(kernel, relbo.Particle(), num_steps=3)
    base = relbo.Dirac(jnp.zeros(2))
    run = lambda refinement: refinement(jr.key(0), base, jnp.sum).position
    np.testing.assert_allclose(run(refinement), 0.7, rtol=1e-6)
    np.testing.assert_allclose(run(refinement.extended(5)), 1.5, rtol=1e-6)


def test_schedule_by_step_and_coordinate_serves_the_move_back_too():
    """A pair of Langevin steps by hand, each with its own sizes, forwards and backwards."""
    sizes = jnp.array([[0.1, 0.2], [0.3, 0.05]])
    refinement = relbo.Refinement(relbo.SGLD(relbo.PerStep(sizes)), num_steps=2)
    one = refinement(jr.key(2), BASE, mixture)
    swapped = relbo.Refinement(relbo.SGLD(relbo.PerStep(sizes[::-1])), num_steps=2)
    assert not np.allclose(one.position, swapped(jr.key(2), BASE, mixture).position)
    weights = eqx.filter_jit(relbo.refined_objective)(
        jr.key(0), refinement, relbo.DiagonalNormal(jnp.zeros(2), 2.5), mixture,
        num_particles=20_000,
    ).log_weights  # fmt: skip
    mean, error = jnp.mean(jnp.exp(weights)), jnp.std(jnp.exp(weights)) / 20_000**0.5
    assert abs(mean - 1) < 4 * error


def test_extended_walk_ends_at_temperature_one():
    refinement = relbo.Refinement(relbo.SGLD(1e-9), num_steps=2, anneal=True)
    longer = refinement.extended(40)
    assert longer.num_steps == 40
    assert refinement.num_steps == 2
    refined = longer(jr.key(0), BASE, mixture)
    assert refined.result == relbo.RESULTS.successful
    with pytest.raises(ValueError, match="at least the 2 trained"):
        refinement.extended(1)


def test_long_extension_samples_the_target():
    """The learned sampler goes on: from a base far away to the target's own moments."""
    refinement = relbo.Refinement(relbo.SGLD(0.02), num_steps=1).extended(300)
    base = relbo.DiagonalNormal(jnp.full(1, -3.0), 0.1)
    draws = jax.jit(
        lambda key: (
            refinement(
                key, base, lambda z: -0.5 * jnp.sum((z - 1.0) ** 2), num_particles=4000
            ).position
        )
    )(jr.key(0))
    assert abs(jnp.mean(draws) - 1.0) < 0.07
    assert abs(jnp.var(draws) - 1.0) < 0.12


def test_surrogates_get_a_step_cap_and_bounds_get_none():
    surrogate = relbo.Refinement(relbo.SGD(0.1), relbo.Particle(), num_steps=1)
    assert surrogate.kernel.step_size.upper == pytest.approx(0.2)
    assert surrogate.kernel.step_size.value == pytest.approx(0.1)
    pushed = eqx.tree_at(lambda r: r.kernel.step_size.raw, surrogate, jnp.array(1e3))
    assert pushed.kernel.step_size.value <= 0.2 + 1e-6
    bound = relbo.Refinement(relbo.SGLD(0.1), num_steps=1)
    assert bound.kernel.step_size.upper is None
    asked = relbo.Refinement(relbo.SGLD(0.1), num_steps=1, max_step_size=0.5)
    assert asked.kernel.step_size.upper == 0.5


def test_dirac_is_walked_as_it_is_and_is_no_bound():
    refinement = relbo.Refinement(
        relbo.SGD(0.1), relbo.Particle(), num_steps=50, space="whitened"
    )
    estimate = relbo.refined_objective(
        jr.key(0), refinement, relbo.Dirac(jnp.full(2, 4.0)), lambda z: -0.5 * jnp.sum(z**2)
    )
    assert estimate.bound.valid is False
    assert abs(estimate.value) < 1e-3


def test_independent_particles_are_independent_draws():
    refinement = relbo.Refinement(relbo.SGLD(), num_steps=2)
    refined = refinement(jr.key(0), BASE, mixture, num_particles=5)
    assert refined.position.shape == (5, 2)
    assert refined.log_q.shape == (5,)
    assert len({float(z) for z in refined.position[:, 0]}) == 5
    for key, position in zip(jr.split(jr.key(0), 5), refined.position, strict=True):
        one = refinement(key, BASE, mixture)
        np.testing.assert_allclose(one.position, position, rtol=1e-5)


def test_memory_with_rematerialisation_hardly_grows():
    """The benchmark prints the ratio for a decoder; here a smaller one guards it."""
    matrix = jnp.ones((8, 4096)) / 8
    logdensity_fn = lambda z: -jnp.sum(jnp.tanh(z @ matrix) ** 2)

    def temporary(num_steps):
        refinement = relbo.Refinement(relbo.SGLD(0.1), num_steps=num_steps, remat=True)
        grad = jax.jit(
            jax.grad(
                lambda loc: relbo.refined_objective(
                    jr.key(0), refinement, relbo.DiagonalNormal(loc), logdensity_fn,
                    num_particles=16,
                ).value
            )
        )  # fmt: skip
        analysis = grad.lower(jnp.zeros(8)).compile().memory_analysis()
        return analysis.temp_size_in_bytes

    assert temporary(64) < 1.5 * temporary(8)


@pytest.mark.parametrize(
    ("kind", "entropy"),
    [(relbo.SGD, relbo.Gaussian()), (relbo.Underdamped, relbo.ReverseKernel())],
)
def test_steps_laid_out_one_after_another_are_the_same_steps(kind, entropy):
    def objective(step_size, unroll):
        refinement = relbo.Refinement(kind(step_size), entropy, num_steps=3, unroll=unroll)
        return relbo.refined_objective(jr.key(0), refinement, BASE, mixture).value

    loop, laid_out = (
        jax.jit(jax.value_and_grad(lambda s, u=u: objective(s, u))).lower(0.1)
        for u in (False, True)
    )
    assert laid_out.as_text().count("while") < loop.as_text().count("while")
    found = [lowered.compile()(0.1) for lowered in (loop, laid_out)]
    np.testing.assert_allclose(*found, rtol=1e-5)


def test_a_longer_walk_is_a_loop_again():
    refinement = relbo.Refinement(relbo.SGD(0.1), relbo.Gaussian(), num_steps=3, unroll=True)
    assert not refinement.extended(1_000).unroll


def test_a_cap_on_the_score_bounds_a_move_and_leaves_a_gentle_one_alone():
    steep = lambda z: -1e4 * jnp.sum(z**2)
    gentle = lambda z: -1e-3 * jnp.sum(z**2)

    def moved(logdensity_fn, max_score):
        refinement = relbo.Refinement(
            relbo.SGD(0.1), relbo.Particle(), num_steps=1, max_score=max_score
        )
        start = relbo.Refinement(relbo.SGD(0.1), relbo.Particle(), num_steps=1)(
            jr.key(0), BASE, lambda z: 0.0 * jnp.sum(z)
        )
        return refinement(jr.key(0), BASE, logdensity_fn).position - start.position

    np.testing.assert_allclose(jnp.abs(moved(steep, 5.0)), 0.5, rtol=1e-4)
    np.testing.assert_allclose(moved(gentle, 5.0), moved(gentle, None), atol=1e-6)
    np.testing.assert_array_equal(moved(steep, jnp.inf), moved(steep, None))


@jax.custom_jvp
def dear_value(z):
    """A normal's log density with a sine that its gradient lacks."""
    return -0.5 * jnp.sum(z**2) + 0.0 * jnp.sum(jnp.sin(z))


dear_value.defjvps(lambda tangent, _, z: -jnp.dot(z, tangent))


@pytest.mark.parametrize(
    ("entropy", "is_computed"), [(relbo.Gaussian(), False), (relbo.ReverseKernel(), True)]
)
def test_the_density_is_not_computed_where_the_steps_need_its_score_alone(entropy, is_computed):
    kernel = relbo.SGLD(0.1) if is_computed else relbo.SGD(0.1)
    refinement = relbo.Refinement(kernel, entropy, num_steps=2)
    run = jax.jit(lambda key: refinement(key, BASE, dear_value)[:3])
    program = run.lower(jr.key(0)).compile().as_text()
    assert ("sine(" in program) == is_computed
