"""What a scan says at its end: the findings in the form asked for, and why there are none.

Must not know the order of things in a scan (``scanning``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fp16doctor.cli.formats import written
from fp16doctor.cli.headline import Headline
from fp16doctor.cli.request import Request
from fp16doctor.cli.voice import Voice

if TYPE_CHECKING:
    from fp16doctor.schema.diagnosis import Diagnosis

# What a report of a run without steps says of it.
_UNTRAINED = ("no-steps", "other-thread", "other-processes", "recorder-stopped")


def told(diagnosis: Diagnosis, request: Request, voice: Voice, *, outputs_written: bool) -> str:
    """Render the findings: for people, or for the program that reads standard output."""
    from fp16doctor.report.terminal import render_terminal

    if request.form != "text":
        return written(request.form, diagnosis)
    outputs = (request.page.shown, request.document.shown)
    return render_terminal(
        diagnosis,
        color=voice.color,
        width=voice.width,
        outputs=outputs if outputs_written else None,
        verbose=voice.verbose,
    )


def tell(diagnosis: Diagnosis, text: str, request: Request, voice: Voice, first: Headline) -> None:
    """Put the rendered findings where they belong, and say what has to be said beside them.

    Raises:
        OutputError: standard output took no more.
    """
    if request.form == "text":
        voice.say(text.rstrip("\n"))
    else:
        request.stdout.write(text)
    first.at_the_end(diagnosis)
    if not diagnosis.steps and not any(f"[{s}]" in text for s in _UNTRAINED):
        voice.say(
            f"fp16doctor: no optimizer step was seen in {request.target.name!r} (ran"
            f" {diagnosis.run.duration_s:.1f} s); scan the script that trains, with arguments"
            " that let it reach its training loop  [no-steps]"
        )
