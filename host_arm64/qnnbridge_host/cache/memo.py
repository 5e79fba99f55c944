"""What the cache remembers besides compiled models: hashes of files, models that it skips, models whose weights the
NPU cannot map, verdicts on numbers, optimizers that harm a model.

Small files, each named by its key. No failure raises: what is not remembered costs time. Any thread, any process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from qnnbridge_host.cache.files import (
    SCHEMA,
    VERSION_FOLDER,
    Damaged,
    JsonFolder,
    hold,
    is_time,
    read_json,
    write_json,
)
from qnnbridge_host.model.optimizers import LEVEL_OFF, OPTIMIZATION_LEVEL
from qnnbridge_host.model.source import FileStamp, hash_file, take_stamp
from qnnbridge_os.files import TEMPORARY, enter, is_own, make_folders, make_own, sync_file
from qnnbridge_protocol.errors import BridgeError, Cancelled, DeadlineExceeded
from qnnbridge_protocol.field_types import read_document
from qnnbridge_protocol.model_records import CacheSettings, NumbersReport
from qnnbridge_protocol.records import NamedTuple
from qnnbridge_protocol.specs import QNN, ProviderSpec, SessionSpec

MEMO_SCHEMA: Final = 1
MEMO_FOLDER: Final = "memo"


@dataclasses.dataclass(frozen=True, slots=True)
class Hashed:
    """A file that was hashed, now or before (`remembered`)."""

    sha256: str
    stamp: FileStamp
    remembered: bool = False


class HashMemo:
    """The hashes of files, so that a file that has not changed is not read again. root: the cache's folder.

    One small file for each path. A record is valid only if the file has the recorded stamp, and was unchanged for a
    while before it (`FileStamp.settled`): a file written just before or during its hashing is hashed again the next
    time.
    """

    def __init__(self, root: Path) -> None:
        self.folder = root / MEMO_FOLDER

    def look(self, path: str | os.PathLike[str]) -> Hashed | None:
        """The file's hash, remembered or computed; ``None`` if there is no such file.

        Raises `OSError` if the file cannot be read.
        """
        text = os.path.abspath(os.fspath(path))
        before = take_stamp(text)
        if before is None:
            return None
        known = self._recall(text)
        if known is not None and known.stamp.proves(before):
            return dataclasses.replace(known, remembered=True)
        if before.settled and sys.platform != "win32":
            # A write through a mapping dates the file only where it meets a page that is on the disk already. So
            # all of them are brought there, and each later write shows. tmpfs has no disk, and hides some.
            with contextlib.suppress(OSError):
                sync_file(text)
        found = Hashed(hash_file(text), before)
        after = take_stamp(text)
        if after is None or not before.same(after):
            # The file is being written. Its user will notice; its hash must not be remembered.
            return dataclasses.replace(found, stamp=before._replace(taken_ns=0))
        if found.stamp.settled:
            self._keep(text, found)
        return found

    def sha256(self, path: str) -> str | None:
        """The hash alone. As `look`."""
        found = self.look(path)
        return None if found is None else found.sha256

    def _keep(self, path: str, found: Hashed) -> None:
        content = {
            "schema": MEMO_SCHEMA,
            "path": path,
            "stamp": list(found.stamp.to_plain()),
            "sha256": found.sha256,
        }
        try:
            make_own(self.folder, _is_memo)
            write_json(self._file_of(path), content)
        except OSError:
            pass  # hashed again the next time

    def forget_gone(self) -> int:
        """Remove records of missing files and unreadable records. Returns their number."""
        removed = 0
        for file in self._files():
            with contextlib.suppress(OSError):
                if not _is_of_a_file(file):
                    file.unlink()
                    removed += 1
        return removed

    def clear(self) -> None:
        """Remove all records, and nothing else."""
        for file in self._files():
            with contextlib.suppress(OSError):
                file.unlink()

    def _files(self) -> list[Path]:
        """The records; none if the folder is not ours."""
        try:
            return [self.folder / name for name in os.listdir(self.folder) if _is_memo(name)] if self._own else []
        except OSError:
            return []

    @property
    def _own(self) -> bool:
        return is_own(self.folder, _is_memo)

    def _recall(self, path: str) -> Hashed | None:
        try:
            enter(self.folder)
            content = read_json(self._file_of(path))
            if content is None or content["schema"] != MEMO_SCHEMA or content["path"] != path:
                return None
            stamp = FileStamp.from_plain(content["stamp"])
            sha256 = content["sha256"]
        except (Damaged, OSError, LookupError, TypeError, ValueError):
            return None
        return Hashed(sha256, stamp) if isinstance(sha256, str) else None

    def _file_of(self, path: str) -> Path:
        # The file name as the system spells it: two spellings of one path are two records, which costs a hash.
        name = hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return self.folder / f"{name}.json"


_MEMO_FORM: Final = re.compile(r"[0-9a-f]{32}\.json")


def _is_memo(name: str) -> bool:
    return _MEMO_FORM.fullmatch(name) is not None or name.startswith(TEMPORARY)


def _is_of_a_file(record: Path) -> bool:
    """Whether a record can be read, and its file exists. Raises `OSError`."""
    try:
        content = read_json(record)
        return content is not None and os.path.exists(content["path"])
    except (Damaged, LookupError, TypeError, ValueError):
        return False


def memo_of(settings: CacheSettings | None) -> HashMemo | None:
    """The memo for a session with these settings; ``None`` if the cache is switched off."""
    return HashMemo(Path(settings.folder)) if settings is not None and settings.in_use else None


# --- models that the cache skips --------------------------------------------------------------------------
#
# With the reason, so that the second start does not pay again. A negative entry belongs to a key, so to one set of
# versions and options. It stays until it is cleared or expires.

# refused: nodes would stay on the CPU. nothing-on-qnn: QNN takes no node of it. differs: its compiled model does
# not show the inputs and outputs of the original. crashes: two compiled models in a row killed the host or could
# not be loaded.
# slow: it is small but took long to compile, so it is worth an entry.
# unmapped: its weights cannot be mapped into the NPU's memory (`load_mapped_or_not`).
# gates: its numbers differ, and parted gates do not help (`create/parting.py`).
Kind = Literal["refused", "nothing-on-qnn", "differs", "crashes", "slow", "unmapped", "gates"]

NOTES_FOLDER: Final = "notes"
DAY_S: Final = 24 * 3600.0
NOTES_MAX_AGE_S: Final = 90 * DAY_S
# Shorter, for what may have been chance: two crashes, and a QNN that took nothing because its driver was being
# replaced. Without nodes for QNN the next attempt to compile takes little time.
CRASHES_MAX_AGE_S: Final = 7 * DAY_S
NOTHING_MAX_AGE_S: Final = DAY_S
_MAX_AGE_S: Final[Mapping[Kind, float]] = {"crashes": CRASHES_MAX_AGE_S, "nothing-on-qnn": NOTHING_MAX_AGE_S}


@dataclasses.dataclass(frozen=True, slots=True)
class NegativeEntry:
    """created: seconds since 1970."""

    key: str
    kind: Kind
    reason: str
    label: str = ""
    created: float = 0.0


class NegativeEntries(JsonFolder):
    """Files that name models without a usable entry. root: of this version's cache."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / NOTES_FOLDER)

    def write(self, key: str, kind: Kind, reason: str, label: str) -> None:
        entry = NegativeEntry(key, kind, reason, label, time.time())
        self._write(key, {"schema": SCHEMA, **dataclasses.asdict(entry)})

    def read(self, key: str, *, keep: bool = False) -> NegativeEntry | None:
        """The entry, if there is one. keep: leave a record that is not understood where it is."""
        try:
            content = self._read(key)
            if content is None or content.pop("schema") != SCHEMA:
                return None
            entry = read_document(NegativeEntry, content, "the note")
            if not is_time(entry.created):
                raise ValueError(f"its time is {entry.created:g}")
        except (Damaged, OSError, LookupError):
            return None
        except (ValueError, OverflowError) as error:
            if not keep:
                self.set_aside(key, str(error))
            return None
        max_age_s = _MAX_AGE_S.get(entry.kind, NOTES_MAX_AGE_S)
        return entry if abs(time.time() - entry.created) < max_age_s else None

    def all(self) -> list[NegativeEntry]:
        """The newest first."""
        found = [entry for key in self.keys() if (entry := self.read(key, keep=True)) is not None]
        return sorted(found, key=lambda entry: -entry.created)


