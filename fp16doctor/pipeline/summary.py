"""Facts about the run and its replays, as the diagnosis carries them.

Must not know how either was done.
"""

from __future__ import annotations

import platform
from collections.abc import Sequence
from importlib.metadata import version

from fp16doctor.formats.number_format import get_format
from fp16doctor.record import ranks
from fp16doctor.record.recorder import Recorder
from fp16doctor.schema.diagnosis import FidelitySummary, FormatLimits, ReplaySummary
from fp16doctor.schema.recording import Caution, Outcome, RunInfo
from fp16doctor.schema.trace import ReplayTrace
from fp16doctor.schema.usage import UsageFact

FORMATS = ("fp16", "bf16", "fp32")


Times = tuple[str, float, float]  # started (ISO 8601), seconds in all, seconds of examination


def run_info(
    recorder: Recorder, script: str, argv: tuple[str, ...], outcome: Outcome, times: Times
) -> RunInfo:
    """Return what ran, with what, for how long."""
    from fp16doctor import __version__

    counts, usage, simulated = recorder.ops_by_dtype, recorder.usage, recorder.simulation.device
    devices = ", ".join(sorted(map(str, recorder.devices))) or "cpu"
    return RunInfo(
        script=script,
        argv=argv,
        outcome=outcome,
        tool_version=__version__,
        torch_version=version("torch"),
        python_version=platform.python_version(),
        device=f"{devices}, simulating {simulated}" if simulated else devices,
        started=times[0],
        duration_s=times[1],
        examination_s=times[2],
        rank=recorder.book.ranks[0],
        world_size=recorder.book.ranks[1],
        ops_by_dtype=tuple(
            (str(d).removeprefix("torch."), n) for d, n in sorted(counts.items(), key=str)
        ),
        bytes_by_dtype=usage.run.bytes,
        parameters_by_dtype=usage.run.parameters,
        autocast=tuple(_as_asked(entry, simulated) for entry in usage.run.autocast),
        loss_scaling=usage.run.scaling(switched_off=usage.watch.scaler_off),
    )


def _as_asked(autocast: str, simulated: str) -> str:
    """Return ``cpu float16`` with the device that the script named."""
    device, _, dtype = autocast.partition(" ")
    return f"{simulated or device} {dtype}"


def warnings(recorder: Recorder) -> tuple[Caution, ...]:
    """Return what could not be observed."""
    found = [*recorder.simulation.cautions(), *recorder.cautions.values()]
    found += ranks.cautions(recorder.book.ranks)
    elsewhere = _elsewhere(recorder)
    if elsewhere:
        why = f"{elsewhere} ran in another thread, which was not watched"
        found.append(Caution("other-thread", why))
    elif not recorder.book.steps and "recorder-stopped" not in recorder.cautions:
        found.append(_no_steps(recorder.book.children))
    return tuple(found)


def _no_steps(children: int) -> Caution:
    if not children:
        return Caution("no-steps", "no optimizer step was seen")
    started = f"{children} process{'es' * (children > 1)} that it started"
    return Caution(
        "other-processes",
        f"the script took no step itself; {started} {'is' if children == 1 else 'are'} not watched",
    )


def _elsewhere(recorder: Recorder) -> str:
    """Say how another thread trained: ``12 optimizer steps``, empty where none did."""
    steps = recorder.steps
    if steps.elsewhere:
        return f"{steps.elsewhere} optimizer step{'s' * (steps.elsewhere > 1)}"
    n = 0 if recorder.book.steps else steps.backwards_elsewhere  # an update by hand
    return f"{n} backward call{'s' * (n > 1)}" if n else ""


def usage_facts(recorder: Recorder) -> tuple[UsageFact, ...]:
    """Return how mixed precision was used."""
    return (*recorder.usage.facts, *recorder.usage.not_in_effect())


def replay_summary(traces: Sequence[ReplayTrace]) -> ReplaySummary:
    """Return how much was replayed, and how faithfully."""
    if not traces:
        return ReplaySummary(steps=(), fidelity=None)
    pinned = sorted({p for t in traces for p in t.pinned})
    opaque = sorted({o for t in traces for o in t.opaque})
    references = {t.reference for t in traces} - {"none"}
    return ReplaySummary(
        steps=tuple(t.step for t in traces),
        fidelity=FidelitySummary(
            all(t.fidelity.bit_equal for t in traces),
            max(t.fidelity.largest_difference for t in traces),
        ),
        n_ops=sum(t.n_ops for t in traces),
        pinned=sum(why != "random" for _, why in pinned),
        opaque=len(opaque),
        reference=max(references, default="none"),
        pinned_ops=tuple(pinned),
        opaque_ops=tuple(opaque),
    )


def limits() -> tuple[FormatLimits, ...]:
    """Return the numbers of the considered formats."""
    return tuple(_limits(name) for name in FORMATS)


def _limits(name: str) -> FormatLimits:
    fmt = get_format(name)
    return FormatLimits(
        name, fmt.max, fmt.overflow_threshold, fmt.smallest_normal, fmt.smallest_subnormal, fmt.eps
    )


def say_eager(recorder: Recorder, asked: int) -> None:
    """Tell that ``torch.compile`` was asked for and compiled nothing."""
    if asked:
        times = "once" if asked == 1 else f"{asked} times"
        recorder.caution(
            "not-compiled",
            f"torch.compile was called {times} and compiled nothing, so that each op has its "
            "module and its line; fused kernels keep what is between their ops in fp32, so the "
            "compiled run may round and overflow elsewhere; --compiled lets it compile",
        )
