"""The model of a session: a file or bytes, the files next to it, and the evidence that they have not changed.

A model may store its weights or its context binary in separate files (`ModelScan.files`). They matter as much as
the .onnx file, because their contents change the results. A `FileStamp` is the file system's record of a file:
size, times, identity. Equal stamps prove equal contents only if the file had been unchanged for a while when the
first stamp was taken: if a file is written twice within one tick of the file system's clock, its times are the same
after both writes. Such a stamp is not `settled` and proves nothing. All data is immutable, and all functions are
thread-safe.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import io
import os
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, Final, Protocol

from qnnbridge_host.model.collector import ModelScan
from qnnbridge_host.model.paths import open_regular, path_problem
from qnnbridge_host.model.scan import scan_open
from qnnbridge_protocol.errors import InvalidProtobuf, ModelChanged, NoSuchFile
from qnnbridge_protocol.model_records import ModelIdentity, absolute_model_path, check_travels, unreadable
from qnnbridge_protocol.records import NamedTuple

if sys.platform == "win32":
    from qnnbridge_os.windows_facts import change_time_ns
else:

    def change_time_ns(path: str, status: os.stat_result) -> int:
        return status.st_ctime_ns


# A stamp is settled if the last change is at least this old. FAT, the file system of memory cards, has the coarsest
# clock, with steps of two seconds.
RESTED_NS: Final = 2_500_000_000


class FileStamp(NamedTuple):
    """The file system's record of a file.

    changed_ns: time of the last change of the file or its metadata; unlike `modified_ns`, programs cannot set it.
        taken_ns: time by this machine's clock when the stamp was taken, before the file was read.
    """

    size: int
    modified_ns: int
    changed_ns: int
    inode: int
    device: int
    taken_ns: int

    @property
    def settled(self) -> bool:
        """Whether the file was unchanged for so long before the stamp that any later change has a different time.
        False for times in the future."""
        return max(self.modified_ns, self.changed_ns) + RESTED_NS < self.taken_ns

    def proves(self, now: FileStamp) -> bool:
        """Return whether the file's contents are unchanged since this stamp. now: the current stamp of the file."""
        return self.settled and self.same(now)

    def same(self, other: FileStamp) -> bool:
        """Return whether two stamps show no change of the file, so that data read between them is consistent."""
        # Ignore the last number, the time at which the stamp was taken.
        return self.to_plain()[:-1] == other.to_plain()[:-1]

    def to_plain(self) -> tuple[int, ...]:
        return (self.size, self.modified_ns, self.changed_ns, self.inode, self.device, self.taken_ns)

    @classmethod
    def from_plain(cls, numbers: Sequence[Any]) -> FileStamp:
        """Read the result of `to_plain`. Raise `ValueError` for other data."""
        if len(numbers) != 6 or not all(type(number) is int for number in numbers):
            raise ValueError("not a file's stamp")
        return cls(*numbers)


def take_stamp(path: str | os.PathLike[str]) -> FileStamp | None:
    """Return the stamp of a regular file; ``None`` if the file does not exist. Other files raise an error, because
    reading a pipe might never end.

    Raises:
        OSError: the file exists, and access to it is denied.
    """
    text = os.fspath(path)
    # Read the clock before the file's times: the stamp may then be "not settled" needlessly, but never "settled"
    # wrongly.
    taken_ns = time.time_ns()
    try:
        # Follow links, which caches of model hubs contain: the stamp describes the real file.
        status = os.stat(text)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    changed_ns = change_time_ns(text, status)
    return FileStamp(status.st_size, status.st_mtime_ns, changed_ns, status.st_ino, status.st_dev, taken_ns)


def are_same(before: Sequence[FileStamp | None], after: Sequence[FileStamp | None]) -> bool:
    """Return whether no file was written to between the two lists of stamps."""
    pairs = zip(before, after, strict=True)
    # A file that is missing both times, with None in both lists, counts as unchanged.
    return all(then is now or (then is not None and now is not None and then.same(now)) for then, now in pairs)


_CHUNK_BYTES = 1024 * 1024
# `hashlib` loads OpenSSL: 3 ms at the start of a first session. For few bytes Python's own SHA-256 is faster.
_FEW_BYTES: Final = 256 * 1024

# This is a copy of `manifest.SUFFIX`, because that module is imported only for compiled models.
MANIFEST_SUFFIX: Final = ".qnnbridge.json"
# Stored instead of the hash of a missing file. It is no error: an application may give initializers as values.
MISSING = "missing"


class Looked(Protocol):
    """A file and its hash."""

    @property
    def sha256(self) -> str: ...

    @property
    def stamp(self) -> FileStamp: ...


