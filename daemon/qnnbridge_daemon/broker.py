"""The broker: serves applications as a host does, and uses one `qnnbridge.Host` for all of them.

Threads: each client has a thread that calls `serve`, which returns when the client disconnects; one thread unloads
idle models. Everything else is thread-safe.
"""

from __future__ import annotations

import gc
import itertools
import os
import sys
import sysconfig
import threading
import time
from typing import TYPE_CHECKING, Any

from qnnbridge._host import Host
from qnnbridge_daemon.accounts import BrokerSettings, Meter
from qnnbridge_daemon.client_sessions import GoneSlabs
from qnnbridge_daemon.clients import Client
from qnnbridge_daemon.fair_share import FairShare
from qnnbridge_daemon.listener import ClientEnds
from qnnbridge_daemon.shared_sessions import SharedSessions
from qnnbridge_os import sharing
from qnnbridge_protocol import __version__
from qnnbridge_protocol.connection import (
    CALL_BACK_FEATURE,
    DAEMON_FEATURE,
    FEATURES,
    LEAVE_FEATURE,
    LEAVING,
    MAKE_WAY_FEATURE,
    SHARING_FEATURES,
    Hello,
)
from qnnbridge_protocol.errors import VersionMismatch
from qnnbridge_protocol.process_names import this_system
from qnnbridge_protocol.visible import log_of

if TYPE_CHECKING:
    from qnnbridge_daemon.shared_sessions import SharedModel
    from qnnbridge_protocol.specs import Placement


# Seconds that `stop` waits for running calls.
DRAIN_S = 10.0

# Maximum of any timeout that a client requests.
LONGEST_DRAIN_S = 3600.0

# Seconds that `stop` waits, after the last call, until the answers are written. A client that does not read its
# answers cannot delay the end longer.
ANSWERS_S = 2.0

# Interval at which `stop` disconnects clients whose only open calls arrived too late to be started.
LOOK_S = 0.1

TIDY_INTERVAL_S = 15.0
# Shortest pause between two rounds of maintenance.
SHORTEST_PAUSE_S = 0.1

# Names of machine types as hosts report them.
_MACHINES = {"amd64": "x64", "arm64": "ARM64"}

_log = log_of("qnnbridge.daemon")


