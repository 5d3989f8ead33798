"""One file per kind of remedy, each with ``propose(findings)``.

Nothing is listed here: a new file is a new kind.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence

from fp16doctor.schema.finding import Finding
from fp16doctor.schema.prescription import Remedy

Proposal = tuple[Remedy, tuple[int, ...]]  # the remedy, positions of the findings it treats


def proposals(findings: Sequence[Finding]) -> Iterator[Proposal]:
    """Every remedy for ``findings`` (as ranked in the diagnosis), file by file in name order."""
    for name in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        yield from importlib.import_module(f"{__name__}.{name}").propose(findings)
