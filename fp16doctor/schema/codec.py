"""Spells a Diagnosis as JSON and reads it back, driven by the type hints of the dataclasses.

Must not know what any field means, nor how a diagnosis is shown.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import types
import typing
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn

from fp16doctor.errors import DiagnosisFileError
from fp16doctor.schema.diagnosis import SCHEMA_VERSION, Diagnosis

_SPELLED = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}  # JSON has no such numbers
_AGAIN = "write it again with `fp16doctor scan`"


class _Mismatch(Exception):
    """A value of another type than the field's."""

    def __init__(self, where: str, expected: str) -> None:
        super().__init__(f"{where or 'the document'} is not {expected}")


def to_json(diagnosis: Diagnosis) -> str:
    """Return the document: ASCII, keys in declared order, inf and nan as strings.

    Lone surrogates survive as escapes; a high one directly followed by a low one reads back as the
    one character that the pair stands for, since JSON cannot tell them apart.
    """
    document = _encode(Diagnosis, diagnosis)
    version, confirm = document.pop("schema_version"), document.pop("confirm")
    whole = {"schema_version": version, **document, "confirm": confirm}
    return json.dumps(whole, indent=1, allow_nan=False) + "\n"


def from_json(text: str, *, source: str = "the text") -> Diagnosis:
    """Read a document written by ``to_json``; ``source`` names it in errors.

    Raises:
        DiagnosisFileError: truncated, not JSON, of a later schema version, or with a wrong type.
    """
    data = _parse(text, source)
    _check_version(data, source)
    try:
        diagnosis = _decode(Diagnosis, data, "")
    except _Mismatch as error:
        _refuse(source, f"{error}; {_AGAIN}", "malformed-diagnosis")
    assert isinstance(diagnosis, Diagnosis)
    return diagnosis


def spell(hint: Any, value: Any) -> Any:
    """Return a value of the schema, a dataclass say, as plain JSON values; ``hint`` is its type."""
    return _encode(hint, value)


def unspell(hint: Any, data: Any) -> Any:
    """Undo ``spell``.

    Raises:
        ValueError: ``data`` is no such value; the message names the field.
    """
    try:
        return _decode(hint, data, "")
    except _Mismatch as error:
        raise ValueError(str(error)) from None


def load(path: Path) -> Diagnosis:
    """Read a diagnosis file.

    Raises:
        DiagnosisFileError: as ``from_json``, or the file cannot be opened.
    """
    try:
        text = path.read_bytes().decode("utf-8")
    except OSError as error:
        _refuse(f"'{path}'", f"{error.strerror}; name a file that scan wrote", "unreadable-file")
    except UnicodeDecodeError:
        _refuse(f"'{path}'", f"it is not UTF-8 text; {_AGAIN}", "not-json")
    return from_json(text, source=f"'{path}'")


def _refuse(source: str, met: str, slug: str) -> NoReturn:
    raise DiagnosisFileError(f"cannot read a diagnosis from {source}: {met}", slug)


def _parse(text: str, source: str) -> dict[str, Any]:
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        if _ends_early(text, error):
            met = f"it ends early, at line {error.lineno}"
            _refuse(source, f"{met}; {_AGAIN}", "truncated-diagnosis")
        _refuse(source, f"it is not JSON (line {error.lineno}: {error.msg}); {_AGAIN}", "not-json")
    except (ValueError, RecursionError):  # NaN literals, numbers or nests past Python's own limits
        _refuse(source, f"it is not JSON that fp16doctor wrote; {_AGAIN}", "not-json")
    if not isinstance(data, dict):
        _refuse(source, f"it is JSON, but not an object; {_AGAIN}", "not-a-diagnosis")
    return data


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _ends_early(text: str, error: json.JSONDecodeError) -> bool:
    # The decoder stops at the end, at an open string, or in front of half a word ("nul", "fals").
    rest = text[error.pos :].rstrip()
    opened = text.lstrip().startswith("{")
    return opened and (error.msg.startswith("Unterminated") or len(rest) < len("false"))


def _check_version(data: dict[str, Any], source: str) -> None:
    version = data.get("schema_version")
    if not isinstance(version, int) or isinstance(version, bool):
        _refuse(source, f"it has no schema_version; {_AGAIN}", "not-a-diagnosis")
    if version > SCHEMA_VERSION:
        met = f"its schema version is {version} and this fp16doctor reads up to {SCHEMA_VERSION}"
        _refuse(source, f"{met}; update fp16doctor", "later-schema")


