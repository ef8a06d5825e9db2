"""Every code block of the documentation runs, page by page; what the README shows is so."""

import re
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import relbo

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_blocks_run(page):
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert blocks
    with jax.numpy_rank_promotion("allow"):
        exec(compile("\n".join(blocks), page.name, "exec"), {})


@pytest.mark.slow
def test_engine_example_beats_its_base():
    """The best diagonal Gaussian alone reaches about -0.77."""
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / "refine.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert -0.72 < float(run.stdout.split()[1]) < 0.0


def test_readme_prints_the_validity_table_as_it_is():
    assert relbo.validity_table() in (ROOT / "README.md").read_text()
