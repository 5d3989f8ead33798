"""Gives a change of code that is told in words the diff of the script's own lines.

Must not know how a script is read (``diagnose``) or how cures are found (``prescribe``).
"""

from __future__ import annotations

import ast
import os
import re
import tokenize
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from fp16doctor.diagnose.rule import all_rules
from fp16doctor.diagnose.script_engine import lint_script
from fp16doctor.diagnose.script_rule import all_script_rules
from fp16doctor.prescribe.remedies.loss_scale import makes_scaler
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.location import SourceLine
from fp16doctor.schema.prescription import Prescription, RemedyKind
from fp16doctor.schema.script_finding import ScriptFinding

_RAISED = "script-raised"
# Faults of the recipe, wherever they show. Any other belongs to its own op: the diff of another
# line would cure another fault.
_OF_THE_RECIPE = (Fault.MISUSE, Fault.LOSS_SCALE, Fault.LOST_UPDATE)

_NO_SCALER = "fp16-without-scaler"


@dataclass(frozen=True, slots=True)
class ScriptText:
    """A script as it was when its run began."""

    name: str  # as source lines name it: relative to the script's folder
    text: str  # "" where it could not be read


def script_text(path: str, name: str = "") -> ScriptText:
    """Return the text of a script; an empty one of what is no regular file of Python source."""
    name = name or os.path.basename(path)
    if not os.path.isfile(path):  # a module's name, a folder, a pipe that can be read only once
        return ScriptText(name, "")
    try:
        with tokenize.open(path) as stream:
            return ScriptText(name, stream.read())
    except (OSError, SyntaxError, ValueError):
        return ScriptText(name, "")


def with_own_lines(
    prescriptions: tuple[Prescription, ...],
    findings: Sequence[Finding],
    script: ScriptText,
    caution: Callable[[str, str], None],
) -> tuple[Prescription, ...]:
    """Return the prescriptions, changes of code with the diff that the script's own text gives.

    A diff is taken from the script rule that has the name of the treated finding (or of one folded
    under it), or sees the same mistake, at the finding's line; of an exception, from the one
    mistake at the line that raised; what has no such diff stays as it is.

    Args:
        prescriptions: of one diagnosis, their ``treats`` pointing into ``findings``.
        findings: of the same diagnosis.
        script: its text; an empty one leaves everything as it is.
        caution: takes the slug and the text of what failed.
    """
    if not script.text or not any(map(_lacks_change, prescriptions)):
        return prescriptions
    try:
        found, unread = lint_script(script.text, script.name)
        for missed in unread:
            caution("script-not-read", f"{missed.file}: {missed.reason}")
        reading = _Reading(script, found)
        return tuple(_with_diff(p, findings, reading) for p in prescriptions)
    except Exception as error:  # noqa: BLE001 - an extra that must not cost the cures
        said = f"{script.name}: {type(error).__name__}: {error}"
        caution("script-not-read", f"no diff of the script's own lines is told; {said}")
        return prescriptions


def _lacks_change(cure: Prescription) -> bool:
    """A change of code without one, or a GradScaler in no more than its own words."""
    remedy = cure.remedy
    return makes_scaler(remedy) or (remedy.kind is RemedyKind.CODE_FIX and not remedy.change)


def _with_diff(cure: Prescription, findings: Sequence[Finding], reading: _Reading) -> Prescription:
    if not _lacks_change(cure):
        return cure
    of_scaler = cure.remedy.kind is RemedyKind.LOSS_SCALE
    fixes = (reading.fix(findings[i], *([_NO_SCALER] if of_scaler else [])) for i in cure.treats)
    change = next((fix for fix in fixes if fix), "")
    if of_scaler and change:
        change = _from(change, cure.remedy.value["recommended"])
    return replace(cure, remedy=replace(cure.remedy, change=change)) if change else cure


def _from(change: str, scale: float) -> str:
    """Return the diff of a GradScaler that starts at the scale; "" where it makes no single one."""
    made = re.findall(r"GradScaler\([^()]*\)", change)
    if len(made) != 1 or "init_scale" in made[0]:
        return ""
    given = made[0][:-1]
    comma = "" if given.endswith("(") else ", "
    return change.replace(made[0], f"{given}{comma}init_scale={scale:.1f})")


class _Reading:
    """What the script rules say of a script, asked by the findings of its run."""

    def __init__(self, script: ScriptText, found: tuple[ScriptFinding, ...]) -> None:
        self._script, self._found = script, found
        self._names = {rule.code: rule.name for rule in all_rules()}
        self._same = {rule.code: rule.same_as for rule in all_script_rules()}
        self._statements = _statements(script.text) if found else []

    def fix(self, finding: Finding, *only: str) -> str:
        """Return the diff that cures a finding, "" where the text does not tell it.

        ``only``: of the script rules with these names, where there are any.
        """
        names = [finding.name, *(self._names.get(code, "") for code in finding.subsumes)]
        wanted = (name for name in names if not only or name in only)
        return next((fix for name in wanted if (fix := self._named(name, finding))), "")

    def _named(self, name: str, finding: Finding) -> str:
        raised = name == _RAISED
        alike = [f for f in self._found if raised or name in (f.name, *self._same[f.code])]
        places = list(_places(finding))
        own = {self._statement(p.line) for p in places if p.file == self._script.name}
        here = [f for f in alike if self._statement(f.line) in own]
        if raised:
            return self._of_raised(here)
        elsewhere = bool(places) and not own
        if not here and not elsewhere and finding.fault in _OF_THE_RECIPE:
            here = alike
        return here[0].fix if len(here) == 1 and self._is_whole(here[0]) else ""

    def _of_raised(self, here: list[ScriptFinding]) -> str:
        """Return the diff of the one mistake that stands where the exception left the script."""
        wrong = [f for f in here if f.severity is not Severity.NOTE]
        return wrong[0].fix if len(wrong) == 1 and self._is_whole(wrong[0]) else ""

    def _is_whole(self, said: ScriptFinding) -> bool:
        """Tell whether no error without a diff stands beside it: the two may be one matter.

        Half of a change can make a script raise; the words of the advice cannot.
        """
        beside = (f for f in self._found if f is not said and f.function == said.function)
        return all(f.fix or f.severity is not Severity.ERROR for f in beside)

    def _statement(self, line: int) -> int:
        """Return the first line of the innermost statement around a line."""
        around = (s.lineno for s in self._statements if s.lineno <= line <= (s.end_lineno or 0))
        return max(around, default=line)


def _statements(text: str) -> list[ast.stmt]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the parser's, on escapes: the run has shown its own
        return [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.stmt)]


def _places(finding: Finding) -> Iterator[SourceLine]:
    for site in (finding.site, finding.cause_site):
        if site is not None:
            yield from (line for line in (site.source, site.caller) if line is not None)
