"""Gives fp32 master weights as a diff: the model's cast taken out, its forward under autocast.

Must not know whether that is a cure.
"""

from __future__ import annotations

import re

from fp16doctor.diagnose.script_reading.masters import with_masters
from fp16doctor.diagnose.script_reading.patch import between
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.schema.prescription import Remedy, RemedyKind

# How a change begins that keeps parameters in fp32 and names no line of the script.
_GENERAL = re.compile(
    r"\Amodel = model\.float\(\).*\n"
    r"with torch\.autocast\((?P<device>[^,]+), dtype=torch\.(?P<dtype>\w+)\):"
)


def with_own_masters(remedy: Remedy, script: Script) -> str:
    """Return the diff, "" where the remedy is another or the text leaves a doubt."""
    found = _GENERAL.match(remedy.change)
    if remedy.kind is not RemedyKind.STORAGE or found is None:
        return ""
    lines = with_masters(script, found["dtype"], found["device"])
    return "" if lines is None else between(script.path, script.lines, lines)
