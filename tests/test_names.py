"""What `import relbo` gives, and what it does not wait for."""

import subprocess
import sys

import pytest

import relbo


def test_every_name_is_there_and_listed():
    for name in relbo._HOMES:
        assert getattr(relbo, name) is not None
        assert name in dir(relbo)


def test_a_name_that_is_not_there_is_refused_as_in_any_module():
    with pytest.raises(AttributeError, match="no attribute 'Particles'"):
        _ = relbo.Particles
    assert not hasattr(relbo, "__path_of_nothing__")


@pytest.mark.parametrize("code", ["import relbo", "from relbo import cli; cli.main(['list'])"])
def test_jax_is_waited_for_only_when_it_is_needed(code):
    code += "; import sys; assert not {'jax', 'numpyro'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