# --- models that the NPU has no room for at first -----------------------------------------------------------
#
# Some drivers cannot map the weights of a compiled model (RPC 8003, then QNN 1002), and load the same model with
# the provider option ``disable_file_mapped_weights``. What helped is remembered for the model and the version of
# QNN.

UNMAPPED: Final = "disable_file_mapped_weights"
_UNMAPPED_WORDS: Final = f"loaded with {UNMAPPED}=1, because the NPU could not map its weights"
_UNMAPPED_VERSIONS: Final = ("onnxruntime", "onnxruntime_qnn", "qnn_sdk", "driver", "ep_source", "ep_version")

T = TypeVar("T")


def load_mapped_or_not(
    create: Callable[[bool], T],
    settings: CacheSettings | None,
    fingerprint: str,
    label: str,
    versions: Callable[[], Mapping[str, str]],
) -> tuple[T, str]:
    """Create it, if need be a second time. Returns also what it took, as text; empty for nothing.

    Args:
        create: gets whether the mapping is left out.
        settings: of the application's cache; without a usable one every load begins anew.
        fingerprint, label: of the model.
        versions: of the host.

    Raises the error of the first attempt, with that of the second as evidence.
    """

    def key() -> str:
        known = versions()
        parts = [fingerprint, *(f"{name}={known.get(name)}" for name in _UNMAPPED_VERSIONS)]
        return f"unmapped-{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:32]}"

    notes = None
    if settings is not None and settings.enabled:
        notes = NegativeEntries(Path(settings.folder) / VERSION_FOLDER)
        if notes.read(key()) is not None:
            return create(True), _UNMAPPED_WORDS
    try:
        return create(False), ""
    except BridgeError as error:
        if not error.details.get("npu_memory"):
            raise
        first = error.with_traceback(None)  # which holds this frame, so what is made, until a collection
    try:
        made = create(True)
    except (Cancelled, DeadlineExceeded):
        raise
    except BridgeError as error:
        first.evidence = (*first.evidence, f"With {UNMAPPED}=1: {error.message}")
        raise first from None
    if notes is not None:
        notes.write(key(), "unmapped", _UNMAPPED_WORDS, label)
    return made, _UNMAPPED_WORDS


