"""Names without what wrappers of torch put between."""

from __future__ import annotations

import pytest

from fp16doctor.schema.wrappers import plain_names


class DistributedDataParallel:
    pass


class Mine(DistributedDataParallel):
    pass


class Other:
    pass


@pytest.mark.parametrize("kind", [DistributedDataParallel, Mine])
def test_the_wrapped_model_has_its_own_names(kind: type) -> None:
    plain = plain_names([("", kind()), ("module", Other()), ("module.module", Other())])
    assert plain("module") == ""
    assert plain("module.blocks.1.weight") == "blocks.1.weight"
    assert plain("module.module.weight") == "module.weight"  # the user's own name


def test_a_wrapper_further_down_and_inside_another_one() -> None:
    plain = plain_names([("", Other()), ("net", Mine()), ("net.module", Other())])
    assert plain("net.module._orig_mod.head") == "net.head"
    assert plain("other.module.head") == "other.module.head"


@pytest.mark.parametrize(
    "between", ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"]
)
def test_attributes_that_only_wrappers_have(between: str) -> None:
    assert plain_names([])(f"{between}.blocks.0.{between}.down") == "blocks.0.down"


def test_any_other_name_stays() -> None:
    assert plain_names([("", Other())])("module.blocks.0") == "module.blocks.0"
