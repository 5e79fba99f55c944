"""Handle the death of a host: collect the evidence, find the cause, write the crash report, assign the blame.

The modules that find the cause are imported after the host's HELLO, while the host imports ONNX Runtime: not
earlier, because the start does not need them, and not after a death, when memory or descriptors may be exhausted.
"""

from __future__ import annotations

import dataclasses
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from qnnbridge._diagnosis import CrashReports, processor_of
from qnnbridge._launch.stderr import decode_stderr
from qnnbridge._supervision.blame import Blame, NativeCall, Quarantine, Why
from qnnbridge._supervision.host_process import (
    ASKED_FOR,
    EXIT_WAIT_S,
    KILL_TIMEOUT_S,
    STDERR_TIMEOUT_S,
    HostProcess,
)
from qnnbridge._transport.channel import CallContext, ChannelFailed, Lost
from qnnbridge_protocol import __version__
from qnnbridge_protocol.errors import HostCrashed, HostError, HostHung, WorkerDied
from qnnbridge_protocol.fastpath import CALL_SHIFT

if TYPE_CHECKING:
    from qnnbridge._diagnosis.crash import CrashRecord, OpenCall
    from qnnbridge._diagnosis.exit_codes import ExitStatus

# Versions that a quarantine depends on. With other versions the model may work.
VERSIONS_THAT_MATTER = ("onnxruntime", "onnxruntime_qnn", "qnn_sdk", "driver")
# Versions that are added if the execution provider does not come from a wheel: a system update may replace the
# provider.
VERSIONS_OF_A_PROVIDER = ("ep_source", "ep_version")

# Operations that enter native code in the phase "running". To save one frame per run, the host does not declare
# this phase for a run without concurrent calls (ADR 0003).
RUNNING = ("session.run", "session.set_ep_dynamic_options", "genai.step")

# Phases of the host while it waits for work.
NOT_BUSY = (None, "ready")


@dataclasses.dataclass(frozen=True)
class DeathReport:
    """Result of an investigation.

    Attributes:
        error: error to raise to the callers.
        status: how the process ended; ``None`` if unknown.
        on_purpose: whether qnnbridge ended the process, because the application requested it or no longer needed
            the process.
        from_outside: true if no open call caused the end. The cause is then another process, a lack of memory, the
            deadline of another call, or the loss of the NPU.
        suspects: requests that were inside native code.
        undecided: suspects whose models run alone from now on, because it is not known which one caused the death.
        booked: whether a model was blamed.
    """

    error: HostError
    status: ExitStatus | None
    on_purpose: bool = False
    from_outside: bool = False
    suspects: frozenset[int] = frozenset()
    undecided: frozenset[int] = frozenset()
    booked: bool = False


class DeathHandler(Protocol):
    """Interface that the supervisor needs to handle deaths. One thread at a time calls `investigate`."""

    def on_ready(self, process: HostProcess) -> None: ...

    def check_quarantine(self, context: CallContext) -> None: ...

    def on_good_reply(self, context: CallContext, phase: str) -> None: ...

    def investigate(
        self,
        process: HostProcess,
        failure: ChannelFailed,
        suspect: CallContext | None = None,
        patience_s: float = EXIT_WAIT_S,
    ) -> DeathReport: ...

    def investigate_worker(self, process: HostProcess, error: WorkerDied, context: CallContext) -> HostCrashed: ...


