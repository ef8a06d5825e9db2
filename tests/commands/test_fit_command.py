import builtins
import errno
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest

import relbo
from relbo import cli
from relbo.commands import InputError
from relbo.commands.data_file import match_arguments, read_data
from relbo.commands.expected_time import announcement, expected_seconds
from relbo.commands.fit import KERNELS
from relbo.commands.fit_figures import choose_parameters
from relbo.commands.model_file import load_model
from relbo.commands.output import exclusive
from relbo.commands.trial import try_model
from relbo.sampling import LogWeights, Posterior

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
ALL_FILES = {
    "posterior.nc",
    "posterior.npz",
    "summary.txt",
    *(f"{name}.{kind}" for name in ("trace", "rank", "pair") for kind in ("png", "svg")),
}

MODEL = """
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist

def model(y, error=1.0):
    mean = numpyro.sample("mean", dist.Normal(0.0, 10.0))
    with numpyro.plate("rows", 3):
        z = numpyro.sample("z", dist.Normal(mean, 1.0))
        numpyro.sample("y", dist.Normal(z, error), obs=y)

def two(x, y):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", len(y)):
        numpyro.sample("y", dist.Normal(slope * x, 1.0), obs=y)

def yes_or_no(y):
    p = numpyro.sample("p", dist.Beta(1.0, 1.0))
    numpyro.sample("y", dist.Bernoulli(p), obs=y)

def mixture(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    with numpyro.plate("rows", 3):
        z = numpyro.sample("z", dist.Bernoulli(0.5), infer={"enumerate": "parallel"})
        numpyro.sample("y", dist.Normal(mean + z, 1.0), obs=y)

def flat(y):
    mean = numpyro.sample("mean", dist.ImproperUniform(dist.constraints.real, (), ()))
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

def with_parameter(y):
    shift = numpyro.param("shift", 0.0)
    mean = numpyro.sample("mean", dist.Normal(shift, 1.0))
    numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

def no_data():
    numpyro.sample("a", dist.Normal(0.0, 1.0))

def positional(y, /):
    numpyro.sample("a", dist.Normal(0.0, 1.0))

def branches_on_data(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    scale = 1.0 if jnp.max(y) > 2.0 else 2.0
    numpyro.sample("y", dist.Normal(mean, scale), obs=y)

def nowhere(y):
    mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
    numpyro.factor("impossible", -jnp.inf + 0.0 * mean)

number = 3
"""


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "tiny.py"
    path.write_text(MODEL)
    return path


@pytest.fixture
def data_file(tmp_path):
    path = tmp_path / "data.json"
    path.write_text('{"y": [1.0, 2.0, 3.0]}')
    return path


def a_posterior(**changes):
    rng = np.random.default_rng(0)
    chains = {"theta": rng.normal(size=(8, 10, 3)), "tau": rng.gamma(2.0, size=(8, 10))}
    stats = {"lp": rng.normal(size=(8, 10)), "acceptance_rate": np.full((8, 10), 0.8)}
    options = {
        "num_draws": 80,
        "sample_stats": stats,
        "num_superchains": 4,
        "step_size": 0.1,
        "log_weights": LogWeights(*rng.normal(-3.25, 0.001, (2, 640))),
    }
    return Posterior(changes.pop("chains", chains), **options | changes)


@pytest.fixture
def no_figures(monkeypatch):
    """Skips the figures, which take seconds; one test draws them."""
    monkeypatch.setattr("relbo.commands.fit.draw_figures", lambda *_: [])


@pytest.fixture
def calls(monkeypatch, no_figures):
    """Replaces inference and NetCDF, and collects the arguments of `relbo.infer`."""
    seen = []

    def infer(key, model, args, kwargs, **options):
        seen.append((key, model, args, kwargs, options))
        return a_posterior()

    monkeypatch.setattr(relbo, "infer", infer)
    monkeypatch.setattr("relbo.commands.fit._write_netcdf", lambda *_: None)
    return seen


def fit(target, *arguments):
    return cli.main(["fit", str(target), *map(str, arguments)])


# The whole command


