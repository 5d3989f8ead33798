"""Puts findings and cures into the script's own terms: its lines, its names, its other mistakes.

Must not know how a cure was found, nor how any one of these is done.
"""

from __future__ import annotations

from dataclasses import dataclass

from fp16doctor.diagnose.beside_run import SeenRun
from fp16doctor.pipeline.applicable import applicable
from fp16doctor.pipeline.own_formats import with_own_formats
from fp16doctor.pipeline.own_lines import ScriptText, with_own_lines
from fp16doctor.pipeline.own_model import with_own_model
from fp16doctor.pipeline.own_names import Told, with_own_names
from fp16doctor.pipeline.own_pastes import with_own_places
from fp16doctor.pipeline.own_roots import OwnRoot, with_own_roots
from fp16doctor.pipeline.script_notes import (
    Caution,
    recommended,
    texts_beside,
    with_script_notes,
)
from fp16doctor.record.source_lines import SourceLines
from fp16doctor.schema.prescription import Prescription, Recommendation


@dataclass(frozen=True, slots=True)
class OwnScript:
    """What the user wrote."""

    text: ScriptText
    lines: SourceLines
    folder: str  # the script's
    model: str  # its name, "" where it has no single one
    sources: bool  # whether its text may be told
    roots: tuple[OwnRoot, ...] = ()  # its models, by the variables that hold them


def in_own_terms(
    run: SeenRun,
    prescriptions: tuple[Prescription, ...],
    answer: Recommendation,
    script: OwnScript,
    caution: Caution,
) -> Told:
    """Return all three in the script's own terms; what its text does not tell stays general."""
    cures = with_own_lines(prescriptions, run.findings, script.text, caution)
    cures = with_own_formats(cures, script.text)
    texts = texts_beside(script.text, script.lines) if script.sources else ()
    findings, cures = with_script_notes(run, cures, texts, caution)
    answer = recommended(answer, findings, cures)
    cures = applicable(cures, script.text, script.folder)
    cures = with_own_roots(cures, script.model, script.roots)
    cures = with_own_places(cures, script.text, script.folder, script.model, caution)
    cures = with_own_model(cures, script.model)
    return with_own_names(cures, findings, answer)