class Investigator:
    """Find out why a host died. The supervisor's lock allows one investigation at a time."""

    def __init__(self, blame: Blame, quarantine: Quarantine, reports: CrashReports) -> None:
        self._blame = blame
        self._quarantine = quarantine
        self._reports = reports

    def on_ready(self, process: HostProcess) -> None:
        """Set the quarantine's versions from the host's HELLO, and set them again when the host reports further
        versions."""
        from qnnbridge._diagnosis import crash  # noqa: F401 - imported early, see the module's docstring

        requests, first = process.channel.requests, process.peer.versions

        def set_versions(more: Mapping[str, str]) -> None:
            self._quarantine.versions = _key({**first, **more})

        requests.on_versions = set_versions
        # Apply the versions that the host reported before the listener was set.
        set_versions(requests.host_versions)

    def check_quarantine(self, context: CallContext) -> None:
        """Raise `ModelQuarantined` if the model is in quarantine."""
        self._quarantine.check(context.fingerprint, context.options_hash)

    def on_good_reply(self, context: CallContext, phase: str) -> None:
        """Record that a model's native call succeeded."""
        if self._blame.quiet:
            return
        for points in self._blame.on_good_reply(_native_call(context, phase)):
            self._quarantine.add(points)

    def investigate(
        self,
        process: HostProcess,
        failure: ChannelFailed,
        suspect: CallContext | None = None,
        patience_s: float = EXIT_WAIT_S,
    ) -> DeathReport:
        """Find out why the connection to `process` failed. End the process if it still runs.

        Args:
            suspect: call during which the NPU was lost. The host has answered it, so it is not an open request.
            patience_s: seconds to wait until the process ends by itself.
        """
        from qnnbridge._diagnosis.crash import to_error

        # Read `killed_because` before the process is killed below, because `kill` sets it.
        on_purpose = process.killed_because is not None or _was_requested(failure)
        if failure.reason is not None:
            # End a process that violates the protocol or does not respond.
            process.kill(failure.reason.message)
        # The output ends before the process ends, so wait for the exit code.
        raw = process.exit_code(patience_s)
        if raw is None:
            process.kill("it closed its output but did not end")
            raw = process.exit_code(KILL_TIMEOUT_S)
        # QNN and Python write their last lines while the process ends. The cause is often unknown without these
        # lines.
        process.stderr.drain(min(STDERR_TIMEOUT_S, patience_s))
        status = _exit_status(raw, process)
        record = self._record(process, status, on_purpose=on_purpose)
        report = self._reports.write(record)
        # Assign the blame after the report is written, because the record of the blame contains the report's path.
        models = self._assign_blame(record, failure, report, suspect)
        if isinstance(failure.reason, HostError):
            error: HostError = failure.reason
            error.details.setdefault("report", str(report) if report else None)
        else:
            error = to_error(record, str(report) if report else None)
            if failure.reason is not None:
                error.cause = failure.reason.message
                error.evidence = failure.reason.evidence
        error.details.setdefault("generation", process.generation)
        return DeathReport(
            error,
            status,
            on_purpose,
            # If `suspect` is set, the NPU was lost in a call that the host has answered. No open call is to blame.
            on_purpose or suspect is not None or _from_outside(record, failure),
            frozenset(call.request_id for call in record.suspects),
            frozenset(call.request_id for call in record.suspects if models > 1 and call.fingerprint),
            models > 0,
        )

    def investigate_worker(self, process: HostProcess, error: WorkerDied, context: CallContext) -> HostCrashed:
        """Return why the compiler process of the host `process` died, judged by exit code and output.

        The compiler's output is in the host's stderr, between the markers of the request.
        """
        from qnnbridge._diagnosis.crash import CrashRecord, OpenCall, to_error

        details = error.details
        code, phase = details.get("exit_code"), details.get("phase")
        call = OpenCall(
            0,
            str(details.get("op") or "model.compile"),
            str(details.get("label") or context.model),
            str(details.get("fingerprint") or context.fingerprint),
            context.options_hash,
            str(phase) if phase is not None else None,
            known=str(details.get("known") or ""),
        )
        request = details.get("request")
        # The compiler process writes to the host's pipe, which stays open. Wait for the end marker, after which the
        # output is complete.
        said = process.stderr.section(request, STDERR_TIMEOUT_S) if type(request) is int else b""
        record = CrashRecord(
            exit=_exit_status(code if isinstance(code, int) else None, process, of_worker=True),
            host_phase=str(phase or "starting"),
            generation=process.generation,
            uptime_s=float(details.get("uptime_s") or 0.0),
            in_flight=(call,),
            # If the section of the compiler was not found, use the host's whole output.
            stderr_tail=decode_stderr(said or process.stderr.head() + process.stderr.tail()),
            ready=bool(details.get("ready", True)),
            **_environment_fields(process, ready=True, versions=details.get("versions")),
        )
        report = self._reports.write(record)
        self._assign_blame(record, ChannelFailed(), report, None)
        crashed = to_error(record, str(report) if report else None)
        crashed.details.setdefault("generation", process.generation)
        return crashed if isinstance(crashed, HostCrashed) else HostCrashed(error.message, cause=crashed.message)

    def _record(self, process: HostProcess, status: ExitStatus | None, *, on_purpose: bool) -> CrashRecord:
        from qnnbridge._diagnosis.crash import CrashRecord, OpenCall

        channel = process.channel
        lost = _with_implied_phase(channel.requests.lost)
        host_phase = channel.requests.host_phase
        ready = process.ready_at is not None
        if host_phase in NOT_BUSY:
            # For a host without a request, crash reports use the phase "starting" before its HELLO, and "idle"
            # afterwards.
            host_phase = "idle" if ready else "starting"
        return CrashRecord(
            exit=status,
            host_phase=str(host_phase),
            generation=process.generation,
            uptime_s=time.monotonic() - process.started_at,
            in_flight=tuple(
                OpenCall(one.request_id, phase=one.phase, **dataclasses.asdict(one.context)) for one in lost
            ),
            stderr_head=decode_stderr(process.stderr.head()),
            stderr_tail=decode_stderr(process.stderr.tail()),
            ready=ready,
            killed_because=process.killed_because,
            on_purpose=on_purpose,
            **_environment_fields(process, ready=ready),
        )

    def _assign_blame(
        self, record: CrashRecord, failure: ChannelFailed, report: object, suspect: CallContext | None
    ) -> int:
        """Assign the blame and return the number of blamed models. If several models are blamed, each runs alone
        from now on."""
        suspects = [_native_call(call, str(call.phase)) for call in record.suspects]
        why: Why = "died"
        if suspect is not None:
            why, suspects = "hung", [_native_call(suspect, "running")]
        # qnnbridge ended the host, either because a call hung, which is then to blame, or for a reason unrelated to
        # any call.
        elif record.killed_because is not None:
            why = "hung" if isinstance(failure.reason, HostHung) else "ended-by-us"
        elif record.memory_ran_out:
            why = "memory-ran-out"
        booked = self._blame.on_death(record.exit, suspects, why)
        for points in booked:
            text = record.exit.describe() if record.exit is not None else ""
            account = self._quarantine.add(points, exit_text=text, report=str(report) if report else None)
            if account is not None:
                # The model is in quarantine and refused from now on, so it does not have to run alone.
                self._blame.forget(points.call.fingerprint)
        return len(booked)


