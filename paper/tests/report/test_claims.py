"""Tests that verdicts follow the numbers."""

import importlib

import pytest

from relbo_paper.co2.claims import CLAIMS as CO2
from relbo_paper.funnel.claims import CLAIMS as FUNNEL
from relbo_paper.harness.claims import (
    Claim,
    Numbers,
    best,
    compare,
    format_number,
    format_record,
)
from relbo_paper.harness.experiments import EXPERIMENTS
from relbo_paper.report.questions import QUESTIONS, answer
from relbo_paper.state_space.claims import optimisation_claims
from relbo_paper.state_space.forecast_claims import CLAIMS as FORECAST
from results import funnel_records, record

LOSS = "negative log-likelihood above the best found, after"


def verdicts(claims, records):
    return [claim.verdict for claim in claims.claims(Numbers(records))]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_claims_without_numbers_are_not_run(name):
    claims = getattr(importlib.import_module(EXPERIMENTS[name].module), "CLAIMS", None)
    if claims is None:
        pytest.skip("no claims")
    assert claims.question.endswith("?")
    claims = claims.claims(Numbers([]))
    assert {claim.verdict for claim in claims} == {"not run"}
    assert all(claim.text.endswith(".") for claim in claims)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({"refined": -0.4, "counted": 0.5}, ["reproduced", "better"]),
        ({"refined": -0.4, "counted": 0.89}, ["not confirmed", "better"]),
        ({"refined": -0.79, "counted": 1.5}, ["not confirmed", "not confirmed"]),
        ({"refined": None, "counted": None}, ["not confirmed", "not confirmed"]),
    ],
)
def test_funnel(numbers, expected):
    assert verdicts(FUNNEL, funnel_records(**numbers)) == expected


def test_funnel_with_one_protocol():
    records = [r for r in funnel_records() if r.protocol == "sound"]
    assert verdicts(FUNNEL, records) == ["not run", "better"]


def optimisation_records(value):
    return [
        record("hmm", protocol, row, f"{LOSS} {price}", value=v)
        for protocol in ("paper", "sound")
        for row, v in (("T=0", 1.0), ("T=1 SGD 0.1", value))
        for price in ("60 iterations", "60 gradients", "the seconds of T=0's 60 iterations")
    ]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0.5, ["reproduced", "better", "reproduced"]),
        (1.01, ["not confirmed", "not confirmed", "reproduced"]),
        (None, ["not confirmed", "not confirmed", "not confirmed"]),
    ],
)
def test_optimisation(value, expected):
    claims = optimisation_claims("a model", "an algorithm")
    assert verdicts(claims, optimisation_records(value)) == expected


def test_claims_about_time_use_seconds_and_not_iterations():
    records = optimisation_records(2.0)
    for index, each in enumerate(records):
        if each.row != "T=0" and each.metric == f"{LOSS} 60 iterations":
            records[index] = each._replace(value=0.1)
    claims = optimisation_claims("a model", "an algorithm")
    assert verdicts(claims, records)[:2] == ["not confirmed", "not confirmed"]


@pytest.mark.parametrize(("score", "expected"), [(-0.1, "reproduced"), (-0.9, "not confirmed")])
def test_forecast_of_symbols(score, expected):
    common = {"experiment": "hmm-forecast", "metric": "log score"}
    records = [
        record(**common, protocol="paper", row="T=0, 50 epochs", value=-0.8, paper=-1.044),
        record(**common, protocol="paper", row="T=1 SGD 0.1", value=score, paper=-0.682),
        record(**common, protocol="sound", row="T=0, converged", value=score),
    ]
    beyond = "better" if score > -0.682 else "not confirmed"
    assert verdicts(FORECAST, records) == [expected, beyond]


def test_forecast_of_carbon_dioxide():
    def rows(protocol, row, mae, interval, paper=None):
        return [
            record("co2", protocol, row, "MAE", value=mae, paper=paper),
            record("co2", protocol, row, "interval score", value=interval),
        ]

    records = [
        *rows("paper", "T=0, 10 epochs", 0.27, 15.0, 0.27),
        *rows("paper", "T=1 SGD 0.1, 4 epochs", 0.20, 15.0, 0.239),
        *rows("sound", "posterior, paper's window", 0.4, 3.0),
        *rows("sound", "posterior, rolling", 0.3, 2.0),
        *rows("sound", "statsmodels UnobservedComponents, rolling", 0.4, 3.0),
    ]
    assert verdicts(CO2, records) == ["not confirmed", "better", "better"]


def test_gain_within_the_noise_is_not_clear():
    clear = compare(record(value=1.0, stderr=0.1), record(value=0.5, stderr=0.1))
    assert clear.is_clear
    noisy = compare(record(value=1.0, stderr=0.3), record(value=0.5, stderr=0.1))
    assert not noisy.is_clear
    assert "within the noise" in noisy.words
    alone = compare(
        record(value=1.0, stderr=None), record(value=1.5, stderr=None), lower_is_better=True
    )
    assert alone.is_clear
    assert not compare(record(value=None), record()).is_clear


def test_non_finite_values_are_never_the_best():
    finite, broken = record(value=5.0), record(value=None)
    assert best([broken, finite]) is finite
    assert best([broken, finite], lower_is_better=True) is finite
    assert best([broken]) is broken
    assert best([]) is None


def test_numbers_are_rounded_to_their_standard_error():
    assert format_record(record(value=-0.45143, stderr=0.00624)) == "-0.4514 ± 0.0062"
    assert format_record(record(value=1234.5, stderr=56.0)) == "1234 ± 56"
    assert format_record(record(value=1.0, stderr=0.0)) == "1.000 ± 0.000"
    assert format_record(record(value=0.5, stderr=None)) == "0.500"
    assert format_record(record(value=None, stderr=None)) == "not finite"
    assert format_number(123456.7) == "123,457"
    assert format_number(0.00012) == "0.00012"


def claim(verdict):
    return Claim("Something.", verdict, "", ("Q1",))


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        ([], "Not run."),
        (["not run"], "Not run."),
        (["better"], "Yes, in what was run: the one claim holds."),
        (["better", "reproduced"], "Yes, in what was run: 2 claims hold."),
        (["not confirmed"], "Not shown by what was run: the one claim is not confirmed."),
        (["not confirmed", "better", "not run"], "In part: 1 of 2 claims hold."),
    ],
)
def test_questions_are_answered_from_claims(found, expected):
    assert answer(map(claim, found)) == expected
    assert list(QUESTIONS) == ["Q1", "Q2", "Q3"]
