"""Refinement: its options, errors, numbers of draws and longer walks."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import relbo
from registry import plain_refinement, refine
from relbo.core.default_kernel import INITIAL_STEP_SIZE
from relbo.core.loop import MAX_GRADIENT, walk
from targets import mixture

BASE = relbo.DiagonalNormal(jnp.zeros(2))


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: plain_refinement(relbo.SGLD(), num_steps=-1),
            "num_steps: expected an integer of 0",
        ),
        (lambda: plain_refinement(relbo.SGLD(), num_steps=1, mode="slow"), "mode: expected"),
        (lambda: plain_refinement(relbo.SGLD(), num_steps=1, space="flat"), "space: expected"),
        (
            lambda: plain_refinement(relbo.SGLD(), num_steps=1, max_score=0.0),
            "max_score: expec",
        ),
        (
            lambda: plain_refinement(relbo.SGLD(), num_steps=2.0),
            "num_steps: expected an integer",
        ),
        (
            lambda: plain_refinement(relbo.SGLD(), max_step_size=-1.0),
            "max_step_size: expected a positive",
        ),
        (lambda: plain_refinement(relbo.SGLD), "kernel: expected an instance such as"),
        (
            lambda: plain_refinement(relbo.SGLD(), "exact"),
            "account: expected an instance such as",
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
            lambda: plain_refinement(relbo.SGLD(relbo.PerStep(jnp.ones(3))), num_steps=2),
            "3 entries for num_steps=2",
        ),
        (
            lambda: plain_refinement(relbo.SGLD(), num_steps=2, anneal=relbo.Annealing(3)),
            "anneal has 3 entries",
        ),
        (lambda: relbo.DiagonalNormal(jnp.zeros(2), -1.0), "scale"),
        (lambda: relbo.DiagonalNormal(jnp.zeros(2), jnp.ones(3)), "scale must"),
        (lambda: relbo.MultivariateNormal(jnp.zeros((2, 2))), r"loc: expected the shape \[d\]"),
        (lambda: relbo.MultivariateNormal(jnp.zeros(2), jnp.eye(3)), "scale_tril"),
    ],
)
def test_wrong_options_are_refused_at_construction(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("refinement", "logdensity_fn", "message"),
    [
        (plain_refinement(relbo.SGLD(), num_steps=1), lambda z: z, "one real number"),
        (
            plain_refinement(relbo.SGLD(), num_steps=1),
            lambda z: jnp.sum(z).astype(jnp.int32),
            "one real number",
        ),
        (
            plain_refinement(relbo.SGLD(jnp.full(3, 0.1)), num_steps=1),
            mixture,
            "structure and the shapes",
        ),
        (
            plain_refinement(relbo.SGLD({"a": jnp.full(2, 0.1)}), num_steps=1),
            mixture,
            "structure and the shapes",
        ),
        (
            plain_refinement(relbo.SVGD(), relbo.ParticleAccount(), num_steps=1),
            mixture,
            "num_particles: SVGD",
        ),
    ],
)
def test_errors_that_need_the_position_are_raised_at_the_call(
    refinement, logdensity_fn, message
):
    with pytest.raises(ValueError, match=message):
        refinement(jr.key(0), BASE, logdensity_fn)


def test_annealing_needs_a_density_to_start_from():
    refinement = plain_refinement(relbo.SGLD(), num_steps=1, anneal=True)
    with pytest.raises(ValueError, match="Dirac has no density"):
        refinement(jr.key(0), relbo.Dirac(jnp.zeros(2)), mixture)
    flow = relbo.TransformedNormal(lambda u: (u, jnp.zeros(())), jnp.zeros(2))
    with pytest.raises(ValueError, match="whitened"):
        refinement(jr.key(0), flow, mixture)


def test_traced_negative_step_size_is_a_named_failure():
    @jax.jit
    def run(step_size):
        refinement = plain_refinement(relbo.SGLD(step_size), num_steps=2)
        return refinement(jr.key(0), BASE, mixture)

    assert run(-0.1).result == relbo.RESULTS.non_finite_gradient
    assert jnp.all(jnp.isfinite(run(-0.1).position))
    assert run(0.1).result == relbo.RESULTS.successful


def test_a_last_step_to_a_non_finite_position_is_reported():
    refinement = plain_refinement(
        relbo.SGD(1e38), relbo.ParticleAccount(), num_steps=1, max_step_size=2e38
    )
    refined = refine(refinement, jr.key(0), BASE, lambda z: -1e3 * jnp.sum(z**2))
    assert refined.result == relbo.RESULTS.non_finite_position
    assert jnp.all(jnp.isfinite(refined.position))


def test_schedules_run_step_by_step_and_keep_their_last_value():
    """SGD on a linear density moves by the sum of its step sizes."""
    kernel = relbo.SGD(relbo.PerStep(jnp.array([0.1, 0.2, 0.4])))
    refinement = plain_refinement(kernel, relbo.ParticleAccount(), num_steps=3)
    base = relbo.Dirac(jnp.zeros(2))
    run = lambda refinement: refine(refinement, jr.key(0), base, jnp.sum).position
    np.testing.assert_allclose(run(refinement), 0.7, rtol=1e-6)
    np.testing.assert_allclose(run(refinement.extended(5)), 1.5, rtol=1e-6)


def test_reverse_moves_use_the_schedule_by_step_and_coordinate():
    """Weights average to the evidence only if both moves of a step have the same sizes."""
    sizes = jnp.array([[0.1, 0.2], [0.3, 0.05]])
    refinement = plain_refinement(relbo.SGLD(relbo.PerStep(sizes)), num_steps=2)
    one = refine(refinement, jr.key(2), BASE, mixture)
    swapped = plain_refinement(relbo.SGLD(relbo.PerStep(sizes[::-1])), num_steps=2)
    other = refine(swapped, jr.key(2), BASE, mixture)
    assert not np.allclose(one.position, other.position)
    weights = eqx.filter_jit(relbo.refined_objective)(
        jr.key(0), refinement, relbo.DiagonalNormal(jnp.zeros(2), 2.5), mixture,
        num_draws=20_000,
    ).log_weights  # fmt: skip
    mean, error = jnp.mean(jnp.exp(weights)), jnp.std(jnp.exp(weights)) / 20_000**0.5
    assert abs(mean - 1) < 4 * error


def test_extended_walk_ends_at_temperature_one():
    refinement = plain_refinement(relbo.SGLD(1e-9), num_steps=2, anneal=True)
    longer = refinement.extended(40)
    assert longer.num_steps == 40
    assert refinement.num_steps == 2
    refined = refine(longer, jr.key(0), BASE, mixture)
    assert refined.result == relbo.RESULTS.successful
    with pytest.raises(ValueError, match="at least the 2 trained"):
        refinement.extended(1)


def test_long_extension_samples_the_target():
    """The learned sampler continues from a base far away to the moments of the target."""
    refinement = plain_refinement(relbo.SGLD(0.02), num_steps=1).extended(300)
    base = relbo.DiagonalNormal(jnp.full(1, -3.0), 0.1)
    draws = jax.jit(
        lambda key: (
            refinement(
                key, base, lambda z: -0.5 * jnp.sum((z - 1.0) ** 2), num_draws=4000
            ).position
        )
    )(jr.key(0))
    assert abs(jnp.mean(draws) - 1.0) < 0.07
    assert abs(jnp.var(draws) - 1.0) < 0.12


def test_surrogates_have_a_cap_on_the_step_size_and_bounds_have_none():
    surrogate = plain_refinement(relbo.SGD(0.1), relbo.ParticleAccount(), num_steps=1)
    assert surrogate.kernel.step_size.upper == pytest.approx(0.2)
    assert surrogate.kernel.step_size.value == pytest.approx(0.1)
    pushed = eqx.tree_at(lambda r: r.kernel.step_size.raw, surrogate, jnp.array(1e3))
    assert pushed.kernel.step_size.value <= 0.2 + 1e-6
    bound = plain_refinement(relbo.SGLD(0.1), num_steps=1)
    assert bound.kernel.step_size.upper is None
    asked = plain_refinement(relbo.SGLD(0.1), num_steps=1, max_step_size=0.5)
    assert asked.kernel.step_size.upper == 0.5


def test_a_dirac_is_walked_in_its_own_coordinates_and_is_not_a_bound():
    refinement = plain_refinement(
        relbo.SGD(0.1), relbo.ParticleAccount(), num_steps=50, space="whitened"
    )
    estimate = relbo.refined_objective(
        jr.key(0), refinement, relbo.Dirac(jnp.full(2, 4.0)), lambda z: -0.5 * jnp.sum(z**2)
    )
    assert estimate.bound.valid is False
    assert abs(estimate.value) < 1e-3


def test_draws_are_independent():
    refinement = plain_refinement(relbo.SGLD(), num_steps=2)
    refined = refine(refinement, jr.key(0), BASE, mixture, num_draws=5)
    assert refined.position.shape == (5, 2)
    assert refined.log_q.shape == (5,)
    assert len({float(z) for z in refined.position[:, 0]}) == 5
    for key, position in zip(jr.split(jr.key(0), 5), refined.position, strict=True):
        one = refine(refinement, key, BASE, mixture)
        np.testing.assert_allclose(one.position, position, rtol=1e-5)


def test_memory_with_rematerialisation_grows_little_with_the_steps():
    """A smaller version of `benchmarks/memory.py`."""
    matrix = jnp.ones((8, 4096)) / 8
    logdensity_fn = lambda z: -jnp.sum(jnp.tanh(z @ matrix) ** 2)

    def temporary(num_steps):
        refinement = plain_refinement(
            relbo.SGLD(0.1), num_steps=num_steps, execution=relbo.Execution(remat=True)
        )
        grad = jax.jit(
            jax.grad(
                lambda loc: relbo.refined_objective(
                    jr.key(0), refinement, relbo.DiagonalNormal(loc), logdensity_fn,
                    num_draws=16,
                ).value
            )
        )  # fmt: skip
        analysis = grad.lower(jnp.zeros(8)).compile().memory_analysis()
        return analysis.temp_size_in_bytes

    assert temporary(64) < 1.5 * temporary(8)


@pytest.mark.parametrize(
    ("kind", "account"),
    [(relbo.SGD, relbo.GaussianAccount()), (relbo.Underdamped, relbo.ReverseKernelAccount())],
)
def test_unrolled_steps_are_the_same_steps(kind, account):
    def objective(step_size, unroll):
        refinement = plain_refinement(
            kind(step_size), account, num_steps=3, execution=relbo.Execution(unroll=unroll)
        )
        return relbo.refined_objective(jr.key(0), refinement, BASE, mixture).value

    loop, laid_out = (
        jax.jit(jax.value_and_grad(lambda s, u=u: objective(s, u))).lower(0.1)
        for u in (False, True)
    )
    assert laid_out.as_text().count("while") < loop.as_text().count("while")
    found = [lowered.compile()(0.1) for lowered in (loop, laid_out)]
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-5)


def test_an_extended_walk_is_not_unrolled():
    refinement = plain_refinement(
        relbo.SGD(0.1),
        relbo.GaussianAccount(),
        num_steps=3,
        execution=relbo.Execution(unroll=True),
    )
    assert not refinement.extended(1_000).execution.unroll


def test_a_cap_on_the_score_bounds_large_moves_only():
    steep = lambda z: -1e4 * jnp.sum(z**2)
    gentle = lambda z: -1e-3 * jnp.sum(z**2)

    def moved(logdensity_fn, max_score):
        refinement = plain_refinement(
            relbo.SGD(0.1), relbo.ParticleAccount(), num_steps=1, max_score=max_score
        )
        start = jnp.array([0.5, -1.0])
        return refine(refinement, jr.key(0), relbo.Dirac(start), logdensity_fn).position - start

    np.testing.assert_allclose(jnp.abs(moved(steep, 5.0)), 0.5, rtol=1e-4)
    np.testing.assert_allclose(moved(gentle, 5.0), moved(gentle, None), atol=1e-6)
    np.testing.assert_array_equal(moved(steep, jnp.inf), moved(steep, None))


@jax.custom_jvp
def expensive_value(z):
    """A normal's log density with a sine that its gradient does not contain."""
    return -0.5 * jnp.sum(z**2) + 0.0 * jnp.sum(jnp.sin(z))


