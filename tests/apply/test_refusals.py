"""Networks that Fixup is not for are refused with the reason, and left as they are."""

from __future__ import annotations

import pytest
import torch
from residual_nets import Around, rows, two
from torch import Tensor, nn
from torch.nn import functional as F

from fp16doctor.apply.fixup import fixup_
from fp16doctor.errors import FixupError


class Shared(Around):
    def branch(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(F.relu(self.b(x)))))


class Normed(Around):
    def branch(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.norm(self.a(x))))


class Rms(Around):
    def branch(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return self.b(h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6))


class OneLayer(Around):
    def branch(self, x: Tensor) -> Tensor:
        return self.a(F.relu(x))


class EndsInRelu(Around):
    def branch(self, x: Tensor) -> Tensor:
        return F.relu(self.b(F.relu(self.a(x))))


class EndsInSigmoid(Around):
    def branch(self, x: Tensor) -> Tensor:
        return torch.sigmoid(self.b(F.relu(self.a(x))))


class Attends(Around):
    def branch(self, x: Tensor) -> Tensor:
        q, k = self.a(x), self.b(x)
        return self.c((q @ k.T).softmax(-1) @ x)


class Plain(Around):
    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu(self.b(F.relu(self.a(self.inp(x))))))


class PostNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inp, self.out = nn.Linear(6, 6), nn.Linear(6, 3)
        self.a, self.b, self.c, self.d = (nn.Linear(6, 6) for _ in range(4))
        self.norm = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inp(x)
        x = self.norm(x + self.b(F.relu(self.a(x))))
        return self.out(x + self.d(F.relu(self.c(x))))


REFUSED = {
    "fixup-shared-weight": [Shared(**two())],
    "fixup-normalised": [
        Normed(**two(), norm=nn.BatchNorm1d(6)),
        Normed(**two(), norm=nn.LayerNorm(6)),
        Normed(**two(), norm=nn.GroupNorm(2, 6)),
        Rms(**two()),
        PostNorm(),
    ],
    "fixup-one-layer": [OneLayer(**two())],
    "fixup-branch-end": [EndsInRelu(**two()), EndsInSigmoid(**two())],
    "fixup-attention": [
        Attends(**two(), c=nn.Linear(6, 6)),
        nn.TransformerEncoderLayer(6, 2, 8, norm_first=True),
    ],
    "fixup-no-branches": [Plain(**two()), nn.LSTM(6, 6)],
    "fixup-recurrent": [nn.RNN(6, 6)],
    "fixup-forward": [nn.Linear(7, 6)],
    "fixup-lazy": [nn.LazyLinear(3)],
}


@pytest.mark.parametrize(
    ("slug", "model"), [(slug, model) for slug, models in REFUSED.items() for model in models]
)
def test_refusals_name_the_reason_and_leave_the_model(slug: str, model: nn.Module) -> None:
    lazy = slug == "fixup-lazy"
    before = {} if lazy else {k: v.clone() for k, v in model.state_dict().items()}
    with pytest.raises(FixupError) as refused:
        fixup_(model, rows())
    assert refused.value.slug == slug
    assert ";" in refused.value.message or ":" in refused.value.message
    for name, value in before.items():
        assert torch.equal(model.state_dict()[name], value)


def test_a_weight_computed_in_the_pass_is_refused() -> None:
    class Twofold(Around):
        def branch(self, x: Tensor) -> Tensor:
            return self.b(F.relu(self.a(x)))

    layers = two()
    layers["a"] = nn.utils.parametrizations.weight_norm(nn.Linear(6, 6))
    with pytest.raises(FixupError, match="fixup-computed-weight"):
        fixup_(Twofold(**layers), rows())
