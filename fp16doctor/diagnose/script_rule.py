"""What a rule over a script's source is, and the registry of them.

Must not know any single rule.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from fp16doctor.diagnose.beside_run import Stands, decided_by_run
from fp16doctor.diagnose.script_reading.patch import Edit
from fp16doctor.diagnose.script_reading.script import Script
from fp16doctor.schema.finding import Severity


@dataclass(frozen=True, slots=True)
class Suspicion:
    """What a rule says of one node."""

    node: ast.expr | ast.stmt  # its first line is the line of the finding
    what: str  # one line, a fact, lower case, no final stop
    reason: str  # the mechanism, one or two sentences
    advice: str  # the right form in words, imperative
    severity: Severity = Severity.WARNING
    edits: Iterable[Edit] = ()  # the right form, as edits of the script


ScriptCheck = Callable[[Script], Iterator[Suspicion]]


@dataclass(frozen=True, slots=True)
class ScriptRule:
    """One check of a script's source and its explain page."""

    code: str  # FD701
    name: str  # a noun for the bad state; that of the run's rule where there is one for it
    page: str  # docstring of the rule's module, shown by ``fp16doctor explain``
    check: ScriptCheck
    stands: Stands = decided_by_run  # whether a run of the script leaves it to be told
    same_as: tuple[str, ...] = ()  # names of the run's rules that see the same mistake
    proven: bool = False  # the text alone shows the harm: beside a run it is no mere note

    @property
    def summary(self) -> str:
        """First line of the explain page."""
        return self.page.strip().partition("\n")[0]


_registry: dict[str, ScriptRule] = {}


def script_rule(
    *,
    code: str,
    name: str,
    stands: Stands = decided_by_run,
    same_as: tuple[str, ...] = (),
    proven: bool = False,
) -> Callable[[ScriptCheck], ScriptCheck]:
    """Register a generator function as the rule ``code``.

    Args:
        code: FD701.
        name: that of the run's rule where one sees the same fault.
        stands: what a run must show for the suspicion to be told beside it.
        same_as: further names of rules of the run that see the same mistake.
        proven: whether the text alone shows the harm, so that its severity holds beside a run.

    Raises:
        ValueError: the code or the name is taken among the script rules, or the file is not named
            after the rule (underscores for hyphens).
    """

    def register(check: ScriptCheck) -> ScriptCheck:
        if code in _registry or any(known.name == name for known in _registry.values()):
            raise ValueError(
                f"script rule {code} {name} was registered, but its code or name is taken; "
                "choose a free one  [duplicate-rule]"
            )
        if check.__module__.rpartition(".")[2] != name.replace("-", "_"):
            raise ValueError(
                f"script rule {name} was registered from module {check.__module__}; "
                f"name the file {name.replace('-', '_')}.py  [rule-file-name]"
            )
        page = sys.modules[check.__module__].__doc__ or ""
        _registry[code] = ScriptRule(code, name, page, check, stands, same_as, proven)
        return check

    return register


def all_script_rules() -> tuple[ScriptRule, ...]:
    """Every script rule, by code; imports the modules of ``script_rules`` in name order."""
    package = importlib.import_module("fp16doctor.diagnose.script_rules")
    for module in sorted(info.name for info in pkgutil.iter_modules(package.__path__)):
        importlib.import_module(f"{package.__name__}.{module}")
    return tuple(_registry[code] for code in sorted(_registry))
