import subprocess
import sys
from types import SimpleNamespace

import pytest

from relbo import cli
from relbo.experiments import EXPERIMENTS, Options, Outcome


@pytest.fixture
def runs(monkeypatch):
    """Puts an experiment that only notes how it was called in place of every real one."""
    seen = []

    def run(directory, options):
        seen.append((directory, options))
        return Outcome(directory / "metrics.json", (directory / "a.png", directory / "a.svg"))

    monkeypatch.setattr(cli.importlib, "import_module", lambda _: SimpleNamespace(run=run))
    return seen


def test_list_names_every_experiment(capsys):
    assert cli.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(EXPERIMENTS)


def test_reproduce_hands_its_options_over_and_says_where_the_results_are(
    runs, tmp_path, capsys
):
    argv = ["reproduce", "funnel", "--protocol", "both", "--quick", "--seeds", "4"]
    argv += ["--out", str(tmp_path / "new")]
    assert cli.main(argv) == 0
    [(directory, options)] = runs
    assert directory == tmp_path / "new" / "funnel"
    command = f"relbo {' '.join(argv)}"
    assert options == Options(("paper", "sound"), True, 4, command)
    out = capsys.readouterr().out
    assert str(directory / "metrics.json") in out
    assert str(directory / "a.png") in out


def test_sound_is_the_default_and_a_name_given_twice_runs_once(runs, tmp_path):
    assert cli.main(["reproduce", "funnel", "funnel", "--out", str(tmp_path)]) == 0
    [(_, options)] = runs
    assert options.protocols == ("sound",)
    assert options.num_seeds is None
    assert not options.quick


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        ([], "COMMAND"),
        (["fly"], "fly"),
        (["reproduce"], "NAME"),
        (["reproduce", "tunnel"], "tunnel"),
        (["reproduce", "funnel", "--seeds", "0"], "--seeds"),
        (["reproduce", "funnel", "--seeds", "many"], "many"),
        (["reproduce", "funnel", "--protocol", "wild"], "wild"),
        (["reproduce", "funnel", "--wrong"], "--wrong"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(runs, capsys, argv, names):
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1
    assert names in captured.err
    assert not captured.out
    assert not runs


def test_an_output_directory_that_is_a_file_is_wrong_input(runs, tmp_path, capsys):
    path = tmp_path / "file"
    path.write_text("")
    assert cli.main(["reproduce", "funnel", "--out", str(path)]) == 2
    assert str(path) in capsys.readouterr().err
    assert not runs


@pytest.mark.parametrize("error", [RuntimeError("broken inside"), KeyboardInterrupt()])
def test_a_failure_is_code_1(monkeypatch, tmp_path, capsys, error):
    def run(directory, options):
        raise error

    monkeypatch.setattr(cli.importlib, "import_module", lambda _: SimpleNamespace(run=run))
    assert cli.main(["reproduce", "funnel", "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("relbo: funnel: ")


def test_help_draws_nothing_in():
    code = (
        "import sys; from relbo import cli; cli.main(['--help']);"
        "assert 'matplotlib' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "reproduce" in done.stdout
