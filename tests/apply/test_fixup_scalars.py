"""Rule 3: scalars around the layers of an existing model, and their learning rate."""

from __future__ import annotations

import copy
import io

import pytest
import torch
from residual_nets import Around, Block, ResNet, images, rows
from torch import Tensor, nn

from fp16doctor.apply.fixup import fixup_
from fp16doctor.apply.fixup_scalars import parameter_groups
from fp16doctor.errors import FixupError


def scaled(**options: object) -> ResNet:
    torch.manual_seed(0)
    model = ResNet(1)
    fixup_(model, images(), scalars=True, **options)  # type: ignore[arg-type]
    return model


def own(model: nn.Module) -> dict[str, Tensor]:
    return {n: p for n, p in model.named_parameters() if "fixup_" in n}


def moved(model: nn.Module) -> nn.Module:
    """Every parameter is something else than at the start."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1)
    return model


def test_which_layer_gets_what() -> None:
    model = scaled()
    names = {n.removeprefix("stages.0.0.") for n in own(model) if n.startswith("stages.0.0.")}
    assert names == {
        "conv1.fixup_bias_in", "conv1.fixup_bias_out",
        "conv2.fixup_bias_in", "conv2.fixup_bias_out", "conv2.fixup_scale",
    }  # fmt: skip
    assert "conv.fixup_bias_in" in own(model)
    assert "conv.fixup_bias_out" not in own(model)  # the convolution has a bias
    assert not any("down" in n for n in own(model))
    values = {n.rpartition("_")[2]: set() for n in own(model)}
    for name, value in own(model).items():
        values[name.rpartition("_")[2]].add(value.item())
    assert values == {"in": {0.0}, "out": {0.0}, "scale": {1.0}}


def test_the_scalars_do_what_the_reference_block_does() -> None:
    model = moved(scaled())
    block = model.stages[0][0]
    assert isinstance(block, Block)
    x = torch.randn(2, 4, 5, 5)
    one, two = block.conv1, block.conv2
    h = nn.functional.conv2d(x + one.fixup_bias_in, one.weight, one.bias, padding=1)
    h = torch.relu(h + one.fixup_bias_out) + two.fixup_bias_in
    h = nn.functional.conv2d(h, two.weight, two.bias, padding=1)
    h = torch.relu(x + (h * two.fixup_scale + two.fixup_bias_out))
    assert torch.allclose(block(x), h, atol=1e-6)


def test_they_survive_copies_and_files() -> None:
    model = moved(scaled())
    wanted = model(images())
    assert torch.equal(copy.deepcopy(model)(images()), wanted)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    assert torch.equal(torch.load(file, weights_only=False)(images()), wanted)
    fresh = scaled()
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(fresh(images()), wanted)


def test_a_copy_has_scalars_of_its_own() -> None:
    model = scaled()
    other = copy.deepcopy(model)
    moved(other)
    assert {p.item() for n, p in own(model).items() if n.endswith("scale")} == {1.0}


def test_a_second_call_resets_them() -> None:
    model = moved(scaled())
    count = len(own(model))
    fixup_(model, images(), scalars=True)
    assert len(own(model)) == count
    assert {p.item() for n, p in own(model).items() if n.endswith("_in")} == {0.0}
    assert len(model.conv._forward_pre_hooks) == 1


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_activations_keep_their_format(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = ResNet(1).to(dtype)
    fixup_(model, images().to(dtype), scalars=True)
    assert model(images().to(dtype)).dtype is dtype
    assert {p.dtype for p in own(model).values()} == {torch.float32}
    with torch.autocast("cpu", dtype=dtype):
        half = scaled().conv(images().to(dtype))
    assert half.dtype is dtype


def test_biases_and_multipliers_learn_at_a_tenth() -> None:
    model = scaled()
    weights, slower = parameter_groups(model, 0.1)
    assert (weights["lr"], slower["lr"]) == (0.1, pytest.approx(0.01))
    assert all(p.ndim > 1 for p in weights["params"])
    counted = len(weights["params"]) + len(slower["params"])
    assert counted == len(list(model.parameters()))
    optimizer = torch.optim.SGD([weights, slower])
    nn.functional.cross_entropy(model(images()), torch.arange(2)).backward()
    optimizer.step()


def test_a_weight_without_a_module_of_its_own_is_refused() -> None:
    class Bare(Around):
        def branch(self, x: Tensor) -> Tensor:
            return nn.functional.linear(torch.relu(self.a(x)), self.b.weight)

    model = Bare(a=nn.Linear(6, 6), b=nn.Linear(6, 6))
    before = model.b.weight.clone()
    with pytest.raises(FixupError, match="fixup-scalars"):
        fixup_(model, rows(), scalars=True)
    assert torch.equal(model.b.weight, before)
    fixup_(model, rows())
