#!/usr/bin/env python3
"""Adapters that let a step-time harness run fp16doctor beside other tools.

Each class has the four methods such a harness calls: ``load`` (import), ``attach`` (instrument a
rig that has ``model``, ``optimizer`` and ``train_step()``), ``step`` (one training step, timed)
and ``close``. One class a mode:

* ``Screen``: every step the largest magnitude, inf and NaN of all outputs, gradients, parameters;
* ``Full``: every step full statistics with the exponent histogram;
* ``Idle``: the hooks are there and nothing is looked at.

Such a harness trains a bare rig in the same process, between the steps of the watched one. The
hooks are global, so that they are taken off for the bare rig's steps; putting them on and off is
part of the time measured.
"""

from __future__ import annotations

from typing import Any


class Screen:
    """The screen in every step."""

    note = "fp16doctor.profile, screen of outputs, their gradients and parameter gradients"
    only = None
    action = "WARMUP"

    def load(self) -> None:
        """Import the tool."""
        import fp16doctor.profiler

        self._profile = fp16doctor.profiler.profile

    def attach(self, rig: Any, workdir: str) -> None:
        """Enter the profile; it is left in ``close``."""
        self.profile = self._profile(rig.model, rig.optimizer, schedule=lambda step: self.action)
        self.profile.__enter__()
        self._recorder = self.profile._session._recorder
        self._recorder.detach()

    def step(self, rig: Any) -> float:
        """Run one training step."""
        self._recorder.attach()
        try:
            loss: float = rig.train_step()
        finally:
            self._recorder.detach()
        return loss

    def close(self) -> None:
        """Leave the profile; what it saw must be whole."""
        self.profile.__exit__(None, None, None)
        if self.action != "NONE":
            assert self._recorder.survey.ranges(), "nothing was surveyed"


class Full(Screen):
    """Full statistics in every step."""

    note = "fp16doctor.profile, exact counts and exponent histograms of the same, and of weights"
    action = "RECORD"


class Idle(Screen):
    """Attached, looking at nothing."""

    note = "fp16doctor.profile, attached but idle"
    action = "NONE"