expensive_value.defjvps(lambda tangent, _, z: -jnp.dot(z, tangent))


@pytest.mark.parametrize(
    ("account", "is_computed"),
    [(relbo.GaussianAccount(), False), (relbo.ReverseKernelAccount(), True)],
)
def test_the_density_is_not_computed_where_the_steps_need_its_score_only(account, is_computed):
    kernel = relbo.SGLD(0.1) if is_computed else relbo.SGD(0.1)
    refinement = plain_refinement(kernel, account, num_steps=2)
    run = jax.jit(lambda key: refinement(key, BASE, expensive_value)[:3])
    program = run.lower(jr.key(0)).compile().as_text()
    assert ("sine(" in program) == is_computed


def test_default_options_are_annealed_underdamped_steps_in_whitened_coordinates():
    refinement = relbo.Refinement()
    assert refinement.num_steps == 8
    assert refinement.space == "whitened"
    assert isinstance(refinement.kernel, relbo.Underdamped)
    assert refinement.kernel.step_size.num_steps == 8
    assert refinement.kernel.step_size.upper == 1.0
    assert isinstance(refinement.account, relbo.ReverseKernelAccount)
    assert refinement.anneal.num_steps == 8
    assert refinement.bound.valid is True


@pytest.mark.parametrize(
    ("options", "is_annealed"),
    [
        ({"kernel": relbo.SGLD()}, True),
        ({"kernel": relbo.SGLD(), "anneal": False}, False),
        ({"kernel": relbo.SGLD(), "num_steps": 0}, False),
        ({"kernel": relbo.SGD(), "account": relbo.GaussianAccount()}, False),
        ({"kernel": relbo.SGD(), "account": relbo.GaussianAccount(), "anneal": True}, True),
    ],
)
def test_a_path_is_the_default_where_the_account_counts_a_reverse_kernel(options, is_annealed):
    assert (relbo.Refinement(**options).anneal is not None) is is_annealed


