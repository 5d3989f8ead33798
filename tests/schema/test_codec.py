"""A diagnosis survives JSON and back; what is no diagnosis is refused in one sentence."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import typing
from dataclasses import fields, replace
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fp16doctor.errors import DiagnosisFileError
from fp16doctor.schema.codec import from_json, load, to_json
from fp16doctor.schema.diagnosis import SCHEMA_VERSION, Diagnosis, FormatLimits, ReplaySummary
from fp16doctor.schema.finding import Evidence
from fp16doctor.schema.location import OpSite, Phase, SourceLine

SAMPLE = Path(__file__).parent.parent / "samples" / "v1-overflow.json"
RESERVED = {"confirm": None}

# Lone low surrogates are what Python makes of undecodable bytes in paths and arguments.
TEXT = st.text(st.characters(), max_size=12) | st.text("\udc80\udcff`</b>{{}}\n", max_size=8)
FLOATS = st.floats(allow_nan=False)  # NaN is not equal to itself: it has tests of its own
_SPELLED = ("inf", "-inf", "nan")
VALUES = (
    st.none() | st.booleans() | st.integers() | FLOATS | TEXT.filter(lambda t: t not in _SPELLED)
)


def strategy(hint: Any) -> st.SearchStrategy[Any]:
    """Anything of the type ``hint``, for every kind of type that the schema uses."""
    if hint in (leaves := {str: TEXT, float: FLOATS, int: st.integers(), bool: st.booleans()}):
        return leaves[hint]
    if hint is Any:
        return VALUES | st.dictionaries(TEXT, FLOATS, max_size=3)
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is dict:
        return st.dictionaries(TEXT, strategy(args[1]), max_size=2)
    if origin is tuple and args[-1] is Ellipsis:
        return st.lists(strategy(args[0]), max_size=2).map(tuple)
    if origin is tuple:
        return st.tuples(*map(strategy, args))
    if args:
        return st.none() | strategy(args[0])
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    hints = typing.get_type_hints(hint)
    names = [f.name for f in fields(hint) if f.name != "schema_version"]
    return st.builds(hint, **{name: strategy(hints[name]) for name in names})


def sample() -> Diagnosis:
    return load(SAMPLE)


def document() -> dict[str, object]:
    data = json.loads(SAMPLE.read_text(encoding="utf-8"))
    assert isinstance(data, dict)
    return data


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(strategy(Diagnosis))
def test_any_diagnosis_survives(diagnosis: Diagnosis) -> None:
    text = to_json(diagnosis)
    assert from_json(text) == diagnosis
    assert to_json(from_json(text)) == text
    assert text.isascii()


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 65504.0, 0.1, -0.0, 5e-324])
def test_every_float_survives(value: float) -> None:
    evidence = Evidence("amax", value, "recorded", limit=value)
    finding = replace(sample().findings[0], evidence=(evidence,))
    back = from_json(to_json(replace(sample(), findings=(finding,)))).findings[0].evidence[0]
    assert repr((back.measured, back.limit)) == repr((value, value))


def test_inf_and_nan_are_spelled_as_strings() -> None:
    limits = FormatLimits("x", math.inf, -math.inf, math.nan, 1.0, 1)
    written = json.loads(to_json(replace(sample(), formats=(limits,))))["formats"][0]
    assert [written[k] for k in ("max", "overflow_threshold", "smallest_normal")] == list(_SPELLED)


def test_a_whole_number_in_a_float_field_is_written_as_one() -> None:
    whole = replace(sample(), run=replace(sample().run, duration_s=3))
    assert to_json(whole) == to_json(replace(whole, run=replace(whole.run, duration_s=3.0)))


def test_the_keys_that_other_programs_read_are_there() -> None:
    site = OpSite(
        0, Phase.BACKWARD, "aten.mm.default", 7, "a", "A", "grad_output",
        SourceLine("lib.py", 1, "f", "x"), SourceLine("train.py", 2, "g", None), (1, 2), 3,
    )  # fmt: skip
    finding = replace(sample().findings[0], site=site, cause_site=site)
    data = json.loads(to_json(replace(sample(), findings=(finding,))))
    assert next(iter(data)) == "schema_version"
    assert {key: data[key] for key in RESERVED} == RESERVED
    assert data["findings"][0]["site"] == data["findings"][0]["cause_site"]
    assert data["findings"][0]["site"] == {
        "step": 0, "phase": "backward", "op": "aten.mm.default", "index": 7, "module_path": "a",
        "module_class": "A", "role": "grad_output", "element": [1, 2], "rank": 3,
        "sample": None,
        "source": {"file": "lib.py", "line": 1, "function": "f", "text": "x"},
        "caller": {"file": "train.py", "line": 2, "function": "g", "text": None},
    }  # fmt: skip
    assert data["replay"]["fidelity"] == {"bit_equal": True, "largest_difference": 0.0}
    assert {"n_ops", "pinned", "opaque"} <= set(data["replay"])
    assert set(data["recommendation"]) == {"status", "sentence", "prescriptions"}
    assert {"remedy", "treats", "verification"} == set(data["prescriptions"][0])
    assert {"run", "steps", "ranges", "checks", "warnings"} <= set(data)


def test_no_fidelity_is_null() -> None:
    data = json.loads(to_json(replace(sample(), replay=ReplaySummary((), None))))
    assert data["replay"]["fidelity"] is None


def test_unknown_keys_are_ignored_and_defaults_fill_gaps() -> None:
    data = document() | {"invented": 1}
    del data["warnings"]
    assert from_json(json.dumps(data)) == replace(sample(), warnings=())


def refusal(text: str) -> DiagnosisFileError:
    with pytest.raises(DiagnosisFileError) as caught:
        from_json(text)
    message = caught.value.message
    assert message.startswith("cannot read a diagnosis from ")
    assert "\n" not in message
    return caught.value


def test_every_truncation_is_refused() -> None:
    text = SAMPLE.read_text(encoding="utf-8").strip()
    slugs = {refusal(text[:n]).slug for n in range(1, len(text), max(1, len(text) // 300))}
    assert slugs == {"truncated-diagnosis"}


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("", "not-json"),
        ("hello", "not-json"),
        ("<html></html>", "not-json"),
        ('{"schema_version": NaN}', "not-json"),
        ("[" * 100_000, "not-json"),
        ('{"schema_version": ' + "9" * 5000 + "}", "not-json"),
        ("[1, 2]", "not-a-diagnosis"),
        ("{}", "not-a-diagnosis"),
        ('{"schema_version": true}', "not-a-diagnosis"),
        (f'{{"schema_version": {SCHEMA_VERSION + 1}}}', "later-schema"),
        ('{"schema_version": 1}', "malformed-diagnosis"),
    ],
)
def test_what_is_no_diagnosis_is_refused(text: str, slug: str) -> None:
    assert refusal(text).slug == slug


WRONG = [
    ("steps", "x"),
    ("steps", [{}]),
    ("steps", [{"step": "0"}]),
    ("steps", [{"step": True}]),
    ("steps", [{"step": 1.5}]),
    ("steps", [{"step": 0, "loss": "NaN"}]),
    ("steps", [{"step": 0, "loss": True}]),
    ("steps", [{"step": 0, "loss": 10**400}]),
    ("steps", [{"step": 0, "skipped": 0}]),
    ("findings", [None]),
    ("findings", [{"severity": "fatal"}]),
    ("run", []),
    ("warnings", {}),
    ("recommendation", {"status": ["prescribed"], "sentence": ""}),
    ("replay", {"steps": [], "fidelity": None, "pinned_ops": [["a"]]}),
    ("replay", {"steps": [], "fidelity": None, "pinned_ops": [["a", 1]]}),
]


@pytest.mark.parametrize(("key", "value"), WRONG)
def test_wrong_types_are_refused_by_name(key: str, value: object) -> None:
    error = refusal(json.dumps(document() | {key: value}))
    assert error.slug == "malformed-diagnosis"
    assert key in error.message


def test_files_that_cannot_be_read_are_refused_by_name(tmp_path: Path) -> None:
    binary = tmp_path / "binary.json"
    binary.write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "none.json", binary):
        with pytest.raises(DiagnosisFileError, match=path.name):
            load(path)


def test_reading_a_diagnosis_needs_no_torch() -> None:
    code = (
        "import sys; from pathlib import Path; from fp16doctor.schema.codec import load;"
        "from fp16doctor.report.html import render_html;"
        "from fp16doctor.report.terminal import render_terminal;"
        f"render_html(load(Path({str(SAMPLE)!r}))); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