@pytest.mark.filterwarnings("ignore:.*")  # warnings of ArviZ and its dependencies
def test_fit_writes_the_same_posterior_for_the_same_seed(
    model_file, data_file, tmp_path, capsys, monkeypatch
):
    runs = [tmp_path / "one", tmp_path / "two"]
    for out in runs:
        options = ("--data", data_file, "--draws", 320, "--seed", 3, "--out", out)
        assert fit(f"{model_file}:model", *options) == 0
        # The figures take seconds: one run draws them.
        monkeypatch.setattr("relbo.commands.fit.draw_figures", lambda *_: [])
    assert {path.name for path in runs[0].iterdir()} == ALL_FILES
    shown = capsys.readouterr().out
    assert "effective draws" in shown
    assert "Log evidence" in shown
    assert all(str(runs[0] / name) in shown for name in ("posterior.nc", "trace.png"))

    one, two = (Posterior.load(out / "posterior.npz") for out in runs)
    for name, values in one.chains.items():
        np.testing.assert_array_equal(values, two.chains[name])
        assert values.dtype == np.float64
    assert (runs[0] / "summary.txt").read_text() == (runs[1] / "summary.txt").read_text()
    # The exact mean, from three observations with variance 2 and a prior with variance 100.
    assert one.draws["mean"].mean() == pytest.approx(2.0 * 1.5 / (1.5 + 0.01), abs=0.25)

    import arviz

    data = arviz.from_netcdf(runs[0] / "posterior.nc")
    np.testing.assert_array_equal(data.posterior["mean"], one.chains["mean"])
    assert not jax.config.jax_enable_x64


def test_options_are_passed_to_infer(calls, model_file, data_file, tmp_path):
    options = ("--data", data_file, "--draws", 123, "--seed", 7, "--out", tmp_path / "out")
    assert fit(f"{model_file}:model", *options) == 0
    [(key, model, args, kwargs, handed)] = calls
    assert model.__name__ == "model"
    assert jnp.array_equal(jax.random.key_data(key), jax.random.key_data(jax.random.key(7)))
    assert args == ()
    assert handed == {"num_draws": 123}
    np.testing.assert_array_equal(kwargs["y"], [1.0, 2.0, 3.0])
    assert kwargs["y"].dtype == jnp.float64


def test_no_x64_computes_in_float32(calls, model_file, data_file, tmp_path):
    out = tmp_path / "out"
    assert fit(f"{model_file}:model", "--data", data_file, "--no-x64", "--out", out) == 0
    [(*_, kwargs, _)] = calls
    assert kwargs["y"].dtype == jnp.float32