class Linear(eqx.Module):
    slope: jax.Array

    def __call__(self, z):
        return self.slope * jnp.sum(z)


def moved(options, base, slope):
    """Returns how much further one step goes on a linear density than on a flat one."""
    refinement = relbo.Refinement(num_steps=1, anneal=False, **options)
    ends = [
        refine(refinement, jr.key(0), base, Linear(jnp.asarray(s))).position
        for s in (slope, 0.0)
    ]
    return jnp.abs(ends[0] - ends[1])


def test_gradients_through_steps_with_a_capped_score_are_bounded():
    """One chaotic path would otherwise outweigh all others in a gradient."""

    def end(start, max_score):
        refinement = relbo.Refinement(relbo.Underdamped(0.1), num_steps=2, anneal=False)
        narrow = lambda z: -1e3 * jnp.sum(z**4)
        walked = walk(refinement, jr.key(0), start, narrow, narrow, max_score=max_score)
        return 1e4 * jnp.sum(walked.position)

    bounded, free = (jax.grad(end)(jnp.array([0.1, 1.0]), cap) for cap in (20.0, None))
    assert jnp.all(jnp.abs(bounded) <= MAX_GRADIENT)
    assert jnp.any(jnp.abs(free) > 1e3)


def test_the_default_cap_on_the_score_is_for_the_default_kernel_in_whitened_coordinates():
    given = {"kernel": relbo.Underdamped(0.3)}
    for options, base, capped in [
        ({}, BASE, True),
        ({"max_score": jnp.inf}, BASE, False),
        ({"space": "unconstrained"}, BASE, False),
        ({}, relbo.Dirac(jnp.zeros(2)), False),
        (given, BASE, False),
        ({**given, "max_score": 20.0}, BASE, True),
    ]:
        # Half a kick and a drift: eps^2 / 2 times the score.
        step_size = 0.3 if "kernel" in options else INITIAL_STEP_SIZE
        expected = step_size**2 / 2 * (20 if capped else 1000)
        np.testing.assert_allclose(moved(options, base, 1000.0), expected, rtol=1e-3)


