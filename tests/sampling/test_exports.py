"""Posteriors for ArviZ, pandas and notebooks."""

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import relbo

arviz = pytest.importorskip("arviz")

X = np.linspace(-1.0, 1.0, 6)
Y = np.array([0.3, 1.2, 2.2, 0.7, 1.4, 2.0])
GROUPS = np.array([0, 0, 0, 1, 1, 1])
NOISE_SD = 0.5


def regression(x, groups, y=None):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("group", 2):
        level = numpyro.sample("level", dist.Normal(0.0, 1.0).expand([1]).to_event(1))[:, 0]
        numpyro.deterministic("double", 2 * level)
    with numpyro.plate("row", len(x)):
        numpyro.sample("y", dist.Normal(level[groups] + slope * x, NOISE_SD), obs=y)


@pytest.fixture(scope="module")
def posterior():
    return relbo.infer(jr.key(0), regression, (X, GROUPS, Y), num_draws=1600, progress=False)


@pytest.fixture(scope="module")
def data(posterior):
    return posterior.to_arviz(
        log_likelihood=True,
        posterior_predictive=True,
        prior=50,
        coords={"group": ["north", "south"]},
    )


def test_axes_are_named_after_plates(data):
    drawn = data["posterior"]
    assert drawn["level"].dims == ("chain", "draw", "group", "level_dim_1")
    assert drawn["double"].dims == ("chain", "draw", "group")
    assert list(drawn["level"].coords["group"].values) == ["north", "south"]
    for group in ("log_likelihood", "posterior_predictive", "prior_predictive"):
        assert data[group]["y"].dims == ("chain", "draw", "row")


def test_all_groups_are_there(data):
    np.testing.assert_allclose(data["observed_data"]["y"], Y, rtol=1e-6)
    np.testing.assert_allclose(data["constant_data"]["x"], X, rtol=1e-6)
    assert set(data["constant_data"].data_vars) == {"x", "groups"}
    assert set(data["prior"].data_vars) == {"slope", "level", "double"}
    assert data["prior"]["slope"].shape == (1, 50)


def test_statistics_have_the_names_of_arviz(data, posterior):
    stats = data["sample_stats"]
    names = {"lp", "acceptance_rate", "energy", "diverging", "n_steps", "step_size"}
    assert names == set(stats.data_vars)
    assert stats["diverging"].dtype == bool
    assert not np.any(stats["diverging"])
    steps = np.asarray(stats["n_steps"])
    expected = 1.5 / posterior.step_size
    assert 0.5 * expected <= steps.mean() <= 1.5 * expected + 1.0
    # Of a normal with d latent values both energies are half a chi-squared variable.
    assert np.var(np.asarray(stats["energy"])) == pytest.approx(2 * 3 / 2, rel=0.25)


def test_attributes_say_who_made_it(data, posterior):
    attributes = data["posterior"].attrs
    assert attributes["inference_library"] == "relbo"
    assert attributes["inference_library_version"] == relbo.__version__
    assert attributes["sampling_time"] == pytest.approx(sum(posterior.seconds.values()))
    assert attributes["step_size"] == pytest.approx(posterior.step_size)
    assert attributes["target_acceptance"] == posterior.tuning.method.target_acceptance
    assert attributes["trajectory_length"] == posterior.tuning.length
    assert attributes["iterations_per_draw"] == posterior.tuning.spacing


def test_predictions_at_new_inputs(posterior):
    new = np.array([0.0, 5.0])
    predicted = posterior.predict(0, new, np.array([0, 1]))["y"]
    assert predicted.shape == (1600, 2)
    level, slope = posterior.draws["level"][..., 0], posterior.draws["slope"]
    expected = level[:, [0, 1]] + slope[:, None] * new
    error = NOISE_SD / len(predicted) ** 0.5
    np.testing.assert_allclose(predicted.mean(0), expected.mean(0), atol=5 * error)
    np.testing.assert_allclose((predicted - expected).std(0), NOISE_SD, rtol=0.1)


def test_a_frame_has_a_column_for_each_coordinate(posterior):
    pytest.importorskip("pandas")
    frame = posterior.to_dataframe()
    coordinates = {"slope", "level[0,0]", "level[1,0]", "double[0]", "double[1]"}
    assert set(frame.columns) == {"chain", "draw", *coordinates}
    row = frame.iloc[777]
    place = int(row["chain"]), int(row["draw"])
    assert row["level[1,0]"] == posterior.chains["level"][*place, 1, 0]


def test_a_plot_shows_some_chains_and_says_which(posterior):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    posterior.plot(["slope"], num_chains=3)
    assert "of 64" in pyplot.gcf().get_suptitle()
    pyplot.close("all")


def test_notebooks_show_a_table_and_the_verdict(posterior):
    shown = posterior._repr_html_()
    assert all(part in shown for part in ("<table>", "level[1,0]", "Trust it"))
    assert "<script" not in relbo.sampling.Summary(["<script>"], {})._repr_html_()


@pytest.fixture
def _numpyro_promotes():
    with jax.numpy_rank_promotion("allow"):
        yield


def mixture(y):
    weight = numpyro.sample("weight", dist.Beta(2.0, 2.0))
    places = jnp.array([-2.0, 2.0])
    with numpyro.plate("row", len(y)):
        which = numpyro.sample("which", dist.Bernoulli(weight))
        numpyro.sample("y", dist.Normal(places[which], 1.0), obs=y)


@pytest.mark.usefixtures("_numpyro_promotes")
def test_a_collapsed_model_has_likelihoods_and_predictions():
    pytest.importorskip("funsor")
    y = np.array([-2.5, -1.0, 0.2, 1.8])
    model = relbo.collapse(mixture)
    posterior = relbo.infer(0, model, (y,), num_draws=320, progress=False)
    data = posterior.to_arviz(log_likelihood=True, posterior_predictive=True)
    weight = posterior.chains["weight"][..., None]
    density = lambda place: np.exp(-0.5 * (y - place) ** 2) / np.sqrt(2 * np.pi)
    expected = np.log((1 - weight) * density(-2.0) + weight * density(2.0))
    np.testing.assert_allclose(data["log_likelihood"]["y"], expected, atol=1e-4)
    predicted = np.asarray(data["posterior_predictive"]["y"])
    assert np.mean(predicted > 0) == pytest.approx(0.5, abs=0.3)
    assert np.mean(np.abs(predicted)) == pytest.approx(2.0, abs=0.2)
