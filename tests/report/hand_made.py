"""Hand-made diagnoses, one for each kind of answer; also the source of tests/samples."""

from __future__ import annotations

import math
from dataclasses import replace

from fp16doctor.schema.blame import BlamedOp, ErrorBudget
from fp16doctor.schema.diagnosis import Diagnosis, FidelitySummary, FormatLimits, ReplaySummary
from fp16doctor.schema.finding import (
    CheckOutcome,
    Evidence,
    Fault,
    Finding,
    OutcomeOfCheck,
    Severity,
)
from fp16doctor.schema.location import OpSite, Phase, SourceContext, SourceLine
from fp16doctor.schema.prescription import (
    Prescription,
    Recommendation,
    RecommendationStatus,
    Remedy,
    RemedyKind,
    Verdict,
    Verification,
)
from fp16doctor.schema.ranges import GradientScales, ModuleRanges, RangeStats, ScaleShares
from fp16doctor.schema.recording import Caution, Outcome, OutcomeKind, RunInfo, StepInfo

FP16 = FormatLimits("fp16", 65504.0, 65520.0, 2.0**-14, 2.0**-24, 2.0**-10)
BF16 = FormatLimits(
    "bf16", 3.3895313892515355e38, 3.3961775292304601e38, 2.0**-126, 2.0**-133, 2.0**-7
)

RUN = RunInfo(
    script="train.py",
    argv=("--batch-size", "8"),
    outcome=Outcome(OutcomeKind.FINISHED),
    tool_version="0.1.0",
    torch_version="2.13.0",
    python_version="3.12.3",
    device="cpu",
    started="2026-01-02T03:04:05+00:00",
    duration_s=12.3,
    examination_s=1.7,
    ops_by_dtype=(("float16", 15210), ("float32", 9150)),
)
WO = SourceLine("train.py", 40, "FFN.forward", "return self.wo(F.relu(self.wi(x)))")
SOFTMAX = SourceLine("train.py", 61, "Attention.forward", "w = torch.softmax(scores, dim=-1)")
NLL = SourceLine("train.py", 92, "<module>", "loss = F.cross_entropy(logits, y)")
MM = OpSite(
    step=0,
    phase=Phase.FORWARD,
    op="aten.mm.default",
    index=212,
    module_path="blocks.2.ffn.wo",
    module_class="Linear",
    source=WO,
    element=(3, 17),
)
SUB = OpSite(
    0, Phase.FORWARD, "aten._softmax.default", 230, "blocks.3.attn", "Attention", source=SOFTMAX
)
LOSS = OpSite(0, Phase.LOSS, "aten.nll_loss_forward.default", 301, source=NLL)
CHECKS = (
    CheckOutcome("FD101", "activation-overflow", OutcomeOfCheck.CLEAR),
    CheckOutcome("FD104", "gradient-overflow", OutcomeOfCheck.CLEAR),
    CheckOutcome(
        "FD401", "collapsing-loss-scale", OutcomeOfCheck.NOT_APPLICABLE, "no GradScaler was seen"
    ),
)
REPLAY = ReplaySummary((0,), FidelitySummary(bit_equal=True), n_ops=812, reference="fp32")
NOTHING_NEEDED = Recommendation(RecommendationStatus.NONE_NEEDED, "nothing to change")


def overflow() -> Diagnosis:
    """fp16 overflow in a feed-forward layer; the scaler halves its scale at every step."""
    return Diagnosis(
        run=RUN,
        formats=(FP16, BF16),
        steps=tuple(_skipped_step(i) for i in range(30)),
        checks=_found("FD101", "FD104", "FD401"),
        findings=(_ffn_overflow(), _warm_up_note()),
        prescriptions=(_bf16(), _larger_scale()),
        recommendation=Recommendation(
            RecommendationStatus.PRESCRIBED, "train in bf16 instead of fp16", (0,)
        ),
        replay=replace(REPLAY, pinned=2, pinned_ops=(("aten.bernoulli_.float", "random op"),)),
        ranges=_ranges(),
        blame=(BlamedOp(MM, 1.0, cumulative=1.0), BlamedOp(SUB, None)),
        error_budget=ErrorBudget(
            0,
            "non-finite gradient elements",
            1024.0,
            1,
            "1 birth of inf or NaN has to go: in fp32 there, none of 1024 non-finite gradient "
            "elements of step 0 stay so",
        ),
        trajectory={
            "steps": (0.0, 1.0, 2.0),
            "as run": (math.nan,),
            "fp32": (2.5, 2.25, 2.0),
            "bf16": (2.5, 2.26, 2.02),
        },
        gradient_scales=GradientScales(
            format="fp16",
            exponents=((-30, 250), (-20, 500), (-10, 250)),
            shares=(
                ScaleShares(1.0, 0.0, 0.5, 0.25),
                ScaleShares(2.0, 0.0, 0.5, 0.25),
                ScaleShares(4.0, 0.0, 0.5, 0.25),
            ),
            low=1.0,
            recommended=2.0,
            high=4.0,
        ),
        context=(
            SourceContext(
                "train.py", 40, 38, ("", "def forward(self, x):", f"    {WO.text}", "", "class B:")
            ),
        ),
        warnings=(Caution("no-source", "2 modules have no Python source and show no line."),),
    )


