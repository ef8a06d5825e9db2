"""Runs the code of the page for people who come from PyMC."""

import re
from pathlib import Path

import pytest

pytest.importorskip("pymc", reason="make test-pymc installs PyMC")

PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming_from_pymc.md"


@pytest.mark.filterwarnings("ignore")
def test_code_blocks_run():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    exec(compile("\n".join(blocks), PAGE.name, "exec"), {})
