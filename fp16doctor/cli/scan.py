"""``fp16doctor scan``: the command's options, checked and turned into a request.

Must not know the order of things during a scan (``scanning``).
"""

from __future__ import annotations

import os
import re
from types import MappingProxyType

import click

from fp16doctor.cli import completion, statuses
from fp16doctor.cli.file_kinds import Kind, refuse_other
from fp16doctor.cli.formats import format_option, stdout_taken
from fp16doctor.cli.help_text import GroupedCommand, epilog
from fp16doctor.errors import UsageError


class _Scan(GroupedCommand):
    groups = MappingProxyType(
        {
            "What is run": ("-m", "--steps", "--device", "--compiled"),
            "Cures": ("--budget", "--tolerance", "--confirm"),
            "Files": ("--output", "--json", "--save-bundle", "--no-source"),
            "What is told": ("--format", "--lint", "--fail-on"),
            "On the terminal": ("--progress", "--quiet", "--verbose", "--help"),
        }
    )


# Options stop at the first positional, so that all that follows the script is the script's own.
@click.command(
    cls=_Scan,
    short_help="Run a training script and find where its numbers go wrong.",
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
    epilog=epilog(
        ("fp16doctor scan train.py --lr 3e-4", "--lr belongs to the script"),
        ("fp16doctor scan --steps 20 train.py", "stop after 20 optimizer steps"),
        ("fp16doctor scan -m package.train", "a module, as python -m runs it"),
        ("fp16doctor scan --confirm train.py", "then once more, with the cure"),
        ("fp16doctor scan --fail-on error train.py", "in CI: status 3 where an error is found"),
        after=statuses.OF_SCRIPT,
    ),
)
@click.option("-m", "is_module", is_flag=True, help="Run a module, as python -m does.")
@click.option(
    "-o",
    "--output",
    metavar="PAGE.html",
    type=click.Path(),
    help="The page; - for standard output.  [default: fp16doctor-<script>.html, or beside --json]",
)
@click.option(
    "--json",
    "document",
    metavar="FILE",
    type=click.Path(),
    help="The diagnosis as JSON.  [default: fp16doctor-<script>.json, or beside the page]",
)
@click.option(
    "--steps",
    type=int,
    metavar="N",
    help="Stop the script after N optimizer steps, skipped ones included.  [default: its own end]",
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0),
    default=45.0,
    show_default=True,
    metavar="SECONDS",
    help="Time for trying cures after the script; 0 tries none.",
)
@click.option(
    "--tolerance",
    type=click.FloatRange(min=0, min_open=True),
    default=1.0,
    show_default=True,
    metavar="FACTOR",
    help="How much more than 5 % of the fp32 descent a cure may miss, as a factor.",
)
@click.option(
    "--compiled",
    is_flag=True,
    help="Let torch.compile compile; by default it hands back what runs op by op, since fused code"
    " cannot be looked into.",
)
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default="auto",
    show_default=True,
    help="Where no CUDA device is there: simulate one on the CPU once the script asks for it"
    " (auto), never (cpu), or from the start, so that torch says that one is there (cuda).",
)
@click.option(
    "--save-bundle",
    metavar="FILE",
    type=click.Path(),
    help="Keep the leading finding's step, inputs and weights included, for replay and repro.",
)
@click.option(
    "--confirm",
    is_flag=True,
    help="Run the script a second time, under the recommended cure. What Python writes below the"
    " working folder goes to a temporary one; other writes and what is sent over the network do"
    " happen again.",
)
@click.option(
    "--lint",
    "style",
    is_flag=True,
    help="Also tell what the script's text shows and harms no run: deprecated names, apex.",
)
@format_option()
@click.option("--no-source", is_flag=True, help="Leave source lines out of the report.")
@statuses.fail_on_option("the script succeeded and a finding")
@click.option(
    "--progress",
    is_flag=True,
    help="Say what is being done also where standard error is no terminal, a line each time; on"
    " a terminal, also while the script runs.",
)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing but what went wrong.")
@click.option(
    "-v",
    "--verbose",
    is_flag=True,
    help="Say more: all evidence, every cure with its code, checks and limits.",
)
@click.argument(
    "command",
    nargs=-1,
    type=click.UNPROCESSED,
    metavar="SCRIPT|-m MODULE [ARGS]...",
    shell_complete=completion.files,
)
def scan(
    is_module: bool,
    output: str | None,
    document: str | None,
    steps: int | None,
    budget: float,
    tolerance: float,
    compiled: bool,
    device: str,
    save_bundle: str | None,
    confirm: bool,
    style: bool,
    form: str,
    no_source: bool,
    fail_on: str,
    progress: bool,
    quiet: bool,
    verbose: bool,
    command: tuple[str, ...],
) -> int:
    """Run a training script unchanged, and report where its numbers go wrong.

    SCRIPT is run as Python would run it, with ARGS. The report is written when it ends, however
    it ends.

    Options stand in front of SCRIPT; all that stands behind it goes to the script.
    """
    from fp16doctor.cli.outputs import choose, choose_bundle, for_rank
    from fp16doctor.cli.request import Request
    from fp16doctor.cli.scanning import run_scan
    from fp16doctor.cli.voice import Voice
    from fp16doctor.record.ranks import launched_as
    from fp16doctor.record.script import Target

    _check(command, steps, quiet=quiet, verbose=verbose)
    _refuse_launcher(command, is_module=is_module)
    if not is_module:
        refuse_other(command[0], "a Python script", Kind.SCRIPT)
    page, json_file = choose(output, document, _stem(command[0], is_module=is_module))
    bundle = choose_bundle(save_bundle, page, json_file)
    rank, ranks = launched_as()
    _check_confirm(ranks if confirm else 1)
    request = Request(
        target=Target(command[0], is_module, command[1:]),
        page=for_rank(page, rank),
        document=for_rank(json_file, rank),
        steps=steps,
        sources=not no_source,
        budget_s=budget,
        tolerance=tolerance,
        compiled=compiled,
        device=device,
        fail_on=fail_on,
        bundle=bundle and for_rank(bundle, rank),
        confirm=confirm,
        style=style,
        form=form,
    )
    stdout_taken(form, *request.outputs)
    speaker = f"rank {rank} of {ranks}" if rank else ""
    voice = Voice(
        quiet=quiet or rank > 0, verbose=verbose, progress=progress and not rank, speaker=speaker
    )
    return run_scan(request, voice, click.get_current_context().command.params)


