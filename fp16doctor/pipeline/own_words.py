"""A finished diagnosis in the script's own lines and names, with what the script's text adds.

Must not know how any of it is found.
"""

from __future__ import annotations

from collections.abc import Sequence

from fp16doctor.diagnose.beside_run import SeenRun
from fp16doctor.pipeline.applicable import applicable
from fp16doctor.pipeline.own_lines import ScriptText, with_own_lines
from fp16doctor.pipeline.own_names import Told, with_own_names
from fp16doctor.pipeline.script_notes import Caution, with_script_notes
from fp16doctor.schema.prescription import Prescription, Recommendation


def in_own_words(
    run: SeenRun,
    plan: tuple[tuple[Prescription, ...], Recommendation],
    texts: tuple[ScriptText, Sequence[ScriptText]],
    folder: str,
    caution: Caution,
) -> Told:
    """Return prescriptions, findings and recommendation as the script would put them.

    Args:
        run: the finished run and its findings.
        plan: what is prescribed for them.
        texts: of the script, and of all files to be read for mistakes.
        folder: that reported paths are relative to.
        caution: takes the slug and the text of what could not be read.
    """
    (found, answer), (script, every) = plan, texts
    cures = with_own_lines(found, run.findings, script, caution)
    findings, cures = with_script_notes(run, cures, every, caution)
    return with_own_names(applicable(cures, script, folder), findings, answer)
