"""The demo: what it prints, its page, and its parts."""

import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from browser import check_page

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"


@pytest.fixture(scope="module")
def demo():
    sys.path.insert(0, str(EXAMPLES))
    try:
        import demo
        import demo_page  # noqa: F401
    finally:
        sys.path.remove(str(EXAMPLES))
    return demo


def result(demo, sentence="It works."):
    return sys.modules["demo_parts"].Result(sentence, Figure(figsize=(2, 1)), ["a < b", "c"])


def part(demo, make, title="A part"):
    return sys.modules["demo_parts"].Part(title, make)


def test_parts_are_printed_in_turn_and_the_last_line_is_the_page(demo, tmp_path, capsys):
    parts = [part(demo, lambda n=n: result(demo, f"Sentence {n}."), f"T{n}") for n in (1, 2)]
    demo.run(parts, tmp_path / "out")
    lines = capsys.readouterr().out.splitlines()
    order = ["[1/2] T1", "    Sentence 1.", "    a < b", "[2/2] T2", "    Sentence 2."]
    assert [line for line in lines if line in order] == [*order[:3], *order[3:], "    a < b"]
    assert lines[-1] == str(tmp_path / "out" / "demo.html")
    page = Path(lines[-1]).read_text()
    assert page.count("data:image/png") == 2
    assert "a &lt; b" in page
    assert page.index("Sentence 1.") < page.index("Sentence 2.")


@pytest.fixture(scope="module")
def demo_page(demo, tmp_path_factory):
    """The page of four stand-in pictures, in the size of the real ones, with long lines."""
    figures = [Figure(figsize=(9, 3.4)) for _ in range(4)]
    for figure in figures:
        figure.subplots().plot([0, 1])
    lines = ["Do not trust it yet. " * 12, "a_long_name_without_spaces" * 8]
    made = lambda figure: sys.modules["demo_parts"].Result("It works. " * 20, figure, lines)
    parts = [part(demo, lambda f=f: made(f), "A part") for f in figures]
    directory = tmp_path_factory.mktemp("demo")
    demo.run(parts, directory)
    return directory / "demo.html"


@pytest.mark.parametrize("width", [1200, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_fits_without_errors_or_requests(page, demo_page, width, scheme):
    check_page(page, demo_page, width, scheme)
    assert page.run("document.images.length") == 4
    # On a phone a picture scrolls inside its frame, so that its text stays readable.
    assert page.run("Math.min(...Array.from(document.images, (i) => i.width))") >= 390
    described = "Array.from(document.images).every((i) => i.alt.length > 0)"
    assert page.run(described)


def test_a_part_without_its_package_is_left_out_with_a_word(demo, tmp_path, capsys):
    def make():
        raise ModuleNotFoundError("No module named 'absent'", name="absent")

    parts = [part(demo, make), part(demo, lambda: result(demo))]
    demo.run(parts, tmp_path)
    assert "left out: absent is not installed" in capsys.readouterr().out
    assert (tmp_path / "demo.html").read_text().count("<section>") == 1


def test_it_says_first_how_long_it_takes(demo, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sys.modules["demo_parts"], "PARTS", [])
    demo.main(["--out", str(tmp_path)])
    assert "minutes" in capsys.readouterr().out.splitlines()[0]


def test_a_posterior_without_end_is_not_trusted(demo):
    shown = sys.modules["demo_parts"].not_to_be_trusted()
    assert "Do not trust it yet" in shown.sentence
    assert any("proper" in line for line in shown.lines)


@pytest.mark.slow
def test_the_whole_demo_runs(tmp_path):
    command = [sys.executable, str(EXAMPLES / "demo.py"), "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert lines[-1] == str(tmp_path / "demo.html")
    page = (tmp_path / "demo.html").read_text()
    assert page.count("data:image/png") == 4
    assert "Trust it, for the modes found" in page
    assert "Do not trust it yet" in page
