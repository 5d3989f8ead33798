"""``fp16doctor repro``: a script of a few lines that shows the fault of one op in plain torch.

Must not know how the ops are found or how the script is worded.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from fp16doctor.cli import statuses
from fp16doctor.cli.outputs import named
from fp16doctor.errors import UsageError

if TYPE_CHECKING:
    from fp16doctor.schema.excerpt import Excerpt

_MOST_SECONDS = 120


@click.command("repro", epilog=statuses.ALL)
@click.argument("source", metavar="BUNDLE", type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    metavar="FILE.py",
    type=click.Path(),
    help="The script; - for stdout, where its tensors fit into it.  [default: repro-<name>.py]",
)
def repro(source: Path, output: str | None) -> None:
    """Write a script of about thirty lines that shows the fault with torch alone.

    The op that a bundle's leading finding names is run on what it was given in the run, cut to
    the part that still shows the fault. The script is run before it is handed over.
    """
    from fp16doctor.pipeline.repro import excerpt_of
    from fp16doctor.record.bundle import read_bundle

    statuses.require_file(source, "a file that scan --save-bundle wrote")
    if _is_json(source):
        _refuse_diagnosis(source)
    target = Path(output or f"repro-{source.stem}.py")
    named(output or str(target)).check()
    bundle = read_bundle(source)
    excerpt = excerpt_of(bundle)
    if output == "-":
        _to_stdout(excerpt, source)
    from fp16doctor.report.repro_script import fits_inline, render_repro

    beside = None if fits_inline(excerpt) else target.with_suffix(".safetensors")
    text = render_repro(excerpt, bundle.origin, None if beside is None else beside.name)
    if output == "-":
        click.echo(text, nl=False)
        return
    _write(target, text, beside, excerpt)
    click.echo(_run(target))


def _is_json(source: Path) -> bool:
    try:
        with source.open("rb") as stream:
            return stream.read(64).lstrip()[:1] == b"{"
    except OSError:
        return False  # reading the bundle says what is wrong


def _refuse_diagnosis(source: Path) -> NoReturn:
    """A diagnosis says where and how much, and holds no tensor that an op could be given."""
    import shlex

    from fp16doctor.schema.codec import load

    run = load(source).run
    again = shlex.join(
        ("fp16doctor", "scan", "--save-bundle", "kept.fp16doctor", run.script, *run.argv)
    )
    raise UsageError(
        f"'{source}' is a diagnosis, which holds no tensors to run an op on; keep them with"
        f" `{again}`, then `fp16doctor repro kept.fp16doctor`",
        "repro-needs-bundle",
    )


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

    script = named(str(target))
    if beside is not None:
        write_given(beside, excerpt.given)
    script.write(text)


def _run(target: Path) -> str:
    """Run the script as its reader will; return what it prints."""
    import subprocess
    import sys

    from fp16doctor.errors import OutputError

    done = subprocess.run(
        [sys.executable, str(target)], capture_output=True, text=True,
        timeout=_MOST_SECONDS, check=False,
    )  # fmt: skip
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise OutputError(
            f"'{target}' was written, and does not show the fault when it is run: {last}; report it"
            " with the bundle",
            "repro-does-not-show",
        )
    return f"{done.stdout}repro: {target} (run: it shows the fault)"
