"""Who may import whom: the table of CONTRIBUTING.md, read from the source with ``ast``."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "fp16doctor"
FILES = sorted(PACKAGE.rglob("*.py"))
IDS = [str(path.relative_to(PACKAGE)) for path in FILES]

# layer -> (layers it may import, third-party packages it may import)
TABLE: dict[str, tuple[str, str]] = {
    "errors": ("", ""),
    "schema": ("errors", ""),
    "formats": ("errors", ""),
    "simulate": ("schema formats errors", "torch"),
    "record": ("schema formats simulate errors", "torch numpy safetensors"),
    "replay": ("schema formats simulate errors", "torch"),
    "diagnose": ("schema formats errors", "numpy"),
    "apply": ("schema formats errors", "torch"),
    "prescribe": ("replay apply schema formats errors", "torch"),
    "report": ("schema errors", "jinja2 markupsafe matplotlib numpy rich"),
    "pipeline": ("record replay diagnose prescribe apply schema formats errors", ""),
    "profiler": ("pipeline report record apply schema errors", "torch"),
    "integrations": ("pipeline report record apply schema errors", "torch"),
    "cli": ("pipeline record report diagnose apply schema errors", "click"),
    "__init__": ("profiler apply schema errors", ""),  # the public names
    "__main__": ("cli", ""),
}
# Files of layers without torch that are there to work on tensors.
TORCH_FILES = {"formats/binades.py", "formats/rounding.py", "formats/ulp.py"}
# The command line is loaded before every command, and loads these only inside one.
HEAVY = {"torch", "numpy", "matplotlib", "jinja2", "rich", "safetensors"}
FRAMEWORKS = {"accelerate", "apex", "lightning", "tensorboard", "transformers"}  # integrations only


@dataclass(frozen=True)
class Import:
    module: str  # dotted, e.g. "fp16doctor.schema.tape" or "torch"
    line: int
    typing: bool  # under ``if TYPE_CHECKING``
    inner: bool  # inside a function

    @property
    def layer(self) -> str | None:
        parts = self.module.split(".")
        return parts[1] if parts[0] == "fp16doctor" and len(parts) > 1 else None


def imports(path: Path) -> Iterator[Import]:
    yield from _walk(ast.parse(path.read_text(encoding="utf-8")), typing=False, inner=False)


def _walk(node: ast.AST, typing: bool, inner: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            for alias in child.names:
                yield Import(alias.name, child.lineno, typing, inner)
        elif isinstance(child, ast.ImportFrom):
            for module in _sources(child):
                yield Import(module, child.lineno, typing, inner)
        elif isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            yield from _walk(ast.Module(child.body, []), True, inner)
            yield from _walk(ast.Module(child.orelse, []), typing, inner)
        else:
            function = isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda))
            yield from _walk(child, typing, inner or function)


def _sources(node: ast.ImportFrom) -> Iterator[str]:
    assert node.level == 0, f"line {node.lineno}: relative import; name the package"
    for alias in node.names:
        if node.module != "fp16doctor":
            yield node.module or ""
        elif alias.name != "__version__":  # a plain string; every layer may name its version
            yield f"fp16doctor.{alias.name}"


def layer_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_a_file_imports_only_what_its_layer_may(path: Path) -> None:
    layer = layer_of(path)
    assert layer in TABLE, f"{layer} is a new layer: give it a row in the table"
    inside = {layer, *TABLE[layer][0].split()}
    outside = set(TABLE[layer][1].split())
    if path.relative_to(PACKAGE).as_posix() in TORCH_FILES:
        outside.add("torch")
    wrong = []
    for found in imports(path):
        top = found.module.split(".")[0]
        if top == "fp16doctor":
            allowed = found.layer in inside
        elif top in FRAMEWORKS:
            allowed = layer == "integrations" and found.inner
        else:
            # A type costs nothing at run time, and torch's are part of the schema.
            type_only = found.typing and top == "torch"
            allowed = top in sys.stdlib_module_names or top in outside or type_only
        if not allowed:
            wrong.append(f"line {found.line}: {found.module}")
    assert not wrong, f"{layer} may not import {wrong}"


def _light_modules() -> list[str]:
    schema = sorted(path.stem for path in (PACKAGE / "schema").glob("*.py"))
    names = [f"fp16doctor.schema.{name}" for name in schema if name != "__init__"]
    return ["fp16doctor", "fp16doctor.cli", "fp16doctor.cli.main", "fp16doctor.formats", *names]


@pytest.mark.parametrize("module", _light_modules())
def test_importing_it_loads_nothing_heavy(module: str) -> None:
    program = f"import sys, {module}; print(*sorted({HEAVY} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


@pytest.mark.parametrize("path", FILES, ids=IDS)
def test_a_file_is_small_and_says_what_it_owns(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    assert ast.get_docstring(ast.parse(text)), "the module docstring is missing"


def test_the_table_is_the_one_in_contributing() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    listed = {}
    for row in rows:
        name, inside, outside = (
            cell.strip().replace("`", "") for cell in row.strip("|").split("|")
        )
        listed[name] = (" ".join(inside.split(", ")), " ".join(outside.split(", ")))
    assert listed == TABLE
