"""Every fix is a diff that parses once applied, cures what it is for, and takes nothing else away.

Checked over the fixtures of all rules and the recipes, as they are and in other layouts.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fp16doctor.diagnose.script_engine import lint_script
from fp16doctor.schema.script_finding import ScriptFinding

HERE = Path(__file__).parent
# Calls that a fix may take out or put elsewhere; any other call of the script stays.
OF_THE_RECIPE = re.compile(
    r"(scale|unscale_|step|update|zero_grad|backward|half|bfloat16|float|to|mul_|div_|data|item|"
    r"get_scale|initialize|scale_loss|autocast|GradScaler|custom_fwd|custom_bwd|softmax|log|"
    r"log_softmax|sigmoid|Softmax|BCELoss|BCEWithLogitsLoss|binary_cross_entropy|parameters|std|"
    r"binary_cross_entropy_with_logits|finfo|float|range|zip|print|view|type|clamp)$"
)


def scripts() -> Iterator[tuple[str, str]]:
    for path in sorted((HERE / "script_rules").glob("*.py")):
        spec = importlib.util.spec_from_file_location(f"fixes_{path.stem}", path)
        assert spec is not None and spec.loader is not None  # noqa: PT018
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        for number, text in enumerate(module.FIRING):
            yield f"{path.stem}-{number}", text
    for path in sorted((HERE / "recipes").glob("*.txt")):
        for section in path.read_text().split("#### ")[1:]:
            title, _, text = section.partition("\n")
            if title.startswith("wrong"):
                yield f"{path.stem}: {title}", text


def as_is(text: str) -> str:
    return text


def in_a_function(text: str) -> str:
    """Imports first, the rest as the body of a function with a tab for an indent."""
    return "def main():\n" + textwrap.indent(text, "\t") + "\n\nmain()\n"


def under_a_condition(text: str) -> str:
    return "if True:\n" + textwrap.indent(text, "    ")


def over_many_lines(text: str) -> str:
    """Each argument list of a call statement on lines of its own, as formatters write it."""
    out: list[str] = []
    for line in text.split("\n"):
        code, mark, note = line.partition("  # <-")
        call = re.match(r"^(\s*)((?:\w[\w.]*\s*=\s*)?[\w.]+)\(([^()\[\]{}:]+)\)$", code)
        if call is None or re.search(r'"[^"]*,[^"]*"', code):
            out.append(line)
            continue
        indent, head, inside = call.groups()
        arguments = [f"{indent}    {a.strip()}," for a in inside.split(",") if a.strip()]
        out += [f"{indent}{head}({mark}{note}", *arguments, f"{indent})"]
    return "\n".join(out)


def semicolons(text: str) -> str:
    """A statement with a neighbour on its line."""
    plain = re.compile(r"^(\s+)([\w.]+\.(?:step|backward|update|unscale_)\([^:]*\))(\s*#.*)?$")
    return "\n".join(
        f"{m[1]}keep(1); {m[2]}; keep(2){m[3] or ''}" if (m := plain.match(line)) else line
        for line in text.split("\n")
    )


def one_line_blocks(text: str) -> str:
    """``if cond: statement`` where the block is one short statement."""
    lines, out, at = text.split("\n"), [], 0
    while at < len(lines):
        here = lines[at]
        body = lines[at + 1] if at + 1 < len(lines) else ""
        behind = lines[at + 2] if at + 2 < len(lines) else ""
        indent = len(here) - len(here.lstrip())
        single = re.match(r"\s+[\w.]+\([^:]*\)(\s*#.*)?$", body)
        deeper = len(body) - len(body.lstrip()) > indent
        ends = not behind.strip() or len(behind) - len(behind.lstrip()) <= indent
        if re.match(r"\s*if .*:$", here) and single and deeper and ends:
            out.append(f"{here} {body.strip()}")
            at += 2
        else:
            out.append(here)
            at += 1
    return "\n".join(out)


def used_values(text: str) -> str:
    """Calls whose value is kept, or decides."""
    plain = re.compile(r"^(\s*)([\w.]+\.(?:step|backward|update|unscale_)\([^:]*\))(\s*#.*)?$")
    out = []
    for number, line in enumerate(text.split("\n")):
        m = plain.match(line)
        form = "result = {}" if number % 2 else "if keep({}): keep(3)"
        out.append(f"{m[1]}{form.format(m[2])}{m[3] or ''}" if m else line)
    return "\n".join(out)


def crlf(text: str) -> str:
    return text.replace("\n", "\r\n")


LAYOUTS: list[Callable[[str], str]] = [
    as_is,
    in_a_function,
    under_a_condition,
    over_many_lines,
    semicolons,
    used_values,
    one_line_blocks,
    crlf,
]


def patched(text: str, fix: str) -> str:
    """``text`` with a unified diff applied, each of whose lines must be met as it says."""
    old, new, at = text.replace("\r\n", "\n").split("\n"), [], 0
    for line in fix.splitlines()[2:]:
        head = re.match(r"@@ -(\d+)(?:,(\d+))? ", line)
        if head:
            start = int(head[1]) - (0 if head[2] == "0" else 1)
            new, at = new + old[at:start], start
        elif line.startswith("\\"):
            continue
        elif line[:1] == "+":
            new.append(line[1:])
        else:
            assert old[at] == line[1:]
            new += [] if line[:1] == "-" else [old[at]]
            at += 1
    return "\n".join(new + old[at:])


def calls(text: str) -> Counter[str]:
    """Calls by their last name, those of the recipe itself left out."""
    names = [
        ast.unparse(n.func).rpartition(".")[2]
        for n in ast.walk(ast.parse(text))
        if isinstance(n, ast.Call)
    ]
    return Counter(n for n in names if not OF_THE_RECIPE.match(n))


def same(finding: ScriptFinding, others: tuple[ScriptFinding, ...]) -> int:
    return sum(o.code == finding.code for o in others)


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda f: f.__name__)
def test_every_fix_parses_cures_and_keeps_the_rest(layout: Callable[[str], str]) -> None:
    fixes = 0
    for title, plain in scripts():
        text = layout(plain)
        ast.parse(text)
        found, unread = lint_script(text, "train.py")
        assert not unread, title
        for finding in found:
            if not finding.fix:
                continue
            fixes += 1
            better = patched(text, finding.fix)
            ast.parse(better)
            again, _ = lint_script(better, "train.py")
            where = f"{title}\n{finding.code} {finding.what}\n{finding.fix}\n{better}"
            assert same(finding, again) < same(finding, found), where
            new = {f.code for f in again if f.severity.value == "error"}
            assert new <= {f.code for f in found}, where
            assert not calls(text) - calls(better), where
    assert fixes > 60
