"""``fp16doctor explain``: what a check looks for, why, and what to do about it.

Must not know how a check works.
"""

from __future__ import annotations

import difflib
import inspect
from typing import TYPE_CHECKING

import click

from fp16doctor.cli import completion
from fp16doctor.cli.help_text import epilog

if TYPE_CHECKING:
    from fp16doctor.diagnose.rule import Rule
    from fp16doctor.diagnose.script_rule import ScriptRule


@click.command(
    "explain",
    short_help="Explain a check by its code; without one, list them all.",
    epilog=epilog(
        ("fp16doctor explain FD101", ""),
        ("fp16doctor explain activation-overflow", ""),
        ("fp16doctor explain", "all checks"),
    ),
)
@click.argument("code", required=False, shell_complete=completion.codes)
def explain(code: str | None) -> None:
    """Explain the check CODE (FD101 or its name); without CODE, list all checks."""
    rules = sorted(_rules(), key=lambda rule: rule.code)
    if code is None:
        click.echo(_table(rules))
        return
    pages = [f"{r.code} {r.name}\n\n{inspect.cleandoc(r.page)}" for r in _find(rules, code)]
    click.echo("\n\n".join(pages))


def _rules() -> list[Rule | ScriptRule]:
    from fp16doctor.diagnose.rule import all_rules
    from fp16doctor.diagnose.script_rule import all_script_rules

    return [*all_rules(), *all_script_rules()]


def _table(rules: list[Rule | ScriptRule]) -> str:
    widest = max((len(rule.name) for rule in rules), default=0)
    lines = [f"{rule.code}  {rule.name:<{widest}}  {rule.summary}" for rule in rules]
    return "\n".join([*lines, "", "fp16doctor explain CODE shows one of them in full"])


def _find(rules: list[Rule | ScriptRule], code: str) -> list[Rule | ScriptRule]:
    """The rule of that code; by name also the script rule that shares it."""
    from fp16doctor.errors import UsageError

    wanted = code.strip().lower()
    found = [rule for rule in rules if wanted in (rule.code.lower(), rule.name.lower())]
    if found:
        return found
    close = _close(rules, wanted)
    hint = f"did you mean {', '.join(close)}?" if close else "`fp16doctor explain` lists all checks"
    raise UsageError(f"no check is called '{code}'; {hint}", "unknown-code")


def _close(rules: list[Rule | ScriptRule], wanted: str) -> list[str]:
    """Codes and names that look like ``wanted``, or names that contain it."""
    words = [word for rule in rules for word in (rule.code, rule.name)]
    lower = {word.lower(): word for word in words}
    typed = wanted.replace("o", "0") if wanted.startswith("fd") else wanted  # FD1O1
    near = difflib.get_close_matches(typed, lower, n=4, cutoff=0.6)
    inside = [word for word in lower if wanted and wanted in word]
    return [lower[word] for word in dict.fromkeys([*near, *inside[:4]])]
