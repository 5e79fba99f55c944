"""Records of the cache besides compiled models: hashes of files, models that the cache skips, models whose weights
the NPU cannot map, verdicts on results, and optimizers that break a model.

Each record is a small file named by its key. Failures never raise an error, because a missing record only costs
time. Safe for several threads and processes.
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
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

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

if TYPE_CHECKING:
    from qnnbridge_host.model.genai_folder import GenaiFolder
    from qnnbridge_host.model.source import ModelSource

MEMO_SCHEMA: Final = 1
MEMO_FOLDER: Final = "memo"


@dataclasses.dataclass(frozen=True, slots=True)
class Hashed:
    """Hash of a file. remembered: whether the hash was read from the memo instead of computed."""

    sha256: str
    stamp: FileStamp
    remembered: bool = False


class HashMemo:
    """Hashes of files, so that unchanged files are not read again. root: the cache's folder.

    The memo has one small file for each path. A record is valid only if the file has the recorded stamp and had
    been unchanged for a while before hashing (`FileStamp.settled`): a file that was written just before or during
    hashing is hashed again the next time.
    """

    def __init__(self, root: Path) -> None:
        self.folder = root / MEMO_FOLDER

    def look(self, path: str | os.PathLike[str]) -> Hashed | None:
        """Return a file's hash, from the memo or computed; ``None`` if the file does not exist.

        Raises:
            OSError: the file cannot be read.
        """
        text = os.path.abspath(os.fspath(path))
        before = take_stamp(text)
        if before is None:
            return None
        known = self._recall(text)
        if known is not None and known.stamp.proves(before):
            return dataclasses.replace(known, remembered=True)
        if before.settled and sys.platform != "win32":
            # Write the file's pages to the disk first: a program that has mapped the file changes the file's times
            # only by a write to a clean page. On tmpfs, which has no disk, some writes still remain undetected.
            with contextlib.suppress(OSError):
                sync_file(text)
        found = Hashed(hash_file(text), before)
        after = take_stamp(text)
        if after is None or not before.same(after):
            # Do not store the hash, because the file was modified meanwhile. `KnownFile.changed` hashes it again.
            return dataclasses.replace(found, stamp=before._replace(taken_ns=0))
        if found.stamp.settled:
            self._keep(text, found)
        return found

    def sha256(self, path: str) -> str | None:
        """Return the hash only. See `look`."""
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
            pass  # on failure the file is hashed again the next time

    def forget_gone(self) -> int:
        """Remove unreadable records and records of missing files. Return their number."""
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
        """Return the records; none if the folder does not belong to the cache."""
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
        # Use the path as it was given. Two spellings of a path have two records, which only costs a second hash.
        name = hashlib.sha256(path.encode("utf-8", "surrogatepass")).hexdigest()[:32]
        return self.folder / f"{name}.json"


_MEMO_FORM: Final = re.compile(r"[0-9a-f]{32}\.json")


def _is_memo(name: str) -> bool:
    return _MEMO_FORM.fullmatch(name) is not None or name.startswith(TEMPORARY)


def _is_of_a_file(record: Path) -> bool:
    """Return whether a record is readable and its file exists. Raise `OSError` if the record cannot be read."""
    try:
        content = read_json(record)
        return content is not None and os.path.exists(content["path"])
    except (Damaged, LookupError, TypeError, ValueError):
        return False


def memo_of(settings: CacheSettings | None) -> HashMemo | None:
    """Return the memo for a session with these settings; ``None`` if the cache is disabled."""
    return HashMemo(Path(settings.folder)) if settings is not None and settings.in_use else None


# --- models that the cache skips -------------------------------------------------------------------------
#
# The reason is stored, so that the next start does not repeat the failed compilation. A negative entry belongs to a
# key, and so to one set of versions and options. It remains until it is cleared or expires.

# refused: nodes would stay on the CPU. nothing-on-qnn: QNN supports none of the model's nodes. differs: the
# compiled model has other inputs or outputs than the original. crashes: two compiled models in a row killed the
# host or could not be loaded. slow: the model is below the cache's minimum size but took long to compile, so
# later sessions use the cache. unmapped: the model's weights cannot be mapped into the NPU's memory
# (`load_mapped_or_not`). gates: the model's results are wrong even if its gates (Sigmoid, Tanh) are separated from
# other operators (`create/parting.py`).
Kind = Literal["refused", "nothing-on-qnn", "differs", "crashes", "slow", "unmapped", "gates"]

NOTES_FOLDER: Final = "notes"
DAY_S: Final = 24 * 3600.0
NOTES_MAX_AGE_S: Final = 90 * DAY_S
# Reasons that may be due to chance expire earlier: two crashes, or no node on QNN because the driver was being
# replaced. Compiling a model without nodes on QNN again is cheap, because the compilation fails quickly.
CRASHES_MAX_AGE_S: Final = 7 * DAY_S
NOTHING_MAX_AGE_S: Final = DAY_S
_MAX_AGE_S: Final[Mapping[Kind, float]] = {"crashes": CRASHES_MAX_AGE_S, "nothing-on-qnn": NOTHING_MAX_AGE_S}


@dataclasses.dataclass(frozen=True, slots=True)
class NegativeEntry:
    """Reason why a key has no usable entry. created: seconds since 1970."""

    key: str
    kind: Kind
    reason: str
    label: str = ""
    created: float = 0.0


class NegativeEntries(JsonFolder):
    """Files of negative entries, one for each key. root: the cache's folder of this version."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / NOTES_FOLDER)

    def write(self, key: str, kind: Kind, reason: str, label: str) -> None:
        entry = NegativeEntry(key, kind, reason, label, time.time())
        self._write(key, {"schema": SCHEMA, **dataclasses.asdict(entry)})

    def read(self, key: str, *, keep: bool = False) -> NegativeEntry | None:
        """Return the entry; ``None`` if the key has none. keep: leave records of other versions where they are."""
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
        """Return all entries, the newest first."""
        found = [entry for key in self.keys() if (entry := self.read(key, keep=True)) is not None]
        return sorted(found, key=lambda entry: -entry.created)


