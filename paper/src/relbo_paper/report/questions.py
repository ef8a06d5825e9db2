"""Answers the three questions of the paper from the claims that were tested."""

from collections.abc import Iterable
from typing import NamedTuple

from relbo_paper.harness.claims import Claim, Question
from relbo_paper.report.results import ReportedExperiment

QUESTIONS: dict[Question, str] = {
    "Q1": "Is the increased computational complexity of computing gradients through sampling "
    "steps worth the flexibility gains?",
    "Q2": "Is the proposed framework compatible with other structured inference techniques, "
    "such as the sum-product algorithm?",
    "Q3": "Does the more flexible posterior approximated by VIS help in auxiliary tasks, such "
    "as decision making or classification?",
}


class AnsweredQuestion(NamedTuple):
    """A question, its answer, and the tested claims that the answer rests on."""

    name: str
    text: str
    answer: str
    claims: list[tuple[str, Claim]]
    """Each with the name of its experiment."""


def answer_questions(experiments: Iterable[ReportedExperiment]) -> list[AnsweredQuestion]:
    """Answers each question from the claims that were tested."""
    tested = [
        (experiment.name, claim)
        for experiment in experiments
        for claim in experiment.claims
        if claim.verdict != "not run"
    ]
    answered = []
    for name, text in QUESTIONS.items():
        claims = [pair for pair in tested if name in pair[1].questions]
        answered.append(
            AnsweredQuestion(name, text, answer(claim for _, claim in claims), claims)
        )
    return answered


def answer(claims: Iterable[Claim]) -> str:
    """Says in one sentence how many of the tested claims hold."""
    tested = [claim for claim in claims if claim.verdict != "not run"]
    if not tested:
        return "Not run."
    held = sum(claim.verdict != "not confirmed" for claim in tested)
    if held == len(tested):
        return f"Yes, in what was run: {_count(held)} hold{'s' if held == 1 else ''}."
    if held == 0:
        verb = "is" if len(tested) == 1 else "are"
        return f"Not shown by what was run: {_count(len(tested))} {verb} not confirmed."
    return f"In part: {held} of {_count(len(tested))} hold."


def _count(number: int) -> str:
    return "the one claim" if number == 1 else f"{number} claims"
