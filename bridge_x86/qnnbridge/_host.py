"""`Host`: the application's interface to the process that runs its sessions, and the choice of a session's host."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import math
import os
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sized
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from qnnbridge._daemon import START_TIMEOUT_S, DaemonAccess
from qnnbridge._diagnosis import CrashReports
from qnnbridge._fastpath import default_sharing
from qnnbridge._launch import HostInterpreter, engine_setting, find_host, host_command, host_environment
from qnnbridge._supervision.blame import Blame, IsolationLock, Quarantine
from qnnbridge._supervision.deaths import DeathHandler, Investigator
from qnnbridge._supervision.host_process import HostProcess, Launch, RepeatWindow, deadline_after, seconds_left
from qnnbridge._supervision.restart_policy import RecycleAfter, Recycler, RestartPolicy
from qnnbridge._supervision.retries import CallLimits, Death, Policy, survive
from qnnbridge._supervision.supervisor import Releases, Supervisor, call_if_alive
from qnnbridge._threads import Terminable, TerminateRelay, refuse_at_the_end, silence_daemon_threads
from qnnbridge._transport.channel import CallContext, CallTimedOut, ChannelFailed, ChannelRetired
from qnnbridge_os.forks import renew_in_forks
from qnnbridge_os.native import Lock
from qnnbridge_os.processes import default_spawner
from qnnbridge_os.shield import when_gone
from qnnbridge_protocol.errors import BridgeError, Closed, DeadlineExceeded, OptionError
from qnnbridge_protocol.frames import Frame
from qnnbridge_protocol.limits import Limits
from qnnbridge_protocol.model_records import EntryFault
from qnnbridge_protocol.process_names import is_frozen
from qnnbridge_protocol.shown import Shown
from qnnbridge_protocol.specs import HostInfo

if TYPE_CHECKING:
    from qnnbridge._daemon import DaemonAccess
    from qnnbridge._daemon.connector import DaemonConnector
    from qnnbridge._fastpath.memory import SharedArrays
    from qnnbridge._threads import CalledFunction, LogFunction
    from qnnbridge_protocol.settings import EngineName
    from qnnbridge_protocol.shown import Fact


NO_FUNCTIONS: Mapping[str, CalledFunction] = MappingProxyType({})
INFO_TIMEOUT_S = 60.0


@dataclasses.dataclass
class CacheCounters:
    """Counters of sessions that used the cache of compiled models; see `HostStats`."""

    hits: int = 0
    misses: int = 0
    set_aside: int = 0
    problem: str | None = None


@dataclasses.dataclass(frozen=True)
class HostStats:
    """Counters of events since the `Host` was created.

    generation: number of starts of the host. crashes: number of times that the host ended unexpectedly.
    retried_calls: calls that were repeated in the next generation. cpu_fallbacks: sessions that requested QNN but
    run on the CPU, because the application allowed this. last_crash: description of the last crash. shared_calls:
    calls that took the fast path (all others use the connection). channels: open fast channels. shared_bytes:
    memory shared with the host. shared_memory: "available", or the reason why it is not. results_copied: results of
    ``borrow=True`` that were copied, because the application holds too many already. arrays_copied: arrays of
    ``empty_input`` and ``empty_output`` that are in ordinary memory, because no shared memory was left. objects:
    objects that this process has created in the host and not released. cache_hits: sessions created from a compiled
    model in the cache. cache_misses: sessions whose model had to be compiled and was then stored in the cache.
    cache_set_aside: cache entries that were removed because they were damaged or crashed the host. cache_problem:
    reason why the cache cannot be used.
    """

    generation: int
    running: bool
    crashes: int
    planned_restarts: int
    retried_calls: int
    cpu_fallbacks: int
    calls_in_flight: int
    last_crash: str | None
    shared_calls: int = 0
    channels: int = 0
    shared_bytes: int = 0
    shared_memory: str = ""
    results_copied: int = 0
    arrays_copied: int = 0
    objects: int = 0
    cache_hits: int = 0
    cache_misses: int = 0
    cache_set_aside: int = 0
    cache_problem: str | None = None


class Host(Shown):
    """A host process that sessions and threads share. The process starts at the first use, or by `start`.

    Args:
        python: the ARM64 interpreter that has ``qnnbridge[host]``. Default: ``QNNBRIDGE_HOST_PYTHON``, then the
            configuration file, then on Windows an ARM64 Python from the registry, then the running interpreter.
        env: environment variables to add to or replace in the host's environment.
        cwd: the host's working folder; default: the application's.
        start_timeout: time limit in seconds until the host sends its HELLO message. The same limit applies again
            until the host has loaded ONNX Runtime and QNN.
        limits: maximum sizes of messages.
        restart: when and how often a crashed host is started again.
        recycle: limits at which a new process replaces the host, between two calls; default: never.
        shared_memory: whether repeated calls pass their tensors in memory that both processes have mapped. Default:
            yes, unless ``QNNBRIDGE_SHARED_MEMORY=0``. Without shared memory all calls use the connection (see
            `stats`).
        engine: where the host takes QNN from: "wheel" (onnxruntime-qnn), "windowsml" (the catalogue of Windows),
            "folder", or "auto". Default: ``QNNBRIDGE_ENGINE``, then the configuration file, then "auto".
        ep_path: path of an execution provider's library or of its folder. Default: ``QNNBRIDGE_EP_PATH``, then the
            configuration file.
        spin: whether callers poll for the answer for 25 microseconds before they sleep. Polling is faster if the
            host runs on another core, but uses processor time.

    The first use raises `HostNotFound` if no interpreter can run the host.
    """

    def __init__(
        self,
        python: str | os.PathLike[str] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        start_timeout: float = START_TIMEOUT_S,
        limits: Limits | None = None,
        restart: RestartPolicy | None = None,
        recycle: RecycleAfter | None = None,
        shared_memory: bool | None = None,
        spin: bool = False,
        engine: EngineName | None = None,
        ep_path: str | os.PathLike[str] | None = None,
        _command: list[str] | None = None,
        _daemon: DaemonAccess | None = None,
    ) -> None:
        self._python = python
        self._env = dict(env or {})
        # Pass the arguments as variables in the host's environment, so that only `engine_setting` has to decide
        # between arguments, variables and the configuration file. `env=` takes precedence.
        if engine is not None or ep_path is not None:
            from qnnbridge_protocol.settings import engine_variables

            self._env = {**engine_variables(engine, ep_path), **self._env}
        self._cwd = os.fspath(cwd) if cwd is not None else None
        self._start_timeout = start_timeout
        self._limits = limits or Limits()
        self._command = _command
        self._daemon = _daemon
        self._restart = restart
        self._recycle = recycle
        self._shared_memory = shared_memory
        self._spin = spin
        # The interpreter that was chosen to run the host; ``None`` before the first start.
        self.interpreter: HostInterpreter | None = None
        # Function that receives the log lines that ONNX Runtime writes during this process's calls.
        self.log_function: LogFunction | None = None
        # Objects (kind, arguments) that each new host process creates before its first session, and the last
        # generation that has created them.
        self._remembered: list[tuple[str, Mapping[str, Any]]] = []
        self._remembered_in = 0
        # Supervisors that were inherited from parent processes. This process must not end their hosts.
        self._of_parents: list[Supervisor] = []
        self._info: HostInfo | None = None
        self._begin(0)
        _open_hosts.add(self)
        renew_in_forks(self)

    def _begin(self, generation: int) -> None:
        """Create all objects that a forked child must not share with its parent. The next host is generation number
        `generation` + 1."""
        self._connector: DaemonConnector | None = None
        if self._daemon is not None:
            from qnnbridge._daemon.connector import DaemonConnector  # imported only for a daemon

            self._connector = DaemonConnector(self._daemon)
        # All generations share this object, so that a suspected model remains a suspect after the host is
        # restarted.
        blame = Blame()
        # The supervisor must not keep this object alive, because the host ends when the application drops the
        # object.
        myself = weakref.ref(self)

        def launch() -> Launch:
            host = myself()
            if host is None:
                raise Closed("The host was dropped.")
            return host._launch()

        # ``None`` if this host is a daemon, which has its own quarantine.
        self.quarantine: Quarantine | None = None
        if self._connector is None:
            self.quarantine = Quarantine()
            death_handler: DeathHandler = Investigator(blame, self.quarantine, CrashReports())
            self.supervisor = Supervisor(launch, default_spawner(), self._restart or RestartPolicy(), death_handler)
        else:
            connector = self._connector
            self.supervisor = Supervisor(
                launch, connector, self._restart or connector.policy, connector.death_handler, connector.reach
            )
        self.supervisor.counters.generation = generation
        # Whether `when_gone` is registered to end the host; set at the first start.
        self._is_watched = False
        self.blame = blame
        # The objects below are not replaced when the host process is restarted.
        self._isolation = IsolationLock(blame)
        self.sharing = default_sharing(self._shared_memory, self._spin)
        # ``None`` until the property `arrays` is read for the first time.
        self.own_arrays: SharedArrays | None = None
        self._arrays_lock = Lock()
        self.recycler = Recycler(self._recycle or RecycleAfter())
        # Queue of sessions and objects that the application has dropped.
        self._releases = Releases()
        # Numbers of the objects in the host, by generation.
        self._objects: dict[int, set[int]] = {}
        # Collections (queued releases, suspected models) that are empty if nothing needs to be done before a fast
        # call.
        self.slow_path_reasons: tuple[Sized, ...] = (self._releases.waiting, *blame.cases)
        self.cache_counters = CacheCounters()
        # Cache entries (folder of the cache, key, id) that crashed a host and have not been reported to a later
        # host yet.
        self.invalid_entries: dict[tuple[str, str, str], EntryFault] = {}

    def _at_fork_reinit(self) -> None:
        """After a fork, give the child its own host; the child's sessions are created again in this host."""
        parents = self.supervisor
        if parents.closed:
            return
        parents.leave_to_parent()
        self._of_parents.append(parents)
        if self.own_arrays is not None:
            self.own_arrays.leave_to_parent()
        self._begin(parents.counters.generation)
        if self.log_function is not None:
            self._releases.keep_slow()

    # --- start and end ---

    def start(self, timeout: float | None = None) -> None:
        """Start the process now, so that the first session does not have to wait for the start."""
        self.supervisor.process(deadline_after(timeout))

    def close(self) -> None:
        """End the process. Its sessions cannot be used afterwards. Idempotent; takes at most a few seconds.

        A daemon continues: only the connection to it is closed.
        """
        # Close the connector first, so that a thread that waits for a daemon in `reach` gives up and releases the
        # supervisor's lock.
        if self._connector is not None:
            self._connector.close()
        self.supervisor.close()
        if self.own_arrays is not None:
            self.own_arrays.close()
        _open_hosts.discard(self)

    def restart(self) -> None:
        """Replace the host process with a new one. No call is lost; sessions are created again at their next use.

        For a daemon, its NPU host is replaced for all applications.
        """
        if self.is_daemon:
            self.call({"op": "daemon.restart_host"})
            return
        process = self.supervisor.running
        if process is not None:
            self.supervisor.retire(process, wait=True)

    def __enter__(self) -> Host:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- information ---

    def _shown_facts(self) -> Iterator[Fact]:
        """Yield facts about the host that are known without a request to it."""
        supervisor = self.supervisor
        if self.is_daemon:
            yield "daemon", ""
        process, counters = supervisor.running, supervisor.counters
        if supervisor.closed:
            yield "closed", ""
        elif process is not None:
            yield f"running, generation {process.generation}", ""
        else:
            yield "not running" if counters.generation else "not started", ""
        if counters.crashes:
            yield f"{counters.crashes} {'crash' if counters.crashes == 1 else 'crashes'}", "problem"
        if process is not None and self._info is not None and self._info.generation == process.generation:
            yield from self._info._shown_facts()

    @property
    def is_daemon(self) -> bool:
        """Whether the host is the daemon, which several applications share. It has its own cache and quarantine."""
        return self._connector is not None

    @property
    def info(self) -> HostInfo:
        """Versions and devices of the host. Reading them waits until the host has loaded ONNX Runtime."""
        self.supervisor.process(deadline_after(self._start_timeout))
        return self.learn(deadline_after(INFO_TIMEOUT_S))

    def learn(self, deadline: float | None) -> HostInfo:
        """Return `info`, within a deadline (a time of `time.monotonic`)."""
        process = self.supervisor.process(deadline)
        if self._info is None or self._info.generation != process.generation:
            left_s = seconds_left(deadline)
            timeout = INFO_TIMEOUT_S if left_s is None else min(left_s, INFO_TIMEOUT_S)
            answer = self.call({"op": "host.info"}, timeout).header
            startup_s = (process.ready_at or process.started_at) - process.started_at
            self._info = process.peer.info(answer, process.generation, startup_s)
        return self._info

    @property
    def stats(self) -> HostStats:
        """Counters of this process. Reading them does not start the host."""
        counters = self.supervisor.counters
        process = self.supervisor.running
        pool = process.pool if process is not None else None
        return HostStats(
            generation=counters.generation,
            running=process is not None,
            crashes=counters.crashes,
            planned_restarts=counters.planned_restarts,
            retried_calls=counters.retried_calls,
            cpu_fallbacks=counters.cpu_fallbacks,
            calls_in_flight=process.channel.requests.waiting if process is not None else 0,
            last_crash=str(counters.last_crash) if counters.last_crash is not None else None,
            shared_calls=self.sharing.shared_calls,
            channels=len(pool) if pool is not None else 0,
            shared_bytes=self.sharing.bytes,
            results_copied=self.sharing.borrows_refused,
            arrays_copied=self.sharing.arrays_refused,
            objects=sum(map(len, self._objects.values())),
            shared_memory=self.sharing.memory_status,
            cache_hits=self.cache_counters.hits,
            cache_misses=self.cache_counters.misses,
            cache_set_aside=self.cache_counters.set_aside,
            cache_problem=self.cache_counters.problem,
        )

    def ping(self, timeout: float = 5.0) -> float:
        """Return the time of a round trip in seconds. Raise `DeadlineExceeded` after the timeout, even if the host
        is busy."""
        deadline = deadline_after(timeout)
        # Start the host, if needed, before the time is measured.
        process = self.supervisor.process(deadline)
        begin = time.perf_counter()
        try:
            process.ping(deadline)
        except CallTimedOut:
            raise DeadlineExceeded(f"The host did not answer a ping within {timeout:g} s.") from None
        except ChannelFailed as failure:
            raise self.supervisor.lost(process, failure, deadline) from None
        return time.perf_counter() - begin

    # --- used by sessions ---

    @property
    def arrays(self) -> SharedArrays:
        """Manager of the application's arrays in shared memory."""
        # Check the attribute again under the lock, so that two threads do not create two managers, one of which
        # would be dropped together with its arrays.
        if self.own_arrays is None:
            from qnnbridge._fastpath.memory import SharedArrays  # imports numpy

            with self._arrays_lock:
                if self.own_arrays is None:
                    # Use a weak reference, because the arrays may outlive the host but must not keep it alive.
                    forget = weakref.WeakMethod(self.forget_slab)
                    self.own_arrays = SharedArrays(self.sharing, lambda number: call_if_alive(forget, number))
                    self.sharing.collect = self.own_arrays.collect
        return self.own_arrays

    def twin(self) -> Host:
        """Return a new host with the same settings, not started yet."""
        return Host(
            self._python,
            env=self._env,
            cwd=self._cwd,
            start_timeout=self._start_timeout,
            limits=self._limits,
            _command=self._command,
        )

    def restart_with(self, variable: str, text: str) -> bool:
        """Restart the host with one more environment variable. Return ``False`` if the host already has it."""
        if variable in self._env:
            return False
        # The next start uses the new variable, because `forget_launch` discards the stored environment.
        self._env[variable] = text
        self.supervisor.forget_launch()
        self.restart()
        return True

    def call(
        self,
        header: dict[str, Any],
        timeout: float | None = None,
        buffers: tuple[Any, ...] = (),
        stop: Terminable | None = None,
    ) -> Frame:
        """Call an operation of the host itself. If the host dies, repeat the operation, but only once if the
        operation may be the cause.

        stop: setting its `terminate` from another thread withdraws the request.
        """
        deadline, context = deadline_after(timeout), CallContext(str(header.get("op")))

        def attempt(process: HostProcess, deadline: float | None) -> Frame:
            # Each attempt has its own relay, because a CANCEL message refers to a request in one host process.
            with TerminateRelay(stop, process.channel) as on_sent:
                return process.channel.call(header, buffers, deadline, context, on_sent)

        return survive(self.supervisor, _HostPolicy(self, context), attempt, CallLimits(timeout), deadline)

    def call_with_functions(
        self,
        process: HostProcess,
        message: tuple[dict[str, Any], tuple[Any, ...]],
        deadline: float | None,
        context: CallContext,
        on_sent: Callable[[int], None] | None = None,
        on_news: Callable[[Frame], None] | None = None,
        functions: Mapping[str, CalledFunction] = NO_FUNCTIONS,
    ) -> Frame:
        """Send a request (header and buffers) during which the host may call functions of the application."""
        header, buffers = message
        log = self.log_function
        if log is None and not functions:
            return process.channel.call(header, buffers, deadline, context, on_sent, on_news)
        from qnnbridge._threads import CalledFunctions

        called = CalledFunctions(functions, on_news, log)
        with called.around(process.channel):
            return process.channel.call({**header, **called.header()}, buffers, deadline, context, on_sent, called)

    def remember(self, kind: str, arguments: Mapping[str, Any], generation: int) -> None:
        """Store an object's kind and arguments, so that each later host creates the object before its first
        session."""
        self._remembered.append((kind, arguments))
        self._remembered_in = generation

    def repeat_remembered(self, process: HostProcess, deadline: float | None) -> None:
        """Create the stored objects in this generation of the host, before its first session."""
        if not self._remembered or self._remembered_in == process.generation:
            return
        for kind, arguments in self._remembered:
            header = {"op": "object.create", "kind": kind, "arguments": dict(arguments)}
            made = process.channel.call(header, (), deadline, CallContext("object.create", kind)).header
            # Release only the handle. The settings that the object has made in the host process remain in effect.
            process.channel.one_way.add({"op": "object.release", "objects": [made["object"]]})
        self._remembered_in = process.generation

    def set_log_function(self, log: LogFunction | None) -> None:
        """Pass all later log lines to the function. While a function is set, calls take the slow path."""
        self.log_function = log
        if log is not None:
            self._releases.keep_slow()

    def isolate(self, context: CallContext, deadline: float | None) -> contextlib.AbstractContextManager[None]:
        """Return a context manager for a call that enters native code. Calls of suspected models run alone."""
        return self._isolation.isolate(context, deadline)

    def forget_slab(self, number: int) -> None:
        """Notify the host that a block of shared memory is not used any more."""
        process = self.supervisor.running
        if process is not None and process.pool is not None:
            process.pool.forget(number)

    def settle_versions(self, process: HostProcess, deadline: float | None) -> None:
        """Wait until the host has reported its QNN version, if the quarantine depends on it."""
        if self.quarantine is None or not process.seeks_qnn or not self.quarantine.depends_on_versions:
            return
        # The host answers `host.info` only after it has loaded ONNX Runtime and QNN. Ignore an error here, because
        # the next call reports it.
        with contextlib.suppress(BridgeError, ChannelFailed, ChannelRetired, CallTimedOut):
            process.channel.call({"op": "host.info"}, (), deadline, CallContext("host.info"))

    def before_call(self, process: HostProcess) -> None:
        """Send the queued releases, and replace a host that has reached the limits of `recycle`."""
        self._releases.send(process)
        # An empty queue permits fast calls. `send` empties the queue, so add the entry that prevents fast calls
        # again.
        if self.log_function is not None:
            self._releases.keep_slow()
        # The end of a host destroys its objects, so replace the host only after the last object was released.
        if not self._objects.get(process.generation) and self.recycler.is_due(process.generation, process.real_pid):
            self.supervisor.retire(process, wait=False)

    def release_later(self, generation: int, session_id: int) -> None:
        """Queue the release of a session without taking a lock and without blocking, so that finalizers may call
        this method."""
        self._releases.add("session.close", generation, session_id)

    def release_object_later(self, generation: int, number: int) -> None:
        """Queue the release of an object, like `release_later`."""
        self.forget_object(generation, number)
        self._releases.add("object.release", generation, number)

    def keep_object(self, generation: int, number: int) -> None:
        """Record an object of this generation. Remove the objects of older generations, which no longer exist."""
        # `pop` has a default because a finalizer or another thread may remove the same entry.
        for older in [one for one in self._objects if one < generation]:
            self._objects.pop(older, None)
        self._objects.setdefault(generation, set()).add(number)

    def forget_object(self, generation: int, number: int) -> None:
        """Remove a released object from the record. Safe in a finalizer."""
        self._objects.get(generation, set()).discard(number)

    def _launch(self) -> Launch:
        if not self._is_watched:
            # End the process of a host that the application has dropped, or whose `close` was interrupted.
            when_gone(self, self.supervisor.close)
            self._is_watched = True
        if self._connector is not None:
            # `DaemonConnector.spawn` ignores the arguments, because the daemon is already running.
            argv: list[str] = []
        elif self._command is None:
            self.interpreter = find_host(self._python)
            argv = host_command(self.interpreter.path)
        else:
            argv = self._command
        features = self._connector.features if self._connector is not None else frozenset[str]()
        env = host_environment(self._env if self.is_daemon else {**engine_setting(self._env), **self._env})
        return Launch(argv, env, self._cwd, self._limits, self._start_timeout, self.sharing, features)


