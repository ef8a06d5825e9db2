"""Runs the code of every page of the documentation, and checks what the pages claim."""

import ast
import functools
import inspect
import json
import re
import shlex
import subprocess
import sys
import textwrap
import types
from importlib import import_module
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

import registry
import relbo
from laws import ALL_LAWS
from relbo.cli import main

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
GALLERY = sorted((DOCS / "gallery").glob("*.md"))
"""Pages that are run when the site is built, where an error in a block fails the build."""
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
REFERENCE = "\n".join(page.read_text() for page in sorted((DOCS / "api").glob("*.md")))
LONG_PAGES = {"diagnostics", "discrete", "eight_schools", "resume", "state_space"}
"""Pages that take longest, mostly to compile: `make test-all` and the CI run them."""
RUN_ELSEWHERE = {"coming_from_pymc"}
"""Pages that `make test-pymc` runs."""
WITHOUT_CODE = {
    "index",
    "experiments",
    "architecture",
    "benchmarks",
    "methods",
    "faq",
    "glossary",
}
VERDICTS = {True: "**bound**", False: "surrogate", None: "bound while one-to-one"}
MODULES = ("relbo", "relbo.core.kernels", "relbo.evaluate", "relbo.statespace", "relbo.data")


def code_of(page: Path) -> str:
    return "\n".join(BLOCK.findall(page.read_text()))


def by_length(page):
    marks = [pytest.mark.slow] if page.stem in LONG_PAGES else []
    return pytest.param(page, marks=marks, id=page.stem)


@pytest.fixture
def own_cache():
    """Restores the cache of compiled programs, which a page replaces."""
    names = [name for name in jax.config.values if "cache_" in name]
    before = {name: jax.config.values[name] for name in names}
    yield
    changed = {
        name: value for name, value in before.items() if jax.config.values[name] != value
    }
    for name, value in changed.items():
        jax.config.update(name, value)
    if changed:
        compilation_cache.reset_cache()


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize(
    "page", [by_length(page) for page in PAGES if page.stem not in RUN_ELSEWHERE]
)
def test_code_blocks_run(page):
    code = code_of(page)
    assert bool(code) == (page.stem not in WITHOUT_CODE)
    with jax.numpy_rank_promotion("allow"):
        exec(compile(code, page.name, "exec"), {})


def calls_of_relbo(code: str):
    """Yields the functions and classes of relbo that a page calls, with the calls."""
    tree = ast.parse(code)
    names: dict = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            exec(ast.unparse(node), names)
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            root, *path = ast.unparse(node.func).split(".")
            thing = functools.reduce(
                lambda t, name: getattr(t, name, None), path, names.get(root)
            )
            if (getattr(thing, "__module__", None) or "").startswith("relbo"):
                yield thing, node


@pytest.mark.parametrize(
    "page", [*sorted(LONG_PAGES), *(f"gallery/{page.stem}" for page in GALLERY)]
)
def test_calls_of_long_pages_match_the_signatures(page):
    """What a change of the interface breaks in pages whose code the quick tests do not run."""
    called = list(calls_of_relbo(code_of(DOCS / f"{page}.md")))
    assert called or page == "gallery/index"
    for thing, node in called:
        keywords = {word.arg: None for word in node.keywords if word.arg}
        is_whole = len(keywords) == len(node.keywords)
        is_whole &= not any(isinstance(value, ast.Starred) for value in node.args)
        signature = inspect.signature(thing)
        bind = signature.bind if is_whole else signature.bind_partial
        bind(*(v for v in node.args if not isinstance(v, ast.Starred)), **keywords)


def test_every_block_has_a_known_language():
    """Blocks in other languages are not run, so Python has to be marked as Python."""
    for page in [*PAGES, *GALLERY]:
        languages = set(re.findall(r"^```(\S+)", page.read_text(), re.MULTILINE))
        assert languages <= {"python", "bash", "text", "{toctree}", "{include}"}, page.name


def test_included_files_exist():
    for page in PAGES:
        for source in re.findall(r"^```{include} (\S+)", page.read_text(), re.MULTILINE):
            assert (page.parent / source).is_file(), f"{page.name} includes {source}"


def test_command_of_the_page_on_fit_runs(tmp_path, monkeypatch):
    page = (DOCS / "fit.md").read_text()
    for name in ("schools.py", "schools.json"):
        shown = re.search(rf"^    # {name}\n((?:    .*\n|\n)+)", page, re.MULTILINE)
        assert shown
        (tmp_path / name).write_text(textwrap.dedent(shown[1].split("    # ")[0]))
    command = re.search(r"^```bash\nrelbo (.*)\n```", page, re.MULTILINE)
    assert command
    monkeypatch.chdir(tmp_path)
    x64 = jax.config.jax_enable_x64
    try:
        assert main(shlex.split(command[1])) == 0
    finally:
        jax.config.update("jax_enable_x64", x64)
    assert (tmp_path / "results" / "posterior.npz").exists()


