import numpy as np
import pytest

from relbo.data import _files, load_co2
from relbo.data._files import read_checked


def test_every_month_is_there_once():
    months, values = load_co2()
    assert months[0] == np.datetime64("1959-01")
    assert months[-1] == np.datetime64("1997-12")
    np.testing.assert_array_equal(np.diff(months).astype(int), 1)
    assert values.shape == (468,)
    assert np.all((values > 310) & (values < 370))


def test_known_values():
    """As printed by R's `co2`."""
    months, values = load_co2().since("1966-01")
    assert months[0] == np.datetime64("1966-01")
    np.testing.assert_array_equal(values[:3], [320.46, 321.43, 322.23])
    assert load_co2().values[-1] == 364.34


def test_a_changed_file_is_refused(monkeypatch, tmp_path):
    (tmp_path / "co2.csv").write_text("month,ppm\n1959-01,1.0\n")
    monkeypatch.setattr(_files, "files", lambda _: tmp_path)
    with pytest.raises(ValueError, match=r"co2\.csv is damaged or was changed"):
        read_checked("co2.csv", "0" * 64)
