"""What every script rule owes: a page, marked scripts it flags, scripts it leaves alone, a fix."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from fp16doctor.diagnose.rule import all_rules
from fp16doctor.diagnose.script_engine import lint_script
from fp16doctor.diagnose.script_rule import ScriptRule, all_script_rules

FIXTURES = Path(__file__).parent / "diagnose" / "script_rules"
HEADINGS = ["What it checks:", "Why it matters:", "Example:", "Remedy:", "References:"]
MARK = "# <- here"
RULES = all_script_rules()
# Rules whose right form needs more than an edit of the lines at hand.
WITHOUT_FIX = {"unscaled-auxiliary-gradient", "misnamed-fixup"}


def fixtures(rule: ScriptRule) -> ModuleType:
    path = FIXTURES / f"{rule.name.replace('-', '_')}.py"
    assert path.exists(), f"{rule.name} has no fixtures {path}"
    spec = importlib.util.spec_from_file_location(f"script_fixtures_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def patched(text: str, fix: str) -> str:
    """``text`` with a unified diff applied, each of whose lines must be met as it says."""
    old, new, at = text.split("\n"), [], 0
    for line in fix.splitlines()[2:]:
        head = re.match(r"@@ -(\d+)(?:,(\d+))? ", line)
        if head:
            start = int(head[1]) - (0 if head[2] == "0" else 1)
            new, at = new + old[at:start], start
        elif line[:1] == "+":
            new.append(line[1:])
        else:
            assert old[at] == line[1:]
            new += [] if line[:1] == "-" else [old[at]]
            at += 1
    return "\n".join(new + old[at:])


def test_there_are_rules_with_codes_of_their_own() -> None:
    assert len(RULES) >= 25
    assert not {r.code for r in RULES} & {r.code for r in all_rules()}


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.code)
class TestEveryScriptRule:
    def test_page_has_a_summary_and_five_headings_in_order(self, rule: ScriptRule) -> None:
        lines = rule.page.splitlines()
        assert rule.summary.endswith(".")
        assert [line for line in lines if line in HEADINGS] == HEADINGS
        for heading in HEADINGS:
            assert lines[lines.index(heading) + 1].startswith("    ")

    def test_code_and_name_are_in_the_house_style(self, rule: ScriptRule) -> None:
        assert re.fullmatch(r"FD7\d\d", rule.code)
        assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)+", rule.name)

    def test_flags_the_marked_lines_and_no_other(self, rule: ScriptRule) -> None:
        for text in fixtures(rule).FIRING:
            marked = [n for n, line in enumerate(text.splitlines(), 1) if MARK in line]
            findings, unread = lint_script(text, "train.py", [rule])
            assert not unread
            assert marked
            assert [f.line for f in findings] == marked, text
            for finding in findings:
                assert (finding.code, finding.name) == (rule.code, rule.name)
                assert not finding.what.endswith((".", "!"))
                assert "\n" not in finding.what
                assert finding.reason.endswith((".", '"'))

    def test_its_fix_is_python_that_it_no_longer_flags(self, rule: ScriptRule) -> None:
        fixes = 0
        for text in fixtures(rule).FIRING:
            for finding in lint_script(text, "train.py", [rule])[0]:
                if finding.fix:
                    fixes += 1
                    better = patched(text, finding.fix)
                    ast.parse(better)
                    again, _ = lint_script(better, "train.py", [rule])
                    assert len(again) < text.count(MARK), better
        assert bool(fixes) is (rule.name not in WITHOUT_FIX)

    def test_is_silent_where_there_is_nothing_wrong(self, rule: ScriptRule) -> None:
        for text in fixtures(rule).SILENT:
            findings, unread = lint_script(text, "train.py", [rule])
            assert not unread
            assert not findings, text

    def test_never_raises_on_an_empty_script(self, rule: ScriptRule) -> None:
        assert lint_script("import torch\n", "train.py", [rule]) == ((), ())


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.code)
def test_no_rule_fails_on_the_scripts_of_another(rule: ScriptRule) -> None:
    for text in [*fixtures(rule).FIRING, *fixtures(rule).SILENT]:
        assert lint_script(text, "train.py")[1] == ()
