"""Errors of guides name the argument or site and say what to do."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer import SVI, Trace_ELBO, autoguide

import relbo
from programs import DATA, NUM, conjugate, elbos, encoder, fit, local, prepare
from targets import mean_and_error


def observed():
    numpyro.sample("x", dist.Normal(0.0, 1.0), obs=0.0)


def discrete():
    numpyro.sample("z", dist.Normal(0.0, 1.0))
    numpyro.sample("k", dist.Bernoulli(0.5))


def counts(data, batch_size=None):
    with numpyro.plate("data", NUM):
        numpyro.sample("z", dist.Poisson(3.0))


def shorter(data, batch_size=None):
    with numpyro.plate("data", NUM // 2):
        numpyro.sample("z", dist.Normal(0.0, 1.0))


def plateless(data, batch_size=None):
    numpyro.sample("z", dist.Normal(0.0, 1.0))


def whole(data, batch_size=None):
    with numpyro.plate("data", NUM):
        numpyro.sample("z", dist.Normal(0.0, 1.0))


def one_name_for_two_plates(size, dim):
    with numpyro.plate("rows", 10, dim=-1):
        numpyro.sample("x", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", size, dim=dim):
        numpyro.sample("y", dist.Normal(0.0, 1.0))


JOINT = autoguide.AutoMultivariateNormal


@pytest.mark.parametrize(
    ("make", "args", "message"),
    [
        (lambda: relbo.AutoRefined(observed), (), "no latent site"),
        (lambda: relbo.AutoRefined(discrete), (), r"\['k'\].*relbo.collapse\(model\)"),
        (lambda: relbo.AutoRefined(local, base=JOINT), (DATA, 5), "use base=AutoNormal"),
        (
            lambda: relbo.AutoRefined(one_name_for_two_plates),
            (5, -1),
            r"plate 'rows' has size 10 .* at the site 'x', and size 5 .* at 'y'",
        ),
        (
            lambda: relbo.AutoRefined(one_name_for_two_plates),
            (10, -2),
            r"plate 'rows' .* dimension -1 .* dimension -2 at 'y': give the second",
        ),
        (lambda: relbo.refine(counts, local), (DATA,), "'z' is a .*no reparameterised sample"),
        (
            lambda: relbo.refine(lambda data: None, local),
            (DATA,),
            r"\['z'\] are not in the guide",
        ),
        (
            lambda: relbo.refine(shorter, local),
            (DATA,),
            "'data' takes 20 of 20 in the model and 10 of 10 in the guide",
        ),
        (
            lambda: relbo.refine(whole, local),
            (DATA, 5),
            "'data' takes 5 of 20 in the model and 20 of 20 in the guide",
        ),
        (
            lambda: relbo.refine(plateless, local),
            (DATA,),
            r"'z' has shape \(20,\) in the model and \(\) in the guide",
        ),
    ],
)
def test_errors_at_the_first_call(make, args, message):
    guide = make()
    with pytest.raises(ValueError, match=message):
        prepare(guide.model, guide, *args)


@pytest.mark.usefixtures("wrong_types")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: relbo.AutoRefined(local, base=autoguide.AutoNormal(local), init_scale=0.1),
            "belong to its own constructor",
        ),
        (lambda: relbo.AutoRefined(local, base=whole), r"base: .*relbo.refine\(guide, model\)"),
        (
            lambda: relbo.AutoRefined(local, base=autoguide.AutoDAIS),
            "base: AutoDAIS already has a sampler inside",
        ),
        (
            lambda: relbo.AutoRefined(local, base=relbo.AutoRefined(local)),
            "base: AutoRefined already has a sampler",
        ),
        (lambda: relbo.AutoRefined(local, kernel=relbo.SGD()), "ReverseKernelAccount needs"),
        (
            lambda: relbo.AutoRefined(local, account=relbo.ChangeOfVariablesAccount()),
            r"account: this is an option of the refinement.*relbo.Refinement\(account=",
        ),
        (lambda: relbo.AutoRefined(local, kernel=relbo.SGLD), "kernel: expected an instance"),
        (
            lambda: relbo.AutoRefined(local, refinement=relbo.SGLD()),
            "refinement: expected an instance",
        ),
        (
            lambda: relbo.AutoRefined(
                local, refinement=relbo.Refinement(), kernel=relbo.SGLD()
            ),
            "kernel: expected refinement= or its shorthand, got both",
        ),
        (
            lambda: relbo.refine(whole, local, refinement=relbo.Refinement(), num_steps=2),
            "num_steps: expected refinement= or its shorthand",
        ),
        (lambda: relbo.RefinedELBO(num_particles=0), "num_particles: expected an integer of 1"),
        (
            lambda: relbo.AutoRefined(local).sample_posterior(jr.key(0), {}, DATA),
            "has not seen its model",
        ),
        (lambda: relbo.AutoRefined(local).bound, "has not seen its model"),
    ],
)
def test_errors_before_any_call(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_hierarchical_guide_is_walked_in_unconstrained_space_or_refused():
    def program():
        a = numpyro.sample("a", dist.Normal(0.0, 1.0))
        numpyro.sample("b", dist.Normal(a, 1.0))

    def hierarchical():
        a = numpyro.sample("a", dist.Normal(numpyro.param("m", 0.5), 1.0))
        numpyro.sample("b", dist.Normal(a, 1.0))

    refused = relbo.refine(hierarchical, program, num_steps=2)
    for _ in range(2):
        with pytest.raises(ValueError, match="'b' depends on another of its draws"):
            prepare(program, refused)
    guide = relbo.refine(
        hierarchical,
        program,
        refinement=relbo.Refinement(
            relbo.Underdamped(0.3), num_steps=2, space="unconstrained", anneal=False
        ),
    )
    params = fit(program, guide, num_iterations=100)
    mean, error = mean_and_error(elbos(program, guide, params))
    assert -1.0 < mean < 4 * error
    assert jnp.isfinite(mean)


def test_a_first_call_inside_jit_works_where_no_value_is_needed():
    guide = relbo.AutoRefined(conjugate, num_steps=2)
    svi = SVI(conjugate, guide, optax.adam(0.01), Trace_ELBO())
    state = jax.jit(svi.init)(jr.key(0), DATA)
    _, loss = jax.jit(svi.update)(state, DATA)
    other = relbo.AutoRefined(conjugate, num_steps=2)
    svi = SVI(conjugate, other, optax.adam(0.01), Trace_ELBO())
    _, expected = svi.update(svi.init(jr.key(0), DATA), DATA)
    assert float(loss) == pytest.approx(float(expected), rel=1e-5)


def test_a_refused_first_call_inside_jit_does_not_change_the_guide():
    guide = relbo.refine(encoder, local, num_steps=2)
    svi = SVI(local, guide, optax.adam(0.01), Trace_ELBO())
    with pytest.raises(ValueError, match=r"inside jax\.jit.*outside of jax.jit once"):
        jax.jit(svi.init)(jr.key(0), DATA)
    state = svi.init(jr.key(0), DATA)
    _, loss = jax.jit(svi.update)(state, DATA)
    assert jnp.isfinite(loss)


def test_guides_say_what_they_are_in_one_line():
    def model():
        numpyro.sample("z", dist.Normal())

    guide = relbo.AutoRefined(model, base=autoguide.AutoNormal, num_steps=3)
    assert repr(guide).startswith("AutoRefined(test_guides_say_what_they_are_in_one_line.")
    assert "base=AutoNormal, Refinement(Underdamped" in repr(guide)
    assert "base=chosen by the model" in repr(relbo.AutoRefined(model))
    assert repr(relbo.refine(model, model)).startswith("refine(")
