"""A session that lives in the host, and survives it.

The client keeps what the session was made from. When the host has been replaced by its next generation, the
session is made again there by the first call that needs it, after a look whether the model is still the same.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from qnnbridge._create import LOG_TIMEOUT_S as LOG_TIMEOUT_S
from qnnbridge._create import CreateRequest, make_session
from qnnbridge._daemon.session import KILL_ANSWER_S
from qnnbridge._recipe import SessionRecipe as SessionRecipe
from qnnbridge._replay import BadEntry, ReplayingSession
from qnnbridge._session_profile import SessionProfile, profile_lost
from qnnbridge._supervision.deadlines import OnDeadline as OnDeadline
from qnnbridge._supervision.deadlines import deadline_after
from qnnbridge._terminate_relay import Terminable, TerminateRelay
from qnnbridge._transport.channel import CallContext, ChannelFailed, ChannelRetired, Deadline
from qnnbridge_host.model.checks import before_session
from qnnbridge_protocol.errors import BridgeError, Closed
from qnnbridge_protocol.frames import Frame
from qnnbridge_protocol.specs import RunSpec, SessionInfo, SessionSpec

if TYPE_CHECKING:
    from qnnbridge._fastpath.failure import FastCallFailed
    from qnnbridge._host import Host
    from qnnbridge._transport.host_process import HostProcess
    from qnnbridge_host.cache.loadable import Loadable
    from qnnbridge_protocol.elements import ValueType

_log = logging.getLogger("qnnbridge.session")

_keys = itertools.count(1)
"""Tell sessions apart for the counting of creations."""

UNLOADED = -1
"""In the place of a generation: it was in a host, and is in none."""


class RemoteSession(ReplayingSession):
    """See the module. Any thread may call."""

    def __init__(self, host: Host, manifest: SessionRecipe, *, retry: int, timeout_s: float | None) -> None:
        super().__init__(host, manifest, retry=retry)
        self.timeout_s = timeout_s
        self.info: SessionInfo
        self._key = str(next(_keys))
        self._dynamic: dict[str, str] = {}
        self.session_id = 0
        """Its number in the host of `generation`. An attribute, because each quick call looks at it."""
        self._profile = SessionProfile()

    def may_go_quick(self, retry: int | None, on_deadline: OnDeadline) -> bool:
        """Whether a call with these may go by a line, where there is no word for them to a daemon."""
        return self._shared is None or (retry in (None, self.retry) and on_deadline == "raise")

    def open(self, timeout_s: float | None, on_deadline: OnDeadline) -> SessionInfo:
        """Make the session. Raises what the host raises, with the cause from its log."""
        deadline = deadline_after(timeout_s)
        if self._shared is not None and on_deadline == "kill" and deadline is not None:
            # Of what others use as well only the owner may be the end.
            self._shared.kill_at, on_deadline = deadline, "raise"
            deadline += KILL_ANSWER_S
        self._prepare_entry(deadline)
        self.with_retry(self._id_in, timeout_s, self.retry, on_deadline, self._create_context, deadline)
        if self._shared is not None:
            self._shared.kill_at = None
        return self.info

    def run(
        self,
        output_names: Sequence[str] | None,
        feeds: Sequence[tuple[str, Any, ValueType | None]],
        options: RunSpec | None,
        *,
        timeout_s: float | None,
        retry: int,
        on_deadline: OnDeadline,
        stop: Terminable | None = None,
        failed: FastCallFailed | None = None,
    ) -> list[Any]:
        """Run the model; values in, values out. Setting `stop.terminate` from another thread stops the run.

        failed: how the call went over a line; this is what is done about it.
        """
        from qnnbridge_protocol.values import Decoder, Encoder  # numpy, which making a session does not need

        encoder = Encoder()
        inputs = [[name, encoder.add(value, kind)] for name, value, kind in feeds]
        header: dict[str, Any] = {"op": "session.run", "outputs": output_names, "inputs": inputs}
        if options is not None:
            header["options"] = options.to_wire()
        frame = self.forward(header, tuple(encoder.buffers), timeout_s, retry, on_deadline, stop, failed)
        decoder = Decoder(frame.buffers)
        outputs = [decoder.value(item) for item in frame.header["outputs"]]
        decoder.finish()
        return outputs

    def unload(self) -> None:
        """Release it in the host and keep what it is made from: the next call makes it again.

        For one that nobody calls at the moment, and that has no state of its own there.
        """
        with self._lock:
            process, number = self.host.supervisor.running, self.session_id
            self.live = self.fast_call = None
            if process is not None and process.generation == self._generation:
                process.channel.one_way.add({"op": "session.close", "session": number})
            self._generation = UNLOADED

    def end_profiling(self) -> str:
        """The profile's file, empty if there is no profile. Raises `StateLost`, once, if a host took it along."""

        def ask(generation: int | None) -> str:
            retry = None if generation is None else 0
            header = {"op": "session.end_profiling"}
            return str(self.forward(header, (), self.timeout_s, retry, only_in=generation).header["file"])

        running = self.host.supervisor.running
        return self._profile.end(ask, running.generation if running is not None else None, lambda: self._generation)

    def assignment(self) -> list[Any]:
        """``[provider, [[name, domain, op type], ...]]`` for each group of nodes that one provider took."""
        return list(self.forward({"op": "session.assignment"}, timeout_s=self.timeout_s).header["subgraphs"])

    def set_ep_dynamic_options(self, options: dict[str, str]) -> None:
        self.forward({"op": "session.set_ep_dynamic_options", "options": options}, timeout_s=self.timeout_s)
        self._dynamic |= options  # for the next host

    def close(self) -> None:
        """Release the session in the host. Idempotent; never blocks for long."""
        if self._closed:
            return
        self.live = self.fast_call = None
        self._closed = True  # whoever is making it this moment looks at that, and releases what it made
        if self._cache is not None:
            self._cache.close()
        process = self.host.supervisor.running
        if process is not None and process.generation == self._generation:
            try:
                process.call({"op": "session.close", "session": self.session_id}, deadline=time.monotonic() + 2.0)
            except (BridgeError, ChannelFailed, ChannelRetired, Deadline):
                pass  # it is gone, or will be with the host

    def forget(self) -> None:
        """The application dropped the session: release it with the next call. Safe in a finalizer."""
        if not self._closed and self.session_id:
            self.host.release_later(self._generation, self.session_id)

    # --- calls ---

    def forward(
        self,
        header: dict[str, Any],
        buffers: tuple[Any, ...] = (),
        timeout_s: float | None = None,
        retry: int | None = None,
        on_deadline: OnDeadline = "raise",
        stop: Terminable | None = None,
        failed: FastCallFailed | None = None,
        only_in: int | None = None,
    ) -> Frame:
        """Do what the header says in a living host, and the answer as it came: no tensor is decoded on the way.

        only_in: the generation that has what this is about; `StateLost` if it is gone.
        """
        told = bool((header.get("options") or {}).get("terminate"))

        def attempt(process: HostProcess, deadline: float | None) -> Frame:
            if only_in is not None and process.generation != only_in:
                raise profile_lost()
            request = {**header, "session": self._id_in(process, deadline)}
            if self._shared is not None:
                request |= self._shared.of_call(retries, deadline if kill else None)
                deadline = deadline + KILL_ANSWER_S if kill and deadline is not None else deadline
            context = self._context_of(
                header["op"]
            )  # the session may be another than at the attempt before, on the CPU
            with self.host.gate(context, deadline), TerminateRelay(stop, process, told) as on_sent:
                return process.call(request, buffers, deadline, context, on_sent)

        if self._closed:
            raise Closed("The session is closed.", fix="Create a new one.")
        retries = self.retry if retry is None else retry
        kill = self._shared is not None and on_deadline == "kill"
        deadline = None if failed is None else failed.deadline
        context = self._context_of(header["op"])
        result = self.with_retry(
            attempt, timeout_s, retries, "raise" if kill else on_deadline, context, deadline, failed
        )
        self.host.supervisor.good_reply(self.context, "running")
        return result

    def _context_of(self, op: str) -> CallContext:
        return self.context if op == self.context.op else dataclasses.replace(self.context, op=op)

    # --- making the session ---

    def _id_in(self, process: HostProcess, deadline: float | None) -> int:
        """The session's number in this generation; makes the session there if it is not yet."""
        if process.generation == self._generation:
            return self.session_id
        if not self._lock.acquire(timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())):
            raise Deadline("not-started")
        try:
            if process.generation != self._generation:
                if self._generation:
                    self.manifest.source.check_unchanged()
                self._create(process, deadline)
            return self.session_id
        finally:
            self._lock.release()

    def _create(self, process: HostProcess, deadline: float | None) -> None:
        manifest = self.manifest
        spec = self._profile.to_make(manifest.spec)
        # A compiled model that is broken, or made for another machine, may kill the host: it never gets there.
        if self._shared is None:
            self._look_at_compiled_model(process)
        entry = self._cache.loadable() if self._cache is not None and not manifest.on_cpu else None
        if entry is None:
            self._book_on(manifest.source.fingerprint)
            source, seed = manifest.source, manifest.seed
            making = CreateRequest(spec, manifest.initializers, source.data, self._dynamic, seed, self._shared)
            number, info = make_session(self.host, process, making, self._create_context, deadline)
        else:
            self._book_on(entry.fingerprint)
            number, info = self._load(process, deadline, entry, spec)
        self.info, self.session_id, self._generation = info, number, process.generation
        self._note_part_of_qnn(info.placement)
        self._profile.made(spec, process.generation)
        self.live, self.fast_call = process, None
        if self._moved_because is not None:
            placement = dataclasses.replace(self.info.placement, cause=self._moved_because)
            self.info = dataclasses.replace(self.info, placement=placement)
        if self._closed:
            self.host.release_later(self._generation, self.session_id)
        self.host.recycler.created(process.generation, self._key)
        self.host.supervisor.good_reply(self._create_context, "creating")
        if self._cache is not None and entry is None:
            self._cache.made_without(self.info)

    def _look_at_compiled_model(self, process: HostProcess) -> None:
        """Raises `ContextUnusable`."""
        manifest = self.manifest
        for warning in before_session(
            manifest.source, manifest.spec.providers, process.peer, manifest.spec.config_entries
        ):
            _log.warning("%s", warning)

    def _load(
        self, process: HostProcess, deadline: float | None, entry: Loadable, spec: SessionSpec
    ) -> tuple[int, SessionInfo]:
        """Make the session from the compiled model of the cache. Raises `BadEntry` if that does not work."""
        assert self._cache is not None
        making = CreateRequest(entry.spec(spec), (), None, self._dynamic, self.manifest.seed)
        try:
            number, loaded = make_session(self.host, process, making, self._create_context, deadline)
        except BridgeError as error:
            if not self._cache.load_failed(error):
                raise
            raise BadEntry from error
        info = self._cache.loaded(entry, loaded)
        if info is None:
            self.host.release_later(process.generation, number)
            raise BadEntry
        return number, info
