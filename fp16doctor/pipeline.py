"""From a watched run to a diagnosis: which tapes are examined, and when.

Knows every stage; the stages do not know each other.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from importlib.metadata import version
from types import TracebackType
from typing import TYPE_CHECKING

from fp16doctor.diagnose.engine import diagnose
from fp16doctor.diagnose.rule import Observations
from fp16doctor.errors import ReplayError
from fp16doctor.formats.number_format import get_format
from fp16doctor.prescribe.acceptance import CRITERIA
from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.outlook import outlook
from fp16doctor.prescribe.plan import plan
from fp16doctor.prescribe.shelf import TapeShelf
from fp16doctor.record.births import Birth, births
from fp16doctor.record.recorder import Recorder
from fp16doctor.record.roll import Roll
from fp16doctor.record.script import StopScript
from fp16doctor.record.source_lines import SourceLines
from fp16doctor.record.survey import SurveyPlan
from fp16doctor.record.tape_builder import build_tape
from fp16doctor.replay.examine import examine
from fp16doctor.replay.update_ledger import UpdateLedger
from fp16doctor.schema.diagnosis import (
    Diagnosis,
    FidelitySummary,
    FormatLimits,
    FormatOutlook,
    ReplaySummary,
)
from fp16doctor.schema.finding import Finding, Severity
from fp16doctor.schema.location import Phase
from fp16doctor.schema.precision import UpdateLoss
from fp16doctor.schema.prescription import Prescription, Recommendation
from fp16doctor.schema.recording import Caution, Outcome, OutcomeKind, Recording, RunInfo
from fp16doctor.schema.tape import Tape
from fp16doctor.schema.trace import ReplayTrace
from fp16doctor.schema.usage import UsageFact

if TYPE_CHECKING:
    from torch import nn

_FORMATS = ("fp16", "bf16", "fp32")
MAX_EXAMINED = 12  # steps examined against a reference
MAX_WARMUP_EXAMINED = 2  # of which for gradients that overflow while the scaler settles
# Steps examined although nothing was flagged: silent faults. Four in a row tell a rounding error
# that lasts from one that averages out, later ones follow the run in ever wider strides.
SAMPLED_STEPS = frozenset((0, 1, 2, 3, 4, 9, 19, 49, 99, 199, 499, 999, 1999, 4999, 9999))
SAMPLING_SHARE = 0.2  # of the run's time so far may go into them
SAMPLING_ALLOWANCE = 2.0  # seconds that may go into them in any case


# What went wrong in a step as far as the survey saw it: (module path, role), ("", "found_inf").
Trouble = frozenset[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class ScanOptions:
    """What a scan was asked for."""

    steps: int | None = None  # stop after so many optimizer attempts
    sources: bool = True  # keep the text of source lines
    budget_s: float = 45.0  # seconds that trying cures may take
    tolerance: float = 1.0  # factor on what a cure may miss of the fp32 descent
    survey: SurveyPlan | None = None  # which steps are surveyed, and how closely
    # Asked at the opening of each step, with the trouble of the one before; None tapes them all.
    wants_tape: Callable[[int, Trouble], bool] | None = None
    before_step: Callable[[], None] | None = None  # may raise into the script


class Session:
    """Watches a run; a context manager around it, then ``finish``."""

    def __init__(
        self,
        options: ScanOptions,
        script: str,
        argv: tuple[str, ...],
        on_first_error: Callable[[Diagnosis], None] | None = None,
    ) -> None:
        self._options, self._script, self._argv = options, script, argv
        self._on_first_error = on_first_error
        root = os.path.dirname(os.path.abspath(script)) if os.path.exists(script) else os.getcwd()
        lines = SourceLines(root, keep_text=options.sources)
        self._recorder = Recorder(
            lines,
            self._on_tape,
            self._before_step,
            plan=options.survey,
            wants_tape=self._wants_tape,
        )
        self._traces: list[ReplayTrace] = []
        self._known: set[Hashable] = set()
        self._warmups = 0
        self._flagged = 0
        self._ledger = UpdateLedger()
        self._shelf = TapeShelf()
        self._told = False
        self._examining_s = 0.0
        self._began = 0.0
        self._started = ""

    def __enter__(self) -> Session:
        """Start watching the calling thread."""
        self._started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._began = time.perf_counter()
        self._recorder.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop watching; examine the step that was open."""
        self._recorder.stop()

    def so_far(self) -> Diagnosis:
        """Return the diagnosis of the steps closed so far, while the run goes on."""
        with self._recorder.quiet():
            return self._diagnosis(Outcome(OutcomeKind.FINISHED), final=False)

    def step_ends(self) -> None:
        """The script says that its step is over."""
        self._recorder.step_ends()

    def adopt(self, model: nn.Module) -> None:
        """Name the modules of a model before it is called."""
        self._recorder.modules.adopt(model)

    def finish(self, outcome: Outcome, exception: BaseException | None = None) -> Diagnosis:
        """Return the diagnosis of the whole run."""
        return self._diagnosis(self._with_raiser(outcome, exception), final=True)

    # -- while it runs ---------------------------------------------------------------------------

    def _before_step(self, done: int) -> None:
        limit = self._options.steps
        if limit is not None and done >= limit:
            raise StopScript
        if self._options.before_step is not None:
            self._options.before_step()

    def _wants_tape(self, step: int) -> bool:
        wants = self._options.wants_tape
        return wants is None or wants(step, self._trouble(step - 1))

    def _trouble(self, step: int) -> Trouble:
        """Return what the survey and the scaler saw go wrong in a closed step."""
        recorder = self._recorder
        last = recorder.survey.last
        trouble = set(last.nonfinite) if last.step == step else set()
        info = recorder.book.steps[-1] if recorder.book.steps else None
        if info is not None and info.step == step and (info.found_inf or info.skipped):
            trouble.add(("", "found_inf"))
        return frozenset(trouble)

    def _on_tape(self, recorder: Recorder, roll: Roll) -> None:
        began = time.perf_counter()
        try:
            if self._examine(recorder, roll):
                self._tell()
            elif not roll.ops and self._hurt(recorder):
                self._tell(whatever_it_holds=True)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not reach the script
            recorder.caution(
                "examination-failed",
                f"step {roll.step} could not be examined: {type(error).__name__}: {error}",
            )
        finally:
            self._examining_s += time.perf_counter() - began

    def _examine(self, recorder: Recorder, roll: Roll) -> bool:
        """Examine a tape if it shows something new, or is due; True if something was flagged."""
        if not roll.ops:  # not taped
            return False
        suspects = births(roll)
        fresh = [b for b in suspects if b.key not in self._known]
        flagged = bool(fresh) and self._worth(fresh)
        due = flagged or self._due(recorder, roll)
        wanted = recorder.steps.attempted and self._shelf.wants(roll.step)
        if not due and not wanted:
            return False
        tape = build_tape(recorder, roll)
        if due:
            self._known.update(b.key for b in suspects)
            self._look_at(recorder, tape)
        if recorder.steps.attempted:
            self._shelf.follow(tape)
        return flagged

    def _look_at(self, recorder: Recorder, tape: Tape) -> None:
        """Compare a step with the reference."""
        try:
            trace = examine(tape, with_reference=True, ledger=self._ledger)
        except ReplayError as error:
            recorder.caution(error.slug, f"step {tape.step}: {error.message}")
            return
        info = recorder.book.steps[-1] if recorder.book.steps else None
        if info is not None and info.step == tape.step:
            trace = replace(trace, loss_scale=info.loss_scale, found_inf=info.found_inf)
        self._traces.append(trace)
        self._shelf.offer(tape, trace)

    def _due(self, recorder: Recorder, roll: Roll) -> bool:
        """Tell whether a step without a flag is one of the sampled ones, and there is time."""
        if not recorder.steps.attempted or roll.step not in SAMPLED_STEPS:
            return False
        if not self._traces:
            return True
        elapsed = time.perf_counter() - self._began
        return self._examining_s < SAMPLING_ALLOWANCE + SAMPLING_SHARE * elapsed

    def _worth(self, fresh: list[Birth]) -> bool:
        """Bound the number of examinations; a settling scaler gets few of them."""
        if self._flagged >= MAX_EXAMINED:
            self._recorder.caution(
                "examinations-used-up", f"{MAX_EXAMINED} steps were examined; later ones were not"
            )
            return False
        if all(b.phase is Phase.BACKWARD for b in fresh):
            self._warmups += 1
            if self._warmups > MAX_WARMUP_EXAMINED:
                return False
        self._flagged += 1
        return True

    def _hurt(self, recorder: Recorder) -> bool:
        """Tell whether non-finite gradients reached an update in a step that was not taped."""
        last = recorder.survey.last
        trouble = self._trouble(last.step)
        hurt = [path for path, role in last.nonfinite if role.endswith(".grad")]
        if not hurt or ("", "found_inf") in trouble or not recorder.steps.attempted:
            return False
        recorder.caution(
            "trouble-not-taped",
            f"step {last.step}, which was not taped: the gradients of {len(hurt)} parameters were "
            f"inf or NaN when the optimizer took them, the first in {hurt[0] or 'the root'!r}; "
            "tape more steps (every=, schedule=), or run the script under `fp16doctor scan`",
        )
        return True

    def _tell(self, *, whatever_it_holds: bool = False) -> None:
        """Hand over the diagnosis as soon as it holds an error."""
        if self._told or self._on_first_error is None:
            return
        so_far = self._diagnosis(Outcome(OutcomeKind.FINISHED), final=False)
        if whatever_it_holds or any(f.severity is Severity.ERROR for f in so_far.findings):
            self._told = True
            self._on_first_error(so_far)

    # -- afterwards ------------------------------------------------------------------------------

    def _with_raiser(self, outcome: Outcome, exception: BaseException | None) -> Outcome:
        """Name the op that raised the exception which ended the script."""
        last = self._recorder.last_raise
        if exception is None or last is None or last[0] is not exception:
            return outcome
        from fp16doctor.record.tape_builder import site_of

        return replace(outcome, raised_by=site_of(self._recorder, last[1], last[2]))

    def _diagnosis(self, outcome: Outcome, *, final: bool) -> Diagnosis:
        recording = Recording(
            run=self._run_info(outcome),
            steps=tuple(self._recorder.book.steps),
            ranges=self._recorder.survey.ranges(),
            warnings=self._warnings(),
            usage=self._usage(),
        )
        seen = Observations(recording, tuple(self._traces), final, updates=self._ledger.found())
        findings, checks = diagnose(seen)
        bench = self._bench() if final else None
        prescriptions, recommendation = self._plan(findings, bench, seen.updates)
        return Diagnosis(
            run=recording.run,
            formats=tuple(_limits(name) for name in _FORMATS),
            steps=recording.steps,
            checks=checks,
            findings=findings,
            prescriptions=prescriptions,
            recommendation=recommendation,
            replay=self._replay_summary(),
            ranges=recording.ranges,
            warnings=self._warnings(),
            outlook=self._outlook() if final else {},
            trajectory=bench.courses() if bench is not None else {},
            acceptance=CRITERIA,
        )

    def _outlook(self) -> dict[str, FormatOutlook]:
        try:
            return outlook(self._shelf.tapes())
        except Exception as error:  # noqa: BLE001 - an extra that must not cost the findings
            self._recorder.caution(
                "outlook-failed", f"other formats were not tried: {type(error).__name__}: {error}"
            )
            return {}

    def _plan(
        self, findings: tuple[Finding, ...], bench: Bench | None, updates: tuple[UpdateLoss, ...]
    ) -> tuple[tuple[Prescription, ...], Recommendation]:
        try:
            return plan(findings, bench, updates)
        except Exception as error:  # noqa: BLE001 - the findings must not be lost with the cures
            self._recorder.caution(
                "trials-failed", f"cures could not be tried: {type(error).__name__}: {error}"
            )
            return plan(findings, None, updates)

    def _bench(self) -> Bench | None:
        """Return the kept steps, ready for trials; None where none was kept."""
        tapes, options = self._shelf.tapes(), self._options
        if not tapes or options.budget_s <= 0:
            return None
        return Bench(tapes, options.budget_s, options.tolerance, self._shelf.window())

    def _warnings(self) -> tuple[Caution, ...]:
        found = list(self._recorder.cautions.values())
        if not self._recorder.book.steps:
            found.append(Caution("no-steps", "no optimizer step was seen"))
        return tuple(found)

    def _usage(self) -> tuple[UsageFact, ...]:
        book = self._recorder.usage
        return (*book.facts, *book.not_in_effect())

    def _run_info(self, outcome: Outcome) -> RunInfo:
        from fp16doctor import __version__

        counts, usage = self._recorder.ops_by_dtype, self._recorder.usage
        return RunInfo(
            script=self._script,
            argv=self._argv,
            outcome=outcome,
            tool_version=__version__,
            torch_version=version("torch"),
            python_version=platform.python_version(),
            device=", ".join(sorted(map(str, self._recorder.devices))) or "cpu",
            started=self._started,
            duration_s=time.perf_counter() - self._began,
            examination_s=self._examining_s,
            ops_by_dtype=tuple(
                (str(d).removeprefix("torch."), n) for d, n in sorted(counts.items(), key=str)
            ),
            bytes_by_dtype=usage.run.bytes,
            parameters_by_dtype=usage.run.parameters,
            autocast=usage.run.autocast,
            loss_scaling=usage.run.scaling(switched_off=usage.watch.scaler_off),
        )

    def _replay_summary(self) -> ReplaySummary:
        traces = self._traces
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


def _limits(name: str) -> FormatLimits:
    fmt = get_format(name)
    return FormatLimits(
        name, fmt.max, fmt.overflow_threshold, fmt.smallest_normal, fmt.smallest_subnormal, fmt.eps
    )
