"""Runs every script rule on a file's source; a rule that fails is reported and stops nothing.

Must not know any single rule, nor where the source comes from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fp16doctor.diagnose.script_reading.patch import diff
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.diagnose.script_rule import ScriptRule, Suspicion, all_script_rules
from fp16doctor.schema.script_finding import ScriptFinding, UnreadScript

# A file that names none of these trains nothing in half precision that could be read here.
_ABOUT_TORCH = re.compile(r"\b(?:torch|apex)\b")


def lint_script(
    text: str, path: str, rules: Iterable[ScriptRule] | None = None
) -> tuple[tuple[ScriptFinding, ...], tuple[UnreadScript, ...]]:
    """Findings by line, and what could not be read or checked.

    Args:
        text: the source.
        path: the name that findings carry.
        rules: rules to run; all of them where left out.
    """
    if not _ABOUT_TORCH.search(text):
        return (), ()
    try:
        script = Script(text, path)
    except (SyntaxError, ValueError) as error:
        return (), (UnreadScript(path, getattr(error, "lineno", 0) or 0, _first_line(error)),)
    except RecursionError:
        return (), (UnreadScript(path, 0, "expressions are nested too deeply to be read"),)
    found: list[ScriptFinding] = []
    failed: list[UnreadScript] = []
    for rule in all_script_rules() if rules is None else rules:
        try:
            found += [_finding(script, rule, s) for s in rule.check(script)]
        except Exception as error:  # noqa: BLE001 - the isolation point: a rule stops no other
            text = f"check {rule.code} failed: {type(error).__name__}: {error}"
            failed.append(UnreadScript(path, 0, text))
    distinct = dict.fromkeys(found)
    return tuple(sorted(distinct, key=lambda f: (f.line, f.column, f.code))), tuple(failed)


def _first_line(error: SyntaxError | ValueError) -> str:
    said = error.msg if isinstance(error, SyntaxError) else str(error)
    return f"no Python that this interpreter reads: {said}".partition("\n")[0]


def _finding(script: Script, rule: ScriptRule, said: Suspicion) -> ScriptFinding:
    node = said.node
    line = script.lines[node.lineno - 1]
    return ScriptFinding(
        code=rule.code,
        name=rule.name,
        severity=said.severity,
        what=said.what,
        reason=said.reason,
        file=script.path,
        line=node.lineno,
        column=len(line.encode()[: node.col_offset].decode(errors="replace")) + 1,
        function=script.tree.qualified(node),
        text=line.strip(),
        advice=said.advice,
        fix=diff(script.path, script.lines, said.edits),
    )
