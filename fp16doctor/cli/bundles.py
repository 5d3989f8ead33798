"""The bundle that a scan leaves behind, and what is said of it.

Must not know which step is kept (``pipeline``) or how it is spelled (``record.bundle``).
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from fp16doctor.cli.outputs import Output
from fp16doctor.cli.voice import Voice
from fp16doctor.errors import BundleError

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
    again = f"try: fp16doctor replay {shown} --dtype bf16"
    voice.say(f"bundle: {shown} (step {bundle.tape.step}, {_size(size)})        {again}")
    return True


def _size(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.1f} KiB"
