"""The script asks for fp16 or bf16, and no op ran in it.

What it checks:
    Autocast with a 16-bit dtype that torch switched off, or that was on while no op gave a result
    in that dtype (it leaves fp64 tensors as they are); a GradScaler that torch switched off while
    fp16 ops ran.

Why it matters:
    On a machine without CUDA `torch.autocast("cuda")` and `torch.cuda.amp.GradScaler()` do
    nothing but warn. What is seen then is an fp32 run: it says nothing about the run that was
    meant.

Example:
    with torch.autocast("cuda", dtype=torch.float16):        # on a machine without CUDA
        loss = criterion(model(x), y)

Remedy:
    Run on the device the script is meant for, or name the device that is there:
    `torch.autocast("cpu", dtype=torch.bfloat16)`. `fp16doctor scan --device cuda` shows on the CPU
    what the script does where CUDA is there.

References:
    PyTorch documentation, torch.autocast, torch.amp.GradScaler
"""

from __future__ import annotations

from collections.abc import Iterator

from fp16doctor.diagnose.rule import Observations, rule
from fp16doctor.diagnose.usage_words import ran
from fp16doctor.schema.finding import Fault, Finding, Severity
from fp16doctor.schema.usage import UsageFact, UsageKind

_TORCH_NAMES = {"fp16": "float16", "bf16": "bfloat16"}
_DEVICE = (
    "run on the device that the script asks for, or ask for the one that is there; "
    "`fp16doctor scan --device cuda` simulates a CUDA device on the CPU"
)
_LEAVES_FP64 = (
    "Autocast casts fp32 tensors and leaves fp64 ones as they are: most ops ran in fp64.",
    "make the model and its inputs fp32 (`model.float()`, `x.float()`), which autocast casts",
)
_NAMES = {"float16": "fp16", "bfloat16": "bf16"}


@rule(code="FD601", name="precision-not-as-asked", needs=("recording",))
def precision_not_as_asked(seen: Observations) -> Iterator[Finding]:
    """Yield one finding per request that had no effect."""
    if not seen.final or not seen.recording.steps:
        return
    for fact in seen.used(UsageKind.NOT_IN_EFFECT):
        if fact.detail == "GradScaler":
            yield from _scaler(seen, fact)
        elif fact.format in _TORCH_NAMES and not ran(seen, _TORCH_NAMES[fact.format]):
            yield _autocast(fact)
    yield from _idle(seen)


def _scaler(seen: Observations, fact: UsageFact) -> Iterator[Finding]:
    if ran(seen, "float16"):
        yield _finding(
            "a GradScaler was asked for and is switched off, while ops run in fp16",
            "torch found no CUDA device when it was constructed; `scale` and `step` pass through.",
            fact=fact,
        )


def _autocast(fact: UsageFact) -> Finding:
    return _finding(
        f"autocast to {fact.format} was asked for and is switched off: no op ran in {fact.format}",
        "torch found no CUDA device and switched autocast off; what was seen is the run without "
        "it.",
        fact=fact,
    )


def _idle(seen: Observations) -> Iterator[Finding]:
    """Autocast that was on over the model and cast nothing."""
    for entry in seen.recording.run.autocast:
        device, _, dtype = entry.partition(" ")
        if dtype in _NAMES and not ran(seen, dtype):
            name = _NAMES[dtype]
            yield _finding(
                f"autocast to {name} on {device} was on over the model, and no op ran in {name}",
                *(_LEAVES_FP64 if _is_fp64(seen) else (_nothing_to_cast(device),)),
            )


def _is_fp64(seen: Observations) -> bool:
    """Whether the ops, and so the values they take, are fp64 for the most part."""
    counts = dict(seen.recording.run.ops_by_dtype)
    return 2 * counts.get("float64", 0) > sum(counts.values())


def _nothing_to_cast(device: str) -> str:
    return (
        f"No op on {device} belongs to autocast's lower-precision list, or the ops ran on "
        "another device."
    )


def _finding(
    what: str, cause: str, advice: str = _DEVICE, *, fact: UsageFact | None = None
) -> Finding:
    return Finding(
        code="FD601",
        name="precision-not-as-asked",
        severity=Severity.WARNING,
        fault=Fault.MISUSE,
        what=what,
        cause=cause,
        site=None if fact is None else fact.site,
        advice=advice,
    )
