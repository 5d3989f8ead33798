"""``fp16doctor.profile``: watches a training loop from within the script, in torch.profiler's way.

Must not know how steps are recorded or examined (``pipeline``), nor what a report looks like.
"""

from __future__ import annotations

import html
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import torch
from torch import nn

from fp16doctor.errors import Fp16DoctorError, UsageError
from fp16doctor.pipeline import ScanOptions, Session
from fp16doctor.record import profile_arguments as arguments
from fp16doctor.record.script import outcome_of
from fp16doctor.record.step_plan import StepPlan
from fp16doctor.record.survey_plan import EVERY_FULL, SurveyPlan
from fp16doctor.report.in_short import counted_steps, told_in_short
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.finding import Severity

Schedule = Callable[[int], Any]
OnTrouble = Literal["record", "report", "raise"] | Callable[[Diagnosis], Any]

INTERACTIVE = "interactive session"  # in place of a script's name

_running: list[profile] = []  # at most one


class TroubleError(Fp16DoctorError):
    """Raised into the loop under ``on_trouble="raise"``; ``diagnosis`` says what was found."""

    def __init__(self, diagnosis: Diagnosis) -> None:
        self.diagnosis = diagnosis
        found = next((f for f in diagnosis.findings if f.severity is Severity.ERROR), None)
        what = f"{found.code} {found.name}: {found.what}" if found else _last_warning(diagnosis)
        self.what = what
        super().__init__(
            f"training was stopped, as on_trouble='raise' asks: {what}; see `diagnosis`",
            "trouble",
        )


