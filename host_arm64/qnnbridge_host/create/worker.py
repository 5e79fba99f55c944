"""The client of a worker: a host process of the same package that does one piece of work and ends.

A fresh process for every compilation, because the precision of one leaks into the next of the same process,
because QNN leaks memory with each, and because a compiler that dies must not take sessions with it. The worker
inherits descriptor 2: its output there (causes, markers, the stack of a crash) arrives where the host's
own stderr does. It ends with the serving host, when its request is cancelled, and past the deadline. One thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from qnnbridge_host.create.order import WorkOrder
from qnnbridge_host.create.publish import CompilerInput, without_compiling
from qnnbridge_host.engine.sessions import mark
from qnnbridge_host.model.optimizers import LEVEL_ENTRY, LEVEL_OFF, OPTIMIZATION_LEVEL
from qnnbridge_os.descriptors import ByteReader, ByteWriter, blocking_write
from qnnbridge_protocol.connection import FEATURES, SHARING_FEATURES, Connection, Hello, Role, State
from qnnbridge_protocol.errors import (
    BridgeError,
    DeadlineExceeded,
    HostHung,
    HostStartFailed,
    ProtocolDesync,
    WorkerDied,
    from_wire,
)
from qnnbridge_protocol.frames import Frame, Kind
from qnnbridge_protocol.specs import CPU, ProviderSpec, SessionInfo, SessionSpec
from qnnbridge_protocol.values import Encoder, decode_all
from qnnbridge_protocol.visible import log_of

_log = log_of("qnnbridge.compiling")

# Until its HELLO, and again until ONNX Runtime and QNN are loaded there.
START_TIMEOUT_S: Final = 60.0
# Time for the end of a finished worker; QNN's own clean-up takes a moment, and may hang.
END_TIMEOUT_S: Final = 10.0
# Of a process that nothing waits for, where there is such a number.
PATIENT_NICENESS: Final = 10
# Between two looks whether its time is over.
LOOK_EVERY_S: Final = 0.1
# A worker that is found stopped so often in a row is ended. Looks are counted, not seconds: after a sleep of the
# machine the clock alone would condemn it.
STOPPED_LOOKS: Final = 6
STOPPED_LOOK_EVERY_S: Final = 5.0
# Options of a session about its optimised graph and its own files, which a reference does not take over.
_OF_OPTIMISING: Final = (OPTIMIZATION_LEVEL, "optimized_model_filepath", "enable_profiling")


class Worker:
    """A worker process and the messages to and from it.

    A context manager; at the end of the block the process has ended with `exit_code`.
    """

    def __init__(self, order: WorkOrder) -> None:
        self._order = order
        self._process: subprocess.Popen[bytes] | None = None
        # A worker gets one request, or a few: channels and shared memory would not pay.
        hello = Hello(
            features=FEATURES - SHARING_FEATURES,
            limits=order.limits,
            pid=os.getpid(),
            executable=sys.executable,
            platform=sys.platform,
        )
        self._connection = Connection(Role.CLIENT, hello)
        self._arrived: list[Frame] = []
        # Native steps that it declared: of the request, and of its own start.
        self._phase: str | None = None
        self._loading: str | None = None
        self._because: str | None = None
        self._op = ""
        # Of the model that it works on, for the report of a death.
        self.label, self.fingerprint = order.label, order.fingerprint
        # When it is killed (`time.monotonic`), and why.
        self._limit: tuple[float, str] | None = None
        self._ended = threading.Event()
        # Raw, once it has ended by itself; ``None`` if it had to be killed.
        self.exit_code: int | None = None

    @property
    def versions(self) -> dict[str, str]:
        """Versions of its packages, from its HELLO."""
        peer = self._connection.peer
        return {} if peer is None else {**peer.versions, "qnnbridge": peer.qnnbridge}

    @property
    def pid(self) -> int | None:
        """Once it was started."""
        return None if self._process is None else self._process.pid

    @contextlib.contextmanager
    def running(self) -> Iterator[Worker]:
        """Start it, and end it after the block."""
        # From here on a cancel kills it, also while it starts (`_start` looks once more).
        with self._order.stop.calling(lambda: self.kill("cancelled")):
            try:
                self._start()
                yield self
                # Only after a success. After an error it is killed at once.
                self._finish()
            finally:
                self._end()

    def call(self, header: dict[str, Any], buffers: tuple[Any, ...] = ()) -> Frame:
        """The reply to a request.

        Raises:
            WorkerDied: it ended without an answer.
            Cancelled, DeadlineExceeded: it was ended.
            BridgeError: the worker's error.
        """
        self._op = str(header["op"])
        # The only request in a host declares no run (ADR 0003).
        self._phase = "running" if self._op == "session.run" else None
        header = {**header, "mark": self._order.request}
        left_s = self._order.left_s
        if left_s is not None:
            header["budget_s"] = max(1.0, left_s)
        number, chunks = self._connection.ask(Kind.REQUEST, header, buffers)
        self._write(chunks)
        while True:
            frame = self._next()
            # PHASE frames in between are noted by `_next`.
            if frame.request_id != number or frame.kind not in (Kind.REPLY, Kind.ERROR):
                continue
            if frame.kind is Kind.ERROR:
                raise from_wire(frame.header["error"])
            return frame

    def call_with_model(
        self, header: Mapping[str, Any], initializers: Sequence[Any] = (), data: Any | None = None
    ) -> Frame:
        """A request that carries initializers, and the model if that has no path."""
        encoder = Encoder()
        described = [encoder.add(value) for value in initializers]
        buffers: tuple[Any, ...] = tuple(encoder.buffers)
        if data is not None:
            buffers += (data,)
        return self.call({**header, "initializers": described}, buffers)

    def kill(self, because: str) -> None:
        """End it now: "cancelled", "deadline", "start", "stopped" or "end". Any thread."""
        self._because = self._because or because
        process = self._process
        if process is not None:
            with contextlib.suppress(OSError):
                process.kill()

    # --- life ---

    def _start(self) -> None:
        order = self._order
        order.stop.check()
        if order.left_s == 0.0:
            raise too_late(order, "not-started")
        try:
            # Raw descriptors are used, so without buffers. CREATE_NO_WINDOW: a host without a console would open
            # one for its child.
            self._process = subprocess.Popen(
                order.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=2,
                bufsize=0,
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0)
                | (getattr(subprocess, "BELOW_NORMAL_PRIORITY_CLASS", 0) if order.patient else 0),
            )
            # Not by `preexec_fn`, which is not safe in a process with threads.
            if order.patient and sys.platform != "win32":
                with contextlib.suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, self._process.pid, PATIENT_NICENESS)
        except (OSError, ValueError) as error:
            raise HostStartFailed(
                f"The process that compiles {order.label} could not be started: {error}.",
                details={"command": list(order.command)},
            ) from None
        if self._because is not None:  # meanwhile
            self._process.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._reader = ByteReader(self._process.stdout.fileno())
        self._writer = ByteWriter(blocking_write(self._process.stdin.fileno()))
        self._guard(START_TIMEOUT_S, "start")
        threading.Thread(
            target=self._watch, args=(self._process,), name="qnnbridge worker watch", daemon=True
        ).start()
        self._write(self._connection.send_hello())
        frame = self._next()
        if frame.kind is Kind.HELLO_ERR:
            raise from_wire(frame.header["error"])
        self._guard(START_TIMEOUT_S, "start")

    def _finish(self) -> None:
        """Its work is done: it ends by itself, with or without an error."""
        assert self._process is not None
        with contextlib.suppress(OSError, BridgeError):
            if self._connection.state is State.READY:
                self._writer.write_all(self._connection.send(Frame(Kind.GOODBYE, 0, {})))
            self._guard(END_TIMEOUT_S, "end")
            # Read to its end: a worker whose pipe is full would wait for a reader.
            while self._read():
                pass
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(END_TIMEOUT_S)
            # Of one that had to be killed, the code says only that.
            self.exit_code = None if self._because is not None else code

    def _end(self) -> None:
        self._ended.set()
        process = self._process
        if process is None:
            return
        with contextlib.suppress(OSError):
            process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may hold it in the kernel
            process.wait(END_TIMEOUT_S)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _guard(self, seconds: float | None, because: str) -> None:
        """Kill it after this time, or at an earlier deadline. ``None``: only at a deadline."""
        until, deadline = None if seconds is None else time.monotonic() + seconds, self._order.deadline
        if deadline is not None and (until is None or deadline < until):
            until, because = deadline, "deadline"
        self._limit = None if until is None else (until, because)

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Kill it when its time is over, or when it is stopped and does not go on. A thread of its own."""
        seen_stopped, next_look = 0, time.monotonic() + STOPPED_LOOK_EVERY_S
        while not self._ended.wait(LOOK_EVERY_S):
            # Read once: `_guard` replaces time and reason together.
            limit, now = self._limit, time.monotonic()
            if limit is not None and now >= limit[0]:
                self.kill(limit[1])
                return
            if now >= next_look:
                next_look = now + STOPPED_LOOK_EVERY_S
                seen_stopped = seen_stopped + 1 if _is_stopped(process.pid) else 0
                if seen_stopped >= STOPPED_LOOKS:
                    self.kill("stopped")
                    return

    # --- frames ---

    def _write(self, chunks: list[memoryview]) -> None:
        try:
            self._writer.write_all(chunks)
        except OSError:
            raise self._death() from None

    def _next(self) -> Frame:
        while not self._arrived:
            try:
                if not self._read():
                    raise self._death()
            except OSError:
                raise self._death() from None
            except ProtocolDesync:
                self.kill("")
                raise
        frame = self._arrived.pop(0)
        if frame.kind is Kind.PHASE:
            phase = str(frame.header.get("phase"))
            if frame.request_id:
                self._phase = phase
            elif phase != "ready":
                self._loading = phase
            else:
                self._loading = None
                # It is loaded. From here on only the deadline limits it.
                self._guard(None, "")
        return frame

    def _read(self) -> bool:
        """Whether the stream continues."""
        return self._reader.read_into(self._connection.get_buffer(), self._take)

    def _take(self, count: int) -> bool:
        if count:
            self._arrived.extend(self._connection.received(count))
        return bool(count)

    def _death(self) -> BridgeError:
        """The error for a process that is gone."""
        order, phase = self._order, self._phase or self._loading
        assert self._process is not None
        self._guard(None, "")
        if self._because == "cancelled":
            order.stop.check()
        if self._because == "deadline":
            return too_late(order)
        if self._because == "start":
            return HostStartFailed(
                f"The process that compiles {order.label} was not ready within {START_TIMEOUT_S:g} s.",
                cause=f"It was in the phase {phase}." if phase else None,
                details={"phase": phase},
            )
        if self._because == "stopped":
            return HostHung(
                f"The process that compiles {order.label} was stopped and did not go on; it was ended.",
                cause="Another process stopped it (SIGSTOP, a debugger, a suspended process).",
                fix="Compile again.",
                details={"phase": phase},
            )
        # Its streams end a moment before the process does.
        try:
            code: int | None = self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        # The worker could not write it: the application waits for it with its report.
        mark("end", order.request)
        return WorkerDied(
            f"The process that compiles {self.label} ended unexpectedly.",
            details={
                "exit_code": code,
                "phase": phase,
                "op": self._op,
                "label": self.label,
                "fingerprint": self.fingerprint,
                "versions": self.versions,
                "request": order.request,
            },
        )