class _HostPolicy(Policy):
    """Retry policy for operations of the host itself, which do not concern a model."""

    _repeated = False

    def check_quarantine(self) -> None:
        pass

    def before_attempt(self, process: HostProcess, deadline: float | None) -> None:
        # Skip the second check of the quarantine, which would have to wait until ONNX Runtime is loaded.
        pass

    def expired(self, process: HostProcess, late: CallTimedOut, limits: CallLimits) -> DeadlineExceeded:
        return DeadlineExceeded(f"The host did not answer within {limits.timeout:g} s.")

    def judge(self, process: HostProcess, error: BridgeError) -> Death | bool:
        return False

    def repeats(self, death: Death, window: RepeatWindow) -> bool:
        if death.innocent and not isinstance(death.error, Closed) and window.is_open():
            return True
        # Repeat the operation once even if it may have caused the crash: such operations (reading facts,
        # identifying a model) are safe to repeat.
        if self._repeated or death.error.retry == "pointless":
            return False
        self._repeated = True
        return True


_open_hosts: weakref.WeakSet[Host] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    silence_daemon_threads()
    for host in list(_open_hosts):
        host.supervisor.exiting = True
        with contextlib.suppress(Exception):
            host.close()


# --- hosts that represent the daemon, and the choice of a session's host ------------------------------------

