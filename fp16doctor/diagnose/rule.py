"""What a rule is, what it gets to see, and the registry of all rules.

Must not know any single rule.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fp16doctor.schema.finding import Finding
from fp16doctor.schema.precision import UpdateLoss
from fp16doctor.schema.recording import Recording, StepInfo
from fp16doctor.schema.trace import ReplayTrace
from fp16doctor.schema.usage import UsageFact, UsageKind


@dataclass(frozen=True, slots=True)
class Observations:
    """Everything a rule may look at."""

    recording: Recording
    traces: tuple[ReplayTrace, ...] = ()  # examined steps
    final: bool = True  # False: the script is still running, later steps are unknown
    updates: tuple[UpdateLoss, ...] = ()  # stored 16-bit tensors, over the examined steps

    @property
    def usage(self) -> tuple[UsageFact, ...]:
        """How the script used mixed precision."""
        return self.recording.usage

    def used(self, *kinds: UsageKind) -> tuple[UsageFact, ...]:
        """The facts of these kinds."""
        return tuple(f for f in self.usage if f.kind in kinds)

    def step(self, number: int) -> StepInfo | None:
        """The optimizer attempt ``number``, None where it was not recorded (or is not over yet)."""
        return next((s for s in self.recording.steps if s.step == number), None)

    def steps_after(self, number: int) -> tuple[StepInfo, ...]:
        """Later optimizer attempts, in order."""
        return tuple(s for s in self.recording.steps if s.step > number)

    def trace(self, number: int) -> ReplayTrace | None:
        """The examination of step ``number``, None where it was not examined."""
        return next((t for t in self.traces if t.step == number), None)

    def scaler_steps(self) -> tuple[StepInfo, ...]:
        """Attempts that went through a GradScaler."""
        return tuple(s for s in self.recording.steps if s.found_inf is not None)


Check = Callable[[Observations], Iterator[Finding]]

# What a rule can ask for: whether it is there, and what to say where it is not.
_NEEDS: dict[str, tuple[Callable[[Observations], bool], str]] = {
    "recording": (lambda seen: True, ""),
    "traces": (lambda seen: bool(seen.traces), "no step was replayed"),
    "updates": (
        lambda seen: bool(seen.updates),
        "no 16-bit tensor was updated in an examined step",
    ),
    "scaler": (lambda seen: bool(seen.scaler_steps()), "no GradScaler was seen"),
}


@dataclass(frozen=True, slots=True)
class Rule:
    """One check: a pure function with the facts it needs and its explain page."""

    code: str  # FD101
    name: str  # activation-overflow: a noun for the bad state
    needs: tuple[str, ...]  # keys of the table above
    page: str  # docstring of the rule's module, shown by ``fp16doctor explain``
    check: Check
    explains: tuple[str, ...] = ()  # codes, or beginnings of codes, of findings it is the cause of

    @property
    def summary(self) -> str:
        """First line of the explain page."""
        return self.page.strip().partition("\n")[0]

    def missing(self, seen: Observations) -> str:
        """Why the rule cannot judge ``seen``; empty where it can."""
        absent = (_NEEDS[need][1] for need in self.needs if not _NEEDS[need][0](seen))
        return ", ".join(absent)


_registry: dict[str, Rule] = {}


def rule(
    *, code: str, name: str, needs: tuple[str, ...], explains: tuple[str, ...] = ()
) -> Callable[[Check], Check]:
    """Register a generator function as the rule ``code``.

    Raises:
        ValueError: the code or the name is taken, a need is unknown, or the file is not named
            after the rule (underscores for hyphens).
    """

    def register(check: Check) -> Check:
        _refuse_misfits(code, name, needs, check.__module__)
        page = sys.modules[check.__module__].__doc__ or ""
        _registry[code] = Rule(code, name, needs, page, check, explains)
        return check

    return register


def _refuse_misfits(code: str, name: str, needs: tuple[str, ...], module: str) -> None:
    if code in _registry or any(known.name == name for known in _registry.values()):
        raise ValueError(
            f"rule {code} {name} was registered, but its code or name is taken; "
            "choose a free one  [duplicate-rule]"
        )
    if module.rpartition(".")[2] != name.replace("-", "_"):
        raise ValueError(
            f"rule {name} was registered from module {module}; "
            f"name the file {name.replace('-', '_')}.py  [rule-file-name]"
        )
    unknown = sorted(set(needs) - set(_NEEDS))
    if unknown:
        raise ValueError(
            f"rule {name} needs {unknown}, which is unknown; "
            f"choose from {sorted(_NEEDS)}  [rule-needs]"
        )


def all_rules() -> tuple[Rule, ...]:
    """Every rule, by code; imports the modules of ``rules`` in name order."""
    package = importlib.import_module("fp16doctor.diagnose.rules")
    for module in sorted(info.name for info in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"{package.__name__}.{module}")
    return tuple(_registry[code] for code in sorted(_registry))
