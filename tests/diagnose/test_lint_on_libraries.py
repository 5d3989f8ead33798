"""Lint over whole libraries: no check fails, and what it finds is what was looked at and is right.

Nothing of them is imported or run. The lists are those of the versions named; of any other version
only that no check fails is known.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import sysconfig
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from fp16doctor.diagnose.script_engine import lint_script

# Library, version -> (file, rule) -> findings; each was read beside its source.
REVIEWED: dict[tuple[str, str], dict[tuple[str, str], int]] = {
    # A test of DDP under autocast, with the spellings that torch 2.4 deprecated.
    ("torch", "2.13"): {("testing/_internal/distributed/distributed_test.py", "FD725"): 2},
    ("transformers", "5.24"): {},
}


def sources(folder: Path) -> Iterator[tuple[str, str]]:
    """(path below the folder, text) of every file that Python can decode."""
    for path in sorted(folder.rglob("*.py")):
        if "site-packages" in path.relative_to(folder).parts:
            continue
        try:
            with tokenize.open(path) as stream:
                yield path.relative_to(folder).as_posix(), stream.read()
        except (SyntaxError, UnicodeDecodeError):  # made to be undecodable: tests of the parser
            continue


def read(folder: Path) -> tuple[int, Counter[tuple[str, str]], list[str]]:
    """Files read, findings by file and rule, and the checks that failed."""
    files, found, failed = 0, Counter[tuple[str, str]](), list[str]()
    for name, text in sources(folder):
        findings, unread = lint_script(text, name)
        files += 1
        found.update((name, f.code) for f in findings)
        # A file in the words of another version of Python is no failure.
        failed += [f"{u.file}: {u.reason}" for u in unread if not u.reason.startswith("no Python")]
    return files, found, failed


def test_the_standard_library_has_no_mixed_precision_recipe() -> None:
    files, found, failed = read(Path(sysconfig.get_paths()["stdlib"]))
    assert files > 500
    assert failed == []
    assert found == {}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("library", ["torch", "transformers"])
def test_a_library_has_the_findings_that_were_looked_at(library: str) -> None:
    spec = importlib.util.find_spec(library)
    if spec is None or spec.origin is None:
        pytest.skip(f"{library} is not installed; pip install 'fp16doctor[test]'")
    version = ".".join(importlib.metadata.version(library).split(".")[:2])
    files, found, failed = read(Path(spec.origin).parent)
    assert files > 500
    assert failed == []
    reviewed = REVIEWED.get((library, version))
    if reviewed is None:
        pytest.skip(f"no check failed; the findings in {library} {version} were not looked at yet")
    assert found == reviewed