def test_default_directory_is_named_after_the_file(
    calls, model_file, data_file, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    assert fit(f"{model_file}:model", "--data", data_file) == 0
    assert Path("relbo-out/tiny/summary.txt").is_file()


def test_model_without_arguments_needs_no_data(calls, model_file, tmp_path):
    assert fit(f"{model_file}:no_data", "--out", tmp_path / "out") == 0
    assert calls[0][3] == {}


def test_discrete_sites_are_summed_out(
    calls, model_file, data_file, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(relbo, "collapse", lambda model: ("collapsed", model))
    out = tmp_path / "out"
    assert fit(f"{model_file}:mixture", "--data", data_file, "--out", out) == 0
    assert calls[0][1][0] == "collapsed"
    assert "Summed out: z." in capsys.readouterr().out


def test_improper_priors_give_no_evidence(calls, model_file, data_file, tmp_path, capsys):
    out = tmp_path / "out"
    assert fit(f"{model_file}:flat", "--data", data_file, "--out", out) == 0
    shown = capsys.readouterr().out
    assert "the priors of mean are improper" in shown
    assert "-3.25" not in shown


def test_names_with_slashes_are_renamed_in_netcdf(
    monkeypatch, no_figures, model_file, data_file, tmp_path
):
    names = ["part/theta", "part.theta"]
    draws = dict(zip(names, np.random.default_rng(0).normal(size=(2, 8, 10, 2)), strict=True))
    monkeypatch.setattr(relbo, "infer", lambda *_, **__: a_posterior(chains=draws))
    out = tmp_path / "out"
    assert fit(f"{model_file}:model", "--data", data_file, "--out", out) == 0

    import arviz

    found = arviz.from_netcdf(out / "posterior.nc").posterior
    assert sorted(found) == ["part.theta", "part.theta_"]
    np.testing.assert_array_equal(found["part.theta"], draws["part.theta"])
    np.testing.assert_array_equal(found["part.theta_"], draws["part/theta"])
    assert list(Posterior.load(out / "posterior.npz").chains) == names


def test_long_table_is_shortened_on_the_terminal_only(
    calls, monkeypatch, model_file, data_file, tmp_path, capsys
):
    draws = {"theta": np.random.default_rng(0).normal(size=(8, 10, 60))}
    monkeypatch.setattr(relbo, "infer", lambda *_, **__: a_posterior(chains=draws))
    out = tmp_path / "out"
    assert fit(f"{model_file}:model", "--data", data_file, "--out", out) == 0
    shown = capsys.readouterr().out
    assert "theta[39]" in shown
    assert "theta[40]" not in shown
    assert "20 more rows in summary.txt" in shown
    assert "theta[59]" in (out / "summary.txt").read_text()


@pytest.mark.parametrize("name", KERNELS)
def test_guide_options_train_a_guide(
    name, calls, monkeypatch, model_file, data_file, tmp_path, capsys
):
    seen = {}

    class Trained:
        params = "trained parameters"
        message = "went well"
        result = "converged"

    def train(key, model, args, kwargs, **options):
        seen["fit"] = options
        return Trained

    def sample(key, model, args, kwargs, **options):
        seen["sample"] = options
        return a_posterior()

    monkeypatch.setattr(relbo, "fit", train)
    monkeypatch.setattr(relbo, "sample", sample)
    options = ("--kernel", name, "--refine-steps", 3, "--train-steps", 20, "--draws", 100)
    out = ("--out", tmp_path / "out")
    assert fit(f"{model_file}:model", "--data", data_file, *options, *out) == 0
    guide = seen["fit"]["guide"]
    assert type(guide.refinement.kernel).__name__.lower() == name
    assert guide.refinement.num_steps == 3
    assert seen["fit"]["num_iterations"] == 20
    assert seen["sample"]["guide"] is guide
    assert seen["sample"]["params"] == "trained parameters"
    assert seen["sample"]["num_draws"] == 100
    assert "went well" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [(("--train-steps", "10"), "continue the training"), ((), "run it again")],
)
def test_an_interruption_says_what_the_same_command_does(
    monkeypatch, model_file, data_file, tmp_path, capsys, options, words
):
    def interrupt(*_, **given):
        if "checkpoint_dir" in given:
            given["checkpoint_dir"].mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(relbo, "fit", interrupt)
    monkeypatch.setattr(relbo, "infer", interrupt)
    out = tmp_path / "out"
    assert fit(f"{model_file}:model", "--data", data_file, "--out", out, *options) == 1
    assert f"interrupted; to {words}: relbo fit" in capsys.readouterr().err
    assert (out / "training").exists() == bool(options)


def test_a_completed_training_leaves_no_checkpoints(
    calls, monkeypatch, model_file, data_file, tmp_path
):
    class Trained:
        params, message, result = {}, "went well", "converged"

    def train(*_, checkpoint_dir, **__):
        checkpoint_dir.mkdir()
        return Trained

    monkeypatch.setattr(relbo, "fit", train)
    monkeypatch.setattr(relbo, "sample", lambda *_, **__: a_posterior())
    out = tmp_path / "out"
    options = ("--train-steps", 10, "--out", out)
    assert fit(f"{model_file}:model", "--data", data_file, *options) == 0
    assert not (out / "training").exists()


def test_a_run_says_first_how_long_it_takes(calls, model_file, data_file, tmp_path, capsys):
    assert fit(f"{model_file}:model", "--data", data_file, "--out", tmp_path / "out") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("This takes about ")
    assert max(map(len, lines)) <= 80 or str(tmp_path) in max(lines, key=len)


def test_the_expected_time_grows_with_the_draws_and_names_long_runs():
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0.0, 1.0))
        numpyro.sample("y", dist.Normal(mean, 1.0), obs=y)

    few = expected_seconds(model, {"y": np.ones(3)}, 4_000)
    many = expected_seconds(model, {"y": np.ones(3)}, 400_000_000)
    assert few < 60 < many
    assert announcement(7.0) == "This takes about 5 s, longer if the posterior is difficult."
    assert announcement(700.0).startswith("This is a long run: about 12 min")
    assert "not known" in announcement(expected_seconds(lambda y: None, {"y": 1.0}, 100))