def _is_stopped(pid: int) -> bool:
    import psutil  # 12 ms, for a compilation that takes seconds

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def too_late(order: WorkOrder, state: str = "stopped") -> DeadlineExceeded:
    """The time is over, and the worker was ended."""
    within = f" within {order.budget_s:g} s" if order.budget_s is not None else " in time"
    return DeadlineExceeded(
        f"{order.label} was not compiled{within}; the compiler was ended.",
        cause="Compiling takes from a second to many minutes, and cannot be interrupted in any other way.",
        fix="Give it more time (timeout=, --timeout), or none for as long as it takes.",
        details={"state": state, "model": order.label},
    )


@contextlib.contextmanager
def ticking(on_progress: Callable[[float], None], every_s: float = 0.2) -> Iterator[None]:
    """While the block runs, `on_progress` is called with the seconds since its start, at once and periodically.

    From a thread of its own. Its errors are only logged: showing progress must not decide whether the work
    succeeds.
    """
    done = threading.Event()
    begun = time.monotonic()

    def tick() -> None:
        try:
            on_progress(0.0)
            while not done.wait(every_s):
                on_progress(time.monotonic() - begun)
        except Exception:  # noqa: BLE001 - see above
            _log.exception("on_progress failed")

    thread = threading.Thread(target=tick, name="qnnbridge progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        # So that no progress is shown after the block.
        thread.join()


# --- a session in it -------------------------------------------------------------------------------------


class WorkerSession:
    """A session in the worker."""

    def __init__(
        self, worker: Worker, spec: SessionSpec, initializers: Sequence[Any] = (), data: bytes | None = None
    ) -> None:
        self._worker = worker
        reply = worker.call_with_model({"op": "worker.create", "spec": spec.to_wire()}, initializers, data).header
        self._number = reply["session"]
        self.info = SessionInfo.from_wire(reply["info"])

    def run(self, feeds: Mapping[str, Any], outputs: Sequence[str] | None = None) -> list[Any]:
        encoder = Encoder()
        inputs = [[name, encoder.add(value)] for name, value in feeds.items()]
        header = {"op": "session.run", "session": self._number, "outputs": outputs, "inputs": inputs}
        frame = self._worker.call(header, tuple(encoder.buffers))
        return decode_all(frame.header["outputs"], frame.buffers)

    def close(self) -> None:
        """Release its memory; the worker can open another session."""
        self._worker.call({"op": "session.close", "session": self._number})


def optimised(spec: SessionSpec, level: int, disabled: Sequence[str] = ()) -> SessionSpec:
    """Return the spec at another level of graph optimisation, without files that ONNX Runtime would write."""
    return dataclasses.replace(
        spec,
        options={name: value for name, value in spec.options.items() if name not in _OF_OPTIMISING}
        | {OPTIMIZATION_LEVEL: level},
        config_entries={key: text for key, text in spec.config_entries.items() if key != LEVEL_ENTRY},
        disabled_optimizers=tuple(disabled),
    )


def on_cpu(job: CompilerInput) -> SessionSpec:
    """The session of the original model on the CPU alone, optimised as the job says."""
    entries = without_compiling(job.spec.config_entries)
    return dataclasses.replace(
        job.spec,
        # QNN's options do not apply, and `disable_cpu_ep_fallback` would refuse a session on the CPU alone.
        providers=(ProviderSpec(CPU),),
        config_entries={
            key: text
            for key, text in entries.items()
            if not key.startswith("ep.qnn") and key != "session.disable_cpu_ep_fallback"
        },
    )


def open_original(worker: Worker, job: CompilerInput) -> WorkerSession:
    """The original model on the CPU alone, exactly as its file has it: the reference.

    ONNX Runtime's graph optimizers are off. A reference must not share them with what it judges: they drop
    requantisations, and on the CPU they compute quantised MatMul nodes with 8-bit activations and some patterns of
    LayerNormalization wrongly (docs/numbers.md).
    """
    return WorkerSession(worker, optimised(on_cpu(job), LEVEL_OFF), job.initializers, job.source.data)
