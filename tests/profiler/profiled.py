"""A small training loop, and what watching it must not leave behind."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules
from torch.optim import optimizer as torch_optimizer
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from fp16doctor.schema.diagnosis import Diagnosis


class Loop:
    def __init__(self, dtype: torch.dtype | None = torch.bfloat16) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.dtype = dtype

    def step(self, factor: float = 1.0) -> float:
        self.optimizer.zero_grad()
        with torch.autocast("cpu", self.dtype or torch.bfloat16, enabled=self.dtype is not None):
            loss = self.model(factor * torch.randn(16, 4)).square().mean()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def weights(self) -> list[Tensor]:
        return [t.clone() for t in self.model.state_dict().values()]


def hooks() -> list[Any]:
    return [
        torch_modules._global_forward_hooks,
        torch_modules._global_forward_pre_hooks,
        torch_optimizer._global_optimizer_pre_hooks,
        torch_optimizer._global_optimizer_post_hooks,
        _get_current_dispatch_mode_stack(),
        torch.autograd.backward,
        torch.amp.GradScaler.update,
        torch.amp.GradScaler.step,
    ]


def ranges(diagnosis: Diagnosis) -> dict[tuple[str, str], Any]:
    return {(r.module_path, r.role): r for r in diagnosis.ranges}
