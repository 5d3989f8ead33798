"""A what-if as text: where the step comes from, how faithfully it replays, before and after.

Must not know how a step is replayed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp16doctor.report import wording
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.prescription import Verdict
from fp16doctor.schema.what_if import Question, WhatIf

_LABEL = 10  # columns, as in the terminal report
_MOST_BIRTHS = 3
_MARK = {Verdict.VERIFIED: "verified", Verdict.REFUTED: "refuted"}


def render_what_if(answer: WhatIf) -> str:
    """Return the lines, without colours."""
    return "\n".join(wording.visible(line) for line in _lines(answer)) + "\n"


def _lines(answer: WhatIf) -> Iterator[str]:
    origin, question = answer.origin, answer.question
    made = f"recorded on {origin.device} with torch {origin.torch_version}"
    yield _labelled("bundle", wording.joined(origin.script, wording.step_name(origin.step), made))
    if origin.finding is not None:
        found = origin.finding
        yield _labelled("finding", f"{found.code} {found.name}: {found.what}")
    yield _labelled("fidelity", _fidelity(answer))
    asked = question_words(question)
    if asked:
        yield _labelled("what if", f"{asked}, against the {question.reference} replay")
    yield ""
    yield from _table(answer, asked)
    yield ""
    yield from _births("as run", answer.births_before)
    if asked:
        yield from _births(asked, answer.births_after)
        yield _labelled("verdict", _verdict(answer))


def _labelled(label: str, text: str) -> str:
    return f"{label:<{_LABEL}}{text}"


def question_words(question: Question) -> str:
    """``bf16``, ``fp32 for module:blocks.2.ffn.wo, loss scale 1024``; "" where nothing is asked."""
    dtype = "" if question.dtype == "as-run" else question.dtype
    keep = f"fp32 for {wording.listed(question.keep)}" if question.keep else ""
    scale = question.loss_scale
    scaled = "" if scale is None else f"loss scale {wording.number(scale)}"
    return ", ".join(p for p in (dtype, keep, scaled) if p)


def _fidelity(answer: WhatIf) -> str:
    seen = answer.repetition
    if answer.moved:
        devices = wording.listed(answer.moved)
        return f"recorded on {devices}, replayed on cpu: not bit-equal by nature"
    loss = wording.loss(answer.verification.before.get("loss"))
    if not seen.compared:
        return f"nothing was left to compare with; loss {loss}"
    if seen.bit_equal:
        return f"bit-equal to the recording: {wording.plural(seen.compared, 'tensor')}, loss {loss}"
    where = f", the first written by {wording.brief(seen.first)}" if seen.first else ""
    few = f"{wording.count(seen.differing)} of {wording.plural(seen.compared, 'tensor')}"
    return f"{few} differ from the recording{where}; torch, its kernels or threads are not the same"


def _table(answer: WhatIf, asked: str) -> Iterator[str]:
    found = answer.verification
    columns = {"as run": found.before, "what if": found.after}
    if not asked:
        del columns["what if"]
    columns[answer.question.reference] = answer.reference
    heads, values = list(columns), list(columns.values())
    keys = dict.fromkeys(key for column in reversed(values) for key in column)
    rows = [[key, *(_cell(key, column) for column in values)] for key in keys]
    widths = [max(map(len, column)) for column in zip(["", *heads], *rows, strict=True)]
    for row in (["", *heads], *rows):
        first, *rest = zip(row, widths, strict=True)
        cells = [f"{text:>{width}}" for text, width in rest]
        yield "  ".join([f"{first[0]:<{first[1]}}", *cells]).rstrip()


def _cell(key: str, values: dict[str, float]) -> str:
    value = values.get(key)
    return wording.loss(value) if key == "loss" else wording.rounded(value)


def _births(run: str, sites: Sequence[OpSite]) -> Iterator[str]:
    """Name the ops that made inf or NaN of finite inputs."""
    for site in sites[:_MOST_BIRTHS]:
        yield _labelled("birth", f"{run}: {wording.where(site)} · {wording.brief(site)}")
    if len(sites) > _MOST_BIRTHS:
        yield _labelled("", f"… and {wording.count(len(sites) - _MOST_BIRTHS)} more")


def _verdict(answer: WhatIf) -> str:
    found = answer.verification
    mark = _MARK.get(found.verdict, "not verified")
    return (
        f"{mark}: {found.reason}" if found.reason else f"{mark} on step {answer.origin.step} alone"
    )
