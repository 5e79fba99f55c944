"""Find or create the cache entry for a session that is being created, and check the session that loaded the entry.

The caller calls `find` before the session is created. Then it calls `loaded` if the entry was loaded, `load_failed`
if the load failed, or `made_without` if the session was created from the model. Invariants: an entry is loaded only
after every byte was checked (an unchanged stamp of a file replaces the check of its bytes). An invalid entry is set
aside and created once more; after the second failure the model is not cached. If the cache cannot be used, the
session is created from its model. Not thread-safe.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qnnbridge_host.cache.entry import STEM, CacheEntry, Differs, EntryFile, EntryManifest
from qnnbridge_host.cache.files import Damaged, Heartbeat, Held, WaitPolicy
from qnnbridge_host.cache.key import SOURCE_VERSIONS, is_small, key_of, key_parts, reason_against, size_of
from qnnbridge_host.cache.measured import rows_of_session
from qnnbridge_host.cache.memo import DAY_S, Kind, NegativeEntries, Verdicts
from qnnbridge_host.cache.store import Fault, Store, shrink
from qnnbridge_host.create import parting
from qnnbridge_host.create.order import Creation, known_faults
from qnnbridge_host.model.paths import native_path
from qnnbridge_host.model.source import hash_file, interruptible
from qnnbridge_protocol.errors import (
    BridgeError,
    Cancelled,
    CompileFailed,
    DeadlineExceeded,
    DeviceReset,
    EngineError,
    ModelQuarantined,
    OrtError,
    PlacementRefused,
    WorkerDied,
    late_behind_compiler,
)
from qnnbridge_protocol.model_records import CacheReply, CacheSettings, CacheState, EntryFault, Notice
from qnnbridge_protocol.specs import QNN, HostInfo, ProviderSpec, SessionInfo, SessionSpec
from qnnbridge_protocol.visible import log_of

if TYPE_CHECKING:
    from qnnbridge_host.create.publish import CompiledFiles
    from qnnbridge_protocol.connection import Hello

_log = log_of("qnnbridge.cache")

# A small model uses the cache only if creating an earlier session took longer than this number of seconds.
SLOW_S: Final = 0.5
# Longest wait for the key's lock when an entry must be set aside. After this time the entry is left unchanged.
SET_ASIDE_WAIT_S: Final = 10.0
# If two entries of a model crash the host or fail to load within this time, the model is no longer cached.
SECOND_STRIKE_S: Final = 7 * DAY_S
# Maximum number of compilations for one entry if the compiler crashes before it reports its result.
ATTEMPTS: Final = 2

_EDGES: Final = "offload_graph_io_quantization"

# Raise these errors: without the cache the session would fail in the same way, or after the same wait.
_RAISED = (Cancelled, DeadlineExceeded, ModelQuarantined, WorkerDied)
# Errors that report a reset of the NPU. A cache entry does not cause such a reset.
_ERRORS_OF_THE_NPU = (DeviceReset, EngineError)


class ModelNotDescribed(Exception):
    """The compiler crashed before it reported inputs and outputs, so its files cannot replace the model."""


class CannotStandFor(Exception):
    """The compiled model cannot replace the model; the error's text is the reason."""


