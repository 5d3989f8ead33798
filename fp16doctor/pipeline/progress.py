"""What a run is doing at the moment, in words, for whoever wants to follow it.

Must not know where the words are shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.naming import family
from fp16doctor.schema.finding import Finding
from fp16doctor.schema.policy import AS_RUN, PrecisionPolicy


class Progress:
    """Turns what happens into one line; nothing where nobody listens."""

    def __init__(self, tell: Callable[[str], None] | None) -> None:
        self._tell = tell or (lambda text: None)
        self._tried: Counter[str] = Counter()

    def examining(self, step: int, before: int) -> None:
        """A step of the run is compared with the reference; ``before`` others were."""
        seen = f" · {before} examined before" if before else ""
        self._tell(f"examining step {step}{seen}")

    def trying(self, findings: Sequence[Finding], bench: Bench, policy: PrecisionPolicy) -> None:
        """A cure is tried on the kept steps."""
        name = family(policy)
        self._tried[name] += 1
        again = f" {self._tried[name]}" if self._tried[name] > 1 else ""
        what = "replaying the run" if policy == AS_RUN else f"trying {name}{again}"
        found = _plural(len(findings), "finding")
        self._tell(f"{found} · {what} · {bench.left_s:.0f} s left for cures")

    def over(self) -> None:
        """What was being done is done."""
        self._tell("")


def _plural(count: int, one: str) -> str:
    return f"{count} {one}" if count == 1 else f"{count} {one}s"