def test_parser_offers_every_kernel():
    assert cli.main(["fit", "a.py:m", "--kernel", "none"]) == 2
    parser = cli._parser()
    for name in KERNELS:
        assert parser.parse_args(["fit", "a.py:m", "--kernel", name]).kernel == name


# Wrong input


def refused(capsys, *arguments):
    """Runs a wrong command and returns its one line of error message."""
    assert fit(*arguments) == 2
    captured = capsys.readouterr()
    [line] = captured.err.splitlines()
    assert not captured.out
    return line


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("tiny.py", "expected FILE.py:MODEL"),
        ("tiny.py:", "expected FILE.py:MODEL"),
        (":model", "expected FILE.py:MODEL"),
        ("absent.py:model", "absent.py: no such file"),
        ("tiny.txt:model", "expected a Python file"),
        ("tiny.py:other", "it does not define 'other'; it has model, two"),
        ("tiny.py:number", "expected 'number' to be a function, got int"),
        ("broken.py:model", "broken.py, line 2: not Python"),
        ("binary.py:model", "binary.py"),
        ("raises.py:model", "raises.py, line 3: ZeroDivisionError"),
        ("imports.py:model", "imports.py, line 1: ModuleNotFoundError: No module named"),
        ("leaves.py:model", "leaves.py, line 1: SystemExit"),
        ("empty.py:model", "it defines no function"),
        ("tiny.py:positional", "takes 'y' by position only"),
        ("tiny.py:with_parameter", "'shift'] have no prior: give --train-steps"),
    ],
)
def test_wrong_models_are_reported_in_one_line(
    calls, target, words, data_file, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("tiny.py", "tiny.txt"):
        Path(name).write_text(MODEL)
    Path("broken.py").write_text("x = 1\ndef model(:\n")
    Path("binary.py").write_bytes(b"\x80\x81\x00")
    Path("raises.py").write_text("def f():\n    pass\n1 / 0\n")
    Path("imports.py").write_text("import there_is_no_such_module\n")
    Path("leaves.py").write_text("raise SystemExit(0)\n")
    Path("empty.py").write_text("")
    assert words in refused(capsys, target, "--data", data_file)
    assert not calls
    assert not Path("relbo-out").exists()


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", "", "expected a .json, .npz, .csv or .parquet file"),
        ("a.json", '{"x": [1, 2],', "a.json, line 1: not JSON"),
        ("a.json", "[1, 2]", "expected a JSON object"),
        ("a.json", "3", "got a single value"),
        ("a.json", '{"x": [1, null], "y": [1, 2]}', "'x' has a null in it"),
        ("a.json", '{"x": [[1, 2], [3]], "y": [1, 2]}', "in 'x' have different lengths"),
        ("a.json", '{"x": ["a", "b"], "y": [1, 2]}', "'x' has values that are not numbers"),
        ("a.json", '{"x": {"a": 1}, "y": [1, 2]}', "'x' is an object"),
        ("a.json", '{"x": [1, NaN], "y": [1, 2]}', "'x' has 1 NaN in it, the first at index 1"),
        ("a.json", '{"x": [1, 2], "y": NaN}', "'y' is NaN"),
        ("a.json", '{"x": [1, 2]}', "no 'y', which the model requires; it has 'x'"),
        ("a.json", "{}", "no 'x', 'y', which the model requires; it has nothing"),
        ("a.json", '{"x": [1], "y": [1], "yy": 2}', "not take 'yy'; it takes 'x', 'y' (did"),
        ("a.json", '{"x": [1, 2, 3], "y": [1, 2]}', "x (3,), y (2,)"),
        ("a.json", '{"x": [1, 2], "y": [[1], [2]]}', "have shape (2, 1), and the model"),
        ("a.json", '{"x": ' + 200_000 * "[", "nested too deeply"),
        ("a.json", f'{{"x": {100 * "["}1{100 * "]"}, "y": [1]}}', "nested too deeply"),
        ("a.json", f'{{"x": {5000 * "9"}, "y": [1]}}', "a number too long"),
        ("a.json", f'{{"x": [{400 * "9"}], "y": [1]}}', "'x' has values that are not numbers"),
        ("a.csv", f"x,y\n1,{5000 * '9'}\n", "line 2: 'y' is '999"),
        ("a.csv", "", "a.csv: is empty"),
        ("a.csv", "x,y\n", "has a header and no rows"),
        ("a.csv", "1,2\n3,4\n", "the first line must name the columns"),
        ("a.csv", "x;y\n3;4\n", "must be separated by commas"),
        ("a.csv", "x,x\n3,4\n", "'x' occurs twice"),
        ("a.csv", "x,\n3,4\n", "one has no name"),
        ("a.csv", "x,y\n1,2\n3\n", "a.csv, line 3: 1 values under 2 column names"),
        ("a.csv", "x,y\n1,2\n3,\n", "a.csv, line 3: 'y' is missing"),
        ("a.csv", "x,y\n1,2\nNA,4\n", "a.csv, line 3: 'x' is missing"),
        (
            "a.csv",
            "x,y\n1,2\nthree,4\n",
            "a.csv, line 3: 'x' is 'three', which is not a number",
        ),
        ("a.csv", "x,y\n1,2\n3,nan\n", "'y' has 1 NaN in it"),
        ("a.csv", 'x,y\n1,"2\n', "not csv"),
        ("a.csv", "x\n1\n", "no 'y', which the model requires; it has 'x'"),
        ("a.csv", b"x,y\n\xff,1\n", "not a text file in UTF-8"),
        ("a.npz", "not a zip file", "not an npz file of plain arrays"),
    ],
)
def test_wrong_data_are_reported_in_one_line(
    calls, name, content, words, model_file, tmp_path, capsys
):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    out = tmp_path / "out"
    line = refused(capsys, f"{model_file}:two", "--data", path, "--out", out)
    assert words in line
    assert line.startswith("relbo: ")
    assert not calls
    assert not out.exists()


