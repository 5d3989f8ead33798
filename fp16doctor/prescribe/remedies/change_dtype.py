"""Proposes bf16 where values passed the range of fp16.

Must not know how a format is tried.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp16doctor.prescribe.treatable import format_of, of_precision
from fp16doctor.schema.finding import Fault, Finding
from fp16doctor.schema.prescription import Remedy, RemedyKind


def propose(findings: Sequence[Finding]) -> Iterator[tuple[Remedy, tuple[int, ...]]]:
    """One change to bf16 for all fp16 overflows; what rounding did, coarser bf16 does not cure."""
    treated = tuple(
        i
        for i, finding in of_precision(findings)
        if finding.fault is Fault.OVERFLOW and format_of(finding) == "fp16"
    )
    if treated:
        yield (
            Remedy(
                RemedyKind.DTYPE,
                "train in bf16",
                change="torch.autocast(device_type, dtype=torch.bfloat16)",
                value="bf16",
            ),
            treated,
        )
