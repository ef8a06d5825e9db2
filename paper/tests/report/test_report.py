import json
from html.parser import HTMLParser

import pytest

from relbo_paper import cli
from relbo_paper.harness.experiments import EXPERIMENTS
from relbo_paper.report import write_report
from results import record, write_experiment, write_fit

VOID = {"meta", "link", "img"}
SELF_CLOSED = {"circle", "rect", "line", "path", "polygon"}


class Outline(HTMLParser):
    """Collects tags, attributes and text, and checks that every element is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.found, self.words, self._open = [], "", []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attrs):
        assert tag in SELF_CLOSED
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        self.words += data

    def all(self, tag):
        return [attributes for name, attributes in self.found if name == tag]


def write_results(directory):
    write_experiment(directory, command="relbo-paper run funnel --quick")
    write_fit(directory)
    return directory


@pytest.fixture
def directory(tmp_path):
    return write_results(tmp_path)


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    directory = write_results(tmp_path_factory.mktemp("results"))
    return Outline(write_report(directory).read_text())


def test_page_is_self_contained(page):
    sources = [image["src"] for image in page.all("img")]
    assert len(sources) == 3
    assert all(source.startswith("data:image/svg+xml;base64,") for source in sources)
    for _, attributes in page.found:
        assert attributes.get("href", "#").startswith(("#", "data:", "url(#"))
    assert not any(attributes.get("src") for attributes in page.all("script"))


def test_every_image_has_a_description_and_a_size(page):
    for image in page.all("img"):
        assert len(image["alt"]) > 20
        assert (image["width"], image["height"]) == ("96", "48")
    for drawing in page.all("svg"):
        assert drawing["role"] == "img"
        assert drawing["aria-labelledby"]


def test_identifiers_are_unique_and_every_link_has_a_target(page):
    identifiers = [a["id"] for _, a in page.found if "id" in a]
    assert len(identifiers) == len(set(identifiers))
    for link in page.all("a"):
        assert link["href"].removeprefix("#") in identifiers
    for drawing in page.all("svg"):
        assert set(drawing["aria-labelledby"].split()) <= set(identifiers)


def test_page_names_what_was_run_and_what_was_not(page):
    for words in ("relbo-paper run funnel --quick", "jax", "GB of memory", "quick run"):
        assert words in page.words
    for name in EXPERIMENTS.keys() - {"funnel"}:
        assert name in page.words
    assert "more claims belong to what was not run:" in page.words


def test_results_come_before_claims_that_were_not_run_and_before_versions(directory):
    text = write_report(directory).read_text()
    places = [
        text.index(mark)
        for mark in (
            'id="fit-schools"',
            'id="questions"',
            'id="funnel"',
            '<details class="not-run">',
            'id="runs"',
        )
    ]
    assert places == sorted(places)
    assert text.index("Versions: ") > places[-1]
    # One folded line.
    not_run = text[places[3] :].partition("</details>")[0]
    assert "more claims belong to what was not run:" in not_run
    assert "<code>relbo-paper run tuning hmm" in not_run
    assert "badge" not in not_run


def test_figures_of_the_paper_are_labelled(page):
    assert "0.667 paper" in page.words
    assert "0.900 ± 0.010" in page.words


def test_fit_is_shown_with_its_summary(page):
    assert "mean  sd\n1.0   2.0\n" in page.words


def test_all_text_is_escaped(tmp_path):
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


def test_unknown_experiment_is_shown_without_a_verdict(tmp_path):
    write_experiment(tmp_path, [record("from elsewhere")], name="elsewhere")
    page = Outline(write_report(tmp_path).read_text())
    assert "from elsewhere" in page.words
    assert "Verdict" not in page.words


def test_files_of_earlier_versions_are_read(directory):
    path = directory / "funnel" / "metrics.json"
    content = json.loads(path.read_text())
    for run in [content, *content["runs"].values()]:
        for name in ("machine", "quick", "num_seeds", "source", "commit"):
            del run[name]
    path.write_text(json.dumps(content))
    page = Outline(write_report(directory).read_text())
    assert "Machine: not recorded" in page.words
    assert "quick run" in page.words


def test_command_prints_the_path_of_the_page(directory, capsys):
    assert cli.main(["report", str(directory)]) == 0
    assert capsys.readouterr().out == f"report: {directory / 'report.html'}\n"


def _absent(directory):
    directory.rmdir()


def _empty(directory):
    pass


def _directory_of_one_run(directory):
    (directory / "metrics.json").write_text("{}")


def _truncated(directory):
    (write_experiment(directory) / "metrics.json").write_text('{"records": [')


def _wrong_types(directory):
    path = write_experiment(directory) / "metrics.json"
    content = json.loads(path.read_text())
    content["records"][0]["seconds"] = None
    path.write_text(json.dumps(content))


def _not_text(directory):
    (write_experiment(directory) / "paper_loss.svg").write_bytes(b"\xff\xfe\x00")


@pytest.mark.parametrize(
    "make", [_absent, _empty, _directory_of_one_run, _truncated, _wrong_types, _not_text]
)
def test_wrong_input_is_reported_in_one_line_with_exit_code_2(tmp_path, capsys, make):
    directory = tmp_path / "out"
    directory.mkdir()
    make(directory)
    assert cli.main(["report", str(directory)]) == 2
    captured = capsys.readouterr()
    [line] = captured.err.splitlines()
    assert str(directory) in line
    assert not captured.out
    assert not (directory / "report.html").exists()
