import json
from html.parser import HTMLParser

import pytest

from relbo import cli
from relbo.experiments import EXPERIMENTS
from relbo.report import write_report
from relbo.report._html import Markup, element
from results import record, write_experiment, write_fit

VOID = {"meta", "link", "img"}


class Outline(HTMLParser):
    """Notes tags, attributes and text, and that every element is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.found, self.words, self._open = [], "", []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.words += data

    def all(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


@pytest.fixture
def directory(tmp_path):
    write_experiment(tmp_path, command="relbo reproduce funnel --quick")
    write_fit(tmp_path)
    return tmp_path


@pytest.fixture
def page(directory):
    return Outline(write_report(directory).read_text())


def test_the_page_needs_nothing_else(page):
    sources = [image["src"] for image in page.all("img")]
    assert len(sources) == 3
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    for _, attributes in page.found:
        assert attributes.get("href", "#").startswith(("#", "data:", "url(#"))
    assert not any(attributes.get("src") for attributes in page.all("script"))


def test_every_picture_has_words_and_room(page):
    for image in page.all("img"):
        assert len(image["alt"]) > 20
        assert (image["width"], image["height"]) == ("96", "48")
    for drawing in page.all("svg"):
        assert drawing["role"] == "img"
        assert drawing["aria-labelledby"]


def test_identifiers_are_unique_and_links_lead_somewhere(page):
    identifiers = [a["id"] for _, a in page.found if "id" in a]
    assert len(identifiers) == len(set(identifiers))
    for link in page.all("a"):
        assert link["href"].removeprefix("#") in identifiers
    for drawing in page.all("svg"):
        assert set(drawing["aria-labelledby"].split()) <= set(identifiers)


def test_it_says_what_was_run_and_what_was_not(page):
    for words in ("relbo reproduce funnel --quick", "jax", "GB of memory", "quick run"):
        assert words in page.words
    for name in EXPERIMENTS.keys() - {"funnel"}:
        assert name in page.words
    assert "Not run: " in page.words


def test_the_table_keeps_the_papers_figure_apart(page):
    assert "0.667 paper" in page.words
    assert "0.900 ± 0.010" in page.words


def test_a_fit_is_shown_with_its_summary(page):
    assert "mean  sd\n1.0   2.0\n" in page.words


def test_text_is_escaped_wherever_it_comes_from(tmp_path):
    evil = "<script>alert('&')</script>"
    write_experiment(
        tmp_path,
        [record(row=evil, metric=evil, estimator=evil)],
        name="funnel",
        command=evil,
    )
    write_fit(tmp_path, summary=evil)
    page = Outline(write_report(tmp_path).read_text())
    assert len(page.all("script")) == 1
    assert page.words.count(evil) >= 4


def test_an_experiment_that_is_not_known_here_is_shown_without_a_verdict(tmp_path):
    write_experiment(tmp_path, [record("from elsewhere")], name="elsewhere")
    page = Outline(write_report(tmp_path).read_text())
    assert "from elsewhere" in page.words
    assert "Verdict" not in page.words


def test_a_file_of_an_earlier_version_has_no_machine(directory):
    path = directory / "funnel" / "metrics.json"
    content = json.loads(path.read_text())
    for run in [content, *content["runs"].values()]:
        for name in ("machine", "quick", "num_seeds", "source", "commit"):
            del run[name]
    path.write_text(json.dumps(content))
    page = Outline(write_report(directory).read_text())
    assert "Machine: not recorded" in page.words
    assert "quick run" in page.words


def test_the_command_says_where_the_page_is(directory, capsys):
    assert cli.main(["report", str(directory)]) == 0
    assert capsys.readouterr().out == f"report: {directory / 'report.html'}\n"


def _nothing(directory):
    directory.rmdir()


def _empty(directory):
    pass


def _one_too_deep(directory):
    (directory / "metrics.json").write_text("{}")


def _broken(directory):
    (write_experiment(directory) / "metrics.json").write_text('{"records": [')


def _of_other_types(directory):
    path = write_experiment(directory) / "metrics.json"
    content = json.loads(path.read_text())
    content["records"][0]["seconds"] = None
    path.write_text(json.dumps(content))


def _no_text(directory):
    (write_experiment(directory) / "paper_loss.svg").write_bytes(b"\xff\xfe\x00")


@pytest.mark.parametrize(
    "make", [_nothing, _empty, _one_too_deep, _broken, _of_other_types, _no_text]
)
def test_wrong_input_is_one_line_and_code_2(tmp_path, capsys, make):
    directory = tmp_path / "out"
    directory.mkdir()
    make(directory)
    assert cli.main(["report", str(directory)]) == 2
    captured = capsys.readouterr()
    [line] = captured.err.splitlines()
    assert str(directory) in line
    assert not captured.out
    assert not (directory / "report.html").exists()


def test_elements_escape_what_is_not_markup():
    made = element("p", "a < b", Markup("<br>"), None, ["&"], class_='"', data_x=1, title=None)
    assert made == '<p class="&quot;" data-x="1">a &lt; b<br>&amp;</p>'
