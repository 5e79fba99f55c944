"""Sessions in the NPU host that several clients share.

Clients that open the same model with the same options get the same session. The users of each session are counted;
a session without users stays loaded for some time, because the next run of the same program is a new client. A
session without calls is unloaded after a while and recreated by its next call, from the same files: if the files
have changed, the call is answered with `ModelChanged`.

If the NPU is full, the least recently used sessions on it are unloaded, one after the other, until there is enough
memory (`RemoteSession` requests this whenever it creates a session). A session with a running call is not unloaded.

A session with state (a profile, dynamic options, files that it writes) is never shared and never unloaded.

Thread-safe. The lock of the table is never held during anything slow; a model that is being created has a separate
lock, on which other requests for the same session wait.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from qnnbridge._host import Host
from qnnbridge._session import SessionRecipe
from qnnbridge._session.create import identify
from qnnbridge._session.remote_session import RemoteSession
from qnnbridge_daemon.accounts import Meter
from qnnbridge_daemon.fair_share import Cancellation
from qnnbridge_protocol.errors import BridgeError, CallError, Closed, ModelChanged
from qnnbridge_protocol.model_records import CacheSettings, NumbersReport
from qnnbridge_protocol.specs import SessionInfo, SessionSpec
from qnnbridge_protocol.visible import log_of

_log = log_of("qnnbridge.daemon")

# Seconds to wait until the NPU host has released a session. A host that needs longer is busy; the creation is
# retried anyway.
RELEASE_WAIT_S = 10.0
MOST_OCCUPANTS = 8

_OWN_STATE = ("enable_profiling", "optimized_model_filepath")
_OWN_ENTRIES = ("ep.context_enable", "ep.context_file_path", "ep.share_ep_contexts", "ep.stop_share_ep_contexts")

# Function that creates a session. Its argument can withdraw the creation.
Make = Callable[[Cancellation], RemoteSession]


def may_be_shared(spec: SessionSpec) -> bool:
    """Return whether the session is stateless and writes no files that belong to one client only."""
    if any(spec.options.get(name) for name in _OWN_STATE):
        return False
    if any(spec.config_entries.get(name) for name in _OWN_ENTRIES):
        return False
    return all(provider.options.get("profiling_level", "off") == "off" for provider in spec.providers)


class SharedModel:
    """One session and its users. Only one thread may run `open`; after that the object is thread-safe."""

    def __init__(self, key: str, label: str, *, shared: bool) -> None:
        self.key = key
        self.label = label
        self.shared = shared
        self.meter = Meter()
        # Held during the creation, which may take minutes. A thread that holds the table's lock never acquires this
        # lock.
        self.making = threading.Lock()
        self.remote: RemoteSession | None = None
        self.failed: BridgeError | None = None
        self.opened_ms = 0.0
        # Number of uses by client, so that the uses of a disconnected client are released together. Protected by
        # the lock of the table.
        self.owners: dict[object, int] = {}
        self.last_used = time.monotonic()
        # Whether the daemon has unloaded the session, and no call has used it since.
        self._unloaded = False
        # Withdraws the creation when no client needs it any more.
        self.stop = Cancellation()
        self._wanted_by: set[Cancellation] = set()
        self._lock = threading.Lock()
        self._calls = 0
        self._retired = False

    @property
    def info(self) -> SessionInfo:
        assert self.remote is not None
        return self.remote.info

    def record_numbers(self, found: NumbersReport) -> None:
        """Record that a client's call was compared with the CPU, so that later clients start with the result."""
        with self._lock:
            remote = self.remote
            if remote is None or found.state not in ("agrees", "differs"):
                return
            before = remote.numbers
            # Count calls here, because the host does not count them without a cache.
            compared = max(found.compared, 1, 0 if before is None else before.compared + (not found.kept))
            found = dataclasses.replace(found, calls=max(found.calls, 1), compared=compared)
            remote.numbers = dataclasses.replace(found if before is None else found.after(before), kept=True)

    @property
    def numbers(self) -> NumbersReport | None:
        """Latest result of the comparisons with the CPU; None if no call was compared."""
        remote = self.remote
        return None if remote is None else remote.numbers

    def numbers_of_next_client(self) -> NumbersReport | None:
        """Return the latest result of the comparisons for a new client. Count the client's new session as one call,
        as the host does."""
        with self._lock:
            remote = self.remote
            known = None if remote is None else remote.numbers
            if remote is not None and known is not None:
                remote.numbers = dataclasses.replace(known, calls=known.calls + 1)
            return known

    @property
    def loaded(self) -> bool:
        """Whether the running NPU host has the session loaded."""
        return self.remote is not None and self.remote.is_in_host

    @property
    def sessions(self) -> int:
        return sum(self.owners.values())

    @property
    def idle_s(self) -> float:
        """Seconds since the last call; 0 during a call."""
        return 0.0 if self._calls else time.monotonic() - self.last_used

    @contextlib.contextmanager
    def awaited(self, cancellation: Cancellation) -> Iterator[None]:
        """Count this client as waiting for the creation while the block runs."""

        def give_up() -> None:
            with self._lock:
                self._wanted_by.discard(cancellation)
                # Withdraw the creation when the last client that waits for it has given up.
                unwanted = not self._wanted_by
            if unwanted:
                self.stop.stop()

        with self._lock:
            self._wanted_by.add(cancellation)
        # `on_stop` calls the listener immediately if the cancellation has already happened, so no cancellation is
        # missed.
        remove = cancellation.on_stop(give_up)
        try:
            yield
        finally:
            remove()
            with self._lock:
                self._wanted_by.discard(cancellation)

    @contextlib.contextmanager
    def use(self, on_reload: Callable[[], None]) -> Iterator[RemoteSession]:
        """Keep the session loaded during a call. `on_reload` is called if the call recreates the session."""
        with self._lock:
            remote = self.remote
            if remote is None or self._retired:
                raise Closed("The session is closed.", fix="Create a new session.")
            self._calls += 1
            # Read and reset the flag in one step, so that only one of several simultaneous calls counts the reload.
            reload, self._unloaded = self._unloaded, False
        try:
            if reload:
                on_reload()
            yield remote
        finally:
            with self._lock:
                self._calls -= 1
                self.last_used = time.monotonic()
                # If the session was retired during calls, the last call closes it.
                close = self._retired and not self._calls
            if close:
                remote.close()

    def unload_if_idle(self, idle_s: float, wait_s: float = 0.0) -> bool:
        """Release the session in the NPU host if it had no call for `idle_s` seconds. Return whether it was
        released.

        `wait_s`: seconds to wait until the NPU host has released it.
        """
        with self._lock:
            if self.remote is None or self._calls or not (self.shared and self.loaded) or self._retired:
                return False
            if time.monotonic() - self.last_used < idle_s:
                return False
            # The decision needs the lock, because a call may begin at any moment; the request to the host does not.
            release = self.remote.unload()
            self._unloaded = True
        release(wait_s)  # a call in the meantime does not wait for the release, but recreates the session
        return True

    def retire(self) -> None:
        """Release the session permanently when its running calls have ended."""
        with self._lock:
            if self._retired:
                return
            self._retired = True
            close = not self._calls
        if close and self.remote is not None:
            self.remote.close()


