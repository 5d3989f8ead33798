"""Takes modules in code to paste from the model that has them, where a script has several.

Where a code names modules of more than one model, ``model`` is a ModuleDict of them.

Must not know what the code does.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from fp16doctor.pipeline.own_model import in_code
from fp16doctor.record.module_paths import ModulePaths
from fp16doctor.record.root_name import heads_of
from fp16doctor.schema.prescription import Prescription

_QUOTED = re.compile(r"(?<=['\"])(\w+)(?=['\".])")  # what a quoted path begins with
_SEVERAL = "model = torch.nn.ModuleDict({{{}}})\n"
_OWN = ("- ", "+ ")  # lines of an edit have the script's names already


@dataclass(frozen=True, slots=True)
class OwnRoot:
    """One of several models that the script trains."""

    name: str  # variable that holds it
    heads: frozenset[str]  # what the paths of its modules and parameters begin with
    is_in_front: bool  # paths in a diagnosis have the name in front of that


def own_roots(modules: ModulePaths) -> tuple[OwnRoot, ...]:
    """Return all models whose variables are known; what holds no parameter is none."""
    found = []
    for root in modules.roots():
        name, is_in_front = modules.variables.of(root)
        if name and any(True for _ in root.parameters()):
            found.append(OwnRoot(name, heads_of(root), is_in_front))
    return tuple(found)


def with_own_roots(
    prescriptions: Sequence[Prescription], alone: str, roots: Sequence[OwnRoot]
) -> tuple[Prescription, ...]:
    """Return the prescriptions with the models whose modules their code names for ``model``.

    Args:
        prescriptions: of one diagnosis.
        alone: name of the one model that trains, "" where there are several; its modules are not
            looked for.
        roots: all models whose variables are known.
    """
    return tuple(_renamed(p, alone, roots) for p in prescriptions) if roots else (*prescriptions,)


def _renamed(cure: Prescription, alone: str, roots: Sequence[OwnRoot]) -> Prescription:
    remedy = cure.remedy
    forms = {words: _in(code, alone, roots) for words, code in remedy.forms.items()}
    change = _in(remedy.change, alone, roots)
    return replace(cure, remedy=replace(remedy, change=change, forms=forms))


def _in(code: str, alone: str, roots: Sequence[OwnRoot]) -> str:
    if code.startswith("--- "):
        return code
    named = _named_in(code, alone, roots)
    if len(named) > 1:
        for root in named:
            code = code if root.is_in_front else _with_front(code, root)
        return _SEVERAL.format(", ".join(f"{r.name!r}: {r.name}" for r in named)) + code
    for root in named:
        code = in_code(_without_front(code, root), root.name)
    return code


def _named_in(code: str, alone: str, roots: Sequence[OwnRoot]) -> list[OwnRoot]:
    said = set(_QUOTED.findall("\n".join(x for x in code.split("\n") if not x.startswith(_OWN))))
    fronts = [r for r in roots if r.is_in_front and r.name in said]
    plain = [r for r in roots if not r.is_in_front and not said.isdisjoint(r.heads)]
    return fronts + plain if fronts or not alone else []


def _without_front(code: str, root: OwnRoot) -> str:
    if not root.is_in_front:
        return code
    return re.sub(rf"(?<=['\"]){root.name}(?:\.|(?=['\"]))", "", code)


def _with_front(code: str, root: OwnRoot) -> str:
    def longer(path: re.Match[str]) -> str:
        return f"{root.name}.{path[0]}" if path[0] in root.heads else path[0]

    return _QUOTED.sub(longer, code)
