"""List, find and remove pulled models.

`QNNBRIDGE_MODELS_DIR/OWNER--NAME/COMMIT-KEY/` contains one pulled model and `qnnbridge-pull.json`, which is written
before the folder gets its final name. A folder that ends in ``.qnnbridge-part`` is an unfinished download or
removal, regardless of its files. No other folder is listed or removed, and links are not followed.
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

from qnnbridge_host.model.paths import path_problem
from qnnbridge_os.files import MARK_FILE, NotOurs, enter, is_own, make_own, write_whole
from qnnbridge_protocol.errors import OptionError, PullFailed
from qnnbridge_protocol.field_types import read_document
from qnnbridge_protocol.settings import models_dir
from qnnbridge_tools.hub.remote import PART, HubRepository, local_errors

RECORD: Final = "qnnbridge-pull.json"
SCHEMA: Final = 1
_LOCKS: Final = ".locks"
_SEPARATOR: Final = "--"


@dataclasses.dataclass(frozen=True, slots=True)
class PullRecord:
    """One pulled model, as described by the record in its folder.

    Args:
        revision, wanted: as given by the user.
        entry: path of the model in the folder.
        pulled: time of the pull in UTC.
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
    """Folder of a pulled model.

    Args:
        record: the record in the folder; ``None`` for an unfinished download.
    """

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
        total = 0
        for root, _, names in os.walk(self.folder):
            for name in names:
                with contextlib.suppress(OSError):  # another process may be pulling or removing the model
                    total += os.lstat(os.path.join(root, name)).st_size
        return total


def folder_of(repository: str, commit: str, candidate: str, wanted: Sequence[str]) -> Path:
    """Return the folder for a model of a repository."""
    key = hashlib.sha256("\0".join((candidate, *wanted)).encode()).hexdigest()[:8]
    return models_dir() / repository.replace("/", _SEPARATOR) / f"{commit[:12]}-{key}"


def read_record(folder: Path) -> PullRecord | None:
    """Return the record of a pulled model; ``None`` for any other folder, and if the model's file is missing."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        document = json.loads((folder / RECORD).read_text("utf-8"))
        if isinstance(document, dict) and document.get("schema") == SCHEMA:
            record = read_document(PullRecord, document, "the record")
            if path_problem(record.entry) is None and (folder / record.entry).exists():
                return record
    return None


def write_record(folder: Path, record: PullRecord) -> None:
    write_whole(folder / RECORD, json.dumps(dataclasses.asdict(record), indent=2).encode(), durable=True)


def without_own_files(repository: HubRepository) -> HubRepository:
    """Return the repository without files whose names this package uses for records, marks and unfinished
    downloads.
    """

    def is_own_name(name: str) -> bool:
        last = name.rpartition("/")[2].casefold()
        return last in (RECORD, MARK_FILE) or last.endswith(PART)

    files = {name: file for name, file in repository.files.items() if not is_own_name(name)}
    return dataclasses.replace(repository, files=files)


def pulled() -> list[PulledFolder]:
    """Return all pulled models and unfinished downloads, by repository and time."""
    found = []
    with local_errors(models_dir()):
        for owner in _folders_in(models_dir()):
            for folder in _folders_in(owner) if owner.name != _LOCKS else ():
                # A folder with its final name is complete: a pull writes the record before renaming the folder, and
                # a removal renames the folder first.
                is_part = folder.name.endswith(PART)
                record = None if is_part else read_record(folder)
                if record is not None or (is_part and is_own(folder, lambda _: False)):
                    found.append(PulledFolder(folder, record))
    return sorted(found, key=lambda one: (one.repository, one.record.pulled if one.record else ""))


def _folders_in(folder: Path) -> list[Path]:
    """Return the folders in a folder, without links and junctions; none if another process has removed it."""
    found = []
    with contextlib.suppress(FileNotFoundError):
        for one in folder.iterdir():
            with contextlib.suppress(NotOurs):
                found.append(enter(one))
    return found


def newest(repository: str, revision: str | None, wanted: Sequence[str], endpoint: str) -> PulledFolder | None:
    """Return the newest model that was pulled with these options."""
    fitting = [
        one
        for one in pulled()
        if (record := one.record) is not None
        and (record.repository, record.wanted, record.endpoint) == (repository, tuple(wanted), endpoint)
        and (revision is None or record.revision == revision or record.commit.startswith(revision))
    ]
    return fitting[-1] if fitting else None


def matching(name: str, *, unfinished: bool = False) -> list[PulledFolder]:
    """Find pulled models by repository (OWNER/NAME or NAME) or id. Raise `OptionError` if there is no match."""
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
    """Remove a pulled model. Raise `PullFailed` if it is in use."""
    # A pull holds the lock for the final name while its folder still ends in `PART`.
    with locked(one.folder.with_name(one.id), wait=False):
        # Rename the folder first, because a folder whose name ends in `PART` is never used as a model.
        gone = one.folder.with_name(f"{one.id}-gone{PART}")
        try:
            if one.folder != gone:
                os.replace(one.folder, gone)
            shutil.rmtree(gone)
        except OSError as error:
            # Restore the mark file: `rmtree` may have removed it, and remaining files are not listed without it.
            with contextlib.suppress(OSError):
                (gone / MARK_FILE).touch()
            raise PullFailed(
                f"{one.repository} cannot be removed: {error.strerror or error}.",
                cause="A program uses the model, or this user may not write to its folder.",
                fix="Close the sessions that use the model, then run the same command again.",
                details={"reason": "busy"},
            ) from None
        with contextlib.suppress(OSError):  # `rmdir` fails if the folder contains other models of the repository
            one.folder.parent.rmdir()


@contextlib.contextmanager
def locked(folder: Path, *, wait: bool = True, on_wait: Any = None) -> Iterator[None]:
    """Hold the lock of a model's folder. If another process holds it, wait; without `wait` raise
    `PullFailed`.
    """
    locks = models_dir() / _LOCKS
    with local_errors(locks):
        make_own(models_dir(), lambda _: False)
        locks.mkdir(exist_ok=True)
        # All paths of one folder, such as links, must lead to the same lock.
        name = os.path.normcase(os.path.realpath(folder))
        lock = FileLock(locks / f"{hashlib.sha256(os.fsencode(name)).hexdigest()[:24]}.lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if not wait:
                raise PullFailed(
                    f"{folder.parent.name.replace(_SEPARATOR, '/', 1)} is being pulled or removed.",
                    fix="Run the same command again when the other process has ended.",
                    details={"reason": "busy"},
                ) from None
            if on_wait is not None:
                on_wait("Another process pulls the same model; waiting for it.")
            lock.acquire()
    try:
        yield
    finally:
        lock.release()
