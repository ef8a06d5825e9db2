"""The paper's questions, answered from the claims that were tried."""

from collections.abc import Iterable
from typing import NamedTuple

from relbo.experiments._story import Claim, Question
from relbo.report._html import Markup, element
from relbo.report._reading import Results

QUESTIONS: dict[Question, str] = {
    "Q1": "Is the increased computational complexity of computing gradients through sampling "
    "steps worth the flexibility gains?",
    "Q2": "Is the proposed framework compatible with other structured inference techniques, "
    "such as the sum-product algorithm?",
    "Q3": "Does the more flexible posterior approximated by VIS help in auxiliary tasks, such "
    "as decision making or classification?",
}


class Evidence(NamedTuple):
    """A claim and the experiment that tries it."""

    experiment: str
    claim: Claim


def evidence(results: Results, question: Question) -> list[Evidence]:
    """Every claim that bears on a question, also those that were not run."""
    return [
        Evidence(each.name, claim)
        for each in [*results.ran, *results.missing]
        for claim in each.claims
        if question in claim.questions
    ]


def answer(claims: Iterable[Claim]) -> str:
    """In a sentence; each claim counts once."""
    tried = [claim for claim in claims if claim.verdict != "not run"]
    if not tried:
        return "Not run."
    held = sum(claim.verdict != "not confirmed" for claim in tried)
    if held == len(tried):
        return f"Yes, in what was run: {_count(held)} hold{'s' if held == 1 else ''}."
    if held == 0:
        verb = "is" if len(tried) == 1 else "are"
        return f"Not shown by what was run: {_count(len(tried))} {verb} not confirmed."
    return f"In part: {held} of {_count(len(tried))} hold."


def questions_section(results: Results) -> Markup:
    """Question, answer, and what the answer rests on."""
    shown = {ran.name for ran in results.ran}
    blocks = []
    for name, text in QUESTIONS.items():
        found = evidence(results, name)
        items = [
            element(
                "li",
                verdict_badge(claim),
                " ",
                _name(experiment, is_shown=experiment in shown),
                f": {claim.text}",
            )
            for experiment, claim in found
        ]
        blocks.append(
            element(
                "div",
                element("h3", f"{name}. {text}"),
                element("p", answer(claim for _, claim in found), class_="answer"),
                element("ul", *items, class_="claims") if items else None,
                class_="question",
            )
        )
    return element("section", element("h2", "The paper's questions"), *blocks, id="questions")


def verdict_badge(claim: Claim) -> Markup:
    kind = claim.verdict.replace(" ", "-")
    return element("span", claim.verdict, class_=f"badge {kind}")


def _name(experiment: str, is_shown: bool) -> str:
    return element("a", experiment, href=f"#{experiment}") if is_shown else experiment


def _count(number: int) -> str:
    return "the one claim" if number == 1 else f"{number} claims"
