"""A session that continues to work after the end of its host process.

The application's side stores the session's recipe. After a restart of the host, the next call of the session checks
that the model has not changed, and creates the session again in the new host.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from qnnbridge._launch import engine_not_taken
from qnnbridge._session import SessionRecipe
from qnnbridge._session.create import (
    Created,
    CreateRequest,
    RequestNews,
    WaitLog,
    create,
    identify,
    known_faults_in,
    show_notices,
    too_late,
)
from qnnbridge._session.replay import SessionPolicy, Suspect
from qnnbridge._session.slow_calls import log_slow_call
from qnnbridge._supervision.host_process import OnDeadline, deadline_after
from qnnbridge._supervision.retries import NO_LIMITS, CallLimits, survive
from qnnbridge._threads import Terminable, TerminateRelay
from qnnbridge._transport.channel import CallContext, CallTimedOut, ChannelFailed, ChannelRetired
from qnnbridge._transport.open_requests import remaining
from qnnbridge_os import fds
from qnnbridge_os.forks import renew_in_forks
from qnnbridge_os.native import RLock
from qnnbridge_os.shield import TooLate, in_turn, when_gone
from qnnbridge_protocol.errors import (
    BridgeError,
    Cancelled,
    Closed,
    HostCrashed,
    ModelQuarantined,
    StateLost,
    WorkerDied,
)
from qnnbridge_protocol.field_types import field
from qnnbridge_protocol.frames import Frame
from qnnbridge_protocol.model_records import CacheReply, CacheStatus, ModelDescription, Notice, NumbersReport
from qnnbridge_protocol.specs import CPU, FixSpec, ProviderSpec, RunSpec, SessionInfo, asks_to_terminate
from qnnbridge_protocol.visible import log_of

if TYPE_CHECKING:
    from qnnbridge._host import Host
    from qnnbridge._supervision.host_process import FastCallFailed, HostProcess
    from qnnbridge_protocol.elements import ValueType


_log = log_of("qnnbridge.session")

T = TypeVar("T")

# Keys by which the `Recycler` (`Host(recycle=...)`) recognizes a session that is created again.
_keys = itertools.count(1)

# Value of the generation for a session that was unloaded from its host.
UNLOADED = -1

PROFILING = "enable_profiling"

# Additional seconds to wait for a daemon's response after the time at which the daemon ends its NPU host.
KILL_ANSWER_S = 0.5


class HostedSession(NamedTuple):
    """A session's number and the host process in which the session exists. One object contains both, so that no
    thread combines the process with the session's number in another process."""

    process: HostProcess
    session: int