# --- models whose weights the NPU cannot map -------------------------------------------------------------
#
# Some drivers cannot map the weights of a compiled model (RPC 8003, then QNN 1002), but load the same model with
# the provider option ``disable_file_mapped_weights``. If that succeeds, a record for the model and the version of
# QNN makes later sessions set the option at once.

UNMAPPED: Final = "disable_file_mapped_weights"
_UNMAPPED_WORDS: Final = f"loaded with {UNMAPPED}=1, because the NPU could not map its weights"
_UNMAPPED_VERSIONS: Final = ("onnxruntime", "onnxruntime_qnn", "qnn_sdk", "driver", "ep_source", "ep_version")

T = TypeVar("T")


def load_mapped_or_not(
    create: Callable[[bool], T],
    settings: CacheSettings | None,
    model: ModelSource | GenaiFolder,
    versions: Callable[[], Mapping[str, str]],
) -> tuple[T, str]:
    """Create an object; if that fails because the weights cannot be mapped, try again without mapping. Return the
    object and a description of the second attempt.

    Args:
        create: creates the object; its argument is whether to disable the mapping.
        settings: settings of the application's cache; without a usable cache the result is not stored.
        model: the model, whose fingerprint is part of the stored result's key.
        versions: function that returns the host's versions.

    Raises:
        BridgeError: the error of the first attempt, with the error of the second attempt as evidence.
    """

    def key() -> str:
        known = versions()
        parts = [model.fingerprint, *(f"{name}={known.get(name)}" for name in _UNMAPPED_VERSIONS)]
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
        first = error.with_traceback(None)  # the traceback would keep this frame and its objects alive
    try:
        made = create(True)
    except (Cancelled, DeadlineExceeded):
        raise
    except BridgeError as error:
        first.evidence = (*first.evidence, f"With {UNMAPPED}=1: {error.message}")
        raise first from None
    if notes is not None:
        notes.write(key(), "unmapped", _UNMAPPED_WORDS, model.label)
    return made, _UNMAPPED_WORDS


def may_unmap(spec: SessionSpec) -> bool:
    """Return whether the session uses QNN and its options leave the mapping of weights to qnnbridge."""
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


# --- verdicts: results of comparing a compiled model with the CPU ----------------------------------------
#
# The key contains model, options, chip and versions. If any of them changes, or if the rules of judgement change, a
# new comparison is needed. A verdict is kept when the model's entry is evicted, and models without an entry have
# verdicts too. A verdict covers several calls and records how many; "differs" of a later call replaces "agrees".

VERDICTS_FOLDER: Final = "verdicts"
# Version of the rules in `numerics`. Verdicts by other versions of the rules are ignored.
RULES: Final = 2
# Maximum number of stored verdicts, of about 1 KB each.
MAX_VERDICTS: Final = 1000
VERDICTS_MAX_AGE_S: Final = 365 * 24 * 3600.0
# Maximum wait for the lock in seconds; reading and writing a record takes less than a millisecond.
LOCK_WAIT_S: Final = 2.0
# Start no further comparison if this many comparisons were interrupted by the end of their process.
MAX_ATTEMPTS: Final = 5


