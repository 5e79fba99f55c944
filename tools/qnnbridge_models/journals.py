"""Journals to resume interrupted commands: finished steps of `prepare`, and QNN's results of `verify`.

A prepared folder has a journal of its finished steps, their inputs and their results.

A step is finished when its files are complete and its entry is in the journal. The journal is replaced atomically,
so that it stays valid if the process is killed at any point. An entry is valid as long as its key (a hash of the
input contents, the options and the versions) is the same and its files have the recorded contents. A file lock
ensures that only one process uses a folder.

`verify` stores QNN's results in the state directory: a folder for each combination of model, options, versions and
sizes, and a file for each set of inputs, named by the hash of its values. The folder is removed when the
verification is complete, or after a week. If a file cannot be read or written, only the results for its inputs are
lost.
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

JOURNAL_NAME = PREPARE_JOURNAL
LOCK_NAME = ".qnnbridge-prepare.lock"
SCHEMA = 1
# Files that exist only if all steps are finished, so they are removed before a step runs.
COMPLETION_FILES = ("manifest.json", "report.md")
# Prefix of the tools' temporary folders.
_TEMPORARY = ".qnnbridge-"


@dataclasses.dataclass(frozen=True, slots=True)
class JournalEntry:
    """One finished step.

    Args:
        key: hash of everything that the step depends on.
        files: records of the files that the step created.
        document: result of the step, for the report.
        seconds: duration.
    """

    key: str
    files: tuple[FileRecord, ...]
    document: Mapping[str, Any]
    seconds: float

    def to_plain(self) -> dict[str, Any]:
        plain = dataclasses.asdict(self)
        # Journals of released versions have another name for `document`.
        plain["told"] = plain.pop("document")
        return plain


class PrepareJournal:
    """Journal of one prepared folder, created by `opened`. The journal stores file names relative to the folder,
    with forward slashes.
    """

    def __init__(self, folder: Path, source_name: str) -> None:
        self.folder = folder
        self._source_name = source_name
        self._entries: dict[str, JournalEntry] = {}

    def read(self) -> None:
        """Read the journal. Ignore a damaged journal, so that all steps run again.

        Raise `OptionError` if the journal belongs to another model, unless each compilation of that model failed.
        """
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
        # Ignore entries with files outside of the folder: the files of an obsolete step are deleted, and a damaged
        # journal must not delete other files.
        entries = {
            name: entry for name, entry in entries.items() if all(inside_folder(r.name) for r in entry.files)
        }
        whole = (self.folder / COMPLETION_FILES[0]).exists()
        is_failed = whole and not any(name.split()[0] == "compile" for name in entries)
        if source_name != self._source_name and not is_failed:
            what = "the prepared model" if whole else "the unfinished work of qnnbridge prepare on the model"
            raise OptionError(
                f"{self.folder} contains {what} {source_name}.",
                cause=f"{self._source_name} is a different model.",
                fix="Give another folder, or remove this folder.",
            )
        self._entries = entries
        if source_name != self._source_name:
            # Nothing was compiled from the other model, so discard its steps.
            self.keep_only(())

    def finished(self, step: str, key: str) -> JournalEntry | None:
        """Return the entry of a step if it is still valid."""
        entry = self._entries.get(step)
        if entry is None or entry.key != key or not all(self._is_there(record) for record in entry.files):
            return None
        return entry

    def begin(self, step: str) -> None:
        """Remove the results of a step before it runs, so that outdated files are never shipped."""
        # Remove these files first, so that the folder does not look finished if this process is killed.
        for name in COMPLETION_FILES:
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

    def record_again(self, step: str) -> None:
        """Record the current contents of a step's files, after a later step has changed one of them."""
        entry = self._entries[step]
        records = tuple(FileRecord.of(self.folder, record.name) for record in entry.files)
        self._entries[step] = dataclasses.replace(entry, files=records)
        self.write()

    def keep_only(self, steps: Sequence[str]) -> None:
        """Remove the files of steps that are no longer requested."""
        for step in [name for name in self._entries if name not in steps]:
            self._forget(step)
        self.write()

    def records(self) -> dict[str, FileRecord]:
        """Return the records of all files that the steps created."""
        return {record.name: record for entry in self._entries.values() for record in entry.files}

    def _forget(self, step: str) -> None:
        entry = self._entries.pop(step, None)
        for record in entry.files if entry is not None else ():
            path = self.folder / record.name
            path.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                if path.parent != self.folder:
                    path.parent.rmdir()  # succeeds only if the folder is empty

    def _is_there(self, record: FileRecord) -> bool:
        path = self.folder / record.name
        try:
            # Compare the size first, which does not require reading the file.
            return path.stat().st_size == record.size and FileRecord.of(self.folder, record.name) == record
        except OSError:
            return False

    def drop_if_empty(self) -> None:
        """Remove the journal if no step was finished and the folder contains no other file."""
        if self._entries:
            return
        with contextlib.suppress(OSError):
            others = set(os.listdir(self.folder)) - {JOURNAL_NAME, LOCK_NAME}
            for name in others:
                (self.folder / name).rmdir()  # fails unless the entry is an empty folder
            (self.folder / JOURNAL_NAME).unlink()

    def write(self) -> None:
        document = {
            "schema": SCHEMA,
            "source": self._source_name,
            "steps": {name: entry.to_plain() for name, entry in self._entries.items()},
        }
        write_whole(self.folder / JOURNAL_NAME, json.dumps(document, indent=1, ensure_ascii=True))


