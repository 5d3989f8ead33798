"""The tables of a report: steps, ranges, checks, run facts, format limits, stand-ins.

Must not know where on a page they stand.
"""

from __future__ import annotations

import math
import shlex

from fp16doctor.report import wording
from fp16doctor.report.proof import replay_line
from fp16doctor.report.run_story import no_steps, outcome_words
from fp16doctor.report.view_model import Table
from fp16doctor.schema.diagnosis import Diagnosis, FormatLimits
from fp16doctor.schema.finding import CheckOutcome, OutcomeOfCheck, Severity
from fp16doctor.schema.ranges import ModuleRanges
from fp16doctor.schema.recording import StepInfo

_EDGE_STEPS = 20  # steps shown at either end of a long run
_MOST_STEPS = 200
_MOST_RANGES = 400
_IN_JSON = "(in the JSON)"
_OUTCOMES = {
    OutcomeOfCheck.FOUND: "found",
    OutcomeOfCheck.CLEAR: "clear",
    OutcomeOfCheck.NOT_APPLICABLE: "not applicable",
    OutcomeOfCheck.FAILED: "failed",
}


def steps_table(diagnosis: Diagnosis) -> Table:
    """One row a step; of a long run both ends and the steps where something happened."""
    steps = diagnosis.steps
    chosen = [s for i, s in enumerate(steps) if _worth_a_row(i, len(steps), s)][:_MOST_STEPS]
    head = ("step", "loss", "loss scale", "found_inf", "optimizer step", "ops", "non-finite ops")
    left = len(steps) - len(chosen)
    left_out = f"… and {wording.plural(left, 'more step')} {_IN_JSON}" if left else ""
    return Table(head, tuple(map(_step_row, chosen)), left_out)


def _worth_a_row(i: int, total: int, step: StepInfo) -> bool:
    eventful = step.skipped or bool(step.found_inf) or step.n_nonfinite_ops > 0
    at_an_end = i < _EDGE_STEPS or i >= total - _EDGE_STEPS
    return at_an_end or eventful or not math.isfinite(step.loss or 0.0)


def _step_row(step: StepInfo) -> tuple[str, ...]:
    scale, after = step.loss_scale, step.next_loss_scale
    changed = f" → {wording.number(after)}" if after is not None and after != scale else ""
    return (
        str(step.step),
        wording.loss(step.loss),
        wording.number(scale) + changed,
        wording.NOTHING if step.found_inf is None else "yes" if step.found_inf else "no",
        "skipped" if step.skipped else "taken",
        wording.count(step.n_ops),
        wording.count(step.n_nonfinite_ops),
    )


def steps_line(diagnosis: Diagnosis) -> str:
    """``30 steps · 30 skipped · 30 with found_inf``."""
    steps = diagnosis.steps
    if not steps:
        return no_steps(diagnosis).message
    skipped = sum(s.skipped for s in steps)
    found = sum(bool(s.found_inf) for s in steps)
    return wording.joined(
        wording.plural(len(steps), "step"),
        f"{wording.count(skipped)} skipped" if skipped else "",
        f"{wording.count(found)} with found_inf" if found else "",
    )


def ranges_table(diagnosis: Diagnosis) -> Table:
    """One row a module and role: extremes over all steps looked at, headroom in each format.

    What is counted (zeros, NaN, inf) was taken at the steps with full statistics alone.
    """
    formats = diagnosis.formats
    extremes = ("steps", "amax", "at step", "inf or NaN first at step")
    counts = ("full statistics at", "amin_nonzero", "zeros", "NaN", "inf")
    head = ("module", "role", *extremes, *counts)
    rooms = tuple(f"headroom {f.name}" for f in formats)
    seen = [r for r in diagnosis.ranges[:_MOST_RANGES] if r.stats or r.n_looked]
    rows = tuple(_range_row(r, formats) for r in seen)
    left = len(diagnosis.ranges) - _MOST_RANGES
    left_out = f"… and {wording.count(left)} more {_IN_JSON}" if left > 0 else ""
    return Table(head + rooms, rows, left_out)


def _range_row(ranges: ModuleRanges, formats: tuple[FormatLimits, ...]) -> tuple[str, ...]:
    stats, n_full = ranges.stats, len(ranges.steps)
    amax = max([ranges.amax, *(s.amax for s in stats)])
    smallest = min((s.amin_nonzero for s in stats), default=math.inf)
    path = ranges.module_path or "root module"
    return (
        f"{path} ({ranges.module_class})",
        ranges.role,
        wording.count(ranges.n_looked or n_full),
        wording.number(amax),
        _step(ranges.amax_step),
        _step(ranges.first_nonfinite),
        wording.plural(n_full, "step"),
        wording.number(smallest) if math.isfinite(smallest) else wording.NOTHING,
        wording.percent(sum(s.n_zero for s in stats), sum(s.numel for s in stats)),
        wording.count(sum(s.n_nan for s in stats)),
        wording.count(sum(s.n_inf for s in stats)),
        *(wording.headroom(amax, f) for f in formats),
    )


