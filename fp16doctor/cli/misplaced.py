"""Options of ``scan`` that stand behind the script's name and so went to the script.

Must not know what an option does.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Sequence

import click

from fp16doctor.record.script import PreparedScript

# What a script that looks at its command line has in its text, by whatever library.
_READS_COMMAND_LINE = re.compile(
    r"argv|arg_?pars|Parser|parse_|\b(?:get_)?args\b|\b(?:cfg|config|opts?|flags|import_module|runpy"
    r"|click|typer|fire|hydra|absl|docopt|tyro)\b",
    re.IGNORECASE,
)
# Libraries that make options of the names of parameters or fields.
_OF_NAMES = re.compile(
    r"HfArgumentParser|simple_parsing|\b(?:typer|fire|hydra|tyro|jsonargparse)\b"
)


def misplaced(prepared: PreparedScript, options: Sequence[click.Parameter]) -> str:
    """Return a hint on options of ours that the script got and its text does not name; "" if none.

    Args:
        prepared: the script and its arguments.
        options: those of ``scan``.
    """
    given, rest = _split(prepared, [o for o in options if isinstance(o, click.Option)])
    if not given:
        return ""
    target = prepared.target
    module = ["-m"] if target.is_module else []
    command = shlex.join(["fp16doctor", "scan", *given, *module, target.name, *rest])
    named = ", ".join(word.partition("=")[0] for word in given if word.startswith("--"))
    return (
        f"options behind the script's name go to the script ({named}); for fp16doctor write"
        f" `{command}`  [script-option]"
    )


def reads_command_line(prepared: PreparedScript) -> bool:
    """Whether the script's text shows that it looks at its arguments; True where unknown."""
    text = _text(prepared)
    return not text or _READS_COMMAND_LINE.search(text) is not None


def _split(
    prepared: PreparedScript, options: Sequence[click.Option]
) -> tuple[list[str], list[str]]:
    """Return (options of ours with their values, the other arguments)."""
    text = _text(prepared)
    ours = {name: o for o in options for name in o.opts if name.startswith("--")}
    given: list[str] = []
    rest: list[str] = []
    words = iter(prepared.target.argv)
    for word in words:
        if word == "--":
            return given, [*rest, word, *words]
        name, _, value = word.partition("=")
        option = ours.get(name)
        if option is None or _names(text, name):
            rest.append(word)
        else:
            given += [word] if value or option.is_flag else [word, *_next(words)]
    return given, rest


def _names(text: str, option: str) -> bool:
    """Whether the script's text names an option, by itself or as a parameter's name."""
    if option in text:
        return True
    bare = option.lstrip("-").replace("-", "_")
    return _OF_NAMES.search(text) is not None and re.search(rf"\b{bare}\b", text) is not None


def _next(words: Iterable[str]) -> list[str]:
    return [w for w in (next(iter(words), None),) if w is not None]


def _text(prepared: PreparedScript) -> str:
    source = prepared.source
    return source.decode("utf-8", "replace") if isinstance(source, bytes) else source or ""