class SharedSessions:
    """Table of the sessions by model and options. It counts the users of each session."""

    def __init__(self, keep_unused_s: float, keep_unused: int) -> None:
        self._lock = threading.Lock()
        self._by_key: dict[str, SharedModel] = {}
        self._private: set[SharedModel] = set()
        self._own_numbers = itertools.count(1)
        self._keep_unused_s = keep_unused_s
        self._keep_unused = keep_unused
        self.created = 0
        self.joined = 0
        self.unloads = 0
        self.reloads = 0

    def count_reload(self) -> None:
        """Count a call that recreates an unloaded session."""
        with self._lock:
            self.reloads += 1

    def make_room(self, error: BridgeError, deadline: float | None) -> bool:
        """Unload the least recently used session, because the NPU is full.

        Return whether a session was unloaded; if not, add to the error what occupies the NPU.
        """
        left_s = RELEASE_WAIT_S if deadline is None else deadline - time.monotonic()
        # Unload one session at a time: the creation is retried after each, so that no more is unloaded than
        # necessary.
        if self._unload_oldest(max(0.0, min(left_s, RELEASE_WAIT_S))):
            return True
        error.evidence = (*error.evidence, *self._occupants())
        return False

    def _unload_oldest(self, wait_s: float) -> bool:
        """Unload the least recently used session on the NPU. Return False if all of them have running calls."""
        on_npu = [model for model in self.models() if model.info.placement.qnn_nodes]
        for model in sorted(on_npu, key=lambda one: one.last_used):
            idle_s = model.idle_s
            if model.unload_if_idle(0.0, wait_s):
                with self._lock:
                    self.unloads += 1
                _log.info("%s, idle for %.0f s, was unloaded, because the NPU was full", model.label, idle_s)
                return True
        return False

    def _occupants(self) -> list[str]:
        """Return descriptions of the sessions on the NPU, the largest first, in one line each."""
        there = [model for model in self.models() if model.loaded and model.info.placement.qnn_nodes]
        there.sort(key=lambda model: -model.info.placement.npu_bytes)
        shown = [(one.label, one.info.placement.npu_bytes / 1e6, len(one.owners)) for one in there[:MOST_OCCUPANTS]]
        lines = [f"on the NPU: {label}, {size:.1f} MB, clients: {clients}" for label, size, clients in shown]
        return lines + ([f"and {len(there) - MOST_OCCUPANTS} more"] if len(there) > MOST_OCCUPANTS else [])

    def models(self) -> list[SharedModel]:
        """Return all open sessions."""
        with self._lock:
            models = [*self._by_key.values(), *self._private]
        return [model for model in models if model.remote is not None]

    def open(
        self, owner: object, key: str | None, label: str, make: Make, cancellation: Cancellation
    ) -> tuple[SharedModel, bool]:
        """Return a session for this client, and whether it existed already.

        A caller that waits for another caller's attempt gets the error of that attempt, unless the other caller's
        timeout or cancellation ended the attempt: then the waiting caller starts a new attempt.

        Args:
            key: ``None`` for a session that is not shared.
            cancellation: cancellation of the client's request. The creation continues as long as a client waits for
                it.

        Raises:
            BridgeError: the errors of `make`.
        """
        if key is None:
            return self._open_private(owner, label, make, cancellation), False
        while True:
            cancellation.check()
            with self._lock:
                model = self._by_key.get(key)
                if model is None:
                    model = self._by_key[key] = SharedModel(key, label, shared=True)
                # Register the client before the creation, so that the session is not retired while the client
                # waits.
                model.owners[owner] = model.owners.get(owner, 0) + 1
                ready = model.remote is not None
                self.joined += ready
            if ready:
                return model, True
            try:
                with model.awaited(cancellation):
                    found = self._make_or_join(model, make)
            except BaseException:
                self.release(owner, model)
                raise
            # If another caller's attempt failed by its timeout or cancellation, try again with a new entry.
            if found is not None:
                return model, found
            self.release(owner, model)

    def _make_or_join(self, model: SharedModel, make: Make) -> bool | None:
        """Return whether the session existed; ``None`` if another caller's attempt failed by its timeout or
        cancellation."""
        with model.making:
            if model.remote is not None:
                with self._lock:
                    self.joined += 1
                return True
            if model.failed is not None:
                # The error concerns only the other caller's request, so this caller tries again.
                if isinstance(model.failed, CallError):
                    return None
                # Raise a copy for each waiting caller, because one object would collect the tracebacks of all.
                raise model.failed.copy()
            try:
                self._make(model, make)
            except BaseException as error:
                model.failed = error if isinstance(error, BridgeError) else CallError(str(error))
                with self._lock:
                    # Remove only this entry, because a later caller may have replaced it.
                    if self._by_key.get(model.key) is model:
                        del self._by_key[model.key]
                raise
            return False

    def _open_private(self, owner: object, label: str, make: Make, cancellation: Cancellation) -> SharedModel:
        model = SharedModel(f"own-{next(self._own_numbers)}", label, shared=False)
        model.owners[owner] = 1
        with model.awaited(cancellation):
            self._make(model, make)
        with self._lock:
            self._private.add(model)
        return model

    def _make(self, model: SharedModel, make: Make) -> None:
        begin = time.monotonic()
        remote = make(model.stop)
        model.opened_ms = round((time.monotonic() - begin) * 1000, 3)
        model.last_used = time.monotonic()
        model.remote = remote
        with self._lock:
            self.created += 1

    def release(self, owner: object, model: SharedModel) -> None:
        """Remove one use of the model, because its client has closed the session or has disconnected."""
        with self._lock:
            left = model.owners.get(owner, 0) - 1
            if left > 0:
                model.owners[owner] = left
            else:
                model.owners.pop(owner, None)
            # If the creation failed, there is no session to keep or retire.
            if model.owners or model.remote is None:
                return
            self._private.discard(model)
            if model.shared:
                model.last_used = time.monotonic()
        if model.shared:
            self.tidy()
        else:
            model.retire()

    def tidy(self) -> float | None:
        """Retire sessions that have been unused for too long, or exceed `keep_unused`. Return the seconds until the
        next session must be retired."""
        now = time.monotonic()
        with self._lock:
            unused = [model for model in self._by_key.values() if not model.owners and model.remote is not None]
            unused.sort(key=lambda model: model.last_used, reverse=True)
            due = [m for m in unused if now - m.last_used >= self._keep_unused_s]
            # Add the oldest sessions beyond the number to keep: `unused` begins with the most recently used.
            due += [m for m in unused[self._keep_unused :] if m not in due]
            for model in due:
                del self._by_key[model.key]
            left = [model for model in unused if model not in due]
        for model in due:
            model.retire()
        return min((model.last_used + self._keep_unused_s - now for model in left), default=None)

    def unload_idle(self, idle_s: float) -> int:
        """Unload sessions without a call for this time. Return their number."""
        count = sum(model.unload_if_idle(idle_s) for model in self.models())
        with self._lock:
            self.unloads += count
        return count

    def close(self) -> None:
        """Release all sessions."""
        with self._lock:
            models = [*self._by_key.values(), *self._private]
            self._by_key.clear()
            self._private.clear()
        for model in models:
            model.retire()


