"""The model that a session is made from: a file or bytes, the files beside it, and what proves them the same.

A model may keep its weights or its context binary in files of their own (`ModelScan.files`). They count as much as
the .onnx file does: with other contents they give other numbers. Immutable; any thread.
"""

from __future__ import annotations

import dataclasses
import errno
import io
import os
from typing import BinaryIO, Protocol

from qnnbridge_host.model.file_stamps import FileStamp, take_stamp
from qnnbridge_host.model.paths import path_problem
from qnnbridge_host.model.scan import ModelScan, scan_open
from qnnbridge_protocol.errors import InvalidArgument, InvalidProtobuf, ModelChanged, NoSuchFile

_CHUNK_BYTES = 1024 * 1024

MISSING = "missing"
"""In the place of a hash. Not our error: initializers given as values may stand in for the file."""


class Looked(Protocol):
    """A file and its hash."""

    @property
    def sha256(self) -> str: ...

    @property
    def stamp(self) -> FileStamp: ...


class Memo(Protocol):
    """Knows hashes of files that have not changed."""

    def look(self, path: str) -> Looked | None:
        """``None`` if there is no such file. Raises `OSError` if it cannot be read."""


@dataclasses.dataclass(frozen=True, slots=True)
class KnownFile:
    """A file as it was when the session was made.

    path: absolute. stamp: taken before it was hashed, ``None`` for one that was not there. sha256: in hex, or
    `MISSING`.
    """

    path: str
    stamp: FileStamp | None
    sha256: str

    @classmethod
    def look(cls, path: str, memo: Memo | None = None) -> KnownFile:
        """Raises `OSError` if it is there and cannot be read."""
        if memo is not None:
            known = memo.look(path)
            return cls(path, None, MISSING) if known is None else cls(path, known.stamp, known.sha256)
        stamp = take_stamp(path)
        return cls(path, stamp, MISSING if stamp is None else _hash_file(path))

    def is_unchanged(self) -> bool:
        """Hashes a touched file only. A file that was not there is not needed. Raises `OSError`."""
        if self.stamp is None:
            return True
        now = take_stamp(self.path)
        return now is not None and (self.stamp.proves(now) or _hash_file(self.path) == self.sha256)