class SessionCache:
    """Finds or creates the cache entry of one session, and records the result. hello: the host's HELLO message."""

    def __init__(self, creation: Creation, settings: CacheSettings, hello: Hello) -> None:
        self._creation = creation
        self._source = creation.source
        self._spec = creation.spec
        self._order = creation.order
        self._settings = settings
        self._hello = hello
        self._store = Store(Path(settings.folder))
        self._negative = NegativeEntries(self._store.root)
        self._entry: CacheEntry | None = None
        self._use: Held | None = None
        self._state: CacheState = "off"
        self._reason = ""
        self._key: str | None = None
        self._known_parts: dict[str, Any] | None = None
        self._seconds: float | None = None
        # Reason for each entry that was set aside, by the key of the entry.
        self._set_aside: dict[str, str] = {}
        self._set_aside_count = 0
        self._problem: str | None = None
        self.notices: list[Notice] = []

    @property
    def reply(self) -> CacheReply:
        """Result of the cache (hit, miss or off), for the reply to the application."""
        entry_id = self._entry.manifest.id if self._entry is not None else None
        return CacheReply(
            self._state, self._reason, self._key, self._seconds, entry_id, self._set_aside_count, self._problem
        )

    @property
    def reason_against(self) -> str | None:
        """Reason, found without the engine, why the session bypasses the cache; ``None`` if it uses the cache."""
        source, settings = self._source, self._settings
        reason = reason_against(source, self._spec, settings)
        # A small model is cached only after an earlier session of it was slow (`made_without`).
        if reason is not None and self._may_be_slow and self._negative.read(self._slow_key) is not None:
            return reason_against(source, self._spec, _wanted(settings))
        return reason

    def off(self, reason: str, key: str | None = None) -> None:
        """Record that the session is created from its model instead of an entry, and the reason."""
        self._state, self._reason, self._key = "off", reason, key or self._key

    # --- before the model to load is chosen ---

    def parting_needed(self, host: HostInfo) -> parting.Parting | None:
        """Return why the model's gates (Sigmoid, Tanh) must be separated from other operators; ``None`` unless the
        stored verdict on its outputs is "differs"."""
        if not self._settings.in_use:
            return None
        with contextlib.suppress(OSError):  # `find` fails with the same error later, and reports it
            key = key_of(self._parts(host))
            report = Verdicts(self._store.root).read(key)
            # Skip the import for most models: they passed the accuracy check or were never checked.
            if report is not None and report.state == "differs":
                return parting.needed(self._store.root, key, report, self._source)
        return None

    def has_right_entry(self, host: HostInfo) -> bool:
        """Return whether the model has a cache entry without a warning about known-wrong operators."""
        if self.reason_against is not None:
            return False
        with contextlib.suppress(Damaged, OSError):
            key = key_of(self._parts(host))
            entry = self._store.peek(key)
            return entry is not None and entry.manifest.key == key and not entry.manifest.warning
        return False

    # --- before the session is created ---

    def set_aside(self, faults: Sequence[EntryFault]) -> None:
        """Set aside the entries that have crashed a host, as reported by the application."""
        for fault in faults:
            try:
                self._quarantine(fault.key, fault.id, fault.fault, fault.reason)
            except OSError as error:
                self._unusable(error.strerror or str(error))

    def find(self, host: HostInfo) -> CacheEntry | None:
        """Return the entry to load instead of the model; ``None`` to create the session from the model.

        Args:
            host: the versions and chip on which an entry depends, besides model and options.

        Raises:
            DeadlineExceeded: another process was still compiling the model.
            BridgeError: the error of compiling the model.
        """
        for problem in self._settings.problems:
            self._notice(problem)
        if host.simulator is None:
            self.off("this host has no QNN")
            return None
        try:
            parts = self._parts(host)
            self._key = key_of(parts)
            self._find_or_make(self._key, parts, host)
            if self._entry is not None:
                self._entry = dataclasses.replace(self._entry, native=native_path(self._entry.folder))
            return self._entry
        except BridgeError:
            raise  # some `BridgeError`s are also `OSError`s, which the next clause treats as a failure of the cache
        except OSError as error:
            self.release()
            self._unusable(error.strerror or str(error))
            return None

    def _parts(self, host: HostInfo) -> dict[str, Any]:
        """Return the parts of the entry's key. Raise `OSError` if the cache's disk fails."""
        if self._known_parts is not None:
            return self._known_parts
        here = rows_of_session(self._spec, host.versions, simulator=host.machine != "ARM64")
        initializers, sha256 = self._creation.initializers, self._store.memo.sha256
        parts = key_parts(self._source.fingerprint, self._spec, initializers, host, sha256, here.identity)
        self._known_parts = parts
        return parts

    def _find_or_make(self, key: str, parts: dict[str, object], host: HostInfo) -> None:
        self._store.prepare()
        native_path(self._store.root)
        # Take the lock before the look-up, so that a process that waited for the lock finds the new entry.
        held = self._wait(key)
        if held is None:
            self.off("another process is compiling the model, and its heartbeat has stopped")
            return
        try:
            entry = self._checked(key)
            negative = self._negative.read(key) if entry is None else None
            if negative is not None:
                self.off(negative.reason)
                return
            found = entry is not None
            if entry is None and self._settings.load_only:
                self.off(self._set_aside.get(key, "its entry in the cache was removed"))
                return
            if entry is None:
                self._announce_update(parts)
                # Check the free disk space before a compilation that may take minutes.
                self._store.check_room(size_of(self._source))
                entry = self._make(key, parts)
            if entry is None:
                return
            # Mark the entry as used before the key's lock is released; otherwise another process could evict it in
            # between.
            self._use = self._store.use(key)
            self._entry = entry
            self._state = "hit" if found else "miss"
            self._seconds = entry.manifest.compile_seconds
            self._reason = f"compiled {'earlier' if found else 'now'}; the compilation took {self._seconds:.2f} s"
            if found and not self._settings.load_only:
                self._store.count_hit(key)
        finally:
            held.release()
        # Evict without holding the key's lock, so that other sessions of the model do not wait for it.
        if not found:
            self._tidy(key)

    def _wait(self, key: str) -> Held | None:
        deadline = self._order.deadline
        # The wait ends early if the compiling process does not update its heartbeat for a minute.
        held = self._store.lock(key, deadline, WaitPolicy(self._beat_file(key), self._on_wait))
        if held is None and deadline is not None and time.monotonic() >= deadline:
            raise late_behind_compiler(self._source.label)
        return held

    def _checked(self, key: str) -> CacheEntry | None:
        """Return the key's entry after checking every byte. Set a damaged entry aside.

        The caller holds the key's lock.
        """
        try:
            with interruptible(self._order.stop.check):
                entry = self._store.find(key)
        except Damaged as damage:
            self._bad(key, "foreign" if "another key" in str(damage) else "damaged", str(damage))
            return None
        # Compare the fingerprint of the entry: if an entry is loaded, crashes are attributed to it instead of the
        # model.
        if entry is not None and entry.fingerprint in self._creation.quarantined:
            self._bad(key, "crashed", "it crashed the host")
            return None
        return entry

    def _make(self, key: str, parts: dict[str, object]) -> CacheEntry | None:
        """Compile the model and return its entry. If that fails, record the reason and return ``None``."""
        try:
            for _ in range(ATTEMPTS):
                # The heartbeat shows waiting processes that this process is still compiling.
                beat = Heartbeat(self._beat_file(key), functools.partial(self._order.progress, "compiling"))
                try:
                    return build_entry(self._store, key, parts, self._creation, self._hello.machine, beat)
                except ModelNotDescribed:
                    self.off("the compiler crashed before it reported its result")
                finally:
                    beat.stop()
        except CannotStandFor as reason:
            self._leave_alone(key, "differs", str(reason))
        except PlacementRefused as error:
            if self._spec.fallback == "error":
                # This record makes the next session skip the compilation, because QNN would refuse the model again.
                self._negative.write(key, "refused", error.message, self._source.label)
                raise
            self._leave_alone(key, "nothing-on-qnn", error.message)
        except CompileFailed as error:
            if error.details.get("qnn_nodes") == 0:
                self._leave_alone(key, "nothing-on-qnn", error.message)
            elif error.details.get("folder"):
                self._unusable(error.cause or error.message)
            else:
                self.off(error.message)
        except _RAISED:
            raise
        except BridgeError as error:
            # The host now creates the session from the model itself. If that succeeds, the worker was at fault,
            # otherwise the model.
            self.off(f"the model could not be compiled in a worker ({error.message})")
        return None

    # --- after the session was created ---

    def loaded(self, loadable: CacheEntry, info: SessionInfo) -> SessionInfo | None:
        """Check the session that loaded an entry, and return what a session of the original model would report.

        Return ``None`` if the entry does not match the model or its files may have changed.
        """
        try:
            loadable.check_unchanged()
            if loadable.touched():
                # Either the files changed during the load, or they only received new hard links: check and load
                # them again.
                self.release()
                self.off("its files may have changed while they were loaded")
                return None
            return loadable.restore(info)
        except Differs as difference:
            self._give_up(loadable, "differs", str(difference))
        except (Damaged, OSError) as damage:
            self._give_up(loadable, "damaged", str(damage))
        return None

    def load_failed(self, loadable: CacheEntry, error: BridgeError) -> bool:
        """Set aside an entry that ONNX Runtime could not load.

        Returns:
            Whether the entry was set aside. If not, the entry is not the cause and the error must be raised.
        """
        if not isinstance(error, OrtError) or isinstance(error, _ERRORS_OF_THE_NPU):
            return False
        # If the host must restart or the NPU's memory is full, the entry is not the cause.
        if error.details.get("host_must_restart") or error.details.get("npu_memory"):
            return False
        self._give_up(loadable, "unloadable", error.message)
        return True

    def made_without(self, info: SessionInfo) -> None:
        """Record that the session of a small model was slow to create, so that the next session uses the cache."""
        if info.create_seconds < SLOW_S or not info.placement.qnn_nodes or not self._may_be_slow:
            return
        if reason_against(self._source, self._spec, _wanted(self._settings)) is None:
            reason = f"creating a session took {info.create_seconds:.1f} s"
            self._negative.write(self._slow_key, "slow", reason, self._source.label)

    def take_use(self) -> Held | None:
        """Return the lock that prevents the eviction of the entry. The caller must release it."""
        use, self._use = self._use, None
        return use

    def release(self) -> None:
        """Release the lock on the entry if the session was not created. Idempotent."""
        use, self._use, self._entry = self._use, None, None
        if use is not None:
            with contextlib.suppress(OSError):
                use.release(remove=True)

    # --- details ---

    @property
    def _slow_key(self) -> str:
        # Build this key from the model's fingerprint alone: it is needed before the engine's versions are known.
        return f"slow-{self._source.fingerprint[:32]}"

    @property
    def _may_be_slow(self) -> bool:
        settings = self._settings
        return settings.enabled and settings.wanted is None and is_small(self._source, settings)

    def _on_wait(self, seconds: float) -> None:
        self._order.stop.check()
        self._order.progress("waiting", seconds)

    def _beat_file(self, key: str) -> Path:
        return self._store.part("locks") / f"{key}.beat"

    def _notice(self, text: str) -> None:
        if (notice := Notice("cache", text)) not in self.notices:
            self.notices.append(notice)

    def _tidy(self, key: str) -> None:
        with contextlib.suppress(OSError):
            self._store.sweep()
            if gone := shrink(self._store, self._settings.max_bytes, keep=key):
                _log.info("%d least recently used compiled models were removed from the cache", len(gone))

    def _give_up(self, loadable: CacheEntry, fault: Fault, reason: str) -> None:
        """Set aside the loaded entry. The caller does not hold the key's lock."""
        self.release()
        self.off(reason)
        try:
            self._quarantine(loadable.key, loadable.manifest.id, fault, reason)
        except OSError as error:
            self._unusable(error.strerror or str(error))

    def _quarantine(self, key: str, entry_id: str, fault: Fault, reason: str) -> None:
        """Set an entry aside, if it still exists. Raise `OSError` if the cache's disk fails."""
        held = self._store.lock(key, time.monotonic() + SET_ASIDE_WAIT_S, self._on_wait)
        if held is None:
            return
        try:
            there = self._store.peek(key)
            # Compare the ids: another process may have replaced the entry in the meantime.
            if there is not None and there.manifest.id == entry_id:
                self._bad(key, fault, reason, there.manifest.label)
        except Damaged as damage:
            self._bad(key, "damaged", str(damage))
        finally:
            held.release()

    def _announce_update(self, parts: Mapping[str, Any]) -> None:
        """Add a notice that the model is compiled again because QNN was updated, if nothing else has changed.

        Windows updates its provider automatically, and the user does not notice.
        """
        now = _source_of(parts)
        if not now:
            return
        for key in self._store.all_keys():
            # In a damaged manifest `parts` may have any type.
            with contextlib.suppress(Damaged, OSError, AttributeError, TypeError):
                entry = self._store.peek(key)
                if entry is None or entry.manifest.fingerprint != self._source.fingerprint:
                    continue
                before = _source_of(entry.manifest.parts)
                if before and before != now and _without_source(entry.manifest.parts) == _without_source(parts):
                    was, has = " ".join(before), " ".join(now)
                    label = self._source.label
                    text = (
                        f"{label} is compiled again: its entry was compiled with QNN from {was}; this host has "
                        f"{has}."
                    )
                    self.notices.append(Notice("once", text))
                    return

    def _bad(self, key: str, fault: Fault, reason: str, label: str | None = None) -> None:
        """Set an entry aside. The caller holds the key's lock.

        label: the label in the entry's manifest; default: the label of this session's model.
        """
        reason, label = reason.rstrip("."), label or self._source.label
        self.notices.append(Notice("model", f"The compiled model of {label} in the cache is set aside: {reason}."))
        self._set_aside[key] = reason
        self._set_aside_count += 1
        faults = ("crashed", "unloadable")
        # Read the list of set-aside entries before this entry is added, to find out whether the key fails for the
        # second time.
        since = time.time() - SECOND_STRIKE_S
        before = [
            entry
            for entry in self._store.invalid_entries()
            if entry.key == key and entry.fault in faults and entry.when > since
        ]
        self._store.quarantine_entry(key, fault, reason)
        # Record the difference: a new compilation would differ in the same way.
        if fault == "differs":
            text = f"the compiled model differs from the original: {reason}"
            self._negative.write(key, "differs", text, label)
        elif fault in faults and before:
            text = f"two cache entries of the model could not be used: {reason}"
            self._negative.write(key, "crashes", text, label)

    def _leave_alone(self, key: str, kind: Kind, reason: str) -> None:
        self._negative.write(key, kind, reason, self._source.label)
        self.off(reason)

    def _unusable(self, reason: str) -> None:
        reason = reason.rstrip(".")
        text = f"The cache of compiled models in {self._settings.folder} cannot be used: {reason}. "
        self._problem = text + "Sessions are created without it."
        self.off(f"the cache cannot be used: {reason}")
        self._notice(self._problem)


