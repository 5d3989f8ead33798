"""Which findings ask for a cure, in which format they arose, and their place as a target.

Must not know any single remedy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp16doctor.replay.keep import in_torch_module
from fp16doctor.schema.finding import (
    REFERENCE_FAILS,
    RISE,
    SCALER_RAISED,
    STORED,
    Fault,
    Finding,
    Severity,
)
from fp16doctor.schema.location import OpSite, Phase

# Codes of faults that another format can cure: overflow, and rounding onto or across a boundary.
OF_PRECISION = frozenset(
    ("FD101", "FD102", "FD103", "FD104", "FD110", "FD111", "FD201", "FD202", "FD305", "FD306")
)

# Of these, where rounding itself is the fault: nothing left the format's range.
OF_ROUNDING = frozenset(("FD305", "FD306"))

# Codes of a GradScaler used so that the update is another one than without it.
SCALER_USE = frozenset(("FD402", "FD403", "FD405", "FD406", "FD409", "FD410", "FD411", "FD412"))
LOGIC = "logic-nan"  # name of a finding that fp32 has as well
REFUSAL = "FD901"
COLLAPSED = "FD401"
DIVERGED = "FD116"  # fp32 does the same: what overflows afterwards is not to be treated


def codes_of(finding: Finding) -> frozenset[str]:
    """The code and those folded under it, where a cure may aim at them."""
    if finding.code == DIVERGED:
        return frozenset((DIVERGED,))
    return frozenset((finding.code, *finding.subsumes))


def demanding(findings: Sequence[Finding]) -> Iterator[tuple[int, Finding]]:
    """Findings that demand action, with their positions."""
    wanted = (Severity.ERROR, Severity.WARNING)
    return ((i, f) for i, f in enumerate(findings) if f.severity in wanted)


def of_precision(findings: Sequence[Finding]) -> tuple[tuple[int, Finding], ...]:
    """Demanding findings that a wider or finer format can cure; a loss scale is not one.

    Nor is what a scaler's use led to: a format in which the same weights do not overflow keeps the
    use, and its updates.
    """
    return tuple(
        (i, f)
        for i, f in demanding(findings)
        if ((codes_of(f) & OF_PRECISION and f.fault is not Fault.LOSS_SCALE) or outgrows_scale(f))
        and not fails_anyway(f)
        and not was_stored(f)
        and not misuses_scaler(f)
    )


def outgrows_scale(finding: Finding) -> bool:
    """Tell whether gradients leave the format at a loss scale of 1 already: the format is short."""
    at = [e.measured for e in finding.evidence if e.quantity == "loss scale"]
    in_backward = finding.site is not None and finding.site.phase is Phase.BACKWARD
    return finding.code == COLLAPSED and in_backward and any(v < 1 for v in at)


def fails_anyway(finding: Finding) -> bool:
    """Tell whether the reference run is not finite either."""
    return any(e.quantity == REFERENCE_FAILS for e in finding.evidence)


def was_stored(finding: Finding) -> bool:
    """Tell whether the value was rounded before the step: a replay in fp32 has it rounded too."""
    return any(e.quantity == STORED for e in finding.evidence)


def beyond_formats(finding: Finding) -> bool:
    """Tell whether no format cures it: a fault of logic, or one that the reference has as well."""
    return finding.name == LOGIC or fails_anyway(finding)


def misuses_scaler(finding: Finding) -> bool:
    """Tell whether a GradScaler's use is the cause; of a constant by hand there is no advice."""
    return finding.code in SCALER_USE and bool(finding.advice)


def is_refusal(finding: Finding) -> bool:
    """Tell whether the script ended in an exception that is about mixed precision."""
    return finding.code == REFUSAL and finding.fault is Fault.MISUSE


def is_refused_by_scaler(finding: Finding) -> bool:
    """Tell whether it was a check of GradScaler's own that raised: a disabled one makes none."""
    return is_refusal(finding) and any(e.quantity == SCALER_RAISED for e in finding.evidence)


def rises(finding: Finding) -> bool:
    """Tell whether the values grew steadily until they left the format."""
    return any(e.quantity == RISE for e in finding.evidence)


def format_of(finding: Finding) -> str | None:
    """Format in which the finding arose, where its evidence names one."""
    return next((e.format for e in finding.evidence if e.format is not None), None)


def line_target(site: OpSite) -> str:
    """The place by its line alone, else, and for what runs in a module of torch, its module."""
    line = site.source or site.caller
    return (
        target(site) if line is None or in_torch_module(site) else f"line:{line.file}:{line.line}"
    )


def function_target(site: OpSite) -> str:
    """The place by the script's function around it, in a module too; else as its line."""
    line = site.source or site.caller
    if line is None or line.function in ("", "<module>") or in_torch_module(site):
        return line_target(site)
    return f"function:{line.file}:{enclosing(line.function)}"


def target(site: OpSite) -> str:
    """The place in the grammar of targets: module:…, function:…, line:…, op:…."""
    if site.module_path:
        return f"module:{site.module_path}"
    line = site.source or site.caller
    if line is None:
        return f"op:{'.'.join(site.op.split('.')[:2])}"
    if line.function in ("", "<module>"):
        return f"line:{line.file}:{line.line}"
    return f"function:{line.file}:{enclosing(line.function)}"


def op_target(site: OpSite) -> str:
    """The op alone, wherever it stands; a backward op by its forward."""
    return f"op:{'.'.join(site.op.split('.')[:2]).partition('_backward')[0]}"


def enclosing(function: str) -> str:
    """The named function around a generator, comprehension or lambda."""
    return function.partition(".<locals>.<")[0]