@pytest.mark.parametrize("name", ["a\0b", "a" * 5000])
@pytest.mark.parametrize("option", ["target", "--data", "--out"])
def test_impossible_paths_are_reported_in_one_line(
    calls, option, name, model_file, data_file, capsys
):
    paths = {"target": f"{model_file}:model", "--data": data_file, "--out": "out"}
    suffix = {"target": ".py:model", "--data": ".json", "--out": ""}[option]
    target, *options = (paths | {option: name + suffix}).items()
    assert name[:1] in refused(capsys, target[1], *(word for pair in options for word in pair))
    assert not calls


def test_missing_data_files_are_refused(calls, model_file, tmp_path, capsys):
    line = refused(capsys, f"{model_file}:model", "--data", tmp_path / "absent.csv")
    assert "absent.csv: no such file" in line
    assert "no --data: no 'y'" in refused(capsys, f"{model_file}:model")
    folder = tmp_path / "folder.csv"
    folder.mkdir()
    assert "no such file" in refused(capsys, f"{model_file}:model", "--data", folder)


def test_npz_files_with_objects_or_without_names_are_refused(
    calls, model_file, tmp_path, capsys
):
    objects, nameless = tmp_path / "objects.npz", tmp_path / "nameless.npz"
    np.savez(objects, y=np.array([{}], object))
    with nameless.open("wb") as file:
        np.save(file, np.ones(3))
    for path, words in ((objects, "plain arrays"), (nameless, "without a name")):
        assert words in refused(capsys, f"{model_file}:model", "--data", path)


