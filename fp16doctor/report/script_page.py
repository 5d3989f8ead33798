"""Findings of scripts as text, JSON, or lines for GitHub's annotations.

Must not know how scripts are read; everything shown is in the findings.
"""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence

from fp16doctor.report import wording
from fp16doctor.report.annotations import LEVELS, command
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.script_finding import ScriptFinding, UnreadScript

_LABEL = 10  # "  where   ", as the report of a scan
SCHEMA_VERSION = 1


def script_text(
    findings: Sequence[ScriptFinding],
    unread: Sequence[UnreadScript],
    n_files: int,
    width: int = 100,
) -> str:
    """One block a finding, then what could not be read, then the counts."""
    blocks = ["\n".join(_block(f, width)) for f in findings]
    blocks += ["\n".join(_wrapped("", _unread_line(u), width)) for u in unread]
    return "\n\n".join([*blocks, _counts(findings, unread, n_files)]) + "\n"


def _block(finding: ScriptFinding, width: int) -> Iterator[str]:
    head = f"{finding.severity.value} {finding.code} {finding.name}: {finding.what}"
    yield from _wrapped("", wording.visible(head), width)
    inside = "" if finding.function == "<module>" else f" · in `{finding.function}`"
    yield f"  {'where':<{_LABEL - 2}}{wording.visible(finding.file)}:{finding.line}{inside}"
    yield " " * _LABEL + wording.visible(finding.text)
    yield from _wrapped("reason", finding.reason, width)
    yield from _wrapped("do", finding.advice, width)
    for number, line in enumerate(_hunks(finding.fix)):
        yield f"  {'' if number else 'fix':<{_LABEL - 2}}{wording.visible(line)}".rstrip()
    yield f"  {'explain':<{_LABEL - 2}}fp16doctor explain {finding.code}"


def _hunks(fix: str) -> list[str]:
    """The diff without its two lines of file names: the place stands above."""
    return fix.splitlines()[2:]


def _wrapped(label: str, text: str, width: int) -> list[str]:
    first = f"  {label:<{_LABEL - 2}}" if label else ""
    later = " " * _LABEL if label else "  "
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=later,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _unread_line(unread: UnreadScript) -> str:
    at = f":{unread.line}" if unread.line else ""
    return wording.visible(f"not read {unread.file}{at}: {unread.reason}")


def _counts(findings: Sequence[ScriptFinding], unread: Sequence[UnreadScript], n_files: int) -> str:
    by = Counter(f.severity for f in findings)
    parts = [wording.plural(by[s], s.value) for s in Severity if by[s]]
    found = wording.plural(len(findings), "finding") + (f": {', '.join(parts)}" if parts else "")
    missed = f" · {wording.plural(len(unread), 'problem')} in reading" if unread else ""
    return f"{wording.plural(n_files, 'file')} · {found}{missed}"


def script_json(
    findings: Sequence[ScriptFinding], unread: Sequence[UnreadScript], n_files: int
) -> str:
    """The same as one JSON object: ``findings``, ``unread``, ``n_files``."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "n_files": n_files,
        "findings": [dataclasses.asdict(f) | {"severity": f.severity.value} for f in findings],
        "unread": [dataclasses.asdict(u) for u in unread],
    }
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"


def script_github(findings: Sequence[ScriptFinding], unread: Sequence[UnreadScript]) -> str:
    """One workflow command a finding: ``::error file=…,line=…::…``."""
    lines = []
    for f in findings:
        place = {"file": f.file, "line": str(f.line), "col": str(f.column)}
        title = f"{f.code} {f.name}"
        message = f"{f.what}. {f.reason} {f.advice}"
        lines.append(command(LEVELS[f.severity], message, **place, title=title))
    for u in unread:
        place = {"file": u.file, "line": str(max(u.line, 1))}
        lines.append(command("warning", u.reason, **place, title="not read"))
    return "".join(line + "\n" for line in lines)
