"""Gives what is to be pasted the place where it goes: a diff of the script wherever it shows one.

Must not know how a cure was found, nor how any one kind of text is placed.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace

from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.pipeline.applicable import text_of
from fp16doctor.pipeline.own_code import placed
from fp16doctor.pipeline.own_device import with_own_device
from fp16doctor.pipeline.own_diffs import as_diff
from fp16doctor.pipeline.own_eps import in_call, in_optimizer
from fp16doctor.pipeline.own_functions import with_decorator
from fp16doctor.pipeline.own_lines import ScriptText
from fp16doctor.pipeline.own_lines_named import with_lines_named
from fp16doctor.pipeline.own_storage import with_own_masters
from fp16doctor.schema.prescription import Prescription, Remedy, RemedyKind

_SHORT = "fp16doctor"  # the form that calls this package
_FOR_THE_MODEL = (RemedyKind.FP32_KEEP, RemedyKind.FIXUP_INIT)


def with_own_places(
    prescriptions: Sequence[Prescription],
    script: ScriptText,
    folder: str,
    model: str,
    caution: Callable[[str, str], None],
) -> tuple[Prescription, ...]:
    """Return the prescriptions, their texts as diffs of the user's files or with their place.

    Args:
        prescriptions: of one diagnosis.
        script: its text as it was when the run began.
        folder: the script's, which names of other files start from.
        model: what the script calls its model, "" where that is not known.
        caution: takes the slug and the text of what failed.
    """
    try:
        read = _script(script)

        def text(file: str) -> str:
            return script.text if file == script.name else text_of(os.path.join(folder, file))

        return tuple(
            replace(p, remedy=_placed(with_own_device(p.remedy, read), read, text, model))
            for p in prescriptions
        )
    except Exception as error:  # noqa: BLE001 - an extra that must not cost the cures
        said = f"{script.name}: {type(error).__name__}: {error}"
        caution("script-not-read", f"no place of the code to paste is told; {said}")
        return tuple(prescriptions)


def _script(script: ScriptText) -> Script | None:
    if not script.text:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the parser's, on escapes: the run has shown its own
            return Script(script.text, script.name)
    except (SyntaxError, ValueError):
        return None


def _placed(
    remedy: Remedy, script: Script | None, text: Callable[[str], str], model: str
) -> Remedy:
    change = as_diff(remedy.change, text, script, model)
    if script is not None:
        own = (
            f(remedy, script)
            for f in (in_call, in_optimizer, with_own_masters, with_decorator, with_lines_named)
        )
        change = next(filter(None, own), change)
    if remedy.kind not in _FOR_THE_MODEL:
        return replace(remedy, change=change)
    forms = {n: placed(f, script, model) if n == _SHORT else f for n, f in remedy.forms.items()}
    return replace(remedy, change=placed(change, script, model), forms=forms)
