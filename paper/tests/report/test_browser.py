"""The report in a real browser."""

import os
from pathlib import Path

import chromium
import pytest

from relbo_paper.report import write_report
from results import record, write_experiment, write_fit

websocket = pytest.importorskip("websocket", reason="websocket-client is not installed")
pytestmark = pytest.mark.skipif(
    chromium.EXECUTABLE is None, reason="chromium is not installed (apt-get install chromium)"
)

SHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"
ROWS = "Array.from(document.querySelector('#funnel table').tBodies[0].rows)"
SHOWN = f"{ROWS}.map((row) => row.cells[2].dataset.value ?? '')"
SORT = "document.querySelector('#funnel table').tHead.rows[0].cells[2]"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    with chromium.browser(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    # A report that was made elsewhere can be tested in the same way.
    if "RELBO_REPORT" in os.environ:
        return Path(os.environ["RELBO_REPORT"])
    directory = tmp_path_factory.mktemp("out")
    values = (-0.5, -3.0, 0.25, None, 10.0)
    records = [record(row=f"T={i}", value=value) for i, value in enumerate(values)]
    write_experiment(directory, records)
    write_fit(directory)
    return write_report(directory)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_page_loads_without_errors_and_fits_the_screen(page, report, width, scheme):
    page.open(report, width=width, scheme=scheme)
    assert page.errors == []
    assert all(url.startswith(("file:", "data:")) for url in page.urls)
    assert page.run("document.documentElement.scrollWidth") == width
    sizes = page.run(
        "Array.from(document.querySelectorAll('img, svg'), (image) => "
        "[image.getBoundingClientRect().width, image.naturalWidth ?? 1])"
    )
    assert len(sizes) >= 5
    assert all(shown > 10 and own > 0 for shown, own in sizes)
    page.screenshot(SHOTS / f"report-{width}-{scheme}.png")


def test_colours_follow_the_preferred_scheme(page, report):
    lightness = {}
    for scheme in ("light", "dark"):
        page.open(report, scheme=scheme)
        colour = page.run("getComputedStyle(document.body).backgroundColor")
        lightness[scheme] = sum(map(int, colour.removeprefix("rgb(").rstrip(")").split(",")))
    assert lightness["dark"] < 150 < 600 < lightness["light"]


def test_table_sorts_both_ways_with_empty_cells_last(page, report):
    if "RELBO_REPORT" in os.environ:
        pytest.skip("the expected numbers are those of the built-in report")
    page.open(report)
    page.run(f"{SORT}.querySelector('button').click()")
    assert page.run(SHOWN) == ["-3.0", "-0.5", "0.25", "10.0", ""]
    assert page.run(f"{SORT}.getAttribute('aria-sort')") == "ascending"
    page.run(f"{SORT}.querySelector('button').click()")
    assert page.run(SHOWN) == ["10.0", "0.25", "-0.5", "-3.0", ""]
    assert page.run(f"{SORT}.getAttribute('aria-sort')") == "descending"
    assert page.errors == []


def test_table_sorts_by_keyboard(page, report):
    page.open(report)
    page.run(f"{SORT}.querySelector('button').focus()")
    page.press("Enter", 13)
    assert page.run(f"{SORT}.getAttribute('aria-sort')") == "ascending"
    assert page.run(f"{SORT}.parentElement.querySelectorAll('[aria-sort=none]').length") == 7


def test_note_opens_when_its_number_is_clicked(page, report):
    page.open(report)
    page.run("document.querySelector('#funnel td a').click()")
    assert page.run("document.querySelector('#funnel details.notes').open") is True
