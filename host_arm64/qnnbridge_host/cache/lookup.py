"""What one session has to do with the cache: finds or makes the entry to load, and judges what came of it.

Used by `RemoteSession`: `prepare` when the session is opened, `loadable` each time it is made in a host, and one of
`loaded`, `load_failed` and `host_died` behind it. What always holds: an entry is loaded only after every byte of it
was checked (by its stamp, if it has not changed); a bad one is set aside, made once more, and then left alone;
where the cache cannot be used the session is made from its model. `prepare` and `close` are called by the thread
that opens or closes the session, the others under the session's lock.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from qnnbridge_host.cache import policy
from qnnbridge_host.cache.build import CannotStandFor, NothingTold, build_entry
from qnnbridge_host.cache.eviction import shrink
from qnnbridge_host.cache.files import Damaged
from qnnbridge_host.cache.key import key_of, key_parts
from qnnbridge_host.cache.loadable import Differs, Loadable, fingerprint_of
from qnnbridge_host.cache.locks import Held
from qnnbridge_host.cache.negative_entries import DAY_S, Kind, Notes
from qnnbridge_host.cache.settings import cache_settings
from qnnbridge_host.cache.status import CacheStatus, say_once
from qnnbridge_host.cache.store import Entry, Fault, Store
from qnnbridge_host.cache.waiting import Heartbeat, WaitPolicy, Words
from qnnbridge_host.model.native_path import native_path
from qnnbridge_protocol.errors import (
    BridgeError,
    CompileFailed,
    DeadlineExceeded,
    DeviceReset,
    EngineError,
    HostCrashed,
    HostHung,
    ModelQuarantined,
    OrtError,
    PlacementRefused,
)
from qnnbridge_protocol.specs import SessionInfo

if TYPE_CHECKING:
    from qnnbridge._host import Host
    from qnnbridge._remote_session import SessionRecipe

_log = logging.getLogger("qnnbridge.cache")

SLOW_S: Final = 0.5
"""A small model that takes longer to make is cached from its next session on."""
SET_ASIDE_WAIT_S: Final = 10.0
SECOND_STRIKE_S: Final = 7 * DAY_S

_OURS_TO_RAISE = (DeadlineExceeded, HostCrashed, HostHung, ModelQuarantined)
"""What the session would raise without the cache, too, or would make it wait as long again."""
_NOT_THE_ENTRYS_FAULT = (DeviceReset, EngineError)


class SessionCache:
    """See the module. retry: how often a compiler that dies is started again."""

    def __init__(self, host: Host, manifest: SessionRecipe, retry: int = 1) -> None:
        self._host = host
        self._manifest = manifest
        self._wanted = manifest.cache
        self._retry = retry
        self._settings = cache_settings()
        self._store = Store(self._settings.folder)
        self._notes = Notes(self._store.root)
        self._entry: Entry | None = None
        self._checked = False
        """The entry was checked a moment ago, for its first use."""
        self._use: Held | None = None
        self.status = CacheStatus("off", "not asked yet")

    # --- before the session is made ---

    def prepare(self, deadline: float | None) -> None:
        """Find the entry, or compile it. Raises what the model raises when it is compiled, and `DeadlineExceeded`.

        Asks the host only if the session is one for the cache.
        """
        self._let_go()
        reason = self._reason_against()
        if reason is not None:
            self.status = CacheStatus("off", reason)
            return
        for problem in self._settings.problems:
            say_once(problem)
        host = self._host.learn(deadline)
        if host.simulator is None:
            self.status = CacheStatus("off", "this host has no QNN")
            return
        spec, source = self._manifest.spec, self._manifest.source
        try:
            parts = key_parts(source.fingerprint, spec, self._manifest.initializers, host, self._hash_library)
            self._find_or_make(key_of(parts), parts, deadline)
        except BridgeError:
            raise  # some are also an `OSError`
        except OSError as error:
            self._unusable(error.strerror or str(error))

    def _reason_against(self) -> str | None:
        source, settings = self._manifest.source, self._settings
        reason = policy.reason_against(source, self._manifest.spec, settings, self._wanted)
        small = settings.enabled and self._wanted is None and policy.is_small(source, settings, None)
        if reason is not None and small and self._notes.read(self._slow_key) is not None:
            return policy.reason_against(source, self._manifest.spec, settings, True)
        return reason

    def _find_or_make(self, key: str, parts: dict[str, object], deadline: float | None) -> None:
        self._store.prepare()
        native_path(self._store.root)
        held = self._wait(key, deadline)
        if held is None:
            self.status = CacheStatus("off", "another process compiles it and gives no sign of life", key)
            return
        try:
            entry = self._find(key)
            note = self._notes.read(key) if entry is None else None
            if note is not None:
                self.status = CacheStatus("off", note.reason, key)
                return
            found = entry is not None
            if entry is None:
                self._store.check_room(policy.size_of(self._manifest.source))
                entry = self._make(key, parts, deadline)
            if entry is None:
                return
            self._use = self._store.use(key)
            self._entry, self._checked = entry, True
            self._count(entry, found)
        finally:
            held.release()
        if not found:
            self._tidy(key)

    def _wait(self, key: str, deadline: float | None) -> Held | None:
        words = Words(f"{self._label}: waiting for another process that compiles it")
        patience = WaitPolicy(self._beat_file(key), words)
        held = self._store.lock(key, deadline, patience)
        if held is None and deadline is not None and time.monotonic() >= deadline:
            raise DeadlineExceeded(
                f"The time for {self._label} was over while another process was compiling it.",
                fix="Give it more time (timeout=): it is compiled once, and then loaded in milliseconds.",
                details={"state": "not-started", "model": self._label},
            )
        return held

    def _find(self, key: str) -> Entry | None:
        """Under the key's lock. What is damaged is set aside."""
        try:
            return self._store.find(key)
        except Damaged as damage:
            fault: Fault = "foreign" if "another key" in str(damage) else "damaged"
            self._bad(key, fault, str(damage))
            return None

    def _make(self, key: str, parts: dict[str, object], deadline: float | None) -> Entry | None:
        """Compile. ``None``, with the status said, if the session should be made without the cache."""
        retry = self._retry
        try:
            while True:
                try:
                    return self._attempt(key, parts, deadline)
                except (HostCrashed, NothingTold) as error:
                    if retry <= 0 or (isinstance(error, HostCrashed) and error.retry == "pointless"):
                        raise
                    retry -= 1
        except NothingTold:
            self.status = CacheStatus("off", "the compiler died before it could tell what it made", key)
        except CannotStandFor as reason:
            self._leave_alone(key, "differs", str(reason))
        except PlacementRefused as error:
            if self._manifest.spec.fallback == "error":
                self._notes.write(key, "refused", error.message, self._label)
                raise
            self._leave_alone(key, "nothing-on-qnn", error.message)
        except CompileFailed as error:
            self._compile_failed(key, error)
        except _OURS_TO_RAISE:
            raise
        except BridgeError as error:
            # Whether it is the model's fault or that of compiling apart: the session itself will tell.
            self.status = CacheStatus("off", f"it could not be compiled apart ({error.message})", key)
        return None

    def _attempt(self, key: str, parts: dict[str, object], deadline: float | None) -> Entry:
        """One process that compiles, with signs of life of its own: their seconds begin again with it."""
        left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
        words = Words(f"{self._label} is being compiled for QNN; it is kept for next time")
        beat = Heartbeat(self._beat_file(key), words)
        try:
            return build_entry(
                self._store, key, parts, self._manifest, self._host, timeout_s=left_s, on_progress=beat
            )
        finally:
            beat.stop()

    def _compile_failed(self, key: str, error: CompileFailed) -> None:
        if error.details.get("qnn_nodes") == 0:
            self._leave_alone(key, "nothing-on-qnn", error.message)
        elif error.details.get("folder"):
            self._unusable(error.cause or error.message)
        else:
            self.status = CacheStatus("off", error.message, key)

    # --- making the session in a host ---

    def loadable(self) -> Loadable | None:
        """The entry to load in the place of the model, checked again; ``None``: make it from the model."""
        entry = self._entry
        if entry is None:
            return None
        checked, self._checked = self._checked, False
        try:
            again = entry if checked else self._store.find(entry.key)
            if again is not None:
                self._entry = again
                return Loadable.of(again)
            self._drop("its entry in the cache is gone")
        except Damaged as damage:
            self._set_aside("damaged", str(damage))
        except OSError as error:
            self._drop(f"its entry in the cache cannot be read ({error.strerror or error})")
        return None

    def loaded(self, loadable: Loadable, info: SessionInfo) -> SessionInfo | None:
        """What the session shows; ``None`` if the entry does not stand for the model, and was set aside."""
        try:
            return loadable.restore(info)
        except Differs as difference:
            self._set_aside("differs", str(difference))
            return None

    def load_failed(self, error: BridgeError) -> bool:
        """The host could not load the entry. Whether it is set aside for that, so that the session can be made."""
        if not isinstance(error, OrtError) or isinstance(error, _NOT_THE_ENTRYS_FAULT):
            return False
        if error.details.get("host_must_restart"):
            return False
        self._set_aside("unloadable", error.message)
        return True

    def host_died(self, error: BridgeError, suspects: set[object]) -> bool:
        """A host died. Whether the entry alone is to blame; then it is set aside."""
        entry = self._entry
        if entry is None or suspects != {fingerprint_of(entry)} or error.details.get("from_outside"):
            return False
        self._set_aside("crashed", error.message)
        return True

    def made_without(self, info: SessionInfo) -> None:
        """The session was made from its model: one that took long although it is small is remembered."""
        if info.create_seconds < SLOW_S or not info.placement.qnn_nodes:
            return
        source, settings = self._manifest.source, self._settings
        small = settings.enabled and self._wanted is None and policy.is_small(source, settings, None)
        if small and policy.reason_against(source, self._manifest.spec, settings, True) is None:
            self._notes.write(self._slow_key, "slow", f"it took {info.create_seconds:.1f} s to make", self._label)

    def close(self) -> None:
        """The session is gone: its entry may be evicted. Idempotent."""
        self._let_go()

    # --- details ---

    @property
    def _label(self) -> str:
        return self._manifest.source.label

    @property
    def _slow_key(self) -> str:
        return f"slow-{self._manifest.source.fingerprint[:32]}"

    def _beat_file(self, key: str) -> Path:
        return self._store.root / "locks" / f"{key}.beat"

    def _hash_library(self, path: str) -> str | None:
        found = self._store.memo.look(path)
        return found.sha256 if found is not None else None

    def _count(self, entry: Entry, found: bool) -> None:
        seconds = entry.manifest.compile_seconds
        if found:
            self._store.count_hit(entry.key)
            self._host.cache_counters.hits += 1
            self.status = CacheStatus("hit", f"compiled before, in {seconds:.2f} s", entry.key, seconds)
        else:
            self._host.cache_counters.misses += 1
            self.status = CacheStatus("miss", f"compiled now, in {seconds:.2f} s", entry.key, seconds)

    def _tidy(self, key: str) -> None:
        with contextlib.suppress(OSError):
            self._store.sweep()
            gone = shrink(self._store, self._settings.max_bytes, keep=key)
            if gone:
                _log.info("%d compiled models that were used longest ago were removed from the cache", len(gone))

    def _set_aside(self, fault: Fault, reason: str) -> None:
        """The entry that was loaded, without its lock."""
        entry = self._entry
        self._drop(reason)
        if entry is None:
            return
        try:
            held = self._store.lock(entry.key, time.monotonic() + SET_ASIDE_WAIT_S)
            if held is None:
                return
            try:
                there = self._store.peek(entry.key)
                if there is not None and there.manifest.id == entry.manifest.id:
                    self._bad(entry.key, fault, reason)
            except Damaged as damage:
                self._bad(entry.key, "damaged", str(damage))
            finally:
                held.release()
        except OSError as error:
            self._unusable(error.strerror or str(error))

    def _bad(self, key: str, fault: Fault, reason: str) -> None:
        """Under the key's lock."""
        reason = reason.rstrip(".")
        _log.warning("The compiled model of %s in the cache is set aside: %s.", self._label, reason)
        self._host.cache_counters.set_aside += 1
        faults = ("crashed", "unloadable")
        since = time.time() - SECOND_STRIKE_S
        before = [b for b in self._store.bad_entries() if b.key == key and b.fault in faults and b.when > since]
        self._store.set_aside(key, fault, reason)
        if fault == "differs":
            self._notes.write(key, "differs", f"its compiled model does not show the same: {reason}", self._label)
        elif fault in faults and before:
            text = f"two compiled models of it could not be used: {reason}"
            self._notes.write(key, "crashes", text, self._label)

    def _leave_alone(self, key: str, kind: Kind, reason: str) -> None:
        self._notes.write(key, kind, reason, self._label)
        self.status = CacheStatus("off", reason, key)

    def _unusable(self, reason: str) -> None:
        reason = reason.rstrip(".")
        text = f"The cache of compiled models in {self._settings.folder} cannot be used: {reason}. "
        text += "Sessions are made without it."
        self._host.cache_counters.problem = text
        self.status = CacheStatus("off", f"the cache cannot be used: {reason}")
        say_once(text)

    def _drop(self, reason: str) -> None:
        self._let_go()
        self.status = dataclasses.replace(self.status, state="off", reason=reason)

    def _let_go(self) -> None:
        use, self._use, self._entry = self._use, None, None
        if use is not None:
            with contextlib.suppress(OSError):
                use.release(remove=True)
