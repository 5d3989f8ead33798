"""One file per kind of remedy, each with ``propose(case)``.

Nothing is listed here: a new file is a new kind.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from fp16doctor.prescribe.case import Case
from fp16doctor.schema.prescription import Prescription


def prescriptions(case: Case) -> Iterator[Prescription]:
    """Every tried remedy for a case, file by file in name order."""
    for name in sorted(info.name for info in pkgutil.iter_modules(__path__)):
        yield from importlib.import_module(f"{__name__}.{name}").propose(case)
