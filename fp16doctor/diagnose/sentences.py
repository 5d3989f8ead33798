"""Numbers, names and recurring half-sentences of findings.

Must not know which rule uses them.
"""

from __future__ import annotations

import math

from fp16doctor.diagnose.causes import Cause
from fp16doctor.diagnose.families import base_op
from fp16doctor.diagnose.limits import limits
from fp16doctor.schema.location import OpSite, SourceLine
from fp16doctor.schema.spelling import module, number, power
from fp16doctor.schema.trace import Event

__all__ = ["number", "power"]


def counted(count: int, noun: str) -> str:
    """1 later op, 2 later ops."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def maximum(format_name: str) -> str:
    """The fp16 maximum 65504."""
    return f"the {format_name} maximum {number(limits(format_name).max)}"


def subject(site: OpSite) -> str:
    """What the user calls the place: module, else function, else line, else the op."""
    if site.module_path:
        return module(site.module_path, site.module_class)
    if site.module_path == "" and site.module_class:
        return f"`{site.module_class}`"
    line = site.source or site.caller
    if line is None:
        return f"`{site.op}`"
    return line_name(line) if _at_top_level(line) else f"`{line.function}`"


def _at_top_level(line: SourceLine) -> bool:
    return line.function in ("", "<module>")


def line_name(line: SourceLine) -> str:
    """`train.py:27`."""
    return f"`{line.file}:{line.line}`"


def place(site: OpSite) -> str:
    """`aten.sub.Tensor` in `attn` at `model.py:12`."""
    where = f"`{site.op}` in {subject(site)}" if subject(site) != f"`{site.op}`" else subject(site)
    line = site.source or site.caller
    return where if line is None or subject(site) == line_name(line) else where + at_line(line)


def at_line(line: SourceLine) -> str:
    """The line as an attachment: ` at `model.py:12``."""
    return f" at {line_name(line)}"


def op_in(site: OpSite) -> str:
    """The op in short words with its place: `log` in `dice_loss`."""
    name = f"`{base_op(site.op)}`"
    return name if subject(site) == f"`{site.op}`" else f"{name} in {subject(site)}"


def born(cause: Cause) -> str:
    """What the op of a cause made: NaN, inf or −inf."""
    return made(cause.event)


def made(event: Event) -> str:
    """What stands at the element that the event names: NaN, inf or −inf.

    An op may bear NaN and inf at once; the named element has one value. Where the exact result
    does not say which, the counts do.
    """
    if event.exact is None or math.isnan(event.exact):
        return "NaN" if event.n_nan else "inf"
    if math.isinf(event.exact) or not event.n_nan:
        return "−inf" if event.exact < 0 else "inf"
    return "NaN"


def in_fp32(site: OpSite) -> str:
    """Imperative: keep the module, or run the function or line, in fp32."""
    if site.module_path:
        return f"keep {subject(site)} in fp32"
    return f"run {subject(site)} in fp32"


def wider(format_name: str) -> str:
    """The other way out: a format with a larger range, where there is one."""
    if limits(format_name).max >= limits("bf16").max:
        return ""
    return f", or train in bf16 (maximum {number(limits('bf16').max)})"


def joined(names: tuple[str, ...]) -> str:
    """The loss, gradients and parameters."""
    ordered = [f"the {name}" if index == 0 else name for index, name in enumerate(names)]
    if len(ordered) < 2:
        return "".join(ordered)
    return ", ".join(ordered[:-1]) + " and " + ordered[-1]


def fate(cause: Cause) -> str:
    """Where the non-finite value went, in one or two sentences."""
    event = cause.event
    parts: list[str] = []
    if cause.heirs:
        inherit = "inherits" if cause.heirs == 1 else "inherit"
        parts.append(f"{counted(cause.heirs, 'later op')} {inherit} it.")
    if cause.first_nan is not None:
        parts.append(f"{place(cause.first_nan)} makes NaN of it.")
    parts.append(_end(cause))
    if cause.handled and event.reaches:
        by_scaler = "GradScaler skipped the step and lowered the scale."
        by_script = "The script checked for it and did not take the step."
        parts.append(by_script if cause.trace.found_inf is None else by_scaler)
    return " ".join(part for part in parts if part)


def fails_anyway(cause: Cause) -> str:
    """Say that the reference run is no way out, where it is not finite either."""
    count = cause.fails_anyway
    if not count:
        return ""
    return (
        f" The {cause.trace.reference} replay has inf or NaN there as well, at other elements "
        "or by another op: a wider format alone is no cure."
    )


def _end(cause: Cause) -> str:
    event, trace, state = cause.event, cause.trace, cause.silent
    if event.reaches:
        return f"It reaches {joined(event.reaches)}."
    if cause.ended:
        return "The script ended in this step, before a gradient could receive it."
    if state is None:
        return "It reaches no loss, gradient, parameter or buffer."
    if state.sink == "loss" and trace.loss is not None and trace.loss_reference is not None:
        return (
            "A later op makes it finite again: the loss is finite and wrong, "
            f"{number(trace.loss)}; the {trace.reference} replay has "
            f"{number(trace.loss_reference)}."
        )
    error = number(100 * state.error) if state.error is not None else "?"
    return (
        f"A later op makes it finite again: the {state.sink} "
        f"{'is' if state.sink == 'loss' else 'are'} finite and wrong, {error} % from "
        f"the {trace.reference} replay."
    )