def test_default_annealing_is_dropped_where_the_base_has_no_density():
    point = relbo.Dirac(jnp.zeros(2))
    automatic, none = relbo.Refinement(num_steps=2), relbo.Refinement(num_steps=2, anneal=False)
    for call in (
        lambda refinement: refinement(jr.key(0), point, mixture).position,
        lambda refinement: refinement.run(jr.key(0), point, mixture, num_draws=1).position,
    ):
        call = eqx.filter_jit(call)
        np.testing.assert_allclose(call(automatic), call(none), rtol=1e-6)


def test_default_kernel_takes_a_step_size_for_each_coordinate():
    refinement = relbo.Refinement(num_steps=3).with_step_sizes_like({"a": jnp.zeros(2)})
    assert refinement.kernel.step_size.value["a"].shape == (3, 2)
    assert refinement.kernel.step_size.upper == 1.0
    given = relbo.Refinement(relbo.SGLD(0.1))
    assert given.with_step_sizes_like({"a": jnp.zeros(2)}) is given


def test_extended_walk_keeps_learned_values_and_options():
    refinement = relbo.Refinement(
        num_steps=2, execution=relbo.Execution(remat=True), mode="fast"
    )
    learned = eqx.tree_at(
        lambda r: (r.kernel.damping.raw, r.anneal.logits),
        refinement,
        (jnp.array([0.1, 0.2]), jnp.array([1.0, 0.0])),
    )
    longer = learned.extended(5)
    assert (longer.num_steps, longer.execution.remat, longer.mode) == (5, True, "fast")
    assert longer.kernel_is_default
    for one, other in zip(jax.tree.leaves(longer), jax.tree.leaves(learned), strict=True):
        np.testing.assert_array_equal(one, other)