@dataclasses.dataclass(frozen=True, slots=True)
class ModelSource:
    """A model as the application gave it.

    path: absolute, or ``None`` for a model given as bytes, which are kept for a restart of the host.
    fingerprint: SHA-256 in hex of the model's bytes; if it has files beside it, of all their hashes.
    known: the model file (if it is one), then the files that it names.
    scan: what is in it, without its nodes counted; ``None`` if it is no ONNX model as far as that can be seen.
    """

    path: str | None
    data: bytes | None
    fingerprint: str
    known: tuple[KnownFile, ...] = ()
    scan: ModelScan | None = None

    @property
    def label(self) -> str:
        """How messages call it."""
        if self.path is None:
            return f"<{len(self.data or b'')} bytes, sha256 {self.fingerprint[:12]}>"
        return os.path.basename(self.path)

    @property
    def files(self) -> tuple[str, ...]:
        """Absolute paths of the files that the model names: external data, context binaries."""
        return tuple(file.path for file in self.known if file.path != self.path)

    @classmethod
    def open(cls, path_or_bytes: object, folder: str | None = None, memo: Memo | None = None) -> ModelSource:
        """Look at the model and the files it names.

        folder: what the paths inside of a model given as bytes count from; default the current folder, as for
        ONNX Runtime itself. memo: spares hashing files that have not changed. Raises `NoSuchFile`,
        `InvalidProtobuf` for a folder, `InvalidArgument` for a path that cannot travel, `TypeError` for another
        type.
        """
        if isinstance(path_or_bytes, (bytes, bytearray, memoryview)):
            import hashlib

            data = bytes(path_or_bytes)
            scan = _scan(io.BytesIO(data), None)
            beside = _look_beside(scan, os.path.abspath(folder or os.curdir), memo)
            return cls(None, data, _fingerprint(hashlib.sha256(data).hexdigest(), beside), beside, scan)
        if not isinstance(path_or_bytes, (str, os.PathLike)):
            # ONNX Runtime's own words.
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        given = os.fsdecode(path_or_bytes)
        path = os.path.abspath(given)
        _check_travels(path)
        if os.path.isdir(path):
            raise InvalidProtobuf(
                f"{given} is a folder, not a model.",
                fix="Give the path of the .onnx file in it.",
                details={"path": path},
            )
        try:
            os.stat(path)  # says why, if there is none
            model = KnownFile.look(path, memo)
            if model.stamp is None:
                raise OSError(errno.EINVAL, "It is no regular file")
            with open(path, "rb", buffering=0) as file:
                scan = _scan(file, path)
        except (OSError, ValueError) as error:
            raise NoSuchFile(
                f"The model {given} cannot be read.",
                cause=f"{getattr(error, 'strerror', None) or error} (looked for {path}).",
                fix="Check the path; a relative one counts from the application's current folder.",
                details={"path": path},
            ) from None
        beside = _look_beside(scan, os.path.dirname(path), memo)
        return cls(path, None, _fingerprint(model.sha256, beside), (model, *beside), scan)

    def check_unchanged(self) -> None:
        """Raises `ModelChanged` if a file is not what the session was made from. Hashes touched files only."""
        for file in self.known:
            try:
                if file.is_unchanged():
                    continue
                there = os.path.exists(file.path)
                what = "has other contents now" if there else "cannot be read any more (it is not there)"
            except OSError as error:
                what = f"cannot be read any more ({error.strerror or error})"
            name = os.path.basename(file.path)
            subject = (
                f"The model {name}" if file.path == self.path else f"The file {name} of the model {self.label}"
            )
            raise ModelChanged(
                f"{subject} {what}, so its session cannot be made again after the restart of the host.",
                fix="Put the original file back, or create a new session.",
                details={"path": file.path, "sha256": file.sha256},
            )


def _scan(file: BinaryIO, path: str | None) -> ModelScan | None:
    """``None`` for what is no model: to refuse it is for ONNX Runtime, or for a look before a session is made."""
    try:
        return dataclasses.replace(scan_open(file), path=path)
    except InvalidProtobuf:
        return None


def _look_beside(scan: ModelScan | None, folder: str, memo: Memo | None) -> tuple[KnownFile, ...]:
    if scan is None:
        return ()
    # A path that a compiled model must not have is refused later; it is not even looked at, it may be a network's.
    named = [name for name in scan.files if name in scan.external_files or path_problem(name) is None]
    paths = dict.fromkeys(os.path.join(folder, name) for name in named)
    known = []
    for path in paths:
        _check_travels(path)
        try:
            known.append(KnownFile.look(path, memo))
        except OSError as error:
            raise NoSuchFile(
                f"The file {path}, which the model needs, cannot be read.",
                cause=f"{error.strerror or error}.",
                fix="Check the rights of the file.",
                details={"path": path},
            ) from None
    return tuple(known)


def _fingerprint(model: str, beside: tuple[KnownFile, ...]) -> str:
    """Without the names: the same files elsewhere are the same model."""
    if not beside:
        return model
    import hashlib

    return hashlib.sha256("\n".join((model, *(file.sha256 for file in beside))).encode()).hexdigest()


def _check_travels(path: str) -> None:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        shown = path.encode("utf-8", "backslashreplace").decode()
        raise InvalidArgument(
            f"The path {shown} is not valid Unicode.",
            cause="It has bytes that are no UTF-8 (or half of a UTF-16 pair), so it cannot be told to the host.",
            fix="Rename the file or the folder, or give the model as bytes.",
            details={"path": shown},
        ) from None


def _hash_file(path: str) -> str:
    import hashlib

    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()