def _environment_fields(
    process: HostProcess, *, ready: bool, versions: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return the fields of a crash report that describe the host and the machine.

    Args:
        ready: whether the host has sent its HELLO.
        versions: versions that the compiler process reported, if it died.
    """
    peer = process.peer if ready else None
    return {
        "memory_ran_out": process.memory_ran_out,
        "processor": processor_of(peer.machine if peer else ""),
        "interpreter": peer.executable if peer else "",
        "versions": {**process.versions, **(versions or {}), "qnnbridge": peer.qnnbridge} if peer else {},
        "application_versions": {"qnnbridge": __version__, "python": sys.version.partition(" ")[0]},
    }


def _key(versions: Mapping[str, str]) -> str:
    """Return the versions that a quarantine depends on, as one string."""
    names: tuple[str, ...] = VERSIONS_THAT_MATTER
    if versions.get("ep_source", "wheel") != "wheel":
        names += VERSIONS_OF_A_PROVIDER
    return ", ".join(f"{name} {versions[name]}" for name in names if name in versions)


def _exit_status(raw: int | None, process: HostProcess, *, of_worker: bool = False) -> ExitStatus | None:
    """Return how a process ended. of_worker: whether `raw` is the exit code of the compiler process. The host
    reports this code in the format of the host's operating system."""
    from qnnbridge._diagnosis.exit_codes import ExitStatus, from_low_byte

    if raw is None:
        return None
    theirs = process.peer.platform if process.ready_at is not None and process.peer.platform else sys.platform
    # For a Windows host under Wine, the Linux parent receives only 8 of the 32 bits of the exit code (see
    # docs/dev/verification.md). The output of Python's faulthandler on stderr may contain the whole code.
    if theirs == "win32" and sys.platform != "win32" and not of_worker:
        return from_low_byte(raw, decode_stderr(process.stderr.head() + b"\n" + process.stderr.tail()))
    return ExitStatus(raw, "win32" if theirs == "win32" else "posix")


def _from_outside(record: CrashRecord, failure: ChannelFailed) -> bool:
    """Return whether a process outside the host, or the kernel, ended the host. A lack of memory counts, because
    the kernel may end any large process."""
    if failure.reason is not None:
        return failure.reason.details.get("from_outside") is True
    if record.killed_because is not None or record.exit is None:
        return False
    # SIGKILL leaves no trace of its sender, so it counts as a kill from outside.
    return record.from_outside or record.exit.code.fault == "kill"


def _was_requested(failure: ChannelFailed) -> bool:
    """Return whether the application requested the end of the host, according to `failure`."""
    return failure.reason is not None and bool(failure.reason.details.get(ASKED_FOR))


def _native_call(call: CallContext | OpenCall, phase: str) -> NativeCall:
    return NativeCall(call.fingerprint, call.options_hash, phase, call.model, call.entry)


def _with_implied_phase(lost: tuple[Lost, ...]) -> tuple[Lost, ...]:
    """Set the phase "running" for calls that are inside native code although the host declared no phase for them.

    The host declares no phase for a request that is alone in the host (ADR 0003). If the host declared no phase at
    all, it has read only the oldest request, so mark this call. If any call is on a fast channel, mark all calls,
    because it is unknown which call is the oldest.
    """
    if any(one.phase for one in lost):
        return lost
    inside = [one for one in lost if one.context.op in RUNNING and one.sent]
    if not any(one.request_id >> CALL_SHIFT for one in inside):
        inside = inside[:1]
    return tuple(dataclasses.replace(one, phase="running") if one in inside else one for one in lost)