def may_unmap(spec: SessionSpec) -> bool:
    """Whether QNN is wanted, and the application has not decided it."""
    named = next((provider for provider in spec.providers if provider.name == QNN), None)
    if spec.providers and named is None:
        return False
    by_entry = any(key.endswith(f".{UNMAPPED}") for key in spec.config_entries)
    return not by_entry and (named is None or UNMAPPED not in named.options)


def without_mapping(spec: SessionSpec) -> SessionSpec:
    providers = spec.providers or (ProviderSpec(QNN),)
    changed = tuple(
        dataclasses.replace(one, options={**one.options, UNMAPPED: "1"}) if one.name == QNN else one
        for one in providers
    )
    return dataclasses.replace(spec, providers=changed)


# --- verdicts: what came of comparing a compiled model with the CPU, paid for once ------------------------
#
# The key holds model, options, chip and versions: with any of them changed it is another comparison, as it is when
# the judge has other rules. A verdict stays when its entry is evicted, and also models without an entry have one.
# It rests on several calls, which it counts: a later difference replaces "agrees".

VERDICTS_FOLDER: Final = "verdicts"
# Of `numerics`, counted up when they change: a verdict by others says nothing.
RULES: Final = 2
# About 1 KB each.
MAX_VERDICTS: Final = 1000
VERDICTS_MAX_AGE_S: Final = 365 * 24 * 3600.0
# For the lock; a record is read and written within a millisecond.
LOCK_WAIT_S: Final = 2.0
# This many processes may end before their comparison does; after that no comparison is started.
MAX_ATTEMPTS: Final = 5


