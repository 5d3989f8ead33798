"""Runs a scanned script again as its scan did, for the step that the scan did not keep.

Must not know what becomes of the bundle.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from fp16doctor.errors import Fp16DoctorError, UsageError
from fp16doctor.pipeline.child import environment, fp16doctor_again
from fp16doctor.pipeline.own_script import is_own
from fp16doctor.record.digest import sha256_of
from fp16doctor.schema.codec import load
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.recording import RunInfo
from fp16doctor.schema.start import ScanStart

_SCAN_IT = "scan it again, with --save-bundle"


def can_run_again(diagnosis: Diagnosis, source: Path) -> ScanStart:
    """Return how the script of a diagnosis is started; ``source`` names it in errors.

    Raises:
        UsageError: nothing-to-show, not-a-scan, script-gone, script-changed, not-this-script.
    """
    start, script = diagnosis.start, diagnosis.run.script
    if not diagnosis.findings:
        raise UsageError(
            f"'{source}' holds no finding, so there is no fault to show; name the diagnosis of a"
            " run that failed",
            "nothing-to-show",
        )
    if start is None:
        raise UsageError(
            f"'{source}' does not say how {script!r} was started, and it names no bundle;"
            " `fp16doctor scan --save-bundle kept.fp16doctor` on the script keeps the step",
            "not-a-scan",
        )
    _check_folder(start, script)
    _check_script(start, script, source)
    if not is_own(start, script):
        raise UsageError(
            f"'{source}' names {script!r} and '{start.file}', which is not the script of that name"
            " in its folder, and a diagnosis from elsewhere could have anything run;"
            f" {_SCAN_IT}, if it is yours",
            "not-this-script",
        )
    return start


def scan_again(diagnosis: Diagnosis, start: ScanStart, folder: Path) -> Path:
    """Return the bundle of the script's run, made now in ``folder``.

    Raises:
        Fp16DoctorError: scan-again-failed, with the child's last words; no-finding-now.
    """
    bundle, document = folder / "again.fp16doctor", folder / "again.json"
    options = ["-q", "--budget", "0", "--device", start.device, "--save-bundle", str(bundle),
               "--json", str(document), "-o", str(folder / "again.html")]  # fmt: skip
    if start.steps is not None:
        options += ["--steps", str(start.steps)]
    script = diagnosis.run.script
    try:
        done = subprocess.run(
            [*fp16doctor_again(), "scan", *options, *_script(start, diagnosis.run)],
            cwd=start.folder,
            env=environment(os.environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except (OSError, ValueError) as error:  # an argument with a null byte, one that is too long
        raise Fp16DoctorError(
            f"{script!r} could not be started again: {error}; {_SCAN_IT}", "scan-again-failed"
        ) from error
    if document.exists() and not load(document).findings:
        raise Fp16DoctorError(
            f"{script!r} ran again and shows no finding now; fix its seeds and its data, or"
            f" {_SCAN_IT}, and name the bundle of a run that failed",
            "no-finding-now",
        )
    if not bundle.exists():
        raise Fp16DoctorError(
            f"{script!r} ran again and left no bundle{_last_words(done)}; run `fp16doctor scan`"
            " on it to see why",
            "scan-again-failed",
        )
    return bundle


def _check_folder(start: ScanStart, script: str) -> None:
    if not os.path.isdir(start.folder):
        raise UsageError(
            f"{script!r} was started in '{start.folder}', and there is no such folder here;"
            f" {_SCAN_IT}",
            "script-gone",
        )


def _check_script(start: ScanStart, script: str, source: Path) -> None:
    """Hold the script's text against what it was; what it imports is not known."""
    if not start.file:
        raise UsageError(
            f"the text of {script!r} was in no file that could be read again; save it as one, and"
            f" {_SCAN_IT}",
            "script-gone",
        )
    try:
        same = sha256_of(start.file) == start.sha256
    except OSError as error:
        raise UsageError(
            f"the script '{start.file}' cannot be read any more ({error.strerror}); put it back,"
            f" or {_SCAN_IT}",
            "script-gone",
        ) from error
    if not same:
        raise UsageError(
            f"the script '{start.file}' has changed since '{source}' was written, so its lines and"
            f" its fault may be others ({script!r}); {_SCAN_IT}",
            "script-changed",
        )


def _script(start: ScanStart, run: RunInfo) -> list[str]:
    """Return the script's part of the command line; a name such as -x.py stays a name."""
    return [*(["-m"] if start.is_module else []), "--", run.script, *run.argv]


def _last_words(done: subprocess.CompletedProcess[bytes]) -> str:
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return f" (status {done.returncode}){': ' + lines[-1] if lines else ''}"
