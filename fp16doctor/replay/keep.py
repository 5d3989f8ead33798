"""Which ops of a tape a keep-list covers.

Must not know how a kept op is run.
"""

from __future__ import annotations

import torch

from fp16doctor.replay.dataflow import producers_of
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.policy import KeepRule, in_module
from fp16doctor.schema.tape import Tape


def kept_ops(tape: Tape, rules: tuple[KeepRule, ...]) -> frozenset[int]:
    """Return the positions of all ops that a rule covers, their backward ops included."""
    if not rules:
        return frozenset()
    rules = with_sharing(tape, rules)
    return frozenset(c.index for c in tape.ops if any(covers(r, c.site) for r in rules))


def with_sharing(tape: Tape, rules: tuple[KeepRule, ...]) -> tuple[KeepRule, ...]:
    """Add the modules that share a parameter, stored in 16 bits, with a kept module.

    Tied weights have one format: in fp32 for the one, they are so for the other.
    """
    found = dict.fromkeys(rules)
    for number, leaf in tape.leaves.items():
        names = (leaf.name, *leaf.also) if leaf.name and leaf.also else ()
        if any(covers_tensor(r, n) for r in rules for n in names) and _in_half(tape, number):
            owners = (n.rpartition(".")[0] for n in names if n)
            found |= {KeepRule(f"module:{o}"): None for o in owners if o and not _known(o, rules)}
    return tuple(found)


def _known(module: str, rules: tuple[KeepRule, ...]) -> bool:
    return any(r.kind == "module" and in_module(r.what, module) for r in rules)


def _in_half(tape: Tape, number: int) -> bool:
    ref = producers_of(tape).widest_view(number)
    return ref is not None and ref.dtype in ("float16", "bfloat16")


def covers(rule: KeepRule, site: OpSite) -> bool:
    """Tell whether a rule covers an op; updates of parameters are never covered by a module."""
    if rule.kind == "module":
        return site.phase is not Phase.OPTIMIZER and in_module(rule.what, site.module_path)
    if rule.kind == "op":
        return rule.names_op(site.op)
    if rule.kind == "line" and in_torch_module(site):
        return False
    return any(rule.names_line(x) for x in (site.source, site.caller) if x is not None)


def in_torch_module(site: OpSite) -> bool:
    """Tell whether an op runs inside a module of torch that the site's line calls.

    A line is what it computes itself: ``sigmoid(self.conv(x))`` the sigmoid alone. Modules are
    kept by their own names; one without a name, a loss that the script calls, belongs to its line.
    """
    line = site.source
    if not site.module_path or site.module_class is None or line is None:
        return False
    own = line.function.startswith(f"{site.module_class}.")  # a user's class of the same name
    return not own and hasattr(torch.nn, site.module_class)


def covers_tensor(rule: KeepRule, name: str | None) -> bool:
    """Tell whether a parameter or buffer belongs to a kept module."""
    return (
        name is not None and rule.kind == "module" and in_module(rule.what, name.rpartition(".")[0])
    )
