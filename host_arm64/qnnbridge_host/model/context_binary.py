"""Read the header of a QNN context binary, and define the records of its full description. QNN is not loaded.

The format is Qualcomm's and not published. These fields are the same in all examined binaries of SDK 2.51 (13
chips; one or several graphs; embedded or in a separate file): the total size, the name of each graph, the SDK
build, and the chip and its architecture, which the compiler writes into a list of notes. A file with any other
header has the type "unknown", and no conclusions are drawn from it. All functions are pure and thread-safe.
"""

from __future__ import annotations

import dataclasses
import re
import struct
from collections.abc import Mapping
from typing import Any, BinaryIO, Final, Literal

from qnnbridge_protocol.field_types import read_document

# Number of bytes to read: in the measured binaries the compiler's notes begin between 20 and 60 KB.
_HEAD_BYTES: Final = 256 * 1024
_MAGIC: Final = bytes.fromhex("00000002000000030000000000000001")
# Fields after the magic number: length of the description, offset of the payload, length of the payload.
_SIZES: Final = struct.Struct("<QQQ")
# A binary for several chips is a ZIP archive that contains one binary for each chip.
_SEVERAL_MAGIC: Final = b"PK\x03\x04"
# Prefixes of the name of the first file in a DLC. The name follows a header of `_ENTRY_BYTES`.
_CONTAINED: Final = (b"dlc.", b"htp.", b"model")
_ENTRY_BYTES: Final = 30
_BUILD: Final = re.compile(rb"v(\d+\.\d+\.\d+\.\d{6,})")
_TARGET: Final = re.compile(rb"soc_type=([A-Za-z0-9_]{2,32});arch=(\d{2,3})")
_VTCM: Final = re.compile(rb";vtcm_size=(\d{1,12});")
# Byte patterns in the table of contents after the description: the first marks the code of a graph, the second
# marks weights that several graphs share.
_CODE_MARK: Final = re.compile(rb"PICKLE/\d")
_SHARED_MARK: Final = re.compile(rb"WEIGHTS/\d")
_GRAPH: Final = re.compile(rb"QNN[A-Za-z]*_[A-Za-z0-9]+_[A-Za-z0-9_]*\d")

BlobKind = Literal["context", "several contexts", "unknown", "text", "empty"]


@dataclasses.dataclass(frozen=True, slots=True)
class BlobTarget:
    """Target of a context binary. soc: Qualcomm's part name; ``None`` if the compiler options did not set a
    chip."""

    soc: str | None
    arch: int


@dataclasses.dataclass(frozen=True, slots=True)
class BlobFacts:
    """Facts from the header of a context binary.

    size: in bytes. declared_size: size according to the header. is_whole: whether the file is complete, ``None`` if
    unknown. graphs: names of the graphs that ONNX Runtime's QNN provider compiled. described: whether the whole
    description was read, so that `graphs` is complete. shares_weights: whether several graphs use the same weights;
    ``None`` if no table of contents was found. first_line: first line of a text file.
    """

    kind: BlobKind
    size: int
    declared_size: int | None = None
    is_whole: bool | None = None
    sdk: str | None = None
    targets: tuple[BlobTarget, ...] = ()
    vtcm_mb: int | None = None
    graphs: tuple[str, ...] = ()
    described: bool = False
    shares_weights: bool | None = None
    first_line: str = ""


def read_blob(file: BinaryIO, start: int = 0, size: int | None = None) -> BlobFacts:
    """Read the facts of a context binary of `size` bytes at `start`; default: up to the end of the file."""
    if size is None:
        size = file.seek(0, 2) - start
    file.seek(start)
    facts = blob_facts(file.read(min(size, _HEAD_BYTES)), size)
    # Do not check an embedded binary, because `is_zipfile` would read the end of the model file.
    if facts.kind == "several contexts" and not start:
        # `is_zipfile` finds the directory at the end of the archive only if the file is complete.
        import zipfile  # imported here: it imports shutil and the compression modules

        return dataclasses.replace(facts, is_whole=zipfile.is_zipfile(file))
    return facts


