"""The only place that formats a number for a human, and the small words around numbers and places.

Must not know findings or pages.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence

from fp16doctor.schema import spelling
from fp16doctor.schema.diagnosis import FormatLimits
from fp16doctor.schema.location import TEXT_ROLE, OpSite, SourceLine

NOTHING = "–"  # a table cell without a value
REACH = ("by replay of ", "on one step only")  # how a reason begins that says how far a proof goes
REPLAYED = "replayed:"  # how the source of evidence begins that a replay gave; then its policy
UNEXAMINED = "nothing was examined, so that no check says anything about training"
NO_BREAK = "\u00a0"
IN_THE_TEXT = "in the text of the script"  # of a site that no op has
# Characters that reorder the text around them: harmless in a file name, misleading in a report.
_REORDERING = {0x200E, 0x200F, 0x061C, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
_LIMIT_NAMES = {"max": "maximum", "min": "minimum"}


def number(value: float | None) -> str:
    """Three significant digits; fp16's limits in full, powers of two as such.

    >>> number(184320.0), number(65504.0), number(2.0**-24), number(2.5)
    ('1.84e5', '65504', '2⁻²⁴', '2.5')
    """
    return NOTHING if value is None else spelling.number(value)


def rounded(value: float | None) -> str:
    """Three significant digits, also close to 1: a share that is met to 1e-5 is met."""
    if value is None:
        return NOTHING
    return spelling.special(value) or spelling.plain(value, 3)


def limit(value: float) -> str:
    """A limit of a format: in full where short, else five significant digits."""
    return spelling.special(value) or spelling.plain(value, 5)


def loss(value: float | None) -> str:
    """A loss in five significant digits: two formats often differ only in the fourth."""
    if value is None:
        return NOTHING
    rounded = math.isfinite(value) and value != 0
    return spelling.plain(value, 5) if rounded else spelling.special(value)


def count(value: int) -> str:
    """A count with grouped digits: ``1 048 576``."""
    return f"{value:,}".replace(",", NO_BREAK)


def plural(value: int, one: str, many: str | None = None) -> str:
    """``1 op``, ``2 ops``."""
    return f"{count(value)} {one if value == 1 else many or one + 's'}"


def percent(part: int, total: int) -> str:
    """A share that never rounds to none or all unless it is: ``0.0011 %``."""
    share = 100 * part / total if total else 0.0
    text = f"{share:.2g}" if share < 10 else f"{share:.3g}"
    if part < total and float(text) >= 100:
        return f"> 99.9{NO_BREAK}%"
    return f"{spelling.tidy(text)}{NO_BREAK}%"


def share(value: float) -> str:
    """A share between 0 and 1 as percent: ``1.2 %``."""
    percent = spelling.plain(100 * value, 2) if math.isfinite(value) else spelling.special(value)
    return f"{percent}{NO_BREAK}%"


def whole_share(value: float) -> str:
    """A share as percent, from 10 % on without decimals: ``97 %``, ``8.4 %``, ``−0.44 %``."""
    percent = 100 * value
    text = f"{percent:.0f}" if abs(percent) >= 9.95 else f"{percent:.2g}"
    return f"{spelling.tidy(text)}{NO_BREAK}%"


def of_total(part: int, total: int) -> str:
    """``12 of 1 048 576 (0.0011 %)``."""
    return f"{count(part)} of {count(total)} ({percent(part, total)})"


def bits(value: float) -> str:
    """A number of bits, signed by a true minus where negative."""
    return spelling.tidy(f"{value:.1f}") + f"{NO_BREAK}bits"


def seconds(value: float) -> str:
    """``4.1 s``."""
    return f"{value:.1f}{NO_BREAK}s"


def index(position: Sequence[int]) -> str:
    """``[3, 17, 902]``; the empty index of a scalar as such."""
    return "[" + ", ".join(map(str, position)) + "]"


def limit_name(name: str) -> str:
    """``overflow_threshold`` in prose."""
    return _LIMIT_NAMES.get(name, name.replace("_", " "))


def headroom(amax: float, limits: FormatLimits) -> str:
    """log2(max / amax) in bits: negative where ``amax`` is above the format's max."""
    if not amax > 0 or math.isinf(amax):
        return NOTHING
    return bits(math.log2(limits.max) - math.log2(amax))


