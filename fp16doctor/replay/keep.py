"""Which ops of a tape a keep-list covers.

Must not know how a kept op is run.
"""

from __future__ import annotations

from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.policy import KeepRule, in_module
from fp16doctor.schema.tape import Tape


def kept_ops(tape: Tape, rules: tuple[KeepRule, ...]) -> frozenset[int]:
    """Return the positions of all ops that a rule covers, their backward ops included."""
    if not rules:
        return frozenset()
    return frozenset(c.index for c in tape.ops if any(covers(r, c.site) for r in rules))


def covers(rule: KeepRule, site: OpSite) -> bool:
    """Tell whether a rule covers an op; updates of parameters are never covered by a module."""
    if rule.kind == "module":
        return site.phase is not Phase.OPTIMIZER and in_module(rule.what, site.module_path)
    if rule.kind == "op":
        return rule.names_op(site.op)
    return any(rule.names_line(x) for x in (site.source, site.caller) if x is not None)


def covers_tensor(rule: KeepRule, name: str) -> bool:
    """Tell whether a parameter or buffer belongs to a kept module."""
    return rule.kind == "module" and in_module(rule.what, name.rpartition(".")[0])