class Memo(Protocol):
    """Memo of the hashes of files that have not changed."""

    def look(self, path: str) -> Looked | None:
        """Return hash and stamp of a file; ``None`` if it does not exist. Raise `OSError` if it cannot be read."""


class KnownFile(NamedTuple):
    """A file as it was when the session was created.

    path: absolute path. stamp: stamp taken before the file was hashed; ``None`` for a missing file. sha256: hash in
        hex, or `MISSING`.
    """

    path: str
    stamp: FileStamp | None
    sha256: str

    @classmethod
    def look(cls, path: str, memo: Memo | None = None) -> KnownFile:
        """Stamp and hash a file. Raise `OSError` if it exists and cannot be read."""
        if memo is not None:
            known = memo.look(path)
            return cls(path, None, MISSING) if known is None else cls(path, known.stamp, known.sha256)
        stamp = take_stamp(path)
        return cls(path, stamp, MISSING if stamp is None else hash_file(path))

    def changed(self) -> bool:
        """Return whether the file has changed since it was hashed.

        Hash it again if its stamp is not `settled`, or if only its change time (ctime) differs, because creating a
        hard link changes this time too.

        Raises:
            OSError: the file cannot be read.
        """
        now, then = take_stamp(self.path), self.stamp
        if now is None or then is None:
            return now is not then
        if (now.size, now.modified_ns, now.inode, now.device) != (
            then.size,
            then.modified_ns,
            then.inode,
            then.device,
        ):
            return True
        return not (then.settled and now.changed_ns == then.changed_ns) and hash_file(self.path) != self.sha256


# Native code opens a model's files by path some time after they were hashed, and no lock prevents other programs
# from writing to them meanwhile. So a caller takes `stamps` before native code reads, calls `check_unchanged`
# afterwards, and takes the stamps again. If the stamps are equal, native code read the hashed contents. If they
# differ although `check_unchanged` finds the same hash, a program may have changed the contents and restored them.
# Then the caller repeats the read several times, and finally raises `never_rests`.
class ModelSource(NamedTuple):
    """A model as the application gave it.

    path: absolute, or ``None`` for a model given as bytes, which are kept for a restart of the host. fingerprint:
    SHA-256 in hex of the model's bytes or, if the model has several files, of the hashes of all files. known: the
    model file (unless the model was given as bytes), then the other files to which it refers. scan: the model's
    contents, without a count of its nodes; ``None`` if it is not recognised as an ONNX model. binary: absolute path
    of the context binary, if the model was built for a bare binary (`qnnbridge_host.wrap`). shown: label of the
    original if this model is a copy, else "".
    """

    path: str | None
    data: bytes | None
    fingerprint: str
    known: tuple[KnownFile, ...] = ()
    scan: ModelScan | None = None
    binary: str | None = None
    shown: str = ""

    @property
    def label(self) -> str:
        """Name of the model in messages."""
        if self.shown:
            return self.shown
        if self.binary is not None:
            return os.path.basename(self.binary)
        if self.path is None:
            return f"<{len(self.data or b'')} bytes, sha256 {self.fingerprint[:12]}>"
        return os.path.basename(self.path)

    @property
    def given(self) -> str | bytes:
        """Path or bytes of the model."""
        return self.path if self.path is not None else self.data or b""

    @property
    def files(self) -> tuple[str, ...]:
        """Absolute paths of the model's other files: external data, context binaries."""
        return tuple(file.path for file in self.known if file.path != self.path)

    def check_unchanged(self) -> None:
        """Raise `ModelChanged` if a file was replaced or written to since it was hashed.

        Call this after native code has read the files, to ensure that it has read the hashed contents.
        """
        for file in self.known:
            try:
                changed, cause = file.changed(), None
            except OSError as error:
                changed, cause = True, f"The file can no longer be read: {error.strerror or error}."
            if changed:
                name = os.path.basename(file.path)
                raise ModelChanged(
                    f"The file {name} of the model {self.label} changed while it was loaded.",
                    cause=cause,
                    fix="Create the session again when no program writes to the file.",
                    details={"path": file.path},
                )

    def stamps(self) -> tuple[FileStamp | None, ...]:
        """Return the current stamps of the model's files.

        If two calls return equal stamps, no program wrote to a file between the calls, because programs cannot set
        the change time (ctime) back. A new hard link to a file changes its stamp too.
        """
        found: list[FileStamp | None] = []
        for file in self.known:
            try:
                found.append(take_stamp(file.path))
            except OSError:
                found.append(None)  # the next function that reads the file reports the fault
        return tuple(found)

    def never_rests(self) -> ModelChanged:
        """Return the error for files that changed during every attempt to read them."""
        return ModelChanged(
            f"A program keeps writing to the files of {self.label} while the model is loaded.",
            fix="Create the session again when no program writes to these files.",
            details={"path": self.path or ""},
        )

    @property
    def identity(self) -> ModelIdentity:
        """Identity of the model that is sent to the application."""
        stamps = [(file.path, file.stamp) for file in self.known if file.stamp is not None]
        return ModelIdentity(
            fingerprint=self.fingerprint,
            label=self.label,
            files=tuple((path, stamp.size, stamp.modified_ns) for path, stamp in stamps),
            compiled=self.scan is not None and self.scan.is_compiled,
        )

    @classmethod
    def open(cls, path_or_bytes: object, folder: str | None = None, memo: Memo | None = None) -> ModelSource:
        """Scan and hash a model and the files that it refers to.

        Args:
            path_or_bytes: path of the model, or its bytes.
            folder: base of relative paths inside of a model given as bytes; default: the current folder, as for
                ONNX Runtime itself.
            memo: returns the hashes of files that have not changed.

        Raises:
            NoSuchFile: a file cannot be read.
            InvalidProtobuf: a folder or a broken model was given.
            InvalidArgument: a path cannot be sent to the host.
            TypeError: the model is neither a path nor bytes.
        """
        if isinstance(path_or_bytes, (bytes, bytearray, memoryview)):
            data = bytes(path_or_bytes)
            scan = _scan(io.BytesIO(data), None)  # scan first, so that a broken model is not hashed
            beside = _look_beside(scan, os.path.abspath(folder or os.curdir), memo)
            return cls(None, data, _fingerprint(_hash(data), beside), beside, scan)
        if not isinstance(path_or_bytes, (str, os.PathLike)):
            # ONNX Runtime raises the same message.
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        given = os.fsdecode(path_or_bytes)
        path = absolute_model_path(path_or_bytes)
        try:
            before = take_stamp(path)
            # scan first, so that a broken model is not hashed, which takes seconds for gigabytes
            scan = _scan_file(path)
            model = KnownFile.look(path, memo)
            if model.stamp is None:
                raise OSError(errno.EINVAL, "It is not a regular file")
            # The file changed between scan and hash, so the scan does not describe the hashed contents.
            if before is None or not before.same(model.stamp):
                scan = _scan_file(path)
        except (OSError, ValueError) as error:
            raise unreadable(given, path, error) from None
        beside = _look_beside(scan, os.path.dirname(path), memo)
        return cls(path, None, _fingerprint(model.sha256, beside), (model, *beside), scan)


