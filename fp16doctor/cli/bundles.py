"""The bundle that a scan leaves behind, and what is said of it.

Must not know which step is kept (``pipeline``) or how it is spelled (``record.bundle``).
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fp16doctor.cli.outputs import Output
from fp16doctor.cli.voice import Voice
from fp16doctor.errors import BundleError
from fp16doctor.schema.prescription import Remedy, RemedyKind
from fp16doctor.schema.what_if import DTYPES

if TYPE_CHECKING:
    from fp16doctor.pipeline import Session
    from fp16doctor.schema.diagnosis import Diagnosis


def save_bundle(session: Session, diagnosis: Diagnosis, output: Output, voice: Voice) -> bool:
    """Write the step that a scan kept and say so; False where the file could not be written.

    A scan that kept no step says why and has not failed.
    """
    from fp16doctor.record.bundle import write_bundle

    assert output.path is not None, "a bundle goes to a file"
    try:
        bundle = session.bundle(diagnosis)
        size = write_bundle(Path(output.path), bundle)
    except BundleError as error:
        voice.warn(str(error))
        return error.slug != "bundle-not-written"
    shown = shlex.quote(output.shown)
    again = f"try: fp16doctor replay {shown} {question(diagnosis)}"
    voice.say(f"bundle: {shown} (step {bundle.tape.step}, {_size(size)})        {again}")
    return True


def question(diagnosis: Diagnosis) -> str:
    """Options of ``replay`` for what is recommended, else for another format than the run's."""
    cures = [diagnosis.prescriptions[i].remedy for i in diagnosis.recommendation.prescriptions]
    asked = [word for remedy in cures for word in _options(remedy)]
    if asked:
        return shlex.join(asked)
    ran_in = {name for name, _ in diagnosis.run.ops_by_dtype}
    return "--dtype fp32" if "bfloat16" in ran_in else "--dtype bf16"


def _options(remedy: Remedy) -> Iterator[str]:
    if remedy.kind is RemedyKind.DTYPE and remedy.value in DTYPES:
        yield from ("--dtype", remedy.value)
    elif remedy.kind is RemedyKind.FP32_KEEP:
        for pattern in remedy.target:
            yield from ("--keep", pattern)
    elif remedy.kind is RemedyKind.LOSS_SCALE and isinstance(remedy.value, dict):
        yield from ("--loss-scale", f"{remedy.value['recommended']:.10g}")


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"