def _step(number: int | None) -> str:
    return wording.NOTHING if number is None else str(number)


def checks_table(diagnosis: Diagnosis) -> Table:
    """One row a check, in the order in which they ran."""
    rows = [(c.code, c.name, _OUTCOMES[c.outcome], c.detail) for c in diagnosis.checks]
    return Table(("code", "check", "outcome", "detail"), tuple(rows))


def failed_checks(diagnosis: Diagnosis) -> tuple[str, ...]:
    """One sentence for each check that answered nothing because it failed itself."""
    return tuple(_failed(c) for c in diagnosis.checks if c.outcome is OutcomeOfCheck.FAILED)


def _failed(check: CheckOutcome) -> str:
    detail = f": {wording.first_line(check.detail)}" if check.detail else ""
    return f"{check.code} {check.name} failed and answered nothing{detail}"


def count_line(diagnosis: Diagnosis) -> str:
    """``3 findings: 1 error, 2 notes · 11 checks clear · 1 not applicable · 0 failed``."""
    severities = [f.severity.value for f in diagnosis.findings]
    kinds = [s.value for s in Severity if s.value in severities]
    words = [wording.plural(severities.count(kind), kind) for kind in kinds]
    found = f": {', '.join(words)}" if words else ""
    said = [c.outcome for c in diagnosis.checks]
    return wording.joined(
        f"{wording.plural(len(severities), 'finding')}{found}",
        f"{wording.plural(said.count(OutcomeOfCheck.CLEAR), 'check')} clear",
        f"{wording.count(said.count(OutcomeOfCheck.NOT_APPLICABLE))} not applicable",
        f"{wording.count(said.count(OutcomeOfCheck.FAILED))} failed",
    )


def facts_table(diagnosis: Diagnosis) -> Table:
    """What ran, where, for how long, and how it ended."""
    run, examined = diagnosis.run, diagnosis.replay.steps
    facts = (
        ("script", run.script),
        ("arguments", shlex.join(run.argv) or "none"),
        ("outcome", outcome_words(run.outcome)),
        ("steps", steps_line(diagnosis)),
        ("device", run.device),
        ("rank", f"{run.rank} of {run.world_size}" if run.world_size > 1 else ""),
        ("ops by dtype of their output", _ops(run.ops_by_dtype)),
        ("bytes made in one training step", _ops(run.bytes_by_dtype)),
        ("weights stored in", _ops(run.parameters_by_dtype)),
        ("autocast", "; ".join(run.autocast)),
        ("loss scale", run.loss_scaling),
        *((f"outlook for {name}", o.sentence) for name, o in diagnosis.outlook.items()),
        ("started", run.started),
        ("duration", f"{wording.seconds(run.duration_s)}, of which {_examined(diagnosis)}"),
        ("replay", replay_line(diagnosis)),
        ("reference of the replay", diagnosis.replay.reference),
        ("examined", wording.steps_named(examined) if examined else "no step"),
        ("fp16doctor", run.tool_version),
        ("torch", run.torch_version),
        ("Python", run.python_version),
    )
    return Table(("fact", "value"), tuple(f for f in facts if f[1]))


def _examined(diagnosis: Diagnosis) -> str:
    return f"{wording.seconds(diagnosis.run.examination_s)} on replays and checks"


def _ops(by_dtype: tuple[tuple[str, int], ...]) -> str:
    return ", ".join(f"{dtype} {wording.count(n)}" for dtype, n in by_dtype)


def formats_table(diagnosis: Diagnosis) -> Table:
    """The limits that all numbers are measured against."""
    limits = ("maximum", "overflow threshold", "smallest normal", "smallest subnormal", "eps")
    head = ("format", *limits)
    rows = tuple((f.name, *map(wording.limit, _limits(f))) for f in diagnosis.formats)
    return Table(head, rows)


def _limits(f: FormatLimits) -> tuple[float, ...]:
    return f.max, f.overflow_threshold, f.smallest_normal, f.smallest_subnormal, f.eps


def stand_ins_table(diagnosis: Diagnosis) -> Table:
    """Ops whose result in a replay was taken from the run instead of computed."""
    replay = diagnosis.replay
    rows = [("pinned", wording.op_name(op), why) for op, why in replay.pinned_ops]
    rows += [("opaque", wording.op_name(op), why) for op, why in replay.opaque_ops]
    return Table(("kind", "op", "reason"), tuple(rows))