def test_shape_error_names_the_line_of_the_model(calls, model_file, tmp_path, capsys):
    path = tmp_path / "a.json"
    path.write_text('{"y": [1, 2, 3], "error": [1, 2]}')
    line = refused(capsys, f"{model_file}:model", "--data", path)
    assert "tiny.py, line 10: " in line
    assert "(the data: y (3,), error (2,))" in line


@pytest.mark.parametrize("values", [[0, 1, 2], [0.5, 1.0, 0.0]])
def test_observations_outside_the_support_are_refused(
    calls, model_file, tmp_path, capsys, values
):
    path = tmp_path / "a.json"
    path.write_text(json.dumps({"y": values}))
    line = refused(capsys, f"{model_file}:yes_or_no", "--data", path)
    assert "some data of the site 'y' are outside its support" in line


@pytest.mark.parametrize(
    "option",
    [
        ("--draws", "0"),
        ("--seed", "-1"),
        ("--seed", "1.5"),
        ("--seed", str(2**32)),
        ("--refine-steps", "-1"),
        ("--train-steps", "0"),
        ("--kernel", "svgd"),
    ],
)
def test_wrong_options_are_reported_in_one_line(calls, model_file, data_file, capsys, option):
    line = refused(capsys, f"{model_file}:model", "--data", data_file, *option)
    assert option[0] in line
    assert not calls


def test_unwritable_directory_is_refused(calls, model_file, data_file, tmp_path, capsys):
    path = tmp_path / "file"
    path.write_text("")
    line = refused(capsys, f"{model_file}:model", "--data", data_file, "--out", path)
    assert f"--out {path}" in line
    assert not calls


def test_errors_raised_by_relbo_are_wrong_input(model_file, data_file, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ("--data", data_file, "--draws", 320, "--out", out)
    assert fit(f"{model_file}:nowhere", *arguments) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "the log density is not finite" in last


@pytest.mark.parametrize(
    ("error", "last"),
    [
        (RuntimeError("broken inside"), "relbo: fit: failed"),
        (ValueError("broken inside"), "relbo: fit: failed"),
        (KeyboardInterrupt(), "relbo: fit: interrupted"),
    ],
)
def test_failure_has_exit_code_1(
    monkeypatch, model_file, data_file, tmp_path, capsys, error, last
):
    def infer(*_, **__):
        raise error

    monkeypatch.setattr(relbo, "infer", infer)
    out = tmp_path / "out"
    assert fit(f"{model_file}:model", "--data", data_file, "--out", out) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith(last)
    # A failure is shown with its traceback, an interruption is not.
    assert (len(lines) == 1) == isinstance(error, KeyboardInterrupt)


def test_an_interrupted_model_file_is_reported_in_one_line(tmp_path, capsys):
    path = tmp_path / "interrupted.py"
    path.write_text("raise KeyboardInterrupt\n")
    assert fit(f"{path}:model") == 1
    command = f"relbo fit {path}:model"
    assert capsys.readouterr().err == f"relbo: fit: interrupted; to run it again: {command}\n"


def test_an_interrupted_import_is_reported_in_one_line(capsys, monkeypatch):
    plain_import = builtins.__import__

    def interrupt(name, *rest):
        if name != "relbo.commands.fit":
            return plain_import(name, *rest)
        raise KeyboardInterrupt

    monkeypatch.setattr(builtins, "__import__", interrupt)
    assert fit("model.py:model") == 1
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("relbo: fit: interrupted; to run it again: relbo fit")


# Writing files


def test_draws_are_rescued_if_the_directory_is_gone(
    monkeypatch, calls, model_file, data_file, tmp_path, capsys
):
    out, temporary = tmp_path / "out", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))

    def infer(*_, **__):
        shutil.rmtree(out)
        return a_posterior()

    monkeypatch.setattr(relbo, "infer", infer)
    assert fit(f"{model_file}:model", "--data", data_file, "--out", out) == 1
    captured = capsys.readouterr()
    assert "Log evidence" in captured.out
    [line] = captured.err.splitlines()
    [rescued] = temporary.glob("relbo-*/posterior.npz")
    expected = f"relbo: --out {out}: cannot be written to (No such file or directory); "
    assert line == f"{expected}the draws are in {rescued}"
    assert Posterior.load(rescued).num_draws == 80