def _skipped_step(i: int) -> StepInfo:
    scale = 65536.0 / 2**i
    return StepInfo(i, math.nan, scale, True, True, 812, 214, scale / 2)


def _found(*codes: str) -> tuple[CheckOutcome, ...]:
    found = OutcomeOfCheck.FOUND
    return tuple(replace(c, outcome=found, detail="") if c.code in codes else c for c in CHECKS)


def _ffn_overflow() -> Finding:
    return Finding(
        code="FD101",
        name="activation-overflow",
        severity=Severity.ERROR,
        fault=Fault.OVERFLOW,
        what="`blocks.2.ffn.wo` output reaches 1.84e5, above the fp16 maximum 65504",
        cause="First op whose fp16 result is infinite where the fp32 replay is finite.",
        site=MM,
        evidence=(
            Evidence(
                "amax",
                184320.0,
                "replayed:fp32",
                65520.0,
                "overflow_threshold",
                "fp16",
                worst_index=(3, 17),
            ),
            Evidence("non-finite elements", 12.0, "recorded", count=12, total=1048576),
            Evidence("headroom", -1.49, "derived", format="fp16"),
        ),
        consequences=214,
        chain=(MM, SUB, LOSS),
        reaches=("loss", "gradients"),
        repeats=tuple(
            replace(MM, module_path=f"blocks.{i}.ffn.wo", index=212 + 90 * i) for i in (3, 4, 5)
        ),
        subsumes=("FD401",),
        advice="keep `blocks.2.ffn.wo` in fp32, or train in bf16 (maximum 3.39e38)",
    )


def _warm_up_note() -> Finding:
    return Finding(
        code="FD104",
        name="gradient-overflow",
        severity=Severity.NOTE,
        fault=Fault.OVERFLOW,
        what="2 steps were skipped while the loss scale settled from 65536 to 16384",
        cause="GradScaler starts at 65536 and halves until the gradients fit fp16.",
        site=None,
        evidence=(Evidence("skipped steps", 2.0, "recorded", count=2, total=30),),
    )


def _bf16() -> Prescription:
    return Prescription(
        Remedy(
            RemedyKind.DTYPE,
            "train in bf16 instead of fp16",
            'with torch.autocast("cuda", dtype=torch.bfloat16):\n    loss = model(x, y)',
            value="bf16",
        ),
        (0,),
        Verification(
            Verdict.VERIFIED,
            before={"non_finite_ops": 215.0, "loss": math.nan},
            after={"non_finite_ops": 0.0, "loss": 2.31412},
            steps=(0, 3, 4),
        ),
    )


def _larger_scale() -> Prescription:
    return Prescription(
        Remedy(
            RemedyKind.LOSS_SCALE,
            "start the loss scale at 1024",
            value={"low": 1.0, "recommended": 1024.0, "high": 4096.0},
        ),
        (0,),
        Verification(
            Verdict.REFUTED,
            "the overflow is in the forward pass",
            {"non_finite_ops": 215.0},
            {"non_finite_ops": 215.0},
            (0,),
        ),
    )


def _ranges() -> tuple[ModuleRanges, ...]:
    stats = (RangeStats(4096, 12, 0, 0, 184320.0, 2.0**-20, ((-20, 4), (17, 1))),)
    return (ModuleRanges("blocks.2.ffn.wo", "Linear", "output", (0,), stats),)