def build_entry(
    store: Store,
    key: str,
    parts: Mapping[str, Any],
    creation: Creation,
    machine: str,
    on_progress: Callable[[float], None],
) -> CacheEntry:
    """Compile the model in a worker and publish the result as an entry. The caller holds the key's lock.

    Args:
        store: the cache.
        key: the entry's key.
        parts: the parts of the key, for the manifest.
        creation: the creation whose model is compiled.
        machine: the host's architecture.
        on_progress: called periodically with the seconds since the start.

    Raises:
        ModelNotDescribed, CannotStandFor: the compiled model cannot replace the model.
        OSError: the cache's disk failed.
        BridgeError: the errors of compiling.
    """
    from qnnbridge_host.create import compiler
    from qnnbridge_host.create.publish import CompilerInput
    from qnnbridge_host.create.worker import ticking

    source, spec, order = creation.source, creation.spec, creation.order
    with store.draft() as draft:
        job = CompilerInput(source, _spec(spec), file_stem=STEM, initializers=creation.initializers)
        with ticking(on_progress):
            (made,) = compiler.compile_together((job,), os.fspath(draft.folder), order)
        # Check for a cancellation now, because a published entry is not removed again.
        order.stop.check()
        warning = known_faults(source, spec, machine, made.versions, made.soc_model)
        return store.publish(draft, _described(key, parts, creation, made, warning))