class Verdicts(JsonFolder):
    """Files with the results of comparisons, one for each key.

    Several processes read, merge and write one at once: a lock of the system orders them, since an "agrees" must
    not be written over a difference that another process has just found.

    Args:
        root: of this version's cache.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root / VERDICTS_FOLDER)
        self._lock = root / "locks" / "verdicts.lock"

    def read(self, key: str) -> NumbersReport | None:
        """Return the verdict, if there is one."""
        try:
            report = self._report(key, self._read(key))
        except (Damaged, OSError):
            return None
        if report is None or abs(time.time() - report.when) >= VERDICTS_MAX_AGE_S:
            return None
        return report

    def write(self, key: str, report: NumbersReport) -> None:
        """Replace the verdict."""
        self._write(key, self._content(report))
        self._tidy()

    def add(self, key: str, report: NumbersReport, calls: int) -> NumbersReport:
        """Add one comparison, and return what all of them show.

        Args:
            calls: of the model since they were counted last.
        """
        with self._alone():
            before = self.read(key)
            if before is None:
                found = dataclasses.replace(report, calls=max(1, calls), compared=1)
            else:
                compared = before.compared + 1
                most = max(before.calls + calls, compared)
                found = dataclasses.replace(report, calls=most, compared=compared).after(before)
            self.write(key, found)
        return found

    def count(self, key: str, calls: int) -> None:
        """Add calls that were not compared, if there is a verdict."""
        with self._alone():
            before = self.read(key)
            if before is not None:
                self._write(key, self._content(dataclasses.replace(before, calls=before.calls + calls)))

    def begin(self, key: str) -> bool:
        """Count an attempt. Return whether there were not too many that came to no end."""
        with self._alone():
            try:
                content = self._read(key) or {}
                attempts = int(content.get("attempts", 0))
            except (Damaged, OSError, TypeError, ValueError, OverflowError):
                content, attempts = {}, 0
            if attempts >= MAX_ATTEMPTS:
                return False
            # What an earlier comparison has shown stays until this one ends.
            kept = content if self._report(key, content) is not None else {}
            self._write(key, {**kept, "schema": SCHEMA, "attempts": attempts + 1})
            return True

    def ended(self, key: str) -> None:
        """Take back the attempts: the latest comparison came to an end, whatever it showed."""
        with self._alone():
            try:
                content = self._read(key)
            except (Damaged, OSError):
                return
            if content is not None and content.get("attempts"):
                self._write(key, {**content, "attempts": 0})

    def _report(self, key: str, content: Mapping[str, Any] | None) -> NumbersReport | None:
        """Return the report in a record; ``None`` for one by other rules, or without one.

        A record that this version does not understand is another build's, and is set aside.
        """
        try:
            known = content is not None and content.get("schema") == SCHEMA and content.get("rules") == RULES
            if content is None or not known or "report" not in content:
                return None
            report = NumbersReport.from_wire({**content["report"], "kept": True})
            if not is_time(report.when) or not math.isfinite(report.seconds):
                raise ValueError(f"its times are {report.when:g} and {report.seconds:g}")
            # Records of earlier versions have no counts: one call was compared.
            compared = max(report.compared, 1 if report.state in ("agrees", "differs") else 0)
            return dataclasses.replace(report, calls=max(report.calls, compared), compared=compared)
        except BridgeError as error:
            self.set_aside(key, error.message)
        except (TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
            self.set_aside(key, str(error))
        return None

    @staticmethod
    def _content(report: NumbersReport) -> dict[str, Any]:
        return {"schema": SCHEMA, "rules": RULES, "report": report.to_wire()}

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of all verdicts. Where there are no locks, or it takes too long, go on without it."""
        held = None
        with contextlib.suppress(OSError):
            enter(self._folder.parent)
            make_folders(enter(self._lock.parent))
            held = hold(self._lock, time.monotonic() + LOCK_WAIT_S)
        try:
            yield
        finally:
            if held is not None:
                held.release()

    def _tidy(self) -> None:
        _keep_newest(self, MAX_VERDICTS)


# --- optimizers of ONNX Runtime that a model is loaded without, proven once ---------------------------------

OPTIMIZERS_FOLDER: Final = "optimizers"
MAX_CHOICES: Final = 1000


class OptimizerChoice(NamedTuple):
    """The graph optimizers of ONNX Runtime that a session of a model is made without.

    disabled: their names. off: all of them are, because no smaller set is known to help. why: what they do to the
    model, a sentence; "" if nothing is to be left out.
    """

    disabled: tuple[str, ...] = ()
    off: bool = False
    why: str = ""

    def applied(self, spec: SessionSpec) -> SessionSpec:
        """Return the session that is made without them."""
        if self.off:
            return dataclasses.replace(spec, options={**spec.options, OPTIMIZATION_LEVEL: LEVEL_OFF})
        if not self.disabled:
            return spec
        names = (*spec.disabled_optimizers, *(n for n in self.disabled if n not in spec.disabled_optimizers))
        return dataclasses.replace(spec, disabled_optimizers=names)


class OptimizerChoices(JsonFolder):
    """Files with the choices, one for each key. root: of this version's cache."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / OPTIMIZERS_FOLDER)

    def read(self, key: str) -> OptimizerChoice | None:
        try:
            content = self._read(key)
            if content is None or content["schema"] != SCHEMA:
                return None
            names = tuple(str(name) for name in content["disabled"])
            return OptimizerChoice(names, bool(content["off"]), str(content["why"]))
        except (Damaged, OSError):
            return None
        except (TypeError, LookupError) as error:
            self.set_aside(key, str(error))
            return None

    def write(self, key: str, choice: OptimizerChoice) -> None:
        self._write(
            key,
            {"schema": SCHEMA, "disabled": list(choice.disabled), "off": choice.off, "why": choice.why},
        )
        _keep_newest(self, MAX_CHOICES)


def _keep_newest(folder: JsonFolder, most: int) -> None:
    with contextlib.suppress(OSError):
        for key in folder.keys()[:-most]:
            folder.remove(key)
