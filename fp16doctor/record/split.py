"""Which of the ops after an update already belong to the next step.

Preparing a batch touches nothing the finished step wrote; scaler updates, EMA and logging do.
The old tape keeps its records; the new one begins with the same.

Must not know phases beyond marking what is carried as the script's own.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from fp16doctor.record.roll import NO_STORAGE, LeafStorage, RawOp, Roll, numbers
from fp16doctor.record.shards import shard_of
from fp16doctor.schema.location import Phase

MAX_CARRIED = 5_000  # most recent ops looked at


def carry_over(old: Roll, new: Roll, first: int, root: nn.Module | None) -> None:
    """Begin ``new`` with what follows op ``first`` of ``old`` and depends on nothing trained.

    ``root`` is a model whose parameters and buffers count as trained: it was just made.
    """
    start = max(first, len(old.ops) - MAX_CARRIED)
    if not any(map(writes_of, old.ops[start:])):  # numbers read for the log, no more
        return
    tainted = {old.ids[a] for a in _addresses(root) if a in old.ids} | set(old.params)
    for op in old.ops[:start]:
        if op.where[3] is not Phase.SCRIPT:  # what the script prepared may be read again
            tainted.update(writes_of(op))
        tainted.update(op.written)  # a leaf written before: its first value is no longer there
    carried: set[int] = set()
    late: set[int] = set()  # written by ops that stay behind
    for index, op in enumerate(old.ops[start:], start):
        reads, writes = reads_of(op), writes_of(op)
        # what lives on from step to step, an EMA copy say, is updated at the end of its step
        clean = tainted.isdisjoint(reads | writes) and carried.issuperset(op.written)
        if clean and _take(old, new, op, index, reads - carried):
            carried |= writes
        else:
            tainted |= writes
            late |= writes
    new.unseen |= late & new.weak.keys()  # their values are taken at the next read


def _addresses(root: nn.Module | None) -> Iterator[int]:
    for t in () if root is None else (*root.parameters(), *root.buffers()):
        try:
            yield shard_of(t).untyped_storage()._cdata
        except NO_STORAGE:
            continue


def _take(old: Roll, new: Roll, op: RawOp, index: int, leaves: set[int]) -> bool:
    """Put one record on the new tape; False if a value it needs is gone."""
    found = {}
    for number in leaves - new.leaves.keys():
        leaf = old.leaves.get(number)
        if leaf is None:
            storage = old.alive(number)
            if storage is None:
                return False
            leaf = LeafStorage(storage)
        found[number] = leaf
    new.leaves.update(found)
    source, caller, module, _ = op.where
    op.where = (source, caller, module, Phase.SCRIPT)
    for number in reads_of(op) | writes_of(op):
        weak = old.weak[number]
        new.ids[weak.cdata], new.weak[number] = number, weak
        if number in old.unseen:
            new.unseen.add(number)
        if (index, number) in old.snapshots:
            new.snapshots[len(new.ops), number] = old.snapshots[index, number]
    new.ops.append(op)
    return True


def reads_of(op: RawOp) -> set[int]:
    """Return the storages among an op's arguments."""
    return set(numbers(op.args)) | (set(numbers(list(op.kwargs.values()))) if op.kwargs else set())


def writes_of(op: RawOp) -> set[int]:
    """Return the storages an op writes or makes."""
    return {*op.written, *numbers(op.outputs)}