def open_again(
    path_or_bytes: object, folder: str | None, memo: Memo | None, fingerprint: str, files: Sequence[Sequence[Any]]
) -> ModelSource:
    """Open the model of a session that is created again.

    Args:
        path_or_bytes, folder, memo: as for `ModelSource.open`.
        fingerprint: fingerprint of the model when the session was first created.
        files: path, size and date of each file at that time (`ModelIdentity.files`).

    Raises:
        ModelChanged: a file differs from the file from which the session was created. Files that did not exist at
            that time are ignored.
    """
    try:
        source = ModelSource.open(path_or_bytes, folder, memo)
    except NoSuchFile as error:
        gone = str(error.details.get("path") or path_or_bytes)
        there = os.path.exists(gone)
        what = f"cannot be read any more ({'it does not exist' if not there else (error.cause or '').rstrip('.')})"
        raise _changed(gone, what, os.fsdecode(gone), path_or_bytes) from None
    except InvalidProtobuf as error:
        path = str(error.details.get("path"))
        raise _changed(path, "has other contents now", path, path_or_bytes) from None
    if source.fingerprint == fingerprint:
        return source
    then = {str(path): (size, date) for path, size, date in files}
    # If a file did not exist when the session was created, the fingerprint contains `MISSING` for it. Use `MISSING`
    # again even if the file exists now, so that the fingerprints can be compared.
    needed = [file if file.path in then else file._replace(sha256=MISSING) for file in source.known]
    if source.path is None:
        own, beside = _hash(source.data or b""), tuple(needed)
    else:
        own, beside = needed[0].sha256, tuple(needed[1:])
    if _fingerprint(own, beside) == fingerprint:
        return source
    for file in source.known:
        # A missing file has certainly changed the fingerprint. The sizes and dates compared below only suggest
        # which file has changed, because the fingerprint is one hash over all files.
        if file.stamp is None and file.path in then:
            raise _changed(file.path, "cannot be read any more (it does not exist)", source.label, source.path)
    touched = [
        file.path
        for file in source.known
        # Skip a file that did not exist when the session was created: its hash was replaced by `MISSING` above.
        if file.stamp is not None
        and file.path in then
        and then[file.path] != (file.stamp.size, file.stamp.modified_ns)
    ]
    suspect = touched[0] if touched else source.path or source.label
    raise _changed(suspect, "has other contents now", source.label, source.path)


