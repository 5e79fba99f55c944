"""The client of a worker process: a host process of the same package that does one task and ends.

Each compilation uses a fresh process, because the precision of one compilation leaks into the next in the same
process, because QNN leaks memory in each, and because a compiler that crashes must not end open sessions. The
worker inherits descriptor 2, so its stderr (error causes, markers, stack traces of crashes) is collected together
with the host's. The worker ends with the serving host, when its request is cancelled, and at the deadline. Not
thread-safe.
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
from qnnbridge_host.model.optimizers import LEVEL_ENTRY, LEVEL_OFF, OPTIMIZATION_LEVEL, exact
from qnnbridge_host.model.scan import scan_model
from qnnbridge_os.descriptors import ByteReader, ByteWriter, blocking_write
from qnnbridge_protocol.connection import FEATURES, SHARING_FEATURES, Connection, Hello, Role, State
from qnnbridge_protocol.errors import (
    BridgeError,
    HostHung,
    HostStartFailed,
    ProtocolDesync,
    WorkerDied,
    from_wire,
    late_compilation,
)
from qnnbridge_protocol.frames import Frame, Kind
from qnnbridge_protocol.specs import CPU, ProviderSpec, SessionInfo, SessionSpec
from qnnbridge_protocol.values import Encoder, decode_all
from qnnbridge_protocol.visible import log_of

_log = log_of("qnnbridge.compiling")

# Timeout for each of two steps: from the start to HELLO, and then until ONNX Runtime and QNN are loaded.
START_TIMEOUT_S: Final = 60.0
# Timeout for the exit of a finished worker; QNN's own clean-up takes a moment, and may hang.
END_TIMEOUT_S: Final = 10.0
# Niceness of a worker while no caller waits for its result, on systems that have nice values.
PATIENT_NICENESS: Final = 10
# Interval of the checks for an expired timeout.
LOOK_EVERY_S: Final = 0.1
# A worker is killed if it is found stopped in this many consecutive checks. Checks are counted instead of seconds,
# because the clock also advances while the machine sleeps.
STOPPED_LOOKS: Final = 6
STOPPED_LOOK_EVERY_S: Final = 5.0
# Session options that a reference session does not use: they concern the optimised graph, and files that the
# session writes.
_NOT_IN_THE_REFERENCE: Final = (OPTIMIZATION_LEVEL, "optimized_model_filepath", "enable_profiling")
_NOT_ON_THE_CPU: Final = ("ep.qnn", "session.disable_cpu_ep_fallback", LEVEL_ENTRY)


class Worker:
    """A worker process and the messages to and from it.

    Use the context manager `running`. When its block ends, the process has exited and `exit_code` is set.
    """

    def __init__(self, order: WorkOrder) -> None:
        self._order = order
        self._process: subprocess.Popen[bytes] | None = None
        # A worker gets only a few requests, so fast channels and shared memory are not worth the effort.
        hello = Hello(
            features=FEATURES - SHARING_FEATURES,
            limits=order.limits,
            pid=os.getpid(),
            executable=sys.executable,
            platform=sys.platform,
        )
        self._connection = Connection(Role.CLIENT, hello)
        self._arrived: list[Frame] = []
        # The worker's last reported native step: `_phase` in the current request, `_loading` during the start.
        self._phase: str | None = None
        self._loading: str | None = None
        # Why the worker was killed; ``None`` if it was not.
        self._because: str | None = None
        self._op = ""
        # The model on which the worker currently works, for crash reports.
        self.model = order.model
        # Time (`time.monotonic`) at which the worker is killed, and the reason.
        self._deadline: tuple[float, str] | None = None
        self._ended = threading.Event()
        # The raw exit code if the worker ended by itself; ``None`` if it was killed.
        self.exit_code: int | None = None

    @property
    def versions(self) -> dict[str, str]:
        """Versions of the worker's packages, from its HELLO."""
        peer = self._connection.peer
        return {} if peer is None else {**peer.versions, "qnnbridge": peer.qnnbridge}

    @property
    def pid(self) -> int | None:
        """Process id; ``None`` before the start."""
        return None if self._process is None else self._process.pid

    @contextlib.contextmanager
    def running(self) -> Iterator[Worker]:
        """Start the worker, and end it after the block.

        Raises:
            Cancelled, DeadlineExceeded: the request was withdrawn, or its deadline expired.
            HostStartFailed: the process cannot be started, or was not ready in time.
            WorkerDied: the process ended unexpectedly.
        """
        # From here on a cancellation kills the worker, even during the start (`_start` checks again).
        with self._order.stop.calling(lambda: self.kill("cancelled")):
            try:
                self._start()
                yield self
                # Wait for a normal exit only after a success; after an error the worker is killed at once.
                self._finish()
            finally:
                self._end()

    def call(self, header: dict[str, Any], buffers: tuple[Any, ...] = ()) -> Frame:
        """Send a request and return the reply.

        Raises:
            WorkerDied: the worker ended without a response.
            Cancelled, DeadlineExceeded: the worker was killed.
            BridgeError: the worker's error.
        """
        self._op = str(header["op"])
        # A host sends no PHASE frame for a run that is its only request (ADR 0003), so set the phase here.
        self._phase = "running" if self._op == "session.run" else None
        header = {**header, "mark": self._order.request}
        left_s = self._order.left_s
        if left_s is not None:
            header["budget_s"] = max(1.0, left_s)
        number, chunks = self._connection.ask(Kind.REQUEST, header, buffers)
        self._write(chunks)
        while True:
            frame = self._next()
            # Skip other frames, such as PHASE frames, which `_next` has already evaluated.
            if frame.request_id != number or frame.kind not in (Kind.REPLY, Kind.ERROR):
                continue
            if frame.kind is Kind.ERROR:
                raise from_wire(frame.header["error"])
            return frame

    def call_with_model(
        self, header: Mapping[str, Any], initializers: Sequence[Any] = (), data: Any | None = None
    ) -> Frame:
        """Send a request with initializers, and with the model if it was given as bytes; return the reply."""
        encoder = Encoder()
        described = [encoder.add(value) for value in initializers]
        buffers: tuple[Any, ...] = tuple(encoder.buffers)
        if data is not None:
            buffers += (data,)
        return self.call({**header, "initializers": described}, buffers)

    def kill(self, because: str) -> None:
        """Kill the worker; callable in any thread.

        because: reason for `_death`: "cancelled", "deadline", "start", "stopped", "end" or "".
        """
        self._because = self._because or because
        process = self._process
        if process is not None:
            with contextlib.suppress(OSError):
                process.kill()

    # --- start and end of the process ---

    def _start(self) -> None:
        order = self._order
        order.stop.check()
        if order.left_s == 0.0:
            raise late_compilation(order.model.label, order.budget_s, "not-started")
        try:
            # `bufsize=0`, because the descriptors are read and written directly. CREATE_NO_WINDOW, because Windows
            # would open a console window for the child of a host without a console.
            self._process = subprocess.Popen(
                order.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=2,
                bufsize=0,
                creationflags=getattr(subprocess, "CREATE_NO_WINDOW", 0)
                | (getattr(subprocess, "BELOW_NORMAL_PRIORITY_CLASS", 0) if order.patient else 0),
            )
            # Set the niceness after the start, because `preexec_fn` is not safe in a process with threads.
            if order.patient and sys.platform != "win32":
                with contextlib.suppress(OSError):
                    os.setpriority(os.PRIO_PROCESS, self._process.pid, PATIENT_NICENESS)
        except (OSError, ValueError) as error:
            raise HostStartFailed(
                f"The process that compiles {order.model.label} could not be started: {error}.",
                details={"command": list(order.command)},
            ) from None
        if self._because is not None:  # another thread killed the worker during the start
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
        """Let the worker exit after its work is done, and record the exit code."""
        assert self._process is not None
        with contextlib.suppress(OSError, BridgeError):
            if self._connection.state is State.READY:
                self._writer.write_all(self._connection.send(Frame(Kind.GOODBYE, 0, {})))
            self._guard(END_TIMEOUT_S, "end")
            # Read to the end of the stream, because a worker with a full pipe waits until somebody reads.
            while self._read():
                pass
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(END_TIMEOUT_S)
            # The exit code of a killed worker is meaningless.
            self.exit_code = None if self._because is not None else code

    def _end(self) -> None:
        self._ended.set()
        process = self._process
        if process is None:
            return
        with contextlib.suppress(OSError):
            process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # a driver may block the process in the kernel
            process.wait(END_TIMEOUT_S)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _guard(self, timeout_s: float | None, because: str) -> None:
        """Set the time at which `_watch` kills the worker; ``None``: only the request's deadline counts."""
        deadline, of_order = None if timeout_s is None else time.monotonic() + timeout_s, self._order.deadline
        if of_order is not None and (deadline is None or of_order < deadline):
            deadline, because = of_order, "deadline"
        self._deadline = None if deadline is None else (deadline, because)

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Kill the worker when the time set by `_guard` has passed or it stays stopped. Runs in its own thread."""
        seen_stopped, next_look = 0, time.monotonic() + STOPPED_LOOK_EVERY_S
        while not self._ended.wait(LOOK_EVERY_S):
            # Read the attribute once: `_guard` replaces time and reason together.
            deadline, now = self._deadline, time.monotonic()
            if deadline is not None and now >= deadline[0]:
                self.kill(deadline[1])
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
                # The worker has loaded its libraries. From here on only the deadline limits it.
                self._guard(None, "")
        return frame

    def _read(self) -> bool:
        """Read from the worker's stream; return False at its end."""
        return self._reader.read_into(self._connection.get_buffer(), self._take)

    def _take(self, count: int) -> bool:
        if count:
            self._arrived.extend(self._connection.received(count))
        return bool(count)

    def _death(self) -> BridgeError:
        """Return the error that describes the end of the worker."""
        order, phase = self._order, self._phase or self._loading
        assert self._process is not None
        self._guard(None, "")
        if self._because == "cancelled":
            order.stop.check()
        if self._because == "deadline":
            return late_compilation(order.model.label, order.budget_s)
        if self._because == "start":
            return HostStartFailed(
                f"The process that compiles {order.model.label} was not ready within {START_TIMEOUT_S:g} s.",
                cause=f"It was in the phase {phase}." if phase else None,
                details={"phase": phase},
            )
        if self._because == "stopped":
            return HostHung(
                f"The process that compiles {order.model.label} was suspended and not resumed; it was terminated.",
                cause="Another process suspended the worker (SIGSTOP, a debugger).",
                fix="Compile again.",
                details={"phase": phase},
            )
        # Wait for the end of the process: it may run for a moment after its streams end.
        try:
            code: int | None = self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        # Write the marker that the worker could not write: the application waits for it before it reports the
        # crash.
        mark("end", order.request)
        return WorkerDied(
            f"The process that compiles {self.model.label} ended unexpectedly.",
            details={
                "exit_code": code,
                "phase": phase,
                "op": self._op,
                "label": self.model.label,
                "fingerprint": self.model.fingerprint,
                "versions": self.versions,
                "request": order.request,
            },
        )