def _described(
    key: str, parts: Mapping[str, Any], creation: Creation, made: CompiledFiles, warning: str
) -> EntryManifest:
    source = creation.source
    if made.info is None:
        raise ModelNotDescribed
    if made.info.overridable_initializers:
        raise CannotStandFor(
            "some of its initializers may be overridden by inputs, which a compiled model does not support"
        )
    return EntryManifest(
        key=key,
        # Use a new id for each compilation, so that a fault of this entry is not blamed on a later entry of the
        # same key.
        id=secrets.token_hex(16),
        # Include all files: the two files that QNN writes, and files that ONNX Runtime may add for nodes on the
        # CPU.
        files=tuple(_record(Path(made.folder), name) for name in sorted(os.listdir(made.folder))),
        label=source.label,
        fingerprint=source.fingerprint,
        parts=parts,
        info=made.info,
        created=time.time(),
        compile_seconds=made.seconds,
        source_path=source.path,
        source_bytes=size_of(source),
        salvaged=made.died_at_teardown,
        warning=warning,
    )


def _record(folder: Path, name: str) -> EntryFile:
    path = folder / name
    return EntryFile(name, path.stat().st_size, hash_file(path))


def _spec(spec: SessionSpec) -> SessionSpec:
    """Return the session's description for the compilation, changed so that nodes are placed as without the cache.

    A session that allows the CPU quantizes the graph's inputs and outputs on the CPU. A compilation does so only
    with the option `offload_graph_io_quantization`, so add the option.
    """
    if spec.fallback == "error":
        return spec
    providers = [
        ProviderSpec(p.name, {_EDGES: "1", **p.options}) if p.name == QNN else p
        for p in spec.providers or (ProviderSpec(QNN),)
    ]
    return dataclasses.replace(spec, providers=tuple(providers))


def _source_of(parts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return where QNN came from (wheel, Windows or a folder) and its version, read from the parts of a key."""
    versions = parts.get("host", {}).get("versions", {})
    return tuple(str(versions[name]) for name in SOURCE_VERSIONS if versions.get(name))


def _without_source(parts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parts of a key that the user chooses: all but the host's libraries and versions."""
    return {name: part for name, part in parts.items() if name != "host"}


def _wanted(settings: CacheSettings) -> CacheSettings:
    return CacheSettings.from_wire({**settings.to_wire(), "wanted": True})
