"""A session that lives in the host, and survives it.

The client keeps what the session was made from. When the host has been replaced by its next generation, the
session is made again there by the first call that needs it, after a look whether the model is still the same.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from qnnbridge.deadlines import deadline_after
from qnnbridge.errors import as_onnxruntime
from qnnbridge.model_source import ModelSource
from qnnbridge.process.channel import CANCEL_TIMEOUT_S, ChannelFailed, ChannelRetired, Deadline, Note
from qnnbridge.providers import CPU
from qnnbridge_protocol.elements import ValueType
from qnnbridge_protocol.errors import BridgeError, Closed, DeadlineExceeded, HostHung, ModelQuarantined
from qnnbridge_protocol.frames import Frame
from qnnbridge_protocol.specs import ProviderSpec, RunSpec, SessionInfo, SessionSpec
from qnnbridge_protocol.values import Decoder, Encoder

if TYPE_CHECKING:
    from qnnbridge.host import Host
    from qnnbridge.process.host_process import HostProcess
    from qnnbridge.run_options import RunOptions

_log = logging.getLogger("qnnbridge.session")

_keys = itertools.count(1)
"""Tell sessions apart for the counting of creations."""

OnDeadline = Literal["raise", "kill"]
T = TypeVar("T")

LOG_TIMEOUT_S = 1.0
"""How long to wait for the host's log lines of a failed creation."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """All that a session is made from."""

    source: ModelSource
    spec: SessionSpec
    initializers: Sequence[Any] = ()
    seed: int | None = None

    @property
    def on_cpu(self) -> bool:
        """Whether the CPU is all that it asks for."""
        return [provider.name for provider in self.spec.providers] == [CPU]

    @property
    def options_hash(self) -> str:
        """Of everything but the model, so that a change of options is another case."""
        import hashlib
        import json

        spec = dataclasses.replace(self.spec, model_path=None, model_files=()).to_wire()
        return hashlib.sha256(json.dumps(spec, sort_keys=True, default=str).encode()).hexdigest()[:16]


