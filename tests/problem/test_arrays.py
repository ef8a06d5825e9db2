"""Data as people hold them: lists, pandas, polars, xarray and Arrow."""

from decimal import Decimal

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import relbo
from relbo.problem.arrays import as_array
from relbo.problem.call import checked_call

pd = pytest.importorskip("pandas")

X, COUNTS = [0.5, 1.0, 2.5], [3, 1, 2]
COLUMNS = {"x": X, "count": COUNTS}


def pandas_frame(columns=COLUMNS):
    return pd.DataFrame(columns)


def polars_frame(columns=COLUMNS):
    return pytest.importorskip("polars").DataFrame(columns)


FRAMES = {"pandas": pandas_frame, "polars": polars_frame}
MAPPINGS = {
    **FRAMES,
    "xarray": lambda: pandas_frame().to_xarray(),
    "arrow": lambda: {
        name: pytest.importorskip("pyarrow").array(column) for name, column in COLUMNS.items()
    },
    "lists": lambda: COLUMNS,
    "nullable": lambda: pandas_frame().convert_dtypes(),
    "objects": lambda: pandas_frame().astype(object),
    "decimals": lambda: {name: [*map(Decimal, column)] for name, column in COLUMNS.items()},
}


@pytest.mark.parametrize("name", MAPPINGS)
def test_columns_become_arrays(name):
    table = MAPPINGS[name]()
    found = checked_call((table["x"],), table)
    for array, expected in ((found.args[0], X), (found.kwargs["count"], COUNTS)):
        assert isinstance(array, np.ndarray)
        is_real = expected is X or name in ("objects", "decimals")
        assert array.dtype.kind == ("f" if is_real else "i")
        np.testing.assert_array_equal(array, expected)


@pytest.mark.parametrize("name", FRAMES)
def test_a_frame_in_the_arguments_is_a_matrix(name):
    (matrix,), _ = checked_call((FRAMES[name](),), {})
    np.testing.assert_array_equal(matrix, np.array([X, COUNTS]).T)


@pytest.mark.parametrize("name", FRAMES)
def test_a_column_that_is_not_numeric_is_named(name):
    bad = FRAMES[name]({"x": X, "city": ["Oslo", "Rome", "Oslo"]})
    for args, kwargs, place in (
        ((bad,), None, r"args\[0\]"),
        ((X, bad["city"]), None, r"args\[1\]"),
        ((), bad, "kwargs"),
        ((), {"y": {"z": bad["city"]}}, r"kwargs\['y'\]\['z'\]"),
    ):
        with pytest.raises(ValueError, match=f"{place}: the column 'city' has 'Oslo' in it"):
            checked_call(args, kwargs)


def test_missing_values_are_nan_or_refused():
    missing = pd.Series([1, None], dtype="Int64", name="age")
    np.testing.assert_array_equal(as_array("y", missing), [1.0, np.nan])
    dates = pd.Series(pd.date_range("2020-01-01", periods=2), name="day")
    with pytest.raises(ValueError, match="y: the column 'day' has datetime"):
        as_array("y", dates)
    with pytest.raises(ValueError, match="y: the list has None in it"):
        as_array("y", [1.0, None])
    with pytest.raises(ValueError, match="y: the lists in it have different lengths"):
        as_array("y", [[1.0], [2.0, 3.0]])


def test_what_is_no_data_stays_as_it_is():
    arrays = [jnp.ones(2), np.ones(3)]
    rows = relbo.Rows(np.ones((4, 2)))
    for value in ((3, 2), "name", None, ["a", "b"], arrays, [], 1.5, rows):
        (found,), _ = checked_call((value,), None)
        assert type(found) is type(value)
        assert found is value or found == value or found[0] is arrays[0]


def line(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(x)):
        numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)


def test_columns_and_lists_in_infer_and_fit():
    frame = pandas_frame({"x": X, "y": [1.0, 1.5, 3.0]})
    arrays = frame["x"].to_numpy(), frame["y"].to_numpy()
    guide = relbo.AutoRefined(line, num_steps=1)
    options = {"num_draws": 200, "num_chains": 4, "progress": False}
    train = lambda args, kwargs=None: relbo.fit(
        0, line, args, kwargs, guide=guide, num_iterations=100, progress=False
    )
    expected = relbo.infer(0, line, arrays, **options).draws["slope"]
    loss, trained = train(arrays).final_loss, train((frame["x"], list(frame["y"])))
    assert trained.final_loss == loss
    np.testing.assert_array_equal(
        relbo.infer(0, line, (frame["x"], list(frame["y"])), **options).draws["slope"], expected
    )
    np.testing.assert_array_equal(
        relbo.infer(0, line, kwargs=frame, **options).draws["slope"], expected
    )
    # The guide takes them as well, and keeps those of the fit.
    draw = lambda *data: trained.guide.sample_posterior(1, trained.params, *data)["slope"]
    assert draw() == draw(*arrays) == draw(frame["x"], frame["y"])
