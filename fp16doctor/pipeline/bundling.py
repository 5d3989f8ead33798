"""Which of the examined steps is kept for a bundle, and what is told of it.

Must not know files (``record.bundle``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version

from fp16doctor.errors import BundleError
from fp16doctor.prescribe.steps import device_of
from fp16doctor.record.bundle.settings import settings, threads
from fp16doctor.replay.outcome import outcome_of
from fp16doctor.schema.bundle import Bundle, Origin
from fp16doctor.schema.finding import Finding
from fp16doctor.schema.recording import RunInfo
from fp16doctor.schema.tape import Tape
from fp16doctor.schema.trace import EventKind, ReplayTrace

MAX_SICK = 3  # steps in which something non-finite was born
MAX_SOUND = 1  # steps without: they hold the silent faults
MAX_BYTES = 2**30  # of one step's inputs


class BundleKeeper:
    """Copies of a few examined steps, with what the script left behind in each."""

    def __init__(self) -> None:
        self._sick: list[Bundle] = []
        self._sound: list[Bundle] = []
        self._refusal = ""

    def offer(self, tape: Tape, trace: ReplayTrace) -> None:
        """Keep a step if it can be replayed from what was recorded, and there is a place for it."""
        sick = any(e.kind is not EventKind.INTENDED and not e.in_tail for e in trace.events)
        shelf, most = (self._sick, MAX_SICK) if sick else (self._sound, MAX_SOUND)
        if len(shelf) >= most:
            return
        self._refusal = _why_not(tape)
        if not self._refusal:
            leaves = {n: replace(x, data=x.data.clone()) for n, x in tape.leaves.items()}
            kept = replace(tape, leaves=leaves, final={}, keys={})
            shelf.append(Bundle(kept, _origin(tape, trace), outcome_of(tape)))

    def bundle(
        self, run: RunInfo, findings: Sequence[Finding], refused: Tape | None = None
    ) -> Bundle:
        """Return the leading finding's step, else the first sick one, else the first.

        ``refused``: the step up to the call that ended the script, where one did; it is the leading
        finding's own step, and is taken as well where no other was kept.

        Raises BundleError no-step-kept.
        """
        kept = (*self._sick, *self._sound)
        if refused is not None and (not kept or _raised(findings, refused)):
            kept = (Bundle(refused, _origin(refused, None)),)
        if not kept:
            reason = self._refusal or "no step was examined"
            raise BundleError(
                f"no bundle was written: {reason}; scan a script that trains, and with --steps if"
                " only a later step is of interest",
                "no-step-kept",
            )
        placed = [f for f in findings if f.site is not None]
        chosen = next((b for f in placed for b in kept if _step(f) == b.tape.step), kept[0])
        leading = next((f for f in placed if _step(f) == chosen.tape.step), None)
        autocast = {"autocast": "; ".join(run.autocast)} if run.autocast else {}
        origin = replace(
            chosen.origin,
            script=run.script,
            finding=leading,
            settings={**chosen.origin.settings, **autocast},
        )
        return replace(chosen, origin=origin)


def _raised(findings: Sequence[Finding], refused: Tape) -> bool:
    """Tell whether the first finding with a place is about the call that raised."""
    site = next((f.site for f in findings if f.site is not None), None)
    last = refused.ops[-1].site
    return site is not None and (site.op, site.source, site.step) == (
        last.op, last.source, last.step,
    )  # fmt: skip


def _step(finding: Finding) -> int | None:
    return None if finding.site is None else finding.site.step


def _why_not(tape: Tape) -> str:
    size = sum(leaf.data.numel() for leaf in tape.leaves.values())
    if size > MAX_BYTES:
        return f"step {tape.step} has {size >> 20} MiB of inputs, above {MAX_BYTES >> 20} MiB"
    return "" if tape.complete else f"step {tape.step} was recorded in part"


def _origin(tape: Tape, trace: ReplayTrace | None) -> Origin:
    from fp16doctor import __version__

    return Origin(
        script="",
        step=tape.step,
        device=f"cpu, simulating {tape.device}" if tape.device else device_of(tape),
        tool_version=__version__,
        torch_version=version("torch"),
        threads=threads(),
        settings=settings(),
        loss=None if trace is None else trace.loss,
    )
