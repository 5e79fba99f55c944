"""A session that lives in the host, and survives it.

The client keeps the session's recipe. When the host has been replaced by its next generation, the
session is made again there by the first call that needs it, after a look whether the model is still the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

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
from qnnbridge._session.replay import Live, ReplayingSession
from qnnbridge._session.slow_calls import log_slow_call
from qnnbridge._supervision.host_process import OnDeadline, deadline_after
from qnnbridge._supervision.retries import NO_LIMITS, CallLimits
from qnnbridge._threads import Terminable, TerminateRelay
from qnnbridge._transport.channel import CallContext, ChannelFailed, ChannelRetired, Deadline
from qnnbridge._transport.open_requests import remaining
from qnnbridge_os import fds
from qnnbridge_os.shield import TooLate, in_turn, when_gone
from qnnbridge_protocol.errors import BridgeError, Cancelled, Closed, StateLost
from qnnbridge_protocol.field_types import field
from qnnbridge_protocol.frames import Frame
from qnnbridge_protocol.model_records import CacheReply, ModelDescription, Notice, NumbersReport
from qnnbridge_protocol.specs import FixSpec, RunSpec, SessionInfo, asks_to_terminate

if TYPE_CHECKING:
    from qnnbridge._host import Host
    from qnnbridge._supervision.host_process import FastCallFailed, HostProcess
    from qnnbridge_protocol.elements import ValueType


# Tell sessions apart for the counting of creations.
_keys = itertools.count(1)

# A generation number for a session that was in a host and is in none.
UNLOADED = -1

PROFILING = "enable_profiling"

# Wait for a daemon's answer after the time at which it ends its NPU host.
KILL_ANSWER_S = 0.5


class RemoteSession(ReplayingSession):
    """A session in the host, made again in each next generation. Any thread may call."""

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
        """while_busy: called while a host makes the session.

        make_room: called with the error of an NPU without room for it and the deadline; returns whether it is worth
        another attempt.
        """
        super().__init__(host, recipe, retry=retry)
        self.timeout_s = timeout_s
        self._while_busy = while_busy
        self._make_room = make_room
        # Time at which a daemon ends its NPU host if it still works on the creation.
        self._kill_at: float | None = None
        # Withdraws the creation.
        self._stop: Terminable | None = None
        self.info: SessionInfo
        # What was known of its numbers when it was made.
        self.numbers: NumbersReport | None = None
        # What was rewritten in the model.
        self.fixed: tuple[str, ...] = ()
        self.fix: FixSpec | None = None
        # Those that the host left out, because they harm the model.
        self.disabled_optimizers: tuple[str, ...] = ()
        # Whether another application of the daemon has the same session.
        self.is_shared = False
        self._key = str(next(_keys))
        self._dynamic: dict[str, str] = {}
        # Its number in the host of `generation`.
        self.session_id = 0
        # The generation in which the profile began that `end_profiling` is to end, and whether it was ended.
        self._profile_in: int | None = None
        self._profile_ended = False
        # Generation and number, while there is something to release. Known to what releases it in place of a
        # finalizer, which must not know the session.
        self._place: list[tuple[int, int]] = []
        # It only appends to a queue (`Releases.add` takes no lock). The next call sends the release.
        self._watch()

    def _watch(self) -> None:
        """Have the session released when it is dropped. The child of a fork has none of its parent's watches."""
        when_gone(self, functools.partial(_release_later, self.host, self._place))
        self._watched_in = fds.forks

    def may_go_quick(self, retry: int | None, on_deadline: OnDeadline) -> bool:
        """Whether a call may take the fast path, whose requests cannot carry these arguments to a daemon."""
        # A private host is this application's: it repeats and ends it itself. A daemon repeats and ends on
        # its own, and has to be asked in the request's header, for which a call of 32 bytes has no room.
        return not self.host.is_daemon or (retry in (None, self.retry) and on_deadline == "raise")

    def open(self, timeout_s: float | None, on_deadline: OnDeadline, stop: Terminable | None = None) -> SessionInfo:
        """Make the session. Raises the host's error, with the cause from its log.

        stop: setting its `terminate` from another thread withdraws the request.
        """
        deadline = deadline_after(timeout_s)
        self._stop = stop
        if self.host.is_daemon and on_deadline == "kill" and deadline is not None:
            # Only the daemon may end a host that other applications share.
            self._kill_at, on_deadline = deadline, "raise"
            # This side waits a little longer than the daemon, so that the daemon's error, which names the
            # cause, arrives before this side's own deadline.
            deadline += KILL_ANSWER_S
        limits = CallLimits(timeout_s, self.retry, on_deadline)
        self.with_retry(self.ensure_session, limits, self._create_context, deadline)
        self._kill_at = self._stop = None
        return self.info

    def refuse_repetition(self, failed: FastCallFailed) -> None:
        """Raise `StateLost` for a call on the fast path that the host's end leaves without its inputs.

        Returns if the host is there: the slow path reports a deadline, or the host's own error.
        """
        from qnnbridge._io_binding import lost_in_place

        # Three ends of a call whose inputs may be overwritten: the host has died, its connection was
        # replaced, or its NPU was lost. All others leave the host running, and the slow path reports them.
        error, supervisor = failed.error, self.host.supervisor
        if isinstance(error, ChannelFailed):
            death = supervisor.lost(failed.process, error, failed.deadline)
            raise lost_in_place(death.message) from death
        if isinstance(error, ChannelRetired):
            raise lost_in_place("The connection to the host was replaced while the call was under way.")
        if isinstance(error, BridgeError) and error.details.get("host_must_restart"):
            supervisor.npu_lost(failed.process, error, self.context)
            raise lost_in_place(error.message) from error

    def describe(self, deadline: float | None) -> ModelDescription:
        """The model's description; the recipe keeps its identity."""
        found = identify(self.host, self.recipe, deadline)
        self.recipe = dataclasses.replace(self.recipe, identity=found.model)
        self._book_on(found.model.fingerprint, found.model.label)
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
        """Run the model; values in, values out. Setting `stop.terminate` from another thread stops the run.

        failed: the failure of the call on the fast path, which this call continues.
        """
        from qnnbridge_protocol.values import Encoder, decode_all  # numpy, which making a session does not need

        deadline = deadline_after(limits.timeout)  # before the encoding, which takes seconds for millions of texts
        # Encoded once for all attempts.
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
            # `terminate` was assigned while the run waited in a queue. What ONNX Runtime makes of a run that is
            # terminated before its first node, only it can say: a model without nodes gives its results.
            terminated = dataclasses.replace(options, options={**options.options, "terminate": True})
            header["options"] = terminated.to_wire()
            left_s = None if deadline is None else _seconds_until(deadline)
            frame = self.forward(header, buffers, limits._replace(timeout=left_s), stop)
        return decode_all(field(frame.header, "outputs", "tuple[Any, ...]"), frame.buffers)

    @property
    def is_in_host(self) -> bool:
        """Whether it is in the host that runs now."""
        return self._is_running_in(self._generation)

    def _is_running_in(self, generation: int) -> bool:
        process = self.host.supervisor.running
        return process is not None and process.generation == generation

    def unload(self) -> Callable[[float], None]:
        """Keep its recipe only: the next call makes it again.

        For one without a running call and without state of its own there. Returns what releases it in the host and
        waits for this many seconds until it is.
        """
        with self._lock:
            # Under the lock of `_create`: no thread makes the session between the look and the change.
            process, number = self.host.supervisor.running, self.session_id
            there = self.is_in_host
            self.live = None
            self._generation = UNLOADED
            self._place.clear()

        def release(wait_s: float = 0.0) -> None:
            if process is None or not there:
                return
            close = {"op": "session.close", "session": number}
            if not wait_s:
                process.channel.one_way.add(close)
                return
            with contextlib.suppress(BridgeError, ChannelFailed, ChannelRetired, Deadline):
                process.channel.call(close, (), deadline_after(wait_s), CallContext("session.close"))

        return release

    def end_profiling(self) -> str:
        """The profile's file, empty if there is no profile. Raises `StateLost`, once, if a host took it along."""
        begun_in, header = self._profile_in, {"op": "session.end_profiling"}
        if begun_in is None:
            if self._profile_ended:
                return ""
            # Not known to have one: any host says so.
            reply = self.forward(header, limits=CallLimits(self.timeout_s))
            return str(field(reply.header, "file", "str"))
        try:
            if not self._is_running_in(begun_in):
                raise profile_lost()
            reply = self.forward(header, limits=CallLimits(self.timeout_s, retry=0), only_in=begun_in)
            file = str(field(reply.header, "file", "str"))
        except StateLost:
            # A later record is for the next call.
            self._profile_in = self._generation if self._generation > begun_in else None
            raise
        self._profile_in, self._profile_ended = None, True
        return file

    def assignment(self) -> list[Any]:
        """``[provider, [[name, domain, op type], ...]]`` for each group of nodes that one provider took."""
        reply = self.forward({"op": "session.assignment"}, limits=CallLimits(self.timeout_s))
        return list(field(reply.header, "subgraphs", "tuple[Any, ...]"))

    def set_ep_dynamic_options(self, options: dict[str, str]) -> None:
        header = {"op": "session.set_ep_dynamic_options", "options": options}
        self.forward(header, limits=CallLimits(self.timeout_s))
        # Only after the host has accepted them: a refused option would make every later creation fail.
        self._dynamic |= options  # for the next host

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Release the session in the host. Idempotent; never blocks for long."""
        if self._closed:
            return
        # First: the fast path looks at `live` without a lock, and sends no call of a session that is being
        # closed.
        self.live = None
        self._closed = True  # a thread that is making it checks this and releases the result
        process = self.host.supervisor.running
        # A session of an earlier generation ended with its host: there is nothing to release.
        if process is not None and process.generation == self._generation:
            try:
                process.channel.call(
                    {"op": "session.close", "session": self.session_id}, deadline=time.monotonic() + 2.0
                )
            except (BridgeError, ChannelFailed, ChannelRetired, Deadline):
                pass  # it is gone, or will be with the host
        self._place.clear()  # last: what is interrupted before is released when the session is dropped

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
        """Send the header's request to a living host and return the raw answer: no tensor is decoded.

        Args:
            limits: of the call; `retry` by default that of the session.
            stop: setting its `terminate` from another thread stops the run.
            failed: the failure of the call on the fast path, which this call continues.
            only_in: the generation that has the request's object; `StateLost` if it is gone.
            deadline: if the time began before this call.
        """
        # A request that itself says "terminate" is sent, so that ONNX Runtime gives its own answer to it; no
        # CANCEL follows.
        terminates = asks_to_terminate(header)

        def attempt(process: HostProcess, deadline: float | None) -> Frame:
            if only_in is not None and process.generation != only_in:
                # Here and not before the loop: a death during an earlier attempt may have replaced the
                # generation meanwhile.
                raise profile_lost()
            request = {**header, "session": self.ensure_session(process, deadline)}
            if self.host.is_daemon:
                # The daemon counts deaths of its own host, which this side does not see; both sides count by
                # the same number.
                request["retry"] = limits.retry
                if kill and deadline is not None:
                    request["kill_after_s"] = _seconds_until(deadline)
                    deadline += KILL_ANSWER_S
            # The session may be another than at the attempt before, on the CPU.
            context = self._context_of(header["op"])
            # `isolate` first: a suspect that waits for its turn to run alone has no request yet that could be
            # cancelled.
            with self.host.isolate(context, deadline), TerminateRelay(stop, process.channel, terminates) as on_sent:
                message = (request, buffers)
                return self.host.call_with_functions(process, message, deadline, context, on_sent, log_slow_call)

        if self._closed:
            raise Closed("The session is closed.", fix="Create a new one.")
        kill = self.host.is_daemon and limits.on_deadline == "kill"
        limits = limits.within(limits.timeout, self.retry)
        deadline = deadline if failed is None else failed.deadline
        on_this_side = limits._replace(on_deadline="raise") if kill else limits
        result = self.with_retry(attempt, on_this_side, self._context_of(header["op"]), deadline, failed)
        # A good reply proves the host's worth to the restart policy, and counts for the acquittal of a
        # suspect.
        self.host.supervisor.good_reply(self.context, "running")
        return result

    def _context_of(self, op: str) -> CallContext:
        return self.context if op == self.context.op else dataclasses.replace(self.context, op=op)

    # --- making the session ---

    def ensure_session(self, process: HostProcess, deadline: float | None) -> int:
        """Return the session's number in this generation; create the session there first if it does not exist."""
        # Read without the lock: the generation is set last in `_made`, after the number that belongs to it.
        if process.generation == self._generation:
            return self.session_id

        def make() -> None:
            # A loop and not an if: `_make_room` releases other models when the NPU is full, after which the
            # attempt is repeated; another thread may have made the session while this one waited for its
            # turn.
            while process.generation != self._generation:
                try:
                    self._create(process, deadline)
                except BridgeError as error:
                    if not (error.details.get("npu_memory") and self._make_room(error, deadline)):
                        raise

        try:
            in_turn(self._lock, remaining(deadline), make)
        except TooLate:
            # The turn did not come in time, so the host never had the request.
            raise Deadline("not-started") from None
        return self.session_id

    def _create(self, process: HostProcess, deadline: float | None) -> None:
        host, recipe, again = self.host, self.recipe, bool(self._generation)
        suspect = self._create_context
        if host.blame.active and not recipe.fingerprint and not host.is_daemon:
            # A suspect runs alone; for that it must be known which model this is.
            self.describe(deadline)
            recipe = self.recipe
        # A profile that the application has ended is not recorded again by the next host, which would write a
        # second file.
        spec = recipe.spec.again if again else recipe.spec
        if self._profile_ended:
            options = {name: value for name, value in spec.options.items() if name != PROFILING}
            spec = dataclasses.replace(spec, options=options)
        if again and self.fix is not None and not recipe.on_cpu:
            spec = dataclasses.replace(spec, fix=self.fix)  # never again with the numbers that it cured
        cached = not again or self._from_cache
        # Only a session of the same cache can have them set aside.
        folder = recipe.cache_settings().folder if cached and host.invalid_entries else None
        invalid = {where: fault for where, fault in host.invalid_entries.copy().items() if where[0] == folder}
        request = CreateRequest(
            recipe,
            spec,
            self._dynamic,
            again=again,
            cached=cached,
            quarantined=host.quarantine.fingerprints(self.context.options_hash)
            if host.quarantine is not None
            else (),
            invalid_entries=tuple(invalid.values()),
            retry=self.retry,
            kill_after_s=None if self._kill_at is None else _seconds_until(self._kill_at),
            stop=self._stop,
            suspect=suspect if host.blame.must_run_alone(suspect.fingerprint) else None,
        )
        news = RequestNews(recipe.label, WaitLog(lambda: news.label))
        if recipe.fingerprint:
            self._book_on(recipe.fingerprint, recipe.label)
        # `numbers` gets the request's number, which is the session's, when it is sent: an interrupted
        # creation can then be released.
        before, numbers = self._generation, list[int]()
        try:
            try:
                created = create(
                    host, process, request, self._create_context, deadline, news, self._while_busy, numbers
                )
            finally:
                # Whatever ends the creation, the progress reports have named the model (and the entry that
                # native code worked on). If the host died, that is the suspect.
                if news.fingerprint:
                    self._book_on(news.fingerprint, news.label, entry=news.entry is not None)
                    self._entry = news.entry
                    if news.entry is None:
                        self._remember_source(news.fingerprint)
            self._made(process, created, again=again)
        # The host's own answer: it keeps no session then.
        except BridgeError:
            raise
        except BaseException as error:  # its time is up, or an interrupt
            # Nobody waits for the answer any more, but the host may make it.
            self._generation = before
            self._place.clear()
            for number in numbers:
                host.release_later(process.generation, number)
            late = too_late(news, self.timeout_s) if isinstance(error, Deadline) else None
            if late is not None:
                raise late from None
            raise
        # Only now: the host has set the named entries aside. If the creation failed, the next attempt names
        # them again.
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
        self._book_on(
            created.blame or created.model.fingerprint,
            created.model.label,
            entry=created.cache.id is not None,
            known=known_faults_in(created.notices),
        )
        self._count(created.cache, again=again)
        show_notices(created.notices)
        # One statement, with the generation last: `ensure_session` and the fast path read them without the lock.
        info = created.info
        if self.recipe.variant:
            placement = dataclasses.replace(info.placement, variant=self.recipe.variant)
            info = dataclasses.replace(info, placement=placement)
        self.info, self.session_id, self._generation = info, created.session, process.generation
        self._place[:] = [(process.generation, created.session)]
        if self._watched_in != fds.forks:
            self._watch()
        self.is_shared = created.shared
        self.numbers, self.fixed = created.numbers, created.fixed
        self.fix = created.fix or (self.fix if again else None)
        self.disabled_optimizers = created.disabled_optimizers
        # `live` comes after everything that the fast path reads from this session.
        self._note_part_of_qnn(self.info.placement)
        self.live = Live(process, created.session)
        if self._moved_because is not None:
            placement = dataclasses.replace(self.info.placement, cause=self._moved_because)
            self.info = dataclasses.replace(self.info, placement=placement)
        # Closed by another thread while this one made it: nobody else would release it.
        if self._closed:
            self.host.release_later(self._generation, self.session_id)
        self.host.recycler.created(process.generation, self._key)
        self.host.supervisor.good_reply(self._create_context, "creating")

    def _count(self, cache: CacheReply, *, again: bool) -> None:
        """Record the cache's result in the session's status and in the host's counters."""
        was_from_cache = self._from_cache
        self._entry = (cache.key, cache.id) if cache.key is not None and cache.id is not None else None
        # A daemon names no entry: it alone has it set aside.
        self._from_cache = self._entry is not None or (self.host.is_daemon and cache.state != "off")
        # Status and counters describe the application's creation; a silent one in the next host changes them
        # only for the worse (an entry that was lost).
        if not again:
            self.cache_status = cache.status
        elif was_from_cache and not self._from_cache:
            reason = self._entry_fault or cache.reason
            self.cache_status = dataclasses.replace(self.cache_status, state="off", reason=reason)
        self._entry_fault = ""
        if self.host.is_daemon:
            return
        counters = self.host.cache_counters
        counters.set_aside += cache.set_aside
        counters.problem = cache.problem or counters.problem
        if not again:
            counters.hits += cache.state == "hit"
            counters.misses += cache.state == "miss"


def _release_later(host: Host, place: list[tuple[int, int]]) -> None:
    """The session was dropped: it is released with the next call."""
    for generation, number in place:
        host.release_later(generation, number)


def _seconds_until(moment: float) -> float:
    return round(max(0.0, moment - time.monotonic()), 3)


def profile_lost() -> StateLost:
    return StateLost(
        "The profile is lost: the host in which it was recorded has been replaced.",
        cause="The host died, or was restarted, between the creation of the session and end_profiling().",
        fix="Run the session again; the next end_profiling() gives what was recorded since the restart.",
    )
