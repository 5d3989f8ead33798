"""Writes and reads bundles; all that can be wrong with one becomes a BundleError here.

Must not know how a tape is spelled.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NoReturn

import torch

from fp16doctor.errors import BundleError
from fp16doctor.record.bundle.checks import UnknownOpError, check
from fp16doctor.record.bundle.container import DOCUMENT, pack, refuse, unpack
from fp16doctor.record.bundle.devices import on_this_machine
from fp16doctor.record.bundle.document import from_document, to_document
from fp16doctor.record.bundle.malformed import MalformedError
from fp16doctor.schema.bundle import Bundle


def write_bundle(path: Path, bundle: Bundle) -> int:
    """Write a bundle and return its size in bytes.

    Raises BundleError: unfit-for-bundle where the tape holds something that cannot be replayed
    elsewhere, bundle-not-written where the file cannot be written.
    """
    try:
        check(bundle)
        document, tensors = to_document(bundle)
        text = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
    except (MalformedError, TypeError, ValueError) as error:
        raise BundleError(
            f"step {bundle.tape.step} cannot be put into a bundle: {error}; scan with --steps, so"
            " that another step is kept, or report it with the script",
            "unfit-for-bundle",
        ) from error
    tensors[DOCUMENT] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    return pack(path, tensors)


def read_bundle(path: Path) -> Bundle:
    """Return the bundle of a file; devices that this machine has not are replaced by the CPU.

    No code comes out of the file and no path in it is followed.

    Raises BundleError: unreadable-file, truncated-bundle, not-a-bundle, bundle-version,
    damaged-bundle, malformed-bundle, unknown-op.
    """
    tensors = unpack(path)
    text = tensors.pop(DOCUMENT, None)
    if text is None:
        refuse(path, "it has no document", "not-a-bundle")
    try:
        document = json.loads(text.numpy().tobytes(), object_pairs_hook=_once,
                              parse_constant=_no_constant)  # fmt: skip
        bundle = from_document(document, tensors)
        check(bundle)
    except UnknownOpError as error:
        refuse(path, f"{error}; replay it with the torch that recorded it", "unknown-op")
    except MalformedError as error:
        refuse(path, str(error), "malformed-bundle")
    except (ValueError, RecursionError) as error:  # no JSON, or nested past Python's own limits
        what = "it is nested too deep" if isinstance(error, RecursionError) else "it is not JSON"
        refuse(path, f"its document cannot be read: {what}", "malformed-bundle")
    return on_this_machine(bundle)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise MalformedError("an object has a key twice")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
