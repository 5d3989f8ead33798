"""Tries Fixup's initial weights on the first step.

Must not know how a step is replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from fp16doctor.prescribe.bench import Bench
from fp16doctor.prescribe.case import Case
from fp16doctor.prescribe.fixup import fixup_factor, with_fixup
from fp16doctor.replay.branches import Branches, branches_at
from fp16doctor.schema.finding import Fault
from fp16doctor.schema.prescription import Prescription, Remedy, RemedyKind, Verification
from fp16doctor.schema.tape import Tape

GROWING_STREAM = "FD501"
_CODE = """\
with torch.no_grad():  # once, before training
    for number in NUMBERS:
        block = model.get_submodule(f"STEM{number}")
OTHERS        block.get_submodule(LAST).weight.zero_()"""
_OTHERS = """\
        for name in NAMES:
            block.get_submodule(name).weight *= FACTOR
"""


def propose(case: Case) -> Iterator[Prescription]:
    """One prescription for a stream that grows by its initial weights, if step 0 was kept."""
    treats = tuple(i for i, f in case.demanding if f.code == GROWING_STREAM)
    tape = first_step(case)
    if not treats or tape is None or case.bench is None:
        return
    site = case.findings[treats[0]].site
    branches = branches_at(tape, (site.module_path if site else None) or "")
    if branches is not None:
        overflows = tuple(i for i, f in case.demanding if f.fault is Fault.OVERFLOW)
        yield Prescription(
            _remedy(branches), treats + overflows, _proof(case.bench, tape, branches)
        )


def _remedy(branches: Branches) -> Remedy:
    factor, stem = fixup_factor(branches), branches.stem
    others = f", the others × {factor:.4g}" if branches.layers > 1 else ""
    return Remedy(
        RemedyKind.FIXUP_INIT,
        f"initialise the {branches.depth} branches of `{stem.rstrip('.')}` by Fixup: the last "
        f"layer of each 0{others}",
        change=_code(branches),
        target=(f"module:{stem}*",),
    )


def _code(branches: Branches) -> str:
    *others, last = (n.rpartition(".")[0] for n in branches.layer_names)
    factor = f"{fixup_factor(branches):.6g}"
    scaled = _OTHERS.replace("NAMES", repr(others)).replace("FACTOR", factor) if others else ""
    numbers = branches.numbers
    spelled = f"range({len(numbers)})" if numbers == tuple(range(len(numbers))) else repr(numbers)
    code = _CODE.replace("NUMBERS", spelled).replace("STEM", branches.stem)
    return code.replace("OTHERS", scaled).replace("LAST", repr(last))


def first_step(case: Case) -> Tape | None:
    """Return the kept step that ran with the initial weights."""
    tapes = case.bench.tapes if case.bench is not None else ()
    return next((t for t in tapes if t.step == 0), None)


def proof_from(bench: Bench, tape: Tape, changed: Callable[[Tape], Tape]) -> Verification:
    """The run as it would go from other initial weights, against fp32 from the same.

    The first step, and the consecutive ones where they begin with it: there the weights are
    carried on, so that only those that no step writes are changed again.
    """
    window = bench.window if bench.window and bench.window[0].step == tape.step else ()
    again = Bench((changed(tape),), bench.left_s, window=tuple(map(changed, window)))
    with bench.timing():
        return replace(bench.verification(again.as_settled()), steps=(0,))


def _proof(bench: Bench, tape: Tape, branches: Branches) -> Verification:
    return proof_from(bench, tape, lambda t: with_fixup(t, branches))
