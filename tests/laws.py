"""Laws that hold for every kernel and every account, given their names in the registries.

Most of their time is compilation, so several laws share one program.
"""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.flatten_util import ravel_pytree

import registry
import relbo
from registry import COVER, NUM_PARTICLES, make, particles
from targets import TARGETS, log_weights, mean_and_error, mixture, normal

KEY = jr.key(7)
LOC, SCALE = np.array([0.3, -0.2]), np.array([0.9, 1.1])
PATH = {"num_steps": 2, "anneal": True}


def base2(dtype=None) -> relbo.DiagonalNormal:
    return relbo.DiagonalNormal(jnp.asarray(LOC, dtype), jnp.asarray(SCALE, dtype))


def refine(refinement, base, logdensity_fn):
    return registry.refine(refinement, KEY, base, logdensity_fn, **particles(refinement))


def whitened_walk(kernel, account):
    """Two annealed steps on the mixture in whitened coordinates."""
    # Two tests may register different classes under one name.
    return _whitened_walk(kernel, account, registry.KERNELS[kernel], registry.ACCOUNTS[account])


@cache
def _whitened_walk(kernel, account, *classes):
    return refine(make(kernel, account, **PATH, space="whitened"), base2(), mixture)


def assert_same_draw(one, other, rtol=1e-5, atol=1e-5):
    np.testing.assert_allclose(one.position, other.position, rtol=rtol, atol=atol)
    np.testing.assert_allclose(one.log_q, other.log_q, rtol=rtol, atol=atol)


def zero_steps_give_the_base(kernel, account):
    refinement = make(kernel, account, num_steps=0)
    refined = refinement(KEY, base2(), mixture, **particles(refinement))
    if refinement.kernel.interacting:
        position, log_q = jax.vmap(base2().sample)(jr.split(KEY, NUM_PARTICLES))
    else:
        position, log_q = base2().sample(KEY)
    np.testing.assert_array_equal(refined.position, position)
    np.testing.assert_allclose(refined.log_q, jnp.sum(log_q), rtol=1e-6)
    assert refinement.bound.valid is True


def derivatives_are_those_of_the_mode(kernel, account):
    """One program for both modes: values, gradients, traces and precision."""
    with jax.enable_x64(True):
        options = {**PATH, "space": "whitened"}
        full, fast = (make(kernel, account, 0.08, mode=m, **options) for m in ("full", "fast"))
        remat = make(kernel, account, 0.08, execution=relbo.Execution(remat=True), **options)
        size = NUM_PARTICLES if full.kernel.interacting else 1
        traces = []

        def counted(z):
            traces.append(None)
            return mixture(z)

        def value(refinement, base):
            refined = refinement(KEY, base, counted, **particles(refinement))
            logdensity = refined.logdensity
            if logdensity is None:
                logdensity = jnp.sum(jax.vmap(counted)(refined.position.reshape(-1, 2)))
            return (logdensity - refined.log_q) / size, refined

        arrays, rest = eqx.partition((full, base2()), eqx.is_inexact_array)
        flat, unravel = ravel_pytree(arrays)

        @jax.jit
        def in_full_mode(flat):
            return jax.value_and_grad(
                lambda x: value(*eqx.combine(unravel(x), rest)), has_aux=True
            )(flat)

        (_, refined), gradient = in_full_mode(flat)
        # Once in the loop, and once at the end where no step has evaluated the density there.
        assert len(traces) == (1 if full.account.counts_reverse else 2)
        direction, step = jr.normal(jr.key(3), flat.shape), 1e-5
        above, below = (in_full_mode(flat + s * step * direction)[0][0] for s in (1, -1))
        slope = jnp.vdot(gradient, direction)
        np.testing.assert_allclose(slope, (above - below) / (2 * step), rtol=1e-5, atol=1e-6)
        assert refined.position.dtype == refined.log_q.dtype == jnp.float64

        if (kernel, account) in COVER:
            kept = jax.jit(
                jax.grad(lambda x: value(remat, eqx.combine(unravel(x), rest)[1])[0])
            )
            base_part = ravel_pytree(unravel(gradient)[1])[0]
            found = ravel_pytree(unravel(kept(flat))[1])[0]
            np.testing.assert_allclose(found, base_part, rtol=1e-9, atol=1e-12)

        @eqx.filter_jit
        def in_fast_mode(refinement, base):
            def log_q_and_sum(arrays):
                refined = value(*eqx.combine(arrays, rest))[1]
                return (refined.log_q, jnp.sum(refined.position)), refined

            arrays, rest = eqx.partition((refinement, base), eqx.is_inexact_array)
            _, pull, refined = jax.vjp(log_q_and_sum, arrays, has_aux=True)
            zero, one = jnp.zeros(()), jnp.ones(())
            return refined, pull((one, zero))[0], pull((zero, one))[0]

        same, log_q_slope, position_slope = in_fast_mode(fast, base2())
        assert_same_draw(refined, same, rtol=1e-10, atol=1e-12)
        # The refined point moves with the base, and the base's density at its own draw does not
        # depend on where the base is.
        np.testing.assert_allclose(position_slope[1].loc, size * np.ones(2), rtol=1e-12)
        np.testing.assert_allclose(log_q_slope[1].loc, 0.0, atol=1e-12)
        learned = [(s[0].kernel, s[0].anneal) for s in (log_q_slope, position_slope)]
        learned = jax.tree.leaves(learned)
        assert learned
        assert all(jnp.all(leaf == 0) for leaf in learned)


