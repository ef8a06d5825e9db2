"""The `relbo-paper` command: arguments, exit codes and messages."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from relbo_paper import cli
from relbo_paper.harness.experiments import EXPERIMENTS, Options, Outcome
from relbo_paper.harness.metrics import read_metrics


@pytest.fixture
def runs(monkeypatch):
    """Replaces every experiment by one that records its arguments."""
    seen = []

    def run(directory, options):
        seen.append((directory, options))
        return Outcome(directory / "metrics.json", (directory / "a.png", directory / "a.svg"))

    monkeypatch.setattr(cli.importlib, "import_module", lambda _: SimpleNamespace(run=run))
    return seen


def test_list_prints_every_experiment(capsys):
    assert cli.main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    begins = [line.split()[0] for line in lines if line[:1].strip()]
    assert begins[:-1] == list(EXPERIMENTS)


@pytest.mark.parametrize(
    "argv", [["list"], ["--help"], ["run", "--help"], ["report", "--help"]], ids=" ".join
)
def test_output_fits_80_columns_without_breaking_words(argv, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if line.endswith("-")]


def test_run_passes_its_options_and_prints_the_output_files(runs, tmp_path, capsys):
    argv = ["run", "funnel", "--protocol", "both", "--quick", "--seeds", "4"]
    argv += ["--out", str(tmp_path / "new")]
    assert cli.main(argv) == 0
    [(directory, options)] = runs
    assert directory == tmp_path / "new" / "funnel"
    command = f"relbo-paper {' '.join(argv)}"
    assert options == Options(("paper", "sound"), True, 4, command)
    out = capsys.readouterr().out
    assert str(directory / "metrics.json") in out
    assert str(directory / "a.png") in out
    assert out.startswith("funnel: expect minutes;")
    assert out.endswith(f"relbo-paper report {tmp_path / 'new'}\n")


def test_sound_is_the_default_protocol_and_repeated_names_run_once(runs, tmp_path):
    assert cli.main(["run", "funnel", "funnel", "--out", str(tmp_path)]) == 0
    [(_, options)] = runs
    assert options.protocols == ("sound",)
    assert options.num_seeds is None
    assert not options.quick


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        ([], "COMMAND"),
        (["fly"], "fly"),
        (["run"], "NAME"),
        (["run", "tunnel"], "tunnel"),
        (["run", "funnel", "--seeds", "0"], "--seeds"),
        (["run", "funnel", "--seeds", "many"], "many"),
        (["run", "funnel", "--protocol", "wild"], "wild"),
        (["run", "funnel", "--wrong"], "--wrong"),
    ],
)
def test_wrong_input_prints_one_line_and_exits_with_2(runs, capsys, argv, names):
    assert cli.main(argv) == 2
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1
    assert names in captured.err
    assert not captured.out
    assert not runs


def test_output_directory_that_is_a_file_exits_with_2(runs, tmp_path, capsys):
    path = tmp_path / "file"
    path.write_text("")
    assert cli.main(["run", "funnel", "--out", str(path)]) == 2
    assert str(path) in capsys.readouterr().err
    assert not runs


def replace_experiments(monkeypatch, run):
    monkeypatch.setattr(cli.importlib, "import_module", lambda _: SimpleNamespace(run=run))


def test_failure_exits_with_1_after_the_next_experiment(monkeypatch, tmp_path, capsys):
    seen = []

    def run(directory, options):
        seen.append(directory.name)
        raise RuntimeError("broken inside")

    replace_experiments(monkeypatch, run)
    assert cli.main(["run", "funnel", "hmm", "--out", str(tmp_path)]) == 1
    assert seen == ["funnel", "hmm"]
    assert capsys.readouterr().err.splitlines()[-1].startswith("relbo-paper: hmm: failed")


@pytest.mark.parametrize("given", [[], ["--resume"]])
def test_interrupt_stops_the_run_and_prints_how_to_resume(monkeypatch, tmp_path, capsys, given):
    seen = []

    def run(directory, options):
        seen.append(directory.name)
        raise KeyboardInterrupt

    replace_experiments(monkeypatch, run)
    argv = ["run", "all", "--out", str(tmp_path), *given]
    assert cli.main(argv) == 1
    assert len(seen) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    again = f"relbo-paper run all --out {tmp_path} --resume"
    assert last == f"relbo-paper: interrupted; to continue: {again}"


def test_all_runs_every_experiment(runs, tmp_path):
    assert cli.main(["run", "all", "--resume", "--out", str(tmp_path)]) == 0
    assert [directory.name for directory, _ in runs] == list(EXPERIMENTS)
    assert all(options.resume for _, options in runs)


def test_broken_metrics_file_exits_with_2(monkeypatch, tmp_path, capsys):
    def run(directory, options):
        read_metrics(directory / "metrics.json")

    replace_experiments(monkeypatch, run)
    assert cli.main(["run", "funnel", "--out", str(tmp_path)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "metrics.json" in line


def test_help_does_not_import_matplotlib():
    code = (
        "import sys; from relbo_paper import cli; cli.main(['--help']);"
        "assert 'matplotlib' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "report" in done.stdout


@pytest.mark.parametrize(
    ("option", "value"), [("--only", "x"), ("--data-dir", "x"), ("--jobs", "2")]
)
def test_image_options_are_refused_for_other_experiments(option, value, capsys, tmp_path):
    code = cli.main(["run", "funnel", option, value, "--out", str(tmp_path)])
    assert code == 2
    assert f"{option}: only for the image experiments" in capsys.readouterr().err


def test_jobs_is_refused_with_distributed(capsys, tmp_path):
    asked = ["run", "vae-mnist", "--jobs", "2", "--distributed", "--out", str(tmp_path)]
    assert cli.main(asked) == 2
    assert "--jobs: cannot be used with --distributed" in capsys.readouterr().err