def test_draws_of_interacting_particles_are_systems():
    refinement = plain_refinement(
        relbo.SVGD(0.1), relbo.ChangeOfVariablesAccount(), num_steps=1
    )
    refined = refine(refinement, jr.key(0), BASE, mixture, num_draws=2, num_particles=3)
    assert refined.position.shape == (2, 3, 2)
    assert refined.log_q.shape == refined.result._value.shape == (2,)
    one = refine(refinement, jr.split(jr.key(0))[1], BASE, mixture, num_particles=3)
    np.testing.assert_allclose(refined.position[1], one.position, rtol=1e-5)
    numbers = {"num_draws": 4, "num_chains": 2, "num_particles": 3}
    path = eqx.filter_eval_shape(refinement.run, 0, BASE, mixture, **numbers)
    assert path.position.shape == (2, 3, 4, 2)
    for call in (refinement, lambda *a, **k: refinement.run(*a, num_draws=1, **k)):
        with pytest.raises(ValueError, match="num_particles: SVGD moves particles together"):
            call(0, BASE, mixture)


@pytest.mark.parametrize("number", [1.5, 2.0, True, "2", -1])
def test_numbers_must_be_integers(number, wrong_types):
    refinement = plain_refinement(relbo.SGLD(0.1), num_steps=1)
    for name, call in {
        "num_steps": lambda: relbo.Refinement(num_steps=number),
        "num_steps ": lambda: refinement.extended(number),
        "num_draws": lambda: refinement(0, BASE, mixture, num_draws=number),
        "num_draws ": lambda: refinement.run(0, BASE, mixture, num_draws=number),
        "every": lambda: refinement.run(0, BASE, mixture, num_draws=1, every=number),
    }.items():
        with pytest.raises(ValueError, match=f"^{name.strip()}: expected an integer of"):
            call()


@pytest.mark.parametrize("number", [float("nan"), True, "1", -1.0])
def test_caps_must_be_positive_numbers(number, wrong_types):
    for name in ("max_step_size", "max_score"):
        with pytest.raises(ValueError, match=f"^{name}: expected a positive number"):
            relbo.Refinement(relbo.SGLD(0.1), **{name: number})


def test_numbers_of_draws_are_checked():
    refinement = plain_refinement(relbo.SGLD(0.1), num_steps=1)
    with pytest.raises(ValueError, match="num_draws: expected an integer of 1 or more, got 0"):
        refinement(0, BASE, mixture, num_draws=0)
    with pytest.raises(ValueError, match="num_particles: particles of SGLD do not interact"):
        refinement(0, BASE, mixture, num_particles=3)
    with pytest.raises(ValueError, match="do not interact: use num_chains"):
        refinement.run(0, BASE, mixture, num_draws=1, num_particles=3)


def test_a_refinement_says_what_it_is_in_one_line():
    assert repr(relbo.Refinement(relbo.SGLD(0.1), num_steps=3)) == (
        "Refinement(SGLD, ReverseKernelAccount, num_steps=3, mode='full', anneal=True, "
        "space='whitened')"
    )
