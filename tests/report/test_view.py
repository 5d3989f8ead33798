"""Findings, tables and glossary: nothing is lost between the diagnosis and a reader."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from fp16doctor.report.finding_view import evidence_words
from fp16doctor.report.glossary import TERMS, terms_used
from fp16doctor.report.html import render_html
from fp16doctor.report.terminal import render_terminal
from fp16doctor.report.view import build_view
from fp16doctor.schema.codec import from_json, to_json
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Evidence
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.recording import StepInfo

HandMade = dict[str, Callable[[], Diagnosis]]
NB = "\u00a0"


@pytest.mark.parametrize(
    ("evidence", "words"),
    [
        (
            Evidence(
                "amax",
                184320.0,
                "replayed:fp32",
                65520.0,
                "overflow_threshold",
                "fp16",
                worst_index=(3,),
            ),
            "amax 1.84e5 at [3], fp16 overflow threshold 65520 · replayed in fp32",
        ),
        (Evidence("NaN", 2.0, "recorded", count=2, total=30), f"NaN 2 of 30 (6.7{NB}%) · recorded"),
        (
            Evidence("amax", 9.0, "recorded", count=2, total=4),
            f"amax 9, 2 of 4 (50{NB}%) elements · recorded",
        ),
        (
            Evidence("headroom", -1.5, "derived", format="fp16"),
            f"headroom −1.5{NB}bits in fp16 · derived",
        ),
        (
            Evidence("operand other", 0.0, "recorded", 6.1e-5, "replayed:fp32"),
            "operand other 0, fp32 replay 6.1e-5 · recorded",
        ),
    ],
)
def test_evidence_carries_value_limit_format_and_source(evidence: Evidence, words: str) -> None:
    assert evidence_words(evidence) == words


def test_chain_repeats_consequences_and_reach_are_shown(overflow: Diagnosis) -> None:
    finding = build_view(overflow).findings[0]
    assert finding.chain.count(" → ") == 2
    assert finding.repeats.startswith("also at 3 other places: blocks.3.ffn.wo (Linear)")
    assert finding.consequences == "214 later ops inherit it; it reaches the loss and gradients"
    assert finding.folded == "FD401"


def test_the_line_stands_between_its_neighbours(overflow: Diagnosis) -> None:
    (line,) = build_view(overflow).findings[0].lines
    assert [(n, meant) for n, _, meant in line.around] == [
        ("38", False), ("39", False), ("40", True), ("41", False), ("42", False)
    ]  # fmt: skip
    page = render_html(overflow)
    assert "<strong>→ 40      return self.wo(F.relu(self.wi(x)))</strong>\n  41" in page
    alone = render_html(replace(overflow, context=()))
    assert "<pre>train.py:40   return self.wo(F.relu(self.wi(x)))</pre>" in alone


def test_a_chain_that_stays_at_one_place_is_no_chain(overflow: Diagnosis) -> None:
    finding = overflow.findings[0]
    assert finding.site
    loop = replace(finding, chain=(finding.site, replace(finding.site, index=999)))
    assert build_view(replace(overflow, findings=(loop,))).findings[0].chain == ""


def test_many_repeats_are_cut_and_counted(overflow: Diagnosis) -> None:
    finding = overflow.findings[0]
    site = finding.repeats[0]
    places = tuple(replace(site, module_path=f"blocks.{i}.ffn.wo") for i in range(20, 32))
    many = replace(finding, repeats=places)
    repeats = build_view(replace(overflow, findings=(many,))).findings[0].repeats
    assert repeats.endswith("and 7 more (in the JSON)")


def test_a_place_that_comes_again_in_other_steps_is_listed_once(overflow: Diagnosis) -> None:
    finding = overflow.findings[0]
    assert finding.site is not None
    here = tuple(replace(finding.site, step=finding.site.step + n) for n in (2, 1, 3))
    there = tuple(replace(finding.repeats[0], step=s.step) for s in here)

    def repeats(sites: tuple[OpSite, ...]) -> str:
        again = replace(overflow, findings=(replace(finding, repeats=sites),))
        return build_view(again).findings[0].repeats

    first = finding.site.step
    steps = f"also in steps {first + 1}, {first + 2} and {first + 3}"
    assert repeats(here) == steps
    assert repeats((*here, *there)) == (
        f"also at 1 other place: blocks.3.ffn.wo (Linear) · aten.mm at train.py:40 · {steps}"
    )


def test_what_a_rule_says_itself_is_not_said_twice(overflow: Diagnosis) -> None:
    said = replace(overflow.findings[0], cause="x. 214 later ops inherit it.")
    assert build_view(replace(overflow, findings=(said,))).findings[0].consequences == ""


def test_the_recommended_cure_comes_first_and_refuted_ones_stay(overflow: Diagnosis) -> None:
    swapped = replace(
        overflow,
        prescriptions=overflow.prescriptions[::-1],
        recommendation=replace(overflow.recommendation, prescriptions=(1,)),
    )
    remedies = build_view(swapped).findings[0].remedies
    assert [(r.verdict, r.recommended) for r in remedies] == [
        ("verified", True),
        ("refuted", False),
    ]
    assert remedies[0].proof == (
        "replay of steps 0, 3 and 4: non-finite ops 215 → 0, loss NaN → 2.3141"
    )


def test_a_cure_of_two_findings_is_proved_under_the_first(overflow: Diagnosis) -> None:
    first, second = overflow.findings[0], replace(overflow.findings[0], code="FD104")
    cures = tuple(replace(p, treats=(0, 1)) for p in overflow.prescriptions)
    both = replace(overflow, findings=(first, second), prescriptions=cures)
    findings = build_view(both).findings
    assert [[r.told for r in f.remedies] for f in findings] == [[False, False], [True, True]]
    text = render_terminal(both, color=False, width=100, outputs=None, verbose=True)
    assert text.count("non-finite ops 215 → 0") == 1
    assert "remedy    train in bf16 instead of fp16: verified, see above" in text


def test_the_page_gives_each_proof_once(overflow: Diagnosis) -> None:
    swapped = replace(
        overflow,
        prescriptions=overflow.prescriptions[::-1],
        recommendation=replace(overflow.recommendation, prescriptions=(1,)),
    )
    assert [r.recommended for r in build_view(swapped).remedies] == [True, False]
    page = render_html(swapped)
    assert page.count("replay of steps 0, 3 and 4") == 2  # in the answer, and with the cure
    assert page.count('<pre class="paste">') == 2  # likewise


def test_the_ranges_name_the_steps_that_were_looked_at_for_extremes_alone(
    overflow: Diagnosis,
) -> None:
    seen = replace(
        overflow.ranges[0], steps=(), stats=(), n_looked=8, amax=70000.0, amax_step=7,
        n_nonfinite=1, first_nonfinite=7,
    )  # fmt: skip
    (row,) = build_view(replace(overflow, ranges=(seen,))).ranges.rows
    assert row[2:7] == ("8", "7e4", "7", "7", "0 steps")


def test_a_note_without_advice_demands_no_proof(overflow: Diagnosis) -> None:
    assert build_view(overflow).findings[1].unproved == ""


def test_a_long_run_is_cut_but_never_its_events(overflow: Diagnosis) -> None:
    steps = tuple(
        StepInfo(i, 1.0, skipped=i == 500, n_nonfinite_ops=int(i == 501)) for i in range(1000)
    )
    steps = (*steps[:502], replace(steps[502], loss=math.inf), *steps[503:])
    table = build_view(replace(overflow, steps=steps)).steps
    shown = [row[0] for row in table.rows]
    assert {"500", "501", "502"} <= set(shown)
    assert shown[:20] == [str(i) for i in range(20)]
    assert shown[-1] == "999"
    assert table.left_out == "… and 957 more steps (in the JSON)"


@pytest.mark.parametrize(
    ("script", "title"),
    [("/home/a/runs/train.py", "train.py"), ("pkg.train", "pkg.train"), ("", ""), ("/", "/")],
)
def test_the_title_is_the_file_and_the_facts_have_its_path(
    script: str, title: str, overflow: Diagnosis
) -> None:
    view = build_view(replace(overflow, run=replace(overflow.run, script=script)))
    assert view.title == f"fp16doctor: {title}"
    assert dict(view.facts.rows).get("script", "") == script  # type: ignore[arg-type]


def test_every_check_is_listed_with_its_outcome(overflow: Diagnosis, hand_made: HandMade) -> None:
    assert [row[2] for row in build_view(overflow).checks.rows] == ["found", "found", "found"]
    failed = build_view(hand_made["unexplained"]()).failed_checks
    assert failed == (
        "FD101 activation-overflow failed and answered nothing: ZeroDivisionError: …",
    )


def test_the_count_line_counts_every_outcome(overflow: Diagnosis) -> None:
    assert build_view(overflow).count_line == (
        "2 findings: 1 error, 1 note · 0 checks clear · 0 not applicable · 0 failed"
    )


def test_ranges_show_headroom_in_every_format(overflow: Diagnosis) -> None:
    table = build_view(overflow).ranges
    assert table.head[-2:] == ("headroom fp16", "headroom bf16")
    assert table.rows[0][-2] == f"−1.5{NB}bits"


def test_the_glossary_explains_what_is_used_and_nothing_else(hand_made: HandMade) -> None:
    terms = {term for term, _ in build_view(hand_made["overflow"]()).glossary}
    assert {"fp16", "bf16", "amax", "headroom", "loss scale", "found_inf", "ATen op"} <= terms
    assert "keep-list" not in terms
    assert terms_used(["two keep-lists"]) == (("keep-list", TERMS["keep-list"]),)
    assert terms_used(["supernormal"]) == ()


def with_forms(diagnosis: Diagnosis) -> Diagnosis:
    first, *others = diagnosis.prescriptions
    forms = {
        "FSDP": "policy = \\\n    MixedPrecisionPolicy(param_dtype=torch.bfloat16)  # <script>"
    }
    cure = replace(first, remedy=replace(first.remedy, forms=forms))
    return replace(diagnosis, prescriptions=(cure, *others))


def test_other_forms_are_folded_on_the_page(overflow: Diagnosis) -> None:
    page = render_html(with_forms(overflow))
    fold = page.partition("<summary>other ways to write it</summary>")[2].partition("</details>")[0]
    assert "<p>FSDP</p>" in fold
    assert "    MixedPrecisionPolicy(param_dtype=torch.bfloat16)  # &lt;script&gt;\n</span>" in fold
    assert "other ways" not in render_html(overflow)


@pytest.mark.parametrize("verbose", [True, False])
def test_other_forms_stand_in_the_terminal_when_asked(overflow: Diagnosis, verbose: bool) -> None:
    text = render_terminal(
        with_forms(overflow), color=False, width=100, outputs=None, verbose=verbose
    )
    assert ("or, FSDP:" in text) is verbose
    assert ("\n" + " " * (12 + 2 + 4) + "MixedPrecisionPolicy(" in text) is verbose


def test_other_forms_travel_in_the_json(overflow: Diagnosis) -> None:
    diagnosis = with_forms(overflow)
    assert from_json(to_json(diagnosis)) == diagnosis
