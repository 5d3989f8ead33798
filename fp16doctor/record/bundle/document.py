"""A bundle as a JSON document and named tensors, and back.

Sites, and the random states in front of ops, recur from op to op: each is told once and numbered.

Must not know files, nor whether a tape makes sense (``checks``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from fp16doctor.record.bundle import malformed as read
from fp16doctor.record.bundle import values
from fp16doctor.record.bundle.malformed import MalformedError
from fp16doctor.schema import codec
from fp16doctor.schema.bundle import Bundle, Origin
from fp16doctor.schema.location import OpSite
from fp16doctor.schema.tape import Leaf, Mark, OpCall, Tape

Tensors = dict[str, Tensor]


# -- to JSON -------------------------------------------------------------------------------------


def to_document(bundle: Bundle) -> tuple[dict[str, Any], Tensors]:
    """Return the document and the bytes it speaks of; raises TypeError for what has no spelling."""
    writer = _Writer()
    tape = bundle.tape
    document = {
        "origin": codec.spell(Origin, bundle.origin),
        "outcome": {str(n): digest for n, digest in bundle.outcome.items()},
        "step": tape.step,
        "ops": [writer.op(call) for call in tape.ops],
        "sites": writer.sites,
        "leaves": [writer.leaf(n, leaf) for n, leaf in tape.leaves.items()],
        "snapshots": [
            [index, number, writer.bytes(f"snapshot.{index}.{number}", data)]
            for (index, number), data in tape.snapshots.items()
        ],
        "losses": [[mark.index, values.spell_ref(mark.ref)] for mark in tape.losses],
        "backward_ends": list(tape.backward_ends),
        "batch": tape.batch,
        "optimizer_at": tape.optimizer_at,
        "attempt": tape.attempt,
        "gradients": [[n, name] for n, name in tape.gradients.items()],
        "complete": tape.complete,
    }
    if tape.device:
        document["device"] = tape.device
    if tape.refused:
        document["refused"] = True
    return document, writer.tensors


class _Writer:
    def __init__(self) -> None:
        self.tensors: Tensors = {}
        self.sites: list[Any] = []
        self._site_numbers: dict[OpSite, int] = {}
        self._states: dict[bytes, str] = {}

    def op(self, call: OpCall) -> dict[str, Any]:
        """Spell one call; what is usual is left out."""
        found: dict[str, Any] = {
            "op": call.op,
            "args": [values.spell(a) for a in call.args],
            "outputs": values.spell(call.outputs),
            "site": self._site(call.site),
        }
        if call.kwargs:
            found["kwargs"] = {k: values.spell(v) for k, v in call.kwargs.items()}
        if call.mutates:
            found["mutates"] = list(call.mutates)
        if call.rng is not None:
            found["rng"] = self._state(call.rng)
        if call.generator is not None:
            found["generator"] = call.generator
        flags = [f for f in ("nonfinite", "nan", "opaque") if getattr(call, f)]
        return {**found, "flags": flags} if flags else found

    def _site(self, site: OpSite) -> int:
        """Number a site; where it stands on the tape is told by the op."""
        alike = replace(site, index=0, op="", step=0)
        if alike not in self._site_numbers:
            self._site_numbers[alike] = len(self.sites)
            self.sites.append(codec.spell(OpSite, alike))
        return self._site_numbers[alike]

    def _state(self, state: Tensor) -> str:
        key = state.numpy().tobytes()
        if key not in self._states:
            self._states[key] = self.bytes(f"rng.{len(self._states)}", state)
        return self._states[key]

    def leaf(self, number: int, leaf: Leaf) -> dict[str, Any]:
        """Spell a leaf; its bytes become a tensor."""
        kinds = [k for k in ("is_parameter", "is_buffer") if getattr(leaf, k)]
        name: dict[str, Any] = {} if leaf.name is None else {"name": leaf.name}
        if leaf.also:
            name["also"] = list(leaf.also)
        data = self.bytes(f"leaf.{number}", leaf.data)
        return {"storage": number, "data": data, **name, "kinds": kinds}

    def bytes(self, name: str, data: Tensor) -> str:
        """Put bytes under a name, in memory of their own."""
        self.tensors[name] = data.detach().cpu().clone()
        return name


# -- from JSON -----------------------------------------------------------------------------------


def from_document(document: Any, tensors: Tensors) -> Bundle:
    """Return the bundle of a document; raises MalformedError."""
    whole = read.mapping(document, "the document")
    try:
        origin = codec.unspell(Origin, whole.get("origin"))
    except ValueError as error:
        raise MalformedError(f"the origin: {error}") from None
    reader = _Reader(whole, tensors)
    outcome = read.mapping(whole.get("outcome"), "the outcome")
    return Bundle(
        tape=reader.tape(),
        origin=origin,
        outcome={_number(n): read.text(d, "a checksum") for n, d in outcome.items()},
    )


class _Reader:
    def __init__(self, document: dict[str, Any], tensors: Tensors) -> None:
        self._document, self._tensors = document, tensors
        self._taken: set[str] = set()
        self._step = read.integer(document.get("step"), "the step", -1)
        self._sites = [self._site(s) for s in self._list("sites")]

    def tape(self) -> Tape:
        """Return the tape."""
        whole = self._document
        tape = Tape(
            step=self._step,
            ops=tuple(self._op(i, o) for i, o in enumerate(self._list("ops"))),
            leaves=_without_duplicates([self._leaf(x) for x in self._list("leaves")], "a leaf"),
            snapshots=_without_duplicates(
                [self._snapshot(s) for s in self._list("snapshots")], "a snapshot"
            ),
            losses=tuple(map(_mark, self._list("losses"))),
            backward_ends=read.integers(whole.get("backward_ends"), "backward's ends"),
            batch=read.optional_integer(whole.get("batch"), "the batch"),
            optimizer_at=read.optional_integer(whole.get("optimizer_at"), "the optimizer's place"),
            attempt=read.optional_integer(whole.get("attempt"), "the attempt's place"),
            gradients=_without_duplicates(
                [_gradient(g) for g in self._list("gradients")], "a gradient"
            ),
            device=read.optional_text(whole.get("device"), "the device asked for") or "",
            complete=read.flag(whole.get("complete"), "completeness"),
            refused=read.flag(whole.get("refused", False), "whether the last op raised"),
        )
        if self._taken != self._tensors.keys():
            raise MalformedError("it holds bytes that nothing on the tape asks for")
        return tape

    def _list(self, name: str) -> list[Any]:
        return read.items(self._document.get(name), name)

    def _site(self, data: Any) -> OpSite:
        try:
            site = codec.unspell(OpSite, data)
        except ValueError as error:
            raise MalformedError(f"a site: {error}") from None
        assert isinstance(site, OpSite)
        return site

    def _op(self, index: int, data: Any) -> OpCall:
        data = read.mapping(data, "an op")
        flags = read.items(data.get("flags", []), "the flags of an op")
        rng = data.get("rng")
        op = read.text(data.get("op"), "the name of an op")
        site = self._sites[_within(data.get("site"), len(self._sites), "a site's number")]
        kwargs = read.mapping(data.get("kwargs", {}), "named arguments")
        return OpCall(
            index=index,
            op=op,
            args=tuple(values.unspell(a) for a in read.items(data.get("args"), "arguments")),
            kwargs={k: values.unspell(v) for k, v in kwargs.items()},
            outputs=values.unspell(data.get("outputs")),
            mutates=read.integers(data.get("mutates", []), "what an op writes"),
            site=replace(site, index=index, op=op, step=self._step),
            rng=None if rng is None else self._bytes(rng),
            generator=read.optional_text(data.get("generator"), "a generator's device"),
            nonfinite="nonfinite" in flags,
            nan="nan" in flags,
            opaque="opaque" in flags,
        )

    def _leaf(self, data: Any) -> tuple[int, Leaf]:
        data = read.mapping(data, "a leaf")
        kinds = read.items(data.get("kinds"), "the kinds of a leaf")
        leaf = Leaf(
            data=self._bytes(data.get("data")),
            name=read.optional_text(data.get("name"), "a leaf's name"),
            also=tuple(
                read.text(n, "a leaf's name")
                for n in read.items(data.get("also", []), "a leaf's other names")
            ),
            is_parameter="is_parameter" in kinds,
            is_buffer="is_buffer" in kinds,
        )
        return read.integer(data.get("storage"), "a storage"), leaf

    def _snapshot(self, data: Any) -> tuple[tuple[int, int], Tensor]:
        index, number, name = _fields(data, 3, "a snapshot")
        place = read.integer(index, "an op's place"), read.integer(number, "a storage")
        return place, self._bytes(name)

    def _bytes(self, name: Any) -> Tensor:
        found = self._tensors.get(read.text(name, "the name of bytes"))
        if found is None:
            raise MalformedError(f"the bytes {name[:40]!r} are missing")
        self._taken.add(name)
        return found


def _mark(data: Any) -> Mark:
    index, ref = _fields(data, 2, "a loss")
    return Mark(read.integer(index, "a loss's place"), values.unspell_ref(ref))


def _gradient(data: Any) -> tuple[int, str]:
    number, name = _fields(data, 2, "a gradient")
    return read.integer(number, "a storage"), read.text(name, "a parameter's name")


def _fields(data: Any, count: int, what: str) -> list[Any]:
    found = read.items(data, what)
    if len(found) != count:
        raise MalformedError(f"{what} has not {count} fields")
    return found


def _without_duplicates(pairs: list[tuple[Any, Any]], what: str) -> dict[Any, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise MalformedError(f"{what} is there twice")
    return found


def _within(data: Any, end: int, what: str) -> int:
    number = read.integer(data, what)
    if number >= end:
        raise MalformedError(f"{what} is {number}, beyond the last of {end}")
    return number


def _number(name: str) -> int:
    if not name.isascii() or not name.isdecimal() or len(name) > 18:
        raise MalformedError("a storage of the outcome is no number")
    return int(name)