class RemoteSession:
    """A session in the host, created again after each restart of the host. Any thread may call the methods."""

    def __init__(
        self,
        host: Host,
        recipe: SessionRecipe,
        *,
        retry: int,
        timeout_s: float | None,
        while_busy: Callable[[], None] = lambda: None,
        make_room: Callable[[BridgeError, float | None], bool] = lambda *_: False,
    ) -> None:
        """
        Args:
            while_busy: function to call while a host creates the session.
            make_room: function to call with the error and the deadline if the NPU has too little memory for
                the session. It returns whether another attempt can succeed.
        """
        self.host = host
        self.recipe = recipe
        self.retry = retry
        self.timeout_s = timeout_s
        self.suspect = Suspect(recipe)
        self._lock = renew_in_forks(RLock())  # re-entrant, as `in_turn` requires
        # Result of the look-up in the cache (hit, miss, off) for this session.
        self.cache_status = CacheStatus("off", "not asked yet")
        # Whether the session was created from a cache entry.
        self._from_cache = False
        # Why the session moved to the CPU; `None` if it did not move.
        self._moved_because: str | None = None
        self._generation = 0
        self._closed = False
        # Process and number of the session that was created last, for fast calls. The process may have ended.
        self.live: HostedSession | None = None
        # Time at which the fast path repeats the checks that the slow path makes before every call.
        self.next_upkeep = 0.0
        # Number of calls that succeeded or were sent on the fast path.
        self.calls = 0
        # Function that decides from the inputs whether a call is compared with the CPU. A compared call takes the
        # slow path.
        self.wants_comparison: Callable[[Iterable[Any]], bool] | None = None
        self._while_busy = while_busy
        self._make_room = make_room
        # Time after which a daemon ends its NPU host if the host still works on the creation.
        self._kill_at: float | None = None
        # Flag with which another thread withdraws the request for the creation.
        self._stop: Terminable | None = None
        self.info: SessionInfo
        # Report of earlier comparisons with the CPU, at the time when the session was created.
        self.numbers: NumbersReport | None = None
        # Rewrites of the model, one line for each rewrite.
        self.fixed: tuple[str, ...] = ()
        self.fix: FixSpec | None = None
        # Optimizers that the host left out because they change the results of the model.
        self.disabled_optimizers: tuple[str, ...] = ()
        # Whether another application that uses the daemon has the same session.
        self.is_shared = False
        self._key = str(next(_keys))
        self._dynamic: dict[str, str] = {}
        # The session's number in the host process of `generation`.
        self.session_id = 0
        # Generation of the host that began the current profile.
        self._profile_in: int | None = None
        # Whether `end_profiling` has ended the profile.
        self._profile_ended = False
        # Generation and number of the session to release; empty if there is nothing to release. The release
        # function refers to this list and not to the session, because a reference would keep the session alive.
        self._to_release: list[tuple[int, int]] = []
        # When the application drops the session, its number is appended to a queue without a lock (`Releases.add`).
        # The next call sends the release.
        self._watch()

    def _watch(self) -> None:
        """Arrange that the session is released when the application drops it. The child of a fork must call this
        function again."""
        when_gone(self, functools.partial(_release_later, self.host, self._to_release))
        self._watched_in = fds.forks

    @property
    def generation(self) -> int:
        """Generation of the host in which the session was created last."""
        return self._generation

    @property
    def moved(self) -> bool:
        """Whether the session moved to the CPU because its model is in quarantine."""
        return self._moved_because is not None

    def may_be_fast(self, limits: CallLimits) -> bool:
        """Return whether a call with these limits may take the fast path, whose messages cannot contain limits."""
        # A private host does not need the limits, because the application's process repeats calls and ends the
        # host. A daemon repeats calls and ends its host itself, so it needs the limits in the header of a request.
        return not self.host.is_daemon or (limits.retry in (None, self.retry) and limits.on_deadline == "raise")

    def open(self, timeout_s: float | None, on_deadline: OnDeadline, stop: Terminable | None = None) -> SessionInfo:
        """Create the session. If the host reports an error, raise the error with the cause found in the host's log.

        stop: setting its `terminate` from another thread withdraws the request.
        """
        deadline = deadline_after(timeout_s)
        self._stop = stop
        if self.host.is_daemon and on_deadline == "kill" and deadline is not None:
            # Let the daemon end its host, because other applications share it.
            self._kill_at, on_deadline = deadline, "raise"
            # Wait a little longer than the daemon, so that the daemon's error, which contains the cause, arrives
            # before the deadline of this process.
            deadline += KILL_ANSWER_S
        limits = CallLimits(timeout_s, self.retry, on_deadline)
        self._with_retry(self.ensure_session, limits, self.suspect.creation, deadline)
        self._kill_at = self._stop = None
        return self.info

    def refuse_repetition(self, failed: FastCallFailed) -> None:
        """Raise `StateLost` for a call on the fast path whose inputs were lost with the host.

        An output that is bound to an input's memory may be half written, so a repetition would use wrong inputs. If
        the call has no such output, or the host still runs, return: the slow path repeats the call or reports the
        error.
        """
        if not failed.in_place:
            return
        from qnnbridge._io_binding import lost_in_place

        # The inputs may be overwritten if the host crashed, its connection was replaced, or it lost the NPU. After
        # any other error the host still runs, and the slow path reports the error.
        error, supervisor = failed.error, self.host.supervisor
        if isinstance(error, ChannelFailed):
            death = supervisor.lost(failed.process, error, failed.deadline)
            raise lost_in_place(death.message) from death
        if isinstance(error, ChannelRetired):
            raise lost_in_place("The connection to the host was replaced during the call.")
        if isinstance(error, BridgeError) and error.details.get("host_must_restart"):
            supervisor.npu_lost(failed.process, error, self.suspect.run)
            raise lost_in_place(error.message) from error

    def describe(self, deadline: float | None) -> ModelDescription:
        """Return the description of the model, and store the model's identity in the recipe."""
        found = identify(self.host, self.recipe, deadline)
        self.recipe = dataclasses.replace(self.recipe, identity=found.model)
        self.suspect.name(found.model.fingerprint, found.model.label)
        return found

    def run(
        self,
        output_names: Sequence[str] | None,
        feeds: Sequence[tuple[str, Any, ValueType | None]],
        options: RunSpec | None,
        limits: CallLimits,
        *,
        stop: Terminable | None = None,
        failed: FastCallFailed | None = None,
    ) -> list[Any]:
        """Run the model and return the output values. Setting `stop.terminate` from another thread stops the run.

        failed: the failed attempt on the fast path; this call repeats it on the slow path.
        """
        from qnnbridge_protocol.values import Encoder, decode_all  # imports numpy, which is needed only for runs

        # Start the time limit before encoding, which takes seconds for millions of strings.
        deadline = deadline_after(limits.timeout)
        # Encode the inputs once and send the result in each attempt.
        encoder = Encoder()
        inputs = [[name, encoder.add(value, kind)] for name, value, kind in feeds]
        header: dict[str, Any] = {"op": "session.run", "outputs": output_names, "inputs": inputs}
        if options is not None:
            header["options"] = options.to_wire()
        buffers = tuple(encoder.buffers)
        try:
            frame = self.forward(header, buffers, limits, stop, failed, deadline=deadline)
        except Cancelled:
            if options is None:
                raise
            # `terminate` was set while the run waited in a queue. Send the run with `terminate` set, because ONNX
            # Runtime must decide the outcome: a model without nodes, for example, still returns its results.
            terminated = dataclasses.replace(options, options={**options.options, "terminate": True})
            header["options"] = terminated.to_wire()
            left_s = None if deadline is None else _seconds_until(deadline)
            frame = self.forward(header, buffers, limits._replace(timeout=left_s), stop)
        return decode_all(field(frame.header, "outputs", "tuple[Any, ...]"), frame.buffers)

    @property
    def is_in_host(self) -> bool:
        """Whether the session exists in the running host."""
        return self._is_running_in(self._generation)

    def _is_running_in(self, generation: int) -> bool:
        process = self.host.supervisor.running
        return process is not None and process.generation == generation

    def unload(self) -> Callable[[float], None]:
        """Keep only the recipe, so that the next call creates the session again.

        The session must have no running call and no state in the host. Return a function that releases the session
        in the host, and waits at most the given number of seconds for the answer.
        """
        with self._lock:
            # Hold the lock of `_create`, so that no other thread creates the session while its state is read and
            # changed here.
            process, number = self.host.supervisor.running, self.session_id
            there = self.is_in_host
            self.live = None
            self._generation = UNLOADED
            self._to_release.clear()

        def release(wait_s: float = 0.0) -> None:
            if process is None or not there:
                return
            close = {"op": "session.close", "session": number}
            if not wait_s:
                process.channel.one_way.add(close)
                return
            with contextlib.suppress(BridgeError, ChannelFailed, ChannelRetired, CallTimedOut):
                process.channel.call(close, (), deadline_after(wait_s), CallContext("session.close"))

        return release

    def end_profiling(self) -> str:
        """Return the path of the profile; "" if there is none. Raise `StateLost` once if the profile was lost with
        a host."""
        begun_in, header = self._profile_in, {"op": "session.end_profiling"}
        if begun_in is None:
            if self._profile_ended:
                return ""
            # It is unknown which host records the profile. Ask the running host, which returns the path or reports
            # that there is no profile.
            reply = self.forward(header, limits=CallLimits(self.timeout_s))
            return str(field(reply.header, "file", "str"))
        try:
            if not self._is_running_in(begun_in):
                raise profile_lost()
            reply = self.forward(header, limits=CallLimits(self.timeout_s, retry=0), only_in=begun_in)
            file = str(field(reply.header, "file", "str"))
        except StateLost:
            # If a new host has created the session since, it records a new profile. The next call of
            # `end_profiling` ends the new profile.
            self._profile_in = self._generation if self._generation > begun_in else None
            raise
        self._profile_in, self._profile_ended = None, True
        return file

    def assignment(self) -> list[Any]:
        """Return a list of ``[provider, [[name, domain, op type], ...]]`` with the nodes that each provider
        runs."""
        reply = self.forward({"op": "session.assignment"}, limits=CallLimits(self.timeout_s))
        return list(field(reply.header, "subgraphs", "tuple[Any, ...]"))

    def set_ep_dynamic_options(self, options: dict[str, str]) -> None:
        header = {"op": "session.set_ep_dynamic_options", "options": options}
        self.forward(header, limits=CallLimits(self.timeout_s))
        # Store the options for later hosts only after this host has accepted them: an invalid option would make
        # every later creation fail.
        self._dynamic |= options

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Release the session in the host. Idempotent; takes at most two seconds."""
        if self._closed:
            return
        # Clear `live` first: the fast path reads it without a lock and must not send calls of a session that is
        # being closed.
        self.live = None
        # A thread that is creating the session reads this flag afterwards and releases the session.
        self._closed = True
        process = self.host.supervisor.running
        # Release the session only in the process that contains it. A session in an earlier process ended with that
        # process.
        if process is not None and process.generation == self._generation:
            try:
                process.channel.call(
                    {"op": "session.close", "session": self.session_id}, deadline=time.monotonic() + 2.0
                )
            except (BridgeError, ChannelFailed, ChannelRetired, CallTimedOut):
                pass  # the host has ended, and the session with it
        # Clear the list last: after an interruption, the session is still released when the application drops it.
        self._to_release.clear()

    # --- calls ---

    def forward(
        self,
        header: dict[str, Any],
        buffers: tuple[Any, ...] = (),
        limits: CallLimits = NO_LIMITS,
        stop: Terminable | None = None,
        failed: FastCallFailed | None = None,
        only_in: int | None = None,
        deadline: float | None = None,
    ) -> Frame:
        """Send a request to a running host and return the answer without decoding its tensors.

        Args:
            limits: limits of the call; the default of `retry` is the session's value.
            stop: setting its `terminate` from another thread stops the run.
            failed: the failed attempt on the fast path; this call repeats it on the slow path.
            only_in: the only generation of the host that can answer; if this host has ended, raise `StateLost`.
            deadline: deadline of the call, if its time started before this function was called.
        """
        # Do not send CANCEL for a request with the option "terminate", which ONNX Runtime itself must answer.
        terminates = asks_to_terminate(header)

        def attempt(process: HostProcess, deadline: float | None) -> Frame:
            if only_in is not None and process.generation != only_in:
                # Compare the generation in each attempt: the attempt after a crash runs in a new generation.
                raise profile_lost()
            request = {**header, "session": self.ensure_session(process, deadline)}
            if self.host.is_daemon:
                # Pass `retry` to the daemon, which repeats the call after crashes of its host; this process does
                # not notice these crashes.
                request["retry"] = limits.retry
                if kill and deadline is not None:
                    request["kill_after_s"] = _seconds_until(deadline)
                    deadline += KILL_ANSWER_S
            # Determine the context in each attempt: if the session has moved to the CPU since the last attempt, a
            # crash is attributed to other options.
            context = self.suspect.context_of(header["op"])
            # Enter `isolate` before the relay: while a suspected model waits until it may run alone, no request
            # exists that could be cancelled.
            with self.host.isolate(context, deadline), TerminateRelay(stop, process.channel, terminates) as on_sent:
                message = (request, buffers)
                return self.host.call_with_functions(process, message, deadline, context, on_sent, log_slow_call)

        if self._closed:
            raise Closed("The session is closed.", fix="Create a new one.")
        kill = self.host.is_daemon and limits.on_deadline == "kill"
        limits = limits.within(limits.timeout, self.retry)
        deadline = deadline if failed is None else failed.deadline
        on_this_side = limits._replace(on_deadline="raise") if kill else limits
        result = self._with_retry(attempt, on_this_side, self.suspect.context_of(header["op"]), deadline, failed)
        # A successful response resets the restart delays and may clear a suspected model.
        self.host.supervisor.good_reply(self.suspect.run, "running")
        return result

    def _with_retry(
        self,
        attempt: Callable[[HostProcess, float | None], T],
        limits: CallLimits,
        context: CallContext,
        deadline: float | None = None,
        failed: FastCallFailed | None = None,
    ) -> T:
        """Run `attempt` in a host, and again in the next host if the first host dies (`survive`).

        limits: limits of the call, with the session's defaults filled in.
        deadline: deadline of the call, if its time started before this function was called.
        """
        deadline = deadline_after(limits.timeout) if deadline is None else deadline
        policy = SessionPolicy(self, limits.retry or 0, context)

        def attempt_there(process: HostProcess, deadline: float | None) -> T:
            policy.on_cpu = self.recipe.on_cpu
            return attempt(process, deadline)

        return survive(self.host.supervisor, policy, attempt_there, limits, deadline, failed)

    # --- creation ---

    def ensure_session(self, process: HostProcess, deadline: float | None) -> int:
        """Return the session's number in this generation; create the session there first if it does not exist."""
        # Reading the generation without the lock is safe, because `_made` sets it after the session's number.
        if process.generation == self._generation:
            return self.session_id

        def make() -> None:
            # Another thread may have created the session while this thread waited for the lock. Repeat the attempt
            # if the NPU had too little memory and `_make_room` has released other models.
            while process.generation != self._generation:
                try:
                    self._create(process, deadline)
                except BridgeError as error:
                    if not (error.details.get("npu_memory") and self._make_room(error, deadline)):
                        raise

        try:
            in_turn(self._lock, remaining(deadline), make)
        except TooLate:
            # The deadline expired while another thread held the lock, so no request was sent.
            raise CallTimedOut("not-started") from None
        return self.session_id

    def _create(self, process: HostProcess, deadline: float | None) -> None:
        host, recipe, again = self.host, self.recipe, bool(self._generation)
        suspect = self.suspect.creation
        if host.blame.active and not recipe.fingerprint and not host.is_daemon:
            # A suspected model must run alone. Read the identity of this session's model to find out whether this
            # model is suspected.
            self.describe(deadline)
            recipe = self.recipe
        # After the application has ended the profile, later hosts must not record a profile, because they would
        # write another file.
        spec = recipe.spec.again if again else recipe.spec
        if self._profile_ended:
            options = {name: value for name, value in spec.options.items() if name != PROFILING}
            spec = dataclasses.replace(spec, options=options)
        if again and self.fix is not None and not recipe.on_cpu:
            # Apply the rewrites of the first creation again: without them the results would be wrong.
            spec = dataclasses.replace(spec, fix=self.fix)
        cached = not again or self._from_cache
        # Report only the damaged entries in this session's cache folder to the host.
        folder = recipe.cache_settings().folder if cached and host.invalid_entries else None
        invalid = {where: fault for where, fault in host.invalid_entries.copy().items() if where[0] == folder}
        request = CreateRequest(
            recipe,
            spec,
            self._dynamic,
            again=again,
            cached=cached,
            quarantined=host.quarantine.fingerprints(suspect.options_hash) if host.quarantine is not None else (),
            invalid_entries=tuple(invalid.values()),
            retry=self.retry,
            kill_after_s=None if self._kill_at is None else _seconds_until(self._kill_at),
            stop=self._stop,
            suspect=suspect if host.blame.must_run_alone(suspect.fingerprint) else None,
        )
        news = RequestNews(recipe.label, WaitLog(lambda: news.label))
        if recipe.fingerprint:
            self.suspect.name(recipe.fingerprint, recipe.label)
        # `numbers` receives the number of the request, which is also the session's number, when the request is
        # sent. This number is needed to release the session if the creation is interrupted.
        before, numbers = self._generation, list[int]()
        try:
            try:
                created = create(
                    host, process, request, self.suspect.creation, deadline, news, self._while_busy, numbers
                )
            finally:
                # Use the progress reports even after a failure: they identify the model or cache entry that native
                # code was processing, which is the suspect if the host crashed.
                if news.fingerprint:
                    self.suspect.name(news.fingerprint, news.label, entry=news.entry is not None)
                    self.suspect.entry = news.entry
                    if news.entry is None:
                        self._remember_source(news.fingerprint)
            self._made(process, created, again=again)
        # The host reported an error, so there is no session to release.
        except BridgeError:
            raise
        except BaseException as error:  # the deadline expired, or the thread was interrupted
            # The host may still create the session, but no thread waits for the answer, so queue its release.
            self._generation = before
            self._to_release.clear()
            for number in numbers:
                host.release_later(process.generation, number)
            late = too_late(news, self.timeout_s) if isinstance(error, CallTimedOut) else None
            if late is not None:
                raise late from None
            raise
        # The host has removed the entries in `invalid` from the cache. After a failed creation this line is not
        # reached, and the next attempt reports the entries again.
        for where in invalid:
            host.invalid_entries.pop(where, None)
        if self._profile_in is None and spec.options.get(PROFILING):
            self._profile_in = process.generation
        if host.is_daemon and self.info.placement.qnn_nodes:
            text = engine_not_taken(lambda: host.learn(deadline).qnn_source)
            show_notices((Notice("once", text),) if text else ())

    def _made(self, process: HostProcess, created: Created, *, again: bool) -> None:
        self.recipe = dataclasses.replace(self.recipe, identity=created.model)
        self._remember_source(created.model.fingerprint)
        self.suspect.name(
            created.blame or created.model.fingerprint,
            created.model.label,
            entry=created.cache.id is not None,
            known=known_faults_in(created.notices),
        )
        self._count(created.cache, again=again)
        show_notices(created.notices)
        # Assign the generation last: `ensure_session` and the fast path read it without the lock, and then use the
        # session's number.
        info = created.info
        if self.recipe.variant:
            placement = dataclasses.replace(info.placement, variant=self.recipe.variant)
            info = dataclasses.replace(info, placement=placement)
        self.info, self.session_id, self._generation = info, created.session, process.generation
        self._to_release[:] = [(process.generation, created.session)]
        if self._watched_in != fds.forks:
            self._watch()
        self.is_shared = created.shared
        self.numbers, self.fixed = created.numbers, created.fixed
        self.fix = created.fix or (self.fix if again else None)
        self.disabled_optimizers = created.disabled_optimizers
        # Set `live` last: once it is set, the fast path reads the other attributes of this session.
        self.suspect.record_use_of_qnn(self.recipe, self.info.placement)
        self.live = HostedSession(process, created.session)
        if self._moved_because is not None:
            placement = dataclasses.replace(self.info.placement, cause=self._moved_because)
            self.info = dataclasses.replace(self.info, placement=placement)
        # If another thread closed the session during its creation, this thread must release it.
        if self._closed:
            self.host.release_later(self._generation, self.session_id)
        self.host.recycler.created(process.generation, self._key)
        self.host.supervisor.good_reply(self.suspect.creation, "creating")

    def _count(self, cache: CacheReply, *, again: bool) -> None:
        """Record the result of the cache look-up in the session's status and in the host's counters."""
        was_from_cache = self._from_cache
        entry = (cache.key, cache.id) if cache.key is not None and cache.id is not None else None
        # A daemon does not report the key of the cache entry, because it handles damaged entries itself.
        self._from_cache = entry is not None or (self.host.is_daemon and cache.state != "off")
        # Status and counters describe the creation that the application requested. If a later host creates the
        # session again, the status changes only if the cache entry was lost.
        if not again:
            self.cache_status = cache.status
        elif was_from_cache and not self._from_cache:
            reason = self.suspect.entry_fault or cache.reason
            self.cache_status = dataclasses.replace(self.cache_status, state="off", reason=reason)
        self.suspect.entry, self.suspect.entry_fault = entry, ""
        if self.host.is_daemon:
            return
        counters = self.host.cache_counters
        counters.set_aside += cache.set_aside
        counters.problem = cache.problem or counters.problem
        if not again:
            counters.hits += cache.state == "hit"
            counters.misses += cache.state == "miss"

    # --- crashes and quarantine ---

    def excludes_entry(self, error: BridgeError) -> bool:
        """Return whether the compiled model from the cache crashed the host. If so, record the cache entry, to
        report it to the next host."""
        fault = self.suspect.blamed_entry(error)
        if fault is not None:
            self.host.invalid_entries[(self.recipe.cache_settings().folder, fault.key, fault.id)] = fault
        return fault is not None

    def worker_died(self, process: HostProcess, error: WorkerDied) -> HostCrashed:
        """Explain the crash of the compiler process that the host started, and count it like a crash of the
        host."""
        details = error.details
        if isinstance(details.get("fingerprint"), str):
            self.suspect.name(details["fingerprint"], str(details.get("label") or self.suspect.run.model))
            self._remember_source(details["fingerprint"])
        return self.host.supervisor.worker_died(process, error, self.suspect.creation)

    def _remember_source(self, fingerprint: str) -> None:
        """Record path, size and dates of the model, so that the quarantine recognizes the model before a host has
        read it again."""
        source = self.recipe.source(fingerprint) if self.host.quarantine is not None else None
        if self.host.quarantine is not None and source is not None:
            self.host.quarantine.remember_source(fingerprint, source)

    def check_quarantine(self) -> None:
        """If the model is in quarantine, move the session to the CPU with ``fallback="cpu"``, and otherwise raise
        `ModelQuarantined`."""
        context = self.suspect.run
        try:
            if context.fingerprint:
                self.host.supervisor.check_quarantine(context)
            elif self.host.quarantine is not None:
                self.host.quarantine.check_source(self.recipe.was_read_from, context.options_hash)
        except ModelQuarantined as error:
            self._move_to_cpu_or_raise(error)

    def refused_by_the_host(self, refusal: ModelQuarantined) -> None:
        """Handle a host's refusal of a quarantined model: move the session to the CPU, or raise the error."""
        details = refusal.details
        self.suspect.name(str(details.get("fingerprint", "")), str(details.get("label", self.suspect.run.model)))
        error: ModelQuarantined = refusal
        try:
            self.host.supervisor.check_quarantine(self.suspect.run)
        except ModelQuarantined as full:
            error = full
        self._move_to_cpu_or_raise(error, compiled=details.get("compiled") is True)

    def went_to_cpu(self) -> bool:
        """Check whether the last crash put the model into quarantine; return whether the session has moved to the
        CPU."""
        try:
            self.check_quarantine()
        except ModelQuarantined:
            return False
        return self.recipe.on_cpu

    def _move_to_cpu_or_raise(self, error: ModelQuarantined, *, compiled: bool = False) -> None:
        """Move the session to the CPU, because the model crashed hosts repeatedly on QNN. Raise the error if the
        session's options do not allow this."""
        if self.recipe.spec.fallback != "cpu" or self.recipe.on_cpu or compiled or self.recipe.compiled:
            raise error
        with self._lock:
            if self.recipe.on_cpu:
                return
            spec = dataclasses.replace(self.recipe.spec, providers=(ProviderSpec(CPU),))
            self.recipe = dataclasses.replace(self.recipe, spec=spec)
            self.suspect.move_to_cpu(self.recipe)
            self._moved_because = error.message
            # No host has the generation 0, so the next call creates the session again, with options for the CPU.
            self._generation = 0
            self.live = None
        self.host.supervisor.counters.cpu_fallbacks += 1
        _log.warning("%s It runs on the CPU from now on, as fallback='cpu' allows.", error.message)


def _release_later(host: Host, to_release: list[tuple[int, int]]) -> None:
    """Queue the release of a session that the application has dropped."""
    for generation, number in to_release:
        host.release_later(generation, number)


def _seconds_until(moment: float) -> float:
    return round(max(0.0, moment - time.monotonic()), 3)


def profile_lost() -> StateLost:
    return StateLost(
        "The profile is lost: the host in which it was recorded has been replaced.",
        cause="The host died, or was restarted, between the creation of the session and end_profiling().",
        fix="Run the session again; the next end_profiling() returns the profile since the restart.",
    )