class Verdicts(JsonFolder):
    """Files with the results of comparisons, one for each key.

    Several processes may read, merge and write a record at once. They take a system lock in turn, because "agrees"
    must not overwrite a difference that another process has just recorded.

    Args:
        root: the cache's folder of this version.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root / VERDICTS_FOLDER)
        self._lock = root / "locks" / "verdicts.lock"

    def read(self, key: str) -> NumbersReport | None:
        """Return the verdict; ``None`` if the key has none."""
        try:
            report = self._report(key, self._read(key))
        except (Damaged, OSError):
            return None
        if report is None or abs(time.time() - report.when) >= VERDICTS_MAX_AGE_S:
            return None
        return report

    def write(self, key: str, report: NumbersReport) -> None:
        """Write the verdict of a key, replacing an earlier one."""
        self._write(key, self._content(report))
        self._tidy()

    def add(self, key: str, report: NumbersReport, calls: int) -> NumbersReport:
        """Add a comparison, and return the combined verdict.

        Args:
            key: the key of the record.
            report: the verdict of the comparison.
            calls: number of calls of the model since the last `add` or `count`.
        """
        with self._locked():
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
        """Add calls that were not compared to the number of calls in the verdict, if the key has a verdict."""
        with self._locked():
            before = self.read(key)
            if before is not None:
                self._write(key, self._content(dataclasses.replace(before, calls=before.calls + calls)))

    def begin(self, key: str) -> bool:
        """Record the start of a comparison. Return False if too many comparisons were interrupted."""
        with self._locked():
            try:
                content = self._read(key) or {}
                attempts = int(content.get("attempts", 0))
            except (Damaged, OSError, TypeError, ValueError, OverflowError):
                content, attempts = {}, 0
            if attempts >= MAX_ATTEMPTS:
                return False
            # Keep the result of an earlier comparison until this comparison ends.
            kept = content if self._report(key, content) is not None else {}
            self._write(key, {**kept, "schema": SCHEMA, "attempts": attempts + 1})
            return True

    def ended(self, key: str) -> None:
        """Reset the count of interrupted comparisons, because the latest comparison ended with a result."""
        with self._locked():
            try:
                content = self._read(key)
            except (Damaged, OSError):
                return
            if content is not None and content.get("attempts"):
                self._write(key, {**content, "attempts": 0})

    def _report(self, key: str, content: Mapping[str, Any] | None) -> NumbersReport | None:
        """Return the report in a record; ``None`` if it is missing or has other `RULES`.

        A record that this version cannot interpret is from another build, and is set aside.
        """
        try:
            known = content is not None and content.get("schema") == SCHEMA and content.get("rules") == RULES
            if content is None or not known or "report" not in content:
                return None
            report = NumbersReport.from_wire({**content["report"], "kept": True})
            if not is_time(report.when) or not math.isfinite(report.seconds):
                raise ValueError(f"its times are {report.when:g} and {report.seconds:g}")
            # Records of earlier versions contain no number of compared calls: these versions compared one call.
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
    def _locked(self) -> Iterator[None]:
        """Hold the lock of all verdicts during a block. If the lock is unavailable for too long, continue without
        it."""
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


# --- ONNX Runtime's optimizers that are disabled for a model ---------------------------------------------

OPTIMIZERS_FOLDER: Final = "optimizers"
MAX_CHOICES: Final = 1000


class OptimizerChoice(NamedTuple):
    """ONNX Runtime's graph optimizers that are disabled in the sessions of a model.

    disabled: names of the optimizers. off: whether to disable all, because no smaller set is known to help. why: a
        sentence on their effect on the model; "" if none is disabled.
    """

    disabled: tuple[str, ...] = ()
    off: bool = False
    why: str = ""

    def applied(self, spec: SessionSpec) -> SessionSpec:
        """Return the description of a session with these optimizers disabled."""
        if self.off:
            return dataclasses.replace(spec, options={**spec.options, OPTIMIZATION_LEVEL: LEVEL_OFF})
        if not self.disabled:
            return spec
        names = (*spec.disabled_optimizers, *(n for n in self.disabled if n not in spec.disabled_optimizers))
        return dataclasses.replace(spec, disabled_optimizers=names)


class OptimizerChoices(JsonFolder):
    """Files with the disabled optimizers, one for each key. root: the cache's folder of this version."""

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
