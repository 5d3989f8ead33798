"""Where plain torch would get fp32 and 16-bit operands in one product, because of a keep-list.

What leaves a kept place is fp32. Autocast casts it in front of a product; in a model that is stored
in 16 bits a module with 16-bit parameters casts its own inputs. A product anywhere else
(``att @ v`` in the script's forward) raises: its cast has to stand on that very line.

Formats are followed along the tape as torch promotes them, without values. Must not know how a
keep-list is found or written.
"""

from __future__ import annotations

from fp16doctor.replay.dataflow import producers_of
from fp16doctor.replay.environment import is_float_ref
from fp16doctor.replay.keep import covers_tensor, kept_ops, with_sharing
from fp16doctor.replay.op_lists import takes_lower_precision
from fp16doctor.replay.op_traits import base
from fp16doctor.replay.values import HALF
from fp16doctor.schema.location import OpSite, Phase
from fp16doctor.schema.policy import KeepRule, in_module
from fp16doctor.schema.tape import OpCall, Tape, TensorRef, refs_in

BEFORE_BACKWARD = (Phase.FORWARD, Phase.LOSS, Phase.SCRIPT)
_STORED = "<stored>"  # where a kept parameter or buffer comes from: no module is called with it


def bare_products(tape: Tape, rules: tuple[KeepRule, ...]) -> tuple[OpSite, ...]:
    """Return the products that get mixed operands under a keep-list, one for each line.

    Under autocast there is none. Modules cast their own inputs where the list names modules: the
    code to paste for a line or an op gives them no hook.
    """
    if not rules or runs_under_autocast(tape):
        return ()
    flow = _Flow(tape, with_sharing(tape, rules))
    found = [c.site for c in tape.ops if c.site.phase in BEFORE_BACKWARD and flow.mixes(c)]
    return tuple({(s.source, s.caller): s for s in reversed(found)}.values())[::-1]


def casting_modules(tape: Tape, rules: tuple[KeepRule, ...]) -> tuple[str, ...]:
    """Return the modules stored in 16 bits that get fp32 from outside, in order of their calls.

    Each has to cast its own inputs, or torch refuses its product.
    """
    flow = _Flow(tape, with_sharing(tape, rules))
    for call in tape.ops:
        if call.site.phase in BEFORE_BACKWARD:
            flow.mixes(call)
    return tuple(flow.cast_at)


def leaving(tape: Tape, rules: tuple[KeepRule, ...]) -> frozenset[str]:
    """Return the recorded formats of what kept ops of forward hand on to others, as torch names."""
    kept = kept_ops(tape, rules)
    made: set[int] = set()
    found: set[str] = set()
    for call in tape.ops:
        if call.site.phase not in BEFORE_BACKWARD:
            continue
        if call.index in kept:
            made.update(r.storage for r in refs_in(call.outputs))
        else:
            given = refs_in((call.args, call.kwargs))
            found.update(r.dtype for r in given if r.storage in made and is_float_ref(r))
    return frozenset(found)


def runs_under_autocast(tape: Tape) -> bool:
    """Tell whether a product of forward took an fp32 parameter that was cast for it."""
    cast: set[int] = set()
    for call in tape.ops:
        if call.site.phase not in BEFORE_BACKWARD:
            continue
        given = refs_in((call.args, call.kwargs))
        if takes_lower_precision(call.op) and any(r.storage in cast for r in given):
            return True
        if base(call.op) == "_to_copy" and any(_is_fp32_parameter(tape, r) for r in given):
            cast.update(r.storage for r in refs_in(call.outputs) if r.dtype in HALF)
    return False


def _is_fp32_parameter(tape: Tape, ref: TensorRef) -> bool:
    leaf = tape.leaves.get(ref.storage)
    return leaf is not None and leaf.is_parameter and ref.dtype == "float32"


class _Flow:
    """Which storages recorded in 16 bits are fp32 under a keep-list, op after op."""

    def __init__(self, tape: Tape, rules: tuple[KeepRule, ...]) -> None:
        self._kept = kept_ops(tape, rules)
        self._wide: dict[int, str | None] = {}  # storage -> module that made it
        self.cast_at: dict[str, None] = {}  # modules that cast what they got
        hooks = any(r.kind == "module" for r in rules)
        self._casting: set[str] = set()  # modules that cast their own inputs
        producers = producers_of(tape)
        for number, leaf in tape.leaves.items():
            ref = producers.widest_view(number)
            if ref is None or ref.dtype not in HALF:
                continue
            names = [n for n in (leaf.name, *leaf.also) if n]
            if any(covers_tensor(r, n) for r in rules for n in names):
                self._wide[number] = _STORED
            elif leaf.is_parameter and hooks:
                self._casting.update(n.rpartition(".")[0] for n in names)

    def mixes(self, call: OpCall) -> bool:
        """Follow one op; True where it is a product of fp32 and 16-bit operands."""
        given = [r for r in refs_in((call.args, call.kwargs)) if r.dtype in HALF]
        wide = [r for r in given if self._arrives_wide(call, r)]
        if call.index in self._kept:
            self._made(call)
            return False
        if takes_lower_precision(call.op):
            mixed = 0 < len(wide) < len(given)
            if wide and not mixed:
                self._made(call)
            return mixed
        if _promotes(given, wide) and not _chooses_its_format(call):
            self._made(call)
        return False

    def _arrives_wide(self, call: OpCall, ref: TensorRef) -> bool:
        if ref.storage not in self._wide:
            return False
        maker = self._wide[ref.storage]
        around = [m for m in self._casting if _inside(call.site.module_path, m)]
        entered = [] if maker == _STORED else [m for m in around if not _inside(maker, m)]
        self.cast_at.update(dict.fromkeys(entered))
        return not entered

    def _made(self, call: OpCall) -> None:
        """A view, and what is written in place, stays what its storage is."""
        given = {r.storage for r in refs_in((call.args, call.kwargs))}
        for ref in refs_in(call.outputs):
            if ref.dtype in HALF and (ref.storage not in given or call.index in self._kept):
                self._wide.setdefault(ref.storage, call.site.module_path)


def _inside(path: str | None, module: str) -> bool:
    return path is not None and (module == "" or in_module(module, path))


def _promotes(given: list[TensorRef], wide: list[TensorRef]) -> bool:
    """A tensor without dimensions decides the format only among its like."""
    return any(r.shape for r in wide) or (bool(wide) and not any(r.shape for r in given))


def _chooses_its_format(call: OpCall) -> bool:
    return base(call.op) == "_to_copy" and call.kwargs.get("dtype") is not None