def test_a_full_disk_leaves_the_earlier_results(
    monkeypatch, calls, model_file, data_file, tmp_path, capsys
):
    out = tmp_path / "out"
    out.mkdir()
    (out / "summary.txt").write_text("earlier")

    def write(posterior, path):
        path.write_text("half of a file")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("relbo.commands.fit._write_netcdf", write)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert fit(f"{model_file}:model", "--data", data_file, "--out", out) == 1
    assert "(No space left on device); the draws are in" in capsys.readouterr().err
    assert [(path.name, path.read_text()) for path in out.iterdir()] == [
        ("summary.txt", "earlier")
    ]
    monkeypatch.setattr(Posterior, "save", lambda *_: write(None, tmp_path / "half"))
    assert fit(f"{model_file}:model", "--data", data_file, "--out", out) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert f"nor could the draws be saved in {tmp_path}" in line


def test_a_second_run_into_one_directory_is_refused(
    calls, model_file, data_file, tmp_path, capsys
):
    out = tmp_path / "out"
    arguments = (f"{model_file}:model", "--data", data_file, "--out", out)
    with exclusive(out):
        assert f"in use by another run (process {os.getpid()})" in refused(capsys, *arguments)
    assert not calls
    # The lock of a process that was killed does not count.
    (out / ".lock").write_text("1")
    assert fit(*arguments) == 0
    assert {path.name for path in out.iterdir()} == {"posterior.npz", "summary.txt"}


# Reading files


def test_json_keeps_integers_and_scalars(tmp_path):
    path = tmp_path / "a.json"
    path.write_text('{"n": 3, "x": 0.5, "s": "b", "k": [0, 1], "y": [[1, 2.5]], "b": [true]}')
    values = read_data(path)
    assert values["n"] == 3
    assert type(values["n"]) is int
    assert values["x"] == 0.5
    assert values["s"] == "b"
    assert values["k"].dtype.kind == "i"
    assert values["b"].dtype.kind == "b"
    np.testing.assert_array_equal(values["y"], [[1.0, 2.5]])


