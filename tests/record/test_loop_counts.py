"""The variables of a script's top-level loops, at a call inside them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from fp16doctor.record.loop_counts import LoopCounts, loops_in

SCRIPT = """\
found = []
def look():
    found.append(counts.at(frame(0)))

for epoch in range(2):
    for i, (x, y) in enumerate([(1, 2), (3, 4)]):
        look()
for word in ("a",):
    look()
look()
"""


def test_loops_around_a_call_from_the_top_level(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    space = {"__name__": "__main__", "counts": LoopCounts(), "frame": sys._getframe}
    exec(compile(SCRIPT, str(path), "exec"), space)
    first = [(("epoch", e), ("i", i)) for e in range(2) for i in range(2)]
    assert space["found"] == [*first, (), ()]


def test_nothing_outside_a_script(tmp_path: Path) -> None:
    space = {"__name__": "other", "counts": LoopCounts(), "frame": sys._getframe}
    exec(compile(SCRIPT, str(tmp_path / "gone.py"), "exec"), space)
    assert space["found"] == [()] * 6
    assert LoopCounts().at(sys._getframe()) == ()
    assert LoopCounts().at(None) == ()


@pytest.mark.parametrize(
    ("text", "loops"),
    [
        ("for i in x:\n    pass\n", ((1, 2, "i"),)),
        ("for i, x in y:\n    pass\n", ((1, 2, "i"),)),
        ("for a.b in y:\n    pass\n", ()),
        ("for (\n", ()),
    ],
)
def test_loops_of_a_text(text: str, loops: tuple[tuple[int, int, str], ...]) -> None:
    assert loops_in(text) == loops
