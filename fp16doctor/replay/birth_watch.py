"""Watches one op that the recorder flagged, before and after both players run it.

Must not know what becomes of a birth.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fp16doctor.formats.number_format import get_format
from fp16doctor.replay import op_traits
from fp16doctor.replay.births import BirthFacts, Born, Element, describe
from fp16doctor.replay.calls import float_inputs, outputs_of, written_refs
from fp16doctor.replay.environment import is_float_ref, torch_dtype
from fp16doctor.replay.feeds import operands
from fp16doctor.replay.local import Results, local_results
from fp16doctor.replay.player import Player
from fp16doctor.replay.values import as_real, format_name, is_finite, is_float, nonfinite_code
from fp16doctor.schema.location import Phase
from fp16doctor.schema.tape import OpCall, TensorRef

HAS_INF, HAS_NAN = 1, 2
MAX_OUTPUTS = 8  # non-finite outputs of one op that are looked at
# Here a second birth in a tensor that is non-finite elsewhere counts; later ones follow from it.
_BEFORE_BACKWARD = (Phase.FORWARD, Phase.LOSS, Phase.SCRIPT)


class BirthWatch:
    """Made in front of the op, asked behind it."""

    def __init__(self, call: OpCall, run: Player, reference: Player | None) -> None:
        self._call, self._run, self._reference = call, run, reference
        self._early = call.site.phase in _BEFORE_BACKWARD
        run.load_snapshots(call)
        self._inputs: dict[TensorRef, int] = {}  # floating input -> what it holds
        for ref in float_inputs(call):
            if run.env.has(ref.storage):
                self._inputs[ref] = nonfinite_code(run.env.tensor(ref))
        self._local: Results | None = None
        self._has_local = False
        self._before: dict[TensorRef, tuple[Tensor, Tensor]] = {}  # what it will overwrite
        if call.mutates and reference is not None and self._may_bear():
            self._keep(reference)

    def _may_bear(self) -> bool:
        codes = self._inputs.values()
        # The items of a foreach op have nothing to do with each other.
        worst = min if op_traits.is_foreach(self._call.op) else max
        return self._early or worst(codes, default=0) < HAS_NAN

    def _keep(self, reference: Player) -> None:
        self._find_local(reference)
        for ref in written_refs(self._call):
            if ref in self._inputs and reference.env.has(ref.storage):
                mine, other = self._run.env.tensor(ref), reference.env.tensor(ref)
                self._before[ref] = (mine.clone(), other.clone())

    def _find_local(self, reference: Player) -> None:
        if not self._has_local and not op_traits.is_draw(self._call.op):
            self._local = local_results(self._call, self._run, reference.policy)
        self._has_local = True

    def codes(self) -> dict[int, int]:
        """Return storage -> what the op's outputs hold, after the run played it."""
        found: dict[int, int] = {}
        for ref in self._outputs():
            code = nonfinite_code(self._run.env.tensor(ref))
            found[ref.storage] = max(code, found.get(ref.storage, 0))
        return found

    def facts(self, codes: dict[int, int]) -> BirthFacts | None:
        """Return the birth, after both played the op; None where nothing was born.

        Of several outputs the one that overflowed counts first, then the one that is finite in
        the reference run.
        """
        if self._reference is None or not self._may_bear():
            return None
        bad = [r for r in self._outputs() if codes[r.storage]][:MAX_OUTPUTS]
        found = [f for r in bad if (f := self._judge(r, self._reference)) is not None]
        return min(found, key=_rank, default=None)

    def _outputs(self) -> list[TensorRef]:
        return [r for r in outputs_of(self._call) if is_float_ref(r)]

    # -- one output ------------------------------------------------------------------------------

    def _judge(self, ref: TensorRef, reference: Player) -> BirthFacts | None:
        read = self._read_for(ref)
        if read == HAS_NAN and not self._early:
            return None
        self._find_local(reference)
        mine = as_real(self._run.env.tensor(ref))
        other = as_real(reference.env.tensor(ref))
        born = self._born(ref, read, mine, other)
        if not bool(born.mask.any()):
            return None
        facts = describe(self._call, ref, born)
        shown = self._operands(ref, facts.element)
        return replace(facts, operands=shown, integer_operand=not self._inputs)

    def _read_for(self, ref: TensorRef) -> int:
        """Return what the inputs hold that this output is made of."""
        if not op_traits.is_foreach(self._call.op):
            return max(self._inputs.values(), default=0)
        feeding = operands(self._call, ref, (0,) * len(ref.shape))
        return max((self._inputs.get(o.ref, 0) for o in feeding), default=0)

    def _born(self, ref: TensorRef, read: int, mine: Tensor, other: Tensor) -> Born:
        exact = self._exact(ref, mine)
        bad = ~torch.isfinite(mine)
        if not read:
            return Born(bad, mine, exact, other)
        fresh = self._fresh(ref, bad, exact)
        if read == HAS_NAN or bool(fresh.any()):
            return Born(fresh, mine, exact, other, dirty=True)
        made = torch.isnan(mine)
        if exact is not None:
            made &= ~torch.isfinite(exact)
        return Born(made, mine, exact, other, from_inf=True)

    def _exact(self, ref: TensorRef, mine: Tensor) -> Tensor | None:
        found = None if self._local is None else self._local.get(ref)
        if found is None or not is_float(found):
            return None
        exact = as_real(found)
        return exact if exact.shape == mine.shape else None

    def _fresh(self, ref: TensorRef, bad: Tensor, exact: Tensor | None) -> Tensor:
        """Return where finite elements alone made something non-finite.

        Either the exact result is finite and too large, which no inf among the inputs allows, or
        the op is elementwise and the elements it read are finite. A result below the threshold
        proves nothing: a kernel may spread NaN further than exact arithmetic does.
        """
        if exact is None or not self._early:
            return torch.zeros_like(bad)
        limit = get_format(format_name(torch_dtype(ref.dtype))).overflow_threshold
        fresh = bad & torch.isfinite(exact) & (exact.abs() >= limit)
        if op_traits.is_elementwise(self._call.op) and not torch_dtype(ref.dtype).is_complex:
            fresh |= bad & self._finite_inputs(bad)
        return fresh

    def _finite_inputs(self, like: Tensor) -> Tensor:
        """Return where all elements that are broadcast to an output element are finite."""
        finite = torch.ones_like(like)
        for ref in self._inputs:
            values = self._before[ref][0] if ref in self._before else self._run.env.tensor(ref)
            try:
                finite &= torch.isfinite(as_real(values)).broadcast_to(like.shape)
            except RuntimeError:  # the op reduces what it has computed
                return torch.zeros_like(like)
        return finite

    def _operands(self, ref: TensorRef, element: Element) -> tuple[tuple[str, float, float], ...]:
        found = []
        for operand in operands(self._call, ref, element):
            where = operand.element
            if op_traits.runs_along_dim(self._call.op) and operand.ref.shape == ref.shape:
                where = element
            if where is not None and operand.ref in self._inputs:
                mine, other = self._values(operand.ref)
                if not mine.is_complex():
                    found.append((operand.role, float(mine[where]), float(other[where])))
        return tuple(found)

    def _values(self, ref: TensorRef) -> tuple[Tensor, Tensor]:
        if ref in self._before:
            return self._before[ref]
        assert self._reference is not None
        return self._run.env.tensor(ref), self._reference.env.tensor(ref)


def _rank(facts: BirthFacts) -> int:
    return 0 if is_finite(facts.exact) else 1 if is_finite(facts.reference) else 2