def blob_facts(head: bytes, size: int) -> BlobFacts:
    """Return the facts of a binary of `size` bytes that starts with `head`."""
    if not size:
        return BlobFacts("empty", 0)
    if is_text(head[:512]):
        lines = head[:512].decode("utf-8", "replace").strip().splitlines()
        return BlobFacts("text", size, first_line=lines[0][:120] if lines else "")
    targets, vtcm = _targets(head), _VTCM.search(head)
    # The compiler records bytes; chips and options use MB.
    vtcm_mb = int(vtcm[1]) >> 20 if vtcm else None
    if head.startswith(_SEVERAL_MAGIC):
        return BlobFacts("several contexts", size, sdk=_sdk(head), targets=targets, vtcm_mb=vtcm_mb)
    if not head.startswith(_MAGIC) or len(head) < len(_MAGIC) + _SIZES.size:
        return BlobFacts("unknown", size)
    _, payload, length = _SIZES.unpack_from(head, len(_MAGIC))
    # Search for SDK and graphs only in the description, because weights and code may contain such bytes by chance.
    description = head[:payload]
    return BlobFacts(
        "context",
        size,
        payload + length,
        payload + length == size,
        _sdk(description),
        targets,
        vtcm_mb,
        tuple(dict.fromkeys(name.decode("ascii") for name in _GRAPH.findall(description))),
        described=payload <= len(head),
        shares_weights=_shares_weights(head[payload:]),
    )


def looks_like_blob(head: bytes) -> bool:
    """Return whether a file with this beginning is a context binary for a single chip."""
    return head.startswith(_MAGIC)


def looks_like_container(head: bytes) -> bool:
    """Return whether a file with this beginning is a DLC, an archive of a model or of context binaries."""
    return head.startswith(_SEVERAL_MAGIC) and head[_ENTRY_BYTES:].startswith(_CONTAINED)


def _shares_weights(contents: bytes) -> bool | None:
    if _SHARED_MARK.search(contents):
        return True
    return False if _CODE_MARK.search(contents) else None


def _sdk(data: bytes) -> str | None:
    found = _BUILD.search(data)
    return found[1].decode("ascii") if found else None


def _targets(data: bytes) -> tuple[BlobTarget, ...]:
    found = dict.fromkeys((soc.decode("ascii"), int(arch)) for soc, arch in _TARGET.findall(data))
    return tuple(BlobTarget(None if soc.startswith("UNKNOWN") else soc, arch) for soc, arch in found)


def is_text(head: bytes) -> bool:
    """Return whether the first bytes of a file are text. No model or context binary begins with text."""
    if not head.strip():
        return False
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # the last character may be cut off
            return False
        text = head[: error.start].decode("utf-8")
    return all(character.isprintable() or character in "\t\r\n\f" for character in text)


# --- the description of a binary by QNN's system library -------------------------------------------------
# Names, inputs, outputs, data types and quantisation of the graphs. The format is not published, so QNN's library
# reads it in a separate process (`qnnbridge_host.wrap`) and returns these records.

# Names in `onnx.TensorProto` of the types that arrays can have, by QNN's type number. Types of four bits are
# missing because arrays cannot have QNN's packed layout; strings and unknown types are missing because their layout
# is unknown.
ONNX_TYPES: Final[Mapping[int, str]] = {
    0x0008: "INT8",
    0x0016: "INT16",
    0x0032: "INT32",
    0x0064: "INT64",
    0x0108: "UINT8",
    0x0116: "UINT16",
    0x0132: "UINT32",
    0x0164: "UINT64",
    0x0216: "FLOAT16",
    0x0232: "FLOAT",
    0x0264: "DOUBLE",
    0x0308: "INT8",
    0x0316: "INT16",
    0x0332: "INT32",
    0x0408: "UINT8",
    0x0416: "UINT16",
    0x0432: "UINT32",
    0x0508: "BOOL",
}
_KINDS: Final = {0: "int", 1: "uint", 2: "float", 3: "sfixed", 4: "ufixed", 5: "bool", 6: "string"}
# Names of the QNN backends that have context binaries, by QNN's number.
BACKENDS: Final[Mapping[int, str]] = {3: "cpu", 4: "gpu", 6: "htp", 7: "htp on Linux without a driver", 5: "dsp"}