class Broker:
    """Serves all clients with one `Host`. The caller that created the host closes the host after `stop`."""

    def __init__(self, host: Host, settings: BrokerSettings | None = None) -> None:
        self.host = host
        self.settings = settings = settings or BrokerSettings()
        self.fair_share = FairShare(settings.slots, settings.limits.queued)
        self.sessions = SharedSessions(settings.keep_unused_s, settings.keep_unused)
        self.gone_slabs = GoneSlabs(host)
        self.meter = Meter()
        self.started = time.monotonic()
        # Set when a client requests the end of the daemon; the main thread waits for it and calls `stop`.
        self.stop_requested = threading.Event()
        self.drain_s = DRAIN_S
        self.clients_served = 0
        self._numbers = itertools.count(1)
        # Lock of the table of clients. A thread that needs this lock and the lock of the fair share acquires this
        # lock first.
        self._lock = threading.Condition()
        self._clients: dict[int, Client] = {}
        self._last_busy = time.monotonic()
        # Whether a client of another version requested the end of the daemon. The daemon then ends as soon as this
        # client has received its answer.
        self._ends_for_client = False
        self._stopped = threading.Event()
        self._disconnected = threading.Event()
        self._tidier = threading.Thread(target=self._tidy, name="qnnbridge tidy", daemon=True)
        # The broker itself starts only this thread. Each client has a separate thread, which calls `serve`.
        self._tidier.start()

    # --- clients ---

    def serve(self, ends: ClientEnds) -> None:
        """Serve one client until it disconnects. From here on this method owns the descriptors."""
        client = self._admit(ends)
        if client is None:
            return
        try:
            client.serve()
        finally:
            with self._lock:
                del self._clients[client.number]
                self._last_busy = time.monotonic()
                self._lock.notify_all()
            self._disconnected.set()
            if self._ends_for_client:  # the client that requested the end has received its answer
                self.request_stop(None)

    def _admit(self, ends: ClientEnds) -> Client | None:
        """Return the new client. Close the client's streams and return ``None`` if no descriptors are free or the
        daemon is ending."""
        try:
            with self._lock:
                # `stop` uses the same lock, so no client is added after `stop` has read the table.
                if not self._stopped.is_set():
                    client = Client(self, next(self._numbers), ends)
                    self._clients[client.number] = client
                    self.clients_served += 1
                    return client
        except OSError as error:  # no descriptor is free
            _log.warning("%s (pid %d) cannot be served: %s", ends.name or "a client", ends.pid, error)
        # Close the stream of a client that cannot be served, so that the client does not wait.
        os.close(ends.in_fd)
        os.close(ends.out_fd)
        return None

    @property
    def clients(self) -> list[Client]:
        """Connected clients, in the order of their connection."""
        with self._lock:
            return list(self._clients.values())

    @property
    def idle_for_s(self) -> float:
        """Seconds without a connected client; 0 if one is connected."""
        with self._lock:
            return 0.0 if self._clients else time.monotonic() - self._last_busy

    def introduction(self) -> Hello:
        """Return the HELLO for a client. It describes this process and the versions of the running NPU host."""
        process = self.host.supervisor.running
        peer = process.peer if process is not None else None
        # Clients need the machine type of the NPU host. Until a host has reported it, use the daemon's own type.
        machine = sysconfig.get_platform().rpartition("-")[2]
        return Hello(
            # The daemon calls no functions of applications: a function that hangs would occupy a slot of the NPU
            # host.
            features=(FEATURES if sharing.AVAILABLE else FEATURES - SHARING_FEATURES) - {CALL_BACK_FEATURE}
            | {DAEMON_FEATURE},
            pid=os.getpid(),
            machine=peer.machine if peer is not None else _MACHINES.get(machine, machine),
            python="{}.{}.{}".format(*sys.version_info[:3]),
            executable=sys.executable,
            platform=sys.platform,
            system=this_system(),
            versions=process.versions if process is not None else {},
        )

    def on_mismatch(self, error: VersionMismatch, client: Hello) -> None:
        """End the daemon if a client of another version requests it.

        After an upgrade of qnnbridge the daemon of the previous release may still run, and can exchange only HELLO
        with clients of the new release.
        """
        # An older daemon ends for a newer client, but a newer daemon does not end for an older client: otherwise
        # two versions would end each other in turn.
        older = error.details.get("older") == DAEMON_FEATURE
        # A daemon that serves a client does not end; the requesting client gets `VersionMismatch`, which contains
        # both versions.
        idle = not any(one.greeted for one in self.clients)
        granted = {LEAVE_FEATURE, MAKE_WAY_FEATURE} if older and idle else {LEAVE_FEATURE}
        for feature in client.features & granted:
            error.details[LEAVING] = feature
            self._ends_for_client = True
            _log.info("qnnbridge %s requests the end of the daemon: %s", client.qnnbridge, feature)

    def status(self) -> dict[str, Any]:
        """Return the answer to `daemon.status`; see docs/dev/protocol.md."""
        clients = [client.status() for client in self.clients]
        shared_bytes = sum(client["shared_bytes"] for client in clients)
        share = self.fair_share
        return {
            "daemon": _daemon(self),
            "host": _host(self),
            "clients": clients,
            "models": [_model(model) for model in self.sessions.models()],
            "queue": {"slots": share.slots, "running": share.running, "waiting": share.waiting},
            "memory": {
                "daemon_rss_bytes": _rss(os.getpid()),
                "shared_bytes": shared_bytes + self.host.stats.shared_bytes,
            },
            "totals": _totals(self),
        }

    # --- the end ---

    def request_stop(self, drain_s: float | None) -> None:
        """Record a client's request to end the daemon."""
        if drain_s is not None:
            self.drain_s = min(max(0.0, drain_s), LONGEST_DRAIN_S)
        self.stop_requested.set()

    def stop(self, timeout_s: float | None = None) -> None:
        """Refuse new clients, wait up to `timeout_s` for running calls, and disconnect all clients. Idempotent."""
        until = time.monotonic() + (self.drain_s if timeout_s is None else timeout_s)
        with self._lock:
            self._stopped.set()
        # First stop starting calls, then wait for running calls and their answers, then end clients and sessions.
        self.fair_share.close()  # start no more calls; otherwise a client that keeps calling would delay the end
        while not self.fair_share.wait_idle(min(until, time.monotonic() + LOOK_S)) and time.monotonic() < until:
            self._release_late()
        # Wait for the last answers: a slot becomes free before its answer is written.
        answered_by = min(until, time.monotonic() + ANSWERS_S)
        for client in self.clients:
            while not client.answered and (left_s := answered_by - time.monotonic()) > 0:
                client.drain(min(left_s, LOOK_S))
        for client in self.clients:
            client.end()
        with self._lock:
            self._lock.wait_for(lambda: not self._clients, max(1.0, until - time.monotonic()))
        # Close the sessions after the clients, because handlers of clients also release sessions.
        self.sessions.close()
        self._disconnected.set()
        self._tidier.join(1.0)

    def _release_late(self) -> None:
        """Disconnect clients whose only open calls arrived too late to be started. They can repeat these calls with
        another daemon, and need not wait for other clients' calls."""
        for client in self.clients:
            if client.queue.late and client.answered:
                client.end()

    # --- idle models and silent clients ---

    def _tidy(self) -> None:
        # `_ended` changes if the NPU host is replaced or a client disconnects, which can leave reference cycles.
        seen, collect = self._ended(), 0
        while not self._stopped.is_set():
            next_s = self.sessions.tidy()
            if self.settings.idle_unload_s > 0:
                self.sessions.unload_idle(self.settings.idle_unload_s)
                next_s = min(next_s or TIDY_INTERVAL_S, self.settings.idle_unload_s)
            self._disconnect_silent()
            if (gone := self._ended()) != seen:
                # Objects of a dead host or a disconnected client have reference cycles (tracebacks of errors that
                # were passed on) and refer to shared memory. In an idle process the garbage collector may never
                # run. Collect twice, because some of these errors may still be in use during the first collection.
                seen, collect = gone, 2
            if collect:
                collect -= 1
                gc.collect()
            self.gone_slabs.settle()
            # Find the earliest time to retire a session, unload an idle model or disconnect a silent client.
            next_s = min(next_s or TIDY_INTERVAL_S, self.settings.greeting_s)
            self._disconnected.wait(min(TIDY_INTERVAL_S, max(SHORTEST_PAUSE_S, next_s)))
            # Clear the event after a short wait, so that many simultaneous disconnections need only one round.
            if self._disconnected.is_set():
                self._stopped.wait(SHORTEST_PAUSE_S)
                self._disconnected.clear()

    def _disconnect_silent(self) -> None:
        """Close connections without HELLO, because they would prevent an idle daemon from ending."""
        for client in self.clients:
            if client.silent_s > self.settings.greeting_s:
                _log.warning("%s has sent no HELLO for %g s: disconnected", client.label, self.settings.greeting_s)
                client.end()

    def _ended(self) -> tuple[int, int]:
        """Return the generation of the NPU host, and the number of clients that have disconnected."""
        with self._lock:
            return self.host.supervisor.counters.generation, self.clients_served - len(self._clients)


