"""The header of a QNN context binary, read from its first bytes; nothing is loaded.

The format is Qualcomm's and not published. The fields used here are alike in all binaries that SDK 2.51 made
(13 chips, one and several graphs, embedded and not): a header that gives the size of the whole, the names of the
graphs, the SDK build, and in the compiler's own notes the chip and its architecture. A file with another header is
called unknown, and nothing is concluded from it. Pure functions of the bytes; any thread.
"""

from __future__ import annotations

import dataclasses
import re
import struct
from typing import BinaryIO, Final, Literal

# The compiler's notes were found between 20 and 60 KB.
_HEAD_BYTES: Final = 256 * 1024
_MAGIC: Final = bytes.fromhex("00000002000000030000000000000001")
# Behind the magic: length of the description, offset of the payload, length of the payload.
_SIZES: Final = struct.Struct("<QQQ")
# A binary for several chips is a ZIP archive of one for each.
_SEVERAL_MAGIC: Final = b"PK\x03\x04"
# How the name of the first file in a DLC begins. It follows a header of this many bytes.
_CONTAINED: Final = (b"dlc.", b"htp.", b"model")
_ENTRY_BYTES: Final = 30
_BUILD: Final = re.compile(rb"v(\d+\.\d+\.\d+\.\d{6,})")
_TARGET: Final = re.compile(rb"soc_type=([A-Za-z0-9_]{2,32});arch=(\d{2,3})")
_VTCM: Final = re.compile(rb";vtcm_size=(\d{1,12});")
# In the table of contents behind the description: the code of a graph, and weights that several graphs use.
_CODE_MARK: Final = re.compile(rb"PICKLE/\d")
_SHARED_MARK: Final = re.compile(rb"WEIGHTS/\d")
_GRAPH: Final = re.compile(rb"QNN[A-Za-z]*_[A-Za-z0-9]+_[A-Za-z0-9_]*\d")

BlobKind = Literal["context", "several contexts", "unknown", "text", "empty"]


@dataclasses.dataclass(frozen=True, slots=True)
class BlobTarget:
    """soc: Qualcomm's part name, ``None`` if the compiler was given none."""

    soc: str | None
    arch: int


@dataclasses.dataclass(frozen=True, slots=True)
class BlobFacts:
    """size: in bytes. declared_size: of the header. is_whole: ``None`` if unknown.

    graphs: names of those that ONNX Runtime's QNN made. described: the description was read whole, so a graph that
    is not in `graphs` is not in the binary. shares_weights: graphs in it use the same weights, ``None`` if its
    table of contents was not found. first_line: of a text.
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
    """Of a context binary that begins at `start` and is `size` bytes long, default to the end of the file."""
    if size is None:
        size = file.seek(0, 2) - start
    file.seek(start)
    facts = blob_facts(file.read(min(size, _HEAD_BYTES)), size)
    if facts.kind == "several contexts" and not start:
        # The directory of a ZIP archive is at its end.
        import zipfile  # with shutil and the compressions

        return dataclasses.replace(facts, is_whole=zipfile.is_zipfile(file))
    return facts


def blob_facts(head: bytes, size: int) -> BlobFacts:
    """`read_blob` of a binary of `size` bytes that begins with `head`."""
    if not size:
        return BlobFacts("empty", 0)
    if is_text(head[:512]):
        lines = head[:512].decode("utf-8", "replace").strip().splitlines()
        return BlobFacts("text", size, first_line=lines[0][:120] if lines else "")
    targets, vtcm_mb = _targets(head), _vtcm(head)
    if head.startswith(_SEVERAL_MAGIC):
        return BlobFacts("several contexts", size, sdk=_sdk(head), targets=targets, vtcm_mb=vtcm_mb)
    if not head.startswith(_MAGIC) or len(head) < len(_MAGIC) + _SIZES.size:
        return BlobFacts("unknown", size)
    _, payload, length = _SIZES.unpack_from(head, len(_MAGIC))
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
    """Whether a file that begins like this is a context binary of a single chip."""
    return head.startswith(_MAGIC)


def looks_like_container(head: bytes) -> bool:
    """Whether a file that begins like this is a DLC: an archive of a model, or of binaries for several chips."""
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


def _vtcm(data: bytes) -> int | None:
    found = _VTCM.search(data)
    return int(found[1]) >> 20 if found else None


def is_text(head: bytes) -> bool:
    """Whether the first bytes of a file are those of a text, which no model and no context binary begins like."""
    if not head.strip():
        return False
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 3:  # else only the last character is cut
            return False
        text = head[: error.start].decode("utf-8")
    return all(character.isprintable() or character in "\t\r\n\f" for character in text)
