import subprocess
import sys
from types import SimpleNamespace

import jax
import pytest

from relbo import cli
from relbo.experiments import EXPERIMENTS, Options, Outcome
from relbo.experiments._metrics import read_metrics


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


def put_in_place(monkeypatch, run):
    monkeypatch.setattr(cli.importlib, "import_module", lambda _: SimpleNamespace(run=run))


def test_a_failure_is_code_1_and_the_next_experiment_runs(monkeypatch, tmp_path, capsys):
    seen = []

    def run(directory, options):
        seen.append(directory.name)
        raise RuntimeError("broken inside")

    put_in_place(monkeypatch, run)
    assert cli.main(["reproduce", "funnel", "hmm", "--out", str(tmp_path)]) == 1
    assert seen == ["funnel", "hmm"]
    assert capsys.readouterr().err.splitlines()[-1].startswith("relbo: hmm: failed")


@pytest.mark.parametrize("given", [[], ["--resume"]])
def test_an_interrupt_stops_everything_and_says_how_to_go_on(
    monkeypatch, tmp_path, capsys, given
):
    seen = []

    def run(directory, options):
        seen.append(directory.name)
        raise KeyboardInterrupt

    put_in_place(monkeypatch, run)
    argv = ["reproduce", "all", "--out", str(tmp_path), *given]
    assert cli.main(argv) == 1
    assert len(seen) == 1
    last = capsys.readouterr().err.splitlines()[-1]
    assert (
        last == f"relbo: interrupted; to go on: relbo reproduce all --out {tmp_path} --resume"
    )


def test_all_means_every_experiment(runs, tmp_path):
    assert cli.main(["reproduce", "all", "--resume", "--out", str(tmp_path)]) == 0
    assert [directory.name for directory, _ in runs] == list(EXPERIMENTS)
    assert all(options.resume for _, options in runs)


def test_a_broken_metrics_file_is_wrong_input(monkeypatch, tmp_path, capsys):
    def run(directory, options):
        read_metrics(directory / "metrics.json")

    put_in_place(monkeypatch, run)
    assert cli.main(["reproduce", "funnel", "--out", str(tmp_path)]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "metrics.json" in line


def test_the_doctor_says_that_all_is_well_here(capsys):
    assert cli.main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert out.endswith("Everything works.\n")
    assert all(word in out for word in ("jax", "memory", "devices", "x64", "compiled"))


def test_the_doctor_goes_on_after_what_fails_and_says_what_to_do(monkeypatch, capsys):
    def no_device():
        raise RuntimeError("no GPU\nand much more")

    monkeypatch.setattr(jax, "devices", no_device)
    assert cli.main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "RuntimeError: no GPU\n" in out
    assert "JAX_PLATFORMS=cpu" in out
    assert "x64" in out


def test_help_draws_nothing_in():
    code = (
        "import sys; from relbo import cli; cli.main(['--help']);"
        "assert 'matplotlib' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "reproduce" in done.stdout


@pytest.mark.parametrize(
    ("option", "value"), [("--only", "x"), ("--data-dir", "x"), ("--jobs", "2")]
)
def test_options_for_images_are_refused_elsewhere(option, value, capsys, tmp_path):
    code = cli.main(["reproduce", "funnel", option, value, "--out", str(tmp_path)])
    assert code == 2
    assert f"{option}: it is for the experiments on images" in capsys.readouterr().err


def test_jobs_and_distributed_do_not_go_together(capsys, tmp_path):
    asked = ["reproduce", "vae-mnist", "--jobs", "2", "--distributed", "--out", str(tmp_path)]
    assert cli.main(asked) == 2
    assert "--jobs: with --distributed" in capsys.readouterr().err
