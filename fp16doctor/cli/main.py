"""The ``fp16doctor`` command: finds the subcommand, turns errors into text on stderr and a status.

Must not know what a subcommand does: each is loaded by name from its own file when it is needed.
"""

from __future__ import annotations

import difflib
import importlib
import shlex
import sys
import traceback
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import NoReturn

import click

from fp16doctor import __version__
from fp16doctor.cli import statuses
from fp16doctor.cli.file_kinds import Kind, kind_of, remedy_for
from fp16doctor.cli.voice import describe_fault
from fp16doctor.errors import Fp16DoctorError

# Each name is a module of this package that holds a click command of the same name.
_COMMANDS = ("scan", "report", "compare", "replay", "repro", "lint", "weights", "explain")
_HIDDEN = ("confirm-run",)  # started by a command, not by people
_COMPLETION = """\b
Shell completion of commands, options and files:
  bash   eval "$(_FP16DOCTOR_COMPLETE=bash_source fp16doctor)"    in ~/.bashrc
  zsh    eval "$(_FP16DOCTOR_COMPLETE=zsh_source fp16doctor)"     in ~/.zshrc
  fish   _FP16DOCTOR_COMPLETE=fish_source fp16doctor | source
         in ~/.config/fish/completions/fp16doctor.fish"""


class _LazyGroup(click.Group):
    """A group that imports a subcommand's file only when it is asked for it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in (*_COMMANDS, *_HIDDEN):
            return None
        name = cmd_name.replace("-", "_")
        module = importlib.import_module(f"fp16doctor.cli.{name}")
        command: click.Command = getattr(module, name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in (*_COMMANDS, *_HIDDEN):
            ctx.fail(f"No such command {args[0]!r}. {_instead(args)}")
        return super().resolve_command(ctx, args)


def _instead(args: list[str]) -> str:
    """What was probably meant: a command for the file that was named, or a name alike."""
    name = args[0]
    kind = kind_of(name)
    if name.endswith(".py"):
        return f"Did you mean: fp16doctor scan {shlex.join(args)}"
    if kind is not Kind.OTHER and (remedy := remedy_for(kind, name)):
        return f"{name!r} is {kind.value}: {remedy}"
    alike = difflib.get_close_matches(name, _COMMANDS, 1)
    if alike:
        return f"Did you mean: fp16doctor {shlex.join([alike[0], *args[1:]])}"
    return f"The commands are: {', '.join(_COMMANDS)}"


def _show_version(ctx: click.Context, parameter: click.Parameter, asked: bool) -> None:
    """Print the versions that a bug report needs; torch is found, not imported."""
    if not asked or ctx.resilient_parsing:
        return
    try:
        beside = f"torch {version('torch')}"
    except PackageNotFoundError:
        beside = "torch is not installed"
    python = ".".join(map(str, sys.version_info[:3]))
    click.echo(f"fp16doctor {__version__} ({beside}, Python {python})")
    ctx.exit()


@click.group(
    cls=_LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=f"{statuses.ALL}\n\n{statuses.OF_SCRIPT}\n\n{_COMPLETION}",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the versions of fp16doctor, torch and Python.",
)
def fp16doctor() -> None:
    """Find the op that made a mixed-precision PyTorch training run go to inf or NaN.

    Start with:  fp16doctor scan train.py
    """


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit.

    Args:
        argv: arguments without the program's name; None takes those of the process.

    Raises:
        SystemExit: always, with the status of HOUSE 10.2: the script's own, 2, 3 or 4.
    """
    sys.exit(_status(None if argv is None else list(argv)))


def _status(argv: list[str] | None) -> int:
    try:
        # The script's arguments pass through here: click must not expand * in them on Windows.
        result = fp16doctor.main(
            argv, prog_name="fp16doctor", standalone_mode=False, windows_expand_args=False
        )
    except click.ClickException as error:
        error.show()
        return error.exit_code if isinstance(error, click.UsageError) else statuses.FAILED
    except click.Abort:  # Ctrl-C outside of the script
        return statuses.INTERRUPTED
    except Fp16DoctorError as error:
        _show(error)
        return error.exit_code
    except Exception as error:  # noqa: BLE001  the last door: a fault of fp16doctor itself
        _complain(f"failed: {describe_fault(error)}  [internal-error]")
        return statuses.FAILED
    return result if isinstance(result, int) else 0


def _show(error: Fp16DoctorError) -> None:
    if isinstance(error.__cause__, SyntaxError):  # the script's: first as Python shows it
        lines = traceback.format_exception_only(error.__cause__)
        click.echo("".join(lines), err=True, nl=False)
    _complain(str(error))


def _complain(text: str) -> None:
    click.echo(f"fp16doctor: {text}", err=True)
