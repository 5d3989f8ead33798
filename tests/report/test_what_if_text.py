"""The text of a what-if."""

from __future__ import annotations

from dataclasses import replace

from fp16doctor.report.what_if import question_words, render_what_if
from fp16doctor.schema.bundle import Origin
from fp16doctor.schema.location import OpSite, Phase, SourceLine
from fp16doctor.schema.prescription import Verdict, Verification
from fp16doctor.schema.what_if import Question, Repetition, WhatIf

SITE = OpSite(3, Phase.FORWARD, "aten.mm.default", 7, "ffn", "Linear",
              source=SourceLine("train.py", 40, "f"))  # fmt: skip
ORIGIN = Origin("train.py", 3, "cpu", "0.1", "2.13.0")
RUN = {"non-finite elements": 12.0, "births": 1.0, "loss": float("nan")}
CHANGED = {"non-finite elements": 0.0, "births": 0.0, "gradient error": 0.0269, "loss": 5.03337}
ANSWER = WhatIf(
    ORIGIN,
    Question(keep=("module:ffn",), loss_scale=1024.0),
    (),
    Repetition(34, 0),
    Verification(Verdict.VERIFIED, "", RUN, CHANGED, (3,)),
    {**CHANGED, "gradient error": 0.0},
    (SITE,) * 5,
)


def test_before_and_after_side_by_side() -> None:
    assert (
        render_what_if(ANSWER)
        == """\
bundle    train.py · step 3 · recorded on cpu with torch 2.13.0
fidelity  bit-equal to the recording: 34 tensors, loss NaN
what if   fp32 for module:ffn, loss scale 1024, against the fp32 replay

                     as run  what if    fp32
non-finite elements      12        0       0
births                    1        0       0
gradient error            –   0.0269       0
loss                    NaN   5.0334  5.0334

birth     as run: step 3 · forward · ffn (Linear) · aten.mm · output · aten.mm at train.py:40
birth     as run: step 3 · forward · ffn (Linear) · aten.mm · output · aten.mm at train.py:40
birth     as run: step 3 · forward · ffn (Linear) · aten.mm · output · aten.mm at train.py:40
          … and 2 more
verdict   verified on step 3 alone
"""
    )


def test_without_a_question_there_is_no_verdict() -> None:
    answer = replace(ANSWER, question=Question(), births_before=())
    text = render_what_if(answer)
    assert "verdict" not in text
    assert "what if" not in text


def test_refusals_and_differences_are_told() -> None:
    refuted = Verification(Verdict.REFUTED, "non-finite values in loss", RUN, CHANGED, (3,))
    text = render_what_if(replace(ANSWER, verification=refuted, repetition=Repetition(4, 2, SITE)))
    assert "verdict   refuted: non-finite values in loss" in text
    assert "2 of 4 tensors differ from the recording, the first written by aten.mm at" in text


def test_a_gpu_step_on_a_cpu_is_told() -> None:
    text = render_what_if(replace(ANSWER, moved=("cuda:0",)))
    assert "recorded on cuda:0, replayed on cpu: not bit-equal by nature" in text


def test_hostile_names_do_not_move_the_cursor() -> None:
    text = render_what_if(replace(ANSWER, origin=replace(ORIGIN, script="a\x1b[2Jb\nverdict")))
    assert "\x1b" not in text
    assert text.splitlines()[0].startswith("bundle    a\\x1b[2Jb\\nverdict")


def test_words_of_a_question() -> None:
    assert question_words(Question()) == ""
    assert question_words(Question(dtype="bf16")) == "bf16"
    assert question_words(Question("bf16", ("op:aten.exp", "module:a"))) == (
        "bf16, fp32 for op:aten.exp and module:a"
    )
