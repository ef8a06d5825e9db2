"""What `import relbo` gives, and what it does not wait for."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import relbo


def names_for_type_checkers():
    tree = ast.parse(Path(relbo.__file__).read_text())
    [block] = [node for node in tree.body if isinstance(node, ast.If)]
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname: node.module for node in imports for alias in node.names}


def test_type_checkers_and_programs_see_the_same_names():
    seen = names_for_type_checkers()
    assert seen.pop("evaluate") == "relbo"
    assert seen == relbo._HOMES


def test_every_name_is_there_and_listed():
    for name in (*relbo._HOMES, *relbo._ROOMS):
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