def _daemon(broker: Broker) -> dict[str, Any]:
    settings = broker.settings
    return {
        "pid": os.getpid(),
        "qnnbridge": __version__,
        "python": "{}.{}.{}".format(*sys.version_info[:3]),
        "uptime_s": round(time.monotonic() - broker.started, 1),
        "instance": settings.instance,
        "endpoint": settings.endpoint,
        "log_file": settings.log_file,
        "idle_exit_s": settings.idle_exit_s,
        "idle_unload_s": settings.idle_unload_s,
    }


def _host(broker: Broker) -> dict[str, Any]:
    stats = broker.host.stats
    process = broker.host.supervisor.running
    peer = process.peer if process is not None else None
    # Use `real_pid`: in a virtual environment on Windows the started process is only a launcher.
    pid = process.real_pid if process is not None else None
    return {
        "running": process is not None,
        "pid": pid,
        "generation": stats.generation,
        "machine": peer.machine if peer is not None else None,
        "versions": process.versions if process is not None else {},
        "simulator": _simulator(broker),
        "crashes": stats.crashes,
        "planned_restarts": stats.planned_restarts,
        "rss_bytes": _rss(pid) if pid is not None else 0,
        "last_crash": stats.last_crash,
    }


def _simulator(broker: Broker) -> bool | None:
    """Return whether a session runs on the simulator; ``None`` before a session has reported it."""
    simulated = [m.info.placement.simulator for m in broker.sessions.models() if m.info.placement.qnn_nodes]
    return any(simulated) if simulated else None


def _model(model: SharedModel) -> dict[str, Any]:
    placement, numbers = model.info.placement, model.numbers
    return {
        "key": model.key,
        "label": model.label,
        "runs_on": runs_on(placement),
        "qnn_nodes": placement.qnn_nodes,
        "cpu_nodes": placement.cpu_nodes,
        "numbers": "" if numbers is None else numbers.state,
        "compared": 0 if numbers is None else numbers.compared,
        "clients": len(model.owners),
        "sessions": model.sessions,
        "loaded": model.loaded,
        "npu_bytes": placement.npu_bytes if model.loaded else 0,
        "idle_s": round(model.idle_s, 1),
        "calls": model.meter.calls,
        "errors": model.meter.errors,
        "calls_per_s": model.meter.calls_per_s,
        "latency_ms": model.meter.latency_ms(),
        "opened_ms": model.opened_ms,
    }


def runs_on(placement: Placement) -> str:
    if placement.qnn_nodes and placement.cpu_nodes:
        return "QNN+CPU"
    return "QNN" if placement.qnn_nodes else "CPU"


def _totals(broker: Broker) -> dict[str, Any]:
    sessions, meter = broker.sessions, broker.meter
    return {
        "clients": broker.clients_served,
        "sessions_created": sessions.created,
        "sessions_shared": sessions.joined,
        "calls": meter.calls,
        "errors": meter.errors,
        "busy": meter.busy,
        "calls_per_s": meter.calls_per_s,
        "unloads": sessions.unloads,
        "reloads": sessions.reloads,
        "latency_s": meter.latency_s(),
    }


def _rss(pid: int) -> int:
    import psutil

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0
