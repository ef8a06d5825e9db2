"""Looks at the built site in a real browser, if both are there: `make docs` builds it."""

from pathlib import Path

import pytest

from browser import check_page

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "site"
PAGES = ("index", "gallery/index", "gallery/sleep", "api/inference", "benchmarks", "methods")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (SITE / "index.html").exists(), reason="no site: make docs"),
]


@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_page_fits_without_errors_or_requests(page, name, width, scheme):
    check_page(page, SITE / f"{name}.html", width, scheme)


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
