"""The model that a session is made from: a file or bytes, the files beside it, and what proves them the same.

A model may keep its weights or its context binary in files of their own (`model_files`). They count as much as the
.onnx file does: with other contents they give other numbers. Immutable; any thread.
"""

from __future__ import annotations

import dataclasses
import os
import stat

from qnnbridge.model_files import referenced_files
from qnnbridge_protocol.errors import InvalidArgument, InvalidProtobuf, ModelChanged, NoSuchFile

_CHUNK_BYTES = 1024 * 1024

MISSING = "missing"
"""In the place of a hash. Not our error: initializers given as values may stand in for the file."""


@dataclasses.dataclass(frozen=True, slots=True)
class KnownFile:
    """A file as it was when the session was made.

    path: absolute. stamp: size and modification time in nanoseconds, taken before it was hashed, ``None`` for one
    that was not there. sha256: in hex, or `MISSING`.
    """

    path: str
    stamp: tuple[int, int] | None
    sha256: str

    @classmethod
    def look(cls, path: str) -> KnownFile:
        """Raises `OSError` if it is there and cannot be read."""
        stamp = _stamp(path)
        return cls(path, stamp, MISSING if stamp is None else _hash_file(path))

    def is_unchanged(self) -> bool:
        """Hashes a touched file only. A file that was not there is not needed. Raises `OSError`."""
        if self.stamp is None:
            return True
        stamp = _stamp(self.path)
        return stamp is not None and (stamp == self.stamp or _hash_file(self.path) == self.sha256)


@dataclasses.dataclass(frozen=True, slots=True)
class ModelSource:
    """A model as the application gave it.

    path: absolute, or ``None`` for a model given as bytes, which are kept for a restart of the host.
    fingerprint: SHA-256 in hex of the model's bytes; if it has files beside it, of all their hashes.
    known: the model file (if it is one), then the files that it names.
    """

    path: str | None
    data: bytes | None
    fingerprint: str
    known: tuple[KnownFile, ...] = ()

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
    def open(cls, path_or_bytes: object, folder: str | None = None) -> ModelSource:
        """Look at the model and the files it names.

        folder: what the paths inside of a model given as bytes count from; default the current folder, as for
        ONNX Runtime itself. Raises `NoSuchFile`, `InvalidProtobuf` for a folder, `InvalidArgument` for a path that
        cannot travel, `TypeError` for another type.
        """
        if isinstance(path_or_bytes, (bytes, bytearray, memoryview)):
            import hashlib

            data = bytes(path_or_bytes)
            beside = _look_beside(referenced_files(data), os.path.abspath(folder or os.curdir))
            return cls(None, data, _fingerprint(hashlib.sha256(data).hexdigest(), beside), beside)
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
            model = KnownFile(path, _stamp_of(os.stat(path)), _hash_file(path))
            with open(path, "rb", buffering=0) as file:
                named = referenced_files(file)
        except (OSError, ValueError) as error:
            raise NoSuchFile(
                f"The model {given} cannot be read.",
                cause=f"{getattr(error, 'strerror', None) or error} (looked for {path}).",
                fix="Check the path; a relative one counts from the application's current folder.",
                details={"path": path},
            ) from None
        beside = _look_beside(named, os.path.dirname(path))
        return cls(path, None, _fingerprint(model.sha256, beside), (model, *beside))

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


def _look_beside(named: list[str], folder: str) -> tuple[KnownFile, ...]:
    paths = dict.fromkeys(os.path.join(folder, name) for name in named)
    known = []
    for path in paths:
        _check_travels(path)
        try:
            known.append(KnownFile.look(path))
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


def _stamp(path: str) -> tuple[int, int] | None:
    """Of a regular file: whatever else has that name (a pipe, a device) might never end."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _stamp_of(status) if stat.S_ISREG(status.st_mode) else None


def _stamp_of(status: os.stat_result) -> tuple[int, int]:
    return status.st_size, status.st_mtime_ns


def _hash_file(path: str) -> str:
    import hashlib

    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK_BYTES))
    with open(path, "rb", buffering=0) as file:
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
    return digest.hexdigest()
