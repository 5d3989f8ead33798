"""One scan, as asked for on the command line.

Must not know what is done with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from fp16doctor.cli.outputs import STDOUT, Output, named
from fp16doctor.record.script import Target


@dataclass(frozen=True, slots=True)
class Request:
    """What to run, where the answer goes, and what may be spent on it."""

    target: Target
    page: Output
    document: Output
    steps: int | None  # optimizer attempts after which the script is stopped
    sources: bool  # whether source lines may appear in the report
    fail_on: str  # error, warning, never
    budget_s: float = 45.0  # seconds for trying cures
    tolerance: float = 1.0  # factor on what a cure may miss of the fp32 descent
    bundle: Output | None = None  # where a step is kept for another machine
    compiled: bool = False  # whether ``torch.compile`` compiles
    device: str = "auto"  # auto, cpu, cuda: whether a CUDA device that is not there is simulated
    confirm: bool = False  # run the script again under the recommended cure
    style: bool = False  # tell what harms no run of the script as well
    form: str = "text"  # text, json, github: how findings are told
    stdout: Output = field(default_factory=lambda: named(STDOUT))  # of the start

    @property
    def outputs(self) -> tuple[Output, ...]:
        """Every file that is written."""
        return tuple(o for o in (self.page, self.document, self.bundle) if o is not None)
