"""Makes a session in one host: the request, the answer, and the cause of a failure from the host's log.

What the first run needs is loaded while the host is busy with the session: both take as long as numpy.
Owns nothing: the caller keeps the session's number and releases it. Any thread.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from qnnbridge._transport.channel import CallContext, Deadline
from qnnbridge_protocol.errors import BridgeError
from qnnbridge_protocol.specs import SessionInfo, SessionSpec

if TYPE_CHECKING:
    from qnnbridge._daemon.session import DaemonSession
    from qnnbridge._host import Host
    from qnnbridge._transport.host_process import HostProcess

LOG_TIMEOUT_S: Final = 1.0
"""How long to wait for the host's log lines of a failed creation."""


@dataclasses.dataclass(frozen=True, slots=True)
class CreateRequest:
    """What a host is told.

    data: of a model that has no path. dynamic: options to set at once. seed: of random operators, if one was set.
    shared: what a daemon is told besides, and says.
    """

    spec: SessionSpec
    initializers: Sequence[Any]
    data: bytes | None
    dynamic: Mapping[str, str]
    seed: int | None = None
    shared: DaemonSession | None = None


def make_session(
    host: Host, process: HostProcess, making: CreateRequest, context: CallContext, deadline: float | None
) -> tuple[int, SessionInfo]:
    """The session's number in `process`, and what it is. Raises what the host raises, with the cause from its log.

    A session of which the answer is not waited for is released with a later call.
    """
    buffers: tuple[Any, ...] = ()
    initializers: list[Any] = []
    if making.initializers:
        from qnnbridge_protocol.values import Encoder

        encoder = Encoder()
        initializers = [encoder.add(value) for value in making.initializers]
        buffers = tuple(encoder.buffers)
    header: dict[str, Any] = {
        "op": "session.create",
        "spec": making.spec.to_wire(),
        "initializers": initializers,
    }
    if making.dynamic:
        header["dynamic"] = dict(making.dynamic)
    if making.seed is not None:
        header["seed"] = making.seed
    if making.shared is not None:
        header |= making.shared.request()
    if making.data is not None:
        # Behind the tensors.
        buffers += (making.data,)
    if deadline is not None:
        header["budget_s"] = max(1.0, deadline - time.monotonic())
    request_id: list[int] = []

    def on_sent(number: int) -> None:
        request_id.append(number)
        from qnnbridge import _preload as needed_by_runs  # noqa: F401 - while the host is busy

    try:
        with host.gate(context, deadline):
            frame = process.call(header, buffers, deadline, context, on_sent)
    except (Deadline, KeyboardInterrupt):
        # It may be made all the same; its number is that of the request.
        for number in request_id:
            host.release_later(process.generation, number)
        raise
    except BridgeError as error:
        from qnnbridge._diagnosis.ort_log import enrich_from_stderr

        raise enrich_from_stderr(error, process.stderr, request_id, LOG_TIMEOUT_S) from None
    if making.shared is not None:
        making.shared.made(frame.header)
    info = SessionInfo.from_wire(frame.header["info"])
    return int(frame.header["session"]), _with_cause(info, process, request_id[-1])


def _with_cause(info: SessionInfo, process: HostProcess, request_id: int) -> SessionInfo:
    """A session that asked for QNN and got nothing there, with the reason if QNN did not even start.

    The host can only conclude from the outcome; the log names the fact.
    """
    placement = info.placement
    if not (placement.known and placement.backend and not placement.qnn_nodes):
        process.stderr.forget(request_id)
        return info
    from qnnbridge._diagnosis.ort_log import decode_stderr, explain_lines

    lines = decode_stderr(process.stderr.section(request_id, LOG_TIMEOUT_S)).splitlines()
    causes = [finding.cause for finding in explain_lines(lines) if finding.setup]
    if not causes:
        return info
    return dataclasses.replace(info, placement=dataclasses.replace(placement, cause=causes[0]))