@pytest.mark.slow
def test_engine_example_beats_its_base():
    """The best diagonal Gaussian reaches about -0.77."""
    run = subprocess.run(
        [sys.executable, ROOT / "examples" / "refine.py"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert -0.72 < float(run.stdout.split()[1]) < 0.0


def test_a_page_shows_the_current_validity_table():
    assert relbo.validity_table() in (DOCS / "choosing.md").read_text()


def test_table_of_choices_names_the_bounds():
    table = (DOCS / "choosing.md").read_text().split("## By purpose")[1].split("\n\n")[1]
    rows = [row.strip("| ").split(" | ") for row in table.splitlines()[2:]]
    assert len(rows) >= 8
    names = {name: getattr(relbo, name) for name in dir(relbo)}
    for _, kernel, account, verdict in rows:
        kernel, account = (eval(cell.strip("`"), names) for cell in (kernel, account))
        assert VERDICTS[relbo.bound(kernel, account, 8).valid] == verdict


def test_page_on_devices_shows_the_recorded_numbers():
    recorded = max((ROOT / "benchmarks" / "results").glob("devices-*.json"))
    results = json.loads(recorded.read_text())["results"]
    page = (DOCS / "devices.md").read_text()
    for row in results["measured"]:
        cells = (row["bytes"] / 1e6, row["collectives"], row["bytes_once"] / 1e6)
        shown = "| {:.3f} | {:.0f} | {:.3f} |".format(*cells)
        assert row["devices"] != 4 or re.search(f"{row['axis']} .*{re.escape(shown)}", page)
    for row in results["extrapolated"]:
        share = f"| {row['weak']:.0%} | {row['strong']:.0%} | {row['rows_for_goal']:,} |"
        assert f"| {row['axis']} | {row['devices']} {share}" in page
    assumed = (
        "{teraflops:.0f} teraflop/s with links of {gigabytes:.0f} GB/s and {latency:.0f} µs"
    )
    assert assumed.format(**results["assumed"]) in page


def public_names() -> list[str]:
    """Returns the names that the packages export by `import X as X`."""
    names = []
    for module in MODULES:
        source = Path(import_module(module).__file__ or "").read_text()
        exported = re.findall(r"import (\w+) as \1$", source, re.MULTILINE)
        names += [f"{module}.{name}" for name in exported if f"{module}.{name}" not in MODULES]
    return names


def test_reference_has_every_public_name():
    listed = set(re.findall(r"^\.\. auto\w+:: (\S+)", REFERENCE, re.MULTILINE))
    objects = [_named(name) for name in listed]
    # `relbo.core.kernels.SGD` may be listed as `relbo.SGD`, which is the same object.
    missing = [
        name
        for name in public_names()
        if name not in listed and not any(_named(name) is thing for thing in objects)
    ]
    assert not missing


def test_public_names_have_docstrings():
    for name in public_names():
        thing = _named(name)
        if isinstance(thing, type | types.FunctionType):
            assert (thing.__doc__ or "").strip(), name
            # The default docstring of a named tuple or a dataclass is its signature.
            assert not thing.__doc__.startswith(f"{thing.__name__}("), name


def _named(name: str):
    parts = name.split(".")
    for size in range(len(parts) - 1, 0, -1):
        try:
            thing = import_module(".".join(parts[:size]))
        except ModuleNotFoundError:
            continue
        for part in parts[size:]:
            thing = getattr(thing, part)
        return thing
    raise LookupError(name)


@pytest.fixture(scope="module")
def classes_of_the_page():
    """The classes that the page on extending defines."""
    names: dict = {"__name__": "extending"}
    for block in BLOCK.findall((DOCS / "extending.md").read_text()):
        # Runs the blocks that define classes, and none that compute.
        if re.search(r"^class ", block, re.MULTILINE):
            exec(block.split("\n\n\nmean, error")[0], names)
        elif block.startswith("import jax\n"):
            exec("import jax", names)
    return names


@pytest.mark.parametrize(
    ("kernel", "account"),
    [
        ("TamedLangevin", "ReverseKernelAccount"),
        pytest.param("NormalisedAscent", "ChangeOfVariablesAccount", marks=pytest.mark.slow),
    ],
)
def test_kernels_of_the_page_satisfy_the_laws(
    kernel, account, classes_of_the_page, monkeypatch
):
    monkeypatch.setitem(registry.KERNELS, kernel, classes_of_the_page[kernel])
    for law in ALL_LAWS:
        law(kernel, account)


def test_account_of_the_page_satisfies_the_laws(classes_of_the_page, monkeypatch):
    account = classes_of_the_page["StretchedGaussian"]
    monkeypatch.setitem(registry.ACCOUNTS, "StretchedGaussian", account)
    for law in ALL_LAWS:
        law("SGD", "StretchedGaussian")


def test_gallery_lists_its_pages_with_a_picture():
    index = (DOCS / "gallery" / "index.md").read_text()
    examples = [page.stem for page in GALLERY if page.stem != "index"]
    assert len(examples) >= 10
    for name in examples:
        assert f"]({name}.md)" in index
        assert re.search(rf"^!\[.+\]\(/_runs/gallery/{name}/block-\d+-1\.png\)$", index, re.M)
        text = (DOCS / "gallery" / f"{name}.md").read_text()
        assert "posterior.check()" in text or name == "digits"
        assert "**What one learns.**" in text


@pytest.mark.slow
def test_site_builds_without_warnings_and_needs_no_network(tmp_path):
    pytest.importorskip("furo", reason="the docs group is not installed: make docs")
    build = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", DOCS, tmp_path]
    subprocess.run(build, check=True)
    fetched = re.compile(r'<(?:script|link|img)[^>]*(?:src|href)="(?:https?:)?//')
    for page in tmp_path.rglob("*.html"):
        assert not fetched.search(page.read_text()), page.name
