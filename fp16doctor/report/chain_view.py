"""From the op where a fault is born to what it reaches, as a few boxes with place and value.

Must not know how they are drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from fp16doctor.report import wording
from fp16doctor.report.view_model import ChainBox
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Evidence, Fault, Finding
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.recording import StepInfo

_NONFINITE = (Fault.OVERFLOW, Fault.NAN_BIRTH)


def chain_boxes(
    diagnosis: Diagnosis, finding: Finding, measured: Callable[[Evidence], str]
) -> tuple[ChainBox, ...]:
    """Return the boxes in order; none where the fault has no op or reaches nothing.

    ``measured`` words one number of the evidence.
    """
    if finding.site is None:
        return ()
    step = next((s for s in diagnosis.steps if s.step == finding.site.step), None)
    boxes = (*_ops(finding, measured), *_heirs(finding), *_sinks(finding, step), *_scale(step))
    return boxes if len(boxes) > 1 else ()


def _ops(finding: Finding, measured: Callable[[Evidence], str]) -> Iterator[ChainBox]:
    assert finding.site is not None
    if finding.cause_site is not None:
        yield _op("reason", finding.cause_site)
    value = measured(finding.evidence[0]) if finding.evidence else ""
    yield _op("birth" if finding.fault in _NONFINITE else "place", finding.site, value)
    seen = {_key(finding.site)}
    for number, site in enumerate(s for s in finding.chain if s != finding.site):
        if _key(site) not in seen:  # an op in a loop reads the same each time
            seen.add(_key(site))
            first_nan = number == 0 and finding.fault is Fault.OVERFLOW
            yield _op("first NaN" if first_nan else "then", site)


def _key(site: OpSite) -> tuple[str, str]:
    return wording.brief(site), site.module_path or ""


def _op(label: str, site: OpSite, value: str = "") -> ChainBox:
    line = wording.own_line(site)
    place = wording.joined(
        wording.location(line) if line is not None else "", wording.module_name(site)
    )
    return ChainBox(label, wording.op_name(site.op) or site.phase.value, place, value)


def _heirs(finding: Finding) -> Iterator[ChainBox]:
    if finding.consequences and finding.fault in _NONFINITE:
        ops = wording.plural(finding.consequences, "later op")
        yield ChainBox("inherited", ops, "", "inf or NaN in their results")


def _sinks(finding: Finding, step: StepInfo | None) -> Iterator[ChainBox]:
    for sink in finding.reaches:
        yield ChainBox("reaches", sink, "", _value(sink, step))


def _value(sink: str, step: StepInfo | None) -> str:
    if step is None:
        return ""
    if sink == "loss" and step.loss is not None and not math.isfinite(step.loss):
        return f"{wording.loss(step.loss)} at step {step.step}"  # a finite one may be untouched yet
    if sink == "gradients" and step.found_inf:
        skipped = ": the step is skipped" if step.skipped else ""
        return f"the scaler found inf{skipped}"
    return ""


def _scale(step: StepInfo | None) -> Iterator[ChainBox]:
    if step is None or step.loss_scale is None or step.next_loss_scale is None:
        return
    if step.next_loss_scale < step.loss_scale:
        old, new = wording.number(step.loss_scale), wording.number(step.next_loss_scale)
        yield ChainBox("reaches", "loss scale", "", f"{old} → {new}")
