"""What stands around the options in a command's help: examples, statuses, headings.

Must not know what a command does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

from fp16doctor.cli import statuses


def epilog(*examples: tuple[str, str], after: str = "") -> str:
    """Return what stands below the options.

    Args:
        examples: (command line, what it is for).
        after: a sentence behind the exit statuses.
    """
    width = max((len(line) for line, _ in examples), default=0)
    lines = [f"  {line:<{width}}  {purpose}".rstrip() for line, purpose in examples]
    shown = "\b\nExamples:\n" + "\n".join(lines)
    return "\n\n".join(part for part in (shown, statuses.ALL, after) if part)


class GroupedCommand(click.Command):
    """A command whose options stand under headings; ``groups`` maps each to options as typed."""

    groups: Mapping[str, Sequence[str]] = {}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options by group, in the order of the groups."""
        records = {p.opts[-1]: p.get_help_record(ctx) for p in self.get_params(ctx)}
        for heading, names in self.groups.items():
            rows = [row for name in names if (row := records.get(name)) is not None]
            with formatter.section(heading):
                formatter.write_dl(rows)
