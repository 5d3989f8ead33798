"""The variables beside an object, and that a look at them keeps nothing alive."""

from __future__ import annotations

import weakref

from fp16doctor.schema.variables import variables_beside

KNOWN = object()


class Thing:
    """Can be referred to weakly."""


def test_variables_of_a_module_and_of_a_function() -> None:
    inside, _hidden = Thing(), 1
    assert variables_beside(KNOWN)["KNOWN"] is KNOWN
    found = variables_beside(inside)
    assert found["inside"] is inside
    assert "_hidden" not in found
    held = [Thing()]
    none = variables_beside(held[0])
    assert none == {}


def test_a_look_at_a_function_keeps_nothing_alive() -> None:
    inside, other = Thing(), Thing()
    gone = weakref.ref(other)
    assert "other" in variables_beside(inside)
    del other
    assert gone() is None
    assert locals()["inside"] is inside
