"""Fixup for a forward pass: which layers get which standard deviation, or why there is no plan.

arXiv 1901.09321, section 3: the last layer of each branch and the classifier 0; other layers of a
branch of m layers He's standard deviation × L^(−1/(2m−2)) in a network of L branches; all other
layers He's.

Must not know how the pass was recorded, nor where the weights are kept.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from fp16doctor.apply.closing import stuck_behind
from fp16doctor.apply.fixup_refusals import refuse
from fp16doctor.apply.flow import Flow
from fp16doctor.apply.residuals import Residual, longest_way, residuals
from fp16doctor.errors import FixupError


@dataclass(frozen=True, slots=True)
class Branch:
    """One residual branch: parameter names of its weights, in order of use."""

    path: str  # module whose forward adds it
    scaled: tuple[str, ...]  # He's standard deviation × factor
    last: tuple[str, ...]  # 0
    beside: tuple[str, ...]  # behind the last layer, a gate's: He's as it is
    shortcut: tuple[str, ...]  # projection on the way around the branch: He's as it is
    m: int  # layers, the last counted
    factor: float  # L^(−1/(2m−2)); 1 where there is no layer but the last
    holds: int = 0  # inner branches
    additions: int = 1  # times that the same layers are added


@dataclass(frozen=True, slots=True)
class FixupPlan:
    """What ``fixup_`` sets."""

    depth: int  # L: branches on the longest way
    branches: tuple[Branch, ...]
    classifier: tuple[str, ...]  # 0
    others: tuple[str, ...]  # outside branches, He's as it is
    stds: dict[str, float]  # parameter FQN -> standard deviation; 0 for zeros, biases included
    skipped: tuple[tuple[str, str], ...] = ()  # parameter and why it is left as it is

    def __str__(self) -> str:
        """Return the plan as lines: a head, one line a branch, the classifier, what is left."""
        head = f"Fixup: L = {self.depth} residual {_plural(self.depth, 'branch', 'branches')}"
        lines = [head, *(_branch_line(b, self.stds) for b in self.branches)]
        lines.append(f"  classifier: {_zeros(self.classifier) or 'none found'}")
        lines += [f"  outside branches: {n} std {self.stds[n]:.4g}" for n in self.others]
        count = sum(n not in self._weights() for n in self.stds)
        lines.append(f"  biases: {count} × 0")
        lines += [f"  left as it is: {name} ({reason})" for name, reason in self.skipped]
        return "\n".join(lines)

    def _weights(self) -> set[str]:
        inside = {n for b in self.branches for n in (*b.scaled, *b.last, *b.beside, *b.shortcut)}
        return inside | {*self.classifier, *self.others}


def _plural(count: int, one: str, many: str) -> str:
    return one if count == 1 else many


def _zeros(names: tuple[str, ...]) -> str:
    return ", ".join(f"{n} 0" for n in names)


def _branch_line(branch: Branch, stds: dict[str, float]) -> str:
    parts = [f"{n} std {stds[n]:.4g}" for n in branch.scaled]
    parts += [f"{n} 0" for n in branch.last]
    parts += [f"beside it {n} std {stds[n]:.4g}" for n in branch.beside]
    parts += [f"shortcut {n} std {stds[n]:.4g}" for n in branch.shortcut]
    notes = f"m = {branch.m}"
    if branch.scaled:
        notes += f", factor {branch.factor:.4g}"
    if branch.holds:
        notes += f", holds {branch.holds} inner"
    if branch.additions > 1:
        notes += f", added {branch.additions} times"
    return f"  {branch.path or '(root)'}: {notes}: {', '.join(parts)}"


def fixup_factor(depth: int, m: int) -> float:
    """Return L^(−1/(2m−2)) (arXiv 1901.09321, rule 2); 1 for m = 1, where only zeros are set."""
    return float(depth ** (-1 / (2 * m - 2))) if m > 1 else 1.0


def plan_of(flow: Flow) -> FixupPlan:
    """Return the plan for a pass.

    Raises:
        FixupError: there is no residual branch, or there are some that Fixup is not for.
    """
    found = residuals(flow)
    refuse(flow, found)
    return _Builder(flow, found).plan()


class _Builder:
    """Collects one standard deviation for each parameter."""

    def __init__(self, flow: Flow, found: tuple[Residual, ...]) -> None:
        self._flow, self._found = flow, found
        self._depth = longest_way(flow, found)
        self._stds: dict[str, float] = {}
        self._skipped: dict[str, str] = {}
        self._fan_outs = {layer.weight: layer.fan_out for _, layer in flow.layers()}

    def plan(self) -> FixupPlan:
        counts = Counter(self._branch(one) for one in self._found)
        branches = tuple(replace(branch, additions=n) for branch, n in counts.items())
        inside = {n for r in self._found for n in (*r.layers, *r.shortcut)}
        outside = [v.number for v, _ in self._flow.layers() if v.number not in inside]
        classifier = self._classifier(outside)
        rest = [self._name(n) for n in outside]
        others = tuple(dict.fromkeys(n for n in rest if n not in classifier))
        others = tuple(n for n in others if self._set(n, 1.0))
        self._biases()
        return FixupPlan(
            self._depth, branches, classifier, others, self._stds, tuple(self._skipped.items())
        )

    def _branch(self, one: Residual) -> Branch:
        last = self._names(one.last)
        ways = [n for n in one.layers if n not in one.last]
        ahead = [n for n in ways if any(self._flow.values[e].descends_from(n) for e in one.last)]
        beside = [n for n in ways if n not in ahead] if one.last else []
        scaled = ahead if one.last else ways
        factor = fixup_factor(self._depth, one.depth) if scaled else 1.0
        for name in last:
            self._set(name, 0.0)
        for numbers, times in ((scaled, factor), (beside, 1.0), (one.shortcut, 1.0)):
            for name in self._names(numbers):
                self._set(name, times)
        call = self._flow.values[one.addition].call
        path = call.site.module_path if call is not None else None
        return Branch(
            path or "", self._names(scaled), last, self._names(beside),
            self._names(one.shortcut), one.depth, factor, one.holds,
        )  # fmt: skip

    def _names(self, numbers: list[int] | tuple[int, ...]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._name(n) for n in numbers))

    def _name(self, number: int) -> str:
        layer = self._flow.values[number].layer
        assert layer is not None  # only layers are asked for
        return layer.weight

    def _set(self, name: str, times: float) -> bool:
        """Give a weight ``times`` He's standard deviation, √(2/fan_out); False: it is left."""
        reason = self._reason(name)
        if reason:
            self._skipped[name] = reason
            return False
        std = times * float((2 / self._fan_outs[name]) ** 0.5)
        known = self._stds.setdefault(name, std)
        if known != std:
            raise FixupError(
                f"the weight `{name}` is used at several places that need different standard "
                f"deviations ({known:.4g} and {std:.4g}); give each place its own weight",
                "fixup-shared-weight",
            )
        return True

    def _reason(self, name: str) -> str:
        used = self._flow.other_uses.get(name)
        if used is not None:
            return f"it is used by {used} too"
        if any(layer.computed for _, layer in self._flow.layers() if layer.weight == name):
            return "the layer's weight is computed from it"
        return ""

    def _classifier(self, outside: list[int]) -> tuple[str, ...]:
        """Layers behind the last branch that no layer follows, if they may be 0."""
        flow, found = self._flow, []
        makers = [v for v, _ in flow.layers()]
        for number in outside:
            followed = any(v.number != number and v.descends_from(number) for v in makers)
            behind = any(flow.values[number].descends_from(r.addition) for r in self._found)
            if followed or not behind or self._name(number) in self._stds:
                continue
            name, stuck = self._name(number), stuck_behind(flow, number)
            if stuck:
                self._skipped[name] = f"as the last layer it would be 0, but {stuck}"
            elif self._set(name, 0.0):
                found.append(name)
        return tuple(found)

    def _biases(self) -> None:
        """The bias beside each weight that is set starts at 0."""
        for name in tuple(self._stds):
            owner, _, piece = name.rpartition(".")
            bias = f"{owner}.bias" if owner else "bias"
            if piece == "weight" and bias in self._flow.names:
                self._stds[bias] = 0.0
