"""The claims of the tuning experiment."""

from relbo_paper.harness.claims import (
    Claim,
    ExperimentClaims,
    Numbers,
    Question,
    Verdict,
    best,
    format_record,
    not_run,
)

EFFICIENCY = "independent draws per 1000 gradients"
STEP_SIZE = "learned step size"
_WORTH_IT: tuple[Question, ...] = ("Q1",)


def _targets(numbers: Numbers) -> list[str]:
    records = numbers.all("sound", metric=STEP_SIZE) or numbers.all("paper", metric=STEP_SIZE)
    return [record.row.partition(":")[0] for record in records]


def _against_the_grid(numbers: Numbers) -> Claim:
    text = "A learned step size comes within a fifth of the best of a grid."
    found, close = [], []
    for name in _targets(numbers):
        learned = numbers.first("sound", f"{name}: learned start, learned step", EFFICIENCY)
        top = best(numbers.all("sound", f"{name}: learned start, step", EFFICIENCY))
        if learned is None or top is None or learned.value is None or top.value is None:
            continue
        step = top.row.split(", ")[-1]
        found.append(f"{name}: {format_record(learned)} against {format_record(top)} ({step})")
        close.append(learned.value > 0.8 * top.value)
    if not found:
        return not_run(text, _WORTH_IT, "sound")
    verdict: Verdict = "reproduced" if all(close) else "not confirmed"
    why = (
        f"{EFFICIENCY.capitalize()}, learned against the best of the grid: {'; '.join(found)}."
    )
    return Claim(text, verdict, why, _WORTH_IT)


def _against_no_start(numbers: Numbers) -> Claim:
    text = 'Without a learned start the sampler is "much worse".'
    found, much_worse = [], []
    for name in _targets(numbers):
        learned = best(numbers.all("sound", f"{name}: learned start", EFFICIENCY))
        without = best(numbers.all("sound", f"{name}: start not learned", EFFICIENCY))
        if learned is None or without is None or learned.value is None or without.value is None:
            continue
        found.append(f"{name}: {format_record(learned)} against {format_record(without)}")
        much_worse.append(without.value < 0.5 * learned.value)
    if not found:
        return not_run(text, _WORTH_IT, "sound")
    verdict: Verdict = "reproduced" if all(much_worse) else "not confirmed"
    why = (
        f"{EFFICIENCY.capitalize()}, each with its best step size: {'; '.join(found)}. Less "
        f"than half counts as much worse, which holds for {sum(much_worse)} of {len(found)} "
        "targets."
    )
    return Claim(text, verdict, why, _WORTH_IT)


CLAIMS = ExperimentClaims(
    question="Is a long run of the sampler more efficient with a step size that was learned "
    "together with the guide?",
    claims=lambda numbers: (_against_the_grid(numbers), _against_no_start(numbers)),
    figures={
        f"{protocol}_{figure}": f"{text}, {protocol} protocol"
        for protocol in ("paper", "sound")
        for figure, text in {
            "step_sizes": "Step size against training iteration for three densities: seeds "
            "light, their mean dark",
            "worth": "Independent draws per thousand gradients against the step size, with a "
            "learned start and without; the learned step size is a star",
        }.items()
    },
)
