"""Scripts that say "cuda" run where there is none: on the CPU, from their first request on.

Until a script asks for a CUDA device every call gives what it gives without one; from then on
torch answers as if one were there. Tensors stay honest: ``device`` is the CPU, ``is_cuda`` False.

Must not know arithmetic (``half_arithmetic``) or autocast's op lists (``cuda_autocast``).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _device
from torch.utils.data import DataLoader

from fp16doctor.simulate import cuda_calls
from fp16doctor.simulate.amp_calls import AmpCalls
from fp16doctor.simulate.device_mode import CudaOnCpu
from fp16doctor.simulate.devices import CPU, asked_by_compiler, names_cuda
from fp16doctor.simulate.replacing import Replacing


class CudaDevice:
    """Between ``start`` and ``stop`` a CUDA device is there for whoever asks for one.

    ``on_request`` is called once, at the first request, before it is answered.
    """

    def __init__(self, on_request: Callable[[], None]) -> None:
        self.live = False  # a CUDA device was asked for
        self._on_request = on_request
        self._mode = CudaOnCpu(self.ask, lambda: self.live)
        self._names = Replacing()
        self.amp = AmpCalls(self._names, lambda: self.live)

    def start(self) -> None:
        """Be ready; nothing is answered otherwise before the first request."""
        self._put_calls(torch.cuda, cuda_calls.ASKING, self._when_asked)
        self._put_calls(torch.cuda, cuda_calls.ANSWERED, self._when_live)
        self._put_calls(torch.cuda.nvtx, cuda_calls.NVTX, self._when_asked)
        self._put_calls(torch.accelerator, cuda_calls.ACCELERATOR, self._when_live)
        self._put_places()
        self.amp.put()
        self._mode.enter()

    def stop(self) -> None:
        """Be gone."""
        self._mode.leave()
        self._names.restore()
        self.live = False

    def ask(self) -> None:
        """Take a request for a CUDA device."""
        if not self.live:
            self.live = True
            self._on_request()
            self.amp.enable_late()

    def _put_calls(
        self,
        owner: Any,
        calls: dict[str, Callable[..., Any]],
        made: Callable[[Any, Callable[..., Any]], Any],
    ) -> None:
        for name, answer in calls.items():
            original = getattr(owner, name, None)
            if original is not None:
                self._names.put(owner, name, made(original, answer))

    def _when_live(self, original: Any, answer: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            return (answer if self.live else original)(*args, **kwargs)

        return call

    def _when_asked(self, original: Any, answer: Callable[..., Any]) -> Any:
        if isinstance(answer, type):  # the script may test for it with isinstance
            return _asking_class(answer, self.ask)

        def call(*args: Any, **kwargs: Any) -> Any:
            if asked_by_compiler(sys._getframe(1)):
                return original(*args, **kwargs)
            self.ask()
            return answer(*args, **kwargs)

        return call

    # -- where a device is named outside the calls that a function mode sees ----------------------

    def _put_places(self) -> None:
        names = self._names
        names.put(torch, "Generator", _generator_class(self._place))
        names.put(torch, "load", self._loading(torch.load))
        # Refused before a function mode sees it: its argument is no stream of torch's.
        recorded = self._when_live(torch.Tensor.record_stream, lambda *args: None)
        names.put(torch.Tensor, "record_stream", recorded)
        context = _device.DeviceContext
        names.put(context, "__init__", self._first_argument_placed(context.__init__))
        names.put(DataLoader, "__iter__", self._unpinned(DataLoader.__iter__))
        # With one device DataParallel is the module itself, as it is without any.
        parallel = sys.modules["torch.nn.parallel.data_parallel"]
        kind = "_get_available_device_type"
        if hasattr(parallel, kind):
            names.put(parallel, kind, self._when_live(getattr(parallel, kind), lambda: None))

    def _place(self, device: Any) -> Any:
        if not names_cuda(device):
            return device
        self.ask()
        return CPU

    def _placed_name(self, device: Any) -> Any:
        return "cpu" if self._place(device) is CPU else device

    def _first_argument_placed(self, original: Any) -> Callable[..., None]:
        def made(owner: Any, device: Any) -> None:
            original(owner, self._place(device))

        return made

    def _loading(self, original: Any) -> Callable[..., Any]:
        def load(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
            if isinstance(map_location, dict):
                there: Any = {k: self._placed_name(v) for k, v in map_location.items()}
            else:
                there = self._place(map_location)
            if there is None and self.live:
                there = "cpu"  # what was saved on a GPU goes where the GPU is simulated
            return original(f, there, *args, **kwargs)

        return load

    def _unpinned(self, original: Any) -> Callable[..., Any]:
        def begin(loader: Any) -> Any:
            pinned = loader.pin_memory
            if not self.live or not pinned:
                return original(loader)
            loader.pin_memory = False
            try:
                return original(loader)
            finally:
                loader.pin_memory = pinned

        return begin


def _asking_class(answer: type, ask: Callable[[], None]) -> type:
    class Asking(answer):  # type: ignore[misc]  # known at run time only
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            ask()
            super().__init__(*args, **kwargs)

    Asking.__name__ = Asking.__qualname__ = answer.__name__
    return Asking


def _generator_class(place: Callable[[Any], Any]) -> type:
    original = torch.Generator

    class OnCpu(type):
        def __call__(cls, device: Any = "cpu") -> Any:
            return original(place(device))

        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original)

        def __subclasscheck__(cls, other: type) -> bool:
            return issubclass(other, original)

    return OnCpu("Generator", (), {})