def _is_stopped(pid: int) -> bool:
    import psutil  # imported only here, because the import takes 12 ms

    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


@contextlib.contextmanager
def ticking(on_progress: Callable[[float], None], every_s: float = 0.2) -> Iterator[None]:
    """Call `on_progress` at once and periodically with the seconds since the start, while the block runs.

    The calls come from a separate thread. Errors of `on_progress` are only logged, because they must not make the
    work fail.
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
        # Wait for the thread, so that no progress is reported after the block.
        thread.join()


# --- a session in the worker -----------------------------------------------------------------------------


class WorkerSession:
    """Proxy of a session in the worker."""

    def __init__(
        self, worker: Worker, spec: SessionSpec, initializers: Sequence[Any] = (), data: bytes | None = None
    ) -> None:
        self._worker = worker
        reply = worker.call_with_model({"op": "worker.create", "spec": spec.to_wire()}, initializers, data).header
        self._number = reply["session"]
        self.info = SessionInfo.from_wire(reply["info"])

    def run(self, feeds: Mapping[str, Any], outputs: Sequence[str] | None = None) -> list[Any]:
        """Run the session; return the requested outputs, or all of them."""
        encoder = Encoder()
        inputs = [[name, encoder.add(value)] for name, value in feeds.items()]
        header = {"op": "session.run", "session": self._number, "outputs": outputs, "inputs": inputs}
        frame = self._worker.call(header, tuple(encoder.buffers))
        return decode_all(frame.header["outputs"], frame.buffers)

    def close(self) -> None:
        """Release the session's memory. The worker can then open another session."""
        self._worker.call({"op": "session.close", "session": self._number})


