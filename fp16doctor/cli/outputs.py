"""Where the page and the JSON of a scan go, and how they get there whole.

Must not know what is in them.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from dataclasses import dataclass
from typing import TextIO

from fp16doctor.errors import OutputError, UsageError

STDOUT = "-"


@dataclass(frozen=True, slots=True)
class Output:
    """One file to write, or stdout."""

    shown: str  # as a reader is told
    path: str | None  # absolute, so that the script may change folders; None is stdout
    stream: TextIO | None = None  # stdout as it was at the start

    def check(self) -> None:
        """Refuse, before the script runs, a place that cannot be written to.

        Raises:
            UsageError: unwritable-output.
        """
        if self.path is None:
            return
        try:
            if os.path.isdir(self.path):
                raise IsADirectoryError(0, "it is a folder")
            if _is_plain(self.path):
                _probe_folder(os.path.dirname(os.path.realpath(self.path)))
        except OSError as error:
            raise UsageError(
                f"{self.shown!r} cannot be written: {error.strerror}; name another file,"
                " in a folder that exists and is writable",
                "unwritable-output",
            ) from error

    def write(self, text: str) -> None:
        """Write ``text`` as UTF-8; a file appears whole or not at all.

        Raises:
            OutputError: output-failed. A copy in the system's temporary folder was tried; the
                message says where it is.
        """
        if self.path is None:
            _write_stream(self.stream, text)
            return
        try:
            _write_whole(self.path, _encoded(text))
        except OSError as error:
            raise OutputError(
                f"writing {self.shown!r} failed: {error.strerror or error}; {self._save(text)}",
                "output-failed",
            ) from error

    def _save(self, text: str) -> str:
        assert self.path is not None, "only files fall back on another folder"
        stem, suffix = os.path.splitext(os.path.basename(self.path))
        try:
            handle, saved = tempfile.mkstemp(prefix=f"{stem}-", suffix=suffix)
            with open(handle, "wb") as stream:
                stream.write(_encoded(text))
        except OSError as error:
            return f"the temporary folder took no copy either ({error.strerror or error})"
        return f"it is saved as {saved!r} instead"


def choose(page: str | None, document: str | None, stem: str) -> tuple[Output, Output]:
    """Page and JSON of a scan, from ``-o`` and ``--json`` or named after the script.

    Where only one of them is named, the other goes beside it, under the same name.

    Raises:
        UsageError: same-output, when both are one file.
    """
    chosen_page = named(page or _beside(document, ".html") or f"fp16doctor-{stem}.html")
    chosen_json = named(document or _beside(page, ".json") or f"fp16doctor-{stem}.json")
    if _identity(chosen_page) == _identity(chosen_json):
        raise UsageError(
            f"-o and --json both name {chosen_page.shown!r}; give each its own file",
            "same-output",
        )
    return chosen_page, chosen_json


def _beside(other: str | None, suffix: str) -> str:
    """``sub/x.json`` for ``sub/x.html``; "" where the other is no file that has a neighbour."""
    if not other or other == STDOUT or not _is_plain(other):
        return ""
    stem, extension = os.path.splitext(other)
    return stem + suffix if extension != suffix else other + suffix


def for_rank(output: Output, rank: int) -> Output:
    """The file of one of several training processes: ``page.rank1.html``; rank 0 has the plain one.

    Where rank 0 writes to stdout, the others write nothing there.
    """
    if not rank:
        return output
    if output.path is None:
        return Output(os.devnull, os.devnull)
    stem, suffix = os.path.splitext(output.shown)
    return named(f"{stem}.rank{rank}{suffix}")


def choose_bundle(name: str | None, *others: Output) -> Output | None:
    """The file of ``--save-bundle``, None where none is asked for.

    Raises:
        UsageError: bundle-on-stdout, same-output.
    """
    if name is None:
        return None
    if name == STDOUT:
        raise UsageError(
            "a bundle is no text and does not go to standard output; name a file",
            "bundle-on-stdout",
        )
    chosen = named(name)
    if any(_identity(chosen) == _identity(other) for other in others):
        raise UsageError(
            f"--save-bundle and the report both name {name!r}; give each its own file",
            "same-output",
        )
    return chosen


def keep_source(source: str, *written: str) -> None:
    """Refuse to write over the file that is read; ``-`` is stdout.

    Raises:
        UsageError: same-output.
    """
    for name in written:
        if name != STDOUT and os.path.realpath(name) == os.path.realpath(source):
            raise UsageError(
                f"{name!r} is to be written and is what is read; name another file", "same-output"
            )


def _identity(output: Output) -> str | None:
    return output.path and os.path.realpath(output.path)


def named(name: str) -> Output:
    """One output by its name; ``-`` is stdout."""
    if name == STDOUT:
        return Output(STDOUT, None, sys.stdout)
    return Output(name, os.path.abspath(name))


def _is_plain(path: str) -> bool:
    """Whether a new file may take this name; not so for /dev/null or a pipe."""
    return os.path.isfile(path) or not os.path.exists(path)


def _probe_folder(folder: str) -> None:
    if not os.path.isdir(folder):
        raise NotADirectoryError(0, f"there is no folder {folder!r}")
    handle, name = tempfile.mkstemp(prefix=".fp16doctor-", dir=folder)
    os.close(handle)
    os.unlink(name)


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "backslashreplace")  # a lone surrogate must not lose the report


def _write_whole(path: str, data: bytes) -> None:
    if not _is_plain(path):
        with open(path, "wb") as stream:
            stream.write(data)
        return
    path = os.path.realpath(path)  # a link stays a link
    folder, name = os.path.split(path)
    neighbour = os.path.join(folder, f".{name}.{os.getpid()}.part")
    try:
        with open(neighbour, "wb") as stream:
            stream.write(data)
        os.replace(neighbour, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(neighbour)
        raise


def _write_stream(stream: TextIO | None, text: str) -> None:
    try:
        if stream is not None:
            stream.flush()
            stream.buffer.write(_encoded(text))  # UTF-8 whatever the terminal's encoding
            stream.flush()
    except (OSError, ValueError) as error:  # a closed pipe; closed by the script
        raise OutputError(
            f"writing to standard output failed: {error}; name a file with -o",
            "output-failed",
        ) from error
