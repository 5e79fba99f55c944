"""The model that a session is made from: a file or bytes, the files beside it, and what proves them the same.

A model may keep its weights or its context binary in files of their own (`ModelScan.files`). They count as much as
the .onnx file does: with other contents they give other numbers. A `FileStamp` is the file system's record of a
file: size, times, identity. Two equal stamps prove equal contents only if the file had rested for a moment when the
first one was taken: a file that is written twice within one tick of the file system's clock has the same times both
times. Such a stamp is not `settled`, and nothing may rely on it. Immutable; any thread.
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


# The coarsest clock in use is that of FAT, which counts in steps of two seconds; memory cards have it.
RESTED_NS: Final = 2_500_000_000


class FileStamp(NamedTuple):
    """changed_ns: when anything of the file was changed last; no program can set it back as it can `modified_ns`.

    taken_ns: when the stamp was taken, on this machine's wall clock, before the file was read.
    """

    size: int
    modified_ns: int
    changed_ns: int
    inode: int
    device: int
    taken_ns: int

    @property
    def settled(self) -> bool:
        """Whether the file had rested, so that a later change shows. One from the future never has."""
        return max(self.modified_ns, self.changed_ns) + RESTED_NS < self.taken_ns

    def proves(self, now: FileStamp) -> bool:
        """Whether the file has the contents it had when this stamp was taken, if `now` is its stamp now."""
        return self.settled and self.same(now)

    def same(self, other: FileStamp) -> bool:
        """Whether the two stamps show no change of the file. For data read between them."""
        # Without the last number, the time of the look.
        return self.to_plain()[:-1] == other.to_plain()[:-1]

    def to_plain(self) -> tuple[int, ...]:
        return (self.size, self.modified_ns, self.changed_ns, self.inode, self.device, self.taken_ns)

    @classmethod
    def from_plain(cls, numbers: Sequence[Any]) -> FileStamp:
        """Raises `ValueError` for data that `to_plain` did not make."""
        if len(numbers) != 6 or not all(type(number) is int for number in numbers):
            raise ValueError("not a file's stamp")
        return cls(*numbers)


def take_stamp(path: str | os.PathLike[str]) -> FileStamp | None:
    """Of a regular file; ``None`` if there is none: whatever else has that name (a pipe, a device) might never end.

    Raises `OSError` for an existing file without access.
    """
    text = os.fspath(path)
    # The clock first, then the file: a stamp may then count as not settled without need, but never the other way.
    taken_ns = time.time_ns()
    try:
        # It follows links: the stamp is that of the real file, as in the caches of model hubs.
        status = os.stat(text)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    changed_ns = change_time_ns(text, status)
    return FileStamp(status.st_size, status.st_mtime_ns, changed_ns, status.st_ino, status.st_dev, taken_ns)


def are_same(before: Sequence[FileStamp | None], after: Sequence[FileStamp | None]) -> bool:
    """Whether nobody wrote to any of the files between the two."""
    pairs = zip(before, after, strict=True)
    # Identical only if both are None: a file that is missing before and after.
    return all(then is now or (then is not None and now is not None and then.same(now)) for then, now in pairs)


_CHUNK_BYTES = 1024 * 1024
# `hashlib` loads OpenSSL, 3 ms of the start of a first session. Python has a SHA-256 that takes less for so few.
_FEW_BYTES: Final = 256 * 1024

# As `manifest.SUFFIX`, which is not imported for models that are not compiled.
MANIFEST_SUFFIX: Final = ".qnnbridge.json"
# Instead of a hash. Not our error: initializers given as values may stand in for the file.
MISSING = "missing"


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


class KnownFile(NamedTuple):
    """A file as it was when the session was made.

    path: absolute. stamp: taken before it was hashed, ``None`` for one that was not there. sha256: in hex, or
    `MISSING`.
    """

    path: str
    stamp: FileStamp | None
    sha256: str

    @classmethod
    def look(cls, path: str, memo: Memo | None = None) -> KnownFile:
        """Raises `OSError` if it exists and cannot be read."""
        if memo is not None:
            known = memo.look(path)
            return cls(path, None, MISSING) if known is None else cls(path, known.stamp, known.sha256)
        stamp = take_stamp(path)
        return cls(path, stamp, MISSING if stamp is None else hash_file(path))

    def changed(self) -> bool:
        """Whether there is another file now than the one that was hashed.

        One that had not rested, or of which only the time of change is another (a new link does that), is hashed
        again. Raises `OSError`.
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