def refuse_other_files(folder: Path) -> None:
    """Raise `OptionError` if the path is a file, or a folder with files that `prepare` did not create."""
    if folder.exists() and not folder.is_dir():
        raise OptionError(f"{folder} is a file.", fix="Give a folder for the result: -o FOLDER.")
    if (
        folder.is_dir()
        and not (folder / JOURNAL_NAME).exists()
        and any(p.name != LOCK_NAME for p in folder.iterdir())
    ):
        raise OptionError(
            f"{folder} is not empty, and was not created by qnnbridge prepare.",
            cause="The files in the folder could be shipped by mistake.",
            fix="Give a new or empty folder.",
        )


@contextlib.contextmanager
def opened(folder: Path, source_name: str) -> Iterator[PrepareJournal]:
    """Open the journal of a folder, with a lock against other processes.

    Raises:
        OptionError: the folder contains files that `prepare` did not create, or another model.
        Busy: another `prepare` uses the folder.
    """
    refuse_other_files(folder)
    new_folders = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    held = try_hold(folder / LOCK_NAME)
    if held is None:
        raise Busy(
            f"Another qnnbridge prepare is using {folder}.",
            fix="Wait until the other command ends, or give another folder.",
        )
    found = None
    try:
        journal = PrepareJournal(folder, source_name)
        journal.read()
        found = journal
        # Remove leftovers only under the lock: unfinished files of another running process are not leftovers.
        _sweep(folder)
        # Write the journal before the first step, so that the folder is recognised even if this step is
        # interrupted.
        journal.write()
        yield journal
    finally:
        # Remove leftovers again: the compiler process of an earlier, killed run may have ended while the steps ran.
        _sweep(folder)
        if found is not None:
            found.drop_if_empty()
        held.release(remove=True)
        for path in new_folders:
            with contextlib.suppress(OSError):
                path.rmdir()  # succeeds only if the folder is empty


def key_of(step: str, **went_in: Any) -> str:
    """Return a hash of everything that a step depends on."""
    text = json.dumps([SCHEMA, step, output.jsonable(went_in)], sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def _sweep(folder: Path) -> None:
    """Remove leftovers of a killed process. Must be called with the folder's lock.

    A working folder is kept as long as a process holds its lock: the compiler of a killed call runs until it
    notices that its parent has ended. Unlike `work_folder`, do not check the age of a folder: no other compilation
    can start in it while this process holds the lock.
    """
    for place in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        if not place.is_dir():
            continue  # the folder was inside a folder that has been removed
        for path in place.iterdir():
            if path.is_dir() and not path.is_symlink() and path.name.startswith(_TEMPORARY):
                if not _is_in_use(path):
                    shutil.rmtree(path, ignore_errors=True)
            elif path.name.startswith(TEMPORARY):
                path.unlink(missing_ok=True)


def _is_in_use(folder: Path) -> bool:
    for name in (MARK, EARLIER_MARK):
        mark = folder / name
        # Call `try_hold` only if the lock file exists, because it would create the file.
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
# Larger results are not stored, but computed again.
_MOST_BYTES = 256 << 20


class AnswerJournal:
    """Journal of QNN's results in one verification.

    Args:
        what: everything that QNN's results depend on, except the inputs.
    """

    def __init__(self, what: Mapping[str, Any]) -> None:
        text = json.dumps(what, sort_keys=True, default=str)
        self._folder = state_dir() / _FOLDER / hashlib.sha256(text.encode()).hexdigest()[:32]
        _drop_old(self._folder.parent)

    def answer(self, feeds: Mapping[str, Any]) -> list[Any] | None:
        """Return QNN's values for these inputs from an interrupted run; None if there are none."""
        try:
            # Do not allow pickle, which could execute code from the file.
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
        # Put the process id into the temporary name, because two verifications of the same model may run at once.
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
    """Return (name, content hash) of each file, in order. Raise `OSError`."""
    return [(path.name, FileRecord.of(path.parent, path.name).sha256) for path in paths]


def _name_of(feeds: Mapping[str, Any]) -> str:
    return f"{feeds_digest(feeds)}.npz"


def feeds_digest(feeds: Mapping[str, Any]) -> str:
    """Return a hash of the inputs' names, types, shapes and values."""
    digest = hashlib.sha256()
    for name in sorted(feeds):
        value = np.ascontiguousarray(feeds[name])
        digest.update(f"{name}:{value.dtype.str}:{value.shape}:".encode())
        # Do not hash the bytes of a string array, which are addresses of Python objects.
        digest.update(repr(value.tolist()).encode() if value.dtype == object else value.tobytes())
    return digest.hexdigest()[:32]


def _drop_old(folder: Path) -> None:
    with contextlib.suppress(OSError):
        for path in enter(folder).iterdir():
            # `rmtree` does not remove symbolic links, so a link with the name of a journal is kept.
            if _JOURNAL_NAME.fullmatch(path.name) and time.time() - path.stat().st_mtime > _KEPT_S:
                shutil.rmtree(path, ignore_errors=True)
