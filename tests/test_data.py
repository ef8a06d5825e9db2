import numpy as np

from relbo.data import load_co2


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