# Native code opens a model's files by their paths, some time after they were hashed, and no lock keeps others from
# writing to them meanwhile. So a caller takes `stamps` before native code reads, calls `check_unchanged` behind it,
# and takes the stamps again. Both equal: what was read is what was hashed. A file that was only touched passes
# `check_unchanged` by its hash, yet its stamps differ: a writer may have exchanged the contents and put them back.
# Then the read is repeated, some times, and `never_rests` is the error.
class ModelSource(NamedTuple):
    """A model as the application gave it.

    path: absolute, or ``None`` for a model given as bytes, which are kept for a restart of the host.
    fingerprint: SHA-256 in hex of the model's bytes; if it has files beside it, of all their hashes.
    known: the model file (if it is one), then the files that it names.
    scan: its contents, without a count of its nodes; ``None`` if it is not recognised as an ONNX model.
    binary: absolute path of the context binary, if the model was made around a bare one (`qnnbridge_host.wrap`).
    shown: label of the model that this is a copy of; "" for a model that is no copy.
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
        """How messages call it."""
        if self.shown:
            return self.shown
        if self.binary is not None:
            return os.path.basename(self.binary)
        if self.path is None:
            return f"<{len(self.data or b'')} bytes, sha256 {self.fingerprint[:12]}>"
        return os.path.basename(self.path)

    @property
    def given(self) -> str | bytes:
        """The path or the bytes."""
        return self.path if self.path is not None else self.data or b""

    @property
    def files(self) -> tuple[str, ...]:
        """Absolute paths of the files that the model names: external data, context binaries."""
        return tuple(file.path for file in self.known if file.path != self.path)

    def check_unchanged(self) -> None:
        """Raises `ModelChanged` if a file was replaced or written to since it was hashed.

        To be asked when native code has read the files: their hashes would be those of other contents.
        """
        for file in self.known:
            try:
                changed, cause = file.changed(), None
            except OSError as error:
                changed, cause = True, f"It cannot be read any more: {error.strerror or error}."
            if changed:
                name = os.path.basename(file.path)
                raise ModelChanged(
                    f"The file {name} of the model {self.label} changed while it was loaded.",
                    cause=cause,
                    fix="Create the session again, when nothing writes to the file any more.",
                    details={"path": file.path},
                )

    def stamps(self) -> tuple[FileStamp | None, ...]:
        """Of its files now. Where two of them are the same, no program wrote to the files between them: the time of
        change cannot be set back. A new link to a file changes it, too."""
        found: list[FileStamp | None] = []
        for file in self.known:
            try:
                found.append(take_stamp(file.path))
            except OSError:
                found.append(None)  # who reads it reports the fault
        return tuple(found)

    def never_rests(self) -> ModelChanged:
        """The error, if every attempt to read its files met a change of them."""
        return ModelChanged(
            f"Something writes to the files of {self.label} again and again while it is loaded.",
            fix="Create the session again, when nothing writes to them any more.",
            details={"path": self.path or ""},
        )

    @property
    def identity(self) -> ModelIdentity:
        """The identity for the application."""
        stamps = [(file.path, file.stamp) for file in self.known if file.stamp is not None]
        return ModelIdentity(
            fingerprint=self.fingerprint,
            label=self.label,
            files=tuple((path, stamp.size, stamp.modified_ns) for path, stamp in stamps),
            compiled=self.scan is not None and self.scan.is_compiled,
        )

    @classmethod
    def open(cls, path_or_bytes: object, folder: str | None = None, memo: Memo | None = None) -> ModelSource:
        """Look at the model and the files it names.

        folder: the base of relative paths inside of a model given as bytes; default the current folder, as for
        ONNX Runtime itself. memo: spares hashing files that have not changed. Raises `NoSuchFile`,
        `InvalidProtobuf` for a folder and for what is broken, `InvalidArgument` for a path that cannot travel,
        `TypeError` for another type.
        """
        if isinstance(path_or_bytes, (bytes, bytearray, memoryview)):
            data = bytes(path_or_bytes)
            scan = _scan(io.BytesIO(data), None)  # before it is hashed, as of a file
            beside = _look_beside(scan, os.path.abspath(folder or os.curdir), memo)
            return cls(None, data, _fingerprint(_hash(data), beside), beside, scan)
        if not isinstance(path_or_bytes, (str, os.PathLike)):
            # ONNX Runtime's own words.
            raise TypeError(f"Unable to load from type '{type(path_or_bytes)}'")
        given = os.fsdecode(path_or_bytes)
        path = absolute_model_path(path_or_bytes)
        try:
            before = take_stamp(path)
            scan = _scan_file(path)  # what is broken is not hashed, which takes seconds for gigabytes
            model = KnownFile.look(path, memo)
            if model.stamp is None:
                raise OSError(errno.EINVAL, "It is no regular file")
            # It was written to between the scan and the hash, so the scan is of other contents.
            if before is None or not before.same(model.stamp):
                scan = _scan_file(path)
        except (OSError, ValueError) as error:
            raise unreadable(given, path, error) from None
        beside = _look_beside(scan, os.path.dirname(path), memo)
        return cls(path, None, _fingerprint(model.sha256, beside), (model, *beside), scan)


def open_again(
    path_or_bytes: object, folder: str | None, memo: Memo | None, fingerprint: str, files: Sequence[Sequence[Any]]
) -> ModelSource:
    """`ModelSource.open` of a model whose session is made again.

    Args:
        path_or_bytes, folder, memo: as for `ModelSource.open`.
        fingerprint: of the model as it was.
        files: path, size and date of each file then (`ModelIdentity.files`).

    Raises:
        ModelChanged: a file differs from the one that the session was made from. A file that was missing then is
        not needed.
    """
    try:
        source = ModelSource.open(path_or_bytes, folder, memo)
    except NoSuchFile as error:
        gone = str(error.details.get("path") or path_or_bytes)
        there = os.path.exists(gone)
        what = f"cannot be read any more ({'it is not there' if not there else (error.cause or '').rstrip('.')})"
        raise _changed(gone, what, os.fsdecode(gone), path_or_bytes) from None
    except InvalidProtobuf as error:
        path = str(error.details.get("path"))
        raise _changed(path, "has other contents now", path, path_or_bytes) from None
    if source.fingerprint == fingerprint:
        return source
    then = {str(path): (size, date) for path, size, date in files}
    # What was missing then counted as `MISSING` in the fingerprint, so it may be there now: with that put back, an
    # otherwise untouched model has the old fingerprint.
    needed = [file if file.path in then else file._replace(sha256=MISSING) for file in source.known]
    if source.path is None:
        own, beside = _hash(source.data or b""), tuple(needed)
    else:
        own, beside = needed[0].sha256, tuple(needed[1:])
    if _fingerprint(own, beside) == fingerprint:
        return source
    for file in source.known:
        # A file that is gone is certain. Below, size and date only point at a file: the fingerprint is one hash
        # over all of them and does not say which changed.
        if file.stamp is None and file.path in then:
            raise _changed(file.path, "cannot be read any more (it is not there)", source.label, source.path)
    touched = [
        file.path
        for file in source.known
        # A file that was missing then is no suspect: that is put back above, and the fingerprint still differs.
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
        f"{subject} {what}, so its session cannot be made again after the restart of the host.",
        fix="Put the original file back, or create a new session.",
        details={"path": path},
    )


def _scan_file(path: str) -> ModelScan | None:
    with open_regular(path) as file:
        return _scan(file, path)


def _scan(file: BinaryIO, path: str | None) -> ModelScan | None:
    """``None`` for a file that is no model: ONNX Runtime or the checks before a session refuse it.

    Raises `InvalidProtobuf` in ONNX Runtime's words for what it would refuse after reading all of it.
    """
    try:
        return scan_open(file, path=path)
    except InvalidProtobuf as error:
        limited = error.details.get("limit")  # None: another kind of file
        if limited:
            raise
        # With a manifest beside it, the checks before a session name the damage better.
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
    # A path that a compiled model must not have is refused later; it is not even looked at, it may be a network's.
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
                fix="Check the rights of the file.",
                details={"path": path},
            ) from None
    return tuple(known)


def _fingerprint(model: str, beside: tuple[KnownFile, ...]) -> str:
    """Without the names: the same files elsewhere are the same model."""
    # A model alone has the SHA-256 that other tools print for its file.
    if not beside:
        return model
    # In the order in which the model names its files: two weight files exchanged are another model.
    return _hash("\n".join((model, *(file.sha256 for file in beside))).encode())


# Of each thread: several requests hash at once, and each is withdrawn by itself.
class _OfThisThread(threading.local):
    check: Callable[[], None] | None = None


_of_this_thread = _OfThisThread()


@contextlib.contextmanager
def interruptible(check: Callable[[], None]) -> Iterator[None]:
    """While the block runs, `hash_file` in this thread asks `check` after every chunk, which may raise.

    A model of many gigabytes on a slow disk takes minutes.
    """
    # Put back at the end, not cleared: blocks may be nested.
    before, _of_this_thread.check = _of_this_thread.check, check
    try:
        yield
    finally:
        _of_this_thread.check = before


def hash_file(path: str | os.PathLike[str]) -> str:
    """SHA-256 in hex. Raises `OSError`, and what the check of `interruptible` raises."""
    check = _of_this_thread.check

    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        digest = _new_sha256(size)
        # A little more than the file: one read takes all, and one finds the end.
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
    """A SHA-256 for about this many bytes."""
    if size <= _FEW_BYTES and "hashlib" not in sys.modules:
        for name in ("_sha2", "_sha256"):  # since Python 3.12, and before
            # Python can be built without these modules (--with-builtin-hashlib-hashes).
            with contextlib.suppress(ImportError):
                return importlib.import_module(name).sha256()
    import hashlib

    return hashlib.sha256()
