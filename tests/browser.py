"""What holds of every page in a browser."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_BACKGROUND = "getComputedStyle(document.body).backgroundColor"
_BROKEN = "Array.from(document.images).filter((i) => !i.naturalWidth).map((i) => i.src)"


def driver():
    """The module that drives Chromium; the paper's report is tested with it as well."""
    path = ROOT / "paper" / "tests" / "report" / "chromium.py"
    spec = spec_from_file_location("chromium", path)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def check_page(page, path, width, scheme):
    """Opens a page: no errors, no requests, no overflow, all images, and the right colours."""
    page.errors.clear()
    page.urls.clear()
    page.open(path, width=width, scheme=scheme)
    assert not page.errors
    assert all(url.startswith(("file:", "data:")) for url in page.urls)
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run(_BROKEN) == []
    channels = page.run(_BACKGROUND).removeprefix("rgb(").rstrip(")").split(",")
    assert (sum(map(int, channels)) < 3 * 128) == (scheme == "dark")
