"""Fixup's initial weights as plain torch to paste: the same bits as the trial had.

Must not know how the plan was made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fp16doctor.apply.fixup_plan import FixupPlan

_NUMBER = re.compile(r"^(?P<before>|.*\.)(?P<number>\d+)(?P<after>\..*)$")  # the last module's
_CODE = """\
# once, before training; the same: fp16doctor.fixup_(model, (x,), generator=generator), x a batch
generator = torch.Generator().manual_seed(SEED)
stds = {}
STDS
with torch.no_grad():
    for name in sorted(stds):
        parameter = model.get_parameter(name)
        parameter.copy_(stds[name] * torch.randn(parameter.shape, generator=generator))
    for name in ZEROS:
        model.get_parameter(name).zero_()"""


def pasted(plan: FixupPlan, seed: int) -> str:
    """Return code that expects ``torch`` and ``model`` in place."""
    drawn = {name: std for name, std in plan.stds.items() if std}
    stds = [f"stds |= {line}" for line in _entries(drawn)]
    zeros = [name for name, std in plan.stds.items() if not std]
    code = _CODE.replace("SEED", str(seed)).replace("STDS", "\n".join(stds))
    return code.replace("ZEROS", _listed(zeros))


def _entries(stds: dict[str, float]) -> list[str]:
    """``{f"body.{i}.conv1.weight": 0.024 for i in range(32)}`` for alike names."""
    lines = []
    for std in dict.fromkeys(stds.values()):
        for template, numbers in _alike(n for n in stds if stds[n] == std):
            key = _spelled(template, numbers)
            lines.append(f"{{{key[0]}: {std!r}{key[1]}}}")
    return lines


def _listed(names: list[str]) -> str:
    parts = []
    for template, numbers in _alike(names):
        name, loop = _spelled(template, numbers)
        parts.append(f"*({name}{loop})," if loop else f"{name},")
    return "(" + " ".join(parts) + ")"


def _alike(names: Iterable[str]) -> list[tuple[str, list[int]]]:
    """Names that differ in one module's number only; a name without one has no numbers."""
    groups: dict[str, list[int]] = {}
    for name in names:
        found = _NUMBER.match(name)
        template = name if found is None else f"{found['before']}{{i}}{found['after']}"
        groups.setdefault(template, []).extend([] if found is None else [int(found["number"])])
    return list(groups.items())


def _spelled(template: str, numbers: list[int]) -> tuple[str, str]:
    """The name, and the loop over its number: "" where there is one name."""
    if len(numbers) < 2:
        return repr(template.format(i=numbers[0]) if numbers else template), ""
    run = list(range(numbers[0], numbers[-1] + 1))
    spelled = f"range({run[0]}, {run[-1] + 1})" if numbers == run else repr(tuple(numbers))
    return f"f{template!r}", f" for i in {spelled.replace('range(0, ', 'range(')}"
