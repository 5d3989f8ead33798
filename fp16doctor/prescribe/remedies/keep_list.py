"""Proposes to keep the places where values left the format in fp32.

Must not know how a keep-list is tried or applied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fp16doctor.prescribe.treatable import format_of, of_precision, target
from fp16doctor.schema.finding import Finding
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.prescription import Remedy, RemedyKind


def propose(findings: Sequence[Finding]) -> Iterator[tuple[Remedy, tuple[int, ...]]]:
    """One keep-list for all findings of precision that arose in a 16-bit format."""
    treated = [(i, f) for i, f in of_precision(findings) if format_of(f) in ("fp16", "bf16")]
    places = tuple(dict.fromkeys(place for _, f in treated for place in _places(f)))
    if places:
        names = ", ".join(f"`{place.partition(':')[2]}`" for place in places)
        title = f"keep {names} in fp32"
        yield Remedy(RemedyKind.FP32_KEEP, title, target=places), tuple(i for i, _ in treated)


def _places(finding: Finding) -> Iterator[str]:
    """Where the value was born and where its reason lies; the same line in other modules too."""
    sites: tuple[OpSite | None, ...] = (finding.site, finding.cause_site, *finding.repeats)
    return (target(site) for site in sites if site is not None)
