"""Rows that stay on disk give what an array in memory gives."""

import numpy as np
import pytest
from normal_mean import UNTIL_THE_END, Y, fit_minibatches

import relbo
from relbo import Rows

TABLE = np.arange(30.0).reshape(10, 3)


def fit(y=Y, **options):
    return fit_minibatches(y, **{"stopping": UNTIL_THE_END, "num_iterations": 200, **options})


def test_rows_on_disk_come_in_the_order_of_an_array(tmp_path):
    np.save(tmp_path / "rows.npy", Y)
    on_disk = fit(Rows.open(tmp_path / "rows.npy"))
    np.testing.assert_allclose(on_disk.losses, fit().losses, rtol=1e-6)


def test_rows_are_double_in_double_precision(x64):
    y = Y.astype(float) / 3.0  # not representable in single precision
    fitted, expected = (fit(data, num_iterations=100) for data in (Rows(y), y))
    assert fitted.losses.dtype == np.float64
    np.testing.assert_allclose(fitted.losses, expected.losses, rtol=1e-12)


def test_rows_can_be_resumed_and_other_rows_are_refused(tmp_path):
    run = lambda number, y=Y: fit(Rows(y), num_iterations=number, checkpoint_dir=tmp_path)
    run(100)
    np.testing.assert_array_equal(run(200).losses, fit(Rows(Y)).losses)
    with pytest.raises(ValueError, match="data: "):
        run(300, Y + 1)


def test_rows_are_fetched_in_any_order_and_more_than_once():
    rows, wanted = Rows(TABLE), np.array([[5, 3], [3, 9]])
    np.testing.assert_array_equal(rows.fetch(wanted), TABLE[wanted])
    assert len(rows) == 10


def test_a_failing_source_ends_the_fit():
    class Broken(Rows):
        def fetch(self, rows):
            if np.size(rows) > 4:
                raise OSError("the disk is gone")
            return super().fetch(rows)

    with pytest.raises(OSError, match="the disk is gone"):
        fit(Broken(Y))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            lambda: fit(Rows(Y), batch_size=None),
            "batch_size: relbo.Rows are read in minibatches",
        ),
        (lambda: Rows([1.0, 2.0]), "source: expected an array"),
        (lambda: Rows(np.zeros(())), "source: expected one row per data point"),
        (
            lambda: relbo.fit(0, print, (Y, Y, Rows(TABLE)), batch_size=4),
            "all relbo.Rows of a call must have one row per data point",
        ),
    ],
    ids=["batch_size", "list", "number", "lengths"],
)
def test_wrong_rows_are_named(call, words):
    with pytest.raises(ValueError, match=words):
        call()
