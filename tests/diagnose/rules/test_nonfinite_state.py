from __future__ import annotations

from making import event, observed, plain, site, trace

from fp16doctor.diagnose.rules.nonfinite_input import nonfinite_input
from fp16doctor.diagnose.rules.nonfinite_state import nonfinite_state
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.recording import StepInfo
from fp16doctor.schema.trace import EventKind, Poison, SinkState

WEIGHT = Poison(
    site("aten.addmm.default", index=4), site("aten.addmm.default", index=4), nan=True,
    name="head.weight", is_parameter=True, later_nonfinite=9,
    reaches=("gradients", "loss", "parameters"),
)  # fmt: skip
LOST = tuple(SinkState(name, 1, 1, 1, None) for name in ("loss", "gradients", "parameters"))
READS = trace(step=4, poisons=(WEIGHT,), sinks=LOST)
SICK = (StepInfo(3, loss=1.0, n_ops=20, n_nonfinite_ops=5), StepInfo(4))
FIRING = observed(READS, steps=SICK)
SILENT = observed(READS, steps=(StepInfo(3, loss=1.0, n_ops=20), StepInfo(4)))


def test_names_the_parameter_and_the_step_that_was_not_examined() -> None:
    (finding,) = nonfinite_state(FIRING)
    assert finding.what == "parameter `head.weight` holds NaN when step 4 first reads it"
    assert "5 ops of step 3 gave inf or NaN, and that step was not examined." in finding.cause
    assert finding.severity is Severity.ERROR
    assert "`fp16doctor scan`" in finding.advice
    assert "every_step=True" in finding.advice
    assert "every=" not in finding.advice  # it leaves steps between two tapes


def test_a_step_before_that_was_not_recorded() -> None:
    (finding,) = nonfinite_state(observed(READS, steps=plain(6)))
    assert "The ops of step 3 were not recorded." in finding.cause


def test_either_this_or_what_a_step_is_given() -> None:
    for seen in (FIRING, SILENT):
        assert len([*nonfinite_state(seen), *nonfinite_input(seen)]) == 1


def test_an_examined_step_that_made_it_explains_it() -> None:
    broken = trace(event(EventKind.OVERFLOW, reaches=("gradients", "parameters")), step=3)
    assert not list(nonfinite_state(observed(broken, READS, steps=SICK)))