def on_cpu(job: CompilerInput, level: int, disabled: Sequence[str] = ()) -> SessionSpec:
    """Return the description of a session of the original model on the CPU only.

    The session writes no files, and its kernels compute quantised products without saturation.

    Args:
        job: the model and the description of its session on QNN.
        level: level of graph optimisation.
        disabled: the optimizers to leave out.
    """
    optimization = exact(level, disabled, scan_model(job.source.given).ops)
    entries = without_compiling(job.spec.config_entries)
    return dataclasses.replace(
        job.spec,
        # Drop QNN's options, which do not apply, and `disable_cpu_ep_fallback`, which refuses every session on the
        # CPU alone.
        providers=(ProviderSpec(CPU),),
        options={name: value for name, value in job.spec.options.items() if name not in _NOT_IN_THE_REFERENCE}
        | {OPTIMIZATION_LEVEL: optimization.level},
        config_entries={key: text for key, text in entries.items() if not key.startswith(_NOT_ON_THE_CPU)}
        | dict(optimization.entries),
        disabled_optimizers=optimization.disabled,
    )


def open_original(worker: Worker, job: CompilerInput) -> WorkerSession:
    """Open the reference: a session of the unchanged original model on the CPU only.

    ONNX Runtime's graph optimizers are disabled, because a faulty optimizer would change the reference and the
    tested session in the same way. Optimizers drop requantisations; on the CPU they also give the activations of
    quantised MatMul nodes 8 bits, and replace some patterns by a wrong LayerNormalization (docs/numbers.md).
    """
    return WorkerSession(worker, on_cpu(job, LEVEL_OFF), job.initializers, job.source.data)