@functools.cache
def _hints(cls: type) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _encode(hint: Any, value: Any) -> Any:
    if hint is Any:
        return _encode_plain(value)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return None if value is None else _encode(_other_than_none(hint), value)
    if typing.get_origin(hint) is tuple:
        return [_encode(h, v) for h, v in zip(_item_hints(hint, len(value)), value, strict=True)]
    if typing.get_origin(hint) is dict:
        item = typing.get_args(hint)[1]
        return {str(k): _encode(item, v) for k, v in value.items()}
    if dataclasses.is_dataclass(hint):
        hints = _hints(typing.cast(type, hint))
        names = [f.name for f in dataclasses.fields(hint)]
        return {name: _encode(hints[name], getattr(value, name)) for name in names}
    return _encode_scalar(hint, value)


def _encode_scalar(hint: Any, value: Any) -> Any:
    if issubclass(hint, Enum):
        return hint(value).value
    if hint is float:
        return _spell(float(value))  # whole numbers too: 65504 and 65504.0 give one spelling
    if hint is int:
        return operator.index(value)  # refuses a fraction instead of cutting it off
    return hint(value)


def _encode_plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _encode_plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode_plain(v) for v in value]
    if isinstance(value, float):
        return _spell(value)
    return value


def _spell(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _decode(hint: Any, data: Any, where: str) -> Any:
    if hint is Any:
        return _decode_plain(data)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return None if data is None else _decode(_other_than_none(hint), data, where)
    if typing.get_origin(hint) is tuple:
        return _decode_tuple(hint, data, where)
    if typing.get_origin(hint) is dict:
        item = typing.get_args(hint)[1]
        pairs = _expect(dict, data, where, "an object").items()
        return {k: _decode(item, v, f"{where}.{k}") for k, v in pairs}
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(typing.cast(type, hint), data, where)
    return _decode_scalar(hint, data, where)


def _decode_tuple(hint: Any, data: Any, where: str) -> tuple[Any, ...]:
    items = _expect(list, data, where, "a list")
    hints = _item_hints(hint, len(items))
    if len(hints) != len(items):
        raise _Mismatch(where, f"a list of {len(hints)}")
    pairs = zip(hints, items, strict=True)
    return tuple(_decode(h, v, f"{where}[{i}]") for i, (h, v) in enumerate(pairs))


def _decode_dataclass(cls: Any, data: Any, where: str) -> Any:
    _expect(dict, data, where, "an object")
    hints, values = _hints(cls), {}
    for f in dataclasses.fields(cls):
        at = f"{where}.{f.name}" if where else f.name
        if f.name in data:
            values[f.name] = _decode(hints[f.name], data[f.name], at)
        elif f.default is f.default_factory is dataclasses.MISSING:
            raise _Mismatch(at, "there, and it has to be")
    return cls(**values)


def _decode_scalar(hint: Any, data: Any, where: str) -> Any:
    if issubclass(hint, Enum):
        words = [member.value for member in hint]
        if data not in words:
            raise _Mismatch(where, "one of " + ", ".join(words))
        return hint(data)
    if hint is float:
        return _decode_float(data, where)
    if hint is int and isinstance(data, bool):
        raise _Mismatch(where, "an integer")
    expected = {int: "an integer", bool: "true or false", str: "a string"}
    return _expect(hint, data, where, expected[hint])


def _decode_float(data: Any, where: str) -> float:
    if isinstance(data, str) and data in _SPELLED:
        return _SPELLED[data]
    if isinstance(data, bool) or not isinstance(data, (int, float)):
        raise _Mismatch(where, "a number")
    try:
        return float(data)
    except OverflowError:
        raise _Mismatch(where, "a number that a float can hold") from None


def _decode_plain(data: Any) -> Any:
    """Undo ``_encode_plain``; lists come back as tuples, as everywhere in the schema."""
    if isinstance(data, dict):
        return {k: _decode_plain(v) for k, v in data.items()}
    if isinstance(data, list):
        return tuple(_decode_plain(v) for v in data)
    return _SPELLED.get(data, data) if isinstance(data, str) else data


def _other_than_none(hint: Any) -> Any:
    (arm,) = (a for a in typing.get_args(hint) if a is not type(None))
    return arm


def _item_hints(hint: Any, length: int) -> tuple[Any, ...]:
    args = typing.get_args(hint)
    return (args[0],) * length if args[-1] is Ellipsis else args


def _expect(kind: type, data: Any, where: str, words: str) -> Any:
    if not isinstance(data, kind):
        raise _Mismatch(where, words)
    return data
