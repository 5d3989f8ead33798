"""Files that are damaged, or made to do harm: each is refused with a reason."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from bundling import bundles_of, one_linear
from torch import Tensor

from fp16doctor.errors import BundleError
from fp16doctor.record.bundle import read_bundle, write_bundle
from fp16doctor.record.bundle.container import DOCUMENT, pack, unpack

Document = dict[str, Any]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    torch.manual_seed(0)
    (bundle,) = bundles_of(one_linear)
    path = tmp_path_factory.mktemp("bundle") / "a"
    write_bundle(path, bundle)
    return path.read_bytes()


@pytest.fixture
def path(whole: bytes, tmp_path: Path) -> Path:
    path = tmp_path / "a.fp16doctor"
    path.write_bytes(whole)
    return path


def refused(path: Path, slug: str, words: str = "") -> None:
    with pytest.raises(BundleError, match=rf"{words}.*\[{slug}\]"):
        read_bundle(path)


def as_tensor(text: str) -> Tensor:
    return torch.tensor(list(text.encode()), dtype=torch.uint8)


def forge(path: Path, change: Callable[[Document], None]) -> None:
    """Write the bundle again with another document and a checksum that fits."""
    tensors = unpack(path)
    document = json.loads(tensors[DOCUMENT].numpy().tobytes())
    change(document)
    pack(path, {**tensors, DOCUMENT: as_tensor(json.dumps(document))})


def find(document: Document, op: str) -> Document:
    found: Document = next(o for o in document["ops"] if o["op"].startswith(op))
    return found


# -- damage --------------------------------------------------------------------------------------


def test_a_flipped_bit_anywhere_is_told(path: Path, whole: bytes) -> None:
    header = 8 + struct.unpack("<Q", whole[:8])[0]
    for place in (*range(0, header, 3), *range(header, len(whole), 211)):
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(BundleError):
            read_bundle(path)


def test_a_flipped_bit_of_a_weight_is_named_damage(path: Path, whole: bytes) -> None:
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 4]))
    refused(path, "damaged-bundle", "checksum")


@pytest.mark.parametrize("kept", [0, 5, 8, 100, 0.5, -1])
def test_a_truncated_file(path: Path, whole: bytes, kept: float) -> None:
    path.write_bytes(whole[: int(kept * len(whole)) if kept == 0.5 else int(kept)])
    refused(path, "truncated-bundle")


def test_a_longer_file(path: Path, whole: bytes) -> None:
    path.write_bytes(whole + b"\0" * 64)
    refused(path, "not-a-bundle")


def test_no_file(tmp_path: Path) -> None:
    refused(tmp_path / "none", "unreadable-file", "No such file")
    refused(tmp_path, "unreadable-file", "directory")


def test_other_files(path: Path) -> None:
    path.write_text("{}" * 100)
    refused(path, "not-a-bundle")
    from safetensors.torch import save_file

    save_file({"weight": torch.ones(3)}, path)
    refused(path, "not-a-bundle", "no bundle")


# -- sizes ---------------------------------------------------------------------------------------


def test_a_header_that_claims_more_than_there_is(path: Path, whole: bytes) -> None:
    path.write_bytes(struct.pack("<Q", 2**62) + whole[8:])
    refused(path, "not-a-bundle")
    path.write_bytes(struct.pack("<Q", 90_000_000) + whole[8:])
    refused(path, "truncated-bundle")


def test_a_tensor_that_claims_more_than_there_is(path: Path) -> None:
    size = 2**50
    entry = {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}
    header = json.dumps({"document": entry}).encode()
    path.write_bytes(struct.pack("<Q", len(header)) + header)
    refused(path, "truncated-bundle", str(size))


def test_a_view_beyond_its_storage(path: Path) -> None:
    def longer(document: Document) -> None:
        find(document, "aten.addmm")["args"][2]["tensor"][3] = [2**20, 3]  # the weight

    forge(path, longer)
    refused(path, "malformed-bundle", "ends at byte")


def test_a_result_beyond_all_memory(path: Path) -> None:
    def wider(document: Document) -> None:
        find(document, "aten.addmm")["outputs"]["tensor"][4] = [2**45, 1]

    forge(path, wider)
    refused(path, "malformed-bundle", "ends at byte")


@pytest.mark.parametrize("value", [-1, 2**70, 1.5, True, "3", None])
def test_geometry_that_is_none(path: Path, value: Any) -> None:
    def change(document: Document) -> None:
        find(document, "aten.addmm")["args"][0]["tensor"][5] = value

    forge(path, change)
    refused(path, "malformed-bundle", "offset")


# -- content -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "words"),
    [
        ("aten.no_such_op.default", "not known to torch"),
        ("aten.mm.no_such_overload", "not known to torch"),
        ("aten.from_file.default", "more than compute"),
        ("aten.save.default", "more than compute"),
        ("aten.manual_seed.default", "works on no tensors|not known to torch"),
        ("os.system.default", "belongs to 'os'"),
        ("c10d.allreduce_.default", "belongs to 'c10d'"),
        ("aten.__class__.__init__", "not known|no name"),
        ("../../aten.mm.default", "no name of an op"),
        ("aten.mm", "no name of an op"),
    ],
)
def test_ops_that_a_bundle_may_not_name(path: Path, op: str, words: str) -> None:
    def change(document: Document) -> None:
        document["ops"][-1]["op"] = op

    forge(path, change)
    refused(path, "unknown-op", f"({words})")


def test_an_op_is_not_let_in_as_opaque_and_never_run(path: Path) -> None:
    def change(document: Document) -> None:
        document["ops"][-1].update(op="os.system.default", flags=["opaque"])

    forge(path, change)
    assert read_bundle(path).tape.ops[-1].opaque


@pytest.mark.parametrize("name", ["/etc/passwd", "../../../etc/passwd", "file:///etc/passwd"])
def test_paths_are_names_of_bytes_and_nothing_else(path: Path, name: str) -> None:
    def change(document: Document) -> None:
        document["leaves"][0]["data"] = name

    forge(path, change)
    refused(path, "malformed-bundle", "missing")
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_bytes_that_nothing_asks_for(path: Path) -> None:
    pack(path, {**unpack(path), "../../evil": torch.zeros(3, dtype=torch.uint8)})
    refused(path, "malformed-bundle", "nothing on the tape asks for")


def test_another_version(path: Path, whole: bytes) -> None:
    assert whole.count(b'"version":"1"') == 1
    path.write_bytes(whole.replace(b'"version":"1"', b'"version":"7"'))
    refused(path, "bundle-version", "its version is 7")


@pytest.mark.parametrize(
    "text",
    ["[" * 200_000, '{"a":' * 100_000, "[" * 5000 + "]" * 5000, "", "nonsense", "NaN", "9" * 5000],
)
def test_documents_that_are_none(path: Path, text: str) -> None:
    pack(path, {**unpack(path), DOCUMENT: as_tensor(text)})
    refused(path, "malformed-bundle")


def test_an_argument_nested_deeply(path: Path) -> None:
    def change(document: Document) -> None:
        nest: Any = 1
        for _ in range(100):
            nest = [nest]
        document["ops"][0]["args"][0] = nest

    forge(path, change)
    refused(path, "malformed-bundle", "nested")


@pytest.mark.parametrize(
    "argument",
    [
        {"dtype": "float16x"},
        {"dtype": "ops"},
        {"dtype": "__builtins__"},
        {"device": "nowhere"},
        {"held": 3},
        {"pickle": "gASVBAAAAAAAAAB9lC4="},
        {"float": "1.5"},
        {"complex": [1]},
        {"slice": [1, 2, "x"]},
        {"tensor": [1, 2]},
        {"dtype": "float16", "device": "cpu"},
        {},
    ],
)
def test_arguments_of_no_kind(path: Path, argument: Any) -> None:
    def change(document: Document) -> None:
        document["ops"][0]["args"].append(argument)

    forge(path, change)
    refused(path, "malformed-bundle")


def _drop(key: str) -> Callable[[Document], None]:
    return lambda document: document.pop(key)


def _twice(key: str) -> Callable[[Document], None]:
    return lambda document: document[key].append(document[key][-1])


def _site(document: Document) -> None:
    document["ops"][0]["site"] = 999


def _loss(document: Document) -> None:
    document["losses"][0][0] = 999


def _loss_storage(document: Document) -> None:
    document["losses"][0][1][0] = 10**9


def _writes(document: Document) -> None:
    document["ops"][0]["mutates"] = [10**9]


def _outcome(document: Document) -> None:
    document["outcome"]["-1"] = "x"


def _generator(document: Document) -> None:
    document["ops"][0]["generator"] = "cpu"


def _named_argument(document: Document) -> None:
    document["ops"][0].setdefault("kwargs", {})["x=print()#"] = 1


def _key(document: Document) -> None:
    document["origin"]["step"] = "first"


@pytest.mark.parametrize(
    "change",
    [
        *map(_drop, ("origin", "ops", "sites", "leaves", "losses", "complete", "outcome", "step")),
        *map(_twice, ("leaves", "gradients")),
        *(_site, _loss, _loss_storage, _writes, _outcome, _generator, _key, _named_argument),
    ],
)
def test_documents_that_do_not_hold_together(
    path: Path, change: Callable[[Document], None]
) -> None:
    forge(path, change)
    refused(path, "malformed-bundle")


def test_a_key_twice(path: Path) -> None:
    tensors = unpack(path)
    text = tensors[DOCUMENT].numpy().tobytes().decode()
    pack(path, {**tensors, DOCUMENT: as_tensor('{"step":0,' + text[1:])})
    refused(path, "malformed-bundle", "twice")