VARIABLE: Final = "QNNBRIDGE_HOST"
DAEMON: Final = "daemon"
PRIVATE: Final = "private"

_default: Host | None = None
_shared: Host | None = None
_lock = renew_in_forks(Lock())


def connect(
    *,
    start: bool = True,
    python: str | os.PathLike[str] | None = None,
    timeout: float | None = START_TIMEOUT_S,
    limits: Limits | None = None,
    shared_memory: bool | None = None,
    spin: bool = False,
) -> Host:
    """Return the daemon of this user as a host for sessions: ``InferenceSession(model, host=qnnbridge.connect())``.

    Applications share the daemon and its sessions of identical models. The daemon outlives the application.

    Args:
        start: whether to start a daemon if none runs, now or after the daemon has ended. ``False``: raise
            `HostStartFailed`.
        python: the ARM64 interpreter for a new daemon; see `Host`. It does not affect a running daemon. An
            interpreter that cannot run the host raises `HostNotFound`.
        timeout: seconds to find or start the daemon, now or after the daemon has ended; ``None`` for no limit.
        limits, shared_memory, spin: as for `Host`.
    """
    patience_s = math.inf if timeout is None else timeout
    own_python: str | None = None
    arguments: tuple[str, ...] = ()
    if python is not None:
        from qnnbridge._daemon.discovery import from_anywhere

        found = find_host(python)
        # The executable of a frozen application cannot run the daemon, so use the host's interpreter.
        own_python = found.path if is_frozen() else None
        arguments = "--python", from_anywhere(os.fspath(python))
    host = daemon_host(
        DaemonAccess(start, own_python, arguments, patience_s),
        limits=limits,
        shared_memory=shared_memory,
        spin=spin,
    )
    try:
        host.start(timeout)
    except BaseException:
        host.close()
        raise
    return host