def op_name(op: str) -> str:
    """``aten.mm.default`` → ``aten.mm``; other overloads stay, they differ in meaning."""
    return op.removesuffix(".default")


def location(source: SourceLine) -> str:
    """``train.py:40``."""
    return f"{source.file}:{source.line}"


def own_line(site: OpSite) -> SourceLine | None:
    """The line to send the reader to first: their own, where the op's line lies in a library."""
    return site.caller or site.source


def step_name(step: int) -> str:
    """``step 3``; the script before its first optimizer attempt has no number."""
    return f"step {step}" if step >= 0 else "before the first step"


def module_name(site: OpSite) -> str:
    """``blocks.2.ffn (FFN)``; "" outside modules."""
    if site.module_path is None:
        return ""
    path = site.module_path or "root module"
    return f"{path} ({site.module_class})" if site.module_class else path


def where(site: OpSite, *, ranks: int = 1) -> str:
    """``step 3 · forward · decoder.layers.7.mlp.fc2 (Linear) · aten.addmm · output``."""
    if site.role == TEXT_ROLE:
        return IN_THE_TEXT
    rank = f"rank {site.rank}" if ranks > 1 else ""
    # A call that never reached ATen has no op, and so no tensor whose role could be named.
    op = (op_name(site.op), site.role) if site.op else ()
    return joined(rank, step_name(site.step), site.phase.value, module_name(site), *op)


def brief(site: OpSite) -> str:
    """``aten.mm at train.py:40``: one link of a chain."""
    source = own_line(site)
    return " at ".join(p for p in (op_name(site.op), location(source) if source else "") if p)


def joined(*parts: str) -> str:
    """Parts that have something to say, with a middle dot between them."""
    return " · ".join(p for p in parts if p)


def listed(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1]))) if words else ""


def steps_named(steps: Sequence[int], most: int = 6) -> str:
    """``step 0``, ``steps 0, 3 and 4``, ``steps 0, 1, 2, 3, 4 and 26 more``."""
    names = [str(s) for s in steps]
    if len(names) > most:
        names = [*names[: most - 1], f"{len(names) - most + 1} more"]
    return f"step{'s' if len(steps) != 1 else ''} {listed(names)}"


def first_line(text: str) -> str:
    """The first line of a message, marked where more follow."""
    lines = text.strip().splitlines()
    return lines[0] + (" …" if len(lines) > 1 else "") if lines else ""


def first_sentence(text: str) -> str:
    """What comes before the first full stop between two words; the rest is for those who ask."""
    return text.partition(". ")[0].rstrip(".")


def shortened(text: str, most: int) -> str:
    """Cut out of the middle, so that both a path's head and its file name stay readable."""
    if len(text) <= most:
        return text
    head = (most - 3) // 2
    return f"{text[:head]} … {text[len(text) - (most - 3 - head) :]}"


def visible(text: str, *, keep_newlines: bool = False) -> str:
    """Spell control characters, lone surrogates and reordering marks as escapes.

    Otherwise a module name could move a terminal's cursor, fake a line of the report, or make the
    page impossible to encode.
    """
    if text.isprintable():
        return text  # printable in Python's sense has none of them
    return "".join(_spelled(c, keep_newlines) for c in text)


def _spelled(char: str, keep_newlines: bool) -> str:
    if char == "\t":
        return " "
    if char == "\n" and keep_newlines:
        return char
    if unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or ord(char) in _REORDERING:
        return char.encode("unicode_escape", "backslashreplace").decode("ascii")
    return char
