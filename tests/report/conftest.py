"""Gives the report tests the hand-made diagnoses, by name."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fp16doctor.schema.diagnosis import Diagnosis


@pytest.fixture(scope="session")
def hand_made() -> dict[str, Callable[[], Diagnosis]]:
    """Name -> builder; loaded by path, since tests are no package."""
    spec = importlib.util.spec_from_file_location(
        "hand_made_diagnoses", Path(__file__).with_name("hand_made.py")
    )
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return dict(module.SAMPLES)


@pytest.fixture
def overflow(hand_made: dict[str, Callable[[], Diagnosis]]) -> Diagnosis:
    """A forward overflow, cured by another format."""
    return hand_made["overflow"]()


@pytest.fixture
def healthy(hand_made: dict[str, Callable[[], Diagnosis]]) -> Diagnosis:
    """A run in which nothing was found."""
    return hand_made["healthy"]()