class RemoteSession:
    """See the module. Any thread may call."""

    def __init__(self, host: Host, manifest: Manifest, *, retry: int, timeout_s: float | None) -> None:
        self.host = host
        self.manifest = manifest
        self.retry = retry
        self.timeout_s = timeout_s
        self.info: SessionInfo
        self._note = Note("session.run", manifest.source.label, manifest.source.fingerprint, manifest.options_hash)
        self._create_note = dataclasses.replace(self._note, op="session.create")
        self._lock = threading.Lock()
        self._key = str(next(_keys))
        self._dynamic: dict[str, str] = {}
        self._moved_because: str | None = None
        self._generation = 0
        self._id = 0
        self._closed = False

    @property
    def generation(self) -> int:
        """Of the host in which the session lives, or last lived."""
        return self._generation

    def open(self, timeout_s: float | None, on_deadline: OnDeadline) -> SessionInfo:
        """Make the session. Raises what the host raises, with the cause from its log."""
        self._survive(self._id_in, timeout_s, self.retry, on_deadline, self._create_note)
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
        stop: RunOptions | None = None,
    ) -> list[Any]:
        """Run the model; values in, values out. Setting `stop.terminate` from another thread stops the run."""
        encoder = Encoder()
        inputs = [[name, encoder.add(value, kind)] for name, value, kind in feeds]
        header: dict[str, Any] = {"op": "session.run", "outputs": output_names, "inputs": inputs}
        if options is not None:
            header["options"] = options.to_wire()
        frame = self._call(header, tuple(encoder.buffers), timeout_s, retry, on_deadline, stop)
        decoder = Decoder(frame.buffers)
        outputs = [decoder.value(item) for item in frame.header["outputs"]]
        decoder.finish()
        return outputs

    def end_profiling(self) -> str:
        header = {"op": "session.end_profiling"}
        return str(self._call(header, timeout_s=self.timeout_s, retry=0).header["file"])

    def assignment(self) -> list[Any]:
        """``[provider, [[name, domain, op type], ...]]`` for each group of nodes that one provider took."""
        return list(self._call({"op": "session.assignment"}, timeout_s=self.timeout_s).header["subgraphs"])

    def set_ep_dynamic_options(self, options: dict[str, str]) -> None:
        self._call({"op": "session.set_ep_dynamic_options", "options": options}, timeout_s=self.timeout_s)
        self._dynamic |= options  # for the next host

    def close(self) -> None:
        """Release the session in the host. Idempotent; never blocks for long."""
        if self._closed:
            return
        self._closed = True  # whoever is making it this moment looks at that, and releases what it made
        process = self.host.supervisor.running
        if process is not None and process.generation == self._generation:
            try:
                process.call({"op": "session.close", "session": self._id}, deadline=time.monotonic() + 2.0)
            except (BridgeError, ChannelFailed, ChannelRetired, Deadline):
                pass  # it is gone, or will be with the host

    def forget(self) -> None:
        """The application dropped the session: release it with the next call. Safe in a finalizer."""
        if not self._closed and self._id:
            self.host.release_later(self._generation, self._id)

    # --- calls ---

    def _call(
        self,
        header: dict[str, Any],
        buffers: tuple[Any, ...] = (),
        timeout_s: float | None = None,
        retry: int | None = None,
        on_deadline: OnDeadline = "raise",
        stop: RunOptions | None = None,
    ) -> Frame:
        told = bool((header.get("options") or {}).get("terminate"))
        note = self._note if header["op"] == self._note.op else dataclasses.replace(self._note, op=header["op"])

        def attempt(process: HostProcess, deadline: float | None) -> Frame:
            request = {**header, "session": self._id_in(process, deadline)}
            with self.host.gate(note, deadline), _Stop(stop, process, told) as on_sent:
                return process.call(request, buffers, deadline, note, on_sent)

        if self._closed:
            raise Closed("The session is closed.", fix="Create a new one.")
        result = self._survive(attempt, timeout_s, self.retry if retry is None else retry, on_deadline, note)
        self.host.supervisor.good_reply(self._note, "running")
        return result

    def _survive(
        self,
        attempt: Callable[[HostProcess, float | None], T],
        timeout_s: float | None,
        retry: int,
        on_deadline: OnDeadline,
        note: Note,
    ) -> T:
        """Do `attempt` in a living host; again in the next one if that dies meanwhile, `retry` times."""
        supervisor = self.host.supervisor
        deadline = deadline_after(timeout_s)
        while True:
            # Before: a known poison must not cost a start of the host. Behind: the first HELLO tells the versions.
            self._check_quarantine()
            process = supervisor.process(deadline)
            self._check_quarantine()
            self.host.before_call(process)
            try:
                return attempt(process, deadline)
            except ChannelRetired:
                continue
            except ChannelFailed as failure:
                if process.retiring:
                    continue  # it did not finish in time, by our own plan
                error = supervisor.lost(process, failure, deadline)
                if retry <= 0 or (error.retry == "pointless" and self._concerns_me(error)):
                    raise as_onnxruntime(error) from None
                retry -= 1
                supervisor.counters.retried_calls += 1
            except Deadline as late:
                raise self._too_late(process, late, timeout_s, on_deadline, note) from None
            except BridgeError as error:
                if not error.details.get("host_must_restart"):
                    raise as_onnxruntime(error) from None
                supervisor.npu_lost(process, error, self._note)
                if retry <= 0:
                    raise as_onnxruntime(error) from None
                retry -= 1
                supervisor.counters.retried_calls += 1

    def _concerns_me(self, error: BridgeError) -> bool:
        """Whether a death that a restart does not cure says anything about this model: not if another may be it."""
        suspects = {call.get("fingerprint") for call in error.details.get("suspects") or []}
        return not suspects or suspects == {self._note.fingerprint}

    def _check_quarantine(self) -> None:
        """Raises `ModelQuarantined`, or goes on with the CPU if the session allows that."""
        try:
            self.host.supervisor.check_quarantine(self._note)
        except ModelQuarantined as error:
            if self.manifest.spec.fallback != "cpu" or self.manifest.on_cpu:
                raise
            self._move_to_cpu(error)

    def _move_to_cpu(self, error: ModelQuarantined) -> None:
        """The model keeps killing hosts on QNN; there it is refused from now on, not here."""
        with self._lock:
            if self.manifest.on_cpu:
                return
            spec = dataclasses.replace(self.manifest.spec, providers=(ProviderSpec(CPU),))
            self.manifest = dataclasses.replace(self.manifest, spec=spec)
            self._note = dataclasses.replace(self._note, options_hash=self.manifest.options_hash)
            self._create_note = dataclasses.replace(self._note, op="session.create")
            self._moved_because = error.message
            self._generation = 0
        self.host.supervisor.counters.cpu_fallbacks += 1
        _log.warning("%s It runs on the CPU from now on, as fallback='cpu' allows.", error.message)

    def _too_late(
        self,
        process: HostProcess,
        late: Deadline,
        timeout_s: float | None,
        on_deadline: OnDeadline,
        note: Note,
    ) -> DeadlineExceeded:
        state = late.state
        inside = "inside of a QNN partition" if note.op == "session.run" else "while native code works on it"
        # What has not started waits for others; they are not ended for it, unless it is work that nobody wants.
        blocked = state == "still-running" or (state == "not-started" and process.channel.requests.abandoned)
        if on_deadline == "kill" and blocked:
            what = "ran past its" if state == "still-running" else "waited, behind work that nobody wants, past its"
            reason = HostHung(
                f"The host was ended: {self._note.model} {what} deadline of {timeout_s:g} s.",
                details={"model": self._note.model},
            )
            # The reason first: whoever sees the end of the stream before it would report a crash.
            process.channel.fail(reason)
            process.kill("a call ran past its deadline (on_deadline='kill')")
            state = "stopped"
        return DeadlineExceeded(
            f"{self._note.model}: no answer within {timeout_s:g} s (the work is {state}).",
            cause=f"A call cannot be interrupted {inside}." if state == "still-running" else None,
            fix="Wait longer, or give on_deadline='kill' to end the host (other calls are replayed)."
            if state == "still-running"
            else None,
            details={"state": state, "model": self._note.model},
        )

    # --- making the session ---

    def _id_in(self, process: HostProcess, deadline: float | None) -> int:
        """The session's number in this generation; makes the session there if it is not yet."""
        if process.generation == self._generation:
            return self._id
        if not self._lock.acquire(timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())):
            raise Deadline("not-started")
        try:
            if process.generation != self._generation:
                if self._generation:
                    self.manifest.source.check_unchanged()
                self._create(process, deadline)
            return self._id
        finally:
            self._lock.release()

    def _create(self, process: HostProcess, deadline: float | None) -> None:
        manifest = self.manifest
        encoder = Encoder()
        header: dict[str, Any] = {
            "op": "session.create",
            "spec": manifest.spec.to_wire(),
            "initializers": [encoder.add(value) for value in manifest.initializers],
        }
        if self._dynamic:
            header["dynamic"] = self._dynamic
        if manifest.seed is not None:
            header["seed"] = manifest.seed
        buffers: tuple[Any, ...] = tuple(encoder.buffers)
        if manifest.source.data is not None:
            # Behind the tensors.
            buffers += (manifest.source.data,)
        if deadline is not None:
            header["budget_s"] = max(1.0, deadline - time.monotonic())
        request_id: list[int] = []
        try:
            with self.host.gate(self._create_note, deadline):
                frame = process.call(header, buffers, deadline, self._create_note, request_id.append)
        except (Deadline, KeyboardInterrupt):
            # It may be made all the same; its number is that of the request.
            for number in request_id:
                self.host.release_later(process.generation, number)
            raise
        except BridgeError as error:
            from qnnbridge.diagnosis.ort_log import enrich_from_stderr

            raise enrich_from_stderr(error, process.stderr, request_id, LOG_TIMEOUT_S) from None
        self.info = _with_cause(SessionInfo.from_wire(frame.header["info"]), process, request_id[-1])
        self._id = int(frame.header["session"])
        self._generation = process.generation
        if self._moved_because is not None:
            placement = dataclasses.replace(self.info.placement, cause=self._moved_because)
            self.info = dataclasses.replace(self.info, placement=placement)
        if self._closed:
            self.host.release_later(self._generation, self._id)
        note = self._create_note
        self.host.recycler.created(process.generation, self._key)
        self.host.supervisor.good_reply(note, "creating")


