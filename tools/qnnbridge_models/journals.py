"""What an interrupted command goes on from: the finished steps of `prepare`, and QNN's answers of `verify`.

A prepared folder has a journal: which steps are finished, of what, and with what result.

A step is finished when its files are whole and its entry is in the journal, which is replaced as a whole: a
process that is killed anywhere leaves a journal that is true. An entry holds as long as its key is the same (a hash
over the contents that went in, the options and the versions) and its files have the contents that it names. One
process at a time has a folder; the lock is the operating system's.

Of a verification the answers of QNN are kept, in the state directory: a folder for each combination of model,
options, versions and sizes; a file for each set of inputs, named by the hash of its values. The folder is removed
when the verification is over, or after a week. A file that cannot be read or written costs the row its memory and
nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import shutil
import time
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from qnnbridge_host.cache.files import EARLIER_MARK, MARK, try_hold
from qnnbridge_host.graph.files import inside_folder, write_whole
from qnnbridge_host.model.manifest import FileRecord
from qnnbridge_os.files import TEMPORARY, enter
from qnnbridge_protocol.errors import Busy, OptionError
from qnnbridge_protocol.field_types import read_document
from qnnbridge_protocol.model_records import PREPARE_JOURNAL
from qnnbridge_protocol.settings import state_dir
from qnnbridge_tools import output

# --- The journal of a prepared folder: which steps are finished, of what, and with what result.

JOURNAL_NAME = PREPARE_JOURNAL
LOCK_NAME = ".qnnbridge-prepare.lock"
SCHEMA = 1
# Gone while a step is being done.
SAYS_ALL_IS_THERE = ("manifest.json", "report.md")
# How the folders begin in which tools of ours make their files.
_LEFT_BEHIND = ".qnnbridge-"


@dataclasses.dataclass(frozen=True, slots=True)
class JournalEntry:
    """One finished step."""

    key: str
    files: tuple[FileRecord, ...]
    document: Mapping[str, Any]
    seconds: float

    def to_plain(self) -> dict[str, Any]:
        plain = dataclasses.asdict(self)
        # The name in the files of released versions.
        plain["told"] = plain.pop("document")
        return plain


class PrepareJournal:
    """Of one folder; made by `opened`. Names of files are relative to it, with forward slashes."""

    def __init__(self, folder: Path, source_name: str) -> None:
        self.folder = folder
        self._source_name = source_name
        self._entries: dict[str, JournalEntry] = {}

    def read(self) -> None:
        """A journal that cannot be understood counts as none: everything is made anew. Raises `OptionError`."""
        try:
            found = json.loads((self.folder / JOURNAL_NAME).read_text(encoding="utf-8"))
            if found["schema"] != SCHEMA:
                return
            source_name = str(found["source"])
            entries = {
                str(name): read_document(JournalEntry, {**entry, "document": entry["told"]}, name)
                for name, entry in found["steps"].items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return
        if source_name != self._source_name:
            raise OptionError(
                f"{self.folder} holds {source_name}, prepared.",
                cause=f"{self._source_name} is another model.",
                fix="Give another folder, or remove this one.",
            )
        # The files of an entry are removed with it: a damaged journal must not name any outside of the folder.
        self._entries = {
            name: entry for name, entry in entries.items() if all(inside_folder(r.name) for r in entry.files)
        }

    def finished(self, step: str, key: str) -> JournalEntry | None:
        """The entry if it still holds."""
        entry = self._entries.get(step)
        if entry is None or entry.key != key or not all(self._is_there(record) for record in entry.files):
            return None
        return entry

    def begin(self, step: str) -> None:
        """The step is done anew: what it made before is not to be shipped, whatever comes of it now."""
        # First: from here on the folder must not look finished, wherever this process ends.
        for name in SAYS_ALL_IS_THERE:
            (self.folder / name).unlink(missing_ok=True)
        self._forget(step)
        self.write()

    def finish(
        self, step: str, key: str, files: Sequence[str], document: Mapping[str, Any], seconds: float
    ) -> JournalEntry:
        records = tuple(FileRecord.of(self.folder, name) for name in files)
        self._entries[step] = JournalEntry(key, records, output.jsonable(document), seconds)
        self.write()
        return self._entries[step]

    def look_again(self, step: str) -> None:
        """A later step has changed a file of this one."""
        entry = self._entries[step]
        records = tuple(FileRecord.of(self.folder, record.name) for record in entry.files)
        self._entries[step] = dataclasses.replace(entry, files=records)
        self.write()

    def keep_only(self, steps: Sequence[str]) -> None:
        """Removes what steps made that are no longer requested."""
        for step in [name for name in self._entries if name not in steps]:
            self._forget(step)
        self.write()

    def records(self) -> dict[str, FileRecord]:
        """All files that steps made."""
        return {record.name: record for entry in self._entries.values() for record in entry.files}

    def _forget(self, step: str) -> None:
        entry = self._entries.pop(step, None)
        for record in entry.files if entry is not None else ():
            path = self.folder / record.name
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                if path.parent != self.folder:
                    path.parent.rmdir()  # if it was the last one in it

    def _is_there(self, record: FileRecord) -> bool:
        path = self.folder / record.name
        try:
            # The size first: it is known without reading the file.
            return path.stat().st_size == record.size and FileRecord.of(self.folder, record.name) == record
        except OSError:
            return False

    def write(self) -> None:
        document = {
            "schema": SCHEMA,
            "source": self._source_name,
            "steps": {name: entry.to_plain() for name, entry in self._entries.items()},
        }
        write_whole(self.folder / JOURNAL_NAME, json.dumps(document, indent=1, ensure_ascii=True))


@contextlib.contextmanager
def opened(folder: Path, source_name: str) -> Iterator[PrepareJournal]:
    """The journal of a folder, alone with it. Raises `OptionError` for a folder of something else, and `Busy`."""
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder} is a file.", fix="Give a folder for the result: -o FOLDER.")
    if (
        folder.is_dir()
        and not (folder / JOURNAL_NAME).exists()
        and any(p.name != LOCK_NAME for p in folder.iterdir())
    ):
        raise OptionError(
            f"{folder} is not empty, and was not made by qnnbridge prepare.",
            cause="Its files could get mixed up with those that are shipped.",
            fix="Give a new or empty folder.",
        )
    folder.mkdir(parents=True, exist_ok=True)
    held = try_hold(folder / LOCK_NAME)
    if held is None:
        raise Busy(f"Another qnnbridge prepare is at work in {folder}.", fix="Wait for it, or give another folder.")
    try:
        journal = PrepareJournal(folder, source_name)
        journal.read()
        # Under the lock: unfinished files of another process are no leftovers.
        _sweep(folder)
        # Before the first step: a folder in which that is interrupted is still recognised as ours.
        journal.write()
        yield journal
    finally:
        # Again: a process that compiled for a run that was killed may have ended only now.
        _sweep(folder)
        held.release(remove=True)


def key_of(step: str, **went_in: Any) -> str:
    """A hash over everything that a step depends on."""
    text = json.dumps([SCHEMA, step, output.jsonable(went_in)], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _sweep(folder: Path) -> None:
    """Remove what a killed process left behind; the lock keeps other calls of `prepare` out.

    A working folder stays as long as a process holds its lock: the compiler of a call that was killed goes on until
    it notices. It is not asked for its age, as in `work_folder`: here no other compilation begins meanwhile.
    """
    for place in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        if not place.is_dir():
            continue  # was inside of one that is gone now
        for path in place.iterdir():
            if path.is_dir() and not path.is_symlink() and path.name.startswith(_LEFT_BEHIND):
                if not _is_in_use(path):
                    shutil.rmtree(path, ignore_errors=True)
            elif path.name.startswith(TEMPORARY):
                path.unlink(missing_ok=True)


def _is_in_use(folder: Path) -> bool:
    for name in (MARK, EARLIER_MARK):
        mark = folder / name
        # Only a lock that is there: `try_hold` would make the file.
        if mark.is_file() and not mark.is_symlink():
            try:
                held = try_hold(mark)
            except OSError:
                return True
            if held is None:
                return True
            held.release()
    return False


_FOLDER = "verify"
_JOURNAL_NAME = re.compile(r"[0-9a-f]{32}")
_KEPT_S = 7 * 24 * 3600
# Answers that are larger are computed again.
_MOST_BYTES = 256 << 20


class AnswerJournal:
    """Of one verification.

    Args:
        what: everything that QNN's answers depend on but the inputs.
    """

    def __init__(self, what: Mapping[str, Any]) -> None:
        # `default=str`: what JSON does not know stands for itself in the key.
        text = json.dumps(what, sort_keys=True, default=str)
        self._folder = state_dir() / _FOLDER / hashlib.sha256(text.encode()).hexdigest()[:32]
        _drop_old(self._folder.parent)

    def answer(self, feeds: Mapping[str, Any]) -> list[Any] | None:
        """QNN's values for these inputs from an interrupted run; None if there are none."""
        try:
            # Never with pickle, which runs what a file says.
            with np.load(self._folder / _name_of(feeds), allow_pickle=False) as stored:
                return [stored[str(number)] for number in range(len(stored.files))]
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None

    def keep(self, feeds: Mapping[str, Any], values: Sequence[Any]) -> None:
        # Other types would need pickle.
        plain = all(isinstance(value, np.ndarray) and value.dtype.kind in "biufc" for value in values)
        if not plain or sum(value.nbytes for value in values) > _MOST_BYTES:
            return
        path = self._folder / _name_of(feeds)
        # By process: two verifications of one model may run at once.
        part = path.with_suffix(f".{os.getpid()}.part")
        try:
            enter(enter(self._folder.parent) / self._folder.name).mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                np.savez(file, **{str(number): value for number, value in enumerate(values)})
            part.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    def over(self) -> None:
        with contextlib.suppress(OSError):
            enter(self._folder.parent)
            shutil.rmtree(self._folder, ignore_errors=True)


def hashes_of(paths: Iterable[Path]) -> list[tuple[str, str]]:
    """Name and content of each file, in order. Raises `OSError`."""
    return [(path.name, FileRecord.of(path.parent, path.name).sha256) for path in paths]


def _name_of(feeds: Mapping[str, Any]) -> str:
    return f"{feeds_digest(feeds)}.npz"


def feeds_digest(feeds: Mapping[str, Any]) -> str:
    """Return a hash of names, types, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(feeds):
        value = np.ascontiguousarray(feeds[name])
        digest.update(f"{name}:{value.dtype.str}:{value.shape}:".encode())
        # The bytes of text arrays are addresses of Python objects.
        digest.update(repr(value.tolist()).encode() if value.dtype == object else value.tobytes())
    return digest.hexdigest()[:32]


def _drop_old(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for path in enter(folder).iterdir():
            # A link with such a name is left alone: `rmtree` refuses it.
            if _JOURNAL_NAME.fullmatch(path.name) and time.time() - path.stat().st_mtime > _KEPT_S:
                shutil.rmtree(path, ignore_errors=True)
