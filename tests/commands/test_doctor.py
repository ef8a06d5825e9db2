import subprocess
import sys

import jax
import pytest

from relbo import cli


def test_doctor_passes_on_this_machine(capsys):
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    for words in (f"jax {jax.__version__}", "cores", "cpu:0", "log Z", "Everything works."):
        assert words in out


def test_doctor_runs_the_other_checks_after_a_failure(monkeypatch, capsys):
    def fail():
        raise RuntimeError("no device here\nmore lines")

    monkeypatch.setattr(jax, "devices", fail)
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "fails devices       RuntimeError: no device here\n" in out
    assert "set JAX_PLATFORMS=cpu" in out
    assert "log Z" in out
    assert out.endswith("A check failed: see above.\n")


@pytest.mark.parametrize(
    "argv", [["doctor"], ["--help"], ["fit", "--help"], ["doctor", "--help"]], ids=" ".join
)
def test_output_fits_80_columns_without_breaking_words(argv, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if line.endswith("-")]


@pytest.mark.parametrize("argv", [[], ["fly"], ["fit"], ["doctor", "--fast"]])
def test_wrong_arguments_are_reported_in_one_line(argv, capsys):
    assert cli.main(argv) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_help_imports_neither_jax_nor_matplotlib():
    code = (
        "import sys; from relbo.cli import main; assert main(['--help']) == 0; "
        "assert not {'jax', 'numpyro', 'matplotlib', 'arviz'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
