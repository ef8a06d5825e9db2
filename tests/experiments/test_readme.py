"""What the README shows is what the library does."""

import subprocess
import sys
from pathlib import Path

import pytest

import relbo

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_the_example_is_the_file_under_examples():
    code = README.split("```python\n")[1].split("```")[0]
    example = (ROOT / "examples" / "refine.py").read_text()
    assert example.split('"""\n\n', 1)[1] == code


def test_the_validity_table_is_the_librarys_own():
    assert relbo.validity_table() in README


def test_the_picture_is_there():
    assert (ROOT / "docs" / "funnel.png").exists()
    assert (ROOT / "docs" / "funnel.svg").exists()


@pytest.mark.slow
def test_the_example_reaches_what_the_readme_says():
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "refine.py"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout.split()[1]) == pytest.approx(-0.60, abs=0.05)