def _changed(path: str, what: str, label: str, model: object) -> ModelChanged:
    name = os.path.basename(path)
    is_model = isinstance(model, (str, os.PathLike)) and os.fsdecode(model) == path
    subject = f"The model {name}" if is_model else f"The file {name} of the model {os.path.basename(label)}"
    return ModelChanged(
        f"{subject} {what}, so its session cannot be created again after the restart of the host.",
        fix="Put the original file back, or create a new session.",
        details={"path": path},
    )


def _scan_file(path: str) -> ModelScan | None:
    with open_regular(path) as file:
        return _scan(file, path)


def _scan(file: BinaryIO, path: str | None) -> ModelScan | None:
    """Scan a model; return ``None`` for a file that is not a model, which ONNX Runtime or later checks refuse.

    Raises:
        InvalidProtobuf: the model is damaged. The message is that of ONNX Runtime.
    """
    try:
        return scan_open(file, path=path)
    except InvalidProtobuf as error:
        limited = error.details.get("limit")  # the detail is absent if the file is not an ONNX model
        if limited:
            raise
        # If the model has a manifest, do not raise here: the checks before a session report which file is damaged.
        if limited is None or (path is not None and os.path.exists(os.path.splitext(path)[0] + MANIFEST_SUFFIX)):
            return None
        failed = "Failed to load model because protobuf parsing failed."
        if path is not None:
            failed = f"Load model from {path} failed:Protobuf parsing failed."
        raise InvalidProtobuf(
            f"[ONNXRuntimeError] : 7 : INVALID_PROTOBUF : {failed}",
            cause=f"{error.message} {error.cause}",
            fix=error.fix,
            evidence=error.evidence,
            details=error.details,
        ) from None


def _look_beside(scan: ModelScan | None, folder: str, memo: Memo | None) -> tuple[KnownFile, ...]:
    if scan is None:
        return ()
    # Skip a path that is not allowed in a compiled model: it is refused later, and may point to a network share.
    named = [name for name in scan.files if name in scan.external_files or path_problem(name) is None]
    paths = dict.fromkeys(os.path.join(folder, name) for name in named)
    known = []
    for path in paths:
        check_travels(path)
        try:
            known.append(KnownFile.look(path, memo))
        except OSError as error:
            raise NoSuchFile(
                f"The file {path}, which the model needs, cannot be read.",
                cause=f"{error.strerror or error}.",
                fix="Check the file's permissions.",
                details={"path": path},
            ) from None
    return tuple(known)


def _fingerprint(model: str, beside: tuple[KnownFile, ...]) -> str:
    """Combine the hashes without the paths: the same files at another location are the same model."""
    # A model without other files has the SHA-256 that other tools print for its file.
    if not beside:
        return model
    # The order of the files matters: exchanging two weight files changes the model.
    return _hash("\n".join((model, *(file.sha256 for file in beside))).encode())


# Thread-local: several requests hash at the same time, and each can be cancelled separately.
class _OfThisThread(threading.local):
    check: Callable[[], None] | None = None


_of_this_thread = _OfThisThread()


@contextlib.contextmanager
def interruptible(check: Callable[[], None]) -> Iterator[None]:
    """Make `hash_file` in this thread call `check` after every chunk during the block. `check` may raise an error
    to stop.

    Hashing a model of many gigabytes from a slow disk takes minutes.
    """
    # Restore the earlier check instead of clearing it, because blocks may be nested.
    before, _of_this_thread.check = _of_this_thread.check, check
    try:
        yield
    finally:
        _of_this_thread.check = before


def hash_file(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 of a file in hex. Raise `OSError`, and any error of the `interruptible` check."""
    check = _of_this_thread.check

    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        digest = _new_sha256(size)
        # The buffer is larger than a small file, so that one read gets all bytes, and the next read finds the end.
        buffer = memoryview(bytearray(min(size + 4096, _CHUNK_BYTES)))
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            if check is not None:
                check()
    return str(digest.hexdigest())


def _hash(data: bytes) -> str:
    digest = _new_sha256(len(data))
    digest.update(data)
    return str(digest.hexdigest())


def _new_sha256(size: int) -> Any:
    """Return a SHA-256 object that is fast for about `size` bytes."""
    if size <= _FEW_BYTES and "hashlib" not in sys.modules:
        for name in ("_sha2", "_sha256"):  # module names since Python 3.12, and before 3.12
            # Python can be built without these modules (--with-builtin-hashlib-hashes).
            with contextlib.suppress(ImportError):
                return importlib.import_module(name).sha256()
    import hashlib

    return hashlib.sha256()
