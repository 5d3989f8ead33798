"""Fixup's initial weights as plain torch to paste: the same bits as the trial had.

Must not know how the plan was made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fp16doctor.apply.fixup_plan import FixupPlan

_NUMBER = re.compile(r"^(?P<before>|.*\.)(?P<number>\d+)(?P<after>\..*)$")  # the last module's
_CODE = """\
# Fixup: new initial weights, once, before training (loaded ones would be lost)
stds = {}
STDS
zeros = []
ZEROS
generator = torch.Generator().manual_seed(SEED)
with torch.no_grad():
    for key in sorted(stds):
        tensor = model.get_parameter(key)
        tensor.copy_(stds[key] * torch.randn(tensor.shape, generator=generator))
    for key in zeros:
        model.get_parameter(key).zero_()"""
_WEIGHT, _BIAS = "weight", "bias"
_BIASES = 'zeros += [key.removesuffix("weight") + "bias" for key in (*stds, *zeros)]'
_WIDTH = 88  # columns of a line of names


def pasted(plan: FixupPlan, seed: int) -> str:
    """Return code that expects ``torch`` and ``model`` in place."""
    drawn = {name: std for name, std in plan.stds.items() if std}
    stds = "\n".join(_entries(drawn, _formulas(plan)))
    code = _CODE.replace("stds = {}\nSTDS", _first(stds, "stds")).replace("SEED", str(seed))
    zeros = "\n".join(_zeros(plan.stds))
    return code.replace("zeros = []\nZEROS", _first(zeros, "zeros") if zeros else "zeros = []")


def _first(lines: str, name: str) -> str:
    """Lines that add to a collection, the first of which makes it."""
    return re.sub(rf"\A{name} (?:\||\+)= ", f"{name} = ", lines) if lines else f"{name} = {{}}"


def _formulas(plan: FixupPlan) -> dict[float, str]:
    """Standard deviation -> how it is computed: He's, in a branch times its factor."""
    found: dict[float, str] = {}
    for branch in plan.branches:
        factor = f" * {plan.depth} ** {_exponent(branch.m)}" if branch.factor != 1 else ""
        for std in (plan.stds[n] for n in branch.scaled if plan.stds.get(n)):
            found.setdefault(std, _he(std, branch.factor, factor))
    for std in filter(None, plan.stds.values()):
        found.setdefault(std, _he(std, 1.0, ""))
    return found


def _he(std: float, factor: float, told: str) -> str:
    """√(2/fan_out) times a factor as Python, where that is the same number; else the number."""
    fan_out = round(2 / (std / factor) ** 2)
    formula = f"(2 / {fan_out}) ** 0.5"
    same = fan_out > 0 and factor * float((2 / fan_out) ** 0.5) == std
    return f"{formula}{told}" if same else repr(std)


def _exponent(m: int) -> str:
    """-1 / (2m − 2) as Python: it is the number that the plan has."""
    below = 2 * m - 2
    return repr(-1 / below) if below in (1, 2, 4, 8) else f"(-1 / {below})"


def _entries(stds: dict[str, float], formulas: dict[float, str]) -> list[str]:
    """``stds |= {f"body.{i}.conv1.weight": (2 / 9) ** 0.5 for i in range(32)}`` for alike names."""
    lines = []
    for std in dict.fromkeys(stds.values()):
        for template, numbers in _alike(n for n in stds if stds[n] == std):
            name, loop = _spelled(template, numbers)
            lines.append(f"stds |= {{{name}: {formulas[std]}{loop}}}")
    return lines


def _zeros(stds: dict[str, float]) -> list[str]:
    """The weights that are 0, and the biases: beside every weight in one line, else by name."""
    zeros = [name for name, std in stds.items() if not std]
    weights = [n for n in zeros if not n.endswith(f".{_BIAS}") and n != _BIAS]
    every = [n for n in stds if n not in zeros] + weights
    beside = [n.removesuffix(_WEIGHT) + _BIAS for n in every]
    biases = [n for n in zeros if n not in weights]
    if all(n.endswith(_WEIGHT) for n in every) and set(beside) == set(biases):
        return [*_listed(weights), _BIASES]
    return [*_listed(weights), *_listed(biases)]


def _listed(names: list[str]) -> list[str]:
    """Lines that add names to ``zeros``, single ones side by side."""
    lines, single = [], ""
    for template, numbers in _alike(names):
        name, loop = _spelled(template, numbers)
        if loop:
            lines.append(f"zeros += [{name}{loop}]")
        elif single and len(single) + len(name) < _WIDTH:
            single = f"{single}, {name}"
        else:
            lines += [f"zeros += [{single}]"] if single else []
            single = name
    return [*([f"zeros += [{single}]"] if single else []), *lines]


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
