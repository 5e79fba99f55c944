"""The folder of pulled models: what is in it, and what is removed from it.

`QNNBRIDGE_MODELS_DIR/OWNER--NAME/COMMIT-KEY/` holds one pulled model with `qnnbridge-pull.json`, which is written
before the folder gets this name. A folder that ends in ``.qnnbridge-part`` is an unfinished download. Nothing else
is ever listed or removed.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from filelock import FileLock, Timeout

from qnnbridge_os.files import is_own, make_own, write_whole
from qnnbridge_protocol.errors import OptionError, PullFailed
from qnnbridge_protocol.field_types import read_document
from qnnbridge_protocol.settings import models_dir
from qnnbridge_tools.hub.remote import PART, local_errors

RECORD: Final = "qnnbridge-pull.json"
SCHEMA: Final = 1
_LOCKS: Final = ".locks"
_SEPARATOR: Final = "--"


@dataclasses.dataclass(frozen=True, slots=True)
class PullRecord:
    """One pulled model, as its folder describes itself.

    revision, wanted: as they were asked for. entry: the model's path in the folder. pulled: the time in UTC.
    """

    schema: int
    endpoint: str
    repository: str
    revision: str
    commit: str
    wanted: tuple[str, ...]
    candidate: str
    entry: str
    kind: str
    why: str
    bytes: int
    pulled: str


@dataclasses.dataclass(frozen=True, slots=True)
class PulledFolder:
    """record: ``None`` for an unfinished download."""

    folder: Path
    record: PullRecord | None

    @property
    def repository(self) -> str:
        return self.record.repository if self.record else self.folder.parent.name.replace(_SEPARATOR, "/", 1)

    @property
    def path(self) -> Path:
        return self.folder / self.record.entry if self.record else self.folder

    @property
    def id(self) -> str:
        return self.folder.name.removesuffix(PART)

    @property
    def size(self) -> int:
        return sum(path.lstat().st_size for path in self.folder.rglob("*") if path.is_file())


def folder_of(repository: str, commit: str, candidate: str, wanted: Sequence[str]) -> Path:
    """Return the folder of a model that is or will be pulled."""
    key = hashlib.sha256("\0".join((candidate, *wanted)).encode()).hexdigest()[:8]
    return models_dir() / repository.replace("/", _SEPARATOR) / f"{commit[:12]}-{key}"


def read_record(folder: Path) -> PullRecord | None:
    """Return the record of a pulled model; ``None`` for any other folder, and for one whose model is gone."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        document = json.loads((folder / RECORD).read_text("utf-8"))
        if isinstance(document, dict) and document.get("schema") == SCHEMA:
            record = read_document(PullRecord, document, "the record")
            if (folder / record.entry).exists():
                return record
    return None


def write_record(folder: Path, record: PullRecord) -> None:
    write_whole(folder / RECORD, json.dumps(dataclasses.asdict(record), indent=2).encode(), durable=True)


def pulled() -> list[PulledFolder]:
    """Return all pulled models and unfinished downloads, by repository and time."""
    found = []
    with local_errors(models_dir()), contextlib.suppress(FileNotFoundError):
        for owner in models_dir().iterdir():
            if owner.name == _LOCKS or owner.is_symlink() or not owner.is_dir():
                continue
            for folder in owner.iterdir():
                if folder.is_symlink() or not folder.is_dir():
                    continue
                record = read_record(folder)
                if record is not None or (folder.name.endswith(PART) and is_own(folder, lambda _: False)):
                    found.append(PulledFolder(folder, record))
    return sorted(found, key=lambda one: (one.repository, one.record.pulled if one.record else ""))


def newest(repository: str, revision: str | None, wanted: Sequence[str], endpoint: str) -> PulledFolder | None:
    """Return the model that was pulled last with this request."""
    fitting = [
        one
        for one in pulled()
        if (record := one.record) is not None
        and (record.repository, record.wanted, record.endpoint) == (repository, tuple(wanted), endpoint)
        and (revision is None or record.revision == revision or record.commit.startswith(revision))
    ]
    return fitting[-1] if fitting else None


def matching(name: str, *, unfinished: bool = False) -> list[PulledFolder]:
    """Return the models of a repository, by its name, by the last part of it, or by an id. Raise `OptionError`."""
    name, _, revision = name.partition("@")
    everything = pulled()
    found = [
        one
        for one in everything
        if (one.record or unfinished)
        and (
            name in (one.repository, one.repository.rpartition("/")[2])
            or (len(name) > 3 and one.id.startswith(name))
        )
        and (
            not revision
            or (one.record and (one.record.revision == revision or one.record.commit.startswith(revision)))
        )
    ]
    if found:
        return found
    known = ", ".join(dict.fromkeys(one.repository for one in everything)) or "none"
    raise OptionError(f'"{name}" was not pulled.', fix=f"List the models with `qnnbridge models`. Pulled: {known}.")


def remove(one: PulledFolder) -> None:
    """Remove a pulled model. Raise `PullFailed` if it is in use; then it stays whole."""
    # A pull holds this lock while its folder still has the other name.
    with locked(one.folder.with_name(one.id), wait=False):
        # As an unfinished one, so that a model that is half removed is never used.
        gone = one.folder.with_name(f"{one.id}-gone{PART}")
        try:
            if one.folder != gone:
                os.replace(one.folder, gone)
            shutil.rmtree(gone)
        except OSError as error:
            raise PullFailed(
                f"{one.repository} cannot be removed: {error.strerror or error}.",
                cause="A program uses it, or its folder may not be written.",
                fix="Close the sessions that use it, then run the same command again.",
                details={"reason": "busy"},
            ) from None
        with contextlib.suppress(OSError):  # the last one of its repository
            one.folder.parent.rmdir()


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool = True, on_wait: Any = None) -> Iterator[None]:
    """Hold the lock of a model's folder. Another process that holds it is waited for, or `PullFailed` is raised."""
    locks = models_dir() / _LOCKS
    with local_errors(locks):
        make_own(models_dir(), lambda _: False)
        locks.mkdir(exist_ok=True)
        lock = FileLock(locks / f"{hashlib.sha256(os.fspath(folder).encode()).hexdigest()[:24]}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if not wait:
                raise PullFailed(
                    f"{folder.parent.name.replace(_SEPARATOR, '/', 1)} is just being pulled or removed.",
                    fix="Run the same command again when the other one has ended.",
                    details={"reason": "busy"},
                ) from None
            if on_wait is not None:
                on_wait("Another process pulls the same model; waiting for it.")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()
