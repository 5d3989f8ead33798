"""What a remedy gets to see: findings that demand a cure, and the bench to try one on.

Must not know any single remedy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fp16doctor.prescribe.attempt import Attempt
from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.steps import device_of, formats_of
from fp16doctor.prescribe.treatable import demanding, format_of, of_precision
from fp16doctor.replay.values import HALF
from fp16doctor.schema.finding import Fault, Finding
from fp16doctor.schema.precision import UpdateLoss
from fp16doctor.schema.prescription import Prescription, Remedy, Verdict, Verification
from fp16doctor.schema.recording import RunInfo
from fp16doctor.schema.tape import Tape

NOT_TRIED = "no step was kept on which a cure could be tried"


@dataclass(frozen=True, slots=True)
class Case:
    """Findings, and where cures are tried; ``bench`` is None where no step was kept."""

    findings: tuple[Finding, ...]  # as ranked in the diagnosis
    bench: Bench | None
    updates: tuple[UpdateLoss, ...] = ()
    refused: Tape | None = None  # a step up to a call that raised and ended the script
    run: RunInfo | None = None  # what is known of the run where no step was kept
    beyond: Bench | None = None  # steps that are not finite in fp32 either

    @property
    def demanding(self) -> tuple[tuple[int, Finding], ...]:
        """Findings that demand action, with their positions."""
        return tuple(demanding(self.findings))

    @property
    def of_precision(self) -> tuple[tuple[int, Finding], ...]:
        """Of these, the ones another format may cure."""
        return of_precision(self.findings)

    @property
    def formats(self) -> frozenset[str]:
        """16-bit formats in which the findings arose, else those of the recorded steps.

        What 16 bits rounded to 0 may be divided by, or its logarithm taken, in fp32.
        """
        found = (format_of(f) for _, f in self.of_precision)
        named = frozenset(n for n in found if n in ("fp16", "bf16"))
        tapes = self.bench.tapes if self.bench is not None else ()
        return named or frozenset(n for t in tapes for n in formats_of(t))

    @property
    def device(self) -> str:
        """Kind of device that the recorded steps, else the run, ran on; "cuda" for neither."""
        tapes = self.bench.tapes if self.bench is not None else ()
        if tapes:
            return device_of(tapes[0])
        return "cuda" if self.run is None or "cuda" in self.run.device else "cpu"

    @property
    def stores_half(self) -> bool:
        """Whether parameters may be stored in 16 bits: False where the run had none such."""
        stored = self.run.parameters_by_dtype if self.run is not None else ()
        return not stored or any(name in HALF for name, _ in stored)

    def positions(self, *faults: Fault) -> tuple[int, ...]:
        """Positions of the demanding findings of some families."""
        return tuple(i for i, f in self.demanding if f.fault in faults)

    def prescribe(
        self, remedy: Remedy, treats: Sequence[int], attempt: Attempt | None
    ) -> Prescription:
        """Return a prescription with what its trial showed."""
        if attempt is None or self.bench is None:
            proof = Verification(Verdict.NOT_VERIFIED, reason=NOT_TRIED)
        else:
            proof = self.bench.verification(attempt)
        return Prescription(remedy, tuple(treats), proof)