def identified(
    host: Host, recipe: SessionRecipe, fingerprint: str | None, deadline: float | None, stop: Cancellation
) -> SessionRecipe:
    """Return the recipe with the identity of its model.

    The host identifies the model each time: only the host detects a changed file whose size and date are unchanged
    (`FileStamp`), and a session of the wrong model would silently return wrong results.

    Args:
        fingerprint: fingerprint from the client.

    Raises:
        ModelChanged: the model has another fingerprint.
        BridgeError: the model is unreadable.
    """
    # `identify` is fast for a model that the host has seen: a file is hashed again only if its stamp has changed.
    found = identify(host, recipe, deadline, stop).model
    if fingerprint is not None and fingerprint != found.fingerprint:
        raise ModelChanged(
            f"The contents of the model {found.label} have changed since its session was created.",
            fix="Put the original file back, or create a new session.",
            details={"path": recipe.spec.model_path},
        )
    return dataclasses.replace(recipe, identity=found)


def key_of(recipe: SessionRecipe, described: Any, buffers: tuple[Any, ...]) -> str:
    """Return a key that is equal for sessions that can be shared: same model, options and initializers.

    A session that does not use the cache has its own key, because its user may want to observe the compilation.
    `described` and `buffers` are the initializers as received.
    """
    without = isinstance(recipe.cache, CacheSettings) and recipe.cache.wanted is False
    # Retries, timeouts and the client's own identifiers are not part of the key: they belong to the
    # `ClientSession`.
    digest = hashlib.sha256(f"{recipe.fingerprint} {recipe.options_hash} {without}".encode())
    digest.update(repr(described).encode())
    for buffer in buffers:
        digest.update(buffer)
    return digest.hexdigest()[:32]
