"""The order of things in one scan: check, run the script, write, show its end, report, exit status.

Must not know how a run is examined (``pipeline``) or what a report looks like (``report``).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from fp16doctor.cli import statuses
from fp16doctor.cli.bundles import KeptBundle
from fp16doctor.cli.headline import Headline
from fp16doctor.cli.import_path import import_path
from fp16doctor.cli.misplaced import misplaced, reads_command_line
from fp16doctor.cli.outputs import Output
from fp16doctor.cli.request import Request
from fp16doctor.cli.saves import warn_of_saves
from fp16doctor.cli.telling import tell, told
from fp16doctor.cli.voice import Voice
from fp16doctor.errors import Fp16DoctorError, OutputError
from fp16doctor.record.script import PreparedScript, ScriptRun, prepare, show_exception
from fp16doctor.record.start import Start, scan_start, start_of
from fp16doctor.schema.recording import Outcome

if TYPE_CHECKING:
    from click import Parameter

    from fp16doctor.pipeline import Session
    from fp16doctor.schema.diagnosis import Diagnosis

Result = TypeVar("Result")


def _start_of(request: Request) -> Start:
    return start_of(request.target, request.steps, request.device, compiled=request.compiled)


def run_scan(request: Request, voice: Voice, options: Sequence[Parameter] = ()) -> int:
    """Run the script under observation and report.

    Args:
        request: what is run, and where the answer goes.
        voice: of fp16doctor itself.
        options: of the command, for a hint on those that went to the script.

    Returns:
        The exit status: the script's own if it is not 0, else 130 (Ctrl-C while examining),
        4 (fp16doctor failed), 3 (``fail_on`` reached) or 0.

    Raises:
        Fp16DoctorError: the script was not started; the message says why.
    """
    for output in request.outputs:
        output.check()
    start = _start_of(request) if request.confirm else None
    scan = _Scan(request, voice, start)
    prepared = prepare(request.target)
    if request.steps is not None:
        warn_of_saves(prepared, request.steps, voice)
    hint = misplaced(prepared, options)
    if hint and not reads_command_line(prepared):
        voice.say(f"fp16doctor: {hint}")
        hint = ""
    return scan.run(prepared, hint)


class _Scan:
    """One scan on its way: what has failed so far, and what is written."""

    def __init__(self, request: Request, voice: Voice, start: Start | None) -> None:
        self._request, self._start = request, start
        self._voice = voice
        self._process = os.getpid()
        self._search_path = list(sys.path)  # before the script's folder is put in front
        self._running = True  # the script
        self._failed = False
        self._interrupted = False
        self._headline = Headline(voice)
        self._kept = KeptBundle(request.bundle)

    def run(self, prepared: PreparedScript, hint: str = "") -> int:
        """Everything from the start of the script to the exit status.

        ``hint`` is said where the script refuses its arguments.
        """
        progress = self._voice.progress
        session = self._session(prepared)
        progress.script_runs = True
        try:
            run = prepared.run(session)
        finally:
            progress.clear()
            progress.script_runs = False
        self._running, self._failed = False, False  # what failed early is tried again now
        if os.getpid() != self._process:  # a child the script forked: its parent reports
            return show_exception(run)
        with session.originals:
            diagnosis = self._keep(session, self._examine(session, run))
            written = diagnosis is not None and self._write(diagnosis)
        progress.clear()
        _flush_stdout()
        status = show_exception(run)
        if hint and status == statuses.USAGE and isinstance(run.exception, SystemExit):
            self._voice.say(f"fp16doctor: {hint}")
        if diagnosis is not None and self._start is not None:
            diagnosis = self._confirm(diagnosis, self._start)
            written = self._write(diagnosis)
        if diagnosis is not None:
            with session.originals:
                self._tell(diagnosis, outputs_written=written)
                self._kept.tell(self._voice)
        return self._status(status, diagnosis)

    def _session(self, prepared: PreparedScript) -> Session:
        try:
            from fp16doctor.pipeline import ScanOptions, Session
            from fp16doctor.record.simulation import simulation_for
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise Fp16DoctorError(
                f"torch is not installed for {sys.executable!r}, so no training script can run;"
                " install it there, or run fp16doctor with the Python that has it",
                "no-torch",
            ) from error
        request = self._request
        return Session(
            ScanOptions(
                steps=request.steps,
                sources=request.sources,
                budget_s=request.budget_s,
                tolerance=request.tolerance,
                keeps_bundle=request.bundle is not None,
                style=request.style,
                eager=not request.compiled,
                simulate=simulation_for(request.device, prepared),
                progress=self._voice.progress.tell,
                start=scan_start(prepared, request.steps, request.device),
            ),
            request.target.name,
            request.target.argv,
            self._on_first_error,
        )

    def _on_first_error(self, diagnosis: Diagnosis) -> None:
        """Write what is known so far: the script may yet be killed, or run for days."""
        if os.getpid() != self._process:
            return
        request = self._request
        written = self._write(diagnosis, early=True)
        where = (request.page if request.page.path else request.document).shown
        self._headline.at_once(diagnosis, where if written else "")

    def _examine(self, session: Session, run: ScriptRun) -> Diagnosis | None:
        if run.watch_failure is not None:
            self._failed = True
            self._voice.fault("ending the observation", run.watch_failure)
        outcome = run.outcome if self._request.sources else _without_source(run.outcome)
        return self._guarded("examining the run", lambda: session.finish(outcome, run.exception))

    def _confirm(self, diagnosis: Diagnosis, start: Start) -> Diagnosis:
        """Have the script run again under the recommended cure; as it was where that fails."""
        from fp16doctor.pipeline.confirm import confirm, worth_confirming

        if not worth_confirming(diagnosis):
            return diagnosis
        self._voice.say(
            "fp16doctor: the script runs again under the recommended cure; files that compiled"
            " code or another folder takes, and what goes over the network, are written again"
        )
        found = self._guarded("confirming the cure", lambda: confirm(diagnosis, start))
        return diagnosis if found is None else found

    def _write(self, diagnosis: Diagnosis, *, early: bool = False) -> bool:
        """Write both files, each whatever becomes of the other; True if both are in place."""
        done = self._write_one(self._request.document, "the JSON", lambda: _json(diagnosis))
        if early and self._request.page.path is None:  # stdout is the script's until it ends
            return done
        page = self._request.page
        return self._write_one(page, "the page", lambda: _html(diagnosis, early=early)) and done

    def _write_one(self, output: Output, what: str, render: Callable[[], str]) -> bool:
        self._voice.progress.tell(f"rendering {what}")
        text = self._guarded(f"rendering {what}", render)
        self._voice.progress.clear()
        if text is None:
            return False
        try:
            output.write(text)
        except OutputError as error:
            self._failed = True
            self._voice.warn(str(error))
            return False
        return True

    def _keep(self, session: Session, diagnosis: Diagnosis | None) -> Diagnosis | None:
        """Write the bundle that is asked for; the diagnosis names it."""
        if diagnosis is None or self._request.bundle is None:
            return diagnosis
        self._guarded("writing the bundle", lambda: self._kept.write(session, diagnosis))
        self._failed = self._failed or self._kept.failed
        return replace(diagnosis, bundle=self._kept.file)

    def _tell(self, diagnosis: Diagnosis, *, outputs_written: bool) -> None:
        request, voice = self._request, self._voice
        text = self._guarded(
            "rendering the findings for the terminal",
            lambda: told(diagnosis, request, voice, outputs_written=outputs_written),
        )
        if text is None:
            return
        try:
            tell(diagnosis, text, request, voice, self._headline)
        except OutputError as error:
            self._failed = True
            voice.warn(str(error))

    def _guarded(self, what: str, action: Callable[[], Result]) -> Result | None:
        """The isolation point between our own faults and the script's result."""
        if self._interrupted:
            return None
        try:
            with import_path(self._search_path):
                return action()
        except KeyboardInterrupt:
            if self._running:  # it was meant for the script
                raise
            self._interrupted = True
            self._voice.warn(f"{what} was stopped by Ctrl-C  [interrupted]")
        except Exception as error:  # noqa: BLE001  the script's result must outlive our faults
            self._failed = True
            self._voice.fault(what, error, kept="the script's own result is unaffected")
        return None

    def _status(self, script: int, diagnosis: Diagnosis | None) -> int:
        if script:
            return script
        if self._interrupted:
            return statuses.INTERRUPTED
        if self._failed or diagnosis is None:
            return statuses.FAILED
        return statuses.status_of(diagnosis, self._request.fail_on, self._voice.warn)


def _html(diagnosis: Diagnosis, *, early: bool) -> str:
    from fp16doctor.report.html import render_html

    return render_html(diagnosis, pictures=not early)  # the script still runs: nothing is imported


def _json(diagnosis: Diagnosis) -> str:
    from fp16doctor.schema.codec import to_json

    return to_json(diagnosis)


def _without_source(outcome: Outcome) -> Outcome:
    if outcome.source is None:
        return outcome
    return replace(outcome, source=replace(outcome.source, text=None))


def _flush_stdout() -> None:
    """The script's output comes before the report where both go to one terminal."""
    try:
        sys.stdout.flush()
    except (AttributeError, OSError, ValueError):  # None, a closed pipe, closed by the script
        return
