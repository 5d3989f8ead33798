"""The tensors of a file of weights: torch.save, safetensors, the index of a file in several parts.

Runs no code of the file. Must not measure.
"""

from __future__ import annotations

import json
import pickle
import re
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from fp16doctor.errors import CheckpointError
from fp16doctor.record.inert import Inert, load_inert

if TYPE_CHECKING:
    from torch import Tensor

_INDEX = ".index.json"
# What a folder of weights is read by, the first that is there.
_IN_FOLDERS = (
    "model.safetensors.index.json",
    "pytorch_model.bin.index.json",
    "diffusion_pytorch_model.safetensors.index.json",
    "model.safetensors",
    "diffusion_pytorch_model.safetensors",
    "pytorch_model.bin",
)
# Where a pickled module keeps its parts; state_dict() does not name these.
_OF_MODULES = ("_parameters", "_buffers", "_modules")


def stored_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield (keys joined by dots, tensor on the CPU) in the order of the file.

    Sparse tensors are given by their values, nested ones by their parts.

    Raises:
        CheckpointError: unreadable-checkpoint, unsafe-checkpoint (the pickle needs code).
    """
    if path.is_dir():
        path = _main_file(path)
    if path.name.endswith(_INDEX):
        for part in _parts(path):
            yield from stored_tensors(part)
        return
    found = _safetensors(path) if _is_safetensors(path) else _walk("", _unpickled(path), set())
    for name, tensor in found:
        yield from _plain(name, tensor)


def _plain(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    if tensor.is_nested:
        for number, part in enumerate(tensor.unbind()):
            yield f"{name}.{number}", part
    elif tensor.layout == torch.sparse_coo and not tensor.is_meta:
        yield f"{name}.values", tensor.coalesce().values()
    elif tensor.layout != torch.strided and not tensor.is_meta and hasattr(tensor, "values"):
        yield f"{name}.values", tensor.values()
    else:
        yield name, tensor


def _main_file(folder: Path) -> Path:
    named = next((folder / n for n in _IN_FOLDERS if (folder / n).is_file()), None)
    alone = sorted(folder.glob("*.safetensors"))
    if named is None and len(alone) != 1:
        raise CheckpointError(
            f"'{folder}' is a folder that holds none of {', '.join(_IN_FOLDERS[:4])}; name a file "
            "of torch.save or safetensors in it",
            "unreadable-checkpoint",
        )
    return named or alone[0]


def _parts(index: Path) -> list[Path]:
    """Return the files that an index names, each once; they lie beside it."""
    try:
        names = list(
            dict.fromkeys(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise _unreadable(index, LookupError()) from error
    parts = [index.parent / str(name) for name in names]
    for name, part in zip(names, parts, strict=True):
        if str(name) != Path(str(name)).name or not part.is_file():
            raise CheckpointError(
                f"'{index}' names the part '{name}', which is not there beside it; put all parts "
                "into one folder, or name one part",
                "unreadable-checkpoint",
            )
    return parts


def _is_safetensors(path: Path) -> bool:
    """By content: eight bytes of length, then a JSON object."""
    try:
        with path.open("rb") as stream:
            head = stream.read(9)
    except OSError as error:
        raise _unreadable(path, error) from error
    return len(head) == 9 and head[8:] == b"{" and not head.startswith((b"PK", b"\x80"))


def _safetensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt", device="cpu") as stored:
            for name in stored.keys():  # noqa: SIM118 - not a dict
                yield name, stored.get_tensor(name)
    except (SafetensorError, OSError) as error:
        raise _unreadable(path, error) from error


def _unpickled(path: Path) -> object:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, on kinds of tensors that it holds for new or old
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            if not zipfile.is_zipfile(path) and b"torch" not in path.read_bytes()[:4096]:
                raise _unreadable(path, error) from error
            return _without_classes(path, error)
        except (OSError, RuntimeError, EOFError, ValueError, LookupError) as error:
            if _is_torchscript(path):
                raise _unsafe(path, "a TorchScript archive") from error
            raise _unreadable(path, error) from error


def _without_classes(path: Path, error: pickle.UnpicklingError) -> object:
    try:
        return load_inert(path)
    except Exception:  # noqa: BLE001 - whatever a strange pickle leads to: it stays refused
        raise _unsafe(path, _needed(error)) from error


def _is_torchscript(path: Path) -> bool:
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        return any(name.endswith("/constants.pkl") for name in archive.namelist())


def _unsafe(path: Path, needed: str) -> CheckpointError:
    return CheckpointError(
        f"refused: '{path}' holds objects other than tensors and containers, and loading it "
        f"would run code ({needed}); save model.state_dict() and name that file",
        "unsafe-checkpoint",
    )


def _needed(error: Exception) -> str:
    """The global that the pickle asks for, as torch's message names it."""
    text = " ".join(str(error).split())
    start = text.find("GLOBAL ")
    return text[start:].split(" was not")[0] if start >= 0 else text[:80]


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    # What the unpickler's own lookups raise on any other file says nothing to a reader.
    plain = isinstance(error, (LookupError, pickle.UnpicklingError, EOFError))
    said = "no checkpoint" if plain else getattr(error, "strerror", None) or str(error)
    line = re.split(r"\n|\. (?=[A-Z])", said.strip())[0][:160]
    return CheckpointError(
        f"'{path}' could not be read as weights: {line}; name a file of torch.save or safetensors",
        "unreadable-checkpoint",
    )


def _walk(name: str, node: object, seen: set[int]) -> Iterator[tuple[str, Tensor]]:
    """Tensors of nested containers, each object once."""
    if isinstance(node, torch.Tensor):
        yield name or "tensor", node.detach()
        return
    if id(node) in seen:
        return
    seen.add(id(node))
    inert = isinstance(node, Inert)
    for key, value in _children(node):
        inner = name if inert and key in _OF_MODULES else f"{name}.{key}" if name else key
        yield from _walk(inner, value, seen)


def _children(node: object) -> list[tuple[str, object]]:
    if isinstance(node, Inert):
        node = node.parts
    if isinstance(node, Mapping):
        return [(str(key), value) for key, value in node.items()]
    if isinstance(node, (list, tuple)):
        return [(str(i), value) for i, value in enumerate(node)]
    return []
