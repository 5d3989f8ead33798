from __future__ import annotations

import dataclasses

from usages import fact, used

from fp16doctor.diagnose.rules.precision_not_as_asked import precision_not_as_asked
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.usage import UsageKind

AUTOCAST = fact(UsageKind.NOT_IN_EFFECT, Phase.SCRIPT, detail="autocast", format="fp16")
SCALER = fact(UsageKind.NOT_IN_EFFECT, Phase.SCRIPT, detail="GradScaler")
FP32, FP16 = (("float32", 100),), (("float16", 100), ("float32", 10))
FIRING = used(AUTOCAST, ops_by_dtype=FP32)
SILENT = used(AUTOCAST, ops_by_dtype=FP16, autocast=("cpu float16",))


def test_autocast_that_is_switched_off() -> None:
    (finding,) = precision_not_as_asked(FIRING)
    assert finding.severity is Severity.WARNING
    assert finding.what.endswith("no op ran in fp16")


def test_a_scaler_that_is_switched_off_matters_where_fp16_runs() -> None:
    assert len(list(precision_not_as_asked(used(SCALER, ops_by_dtype=FP16)))) == 1
    assert not list(precision_not_as_asked(used(SCALER, ops_by_dtype=FP32)))


def test_autocast_that_casts_nothing() -> None:
    seen = used(ops_by_dtype=FP32, autocast=("cpu bfloat16",))
    (finding,) = precision_not_as_asked(seen)
    assert "autocast to bf16 on cpu was on" in finding.what
    assert finding.advice.startswith("run on the device")


def test_autocast_leaves_an_fp64_model_as_it_is() -> None:
    ops = (("float32", 4), ("float64", 100))
    (finding,) = precision_not_as_asked(used(ops_by_dtype=ops, autocast=("cpu float16",)))
    assert "leaves fp64 ones as they are" in finding.cause
    assert "`model.float()`" in finding.advice
    assert "device" not in finding.advice


def test_nothing_is_said_before_the_end() -> None:
    assert not list(precision_not_as_asked(dataclasses.replace(FIRING, final=False)))
