"""Which of the examined steps a bundle is made of."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from bundling import bundles_of, one_linear

from fp16doctor.errors import BundleError
from fp16doctor.pipeline import bundling as module
from fp16doctor.pipeline.bundling import BundleKeeper
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.recording import Outcome, OutcomeKind, RunInfo
from fp16doctor.schema.tape import Tape
from fp16doctor.schema.trace import Event, EventKind, Fidelity, ReplayTrace

RUN = RunInfo("train.py", (), Outcome(OutcomeKind.FINISHED), "0", "2", "3", "cpu", "", 1.0,
              autocast=("cpu float16",))  # fmt: skip


def site(step: int) -> OpSite:
    return OpSite(step, Phase.FORWARD, "aten.mm.default", 0)


def trace(step: int, *kinds: EventKind) -> ReplayTrace:
    events = tuple(Event(k, site(step), "fp16", 1, 0, 1, None, None, None) for k in kinds)
    return ReplayTrace(step, "fp32", events, (), Fidelity(True, 1), 1, loss=float(step))


def finding(step: int | None) -> Finding:
    where = None if step is None else site(step)
    return Finding("FD101", "x", Severity.ERROR, Fault.OVERFLOW, "what", "why", where)


@pytest.fixture(scope="module")
def tape() -> Tape:
    return bundles_of(one_linear)[0].tape


def keeper(tape: Tape, *steps: tuple[int, tuple[EventKind, ...]]) -> BundleKeeper:
    made = BundleKeeper()
    for step, kinds in steps:
        made.offer(replace(tape, step=step), trace(step, *kinds))
    return made


SOUND, SICK, MEANT = (), (EventKind.OVERFLOW,), (EventKind.INTENDED,)


def test_the_step_of_the_leading_finding(tape: Tape) -> None:
    found = keeper(tape, (0, SOUND), (3, SICK), (4, SICK)).bundle(RUN, [finding(4), finding(3)])
    assert (found.tape.step, found.origin.step, found.origin.loss) == (4, 4, 4.0)
    assert found.origin.finding == finding(4)
    assert found.origin.script == "train.py"
    assert found.origin.settings["autocast"] == "cpu float16"


def test_else_the_first_sick_step_else_the_first(tape: Tape) -> None:
    unplaced = [finding(None), finding(77)]
    assert keeper(tape, (0, MEANT), (3, SICK)).bundle(RUN, unplaced).tape.step == 3
    found = keeper(tape, (0, MEANT), (1, SOUND)).bundle(RUN, unplaced)
    assert (found.tape.step, found.origin.finding) == (0, None)


def test_the_call_that_ended_the_script_if_the_leading_finding_is_about_it(tape: Tape) -> None:
    refused = replace(tape, step=5, refused=True)
    made, last = keeper(tape, (0, SOUND)), replace(tape.ops[-1].site, step=5)
    refused = replace(refused, ops=(*tape.ops[:-1], replace(tape.ops[-1], site=last)))
    about = replace(finding(5), site=last)
    assert made.bundle(RUN, [finding(None), about], refused).tape is refused
    assert made.bundle(RUN, [about], refused).origin.finding == about
    assert made.bundle(RUN, [finding(0), about], refused).tape.step == 0
    assert made.bundle(RUN, [], refused).tape.step == 0
    assert BundleKeeper().bundle(RUN, [], refused).tape is refused


def test_a_few_steps_are_kept_and_the_scripts_tensors_are_copied(tape: Tape) -> None:
    made = keeper(tape, *((i, SICK) for i in range(9)))
    assert made.bundle(RUN, [finding(2)]).tape.step == 2
    assert made.bundle(RUN, [finding(8)]).tape.step == 0
    kept = made.bundle(RUN, []).tape
    assert all(kept.leaves[n].data.data_ptr() != x.data.data_ptr() for n, x in tape.leaves.items())
    assert all(torch.equal(kept.leaves[n].data, x.data) for n, x in tape.leaves.items())


def test_why_there_is_none(tape: Tape, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BundleError, match=r"no step was examined.*\[no-step-kept\]"):
        BundleKeeper().bundle(RUN, [])
    partly = keeper(replace(tape, complete=False), (2, SICK))
    with pytest.raises(BundleError, match="step 2 was recorded in part"):
        partly.bundle(RUN, [])
    monkeypatch.setattr(module, "MAX_BYTES", 3)
    with pytest.raises(BundleError, match="step 2 has 0 MiB of inputs, above 0 MiB"):
        keeper(tape, (2, SICK)).bundle(RUN, [])
