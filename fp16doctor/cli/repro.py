"""``fp16doctor repro``: a script of a few lines that shows the fault of one op in plain torch.

Must not know how the ops are found or how the script is worded.
"""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import click

from fp16doctor.cli import statuses
from fp16doctor.cli.file_kinds import Kind, refuse_other
from fp16doctor.cli.help_text import epilog
from fp16doctor.cli.outputs import named
from fp16doctor.errors import UsageError

if TYPE_CHECKING:
    from fp16doctor.schema.bundle import Bundle
    from fp16doctor.schema.diagnosis import Diagnosis
    from fp16doctor.schema.excerpt import Excerpt

_MOST_SECONDS = 120
_BESIDE = ".safetensors"  # tensors that do not fit into the script


@click.command(
    "repro",
    short_help="Write a short script, torch alone, that shows the fault.",
    epilog=epilog(
        ("fp16doctor repro step.fp16doctor -o short.py", "of a step that was kept"),
        ("fp16doctor repro fp16doctor-train.json", "of a scan; it may run the script again"),
    ),
)
@click.argument("source", metavar="BUNDLE|DIAGNOSIS", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    metavar="FILE.py",
    type=click.Path(),
    help="The script; - for standard output, where its tensors fit into it."
    "  [default: repro-<name>.py]",
)
@click.option(
    "--no-run",
    is_flag=True,
    help="Fail where a diagnosis has no bundle, instead of running its script again.",
)
def repro(source: Path, output: str | None, no_run: bool) -> None:
    """Write a script of about thirty lines that shows the fault with torch alone.

    The op that a bundle's leading finding names is run on what it was given in the run, cut to
    the part that still shows the fault. The script is run before it is handed over.

    DIAGNOSIS is a JSON file of scan: its bundle is taken, or where none was kept the training
    script runs again as it was scanned, and what it writes is written again.
    """
    from fp16doctor.pipeline.repro import excerpt_of

    what = "a file that scan --save-bundle or scan --json wrote"
    statuses.require_file(source, what)
    refuse_other(source, what, Kind.BUNDLE, Kind.DIAGNOSIS, Kind.JSON)
    target = Path(output or f"repro-{source.stem.removeprefix('fp16doctor-')}.py")
    if output != "-":
        _check_place(target, source)
    bundle = _of_diagnosis(source, no_run=no_run) if _is_json(source) else _read(source)
    excerpt = excerpt_of(bundle)
    if output == "-":
        _to_stdout(excerpt, source)
    from fp16doctor.report.repro_script import fits_inline, render_repro

    beside = None if fits_inline(excerpt) else target.with_suffix(_BESIDE)
    text = render_repro(excerpt, bundle.origin, None if beside is None else beside.name)
    if output == "-":
        click.echo(text, nl=False)
        return
    _write(target, text, beside, excerpt)
    click.echo(_run(target))


def _read(source: Path) -> Bundle:
    from fp16doctor.record.bundle import read_bundle

    return read_bundle(source)


def _is_json(source: Path) -> bool:
    try:
        with source.open("rb") as stream:
            return stream.read(64).lstrip()[:1] == b"{"
    except OSError:
        return False  # reading the bundle says what is wrong


def _of_diagnosis(source: Path, *, no_run: bool) -> Bundle:
    """Return the step of a diagnosis: the one that was kept, else that of a second run."""
    from fp16doctor.pipeline.kept import find_bundle
    from fp16doctor.schema.codec import load

    diagnosis = load(source)
    kept = find_bundle(diagnosis.bundle, source)
    if kept is not None:
        return _read(kept)
    if no_run:
        raise UsageError(
            f"no bundle of '{source}' is there, and --no-run forbids to run"
            f" {diagnosis.run.script!r} again; scan it with --save-bundle, or leave --no-run out",
            "repro-needs-bundle",
        )
    return _again(diagnosis, source)


def _again(diagnosis: Diagnosis, source: Path) -> Bundle:
    from fp16doctor.pipeline.again import can_run_again, scan_again

    start = can_run_again(diagnosis, source)
    lost = "is not there" if diagnosis.bundle else "was not kept"
    run = diagnosis.run
    command = shlex.join((*(["-m"] if start.is_module else []), run.script, *run.argv))
    took = f" for about {run.duration_s:.0f} s" if run.duration_s >= 1 else ""
    _say(f"the bundle of '{source}' {lost}; {command!r} runs again in '{start.folder}'{took}")
    with tempfile.TemporaryDirectory(prefix="fp16doctor-repro-") as folder:
        bundle = _read(scan_again(diagnosis, start, Path(folder)))
    before = next((f.code for f in diagnosis.findings if f.site is not None), None)
    now = bundle.origin.finding.code if bundle.origin.finding else "no op's finding"
    if before is not None and before != now:
        _say(f"the run shows {now} first now, '{source}' shows {before}")
    return bundle


def _say(text: str) -> None:
    click.echo(f"fp16doctor: {text}", err=True)


def _to_stdout(excerpt: Excerpt, source: Path) -> None:
    from fp16doctor.report.repro_script import fits_inline

    if not fits_inline(excerpt):
        size = sum(t.numel() for t in excerpt.given.values())
        raise UsageError(
            f"the op of '{source}' is given {size} elements, too many to stand in the script; name"
            " a file with -o, the tensors go beside it",
            "repro-needs-file",
        )


def _write(target: Path, text: str, beside: Path | None, excerpt: Excerpt) -> None:
    from fp16doctor.record.bundle.given import write_given

    if beside is not None:
        _check_free(beside, target)
        write_given(beside, excerpt.given)
    named(str(target)).write(text)


def _check_place(target: Path, source: Path) -> None:
    """Refuse, before anything runs, a name that the script or its tensors cannot take."""
    from fp16doctor.cli.outputs import keep_source, named

    named(str(target)).check()
    if target.suffix == _BESIDE:
        raise UsageError(
            f"'{target}' is a name for tensors, and what is written is a script; end it with .py",
            "unwritable-output",
        )
    keep_source(str(source), str(target), str(target.with_suffix(_BESIDE)))


def _check_free(beside: Path, target: Path) -> None:
    """Refuse to write over tensors that no script of ours there reads: nobody named that file."""
    try:
        ours = repr(beside.name) in target.read_text(encoding="utf-8", errors="replace")
    except OSError:
        ours = False
    if beside.exists() and not ours:
        raise UsageError(
            f"the tensors of '{target}' go into '{beside}', and a file of that name is there"
            " already; move it, or name another script with -o",
            "same-output",
        )


def _run(target: Path) -> str:
    """Run the script as its reader will; return what it prints."""
    import subprocess
    import sys

    from fp16doctor.errors import OutputError

    try:
        done = subprocess.run(
            [sys.executable, str(target.absolute())], capture_output=True, text=True,
            timeout=_MOST_SECONDS, check=False,
        )  # fmt: skip
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    except subprocess.TimeoutExpired:
        done, last = None, f"it was not over after {_MOST_SECONDS} s"
    if done is None or done.returncode:
        raise OutputError(
            f"'{target}' was written, and does not show the fault when it is run: {last}; report it"
            " with the bundle",
            "repro-does-not-show",
        )
    return f"{done.stdout}repro: {target} (run: it shows the fault)"
