"""Two diagnoses side by side."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fp16doctor.report.comparison import compare, render_comparison
from fp16doctor.schema.codec import to_json
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.location import SourceLine

HandMade = dict[str, Callable[[], Diagnosis]]
CHECKOUT = Path(__file__).parent.parent.parent


@pytest.fixture
def sick(hand_made: HandMade) -> Diagnosis:
    return hand_made["overflow"]()


@pytest.fixture
def sound(sick: Diagnosis) -> Diagnosis:
    return replace(sick, findings=())


def test_a_diagnosis_equals_itself(sick: Diagnosis) -> None:
    found = compare(sick, sick)
    assert (found.appeared, found.went, found.moved, found.run) == ((), (), (), ())
    assert found.stayed == sick.findings
    assert render_comparison(found).startswith("0 findings appeared · 0 went · 2 stayed")


def test_what_appeared_and_what_went(sick: Diagnosis, sound: Diagnosis) -> None:
    assert compare(sound, sick).appeared == sick.findings
    assert compare(sick, sound).went == sick.findings
    text = render_comparison(compare(sound, sick))
    assert text.startswith("appeared  error FD101 activation-overflow: `blocks.2.ffn.wo` output")
    assert "aten.mm at train.py:40" in text


def test_an_edit_above_moves_no_finding(sick: Diagnosis) -> None:
    first = sick.findings[0]
    assert first.site is not None
    line = first.site.source or SourceLine("", 1, "")
    lower = replace(first.site, step=7, index=3, source=replace(line, line=line.line + 12))
    found = compare(sick, replace(sick, findings=(replace(first, site=lower), *sick.findings[1:])))
    assert (found.appeared, found.went) == ((), ())


def test_a_second_finding_of_the_same_place_has_appeared(sick: Diagnosis) -> None:
    first = sick.findings[0]
    assert compare(sick, replace(sick, findings=(first, *sick.findings))).appeared == (first,)


def test_ranges_that_moved(sick: Diagnosis) -> None:
    one = sick.ranges[0]
    ranges = tuple(replace(one, module_path=path, amax=64.0) for path in ("a", "b", "c"))
    louder = tuple(
        replace(r, amax=64.0 * factor) for r, factor in zip(ranges, (1.9, 8.0, 0.25), strict=True)
    )
    found = compare(replace(sick, ranges=ranges), replace(sick, ranges=louder))
    assert [round(m.binades) for m in found.moved] == [3, -2]
    assert "(+3.0 binades)" in render_comparison(found)


def test_facts_of_the_run_that_changed(sick: Diagnosis) -> None:
    shorter = replace(sick, steps=sick.steps[:10])
    assert ("steps", "30", "10") in compare(sick, shorter).run


@pytest.mark.parametrize(
    ("options", "status"), [([], 0), (["--fail-on", "error"], 3), (["--fail-on", "warning"], 3)]
)
def test_the_command(
    sick: Diagnosis, sound: Diagnosis, tmp_path: Path, options: list[str], status: int
) -> None:
    before, after = tmp_path / "a.json", tmp_path / "b.json"
    before.write_text(to_json(sound))
    after.write_text(to_json(sick))
    command = [sys.executable, "-m", "fp16doctor", "compare", *options, str(before), str(after)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=CHECKOUT)
    assert done.returncode == status
    assert "appeared  error FD101" in done.stdout
    gone = subprocess.run([*command[:4], str(before), str(tmp_path / "none.json")],
                          capture_output=True, text=True, cwd=CHECKOUT)  # fmt: skip
    assert gone.returncode == 2
    assert "none.json" in gone.stderr


def test_the_last_loss_scale_is_the_one_the_step_leaves_behind(sick: Diagnosis) -> None:
    def ends_at(scale: float, following: float | None) -> Diagnosis:
        last = replace(sick.steps[-1], loss_scale=scale, next_loss_scale=following)
        return replace(sick, steps=(*sick.steps[:-1], last))

    (fact,) = compare(ends_at(2.0, 1.0), ends_at(8.0, None)).run
    assert fact == ("last loss scale", "1", "8")