def _with_cause(info: SessionInfo, process: HostProcess, request_id: int) -> SessionInfo:
    """A session that asked for QNN and got nothing there, with the reason if QNN did not even start.

    The host can only conclude from the outcome; the log names the fact.
    """
    placement = info.placement
    if not (placement.known and placement.backend and not placement.qnn_nodes):
        process.stderr.forget(request_id)
        return info
    from qnnbridge.diagnosis.ort_log import decode_stderr, explain_lines

    lines = decode_stderr(process.stderr.section(request_id, LOG_TIMEOUT_S)).splitlines()
    causes = [finding.cause for finding in explain_lines(lines) if finding.setup]
    if not causes:
        return info
    return dataclasses.replace(info, placement=dataclasses.replace(placement, cause=causes[0]))


class _Stop:
    """While a run is under way, hands ``RunOptions.terminate = True`` on to the host."""

    def __init__(self, options: RunOptions | None, process: HostProcess, told: bool) -> None:
        """told: the request itself says that it is to be stopped at once."""
        self._options = options
        self._told = told
        self._process = process
        self._request_id = 0
        self._remove: Callable[[], None] | None = None

    def __enter__(self) -> Callable[[int], None] | None:
        if self._options is None:
            return None
        self._remove = self._options.add_terminate_listener(self._on_terminate)
        return self._on_sent

    def __exit__(self, *_: object) -> None:
        if self._remove is not None:
            self._remove()

    def _on_sent(self, request_id: int) -> None:
        self._request_id = request_id
        if self._options is not None and self._options.terminate and not self._told:
            # Assigned before there was a number to send; and also before the listener, so nobody else does it.
            self._on_terminate(True)

    def _on_terminate(self, terminate: bool) -> None:
        if terminate and self._request_id:
            try:
                self._process.channel.cancel(self._request_id, time.monotonic() + CANCEL_TIMEOUT_S)
            except (BridgeError, ChannelFailed, ChannelRetired, Deadline):
                pass  # the run itself reports what happened