def type_words(number: int) -> str:
    """Return the name of a data type: ``ufixed8``, ``float16``. The low byte of QNN's number contains the width as
    two decimal digits: 0x16 is 16 bits."""
    kind = _KINDS.get(number >> 8)
    return f"{kind}{number & 0xFF:x}" if kind is not None and number <= 0xFFFF else f"type {number:#x}"


@dataclasses.dataclass(frozen=True, slots=True)
class Quantisation:
    """Quantisation ``real = (stored + offset) * scale``, for all elements or for each index of `axis`.

    bits: bits in use, ``None`` for all bits of the type. encoding: QNN's number of the scheme if it is not scale
        and offset; its parameters are not read, and the other fields are empty.
    """

    scales: tuple[float, ...] = ()
    offsets: tuple[int, ...] = ()
    axis: int | None = None
    bits: int | None = None
    encoding: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class TensorDescription:
    """Tensor of a graph. data_type, kind: QNN's numbers. layout: 0 for a plain array. dynamic: shape may vary."""

    name: str
    data_type: int
    dimensions: tuple[int, ...]
    quantisation: Quantisation | None = None
    kind: int = 0
    layout: int = 0
    dynamic: bool = False

    @property
    def onnx_type(self) -> str | None:
        """Type in `onnx.TensorProto`, ``None`` if no array has this type."""
        return ONNX_TYPES.get(self.data_type)

    @property
    def is_fixed_point(self) -> bool:
        return self.data_type >> 8 in (3, 4)

    @property
    def is_optional(self) -> bool:
        """Whether a run may omit the tensor, which ONNX Runtime does not support."""
        # Kinds 11 to 13 of Qnn_TensorType_t: optional tensors that the application writes, reads, or both.
        return 11 <= self.kind <= 13

    @property
    def words(self) -> str:
        """Type, shape and quantisation as text: ``ufixed8[1,3,64,64] scale 0.0078 offset -128``."""
        text = f"{type_words(self.data_type)}[{','.join(map(str, self.dimensions))}]"
        given = self.quantisation
        if given is None:
            return text
        if given.encoding is not None:
            return f"{text} quantised by scheme {given.encoding}"
        bits = f" of {given.bits} bits" if given.bits is not None else ""
        if given.axis is not None:
            return f"{text} {len(given.scales)} scales along axis {given.axis}{bits}"
        return f"{text} scale {given.scales[0]:.6g} offset {given.offsets[0]}{bits}"


@dataclasses.dataclass(frozen=True, slots=True)
class GraphDescription:
    """A graph of a binary. updateable: number of tensors that QNN could exchange; ONNX Runtime does not exchange
    tensors."""

    name: str
    inputs: tuple[TensorDescription, ...]
    outputs: tuple[TensorDescription, ...]
    updateable: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class BinaryDescription:
    """Description of a binary by QNN's system library.

    backend, soc_model: QNN's numbers; 0 is unknown. build: the SDK build that compiled the binary. library:
    interface version of the system library that read it. layout: versions of the structures that the library
    returned.
    """

    graphs: tuple[GraphDescription, ...]
    build: str = ""
    backend: int = 0
    soc_model: int = 0
    core_api: tuple[int, ...] = ()
    library: str = ""
    layout: str = ""
    context_tensors: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(graph.name for graph in self.graphs)

    @property
    def backend_words(self) -> str:
        return BACKENDS.get(self.backend, f"number {self.backend}")

    def to_plain(self) -> dict[str, Any]:
        """Return the description in JSON types."""
        return dataclasses.asdict(self)

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> BinaryDescription:
        """Read the result of `to_plain`. Raise `ValueError` for other data."""
        return read_document(cls, plain, "description")
