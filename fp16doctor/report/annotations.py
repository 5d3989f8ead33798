"""Findings as GitHub's workflow commands: ``::error file=train.py,line=40,title=FD101 …::…``.

Grammar and escapes: docs.github.com, "Workflow commands for GitHub Actions", and the runner's own
``ActionCommand``. Must not know how findings are made.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from fp16doctor.report import wording
from fp16doctor.report.finding_view import ranked
from fp16doctor.report.run_story import not_examined
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Finding, Severity
from fp16doctor.schema.prescription import Verdict

LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.NOTE: "notice"}
_VERDICTS = {Verdict.VERIFIED: "verified", Verdict.NOT_VERIFIED: "not verified"}


def diagnosis_github(diagnosis: Diagnosis) -> str:
    """One command a finding, most severe first; one warning where nothing was examined.

    Files are named from the folder that the scan was started in, which a workflow's checkout is.
    """
    lines = [_finding(diagnosis, i) for i in range(len(diagnosis.findings))]
    reason = not_examined(diagnosis)
    if reason:
        message = f"{reason} in `{diagnosis.run.script}`: training itself was not examined"
        lines.append(command("warning", message, title="nothing was examined"))
    return "".join(f"{line}\n" for line in lines)


def command(level: str, message: str, **properties: str) -> str:
    """One workflow command; ``properties`` that are empty are left out."""
    named = ",".join(f"{name}={_property(text)}" for name, text in properties.items() if text)
    return f"::{level}{' ' + named if named else ''}::{_data(message)}"


def _finding(diagnosis: Diagnosis, position: int) -> str:
    finding = diagnosis.findings[position]
    return command(
        LEVELS[finding.severity],
        "\n".join(_message(diagnosis, finding, position)),
        **_place(diagnosis, finding),
        title=f"{finding.code} {finding.name}",
    )


def _place(diagnosis: Diagnosis, finding: Finding) -> dict[str, str]:
    source = wording.own_line(finding.site) if finding.site else None
    if source is None:
        return {}
    script = diagnosis.run.script.replace("\\", "/")
    folder = posixpath.dirname(script) if script.endswith(".py") else ""
    file = posixpath.normpath(posixpath.join(folder, source.file.replace("\\", "/")))
    return {"file": file, "line": str(source.line)}


def _message(diagnosis: Diagnosis, finding: Finding, position: int) -> Iterator[str]:
    yield finding.what
    if finding.cause:
        yield finding.cause
    for i in ranked(diagnosis):
        cure = diagnosis.prescriptions[i]
        verdict = _VERDICTS.get(cure.verification.verdict)
        if position in cure.treats and verdict:
            yield f"do: {cure.remedy.title} ({verdict})"
            return
    if finding.advice:
        yield f"do: {finding.advice} (not verified)"


def _data(text: str) -> str:
    """Escape the three characters that end or spoil a command, and hide control characters."""
    kept = wording.visible(text.replace("\r", "\n"), keep_newlines=True)
    return kept.replace("%", "%25").replace("\n", "%0A")


def _property(text: str) -> str:
    escaped = wording.visible(text).replace("%", "%25")
    return escaped.replace(":", "%3A").replace(",", "%2C")
