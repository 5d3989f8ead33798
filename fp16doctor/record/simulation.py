"""A run on a simulated CUDA device or apex: when it is one, and what the report says of it.

Must not know how it is simulated (``simulate``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import torch

from fp16doctor.formats.number_format import get_format
from fp16doctor.record.cuda_named import cuda_named, fp16_wanted
from fp16doctor.schema.recording import Caution
from fp16doctor.schema.tape import Tape
from fp16doctor.simulate.apex_import import ApexImport
from fp16doctor.simulate.cuda_autocast import CudaAutocast
from fp16doctor.simulate.cuda_device import CudaDevice
from fp16doctor.simulate.devices import asked_by_compiler
from fp16doctor.simulate.half_arithmetic import HalfArithmetic
from fp16doctor.simulate.partial_sums import PartialSums
from fp16doctor.simulate.replacing import Replacing

if TYPE_CHECKING:
    from fp16doctor.record.script import PreparedScript

# What a device is simulated for; OFF: nor does anything stand in for a package that is not there.
OFF, NEVER, UNNAMED, PREPARED, AT_ONCE = "off", "never", "unnamed", "prepared", "at once"
WANTED = "wanted"  # prepared, and a framework is asked for what it has on a GPU only


def simulation_for(device: str, script: PreparedScript) -> str:
    """Return when a script is to run on a simulated device; ``device`` is what --device says.

    Never on "cpu" and where a CUDA device is there. On "cuda" at once. Else prepared for the first
    request, in scripts that name such a device at all.
    """
    if device == "cpu" or _cuda_is_there():
        return NEVER
    if device == "cuda":
        return AT_ONCE
    if fp16_wanted(script.source, script.target.argv):
        return WANTED
    folder = "" if script.located is None else script.located.folder
    named = cuda_named(script.source, script.target.argv, folder)
    return PREPARED if named else UNNAMED


def _cuda_is_there() -> bool:
    """Ask without touching the device where that is possible: a script may fork first."""
    if not torch.backends.cuda.is_built():
        return False
    count: int = torch.cuda._device_count_nvml()  # −1 where it cannot tell
    return count > 0 if count >= 0 else torch.cuda.is_available()


_APEX = (
    "apex is not installed, and without fp16doctor the script ends at its import: the documented "
    "behaviour of its opt levels (asked for: {}) ran on torch.autocast and torch.amp.GradScaler; "
    "cures are told for torch.amp, in which `fp16doctor lint` shows the same recipe (FD726)"
)


class Simulation:
    """``device`` is "cuda" once the script has asked for a device that is simulated."""

    def __init__(self, when: str = OFF) -> None:
        self._when = when
        self.device = ""
        self.missed = False  # a device was asked for that nothing was prepared for
        self._arithmetic = HalfArithmetic()
        self._cuda: CudaDevice | None = None
        self._lists: CudaAutocast | None = None
        self._names = Replacing()
        self._apex = ApexImport()
        self._on_request: Callable[[], None] = lambda: None

    def start(self, on_request: Callable[[], None]) -> None:
        """Be ready for the script; ``on_request`` is called at its first request."""
        self._on_request = on_request
        if self._when != OFF:
            self._apex.start()
        if self._when == UNNAMED:
            self._names.put(torch.cuda, "_lazy_init", self._noting(torch.cuda._lazy_init))
        elif self._when not in (OFF, NEVER):
            self._cuda = CudaDevice(self._begin)
            self._lists = CudaAutocast(self._cuda.amp.for_cuda)
            self._cuda.start()
            if self._when == AT_ONCE:
                self._cuda.ask()

    def stop(self) -> None:
        """Leave nothing behind."""
        self._apex.stop()
        self._names.restore()
        if self._lists is not None:
            self._lists.take_off()
        self._arithmetic.watching = False
        self._arithmetic.__exit__(None, None, None)
        if self._cuda is not None:
            self._cuda.stop()

    @contextmanager
    def arithmetic(self) -> Iterator[None]:
        """Replay with the arithmetic of the run; nothing where the run was not simulated."""
        if not self.device:
            yield
            return
        with self._arithmetic:
            yield

    def cautions(self) -> Iterator[Caution]:
        """Yield what the report says of the simulation."""
        if self.device:
            yield Caution("cuda-simulated", _limits_of_it(self._arithmetic.sums))
        if self._apex.amp is not None:
            yield Caution("apex-simulated", _APEX.format(self._apex.amp.level or "none"))
        if self._when == WANTED and not self.device:
            yield Caution(
                "cuda-not-simulated",
                "the script asks its framework for fp16 or a GPU, which is not there, and the "
                "framework takes another format or refuses; --device cuda runs it on the CPU as on "
                "a GPU",
            )
        elif self.missed:
            yield Caution(
                "cuda-not-simulated",
                "the script asked for a CUDA device, which is not there, and its files do not "
                "spell that out; --device cuda runs it on the CPU as on a GPU",
            )

    def _begin(self) -> None:
        self.device = "cuda"
        assert self._lists is not None
        self._lists.put()
        self._arithmetic.__enter__()
        self._arithmetic.watching = True
        self._on_request()

    def _noting(self, original: Any) -> Callable[..., Any]:
        def asked(*args: Any, **kwargs: Any) -> Any:
            self.missed = self.missed or not asked_by_compiler(sys._getframe(1))
            return original(*args, **kwargs)

        return asked


def arithmetic_of(tape: Tape) -> AbstractContextManager[object]:
    """Return the arithmetic that a tape was recorded in, as a context for its replay."""
    return HalfArithmetic() if tape.device else nullcontext()


def _limits_of_it(sums: PartialSums) -> str:
    said = (
        "CUDA was simulated on the CPU, and sums inside GPU kernels were not seen: never proof "
        "that it cannot overflow on a GPU. "
        "The script asked for a CUDA device and ran with CUDA's autocast lists, and with fp16 and "
        "bf16 products summed in fp32 and rounded once; its tensors say that they are on the CPU. "
        "Not seen are split-K sums and half-precision accumulation"
    )
    if not sums.bound:
        return said
    limit = get_format("fp16").max
    side = "above" if sums.bound > limit else "below"
    return (
        f"{said}; the largest bound K · amax · amax of a partial sum in an fp16 product is "
        f"{sums.bound:.3g} (K = {sums.terms}), {side} the fp16 maximum {limit:.0f}"
    )