def default_host() -> Host:
    """Return the host for sessions without ``host=``. Each process has only one such host."""
    global _default
    with _lock:
        if _default is None or _default.supervisor.closed:
            _default = daemon_host(DaemonAccess()) if daemon_by_default() else Host()
        return _default


def daemon_host(access: DaemonAccess, **options: Any) -> Host:
    """Return a `Host` that represents the daemon. Its first use connects to the daemon."""
    return Host(start_timeout=access.start_timeout_s, _daemon=access, **options)


def shared_daemon_host() -> Host:
    """Return the host for sessions with ``host="daemon"``. Each process has only one such host."""
    global _shared
    with _lock:
        if _shared is None or _shared.supervisor.closed:
            _shared = daemon_host(DaemonAccess())
        return _shared


def chosen_host(host: Host | str | None) -> Host:
    """Return a session's host. Raise `OptionError` for an invalid argument, `Closed` at the interpreter's end."""
    refuse_at_the_end()
    if host is None:
        return default_host()
    if isinstance(host, Host):
        return host
    if host == DAEMON:
        return shared_daemon_host()
    raise OptionError(
        f"host={host!r} is not a qnnbridge.Host.",
        fix='Give qnnbridge.Host(python=...), qnnbridge.connect() or "daemon".',
    )


def daemon_by_default() -> bool:
    """Return whether sessions without ``host=`` use the daemon. Raise `OptionError` for an invalid value."""
    word = os.environ.get(VARIABLE, "").strip().lower()
    if word in ("", PRIVATE):
        return False
    if word == DAEMON:
        return True
    raise OptionError(
        f"The environment variable {VARIABLE} is {word!r}.",
        fix=f"Set {VARIABLE} to {DAEMON} or {PRIVATE}, or unset it.",
    )
