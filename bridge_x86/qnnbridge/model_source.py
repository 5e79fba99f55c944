"""The model that a session is made from: a file or bytes, and what proves that it is still the same."""

from __future__ import annotations

import dataclasses
import hashlib
import os

from qnnbridge_protocol.errors import InvalidProtobuf, ModelChanged, NoSuchFile

_CHUNK_BYTES = 1024 * 1024


@dataclasses.dataclass(frozen=True)
class ModelSource:
    """A model as the application gave it.

    path: absolute, or ``None`` for a model given as bytes, which are kept for a restart of the host.
    fingerprint: SHA-256 of the model file's bytes, in hex.
    stamp: size and modification time in nanoseconds when it was hashed.
    """

    path: str | None
    data: bytes | None
    fingerprint: str
    stamp: tuple[int, int] | None = None

    @property
    def label(self) -> str:
        """How messages call it."""
        if self.path is None:
            return f"<{len(self.data or b'')} bytes, sha256 {self.fingerprint[:12]}>"
        return os.path.basename(self.path)

    @classmethod
    def open(cls, path_or_bytes: object) -> ModelSource:
        """Look at the model. Raises `NoSuchFile`, `InvalidProtobuf` for a folder, `TypeError` for another type."""
        if isinstance(path_or_bytes, (bytes, bytearray, memoryview)):
            data = bytes(path_or_bytes)
            return cls(None, data, hashlib.sha256(data).hexdigest())
        if not isinstance(path_or_bytes, (str, os.PathLike)):
            # ONNX Runtime's own words.
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        given = os.fsdecode(path_or_bytes)
        path = os.path.abspath(given)
        if os.path.isdir(path):
            raise InvalidProtobuf(
                f"{given} is a folder, not a model.",
                fix="Give the path of the .onnx file in it.",
                details={"path": path},
            )
        try:
            return cls(path, None, _hash_file(path), _stamp(path))
        except OSError as error:
            raise NoSuchFile(
                f"The model {given} cannot be read.",
                cause=f"{error.strerror or error} (looked for {path}).",
                fix="Check the path; a relative one counts from the application's current folder.",
                details={"path": path},
            ) from None

    def check_unchanged(self) -> None:
        """Raises `ModelChanged` if the file is not what the session was made from. Hashes only a touched file."""
        if self.path is None:
            return
        try:
            if _stamp(self.path) == self.stamp or _hash_file(self.path) == self.fingerprint:
                return
            what = "has other contents now"
        except OSError as error:
            what = f"cannot be read any more ({error.strerror or error})"
        raise ModelChanged(
            f"The model {self.label} {what}, so its session cannot be made again after the restart of the host.",
            fix="Put the original file back, or create a new session.",
            details={"path": self.path, "sha256": self.fingerprint},
        )


def _stamp(path: str) -> tuple[int, int]:
    status = os.stat(path)
    return status.st_size, status.st_mtime_ns


def _hash_file(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()
