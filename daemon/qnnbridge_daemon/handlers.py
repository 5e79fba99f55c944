"""The daemon's handlers of the protocol's operations. `docs/dev/protocol.md` lists them and their fields.

Each client has its own `BrokerHandlers`, which is released together with the client's sessions. Thread-safe.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from qnnbridge._session import SessionRecipe
from qnnbridge._session.remote_session import RemoteSession
from qnnbridge._supervision.host_process import OnDeadline, deadline_after
from qnnbridge._supervision.retries import CallLimits
from qnnbridge_daemon.client_sessions import (
    BoundSession,
    ClientHoldings,
    ClientObjects,
    ClientSession,
    DaemonServices,
)
from qnnbridge_daemon.fair_share import Cancellation
from qnnbridge_daemon.shared_sessions import identified, key_of, may_be_shared
from qnnbridge_host.fastpath import BoundRuns
from qnnbridge_host.request.in_flight import Answer, Request
from qnnbridge_protocol.errors import BridgeError, Cancelled, Closed, HostNotFound, UnknownOperation, desync
from qnnbridge_protocol.model_records import CacheSettings, NumbersReport
from qnnbridge_protocol.specs import SessionSpec, asks_to_terminate

DEFAULT_RETRY = 1


class BrokerHandlers:
    """Handlers of the operations that one client requests."""

    def __init__(self, broker: DaemonServices, client: ClientHoldings) -> None:
        self._broker = broker
        self._client = client
        self._objects = ClientObjects(broker, client)
        self._lock = threading.Lock()
        self._sessions: dict[int, ClientSession] = {}
        # Numbers of sessions that were closed before their creation ended, because a client sends session.close for
        # an abandoned creation.
        self._closed_early: set[int] = set()
        self._making: set[int] = set()
        self._closed = False
        self.operations: dict[str, Callable[[Request, Cancellation], Answer]] = {
            "host.info": self._forward_to_host,
            "host.stats": self._forward_to_host,
            **dict.fromkeys(("model.identify", "model.choose", "model.samples"), self._forward_model),
            "model.verify": self._verify,
            "session.create": self._create,
            "session.run": self._run,
            "session.close": self._close_session,
            "session.assignment": self._ask_session,
            "session.end_profiling": self._ask_session,
            "session.set_ep_dynamic_options": self._set_ep_dynamic_options,
            **self._objects.operations,
            "daemon.status": self._status,
            "daemon.stop": self._stop,
            "daemon.restart_host": self._restart_host,
        }

    @property
    def sessions(self) -> list[ClientSession]:
        """Open sessions."""
        with self._lock:
            return list(self._sessions.values())

    def start(self, declare_phase: Callable[..., None]) -> None:
        """Do nothing, because the NPU host loads all libraries."""

    def lane_of(self, request: Request) -> str | None:
        """Return None: the daemon has no lanes. `FairShare` orders the calls here, and the NPU host has lanes."""
        return None

    def handle(self, request: Request, _enter: Callable[[str], None]) -> Answer:
        """Handle a request. Do not report phases: no native code runs here, and a client that does not read the
        frame would block a thread with a slot."""
        operation = self.operations.get(str(request.op))
        if operation is None:
            raise _unknown(request.op)
        # CANCEL frames reach the request through `stopper`. The check of `withdrawn` after the assignment handles
        # an earlier CANCEL.
        request.stopper = cancellation = Cancellation()
        if request.withdrawn:  # a CANCEL came before the assignment
            cancellation.stop()
        try:
            return operation(request, cancellation)
        except HostNotFound as error:
            raise _in_the_daemon(error) from None
        except BridgeError as error:
            # Convert the error, because the client would treat this daemon as a host to restart. The daemon itself
            # restarts the NPU host.
            error.details.pop("host_must_restart", None)
            raise

    def find(self, session: int) -> tuple[BoundRuns, str | None]:
        """Return the session for the client's fast channels."""
        return BoundSession(self._session(session)), None

    def close(self) -> None:
        """Release all resources of a disconnected client."""
        with self._lock:
            self._closed = True
            sessions = list(self._sessions.values())
            self._sessions.clear()
        for session in sessions:
            session.close()
        self._objects.close()

    # --- operations on the host and the daemon ---

    def _forward_to_host(self, request: Request, _cancellation: Cancellation) -> Answer:
        return self._broker.host.call({"op": request.op}).header, ()

    def _forward_model(self, request: Request, cancellation: Cancellation) -> Answer:
        # Count the client's data while it is in the daemon's memory, until the buffers are released.
        size = _size(request.buffers)
        self._client.account.take(size)
        try:
            frame = self._broker.host.call(dict(request.header), None, request.buffers, cancellation)
        finally:
            # The buffers are released before the account is credited, so that the limit is never exceeded.
            request.release()
            self._client.account.give_back(size)
        return frame.header, frame.buffers

    def _verify(self, request: Request, cancellation: Cancellation) -> Answer:
        # Store the report even if this client closes its session in the meantime, because other clients of the
        # shared session need it.
        with self._lock:
            session = self._sessions.get(request.header.get("session") or 0)
        header, buffers = self._forward_model(request, cancellation)
        # Skip a call that runs in parts over several sessions, because its verdict does not apply to one session
        # alone.
        if session is not None and not request.header.get("parts"):
            session.model.record_numbers(NumbersReport.from_wire(header["numbers"]))
        return header, buffers

    def _status(self, _request: Request, _cancellation: Cancellation) -> Answer:
        return {"status": self._broker.status()}, ()

    def _stop(self, request: Request, _cancellation: Cancellation) -> Answer:
        drain = request.header.get("drain_s")
        self._broker.request_stop(float(drain) if isinstance(drain, (int, float)) else None)
        return {}, ()

    def _restart_host(self, _request: Request, _cancellation: Cancellation) -> Answer:
        self._broker.host.restart()
        return {}, ()

    # --- operations on sessions ---

    def _create(self, request: Request, cancellation: Cancellation) -> Answer:
        account = self._client.account
        # Count the session before its creation, so that simultaneous creations cannot exceed the limit together.
        account.open_session()
        with self._lock:
            self._making.add(request.id)
        try:
            session, shared = self._open(request, cancellation)
        except BaseException:
            account.close_session()
            raise
        finally:
            with self._lock:
                self._making.discard(request.id)
        with self._lock:
            # The client may have closed the session without waiting for the answer, or may have disconnected. Check
            # and entry are under one lock: a close request either was recorded before, or finds the session in the
            # table.
            gone = self._closed or request.id in self._closed_early or cancellation.terminate
            self._closed_early.discard(request.id)
            if not gone:
                self._sessions[request.id] = session
        if gone:
            session.close()
            raise Cancelled("The creation of the session was cancelled.")
        remote = session.model.remote
        assert remote is not None
        assert remote.recipe.identity is not None
        left_out = {"disabled_optimizers": list(remote.disabled_optimizers)} if remote.disabled_optimizers else {}
        numbers = session.model.numbers_of_next_client()
        return {
            **left_out,
            "session": request.id,
            "info": remote.info.to_wire(),
            "model": remote.recipe.identity.to_wire(),
            "cache": remote.cache_status.to_wire(),
            "blame": remote.recipe.fingerprint,
            "shared": shared,
            "fixed": list(remote.fixed),
            "fix": None if remote.fix is None else remote.fix.to_wire(),
            "numbers": None if numbers is None else numbers.to_wire(),
        }, ()

    def _open(self, request: Request, cancellation: Cancellation) -> tuple[ClientSession, bool]:
        header = request.header
        try:
            spec = SessionSpec.from_wire(header["spec"])
            described = list(header.get("initializers") or [])
            dynamic = dict(header.get("dynamic") or {})
            budget, fingerprint = header.get("budget_s"), header.get("fingerprint")
            retry = _retries(header.get("retry"), DEFAULT_RETRY)
            timeout_s = None if budget is None else float(budget)
            kill_after_s = header.get("kill_after_s")
            # Ignore the client's on_deadline="kill". Only the daemon may end a host that other clients use, because
            # it repeats their calls.
            on_deadline: OnDeadline = "raise" if kill_after_s is None else "kill"
            timeout_s = timeout_s if kill_after_s is None else float(kill_after_s)
            recipe, tensors = _recipe(spec, described, request)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise desync(f"session.create without a valid description ({error})") from None
        # Identify the model for the key, because one model may have two paths, and the file at a path may change.
        recipe = identified(self._broker.host, recipe, fingerprint, deadline_after(timeout_s), cancellation)

        def make(stop: Cancellation) -> RemoteSession:
            remote = self._remote(recipe, retry)
            remote.open(timeout_s, on_deadline, stop)
            if dynamic:
                try:
                    remote.set_ep_dynamic_options(dynamic)
                except BaseException:
                    remote.close()
                    raise
            return remote

        shareable = may_be_shared(spec) and not dynamic and recipe.seed is None
        # Do not share a session with a seed: its random numbers would be distributed over several applications.
        key = key_of(recipe, described, tensors) if shareable else None
        model, shared = self._broker.sessions.open(self._client, key, recipe.label, make, cancellation)
        return ClientSession(model, retry, self._broker, self._client), shared

    def _run(self, request: Request, cancellation: Cancellation) -> Answer:
        header = request.header
        session = self._session(header.get("session"))
        try:
            forwarded = {"op": "session.run", "inputs": header["inputs"], "outputs": header.get("outputs")}
            if header.get("options") is not None:
                forwarded["options"] = dict(header["options"])
            # The number of retries in the request overrides the session's number.
            retry = _retries(header.get("retry"), session.retry)
            kill_after_s = header.get("kill_after_s")
            kill_at = None if kill_after_s is None else time.monotonic() + float(kill_after_s)
        except (LookupError, TypeError, ValueError) as error:
            raise desync(f"session.run without a valid description ({error})") from None
        account = self._client.account
        size = _size(request.buffers)
        account.take(size)
        try:
            with session.call(cancellation, size, waits=not asks_to_terminate(header)) as remote:
                left_s = None if kill_at is None else round(max(0.0, kill_at - time.monotonic()), 3)
                limits = CallLimits(left_s, retry, "raise" if kill_at is None else "kill")
                # Forward the tensors as received: decoding them would need numpy.
                frame = remote.forward(forwarded, request.buffers, limits, stop=cancellation)
        finally:
            request.release()
            account.give_back(size)
        # The call's slot is already free. Count the answer as the client's memory until the client has read it.
        answer = _size(frame.buffers)
        account.take(answer)
        request.after = lambda: account.give_back(answer)
        return frame.header, frame.buffers

    def _close_session(self, request: Request, _cancellation: Cancellation) -> Answer:
        number = request.header.get("session")
        with self._lock:
            session = self._sessions.pop(number, None) if type(number) is int else None
            if session is None and number in self._making:
                self._closed_early.add(number)
        if session is not None:
            session.close()
        return {}, ()

    def _ask_session(self, request: Request, cancellation: Cancellation) -> Answer:
        session = self._session(request.header.get("session"))
        with session.call(cancellation, 0) as remote:
            if request.op == "session.assignment":
                return {"subgraphs": remote.assignment()}, ()
            return {"file": remote.end_profiling()}, ()

    def _set_ep_dynamic_options(self, request: Request, cancellation: Cancellation) -> Answer:
        session = self._session(request.header.get("session"))
        options = dict(request.header["options"])
        before = session.model.remote
        assert before is not None
        recipe = before.recipe

        def make(stop: Cancellation) -> RemoteSession:
            remote = self._remote(recipe, session.retry)
            remote.open(None, "raise", stop)
            return remote

        # Use a private session, because other clients of the shared session must not get this client's options.
        session.go_private(make, cancellation)
        with session.call(cancellation, 0) as remote:
            remote.set_ep_dynamic_options(options)
        return {}, ()

    def _remote(self, recipe: SessionRecipe, retry: int) -> RemoteSession:
        broker = self._broker
        return RemoteSession(broker.host, recipe, retry=retry, timeout_s=None, make_room=broker.sessions.make_room)

    def _session(self, number: Any) -> ClientSession:
        with self._lock:
            session = self._sessions.get(number) if type(number) is int else None
        if session is None:
            raise Closed("The session is closed.", fix="Create a new session.")
        return session