def failures_have_names_and_keep_the_last_good_position(kernel, account):
    refinement = make(kernel, account, 1.0, num_steps=40, max_step_size=2.0)

    @jax.jit
    def walk(wall):
        behind = lambda z: jnp.where(z[0] > wall, jnp.nan, 1.0) * jnp.sum(z)
        return refinement(KEY, base2(), behind, **particles(refinement))

    for wall, result in [
        (6.0, relbo.RESULTS.non_finite_gradient),
        (-jnp.inf, relbo.RESULTS.non_finite_start),
    ]:
        refined = walk(wall)
        assert refined.result == result
        assert jnp.all(jnp.isfinite(refined.position))


def weights_average_to_the_evidence(kernel, account):
    """The base is wider than the target on all sides, so that the weights are bounded."""
    target = TARGETS["gaussian"]._replace(scale=1.6, loc=0.8)
    refinement = make(kernel, account, 0.03, num_steps=3, anneal=True, space="whitened")
    # With all of the path in the first step, the others run at temperature 1: no annealing.
    plain = eqx.tree_at(lambda r: r.anneal.logits, refinement, jnp.array([0.0, -1e9, -1e9]))
    # A system has one weight for all particles: two of them keep its variance low.
    size = 2 if refinement.kernel.interacting else 1
    for one in (refinement, plain):
        log_w = log_weights(jr.key(5), one, target, 20_000, size) - target.log_evidence
        mean, error = mean_and_error(jnp.exp(size * log_w))
        assert error < 0.2
        assert abs(mean - 1) < 4 * error
        mean, error = mean_and_error(log_w)
        assert mean <= 4 * error


def bounds_hold_where_steps_round_away(kernel, account):
    """Far from zero, float32 rounds steps to multiples of 0.06."""
    far = TARGETS["gaussian"]._replace(
        logdensity_fn=lambda z: jnp.sum(normal(z, 1e6, 1.0)),
        log_evidence=0.0,
        loc=1e6,
        scale=1.0,
    )
    refinement = make(kernel, account, 1e-4, num_steps=8)
    size = 2 if refinement.kernel.interacting else 1
    log_w = log_weights(jr.key(5), refinement, far, 2_000, size)
    # Particles at one point of the grid have no volume.
    mean, error = mean_and_error(jnp.maximum(log_w, -100.0))
    assert error < 0.2
    assert mean <= 4 * error


def whitened_walk_is_a_walk_on_the_transformed_density(kernel, account):
    """z = m + s u: walking u by hand and mapping it gives the same draw and density."""
    loc, scale = jnp.asarray(LOC, jnp.float32), jnp.asarray(SCALE, jnp.float32)
    by_hand = refine(
        make(kernel, account, **PATH),
        relbo.StandardNormal(jnp.zeros(2)),
        lambda u: mixture(loc + scale * u) + jnp.sum(jnp.log(scale)),
    )
    white = whitened_walk(kernel, account)
    size = by_hand.position.size // 2
    to_position = lambda u: loc + scale * u
    expected = by_hand._replace(
        position=jax.vmap(to_position)(by_hand.position)
        if by_hand.position.ndim == 2
        else to_position(by_hand.position),
        log_q=by_hand.log_q - size * jnp.sum(jnp.log(scale)),
    )
    assert_same_draw(white, expected)
    assert white.position.dtype == white.log_q.dtype == jnp.float32


def positions_may_be_any_pytree(kernel, account):
    tree_base = relbo.DiagonalNormal(
        {"a": jnp.array([0.3]), "b": jnp.array(-0.2)}, {"a": jnp.array([0.9]), "b": 1.1}
    )
    together = lambda z: jnp.stack([z["a"][..., 0], z["b"]], axis=-1)
    refinement = make(kernel, account, **PATH, space="whitened")
    tree = refine(refinement, tree_base, lambda z: mixture(together(z)))
    tree = tree._replace(position=together(tree.position))
    assert_same_draw(tree, whitened_walk(kernel, account), rtol=1e-4)


def capped_walk_follows_the_capped_score(kernel, account):
    """c tanh(g / c) of a separable density is the score of another one, log cosh for square."""
    cap, variances = 1.5, jnp.array([0.25, 1.0])
    square = lambda z: -0.5 * jnp.sum((z - 1.0) ** 2 / variances)
    log_cosh = lambda z: (
        -jnp.sum(cap**2 * variances * jnp.log(jnp.cosh((z - 1.0) / (cap * variances))))
    )
    capped = refine(make(kernel, account, num_steps=2, max_score=cap), base2(), square)
    other = refine(make(kernel, account, num_steps=2), base2(), log_cosh)
    assert_same_draw(capped, other, rtol=1e-4)
    if capped.logdensity is not None:
        value = jnp.sum(jax.vmap(square)(capped.position.reshape(-1, 2)))
        np.testing.assert_allclose(capped.logdensity, value, rtol=1e-4)


LAWS_OF_PAIRS = (
    derivatives_are_those_of_the_mode,
    failures_have_names_and_keep_the_last_good_position,
)
LAWS_OF_BOUNDS = (weights_average_to_the_evidence, bounds_hold_where_steps_round_away)
LAWS_OF_PARTS = (
    whitened_walk_is_a_walk_on_the_transformed_density,
    positions_may_be_any_pytree,
    capped_walk_follows_the_capped_score,
)
ALL_LAWS = (zero_steps_give_the_base, *LAWS_OF_PAIRS, *LAWS_OF_BOUNDS, *LAWS_OF_PARTS)
"""What a kernel and an account must satisfy that together give a bound."""
