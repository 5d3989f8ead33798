"""Has the script run again under the recommended cure, in a child process, and compares.

Must not know how a cure is put on (``rerun``) or what holding means (``held``).
"""

from __future__ import annotations

import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from fp16doctor.apply.line_edit import edits_in
from fp16doctor.errors import Fp16DoctorError
from fp16doctor.pipeline.child import environment, fp16doctor_again
from fp16doctor.pipeline.held import beside_it, numbers, why_not_held
from fp16doctor.record.start import Start
from fp16doctor.schema.codec import load, to_json
from fp16doctor.schema.confirmation import Confirmation, ConfirmVerdict
from fp16doctor.schema.diagnosis import Diagnosis
from fp16doctor.schema.prescription import RecommendationStatus, Verdict

LEAST_S = 60.0  # the child gets that many seconds in any case
TIMES = 5.0  # and so many times what the run itself took
# What the child is started with; cli/confirm_run.py takes it.
COMMAND = "confirm-run"


def worth_confirming(diagnosis: Diagnosis) -> bool:
    """Tell whether a cure is recommended that was verified by replay, or an edit of a line.

    The latter where no format is a cure: a replay cannot express every edit.
    """
    chosen = [diagnosis.prescriptions[i] for i in diagnosis.recommendation.prescriptions]
    status = diagnosis.recommendation.status
    if status is RecommendationStatus.NOT_PRECISION:
        return bool(chosen) and all(edits_in(c.remedy.change) for c in chosen)
    verified = all(c.verification.verdict is Verdict.VERIFIED for c in chosen)
    return status is RecommendationStatus.PRESCRIBED and bool(chosen) and verified


def confirm(diagnosis: Diagnosis, start: Start) -> Diagnosis:
    """Return the diagnosis with ``confirm`` filled in; as it is where no cure is recommended.

    A cure that does not hold is said not to in the recommendation's own sentence.
    """
    if not worth_confirming(diagnosis):
        return diagnosis
    found = _confirmation(diagnosis, start)
    if found.verdict is not ConfirmVerdict.NOT_HELD:
        return replace(diagnosis, confirm=found)
    sentence = f"{diagnosis.recommendation.sentence}; not confirmed: {found.reason}"
    advice = replace(diagnosis.recommendation, sentence=sentence)
    return replace(diagnosis, confirm=found, recommendation=advice)


def _confirmation(before: Diagnosis, start: Start) -> Confirmation:
    with tempfile.TemporaryDirectory(prefix="fp16doctor-confirm-") as folder:
        try:
            after = _run(before, start, Path(folder))
        except Fp16DoctorError as error:
            return Confirmation(ConfirmVerdict.NOT_RUN, error.message)
    put_on = after.confirm
    if put_on is not None and put_on.verdict is ConfirmVerdict.NOT_RUN:
        return put_on
    reason = why_not_held(before, after)
    return Confirmation(
        ConfirmVerdict.NOT_HELD if reason else ConfirmVerdict.HELD,
        reason or beside_it(before, after),
        numbers(before),
        numbers(after),
        len(after.steps),
        put_on.redirected if put_on is not None else (),
    )


def _run(before: Diagnosis, start: Start, folder: Path) -> Diagnosis:
    """Run the child.

    Raises:
        Fp16DoctorError: it wrote no diagnosis.
    """
    given, taken, store = folder / "before.json", folder / "after.json", folder / "files"
    given.write_text(to_json(before), encoding="utf-8")
    store.mkdir()
    limit = max(LEAST_S, TIMES * before.run.duration_s)
    files = [str(given), str(taken), str(store)]
    try:
        done = subprocess.run(
            [*fp16doctor_again(), COMMAND, *_options(start), *files, *_named(start)],
            cwd=start.folder,
            env=environment(start.environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Fp16DoctorError(
            f"the run under the cure was not over after {limit:.0f} s", "confirm-timeout"
        ) from None
    except OSError as error:
        raise Fp16DoctorError(
            f"Python could not be started again: {error.strerror}", "confirm-start"
        ) from error
    if not taken.exists():
        raise Fp16DoctorError(_last_words(done.stderr, done.returncode), "confirm-failed")
    return load(taken)


def _options(start: Start) -> list[str]:
    steps = ["--steps", str(start.steps)] if start.steps is not None else []
    compiled = ["--compiled"] if start.compiled else []
    return [
        "--device",
        start.device,
        *compiled,
        *steps,
        *(["-m"] if start.target.is_module else []),
    ]


def _named(start: Start) -> list[str]:
    return [start.target.name, *start.target.argv]


def _last_words(stderr: bytes, status: int) -> str:
    lines = stderr.decode("utf-8", "replace").strip().splitlines()
    said = f": {lines[-1]}" if lines else ""
    return f"the run under the cure wrote no result (status {status}){said}"