class profile:  # named like torch.profiler's, which is used the same way
    """Watch a training loop.

    ::

        with fp16doctor.profile(model, optimizer) as prof:
            for batch in batches:
                ...
        print(prof.summary())
        prof.report("run.html")

    Every step is surveyed: the largest magnitude, inf and NaN of each module's outputs, of the
    gradients with respect to them and of the parameters' gradients. The first steps and every
    ``every``-th get full statistics (parameters and their gradients at most every tenth). A few
    steps are taped op by op and examined: the first three, every ``10 * every``-th, the ones after
    a step whose values come near their format's maximum, and the one after a step with something
    new that is not finite. ``every_step=True`` tapes them all, as ``fp16doctor scan`` does.

    Args:
        model: its modules are named as in its ``state_dict``, and only they are surveyed. Without
            it every module that is called counts.
        optimizer: checked for being one, or a list of them; every optimizer's steps are seen by
            themselves.
        every_step: tape every step, several times slower, so that a fault is met wherever it is.
        every: period of full statistics, in steps.
        schedule: in place of ``every``, a function from step to action like that of
            ``torch.profiler.schedule``: NONE (nothing), WARMUP (screen), RECORD (full statistics),
            RECORD_AND_SAVE (and a tape).
        modules: patterns of module paths, ``"blocks.*.mlp"``; others are not surveyed.
        on_trouble: what to do at the first error found, or when non-finite gradients reach an
            update: "record" it only, "report" it on stderr (and in ``output``), "raise" a
            TroubleError in front of the next step, or call a function with the Diagnosis.
        output: page (.html) or document (.json) written at the end, also after an exception.

    Raises:
        UsageError: bad-argument.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
        *,
        every_step: bool = False,
        every: int = EVERY_FULL,
        schedule: Schedule | None = None,
        modules: str | Iterable[str] | None = None,
        on_trouble: OnTrouble = "record",
        output: str | os.PathLike[str] | None = None,
    ) -> None:
        arguments.check_model(model, optimizer)
        arguments.check_optimizer(optimizer)
        check = arguments.check
        positive = isinstance(every, int) and not isinstance(every, bool) and every > 0
        check("every", every, positive, "a positive number of steps")
        check("schedule", schedule, schedule is None or callable(schedule), "a function of a step")
        arguments.check_every_step(every_step, schedule)
        known = callable(on_trouble) or on_trouble in arguments.ON_TROUBLE
        check("on_trouble", on_trouble, known, f"a function or one of {arguments.ON_TROUBLE}")
        self._model, self._on_trouble = model, on_trouble
        self._output = None if output is None else Path(output).absolute()
        arguments.check_output(self._output)
        self._plan = StepPlan(every, schedule, every_step=every_step)
        self._wanted = arguments.wanted_modules(model, modules)
        self._session: Session | None = None
        self._diagnosis: Diagnosis | None = None
        self._failure: Exception | None = None
        self._raising: Exception | None = None

    # -- around the loop -------------------------------------------------------------------------

    def __enter__(self) -> profile:
        """Start watching the calling thread.

        Raises:
            UsageError: profile-running (another one is active), profile-used (this one was).
        """
        if _running:
            raise UsageError(
                "fp16doctor.profile was entered while another one is watching; leave that one "
                "first: one watches every module and optimizer of the thread",
                "profile-running",
            )
        if self._session is not None:
            raise UsageError(
                "this fp16doctor.profile was entered a second time; make a new one for each loop, "
                "its diagnosis speaks of one run",
                "profile-used",
            )
        self._session = self._new_session()
        if self._model is not None:
            self._session.adopt(self._model)
        self._session.__enter__()
        _running.append(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop watching, leave no hook behind, diagnose; the loop's exception goes on."""
        session = self._session
        assert session is not None, "entered before"
        _running.remove(self)
        session.__exit__(kind, value, trace)
        try:
            self._diagnosis = session.finish(outcome_of(value, os.getcwd()), value)
            self._write(self._diagnosis)
        except Exception as error:  # noqa: BLE001 - the loop's own result must outlive our faults
            self._failure = error
            _warn(f"fp16doctor could not finish: {type(error).__name__}: {error}  [profile-failed]")
        raising, self._raising = self._raising, None
        if value is None and raising is not None:
            raise raising

    def step(self) -> None:
        """Say that a training step is over; only loops without ``torch.optim`` need it."""
        if self._session is not None and self in _running:
            self._session.step_ends()

    # -- what was found --------------------------------------------------------------------------

    @property
    def diagnosis(self) -> Diagnosis:
        """The Diagnosis; inside the loop that of the steps closed so far.

        Raises:
            UsageError: profile-not-entered. Fp16DoctorError: profile-failed.
        """
        if self._diagnosis is not None:
            return self._diagnosis
        if self._failure is not None:
            raise Fp16DoctorError(
                "there is no diagnosis, since fp16doctor itself failed at the end of the loop: "
                f"{type(self._failure).__name__}: {self._failure}",
                "profile-failed",
            ) from self._failure
        if self._session is None:
            raise UsageError(
                "there is no diagnosis of a profile that was never entered; put the training loop "
                "inside `with fp16doctor.profile() as prof:`",
                "profile-not-entered",
            )
        return self._session.so_far()

    def report(self, path: str | os.PathLike[str]) -> Path:
        """Write the page, or the document if the name ends in .json; return where it is.

        Raises:
            OutputError: it cannot be written there.
        """
        return _write(Path(path), self.diagnosis)

    def summary(self, *, width: int = 100) -> str:
        """Return the findings as text, as ``fp16doctor scan`` prints them."""
        from fp16doctor.report.terminal import render_terminal

        return render_terminal(
            self.diagnosis, color=False, width=width, outputs=None, verbose=False
        )

    def __repr__(self) -> str:
        """Say in one line how far it is, without examining anything."""
        model = "every model" if self._model is None else type(self._model).__name__
        return f"<fp16doctor.profile of {model}: {self._state()}>"

    def _state(self) -> str:
        if self._session is None:
            return "not entered"
        steps = counted_steps(self._session.steps)
        if self._failure is not None:
            return f"{steps}; fp16doctor itself failed: {type(self._failure).__name__}"
        if self._diagnosis is None:
            return f"watching, {steps} so far"
        return f"{steps}; {told_in_short(self._diagnosis)}"

    def _repr_html_(self) -> str | None:
        """Return the page in a frame, for notebooks; None where nothing was watched."""
        if self._session is None or self._failure is not None:
            return None
        from fp16doctor.report.html import render_html

        page = html.escape(render_html(self.diagnosis), quote=True)
        return f'<iframe srcdoc="{page}" style="width:100%;height:40em;border:0"></iframe>'

    # -- inside ----------------------------------------------------------------------------------

    def _new_session(self) -> Session:
        options = ScanOptions(
            survey=SurveyPlan(self._plan.look, self._wanted),
            wants_tape=self._plan.wants_tape,
            before_step=self._before_step,
        )
        # In a notebook argv is that of the kernel, whose __main__ is the cells and has no file.
        in_script = sys.argv and sys.argv[0] and hasattr(sys.modules["__main__"], "__file__")
        script, *argv = sys.argv if in_script else [INTERACTIVE]
        return Session(options, script, tuple(argv), self._trouble)

    def _before_step(self) -> None:
        raising, self._raising = self._raising, None
        if raising is not None:
            raise raising

    def _trouble(self, diagnosis: Diagnosis) -> None:
        if self._on_trouble == "raise":
            self._raising = TroubleError(diagnosis)
        elif self._on_trouble == "report":
            _warn(f"fp16doctor: {TroubleError(diagnosis).what}  [trouble]")
            self._write(diagnosis)
        elif callable(self._on_trouble):
            try:
                self._on_trouble(diagnosis)
            except Exception as error:  # noqa: BLE001 - raised into the loop by _before_step
                self._raising = error

    def _write(self, diagnosis: Diagnosis) -> None:
        if self._output is not None:
            _write(self._output, diagnosis)


def _write(path: Path, diagnosis: Diagnosis) -> Path:
    from fp16doctor.report.html import render_html, write_atomically
    from fp16doctor.schema.codec import to_json

    render = to_json if path.suffix.lower() == ".json" else render_html
    write_atomically(path, render(diagnosis))
    return path


def _last_warning(diagnosis: Diagnosis) -> str:
    return diagnosis.warnings[-1].message if diagnosis.warnings else "non-finite gradients"


def _warn(text: str) -> None:
    warnings.warn(text, RuntimeWarning, stacklevel=3)