def _recipe(spec: SessionSpec, described: list[Any], request: Request) -> tuple[SessionRecipe, tuple[Any, ...]]:
    """Return the session's recipe, and the tensors as received."""
    header = request.header
    # All buffers are tensors, except the last one if the model is sent as bytes.
    count = len(request.buffers) - (spec.model_path is None)
    tensors, data = request.buffers[:count], request.buffers[count:]
    cache, seed = header.get("cache"), header.get("seed")
    check = header.get("context_check")
    recipe = SessionRecipe(
        spec,
        bytes(data[0]) if spec.model_path is None else None,
        _decode(described, tensors),
        CacheSettings.from_wire(cache) if cache is not None else False,
        None if seed is None else int(seed),
        str(header.get("folder") or os.getcwd()),
        context_check=None if check is None else str(check),
    )
    return recipe, tensors


def _size(buffers: tuple[Any, ...]) -> int:
    return sum(memoryview(buffer).nbytes for buffer in buffers)


def _retries(given: Any, otherwise: int) -> int:
    return otherwise if given is None else max(0, int(given))


def _decode(described: list[Any], buffers: tuple[Any, ...]) -> tuple[Any, ...]:
    if not described and not buffers:
        return ()
    from qnnbridge_protocol.values import decode_all

    return tuple(decode_all(described, buffers))


def _in_the_daemon(error: HostNotFound) -> BridgeError:
    """Return a copy of the error whose message states that it concerns the daemon's environment variables and
    interpreter, not the client's."""
    own = error.copy()
    own.evidence = (*own.evidence, f"searched for by the daemon: process {os.getpid()}, {sys.executable}")
    own.fix = (
        f"{own.fix or 'See the configuration of the daemon.'} The daemon uses the environment variables with "
        "which it was started: after changing one of them, run qnnbridge host restart --daemon."
    )
    return own


def _unknown(operation: object) -> UnknownOperation:
    if operation == "model.compile":
        return UnknownOperation(
            "The daemon does not compile models.",
            cause="Compiling a model may crash the process, and the daemon serves several applications.",
            fix="Compile with qnnbridge.compile() or `qnnbridge compile`, which start a separate process.",
        )
    return UnknownOperation(
        f"This daemon does not support the operation {operation!r}.",
        fix="Upgrade qnnbridge where the daemon runs, and restart it: `qnnbridge host restart --daemon`.",
    )
