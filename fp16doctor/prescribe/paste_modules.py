"""Modules in fp32 as plain torch to paste: no line more than the recorded step asks for.

A module that was called with one tensor needs no walk through nests; where no parameter is stored
in 16 bits nothing has to cast what it is given.

Must not know lines and ops (``paste``).
"""

from __future__ import annotations

from dataclasses import dataclass

from fp16doctor.replay.bare_products import casting_modules
from fp16doctor.replay.dataflow import producers_of
from fp16doctor.replay.values import HALF
from fp16doctor.schema.policy import KeepRule
from fp16doctor.schema.tape import CallForm, Tape

MOST_NAMED = 4  # modules that are told to cast by name; else all that can
_NEST = CallForm("nest", "nest")
_RANK = ("tensor", "flat", "nest")

NESTED_TO = """\
def to(dtype, x):  # tensors in tuples, lists and dicts too
    if torch.is_tensor(x):
        return x.to(dtype) if x.is_floating_point() else x
    if isinstance(x, dict):
        return {k: to(dtype, v) for k, v in x.items()}
    return type(x)(to(dtype, v) for v in x) if type(x) in (tuple, list) else x
"""
_FLAT_TO = """\
def to(dtype, x):
    return x.to(dtype) if torch.is_tensor(x) and x.is_floating_point() else x
"""
_ONE = """\
module = model.get_submodule(NAMES)
forward = module.WIDE
def in_fp32(ARGS):
    with torch.autocast(DEVICE, enabled=False):
        return RESULT
module.forward = in_fp32
"""
_SEVERAL = """\
def in_fp32(module):
    forward = module.WIDE
    def wide(ARGS):
        with torch.autocast(DEVICE, enabled=False):
            return RESULT
    module.forward = wide

for name in NAMES:
    in_fp32(model.get_submodule(name))
"""
_CAST_NAMED = """\
for name in {names!r}:  # where the model goes on in its own format
    cast = lambda module, args: args[0].to(torch.{dtype})
    model.get_submodule(name).register_forward_pre_hook(cast)
"""
_CAST_ALL = """\
def in_own_format(module, args, kwargs):
    return to(next(module.parameters(recurse=False)).dtype, (args, kwargs))

for module in model.modules():  # a model in 16 bits casts where it goes on
    own = {p.dtype for p in module.parameters(recurse=False)}
    if own & {torch.float16, torch.bfloat16}:
        module.register_forward_pre_hook(in_own_format, with_kwargs=True)
"""
_CALLS = {
    "tensor": ("x", "forward(x.float())"),
    "flat": (
        "*args, **kwargs",
        "forward(*(to(torch.float32, x) for x in args), "
        "**{k: to(torch.float32, v) for k, v in kwargs.items()})",
    ),
    "nest": ("*args, **kwargs", "forward(*to(torch.float32, args), **to(torch.float32, kwargs))"),
}


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the recorded step says about the modules of a list."""

    takes: str  # the widest form of all, as ``CallForm`` has it
    returns: str
    stored_half: bool  # one of their parameters or buffers is
    casting: tuple[str, ...] | None  # modules that have to cast what they get; None: all that can
    dtype: str = ""  # of these


@dataclass(frozen=True, slots=True)
class Known:
    """What the code is made for."""

    tape: Tape | None
    outputs: str | None = None  # torch name of the format that the modules return, None for fp32
    stores_half: bool = True  # without a tape: parameters may be stored in 16 bits


def modules_in_fp32(
    names: list[str], rules: tuple[KeepRule, ...], known: Known, *, nests: bool
) -> str:
    """Return the code that keeps the named modules of ``model`` in fp32; DEVICE is left in it.

    ``rules`` is the whole list, lines and ops too. ``nests``: code behind it calls
    ``to(dtype, x)`` for nests of tensors.
    """
    facts, outputs = _facts(names, rules, known), known.outputs
    arguments, result = _CALLS[facts.takes]
    if outputs:
        narrow = f"{result}.to(torch.{outputs})"
        result = narrow if facts.returns == "tensor" else f"to(torch.{outputs}, {result})"
    code = (_ONE if len(names) == 1 else _SEVERAL).replace("ARGS", arguments)
    code = code.replace("NAMES", repr(names[0] if len(names) == 1 else names))
    code = code.replace("WIDE", "float().forward" if facts.stored_half else "forward")
    code = code.replace("RESULT", result) + _casts(facts)
    return _helper(code, nests or _walks(facts, outputs)) + code


def _casts(facts: _Facts) -> str:
    if facts.casting is None:
        return _CAST_ALL
    if not facts.casting:
        return ""
    return _CAST_NAMED.format(names=list(facts.casting), dtype=facts.dtype)


def _walks(facts: _Facts, outputs: str | None) -> bool:
    """Tell whether ``to`` meets tuples, lists or dicts."""
    back = outputs is not None and facts.returns != "tensor"
    return facts.takes == "nest" or facts.casting is None or back


def _helper(code: str, walks: bool) -> str:
    if walks:
        return f"{NESTED_TO}\n"
    return f"{_FLAT_TO}\n" if " to(" in code or "(to(" in code else ""


def _facts(names: list[str], rules: tuple[KeepRule, ...], known: Known) -> _Facts:
    tape, outputs = known.tape, known.outputs
    if tape is None:
        casts = None if known.stores_half and outputs is None else ()
        return _Facts("nest", "nest", known.stores_half, casts)
    forms = [tape.calls.get(n, _NEST) for n in names]
    half = _stored_half(tape)
    own = any(_belongs(n, names) for n in half)
    casting = () if outputs else _casting(tape, rules, half)
    dtypes = {half[n] for n in half if n.rpartition(".")[0] in (casting or ())}
    if len(dtypes) > 1:
        casting = None
    return _Facts(
        max((f.takes for f in forms), key=_RANK.index),
        max((f.returns for f in forms), key=_RANK.index),
        own,
        casting,
        next(iter(dtypes), ""),
    )


def _casting(
    tape: Tape, rules: tuple[KeepRule, ...], half: dict[str, str]
) -> tuple[str, ...] | None:
    """Return the modules by name, where they are few and take one tensor each."""
    if not half:
        return ()
    found = casting_modules(tape, rules)
    few = len(found) <= MOST_NAMED
    single = all(tape.calls.get(m, _NEST).takes == "tensor" for m in found)
    return found if few and single else None


def _stored_half(tape: Tape) -> dict[str, str]:
    """Return the names of parameters and buffers stored in 16 bits, and their torch dtypes."""
    producers, found = producers_of(tape), {}
    for number, leaf in tape.leaves.items():
        ref = producers.widest_view(number) if leaf.name else None
        if ref is not None and ref.dtype in HALF:
            found.update({n: ref.dtype for n in (leaf.name, *leaf.also) if n})
    return found


def _belongs(tensor: str, modules: list[str]) -> bool:
    return any(m == "" or tensor.startswith(f"{m}.") for m in modules)
