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
    from fp16doctor.schema.start import BundleFile


class KeptBundle:
    """Written before the report, which names it, and told behind it."""

    def __init__(self, output: Output | None) -> None:
        self._output = output
        self.file: BundleFile | None = None  # once it is there
        self.failed = False  # it should be there, and is not
        self._refusal = ""
        self._step, self._try = 0, ""

    def write(self, session: Session, diagnosis: Diagnosis) -> None:
        """Write the step that a scan kept; a scan that kept none has not failed."""
        from fp16doctor.record.bundle import write_bundle

        if self._output is None:
            return
        assert self._output.path is not None, "a bundle goes to a file"
        path, self.failed = Path(self._output.path), True
        try:
            bundle = session.bundle(diagnosis)
            write_bundle(path, bundle)
        except BundleError as error:
            self._refusal = str(error)
            self.failed = error.slug == "bundle-not-written"
            return
        shown = shlex.quote(self._output.shown)
        raised = bundle.tape.refused  # no step to replay: the call alone is there
        self._try = f"repro {shown}" if raised else f"replay {shown} {question(diagnosis)}"
        self.file, self._step, self.failed = _named(path), bundle.tape.step, False

    def tell(self, voice: Voice) -> None:
        """Say where it is, or why there is none."""
        if self._refusal:
            voice.warn(self._refusal)
        if self.file is None or self._output is None:
            return
        shown = shlex.quote(self._output.shown)
        size = _size(self.file.size)
        voice.say(f"bundle: {shown} (step {self._step}, {size})        try: fp16doctor {self._try}")


def _named(path: Path) -> BundleFile:
    from fp16doctor.record.digest import sha256_of
    from fp16doctor.schema.start import BundleFile

    return BundleFile(path.name, str(path), sha256_of(path), path.stat().st_size)


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