def test_csv_columns_are_read_by_name(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('\ufeff"group", x\n0, 1\n\n1, 2.5\n2, -1e3\n', encoding="utf-8")
    values = read_data(path)
    assert list(values) == ["group", "x"]
    assert values["group"].dtype.kind == "i"
    np.testing.assert_array_equal(values["group"], [0, 1, 2])
    np.testing.assert_array_equal(values["x"], [1.0, 2.5, -1000.0])
    path.write_text(f"x\n{10**30}\n")
    np.testing.assert_array_equal(read_data(path)["x"], [1e30])


def test_parquet_columns_are_read_by_name(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "data.parquet"
    write = lambda **columns: parquet.write_table(pyarrow.table(columns), path)
    write(x=[1, 2], y=[0.5, 1.5])
    values = read_data(path)
    assert values["x"].dtype.kind == "i"
    np.testing.assert_array_equal(values["y"], [0.5, 1.5])
    write(x=[1, None])
    with pytest.raises(InputError, match="'x' is missing in some rows"):
        read_data(path)
    write(city=["Oslo"])
    with pytest.raises(InputError, match="'city' has 'Oslo' in it, which is not a number"):
        read_data(path)
    path.write_text("x,y")
    with pytest.raises(InputError, match="not a Parquet file"):
        read_data(path)


def test_parquet_needs_pyarrow(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "pyarrow.parquet", raising=False)
    path = tmp_path / "data.parquet"
    path.write_bytes(b"")
    with pytest.raises(InputError, match=r"needs pyarrow \(pip install pyarrow\)"):
        read_data(path)


def test_npz_arrays_are_read_by_name(tmp_path):
    path = tmp_path / "a.npz"
    np.savez(path, n=4, x=np.arange(6.0).reshape(2, 3))
    values = read_data(path)
    assert type(values["n"]) is int
    np.testing.assert_array_equal(values["x"], np.arange(6.0).reshape(2, 3))


def test_models_with_keyword_arguments_take_unknown_names():
    match_arguments(lambda y, **rest: None, {"y": 1, "z": 2}, "data")
    with pytest.raises(InputError, match="no 'y'"):
        match_arguments(lambda y, **rest: None, {"z": 2}, "data")


def test_model_may_import_files_beside_it(tmp_path):
    (tmp_path / "beside.py").write_text("scale = 2.0\n")
    (tmp_path / "main.py").write_text("import beside\ndef model():\n    return beside.scale\n")
    assert load_model(f"{tmp_path / 'main.py'}:model")() == 2.0


def test_model_that_branches_on_its_data_is_traced(model_file):
    trial = try_model(load_model(f"{model_file}:branches_on_data"), {"y": jnp.arange(3.0)})
    assert trial == ([], [], [])


def test_figures_show_scalars_and_the_worst_parameter():
    rng = np.random.default_rng(0)
    theta = rng.normal(size=(8, 10, 9))
    theta[:2, :, 7] += 5.0
    constant = np.ones((8, 10))
    chains = {"constant": constant, "theta": theta, "tau": rng.normal(size=(8, 10))}
    chosen = choose_parameters(a_posterior(chains=chains), 4)
    assert list(chosen) == ["theta[0]", "theta[1]", "theta[7]", "tau"]


# The examples, compared with NUTS (4 chains of 2,000 draws in float64)

REFERENCE = {
    "eight_schools": {"mu": (4.39, 3.32), "tau": (3.60, 3.20)},
    "logistic_regression": {"intercept": (-1.30, 0.61), "slope": (-2.70, 1.16)},
    "hierarchical_regression": {
        "intercept": (1.85, 0.34),
        "slope_scale": (0.349, 0.132),
        "noise": (0.758, 0.053),
    },
    "gp_regression": {"length": (0.852, 0.153), "noise": (0.242, 0.042)},
    "mixture": {"low": (-0.96, 0.256), "gap": (2.82, 0.208)},
    "local_level": {"level_scale": (45.4, 16.8), "noise_scale": (121.6, 13.0)},
}


def data_of(name):
    [path] = (p for p in EXAMPLES.glob(f"{name}.*") if p.suffix in (".json", ".csv"))
    return path


def test_every_example_has_a_reference():
    scripts = {"refine", "funnel", "demo", "demo_page", "demo_parts"}
    models = {path.stem for path in EXAMPLES.glob("*.py")} - scripts
    assert models == set(REFERENCE)


@pytest.mark.parametrize("name", REFERENCE)
def test_examples_accept_their_data(calls, name, tmp_path, capsys):
    target, out = EXAMPLES / f"{name}.py:model", tmp_path / "out"
    with jax.numpy_rank_promotion("allow"):
        assert fit(target, "--data", data_of(name), "--out", out) == 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*")
@pytest.mark.parametrize("name", REFERENCE)
def test_examples_match_nuts(name, tmp_path, capsys):
    with jax.numpy_rank_promotion("allow"):
        out = tmp_path / "out"
        target = EXAMPLES / f"{name}.py:model"
        assert fit(target, "--data", data_of(name), "--out", out) == 0
    assert "Trust it" in capsys.readouterr().out
    draws = Posterior.load(out / "posterior.npz").draws
    for site, (mean, sd) in REFERENCE[name].items():
        assert draws[site].mean() == pytest.approx(mean, abs=0.15 * sd)
        assert draws[site].std() == pytest.approx(sd, rel=0.15)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*")
def test_trained_guide_gives_the_same_posterior(tmp_path, capsys):
    with jax.numpy_rank_promotion("allow"):
        options = ("--train-steps", 500, "--refine-steps", 4, "--out", tmp_path / "out")
        target = EXAMPLES / "eight_schools.py:model"
        assert fit(target, "--data", data_of("eight_schools"), *options) == 0
    assert "Trust it" in capsys.readouterr().out
    draws = Posterior.load(tmp_path / "out" / "posterior.npz").draws
    assert draws["mu"].mean() == pytest.approx(4.39, abs=0.4)