_PYTHON = re.compile(r"python[\d.]*(?:\.exe)?")
# Modules that start the script in processes of their own.
_LAUNCHERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
_LAUNCHER_COMMANDS = ("torchrun", "accelerate", "deepspeed")


def _refuse_launcher(command: tuple[str, ...], *, is_module: bool) -> None:
    name = command[0]
    if not is_module and not os.path.exists(name) and _PYTHON.fullmatch(os.path.basename(name)):
        raise UsageError(
            f"{name!r} was named in place of a script; fp16doctor runs the script by itself, with"
            " the Python it is installed for: leave it out, `fp16doctor scan train.py`",
            "no-such-script",
        )
    if not is_module and name == "-":
        raise UsageError(
            "- reads no script from standard input; name /dev/stdin, or a file that holds it",
            "no-such-script",
        )
    alone = not is_module and not os.path.exists(name) and name in _LAUNCHER_COMMANDS
    if alone or (is_module and name in _LAUNCHERS):
        raise UsageError(
            f"{name} starts the script in other processes, which a scan does not see; put"
            " fp16doctor behind it: `torchrun --nproc-per-node N -m fp16doctor scan train.py`",
            "launcher",
        )


def _check(command: tuple[str, ...], steps: int | None, *, quiet: bool, verbose: bool) -> None:
    if not command:
        raise UsageError(
            "there is nothing to run; name a script, or a module with -m", "no-script-given"
        )
    if steps is not None and steps < 1:
        raise UsageError(
            f"--steps counts optimizer attempts and got {steps}; pass 1 or more, or leave it out"
            " to run the script to its end",
            "bad-steps",
        )
    if quiet and verbose:
        raise UsageError("-q and -v contradict each other; pass one of them", "quiet-and-verbose")


def _stem(name: str, *, is_module: bool) -> str:
    """``train`` for path/to/train.py; a folder by its name, a module by its whole name."""
    from pathlib import Path

    if is_module:
        return name.lstrip(".") or "module"
    path = Path(name)
    return path.stem or path.resolve().name or "script"


def _check_confirm(ranks: int) -> None:
    if ranks > 1:
        raise UsageError(
            f"--confirm runs the script again by itself, and {ranks} processes were started to"
            " train together; leave it out, or scan the script with one process",
            "confirm-in-ranks",
        )
