"""Renders the page: template lookup, environment, atomic write.

Must not word anything: every string comes from the view.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from fp16doctor.errors import OutputError
from fp16doctor.report.view import build_view
from fp16doctor.schema.diagnosis import Diagnosis

_PACKAGE = Path(__file__).resolve().parent.parent
_CODE_SPAN = re.compile(r"`([^`]+)`")


def render_html(diagnosis: Diagnosis, *, pictures: bool = True) -> str:
    """Return one self-contained page: no request leaves it, equal bytes each time.

    ``pictures=False`` leaves out what matplotlib draws, so that it is not imported.

    Its few scripts add a slider and buttons to copy; without them it says the same.

    Raises:
        OutputError: the templates are not installed.
    """
    return (
        _environment()
        .get_template("report.html.j2")
        .render(view=build_view(diagnosis, pictures=pictures))
    )


def write_atomically(path: Path, text: str) -> None:
    """Write UTF-8 to a temporary neighbour and rename it, so that no reader sees half a file.

    A device or a pipe is written to directly: renaming over it would replace it.

    Raises:
        OutputError: the target cannot be written; an existing file stays as it was.
    """
    target = Path(os.path.realpath(path))  # a link stays a link
    data = text.encode("utf-8", "backslashreplace")
    try:
        if target.exists() and not target.is_file():
            target.write_bytes(data)
        else:
            _replace(target, data)
    except OSError as error:
        message = f"cannot write '{path}': {error.strerror}; name another file with -o"
        raise OutputError(message, "unwritable-output") from error


def _replace(target: Path, data: bytes) -> None:
    # The token keeps two writers apart; mkstemp would make the report unreadable to others.
    temporary = target.parent / f".fp16doctor-{secrets.token_hex(6)}.tmp"
    try:
        temporary.write_bytes(data)
        os.replace(temporary, target)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def template_folder() -> Path:
    """The installed templates, else those of a checkout.

    Raises:
        OutputError: neither exists.
    """
    installed = _PACKAGE / "report" / "templates"
    checkout = _PACKAGE.parent / "reports" / "templates"
    for folder in (installed, checkout):
        if folder.is_dir():
            return folder
    message = f"no report templates: neither '{installed}' nor '{checkout}' is a folder"
    raise OutputError(f"{message}; install fp16doctor again", "no-templates")


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(template_folder()),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["prose"] = _prose
    environment.filters["safe_json"] = _safe_json
    return environment


def _prose(text: str) -> Markup:
    """Escape, then show what stands between backticks as code."""
    return Markup(_CODE_SPAN.sub(r"<code>\1</code>", str(escape(text))))


def _safe_json(text: str) -> Markup:
    """Spell what could end a script element as JSON's own escapes."""
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return Markup(text)
