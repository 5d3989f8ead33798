"""The imported files that are the user's own: below the script's folder, and no library's."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from fp16doctor.record.own_files import own_files
from fp16doctor.record.source_lines import SourceLines

RAN = "import sys\ndef run(key):\n    return key(sys._getframe())\n"


class Lazy(ModuleType):
    """Raises where it is asked for what it does not hold."""

    def __getattr__(self, name: str) -> object:
        raise AssertionError(name)


def test_the_nearest_come_first_and_what_lies_elsewhere_or_ran_nothing_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "project"
    lines = SourceLines(str(root))
    paths = [
        root / "deep" / "inner.py",
        root / "idle.py",
        root / "near.py",
        tmp_path / "other.py",
        root / "data.so",
    ]
    for number, path in enumerate(paths):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(RAN)
        module = ModuleType(f"my_module_{number}")
        module.__file__ = str(path.resolve())
        exec(compile(RAN, module.__file__, "exec"), module.__dict__)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        if path.stem != "idle":
            module.run(lines.key)
    monkeypatch.setitem(sys.modules, "my_lazy", Lazy("my_lazy"))
    monkeypatch.setitem(sys.modules, "my_odd", "no module")  # type: ignore[arg-type]
    found = own_files(lines)
    assert found == [str(p.resolve()) for p in (root / "near.py", root / "deep" / "inner.py")]
