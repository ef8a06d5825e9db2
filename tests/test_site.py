"""Looks at the built site in a real browser, if both are there: `make docs` builds it."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "site"
PAGES = ("index", "gallery/index", "gallery/sleep", "api/inference", "benchmarks", "methods")
BACKGROUND = "getComputedStyle(document.body).backgroundColor"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="no site: make docs"),
]


def driver():
    """The module that drives Chromium; the paper's report is tested with it as well."""
    path = ROOT / "paper" / "tests" / "report" / "chromium.py"
    spec = spec_from_file_location("chromium", path)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    chromium = driver()
    if not chromium.EXECUTABLE:
        pytest.skip("Chromium is not installed")
    pytest.importorskip("websocket")
    with chromium.browser(tmp_path_factory.mktemp("profile")) as opened:
        yield opened


@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_page_fits_without_errors_or_requests(page, name, width, scheme):
    page.errors.clear()
    page.urls.clear()
    page.open(SITE / f"{name}.html", width=width, scheme=scheme)
    assert not page.errors
    assert all(url.startswith(("file:", "data:")) for url in page.urls)
    assert page.run("document.documentElement.scrollWidth") <= width
    broken = "Array.from(document.images).filter((i) => !i.naturalWidth).map((i) => i.src)"
    assert page.run(broken) == []
    channels = page.run(BACKGROUND).removeprefix("rgb(").rstrip(")").split(",")
    assert (sum(map(int, channels)) < 3 * 128) == (scheme == "dark")


def test_search_finds_names_and_words(page):
    for word in ("AutoRefined", "horseshoe"):
        page.open(SITE / "search.html")
        page.call("Page.navigate", url=f"{(SITE / 'search.html').as_uri()}?q={word}")
        assert wait_for(page, "document.querySelectorAll('#search-results li').length") > 0


def wait_for(page, script, attempts=100):
    """Returns the first value of a script that is not zero."""
    import time

    for _ in range(attempts):
        value = page.run(script)
        if value:
            return value
        time.sleep(0.1)
    return 0
