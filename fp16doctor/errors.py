"""The errors fp16doctor raises on purpose: a sentence, a slug to search for, an exit status.

Knows nothing of torch, recordings or terminals; ``cli.main`` is the one place that prints them.
"""

from __future__ import annotations


class Fp16DoctorError(Exception):
    """Something that cannot be done; ``message`` says what was tried, what was met, what to do."""

    exit_code = 4

    def __init__(self, message: str, slug: str) -> None:
        super().__init__(f"{message}  [{slug}]")
        self.message = message
        self.slug = slug


class UsageError(Fp16DoctorError):
    """The command line names something that cannot be used: no such script, a negative count."""

    exit_code = 2


class DiagnosisFileError(Fp16DoctorError):
    """A file that should hold a diagnosis does not: truncated, of a later schema, not JSON."""

    exit_code = 4


class OutputError(Fp16DoctorError):
    """A report could not be written where it was asked for."""

    exit_code = 4


class BundleError(Fp16DoctorError):
    """A step cannot be put into a bundle, or a file that should hold one is damaged or hostile."""

    exit_code = 4


class ReplayError(Fp16DoctorError):
    """A tape could not be replayed; the diagnosis goes on without it and says so."""

    exit_code = 4


class ApplyError(Fp16DoctorError):
    """A cure cannot be put on a live model or script from outside; ``message`` says why."""

    exit_code = 4
