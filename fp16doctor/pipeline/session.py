"""One watched run, from its first op to its diagnosis.

Must not know which steps are examined (``examiner``).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from fp16doctor.diagnose.beside_run import SeenRun
from fp16doctor.diagnose.engine import diagnose
from fp16doctor.diagnose.gradient_scales import gradient_scales
from fp16doctor.diagnose.rule import Observations
from fp16doctor.pipeline import summary
from fp16doctor.pipeline.bundling import BundleKeeper
from fp16doctor.pipeline.context import contexts_of
from fp16doctor.pipeline.courses import scale_by_hand, trajectory
from fp16doctor.pipeline.examiner import Examiner
from fp16doctor.pipeline.options import ScanOptions
from fp16doctor.pipeline.own_lines import ScriptText, script_text
from fp16doctor.pipeline.own_roots import own_roots
from fp16doctor.pipeline.own_terms import OwnScript, in_own_terms
from fp16doctor.pipeline.progress import Progress
from fp16doctor.pipeline.step_trouble import signs_of, trouble_of
from fp16doctor.pipeline.trials import Trials
from fp16doctor.prescribe.acceptance import CRITERIA
from fp16doctor.prescribe.bench import Bench
from fp16doctor.record.eager import Eager
from fp16doctor.record.model_name import model_name
from fp16doctor.record.originals import Originals
from fp16doctor.record.recorder import Recorder
from fp16doctor.record.roll import Roll
from fp16doctor.record.script import StopScript
from fp16doctor.record.simulation import Simulation
from fp16doctor.record.source_lines import SourceLines
from fp16doctor.record.step_plan import FOUND_INF
from fp16doctor.schema.bundle import Bundle
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Severity
from fp16doctor.schema.recording import Outcome, OutcomeKind, Recording
from fp16doctor.schema.tape import Tape

if TYPE_CHECKING:
    from torch import nn


def script_root(script: str) -> str:
    """Return the folder that reported paths are relative to."""
    return os.path.dirname(os.path.abspath(script)) if os.path.exists(script) else os.getcwd()


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
        self._lines = SourceLines(script_root(script), keep_text=options.sources)
        self._recorder = Recorder(
            self._lines,
            self._on_tape,
            self._before_step,
            plan=options.survey,
            wants_tape=self._wants_tape,
        )
        self._simulation = self._recorder.simulation = Simulation(options.simulate)
        self._eager = Eager() if options.eager else None
        self._progress = Progress(options.progress)
        keeper = BundleKeeper() if options.keeps_bundle else None
        self._examiner = Examiner(keeper, self._progress.examining)
        self._told = False
        self._text = script_text(script) if options.sources else ScriptText(script, "")
        self._started = ""
        self.originals = Originals()  # of libraries that the script may replace parts of

    def __enter__(self) -> Session:
        """Start watching the calling thread."""
        self._started = datetime.now(timezone.utc).isoformat(timespec="seconds")
        self._examiner.begin()
        self._simulation.start(self._recorder.usage.watch.asked.clear)
        if self._eager is not None:
            self._eager.start()
        self._recorder.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop watching; examine the step that was open."""
        try:
            with self.originals:
                self._recorder.stop()
        finally:  # outside the originals, which would put back what this takes away
            self._simulation.stop()
            if self._eager is not None:
                self._eager.stop()
                summary.say_eager(self._recorder, self._eager.asked)

    def so_far(self) -> Diagnosis:
        """Return the diagnosis of the steps closed so far, while the run goes on."""
        with self.originals, self._recorder.quiet():
            return self._diagnosis(Outcome(OutcomeKind.FINISHED), final=False)

    @property
    def steps(self) -> int:
        """Steps closed so far."""
        return len(self._recorder.book.steps)

    def step_ends(self) -> None:
        """The script says that its step is over."""
        self._recorder.step_ends()

    def adopt(self, model: nn.Module) -> None:
        """Name the modules of a model before it is called."""
        self._recorder.modules.adopt(model)

    def finish(self, outcome: Outcome, exception: BaseException | None = None) -> Diagnosis:
        """Return the diagnosis of the whole run."""
        with self.originals, self._simulation.arithmetic():
            return self._diagnosis(self._with_raiser(outcome, exception), final=True)

    def bundle(self, diagnosis: Diagnosis) -> Bundle:
        """Return the leading finding's step, for elsewhere; raises BundleError no-step-kept."""
        keeper = self._examiner.keeper or BundleKeeper()
        return keeper.bundle(diagnosis.run, diagnosis.findings, self._examiner.shelf.refused)

    # -- while it runs ---------------------------------------------------------------------------

    def _before_step(self, done: int) -> None:
        limit = self._options.steps
        if limit is not None and done >= limit:
            raise StopScript
        if self._options.before_step is not None:
            self._options.before_step()

    def _wants_tape(self, step: int) -> bool:
        wants, seen = self._options.wants_tape, self._recorder
        return wants is None or wants(step, trouble_of(seen, step - 1) | signs_of(seen, step - 1))

    def _on_tape(self, recorder: Recorder, roll: Roll) -> None:
        with self.originals:
            self._examine(recorder, roll)

    def _examine(self, recorder: Recorder, roll: Roll) -> None:
        began = time.perf_counter()
        try:
            if self._examiner.take(recorder, roll):
                self._tell()
            elif not roll.ops and self._hurt(recorder):
                self._tell(whatever_it_holds=True)
            self._examiner.keep_refused(recorder, roll)
        except Exception as error:  # noqa: BLE001 - a fault of ours must not reach the script
            recorder.caution(
                "examination-failed",
                f"step {roll.step} could not be examined: {type(error).__name__}: {error}",
            )
        finally:
            self._progress.over()
            self._examiner.seconds += time.perf_counter() - began

    def _hurt(self, recorder: Recorder) -> bool:
        """Tell whether non-finite gradients reached an update in a step that was not taped."""
        last = recorder.survey.last
        trouble = trouble_of(recorder, last.step)
        hurt = [path for path, role in last.nonfinite if role.endswith(".grad")]
        if not hurt or FOUND_INF in trouble or not recorder.steps.attempted:
            return False
        recorder.caution(
            "trouble-not-taped",
            f"step {last.step}, which was not taped: the gradients of {len(hurt)} parameters were "
            f"inf or NaN when the optimizer took them, the first in {hurt[0] or 'the root'!r}; "
            "tape every step, `with fp16doctor.profile(model, optimizer, every_step=True) as prof:`"
            ", or run the script under `fp16doctor scan`",
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
        if exception is None or last is None or last.error is not exception:
            self._examiner.shelf.refused = None
            return outcome
        from fp16doctor.record.tape_builder import site_of

        return replace(outcome, raised_by=site_of(self._recorder, last.op, last.step))

    def _diagnosis(self, outcome: Outcome, *, final: bool) -> Diagnosis:
        recording = Recording(
            run=summary.run_info(self._recorder, self._script, self._argv, outcome, self._times()),
            steps=tuple(self._recorder.book.steps),
            ranges=self._recorder.survey.ranges(),
            warnings=summary.warnings(self._recorder),
            usage=summary.usage_facts(self._recorder),
        )
        seen = Observations(
            recording,
            tuple(self._examiner.traces),
            final,
            updates=self._examiner.ledger.found(),
        )
        findings, checks = diagnose(seen)
        bench, beyond = (self._bench(), self._beyond()) if final else (None, None)
        if bench is not None:
            bench.told = partial(self._progress.trying, findings, bench)
        trials = Trials(bench, findings, seen, self._recorder.caution, beyond)
        prescriptions, recommendation = trials.plan(self._refused())
        if final:
            prescriptions, findings, recommendation = in_own_terms(
                SeenRun(seen, findings, self._options.style),
                prescriptions,
                recommendation,
                self._own_script(),
                self._recorder.caution,
            )
        foretold = trials.outlook()
        blame, error_budget = trials.blame()
        trials.say_what_is_left(self._options.budget_s)
        return Diagnosis(
            run=recording.run,
            formats=summary.limits(),
            steps=recording.steps,
            checks=checks,
            findings=findings,
            prescriptions=prescriptions,
            recommendation=recommendation,
            replay=summary.replay_summary(self._examiner.traces),
            ranges=recording.ranges,
            warnings=summary.warnings(self._recorder),
            outlook=foretold,
            blame=blame,
            error_budget=error_budget,
            trajectory=trajectory(bench, recording.steps),
            gradient_scales=gradient_scales(
                recording.ranges, prescriptions, by_hand=scale_by_hand(bench, recording.steps)
            ),
            acceptance=CRITERIA,
            context=contexts_of(findings, self._lines.around),
            start=self._options.start,
        )

    def _own_script(self) -> OwnScript:
        modules, folder = self._recorder.modules, script_root(self._script)
        model, roots = model_name(modules.roots()), own_roots(modules)
        return OwnScript(self._text, self._lines, folder, model, self._options.sources, roots)

    def _times(self) -> summary.Times:
        return self._started, self._examiner.elapsed, self._examiner.seconds

    def _refused(self) -> Tape | None:
        """Return the step up to the call that ended the script, where cures may be tried on it."""
        return self._examiner.shelf.refused if self._options.budget_s > 0 else None

    def _bench(self) -> Bench | None:
        """Return the kept steps, ready for trials; None where none was kept."""
        tapes, options = self._examiner.shelf.tapes(), self._options
        if not tapes or options.budget_s <= 0:
            return None
        return Bench(tapes, options.budget_s, options.tolerance, self._examiner.shelf.window())

    def _beyond(self) -> Bench | None:
        """Return the kept steps that fp32 does not cure; None where no change is to be tried."""
        tapes, budget_s = self._examiner.shelf.beyond_formats(), self._options.budget_s
        return Bench(tapes, budget_s, self._options.tolerance) if tapes and budget_s > 0 else None
