"""What a shell offers behind a half-typed word, beyond what click knows of options and choices.

Must not know how a shell asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from fp16doctor.diagnose.rule import Rule
    from fp16doctor.diagnose.script_rule import ScriptRule


def files(context: click.Context, parameter: click.Parameter, word: str) -> list[CompletionItem]:
    """Files and folders, of an argument that click passes through as it is."""
    return [CompletionItem(word, type="file")]


def codes(context: click.Context, parameter: click.Parameter, word: str) -> list[CompletionItem]:
    """Codes and names of the checks."""
    from fp16doctor.diagnose.rule import all_rules
    from fp16doctor.diagnose.script_rule import all_script_rules

    rules: list[Rule | ScriptRule] = [*all_rules(), *all_script_rules()]
    named = [(text, rule.summary) for rule in rules for text in (rule.code, rule.name)]
    return [CompletionItem(t, help=h) for t, h in dict(named).items() if _begins(t, word)]


def _begins(text: str, word: str) -> bool:
    return text.lower().startswith(word.lower())
