"""What the report says of tuning."""

from relbo.experiments._story import (
    Claim,
    Numbers,
    Question,
    Story,
    Verdict,
    best,
    not_run,
    said,
)

METRIC = "independent draws per 1000 gradients"
STEP_METRIC = "learned step size"
_WORTH_IT: tuple[Question, ...] = ("Q1",)


def _names(numbers: Numbers) -> list[str]:
    records = numbers.all("sound", metric=STEP_METRIC) or numbers.all(
        "paper", metric=STEP_METRIC
    )
    return [record.row.partition(":")[0] for record in records]


def _against_the_grid(numbers: Numbers) -> Claim:
    text = "A learned step size comes within a fifth of the best of a grid."
    found, close = [], []
    for name in _names(numbers):
        learned = numbers.first("sound", f"{name}: learned start, learned step", METRIC)
        top = best(numbers.all("sound", f"{name}: learned start, step", METRIC))
        if learned is None or top is None or learned.value is None or top.value is None:
            continue
        found.append(f"{name}: {said(learned)} against {said(top)} ({top.row.split(', ')[-1]})")
        close.append(learned.value > 0.8 * top.value)
    if not found:
        return not_run(text, _WORTH_IT, "sound")
    verdict: Verdict = "reproduced" if all(close) else "not confirmed"
    why = f"{METRIC.capitalize()}, learned against the grid's best: {'; '.join(found)}."
    return Claim(text, verdict, why, _WORTH_IT)


def _against_no_start(numbers: Numbers) -> Claim:
    text = 'Without a learned start the sampler is "much worse".'
    found, much_worse = [], []
    for name in _names(numbers):
        learned = best(numbers.all("sound", f"{name}: learned start", METRIC))
        without = best(numbers.all("sound", f"{name}: start not learned", METRIC))
        if learned is None or without is None or learned.value is None or without.value is None:
            continue
        found.append(f"{name}: {said(learned)} against {said(without)}")
        much_worse.append(without.value < 0.5 * learned.value)
    if not found:
        return not_run(text, _WORTH_IT, "sound")
    verdict: Verdict = "reproduced" if all(much_worse) else "not confirmed"
    why = (
        f"{METRIC.capitalize()}, each with its best step size: {'; '.join(found)}. Less than "
        f"half, which is what is taken for much worse here, on {sum(much_worse)} of "
        f"{len(found)}."
    )
    return Claim(text, verdict, why, _WORTH_IT)


STORY = Story(
    question="Does a step size that was learned together with the guide make the sampler's "
    "long run worth more?",
    claims=lambda numbers: (_against_the_grid(numbers), _against_no_start(numbers)),
    figures={
        f"{protocol}_{figure}": f"{text}, {protocol} protocol"
        for protocol in ("paper", "sound")
        for figure, text in {
            "step_sizes": "The step size against the iterations of training, for three "
            "densities: seeds light, their mean dark",
            "worth": "What a thousand gradients are worth against the step size, with a "
            "learned start and without, and the learned step size as a star",
        }.items()
    },
)
