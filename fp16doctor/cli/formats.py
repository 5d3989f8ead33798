"""``--format``: findings as text for people, as JSON, or as GitHub's annotations.

Must not know how any of them is spelled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from fp16doctor.cli.outputs import Output
from fp16doctor.errors import UsageError

if TYPE_CHECKING:
    from fp16doctor.report.view_model import PasteView
    from fp16doctor.schema.diagnosis import Diagnosis

Command = TypeVar("Command", bound=Callable[..., Any])


def format_option(*, paste: bool = False) -> Callable[[Command], Command]:
    """The option, which a command takes as ``form``; ``paste`` adds the cure's text to it."""
    more = " paste: the text of the cure alone, a diff for patch -p1 where it is one."
    return click.option(
        "--format",
        "form",
        type=click.Choice(["text", "json", "github", *(["paste"] if paste else [])]),
        default="text",
        show_default=True,
        help="How findings are told: text on standard error; in its place, on standard output, the"
        " diagnosis as JSON, or a line a finding that GitHub shows at the line of the script."
        + (more if paste else ""),
    )


def stdout_taken(form: str, *outputs: Output) -> None:
    """Refuse two things on standard output.

    Raises:
        UsageError: same-output.
    """
    if form != "text" and any(output.path is None for output in outputs):
        raise UsageError(
            f"--format {form} and an output called - both go to standard output; name a file",
            "same-output",
        )


def written(form: str, diagnosis: Diagnosis) -> str:
    """The text for standard output; "" for ``text``, which goes to standard error."""
    if form == "json":
        from fp16doctor.schema.codec import to_json

        return to_json(diagnosis)
    if form == "github":
        from fp16doctor.report.annotations import diagnosis_github

        return diagnosis_github(diagnosis)
    if form == "paste":
        from fp16doctor.report.answer import answer

        return "\n".join(_to_paste(p) for p in answer(diagnosis).pastes)
    return ""


def _to_paste(paste: PasteView) -> str:
    """The text as it stands; patch passes over a line in front of a diff."""
    doubt = f"# {paste.unproved}: {paste.title}\n" if paste.unproved else ""
    return doubt + paste.change.rstrip("\n") + "\n"
