"""Finds the bundle that a diagnosis names.

Must not know what is in it.
"""

from __future__ import annotations

from pathlib import Path

from fp16doctor.errors import BundleError
from fp16doctor.record.digest import sha256_of
from fp16doctor.schema.start import BundleFile


def find_bundle(named: BundleFile | None, beside: Path) -> Path | None:
    """Return the file that ``named`` speaks of: beside the diagnosis, or where it was written.

    None where no step was kept or the file is in neither place.

    Raises:
        BundleError: other-bundle, where a file of that name is there and not the one meant;
            unreadable-file.
    """
    if named is None:
        return None
    places = dict.fromkeys((beside.parent / _name(named), Path(named.path)))
    there = [place for place in places if place.is_file()]
    for place in there:
        if _is_it(place, named):
            return place
    if not there:
        return None
    raise BundleError(
        f"'{there[0]}' is not the bundle that '{beside}' was written with (SHA-256"
        f" {named.sha256[:12]}…, {named.size} bytes); put that one beside the diagnosis, name the"
        " bundle itself, or scan the script again with --save-bundle",
        "other-bundle",
    )


def _name(named: BundleFile) -> str:
    """Return the last part only: a diagnosis from elsewhere leads into no other folder."""
    return Path(named.name).name


def _is_it(place: Path, named: BundleFile) -> bool:
    try:
        return place.stat().st_size == named.size and sha256_of(place) == named.sha256
    except OSError as error:
        raise BundleError(
            f"the bundle '{place}' cannot be read: {error.strerror}; name another file",
            "unreadable-file",
        ) from error
