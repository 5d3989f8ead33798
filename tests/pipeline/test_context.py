"""Which lines of source come with their neighbours."""

from __future__ import annotations

from fp16doctor.pipeline.context import contexts_of
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.location import OpSite, Phase, SourceContext, SourceLine


def line(number: int) -> SourceLine:
    return SourceLine("train.py", number, "f", f"line {number}")


def site(number: int, caller: SourceLine | None = None) -> OpSite:
    return OpSite(0, Phase.FORWARD, "aten.mm.default", 0, source=line(number), caller=caller)


def finding(at: OpSite | None, cause: OpSite | None = None) -> Finding:
    return Finding("FD101", "n", Severity.ERROR, Fault.OVERFLOW, "w", "c", at, cause)


def test_each_line_that_a_finding_names_has_one_context() -> None:
    def around(line: SourceLine) -> SourceContext | None:
        if line.line == 7:
            return None  # cannot be read
        return SourceContext(line.file, line.line, line.line, (line.text or "",))

    findings = (finding(site(5, line(2)), site(7)), finding(site(2)), finding(None))
    assert [(c.file, c.line) for c in contexts_of(findings, around)] == [
        ("train.py", 5),
        ("train.py", 2),
    ]
