"""Runs a script again under the recommended cure, watched, with its writes sent elsewhere.

It is what the child process of a confirming run does. Must not know what is made of it
(``confirm``).
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import TracebackType

from fp16doctor.apply.redirect import Redirect
from fp16doctor.apply.redirect_calls import redirected
from fp16doctor.apply.script_patch import ScriptPatch, patch_for
from fp16doctor.errors import ApplyError
from fp16doctor.pipeline.options import ScanOptions
from fp16doctor.pipeline.session import Session, script_root
from fp16doctor.record.script import PreparedScript, ScriptRun
from fp16doctor.record.simulation import simulation_for
from fp16doctor.record.source_lines import SourceLines
from fp16doctor.schema.confirmation import Confirmation, ConfirmVerdict
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.recording import StepInfo


@dataclass(frozen=True, slots=True)
class Rerun:
    """What a confirming run is asked for."""

    before: Diagnosis  # of the script as it ran; its recommendation is put on
    steps: int | None  # optimizer attempts after which it is stopped
    store: str  # folder that takes what the script writes
    device: str = "auto"  # as --device says
    compiled: bool = False  # as --compiled says


def rerun(script: PreparedScript, asked: Rerun) -> Diagnosis | None:
    """Return the diagnosis of the script under the cure; None in a process that it forked.

    Where the cure could not be put on, the diagnosis says so in ``confirm``; where that is clear
    from the start nothing is run, and it is the one before.
    """
    process = os.getpid()
    lines = SourceLines(script_root(asked.before.run.script))
    try:
        patch = patch_for(asked.before, lines, script.source)
    except ApplyError as error:
        refused = Confirmation(ConfirmVerdict.NOT_RUN, error.message)
        return replace(asked.before, confirm=refused)
    session = Session(
        ScanOptions(
            steps=asked.steps,
            budget_s=0.0,
            eager=not asked.compiled,
            simulate=simulation_for(asked.device, script),
        ),
        asked.before.run.script,
        asked.before.run.argv,
    )
    redirect = Redirect(os.getcwd(), asked.store)
    # Around all of it: what is replaced in libraries has to be there when it is put back, and
    # while a run is watched the script's own replacements make way.
    with patch.outer(), redirected(redirect):
        run = script.with_tree(patch.tree).run(_Watch(session, patch))
    if os.getpid() != process:
        return None
    found = session.finish(run.outcome, run.exception)
    reason = _not_put_on(run, patch, found)
    verdict = ConfirmVerdict.NOT_RUN if reason else ConfirmVerdict.HELD
    said = Confirmation(verdict, reason, redirected=redirect.written())
    return replace(found, confirm=said, steps=_own_losses(found.steps, patch.loss_factor))


def _own_losses(steps: tuple[StepInfo, ...], factor: float) -> tuple[StepInfo, ...]:
    """Return the steps with the script's own losses, not what backward started from."""
    return tuple(s if s.loss is None else replace(s, loss=s.loss / factor) for s in steps)


def _not_put_on(run: ScriptRun, patch: ScriptPatch, found: Diagnosis) -> str:
    """Return why the run was not one under the cure, "" where it was."""
    if isinstance(run.exception, ApplyError):
        return run.exception.message
    missed = patch.missed()
    if missed:
        return f"the run never came by {', '.join(missed)}"
    if patch.scaling and patch.scaling != found.run.loss_scaling:
        return f"the changed script scales its loss otherwise ({found.run.loss_scaling})"
    return ""


class _Watch:
    """The session, and the cure's modes inside it."""

    def __init__(self, session: Session, patch: ScriptPatch) -> None:
        self._contexts = (session, patch.inner())
        self._stack = ExitStack()

    def __enter__(self) -> None:
        with ExitStack() as stack:
            for context in self._contexts:
                stack.enter_context(context)
            self._stack = stack.pop_all()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
