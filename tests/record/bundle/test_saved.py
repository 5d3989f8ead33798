"""Files of tensors can be read by whom the user lets read files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from bundling import bundles_of, one_linear

from fp16doctor.record.bundle import write_bundle
from fp16doctor.record.bundle.given import write_given


@pytest.mark.skipif(os.name != "posix", reason="the mode of a file is a matter of POSIX")
@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_new_files_follow_the_umask_and_old_ones_stay(
    tmp_path: Path, umask: int, mode: int
) -> None:
    (bundle,) = bundles_of(one_linear)
    before = os.umask(umask)
    try:
        write_bundle(tmp_path / "a", bundle)
        write_given(tmp_path / "b", {"a": torch.ones(2)})
        (tmp_path / "c").touch(0o640)
        (tmp_path / "c").chmod(0o640)
        write_given(tmp_path / "c", {"a": torch.ones(2)})
    finally:
        os.umask(before)
    modes = [(tmp_path / name).stat().st_mode & 0o777 for name in "abc"]
    assert modes == [mode, mode, 0o640]