def logic_nan() -> Diagnosis:
    """A NaN that fp32 has as well: a row of attention scores that is masked entirely."""
    finding = Finding(
        code="FD112",
        name="logic-nan",
        severity=Severity.ERROR,
        fault=Fault.NAN_BIRTH,
        what="softmax in `blocks.3.attn` makes NaN of a row that is −inf in every column",
        cause="The mask leaves no column of batch element 5; the softmax divides 0 by 0.",
        site=replace(SUB, element=(5, 0)),
        cause_site=replace(
            SUB,
            op="aten.masked_fill.Scalar",
            index=228,
            source=replace(SOFTMAX, line=60, text="scores = scores.masked_fill(~mask, -inf)"),
        ),
        evidence=(Evidence("NaN elements", 64.0, "recorded", count=64, total=4096),),
        consequences=80,
        reaches=("loss", "gradients", "parameters"),
        advice="leave at least one unmasked column in every row",
    )
    return replace(
        _sound(),
        checks=(*CHECKS, CheckOutcome("FD112", "logic-nan", OutcomeOfCheck.FOUND)),
        steps=tuple(StepInfo(i, math.nan, n_ops=800, n_nonfinite_ops=81) for i in range(4)),
        findings=(finding,),
        recommendation=Recommendation(
            RecommendationStatus.NOT_PRECISION, "no dtype, loss scale or keep-list cures it"
        ),
    )


def _sound() -> Diagnosis:
    steps = tuple(StepInfo(i, 2.3141 - 0.05 * i, n_ops=812) for i in range(30))
    return Diagnosis(RUN, (FP16,), steps, CHECKS, (), (), NOTHING_NEEDED, REPLAY)


def healthy() -> Diagnosis:
    """Thirty good steps."""
    return replace(
        _sound(),
        blame=(
            BlamedOp(SUB, 0.71, 0.53, 0.71, 0.6),
            BlamedOp(MM, 0.28, 0.146, 0.93, 0.2),
            BlamedOp(LOSS, -0.004, 1e-6, None, -0.002),
        ),
        error_budget=ErrorBudget(
            0,
            "gradient error",
            0.012,
            412,
            "2 of 412 ops make 93 % of the squared gradient error of step 0: 0.012 as run, 0.00317 "
            "without their own errors",
        ),
    )


def healthy_with_warm_up() -> Diagnosis:
    """Two skipped steps while the scale settled: a note, not a fault."""
    base = _sound()
    first = tuple(
        StepInfo(i, 2.3, 65536.0 / 2**i, True, True, 700, 40, 32768.0 / 2**i) for i in (0, 1)
    )
    return replace(
        base, steps=first + base.steps[2:], checks=_found("FD104"), findings=(_warm_up_note(),)
    )


def raised() -> Diagnosis:
    """A script that checks its own loss and raises, two steps after the first inf."""
    finding = replace(_ffn_overflow(), repeats=(), subsumes=())
    steps = (
        StepInfo(0, 8.5, n_ops=812, n_nonfinite_ops=3),
        StepInfo(1, math.inf),
        StepInfo(2, math.nan),
    )
    outcome = Outcome(
        OutcomeKind.RAISED,
        1,
        "ValueError",
        "loss is nan\nstopping",
        SourceLine("train.py", 99, "<module>", 'raise ValueError(f"loss is {loss}")'),
    )
    return replace(
        _sound(),
        run=replace(RUN, outcome=outcome),
        steps=steps,
        checks=_found("FD101"),
        findings=(finding,),
        recommendation=Recommendation(RecommendationStatus.NONE_FOUND, "no cure was tried"),
    )


def raised_without_finding() -> Diagnosis:
    """A script that raised for a reason that numbers have no part in."""
    outcome = replace(raised().run.outcome, exception="KeyError", message="'labels'")
    return replace(_sound(), run=replace(RUN, outcome=outcome))


def never_trained() -> Diagnosis:
    """A script that never came to an optimizer step; nothing could be replayed."""
    warning = Caution("no-steps", "No optimizer step was seen, so no step was examined.")
    return Diagnosis(
        run=replace(RUN, duration_s=4.1, examination_s=0.0),
        formats=(FP16,),
        steps=(),
        checks=CHECKS,
        findings=(),
        prescriptions=(),
        recommendation=NOTHING_NEEDED,
        replay=ReplaySummary((), None),
        warnings=(warning,),
    )


def unexplained() -> Diagnosis:
    """A NaN loss that no check explains, with a check that failed."""
    failed = replace(CHECKS[0], outcome=OutcomeOfCheck.FAILED, detail="ZeroDivisionError: …")
    return replace(
        _sound(),
        steps=(StepInfo(0, 2.3, n_ops=10), StepInfo(1, math.nan, n_ops=10)),
        checks=(failed, *CHECKS[1:]),
        replay=ReplaySummary((), None),
    )


SAMPLES = {
    "overflow": overflow,
    "logic-nan": logic_nan,
    "healthy": healthy,
    "healthy-with-warm-up": healthy_with_warm_up,
    "raised": raised,
    "raised-without-finding": raised_without_finding,
    "never-trained": never_trained,
    "unexplained": unexplained,
}
