"""What is tried on the kept steps once the script has ended; none of it may cost the findings.

Must not know how a cure is tried (``prescribe``) or when steps are kept (``examiner``).
"""

from __future__ import annotations

from collections.abc import Callable

from fp16doctor.diagnose.rule import Observations
from fp16doctor.pipeline.blaming import blamed
from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.outlook import outlook
from fp16doctor.prescribe.plan import plan
from fp16doctor.schema.blame import BlamedOp, ErrorBudget
from fp16doctor.schema.diagnosis import FormatOutlook
from fp16doctor.schema.finding import Finding, Severity
from fp16doctor.schema.prescription import Prescription, Recommendation
from fp16doctor.schema.tape import Tape

Shares = tuple[tuple[BlamedOp, ...], ErrorBudget | None]


class Trials:
    """Cures, outlook and error budget of one run; a part that fails is a caution."""

    def __init__(
        self,
        bench: Bench | None,  # None: no step was kept, or nothing may be tried
        findings: tuple[Finding, ...],
        seen: Observations,
        caution: Callable[[str, str], None],
        beyond: Bench | None = None,  # steps that are not finite in fp32 either
    ) -> None:
        self._beyond = beyond
        self._bench, self._findings, self._seen, self._caution = bench, findings, seen, caution
        self._demanded = any(f.severity is not Severity.NOTE for f in findings)

    def plan(self, refused: Tape | None) -> tuple[tuple[Prescription, ...], Recommendation]:
        """Return the prescriptions and the answer; untried ones where the trials failed."""
        lost = any(step.lost for step in self._seen.recording.steps)
        updates, run = self._seen.updates, self._seen.recording.run
        try:
            return plan(
                self._findings,
                self._bench,
                updates,
                lost=lost,
                refused=refused,
                run=run,
                beyond=self._beyond,
            )
        except Exception as error:  # noqa: BLE001 - the findings must not be lost with the cures
            self._failed("trials-failed", "cures could not be tried", error)
            return plan(self._findings, None, updates, lost=lost, run=run)

    def outlook(self) -> dict[str, FormatOutlook]:
        """Return what other formats would do to the run."""
        bench = self._bench
        if bench is None:
            return {}
        try:
            with bench.timing():
                return outlook(bench.tapes, lambda: bench.exhausted)
        except Exception as error:  # noqa: BLE001 - an extra that must not cost the findings
            self._failed("outlook-failed", "other formats were not tried", error)
            return {}

    def blame(self) -> Shares:
        """Return which ops make the error of one step."""
        bench = self._bench
        if bench is None:
            return (), None
        try:
            with bench.timing():
                return blamed(bench.tapes, self._seen.traces, self._findings, bench.left_s)
        except Exception as error:  # noqa: BLE001 - an extra that must not cost the findings
            self._failed("blame-failed", "errors were not shared out", error)
            return (), None

    def say_what_is_left(self, budget_s: float) -> None:
        """Caution about what the time budget left untried."""
        if budget_s <= 0 and self._demanded:
            self._caution(
                "no-time-budget",
                f"no cure was tried: a time budget of {budget_s:g} s has no room for it; a larger "
                "--budget tries them",
            )
        if self._bench is not None and self._bench.untried:
            self._caution(
                "time-budget-spent",
                f"the time budget of {budget_s:g} s was spent before all cures were tried; left "
                f"untried: {', '.join(self._bench.untried)}; a larger --budget tries them",
            )

    def _failed(self, slug: str, what: str, error: Exception) -> None:
        self._caution(slug, f"{what}: {type(error).__name__}: {error}")
