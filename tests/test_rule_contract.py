"""What every rule owes: a page, a noun for a name, a firing and a silent fixture, no exception."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from fp16doctor.diagnose.rule import Rule, all_rules

DIAGNOSE = Path(__file__).parent / "diagnose"
sys.path.insert(0, str(DIAGNOSE))

HEADINGS = ["What it checks:", "Why it matters:", "Example:", "Remedy:", "References:"]
RULES = all_rules()


def fixtures(rule: Rule) -> ModuleType:
    """The rule's test file, which holds FIRING and SILENT."""
    path = DIAGNOSE / "rules" / f"test_{rule.name.replace('-', '_')}.py"
    assert path.exists(), f"{rule.name} has no test file {path}"
    spec = importlib.util.spec_from_file_location(f"fixtures_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_there_are_rules_and_their_codes_and_names_are_unique() -> None:
    assert len(RULES) >= 9
    assert len({r.code for r in RULES}) == len({r.name for r in RULES}) == len(RULES)


@pytest.mark.parametrize("rule", RULES, ids=lambda r: r.code)
class TestEveryRule:
    def test_page_has_a_summary_and_five_headings_in_order(self, rule: Rule) -> None:
        lines = rule.page.splitlines()
        assert rule.summary.endswith(".")
        assert [line for line in lines if line in HEADINGS] == HEADINGS
        for heading in HEADINGS:
            assert lines[lines.index(heading) + 1].startswith("    ")

    def test_code_and_name_are_in_the_house_style(self, rule: Rule) -> None:
        assert re.fullmatch(r"FD[1-9]\d\d", rule.code)
        assert re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)+", rule.name)
        # A noun for the state that is met, not an order to change it.
        assert not re.match(r"(no|avoid|check|use|fix|prefer|dont)-", rule.name)

    def test_fires_on_its_firing_fixture(self, rule: Rule) -> None:
        found = list(rule.check(fixtures(rule).FIRING))
        assert found
        for finding in found:
            assert (finding.code, finding.name) == (rule.code, rule.name)
            assert finding.what == finding.what.strip()
            assert "\n" not in finding.what
            assert not finding.what.endswith((".", "!"))
            assert finding.cause.endswith(".")

    def test_is_silent_on_its_silent_fixture(self, rule: Rule) -> None:
        assert not list(rule.check(fixtures(rule).SILENT))

    def test_never_raises_on_an_empty_recording(self, rule: Rule) -> None:
        from making import EMPTY

        assert not list(rule.check(EMPTY))
